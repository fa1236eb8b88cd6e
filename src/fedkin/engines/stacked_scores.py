"""Evaluation of clients that share one model: one pass over the samples of many, all confusion matrices at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedkin.core import Bundle, Samples
from fedkin.engines.scoring import sent_model
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_eval import runs
from fedkin.engines.tasks import Answer, Job, Task
from fedkin.engines.turns import Turn


class CommonScores:
    """Evaluations of clients that predict with the model they are sent, the same for all, and show no other one.

    Args:
        guesses: ``(what is predicted with, inputs on the device) -> the class of each sample``, on the device.
    """

    def __init__(self, job: Job, place: Place, guesses: Callable[[Bundle, Tensor], Tensor]) -> None:
        self._job, self._place, self._guesses = job, place, guesses

    def answers(self, tasks: Sequence[Task]) -> list[Answer] | None:
        """Return what `fedkin.engines.scoring.evaluate` gives for each client; None for tasks of another kind.

        Raises:
            Exception: what the method's prediction raises.
        """
        model = self._model(tasks)
        if model is None:
            return None
        found = [self._job.shards[task.client] for task in tasks]
        shards = [shard.at(task.round) for task, shard in zip(tasks, found, strict=True)]
        for task, whole, shard in zip(tasks, found, shards, strict=True):
            changes = whole.changes(task.round)
            self._place.data.name(shard.test, (task.client, "test", changes), self._job)
            self._place.data.name(shard.validation, (task.client, "validation", changes), self._job)
        parts, classes = [part for shard in shards for part in (shard.test, shard.validation)], self._job.net.classes
        guessed, rows = self._guessed(model, parts), _rows([len(part) for part in parts])
        cells = (rows * classes + torch.cat([part.y for part in parts])) * classes + guessed.clamp(min=0)
        matrices = torch.bincount(cells, minlength=len(parts) * classes**2).view(-1, 2, classes, classes)
        lost = torch.bincount(rows[guessed < 0], minlength=len(parts)).view(-1, 2).sum(1)
        trained = _rows([len(shard.train) for shard in shards]) * classes + torch.cat([s.train.y for s in shards])
        counts = torch.bincount(trained, minlength=len(shards) * classes).view(-1, classes)
        names = ("counts", "test", "validation", "unpredicted")
        numbers = zip(counts, *matrices.unbind(1), lost, strict=True)
        replies = [Bundle(zip(names, each, strict=True)) for each in numbers]
        return [Answer(task.client, reply, task.state) for task, reply in zip(tasks, replies, strict=True)]

    def _model(self, tasks: Sequence[Task]) -> Bundle | None:
        """Return what all these clients predict with, if that is the model they are sent; None if it is not."""
        first = tasks[0]
        if self._job.sends_outcomes(first.round) or any(task.step != "evaluate" for task in tasks):
            return None
        sent = {name: id(t) for name, t in first.received.items()}
        if any({name: id(t) for name, t in task.received.items()} != sent for task in tasks):
            return None
        return sent_model(self._job.method, Turn(self._job, first).client)

    def _guessed(self, model: Bundle, parts: Sequence[Samples]) -> Tensor:
        """Return the class of each sample of all parts, on the host."""
        joined = (self._place.data.joined(some).x for some in runs([part for part in parts if len(part)]))
        found = [self._place.down(self._guesses(model, x)) for x in joined]
        return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


def _rows(sizes: Sequence[int]) -> Tensor:
    """Return each sample's part: 0 for those of the first part, and so on."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
