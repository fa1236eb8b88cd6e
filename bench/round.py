"""Microseconds of a round by its parts: in the server's process, and in each worker.

    python -m bench.round                  # W4 and W1a of bench.speed, FedAvg, one worker per core, no run folder
    python -m bench.round W4 --rounds 200 --written
    python -m bench.round W4 --cpu         # processor time, which other work on the machine disturbs less
    python -m bench.round W4 --plain       # nothing is timed but whole rounds

Functions are replaced by timed ones before the workers are forked; a part's time does not include the parts that are
called inside it. Timing takes a microsecond per call. Shown are means over the fastest quarter of the rounds, which
other work disturbs least; "other" is what no part covers. ``tail`` is the time for which the first worker that has
nothing left to do waits for the last one, ``end`` the time from there until the server has all answers.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.speed.federation import write
from bench.speed.workloads import WORKLOADS, Workload

import fedkin
from fedkin.core import Samples
from fedkin.core.machine import cores

SERVER = {
    "sample the cohort": ["server.rounds._sampled"],
    "downloads and messages": ["server.rounds._messages", "server.rounds.handed_out"],
    "ledgers and tasks": ["server.simulate.Simulation.exchange"],
    "received tensors to shared memory": ["engines.shared.Slab.share"],
    "orders": ["engines.workers.WorkersSession._feed"],
    "waiting for workers": ["engines.workers.selectors.DefaultSelector.select"],
    "answers": ["engines.workers.WorkersSession._receive", "engines.workers.WorkersSession.map"],
    "example of an upload (probe)": ["server.rounds.probe"],
    "checks of uploads": ["server.rounds._checked"],
    "stack": ["server.rounds.stack"],
    "aggregate": ["methods.fedavg.FedAvg.aggregate"],
    "bytes that travel": ["core.bundle.Bundle.travelling"],
    "lines": ["experiment.execute.lines_of", "record.files.LineFiles.append"],
    "checkpoint": ["experiment.run_folder.RunFolder.save", "server.simulate.Simulation.states"],
    "best round": ["experiment.execute.best"],
}
WORKER = {
    "waiting for an order": ["engines.worker._Inbox.next"],
    "reading an order": ["engines.worker._Inbox._opened", "engines.shared.Slab.read"],
    "client and its turn": ["engines.worker.perform", "engines.turns.Turn.__init__"],
    "generators": ["engines.turns.generator", "engines.turns.key"],
    "orders of samples": ["engines.loop.orders"],
    "choice of the program": ["engines.loop.native", "engines.loop.resolved"],
    "call of the program": ["engines.compiled.request.CompiledChain.__call__"],
    "training (native)": [],
    "upload to its place": ["engines.shared.Arena.fill"],
    "answer": ["engines.worker._Outbox.add", "engines.worker._Outbox.flush"],
}
_LABELS = [*SERVER, *WORKER]
_SLOTS = 65  # the server and up to 64 workers


class Clock:
    """Seconds by part and process, in memory that all processes share."""

    def __init__(self, *, cpu: bool) -> None:
        self.now = time.thread_time if cpu else time.perf_counter
        width = len(_LABELS) + 1  # and when the last answer was received or, in a worker, given
        self._map = mmap.mmap(-1, 8 * _SLOTS * width)
        self.table = np.frombuffer(self._map, dtype=np.float64).reshape(_SLOTS, width)
        self.me, self._inside = 0, [0.0]

    def timed(self, label: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time, less that of timed calls inside it, added to a part."""
        at = _LABELS.index(label)

        @functools.wraps(f)
        def around(*given: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            begun = self.now()
            try:
                return f(*given, **named)
            finally:
                took = self.now() - begun
                self.table[self.me, at] += took - self._inside.pop()
                self._inside[-1] += took

        return around

    def iterated(self, label: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return `timed` for a generator: its time is that between being asked for a value and giving it."""

        @functools.wraps(f)
        def around(*given: Any, **named: Any) -> Iterator[Any]:
            step = self.timed(label, functools.partial(next, f(*given, **named), self))
            while (value := step()) is not self:
                yield value

        return around

    def ended(self) -> None:
        """Note the time as that of this process's last answer."""
        self.table[self.me, -1] = time.perf_counter()

    def take(self) -> np.ndarray[Any, Any]:
        """Return the table and begin again from 0."""
        found = self.table.copy()
        self.table[:] = 0
        return found


def instrument(clock: Clock) -> None:
    """Replace the functions of all parts by timed ones."""
    for label, targets in {**SERVER, **WORKER}.items():
        for target in targets:
            owner, name = found(target)
            f = vars(owner).get(name) or getattr(owner, name)
            how = clock.iterated if inspect.isgeneratorfunction(f) else clock.timed
            setattr(owner, name, how(label, f))
    worker = importlib.import_module("fedkin.engines.worker")
    workers = importlib.import_module("fedkin.engines.workers")
    _after(workers.WorkersSession, "_receive", lambda _: clock.ended())
    _after(worker._Outbox, "_keep", lambda _: clock.ended())
    request = importlib.import_module("fedkin.engines.compiled.request")
    _after(request, "linked", lambda made: _call_timed(clock, made))
    main = worker.main

    def entered(job: Any, post: Any, me: int, *given: Any) -> None:
        clock.me = me + 1
        main(job, post, me, *given)

    worker.main = workers.main = entered


def found(target: str) -> tuple[Any, str]:
    """Return the module or class that a name of `SERVER` or `WORKER` is in, and the last part of the name."""
    *path, name = target.split(".")
    depth = next(n for n in range(1, len(path) + 1) if path[n:] == [] or not _is_module(path[: n + 1]))
    owner: Any = importlib.import_module("fedkin." + ".".join(path[:depth]))
    for part in path[depth:]:
        owner = getattr(owner, part)
    return owner, name


def _is_module(path: list[str]) -> bool:
    try:
        return find_spec("fedkin." + ".".join(path)) is not None
    except ModuleNotFoundError:  # its parent is a class or a module, not a package
        return False


def _after(owner: Any, name: str, hook: Callable[[Any], None]) -> None:
    """Call ``hook`` with what a function has returned."""
    f = getattr(owner, name)

    @functools.wraps(f)
    def around(*given: Any, **named: Any) -> Any:
        found = f(*given, **named)
        hook(found)
        return found

    setattr(owner, name, around)


def _call_timed(clock: Clock, made: Any) -> None:
    call = made.call
    made.call = clock.timed("training (native)", lambda *given: call(*given))


def federation(w: Workload) -> fedkin.Federation:
    """Return the federation of a workload."""
    with tempfile.TemporaryDirectory() as place:
        write(w, Path(place))
        x, y, tx, ty = (
            torch.from_numpy(np.load(f"{place}/{part}.npy")) for part in ("train_x", "train_y", "test_x", "test_y")
        )
    none = Samples(x[0, :0], y[0, :0])
    shards = [fedkin.ClientData(Samples(x[i], y[i]), none, Samples(tx[i], ty[i])) for i in range(w.clients)]
    return fedkin.Federation(tuple(shards), w.classes, name="bench")


class _Enough(Exception):
    """Ends a run from its callback, before its evaluations at the end."""


def played(w: Workload, rounds: int, clock: Clock | None, *, written: bool, workers: int) -> tuple[list[float], Any]:
    """Return the seconds of each round after five, and the clock's tables."""
    ends, tables, skipped = list[float](), list[Any](), 5

    def on_round(report: Any, line: dict[str, Any]) -> None:
        ends.append(time.perf_counter())
        if clock is not None:
            tables.append(clock.take())
        if report.round == rounds + skipped:
            raise _Enough

    with contextlib.suppress(_Enough), tempfile.TemporaryDirectory() as place:
        fedkin.run(
            fedkin.get_method("fedavg"), federation(w), w.model, fedkin.Training(batch_size=w.batch, lr=w.lr),
            rounds=rounds + 20, participation=w.cohort / w.clients, eval_every=rounds + 20,
            out=Path(place) / "run" if written else None, on_round=on_round,
            compute=fedkin.Compute(engine=f"workers@n={workers}"),
        )  # fmt: skip
    seconds = [b - a for a, b in zip(ends[skipped - 1 :], ends[skipped:], strict=False)]
    return seconds, None if clock is None else np.stack(tables[skipped:])


def shown(seconds: list[float], tables: Any, workers: int) -> Iterator[str]:
    """Yield lines of a table: microseconds per round, and per worker."""
    fast = np.argsort(seconds)[: max(1, len(seconds) // 4)]
    tables, whole = tables[fast], 1e6 * float(np.mean(np.array(seconds)[fast]))
    us = 1e6 * tables.mean(0)
    mean = us[1 : workers + 1].mean(0)
    for name, row in (("server", us[0]), ("worker, mean", mean)):
        yield f"{name}"
        for at in np.nonzero(row[: len(_LABELS)] > 0.5)[0]:
            yield f"    {_LABELS[at]:36} {row[at]:8.0f}"
        yield f"    {'other':36} {whole - row[: len(_LABELS)].sum():8.0f}"
    ended = tables[:, : workers + 1, -1]
    last = ended[:, 1:].max(1)
    for name, values in {"tail": last - ended[:, 1:].min(1), "end": ended[:, 0] - last}.items():
        yield f"{name:40} {1e6 * values.mean():8.0f}"


def main() -> None:
    """Print the parts of a round for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W4", "W1a"])
    parser.add_argument("--rounds", type=int, default=0, help="timed; default: three times the workload's")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--written", action="store_true", help="with a run folder")
    parser.add_argument("--cpu", action="store_true", help="processor time of the parts")
    parser.add_argument("--plain", action="store_true", help="whole rounds only")
    asked = parser.parse_args()
    clock = None if asked.plain else Clock(cpu=asked.cpu)
    if clock is not None:
        instrument(clock)
    for name in asked.workloads:
        w = WORKLOADS[name]
        seconds, tables = played(w, asked.rounds or 3 * w.rounds, clock, written=asked.written, workers=asked.workers)
        lines = [] if clock is None else list(shown(seconds, tables, asked.workers))
        least, median = 1e6 * min(seconds), 1e6 * statistics.median(seconds)
        speed = f"{median:.0f} us a round (minimum {least:.0f}), {w.cohort / median * 1e6:.1f} client updates/s"
        print(f"{name}: {speed}", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
