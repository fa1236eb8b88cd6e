"""Evaluation of clients that share one model: all counts at once, without the clients' programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedkin.core import Bundle, Method, Samples
from fedkin.core.samples import ClientData
from fedkin.core.sides import chunked
from fedkin.engines.passes import evaluating
from fedkin.engines.scoring import predicted, sent_model
from fedkin.engines.tasks import Answer, Job, Task
from fedkin.engines.turns import Turn


def common_model(job: Job, tasks: Sequence[Task]) -> Bundle | None:
    """Return what all these clients predict with, if that is the model they are sent; None if it is not."""
    first = tasks[0]
    if job.sends_outcomes(first.round) or any(task.step != "evaluate" for task in tasks):
        return None
    sent = {name: id(t) for name, t in first.received.items()}
    if any({name: id(t) for name, t in task.received.items()} != sent for task in tasks):
        return None
    return sent_model(job.method, Turn(job, first).client)


def joint_scores(classes: int, shards: Sequence[ClientData], guessed: Callable[[Sequence[Samples]], Tensor]) -> Bundle:
    """Return what `fedkin.engines.scoring.evaluate` gives for clients of a common model, a row for each.

    Args:
        shards: each client's data in the round.
        guessed: gives the class of each sample of all parts, one after another, as `predicted` gives it, on the host.

    Raises:
        IndexError: a label is not a class.
    """
    parts = [part for shard in shards for part in (shard.test, shard.validation)]
    true, rows = torch.cat([part.y for part in parts]), _rows([len(part) for part in parts])
    guesses = guessed(parts)
    if len(true) and int(true.max()) >= classes:
        raise IndexError(f"a label is not one of the classes 0 to {classes - 1}")  # it would count at another client
    cells, said, size = rows * classes + true, rows * classes + guesses.clamp(min=0), len(parts) * classes
    tallies = torch.stack([torch.bincount(t, minlength=size) for t in (cells, said, cells[cells == said])])
    tests, held = tallies.view(3, -1, 2, classes).permute(2, 1, 0, 3).contiguous()
    lost = torch.bincount(rows[guesses < 0], minlength=len(parts)).view(-1, 2).sum(1)
    trained = _rows([len(shard.train) for shard in shards]) * classes + torch.cat([s.train.y for s in shards])
    counts = torch.bincount(trained, minlength=len(shards) * classes).view(-1, classes)
    return Bundle(counts=counts, test=tests, validation=held, unpredicted=lost)


def answers_of(tasks: Sequence[Task], scores: Bundle) -> list[Answer]:
    """Return the rows of `joint_scores` as the answers of clients."""
    rows = zip(*(t.unbind() for t in scores.values()), strict=True)
    return [
        Answer(task.client, Bundle(zip(scores, row, strict=True)), task.state)
        for task, row in zip(tasks, rows, strict=True)
    ]


def compiled_scores(job: Job, tasks: Sequence[Task]) -> Bundle | None:
    """Return `joint_scores` of clients of a common model whose passes are compiled; None if each is to be evaluated by
    its own program: passes of a module may draw random numbers, and a client's errors name it.
    """
    net, model = evaluating(job), Bundle(model=tasks[0].received.model)
    if net is job.net or type(job.method).predict is not Method.predict:
        return None

    def guessed(parts: Sequence[Samples]) -> Tensor:
        passes = [chunked(lambda x: net(model.model, x), net.layout(part.x)) for part in parts if len(part)]
        return predicted(torch.cat(passes)) if passes else torch.empty(0, dtype=torch.int64)

    try:
        return joint_scores(net.classes, [job.shards[task.client].at(task.round) for task in tasks], guessed)
    except Exception:
        return None


def _rows(sizes: Sequence[int]) -> Tensor:
    """Return each sample's part: 0 for those of the first part, and so on."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
