"""Ways to damage input, and a child process in which damaged input is tried with little memory."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import random
import resource
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedkin.core import FedkinError

Case = Callable[[random.Random, Path], None]
"""Writes damaged input to an empty folder and has it read."""
SPARE = 1500 << 20
"""Bytes of memory that the child may take beyond what it has at its start; a third of it by one case is a fault."""
LONGEST, LONGEST_TEXT, MOST_FAULTS = 300, 6000, 8
"""Seconds for one case, characters of a refusal, and faults of different kinds after which it is enough."""

_NUMBERS: list[Any] = [
    0, -1, 1, 2, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**12,
    10**400, 0.5, -0.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
_TEXTS = [
    "",
    "x",
    "x" * 5000,
    "../x",
    "a\nb",
    "\0",
    "\x1b[2J",
    "ä",
    "model/weights.py:build",
    "os:abort",
    "mlp",
    "model",
]
_OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], {"result": "x"}, {"tuple": [1]}, {"slice": [0, 1]}]


def value(rng: random.Random) -> Any:
    """A value of any type."""
    return copy.deepcopy(rng.choice(rng.choice([_NUMBERS, _TEXTS, _OTHERS])))


def tree(rng: random.Random, found: Any) -> Any:
    """What `json.loads` gave with one to three changes: a value replaced, removed, doubled, wrapped or moved."""
    found = copy.deepcopy(found)
    for _ in range(rng.randint(1, 3)):
        places = [
            (box, key) for box in _boxes(found) for key in (range(len(box)) if isinstance(box, list) else list(box))
        ]
        if not places:
            return value(rng)
        box, key = rng.choice(places)
        what = rng.randrange(6)
        if what <= 1:
            box[key] = value(rng)
        elif what == 2:
            del box[key]
        elif what == 3:
            box[key] = [box[key]] * rng.choice([1, 2, 1000])
        elif what == 4 and isinstance(box[key], int | float) and not isinstance(box[key], bool):
            box[key] = (
                value(rng)
                if abs(box[key]) > 2**63
                else box[key] * rng.choice([-1, 2, 10, 10**9]) + rng.choice([-1, 0, 1])
            )
        else:
            other, at = rng.choice(places)
            box[key] = (
                copy.deepcopy(other[at]) if at in (range(len(other)) if isinstance(other, list) else other) else 0
            )
    return found


def _boxes(found: Any) -> list[Any]:
    """All lists and objects inside a value."""
    if not isinstance(found, list | dict):
        return []
    inside = found.values() if isinstance(found, dict) else found
    return [found, *(box for one in inside for box in _boxes(one))]


def raw(rng: random.Random, content: bytes) -> bytes:
    """Bytes with one to four changes: flipped, cut, put in, doubled, or large numbers written over them."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = min(int(rng.choice([rng.random() ** 4, rng.random()]) * len(found)), max(0, len(found) - 1))
        what = rng.randrange(6)
        if what == 0 and found:
            found[at] ^= 1 << rng.randrange(8)
        elif what == 1 and found:
            found[at] = rng.randrange(256)
        elif what == 2:
            del found[at : at + rng.choice([1, 4, 100, len(found)])]
        elif what == 3:
            found[at:at] = rng.choice([b"\0", b'"', b"\xff", b",", b"\n", rng.randbytes(rng.randint(1, 50))])
        elif what == 4:
            found[at:at] = found[at : at + rng.randint(1, 200)]
        else:
            number = struct.pack(rng.choice("<>") + "Q", rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 10**12]))
            size = rng.choice([1, 2, 4, 8])
            found[at : at + size] = number[:size] if rng.random() < 0.5 else number[-size:]
    return bytes(found)


def confined(name: str, case: Case, seed: int, seconds: float) -> None:
    """Tries case after case in a child process with little memory, each from its own generator.

    Raises:
        AssertionError: anything but a refusal came out; the message has the cases, which ``seed`` repeats.
    """
    with tempfile.TemporaryDirectory(prefix="fedkin-fuzz-") as folder:
        told = Path(folder) / "told.json"
        child = multiprocessing.get_context("fork").Process(
            target=_child, args=(case, seed, seconds, Path(folder), told)
        )
        child.start()
        child.join()
        said = json.loads(told.read_text())
    if child.exitcode != 0:
        raise AssertionError(f"{name}: exit code {child.exitcode} in case {said['cases']} of seed {seed}")
    print(
        f"{name}: {said['cases']} cases, {said['refused']} refused, {said['peak'] / 1e6:.0f} MB more at most",
        flush=True,
    )
    if said["faults"]:
        lines = [f"case {i} of seed {seed}:\n{text}" for i, text in said["faults"].values()]
        raise AssertionError(f"{name}: {len(lines)} faults that are no refusals\n" + "\n".join(lines))


def _child(case: Case, seed: int, seconds: float, folder: Path, told: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        most = pages * resource.getpagesize() + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _too_long)
    warnings.simplefilter("ignore")
    faults: dict[str, tuple[int, str]] = {}
    said: dict[str, Any] = {"cases": 0, "refused": 0, "peak": 0, "faults": faults}
    before, end = _peak(), time.monotonic() + seconds
    while said["cases"] == 0 or (time.monotonic() < end and len(faults) < MOST_FAULTS):
        told.write_text(json.dumps(said))
        place = folder / "case"
        place.mkdir()
        signal.alarm(LONGEST)
        try:
            case(random.Random(f"{seed} {said['cases']}"), place)
        except FedkinError as e:
            said["refused"] += 1
            if len(str(e)) > LONGEST_TEXT:
                faults.setdefault("long", (said["cases"], f"a refusal of {len(str(e))} characters: {str(e)[:500]}"))
        except BaseException as e:
            where = traceback.extract_tb(e.__traceback__)[-1]
            faults.setdefault(f"{type(e)} {where.filename} {where.lineno}", (said["cases"], traceback.format_exc()))
        finally:
            signal.alarm(0)
            _cleared(place)
        peak = _peak() - before
        if peak - said["peak"] > SPARE / 3:
            faults.setdefault(
                "memory", (said["cases"], f"took {(peak - said['peak']) / 1e6:.0f} MB more than all before")
            )
        said["peak"] = peak
        said["cases"] += 1
    told.write_text(json.dumps(said))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if os.uname().sysname == "Darwin" else 1024)


def _too_long(signum: int, frame: object) -> None:
    raise TimeoutError(f"a case took more than {LONGEST} s")


def _cleared(place: Path) -> None:
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    place.rmdir()
