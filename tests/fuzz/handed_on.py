"""Damages folders in every way in which a stranger could have prepared them, and calls commands on them.

What holds for every folder and command: nothing outside the folder and what the command was asked to write is
touched, no code runs where none may, and the command ends in time, with code 0, 2 or 3 and no traceback; of code 2,
with a line on standard error that begins with "fedkin: ".

A module of folders of another kind has a maker, ``made(place) -> dict[str, Sort]``, and a
``run(seed, seconds)`` that calls ``tries(made, seed, seconds=seconds)``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.cli import BAD_INPUT, DIVERGED, OK, main

Draw = random.Random
HERE, NEW = "HERE", "NEW"
"""In a command: the damaged folder, and a folder or file that it may write."""
LONGEST = 300
"""Seconds for one command."""
SPARE = 3 << 30
"""Bytes of memory that a command may take."""
MARK = "FEDKIN_FUZZ_RAN"
"""Variable with the path that `CODE` makes."""
CODE = f"""import os
from pathlib import Path

if "{MARK}" in os.environ:
    Path(os.environ["{MARK}"]).touch()
"""
"""The beginning of a Python file that tells that it was run."""


@dataclass(frozen=True)
class Sort:
    """A kind of folder.

    Attributes:
        folder: one that is whole.
        commands: command lines by name, with `HERE` and `NEW` for paths.
        quiet: names of those that run no code, whatever the folder names.
        check: called with the damaged folder and the name of the command after one that ended with code 0, where the
            damage was of bytes in ``file``.
    """

    folder: Path
    commands: Mapping[str, Sequence[str]]
    quiet: frozenset[str] = frozenset()
    check: Callable[[Path, str, Path], None] | None = None


@dataclass(frozen=True)
class Others:
    """Files outside the damaged folder, which no command may touch."""

    place: Path

    @classmethod
    def made(cls, place: Path) -> Others:
        """Files, a folder and a module in the working folder."""
        (place / "others" / "below").mkdir(parents=True)
        for name in ("file", "other.json", "below/0.bank", "below/summary.json"):
            (place / "others" / name).write_text('{"mine": 1}\n')
        (place / "others" / "file").chmod(0o640)
        (place / "canary.py").write_text(CODE + "\n\nclass Own:\n    title = 'x'\n")
        return cls(place)

    def names(self) -> list[str]:
        """Paths that lead there."""
        there = self.place / "others"
        found = [str(there / "file"), str(there / "below"), "../others/file", "../../others/below/0.bank"]
        return [*found, "canary:Own", "./canary.py:Own", f"{self.place}/canary.py:Own"]

    def seen(self, but: Sequence[Path]) -> dict[str, tuple[object, ...]]:
        """All that can be seen of the files, but for folders that a command may change."""
        found = dict[str, tuple[object, ...]]()
        for path in sorted(self.place.rglob("*")):
            if any(path == other or other in path.parents for other in but):
                continue
            about = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
            time_ns = about.st_mtime_ns if stat.S_ISREG(about.st_mode) else 0  # folders beside the damaged one change
            found[str(path)] = (about.st_mode, time_ns, about.st_ino, content)
        return found


# ---- damage to the bytes of a file --------------------------------------------------------------------------------
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 0.5, float("nan"), "", "text", "../..", "a\0b", "x" * 5000, [], [[]], {}, {"a": 1},
)  # fmt: skip


def flip(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """One bit is another."""
    at = draw.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :]


def cut(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """The end is missing."""
    return raw[: draw.randrange(len(raw))]


def garbage(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """Some bytes are replaced by others."""
    at = draw.randrange(len(raw))
    return raw[:at] + draw.randbytes(draw.choice((1, 4, 40))) + raw[at + draw.choice((0, 1, 40)) :]


def empty(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """Nothing, or something else altogether."""
    return draw.choice((b"", b"\n", b"\0" * len(raw), draw.randbytes(64), b"[" * 5000, b"{}", b"null\n"))


def a_line_less(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """A line is missing."""
    lines = raw.splitlines(keepends=True)
    lines.pop(draw.randrange(len(lines)))
    return b"".join(lines)


def a_line_twice(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """A line stands twice."""
    lines = raw.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    return b"".join(lines)


def swapped(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """Two lines stand in each other's place."""
    lines = raw.splitlines(keepends=True)
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


def typed(raw: bytes, draw: Draw, names: Sequence[str]) -> bytes:
    """A value in JSON or TOML is another, a path to other files perhaps, or its key is missing."""
    with contextlib.suppress(ValueError):
        lines = raw.splitlines(keepends=True)
        at = draw.randrange(len(lines))
        if (told := json.loads(lines[at])) and isinstance(told, dict):
            return b"".join([*lines[:at], json.dumps(_changed(told, draw, names)).encode() + b"\n", *lines[at + 1 :]])
    with contextlib.suppress(ValueError):
        return json.dumps(_changed(json.loads(raw), draw, names)).encode()
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return tomli_w.dumps(_changed(tomllib.loads(raw.decode()), draw, names)).encode()
    return flip(raw, draw, names)


def _changed(told: Any, draw: Draw, names: Sequence[str]) -> Any:
    places = list(_places(told))
    value = draw.choice(VALUES) if draw.random() < 0.6 else draw.choice(names)
    if not places:
        return value
    holder, key = draw.choice(places)
    what = draw.random()
    if what < 0.3:
        del holder[key]
    elif what < 0.4 and isinstance(holder, dict):
        holder[draw.choice((f"{key}_/", f"{key}/", "")) + draw.choice(names)] = holder.pop(key)
    else:
        holder[key] = value
    return told


def _places(told: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in nested lists and tables, as what holds it and under which key."""
    for key, value in list(told.items() if isinstance(told, dict) else enumerate(told)):
        yield told, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


Harm = Callable[[bytes, Draw, Sequence[str]], bytes]
HARMS: tuple[Harm, ...] = (
    flip, cut, garbage, empty, a_line_less, a_line_twice, swapped, typed, typed, typed,
)  # fmt: skip


# ---- damage to the folder -----------------------------------------------------------------------------------------
ADDED = (
    ".lock", "report.html", "overview.png", "summary.json", "events.jsonl", "rounds.jsonl", "objects",
    "objects/" + "0" * 40, "commit.json", "run.json", "tracking.json",
    "tuning.json", "table.md", "table.csv", "sweep.csv", "compare.toml", "sweep.toml", "config.toml",
    "clients.json", "failed.txt", "figures", "model", "join.json", ".summary.json.{pid}.new",
    ".commit.json.{pid}.new", ".report.html.{pid}.new", "x.py",
)  # fmt: skip
"""Names that commands read or write, for something that was not there."""


def put(path: Path, draw: Draw, others: Others) -> str:
    """Replaces a path by a link, a pipe, a folder or a copy of another path; returns what it is now."""
    there = others.place / "others"
    kind = draw.choice(("file", "folder", "relative", "zero", "nothing", "itself", "pipe", "directory"))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _gone(path)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to(
                {
                    "file": there / draw.choice(("file", "other.json")),
                    "folder": there / "below",
                    "relative": Path(os.path.relpath(there / "file", path.parent)),
                    "zero": Path("/dev/zero"),
                    "nothing": there / "not there yet",
                    "itself": path,
                }[kind]
            )
    return f"{path.name} is now: {kind}"


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def damage(folder: Path, draw: Draw, others: Others) -> tuple[str, Path | None]:
    """Damages a folder in one way; what was done, and the file where only its bytes are others."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size)
    what, file = draw.random(), draw.choice(files)
    where = file.relative_to(folder)
    if what < 0.5:
        harm = draw.choice(HARMS)
        file.write_bytes(harm(file.read_bytes(), draw, others.names()))
        return f"{where}: {harm.__doc__}", file
    if what < 0.65:
        return put(file, draw, others), None
    if what < 0.8:
        base = draw.choice([folder, *(p for p in sorted(folder.iterdir()) if p.is_dir() and not p.is_symlink())])
        return put(base / draw.choice(ADDED).format(pid=os.getpid()), draw, others), None
    if what < 0.85:
        place = draw.choice([folder, *(p for p in sorted(folder.rglob("*")) if p.is_dir() and not p.is_symlink())])
        if place == folder:
            return put(folder / "more", draw, others), None
        return put(place, draw, others), None
    if what < 0.9:
        other = draw.choice(files)
        mine, theirs = file.read_bytes(), other.read_bytes()
        file.write_bytes(theirs)
        other.write_bytes(mine)
        return f"{where} and {other.relative_to(folder)} are swapped", None
    if what < 0.95:
        file.unlink()
        return f"{where} is missing", None
    odd = os.fsdecode(draw.choice((b"\xff\xfe", b"a\nb", b"\x1b[2J", b"-x", b"a b", b"caf\xe9.bank", b"..bank")))
    file.rename(file.with_name(odd))
    return f"{where} is called {odd!r}", None


# ---- one step -----------------------------------------------------------------------------------------------------
def step(draw: Draw, sorts: Mapping[str, Sort], others: Others, number: int) -> str:
    """Damages a copy of a folder and calls a command; what was done.

    Raises:
        AssertionError: what holds for every folder and command did not hold.
    """
    kind = draw.choice(list(sorts))
    sort, damaged, new = sorts[kind], others.place / f"handed{number}", others.place / f"new{number}"
    shutil.copytree(sort.folder, damaged)
    done = [damage(damaged, draw, others)]
    while draw.random() < 0.2:
        done.append(damage(damaged, draw, others))
    name = draw.choice(list(sort.commands))
    words = [word.replace(HERE, str(damaged)).replace(NEW, str(new)) for word in sort.commands[name]]
    told = f"{name} of {kind}, damaged: {'; '.join(what for what, _ in done)}"
    ran = others.place.parent / "ran"
    before = others.seen((damaged, new))
    try:
        if name in sort.quiet:
            os.environ[MARK] = str(ran)
        code, out, err = called(words, told)
    finally:
        os.environ.pop(MARK, None)
        sys.modules.pop("canary", None)
    assert others.seen((damaged, new)) == before, f"{told} touched files of others"
    assert not ran.exists(), f"{told} ran code"
    assert code in (OK, BAD_INPUT, DIVERGED), f"{told} ended with code {code}: {err}"
    assert "Traceback" not in err, f"{told}: {err}"
    if code == BAD_INPUT:
        assert "\nfedkin: " in f"\n{err}" or out, f"{told} said {err!r}"  # `inspect` prints what it has found
    elif sort.check is not None and len(done) == 1 and (file := done[0][1]) is not None:
        sort.check(damaged, name, file)
    for path in (damaged, new):
        _gone(path)
    return told


class _Late(BaseException):
    """A command took too long."""


def _too_late(signum: int, frame: object) -> None:
    raise _Late


def called(command: Sequence[str], told: str) -> tuple[int, str, str]:
    """The code of a command, and what it has said on standard output and on standard error.

    Raises:
        AssertionError: it ended in a traceback, or not in time.
    """
    out, err = io.StringIO(), io.StringIO()
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGALRM)}
    most = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (now + SPARE, most[1]))
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LONGEST)
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            return main(list(command)), out.getvalue(), err.getvalue()
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), err.getvalue()
        except (_Late, Exception) as e:
            raise AssertionError(f"{told}: {e!r}\n{traceback.format_exc()}") from e
        finally:
            signal.alarm(0)
            resource.setrlimit(resource.RLIMIT_DATA, most)
            for number, handler in handlers.items():
                signal.signal(number, handler)


Made = Callable[[Path], Mapping[str, Sort]]
"""Makes whole folders below a place, by their names."""


def tries(made: Made, seed: int, *, count: int | None = None, seconds: float = float("inf")) -> int:
    """Takes steps until there were enough or the time is up; how many.

    Args:
        made: makes the folders.
        seed: with the number of a step it decides on the step.
        count: number of steps.
        seconds: limit on time.

    Raises:
        AssertionError: a step went wrong; the message has the seed and the number of the step.
    """
    end, here, done = time.monotonic() + seconds, os.getcwd(), 0
    with tempfile.TemporaryDirectory(prefix="fedkin-fuzz-") as name:
        place = Path(name).resolve() / "place"
        place.mkdir()
        sorts, others = made(place.parent / "whole"), Others.made(place)
        os.chdir(place)
        try:
            while (count is None or done < count) and time.monotonic() < end:
                try:
                    step(random.Random(f"{seed} {done}"), sorts, others, done)
                except AssertionError as e:
                    raise AssertionError(f"seed {seed}, step {done}: {e}") from e
                done += 1
        finally:
            os.chdir(here)
    return done
