"""Runs one program on a workload, in a process of its own, from its command to its last line."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.speed.machine import memory_mb
from bench.speed.workloads import Workload

import fedkin

SCRIPTS = Path(__file__).parent / "peers"
_LOOK_EVERY = 0.1  # seconds between two looks at the memory
_LONGEST = 900.0


@dataclass(frozen=True)
class Ran:
    """What a run of a program gave.

    Attributes:
        round_s: seconds of each timed round.
        first_s: seconds from the command until its first round began.
        whole_s: seconds from the command to its end.
        cpu_s: seconds that its processes computed, start-up included: says more than others on a busy machine. Those
            that their parent did not wait for, such as Ray's, are missing.
        accuracy: of the test samples after the last round, all clients' together.
        loss: mean test loss after the last round, where it is told.
        memory_mb: peak of all its processes together; only where it was watched, which disturbs the timing.
        more: what else it said.
    """

    round_s: list[float]
    first_s: float
    whole_s: float
    cpu_s: float
    accuracy: float
    loss: float | None = None
    memory_mb: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        return statistics.median(self.round_s)


def run(
    script: str,
    python: str,
    w: Workload,
    folder: Path,
    *,
    watch: bool = False,
    src: Path | None = None,
    **settings: Any,
) -> Ran:
    """Starts ``peers/SCRIPT.py`` with an interpreter on the data in a folder.

    Args:
        src: the folder of another fedkin than this one.
        settings: what the script is told beside the workload.

    Raises:
        SystemExit: it failed; its last words are in the message.
    """
    with tempfile.TemporaryDirectory(prefix="speed-") as place:
        told = {**w.described(), "rounds": w.rounds + 2, "folder": str(folder), "place": place, **settings}
        file, log = Path(place) / "settings.json", Path(place) / "log"
        file.write_text(json.dumps(told), encoding="utf-8")
        started, spent, peak = time.time(), _cpu_s(), None
        with log.open("w") as errors:
            process = subprocess.Popen(
                [python, str(SCRIPTS / f"{script}.py"), str(file)], stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment(Path(place), src), cwd=place, start_new_session=True,
            )  # fmt: skip
            try:
                if watch:
                    peak = _watched(process)
                said, _ = process.communicate(timeout=_LONGEST)
            finally:  # with the processes that it started, of which a timeout or Ctrl-C would leave some
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        ended = time.time()
        lines = [line for line in said.splitlines() if line.startswith('{"speed"')]
        if process.returncode or not lines:
            raise SystemExit(f"{script} by {python} failed:\n{said[-2000:]}\n{log.read_text()[-4000:]}")
    found: dict[str, Any] = json.loads(lines[-1])["speed"]
    return Ran(
        found.pop("round_s"), found.pop("first") - started, ended - started, _cpu_s() - spent, found.pop("accuracy"),
        found.pop("loss", None), peak, found,
    )  # fmt: skip


def _cpu_s() -> float:
    """Seconds of computing by programs that have ended, and by the processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment(place: Path, src: Path | None = None) -> dict[str, str]:
    """Ours, with fedkin to be imported by any interpreter, from ``src`` or this one, and nothing else of ours."""
    code = place / "code"
    code.mkdir()
    (code / "fedkin").symlink_to(Path(fedkin.__file__).parent if src is None else src.resolve() / "fedkin")
    return {**os.environ, "PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"}


def _watched(process: subprocess.Popen[str]) -> float | None:
    """The peak of a program's memory until it ends; it says little enough for a pipe."""
    peak = None
    until = time.monotonic() + _LONGEST
    while process.poll() is None and time.monotonic() < until:
        now = memory_mb(process.pid)
        peak = now if peak is None else max(peak, now or 0.0)
        time.sleep(_LOOK_EVERY)
    return peak
