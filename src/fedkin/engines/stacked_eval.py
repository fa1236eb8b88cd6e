"""Forward passes on the device outside training: each model is moved once, and used once for all that share it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from fedkin.core import Bundle, Samples
from fedkin.engines.joint_scores import answers_of, common_model, joint_scores
from fedkin.engines.stacked_device import Place
from fedkin.engines.tasks import Answer, Job, Task

Key: TypeAlias = tuple[object, ...]
_SHARE = 16  # copies take up to this part of what a stack may
_FEW = 16  # numbers: tensors up to this size are compared by value
_TOGETHER = 1 << 14  # samples of several clients that are joined at a time


class DeviceCopies:
    """Copies of the host's tensors on the device, those used last; a tensor that changes is copied anew."""

    def __init__(self, place: Place) -> None:
        self._place, self._most = place, place.room() // _SHARE
        # the host's tensor is kept as well: else another one may come to lie at its address
        self._kept: OrderedDict[Key, tuple[Tensor, Tensor]] = OrderedDict()
        self._bytes = 0

    def bundle(self, b: Bundle) -> Bundle:
        """Return the bundle with all its tensors on the device."""
        return Bundle({name: self._copy(t) for name, t in b.items()})

    def forget(self, *, but: int = 0) -> None:
        """Release the copies, but the ones used last of that number."""
        while len(self._kept) > but:
            self._bytes -= self._kept.popitem(last=False)[1][1].nbytes

    def _copy(self, t: Tensor) -> Tensor:
        if (key := _place_of(t)) in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        there = self._place.up(t)
        self._kept[key], self._bytes = (t, there), self._bytes + there.nbytes
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1].nbytes
        return there


class JointPasses:
    """Predictions that many clients are about to ask for: one pass for each model, over the samples of all of them.

    Args:
        guesses: ``(what is predicted with, inputs on the device) -> the class of each sample``, on the device.
    """

    def __init__(self, place: Place, guesses: Callable[[Bundle, Tensor], Tensor]) -> None:
        self._place, self._guesses = place, guesses
        self._expected: dict[Key, tuple[Bundle, list[Samples]]] = {}
        self._classes: dict[tuple[Key, int], tuple[Bundle, Samples, Tensor]] = {}

    def expect(self, asked: Sequence[tuple[Bundle, Samples]]) -> None:
        """Note what a client will ask for."""
        for b, data in asked:
            self._expected.setdefault(_contents(b), (b, []))[1].append(data)

    def compute(self) -> None:
        """Make the predictions that are expected; the host has them afterwards.

        Raises:
            Exception: what a method's prediction raises; nothing of that model is then found.
        """
        expected, self._expected = self._expected, {}
        for key, (b, parts) in expected.items():
            for some in runs(parts):
                # model and samples are kept as well: else others may come to lie at their addresses
                classes = self._place.down(self._guesses(b, self._place.data.joined(some).x))
                for data, part in zip(some, classes.split([len(data) for data in some]), strict=True):
                    self._classes[key, id(data)] = (b, data, part)

    def take(self, b: Bundle, data: Samples) -> Tensor | None:
        """Return the predictions, once; None if they were not made."""
        kept = self._classes.pop((_contents(b), id(data)), None)
        return None if kept is None else kept[2]

    def forget(self) -> None:
        """Drop what was expected and found."""
        self._expected.clear()
        self._classes.clear()


def runs(parts: Sequence[Samples]) -> list[list[Samples]]:
    """Return the parts in lists of a limited number of samples, the last ones of which may exceed it."""
    groups, left = list[list[Samples]](), 0
    for data in parts:
        if left <= 0:
            groups.append([])
            left = _TOGETHER
        groups[-1].append(data)
        left -= len(data)
    return groups


def _contents(b: Bundle) -> Key:
    """Return a key that is equal for bundles of equal small tensors and of the same large ones."""
    return tuple((name, _value_of(t) if t.numel() <= _FEW else _place_of(t)) for name, t in sorted(b.items()))


def _value_of(t: Tensor) -> Key:
    return (t.dtype, t.shape, *t.flatten().tolist())


def _place_of(t: Tensor) -> Key:
    """Return where a tensor lies and how often it was written to, which is equal only for equal contents."""
    return (t.data_ptr(), t._version, t.dtype, t.shape, t.stride())


# ---- clients of one model ---------------------------------------------------------------------------------------
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
