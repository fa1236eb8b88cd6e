"""Several runs on one device, whose clients are trained in common stacks: seeds, settings, methods.

Each run keeps its round loop, its server and its session; their programs wait for each other's requests. Requests of
one kind on equal networks then share a stack, whichever run they are of. Step sizes and strengths of proximal terms may
differ in it; other settings of training, losses and shapes make kinds of their own, as in one run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from fedkin.core import Net
from fedkin.engines.coroutines import Ask, Coroutine
from fedkin.engines.stacked import OneRequest, Stacked, StackedSession
from fedkin.engines.stacked_train import Kind
from fedkin.engines.tasks import Engine, Job, Session

T = TypeVar("T")
Starter = Callable[[Engine, Job], Session]
"""Starts an engine's session for a run that trains together with others; it is to be called once.

Raises:
    NotStackedError: the engine is another one than `Stacked`.
"""


class NotStackedError(Exception):
    """The run has an engine that cannot train together with other runs."""


@dataclass(frozen=True)
class Together:
    """Execution of runs that train together; each gives what it gives alone, to the tolerance of `Stacked`.

    Attributes:
        most: maximum number of runs at a time; the next one begins when one has ended.
    """

    most: int

    def execute(self, runs: Sequence[Callable[[Starter], T]]) -> list[T | Exception]:
        """Execute runs and return what each returns or raises; after an error no further run begins.

        Runs of another engine are not executed: their result is a `NotStackedError`. Runs that did not begin have none.

        Raises:
            BaseException: Ctrl-C, for example; all runs are stopped where they wait for training.
        """
        found: dict[int, T | Exception] = {}
        waiting, live = deque(range(len(runs))), dict[int, Coroutine[T]]()
        stacks = _JointStacks(self.most)
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        try:
            while live or waiting:
                while waiting and len(live) < self.most:
                    i = waiting.popleft()
                    live[i] = Coroutine(partial(_body, runs[i], stacks, i, gpu))
                    live[i].resume()
                    _collect(live, found, waiting)
                answers = stacks.train({i: run.question for i, run in live.items()})
                for i in list(answers):
                    live[i].resume(answers.pop(i))  # what a run has is not kept here as well
                    _collect(live, found, waiting)
        finally:
            for run in live.values():
                run.stop()
            stacks.close()
        return [found[i] for i in sorted(found)]


def _body(run: Callable[[Starter], T], stacks: _JointStacks, number: int, gpu: int | None, ask: Ask) -> T:
    with nullcontext() if gpu is None else torch.cuda.device(gpu):  # a new thread would have the first one
        return run(partial(stacks.start, number, ask))


def _collect(live: dict[int, Coroutine[T]], found: dict[int, T | Exception], waiting: deque[int]) -> None:
    """Move what runs that have ended returned or raised from ``live`` to ``found``."""
    for i in [i for i, run in live.items() if run.ended]:
        run = live.pop(i)
        if run.error is None:
            found[i] = run.result
        elif isinstance(run.error, Exception):
            found[i] = run.error
            if not isinstance(run.error, NotStackedError):
                waiting.clear()
        else:
            raise run.error


class _JointStacks:
    """Device of runs that train together.

    Args:
        runs: maximum number of them at a time.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._first: _JointSession | None = None
        self._nets: list[Net] = []
        self._apart: set[_JointKind] = set()  # kinds whose training draws random numbers, which depend on the stack

    def start(self, number: int, ask: Ask, engine: Engine, job: Job) -> Session:
        """Return the session of the run of a number, which waits for the results of its requests by ``ask``."""
        if not isinstance(engine, Stacked) or (self._first is not None and self._first.engine != engine):
            raise NotStackedError(f"{engine} does not train together with other runs")
        session = _JointSession(job, engine, number, self._known(job.net), ask, self._first, self._runs)
        self._first = self._first or session
        return session

    def train(self, asked: Mapping[int, _Asked]) -> dict[int, list[Tensor] | Exception]:
        """Carry out the requests of runs; return for each run the results in their order, or its error."""
        kinds: dict[_JointKind, dict[int, list[int]]] = {}
        for i, (session, ones) in asked.items():
            for at, one in enumerate(ones):
                kinds.setdefault(session.joint_kind(one), {}).setdefault(i, []).append(at)
        found = {i: [torch.empty(0)] * len(ones) for i, (_, ones) in asked.items()}
        failed: dict[int, Exception] = {}
        for kind, runs in kinds.items():
            todo = {i: (asked[i][0], [asked[i][1][at] for at in runs[i]]) for i in runs if i not in failed}
            for i, rows in self._of_a_kind(kind, todo).items():
                if isinstance(rows, Exception):
                    failed[i] = rows
                else:
                    for at, w in zip(runs[i], rows, strict=True):
                        found[i][at] = w
        return {**found, **failed}

    def _of_a_kind(self, kind: _JointKind, todo: Mapping[int, _Asked]) -> Mapping[int, list[Tensor] | Exception]:
        sessions = [session for session, _ in todo.values()]
        if len(todo) > 1 and kind not in self._apart:
            rows, drew = sessions[0].joined(kind, [one for _, ones in todo.values() for one in ones])
            if drew:
                self._apart.add(kind)
            elif rows is not None:
                left = iter(rows)
                return {i: list(islice(left, len(ones))) for i, (_, ones) in todo.items()}
        return {i: session.by_itself(ones) for i, (session, ones) in todo.items()}

    def _known(self, net: Net) -> Net:
        """Return the first network that differs from this one in its values alone."""
        found = next((known for known in self._nets if _alike(known, net)), net)
        self._nets += [net] if found is net else []
        return found

    def close(self) -> None:
        """Free the device's memory."""
        if self._first is not None:
            self._first.free()


class _JointSession(StackedSession):
    """One run's session, whose requests are carried out with those of other runs.

    Args:
        number: of the run.
        net: network of its stacks, the same object for all runs with such a network.
        ask: waits for the results of requests.
        beside: that of the first run; None: this is it.
        runs: maximum number of them at a time.
    """

    def __init__(
        self, job: Job, engine: Stacked, number: int, net: Net, ask: Ask, beside: _JointSession | None, runs: int
    ) -> None:
        super().__init__(job, engine, beside, runs)
        self._number, self._net, self._ask = number, net, ask
        self._uploads: dict[int, int] = {} if beside is None else beside._uploads  # by run
        self._uploads[number] = self._left

    @property
    def engine(self) -> Stacked:
        """The engine with its settings."""
        return self._engine

    def close(self) -> None:
        """Leave the device to the other runs."""
        self._uploads.pop(self._number, None)

    def free(self) -> None:
        """Free recordings and the device's memory, of all runs."""
        super().close()

    # ---- in the run's own thread ------------------------------------------------------------------------------------
    def _carried_out(self, todo: Sequence[OneRequest]) -> list[Tensor]:
        restore = self._place.settings()  # other runs change them before this one goes on
        try:
            rows: list[Tensor] = self._ask((self, [replace(one, run=self._number) for one in todo]))
            return rows
        finally:
            restore()

    # ---- for all runs -----------------------------------------------------------------------------------------------
    def _kind(self, one: OneRequest) -> Kind:
        return (self._net, *super()._kind(one))

    def joint_kind(self, one: OneRequest) -> _JointKind:
        """Return a key that is equal for requests of all runs that can share a stack.

        Step sizes may differ, but not those of a separate proximal step, which are one number of a stack.
        """
        *kind, lr = self._kind(one)
        return tuple(kind), lr if one.asked.request.prox_after else None

    def joined(self, kind: _JointKind, ones: Sequence[OneRequest]) -> tuple[list[Tensor] | None, bool]:
        """Return the results of requests of several runs, and whether their training drew random numbers.

        None where they are to be trained run by run: they cannot be stacked, or one of them has failed.
        """
        if kind[0] in self._refused or self._unfit(ones[0].asked) is not None:
            return None, False
        refused = set(self._refused)
        order = sorted(range(len(ones)), key=lambda i: -ones[i].asked.steps)
        with self._place.at_work():
            try:
                rows = self._of_a_kind(kind[0], [ones[i] for i in order])
            except Exception:  # of whichever run: it will meet it by itself, and the others will not
                self._refused.intersection_update(refused)
                return None, False
            drew = self._place.drew()
        return [row for _, row in sorted(zip(order, rows, strict=True), key=lambda found: found[0])], drew

    def by_itself(self, ones: Sequence[OneRequest]) -> list[Tensor] | Exception:
        """Return the results of requests of this run alone, as without other runs, or the error that they ended in."""
        refused = set(self._refused)
        with self._place.at_work():
            try:
                return super()._carried_out(ones)
            except Exception as e:
                self._refused.intersection_update(refused)
                return e

    def _for_uploads(self) -> int:
        return sum(self._uploads.values())


_JointKind: TypeAlias = tuple[Kind, object]
_Asked: TypeAlias = tuple[_JointSession, list[OneRequest]]


def _alike(a: Net, b: Net) -> bool:
    """Return whether two networks compute the same function of their vectors, as far as can be seen."""
    if (a.shape, a.classes, a.head_name, a.names) != (b.shape, b.classes, b.head_name, b.names):
        return False
    if list(a.fixed) != list(b.fixed) or not all(torch.equal(t, b.fixed[n]) for n, t in a.fixed.items()):
        return False
    return len(a.networks) == len(b.networks) and all(
        _same_modules(one.module, other.module) for one, other in zip(a.networks, b.networks, strict=True)
    )


def _same_modules(a: nn.Module, b: nn.Module) -> bool:
    mine, other = dict(a.named_modules()), dict(b.named_modules())
    return list(mine) == list(other) and all(_same_module(m, other[name]) for name, m in mine.items())


def _same_module(a: nn.Module, b: nn.Module) -> bool:
    """Return whether two modules have the same class, shapes, settings, and buffers that are in no vector."""
    if type(a) is not type(b) or _shapes(a) != _shapes(b):
        return False
    mine, other = _settings(a), _settings(b)
    return set(mine) == set(other) and all(_equal(value, other[name]) for name, value in mine.items())


def _shapes(m: nn.Module) -> list[tuple[str, object]]:
    return [(name, None if t is None else t.shape) for name, t in (*m._parameters.items(), *m._buffers.items())]


def _settings(m: nn.Module) -> dict[str, object]:
    buffers = {n: t for n, t in m._buffers.items() if t is not None and not t.is_floating_point()}
    return {name: value for name, value in {**vars(m), **buffers}.items() if name not in _VALUES}


_VALUES = {*vars(nn.Module()), "_fedkin_mode", "num_batches_tracked"}
"""Attributes of modules that hold their values, submodules, hooks and mode, and counts that are not used."""


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except (RuntimeError, ValueError):  # tensors inside: networks that cannot be compared have stacks of their own
        return False
