"""Evaluation of clients that share one model on the device: one pass over the samples of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fedkin.core import Bundle, Samples
from fedkin.engines.joint_scores import answers_of, common_model, joint_scores
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_eval import runs
from fedkin.engines.tasks import Answer, Job, Task


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
        model = common_model(self._job, tasks)
        if model is None:
            return None
        all_data = [self._job.shards[task.client] for task in tasks]
        shards = [shard.at(task.round) for task, shard in zip(tasks, all_data, strict=True)]
        for task, whole, shard in zip(tasks, all_data, shards, strict=True):
            changes = whole.changes(task.round)
            self._place.data.name(shard.test, (task.client, "test", changes))
            self._place.data.name(shard.validation, (task.client, "validation", changes))
        return answers_of(tasks, joint_scores(self._job.net.classes, shards, partial(self._guessed, model)))

    def _guessed(self, model: Bundle, parts: Sequence[Samples]) -> Tensor:
        """Return the class of each sample of all parts, on the host."""
        joined = (self._place.data.joined(some).x for some in runs([part for part in parts if len(part)]))
        classes = [self._place.down(self._guesses(model, x)) for x in joined]
        return torch.cat(classes) if classes else torch.empty(0, dtype=torch.int64)
