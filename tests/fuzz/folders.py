"""Damages run folders in many ways: whatever is in them, commands work or refuse the folder in one line.

    python tests/fuzz/folders.py [--seed 0] [--seconds 60]

Each step copies a folder, damages one file, and calls one command. It must end with code 0, or with code 2 and a line
that names the folder. A command that goes on with a run and ends with code 0 must have given the lines of the undamaged
run, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import tomli_w

from fedkin.cli import main
from fedkin.cli.exit_codes import BAD_INPUT, OK
from fedkin.experiment.run import run_settings
from folders import lines_in, small

COMMANDS = {
    "report": ["report", "damaged", "--quiet"],
    "resume": ["resume", "damaged", "--quiet"],
    "longer": ["resume", "damaged", "--quiet", "--rounds", "7"],
    "export": ["export", "damaged", "--client", "0", "--out", "home"],
    "status": ["join", "damaged", "--data", "nowhere.csv"],
}
VALUES: tuple[Any, ...] = (None, True, -1, 0, 10**30, 0.5, float("nan"), "", "text", "../..", [], [[]], {}, {"a": 1})


class Stopped(BaseException):
    """Stands for a kill."""


# ---- folders ------------------------------------------------------------------------------------------------------
def made(place: Path) -> dict[str, Path]:
    """Folders to damage, by what they are: finished and interrupted, states in memory and in files."""
    found = {}
    for state in ("memory", "file"):
        settings = small("da-pfl", run={"rounds": 5, "eval_every": 1}, compute={"state": state})
        for kind in ("finished", "interrupted"):
            folder = place / f"{kind}, {state}"
            with contextlib.suppress(Stopped):
                run_settings(settings, out=folder, on_round=None if kind == "finished" else _stop)
            found[folder.name] = folder
    return found


def _stop(report: Any, line: Any) -> None:
    if report.round == 3:
        raise Stopped


# ---- damage -------------------------------------------------------------------------------------------------------
Draw = random.Random


def flip(raw: bytes, draw: Draw) -> bytes:
    """One bit is another."""
    at = draw.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :]


def cut(raw: bytes, draw: Draw) -> bytes:
    """The end is missing."""
    return raw[: draw.randrange(len(raw))]


def garbage(raw: bytes, draw: Draw) -> bytes:
    """Some bytes are replaced by others."""
    at = draw.randrange(len(raw))
    return raw[:at] + draw.randbytes(draw.choice((1, 4, 40))) + raw[at + draw.choice((0, 1, 40)) :]


def empty(raw: bytes, draw: Draw) -> bytes:
    """Nothing, or something else altogether."""
    return draw.choice((b"", b"\n", b"\0" * len(raw), draw.randbytes(64), b"[" * 5000, b"{}", b"null\n"))


def a_line_less(raw: bytes, draw: Draw) -> bytes:
    """A line is missing."""
    lines = raw.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


def a_line_twice(raw: bytes, draw: Draw) -> bytes:
    """A line stands twice."""
    lines = raw.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    return b"".join(lines)


def swapped(raw: bytes, draw: Draw) -> bytes:
    """Two lines stand in each other's place."""
    lines = raw.splitlines(keepends=True)
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


def typed(raw: bytes, draw: Draw) -> bytes:
    """A value in JSON or TOML is of another type, or its key is missing."""
    with contextlib.suppress(ValueError):
        lines = raw.splitlines(keepends=True)
        at = draw.randrange(len(lines))
        if (told := json.loads(lines[at])) and isinstance(told, dict):
            return b"".join([*lines[:at], json.dumps(_changed(told, draw)).encode() + b"\n", *lines[at + 1 :]])
    with contextlib.suppress(ValueError):
        return json.dumps(_changed(json.loads(raw), draw)).encode()
    with contextlib.suppress(ValueError, TypeError):
        return tomli_w.dumps(_changed(tomllib.loads(raw.decode()), draw)).encode()
    return flip(raw, draw)


def _changed(told: Any, draw: Draw) -> Any:
    places = list(_places(told))
    if not places:
        return draw.choice(VALUES)
    holder, key = draw.choice(places)
    if draw.random() < 0.3:
        del holder[key]
    else:
        holder[key] = draw.choice(VALUES)
    return told


def _places(told: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in nested lists and tables, as what holds it and under which key."""
    for key, value in list(told.items() if isinstance(told, dict) else enumerate(told)):
        yield told, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


HARMS: tuple[Callable[[bytes, Draw], bytes], ...] = (
    flip, cut, garbage, empty, a_line_less, a_line_twice, swapped, typed, typed, typed,
)  # fmt: skip


# ---- one step -----------------------------------------------------------------------------------------------------
def step(draw: Draw, folders: dict[str, Path], place: Path) -> str:
    """Damages a copy of a folder and calls a command; what was done.

    Raises:
        AssertionError: the command did neither work nor refuse.
    """
    kind = draw.choice(list(folders))
    damaged = place / "damaged"
    for old in (damaged, place / "home"):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(folders[kind], damaged)
    file = draw.choice(sorted(p for p in damaged.rglob("*") if p.is_file() and p.stat().st_size))
    harm = draw.choice(HARMS)
    if draw.random() < 0.05:
        file.unlink()
    else:
        file.write_bytes(harm(file.read_bytes(), draw))
    name = draw.choice(list(COMMANDS))
    said = f"{name} of a {kind} run, {file.relative_to(damaged)} with: {harm.__doc__}"
    code, words = called(COMMANDS[name], said)
    assert code in (OK, BAD_INPUT), f"{said} ended with code {code}: {words}"
    if code == BAD_INPUT:
        last = words.strip().splitlines()[-1]
        assert last.startswith("fedkin: "), f"{said} said {words!r}"
        assert file.name in last or "damaged" in last or file.name == "config.toml" or name == "status", (
            f"{said}: {last}"
        )
    elif name == "resume":
        assert lines_in(damaged) == lines_in(folders["finished, memory"]), f"{said} gave other lines"
    return said


def called(command: list[str], said: str) -> tuple[int, str]:
    """The code of a command, and what it has said on standard error."""
    err, before = io.StringIO(), signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            return main(command), err.getvalue()
        except SystemExit as end:
            return int(end.code or 0), err.getvalue()
        except Exception as e:
            raise AssertionError(f"{said}: {e!r}\n{traceback.format_exc()}") from e
        finally:
            signal.signal(signal.SIGTERM, before)


def steps(seed: int, count: int | None = None, seconds: float = float("inf")) -> int:
    """Takes steps until there were enough or the time is up; how many.

    Raises:
        AssertionError: a step went wrong; the message has the seed and the number of the step.
    """
    end, here, done = time.monotonic() + seconds, os.getcwd(), 0
    with tempfile.TemporaryDirectory(prefix="fedkin-fuzz-") as name:
        place = Path(name)
        folders = made(place)
        os.chdir(place)
        try:
            while (count is None or done < count) and time.monotonic() < end:
                try:
                    step(random.Random(f"{seed} {done}"), folders, place)
                except AssertionError as e:
                    raise AssertionError(f"seed {seed}, step {done}: {e}") from e
                done += 1
        finally:
            os.chdir(here)
    return done


def run(seed: int, seconds: float) -> None:
    """Damages folders for some seconds.

    Raises:
        AssertionError: a command did neither work nor refuse; the message has the seed.
    """
    steps(seed, seconds=seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    print(steps(asked.seed, seconds=asked.seconds), "folders damaged")
