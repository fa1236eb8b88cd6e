"""Breaks one line of the source at a time and checks that a golden test notices.

    python bench/mutants.py                          # every list in bench/mutants/
    python bench/mutants.py --only baselines         # one list
    python bench/mutants.py --only fedavg.py         # mutants of one file
    python bench/mutants.py --part 2/4               # the second quarter, for four machines

A list is a JSON file of entries ``{"file", "old", "new", "tests"}``: the text ``old``, which must occur exactly once in
``file``, is replaced by ``new`` in a copy of ``src``, and the test files ``tests`` (a path or a list of paths) run
against the copy. A mutant is killed when a test fails. The exit status is 1 if a mutant survives, no longer applies, or
breaks the import of the tests, or if the tests fail without it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import sklearn.metrics  # noqa: F401
import torch

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "packages/fedkin-hosts/src")
LIMIT = 900  # seconds for the tests of one mutant; an endless loop counts as killed
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One replacement of a piece of text, and the test files that should notice."""

    group: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def text(self, root: Path) -> str:
        """The file's text with the replacement.

        Raises:
            ValueError: the mutant does not apply; the message says why.
        """
        place = root / self.file
        if not place.is_file():
            raise ValueError(f"there is no file {self.file}")
        if missing := [t for t in self.tests if not (root / t).is_file()]:
            raise ValueError(f"there is no test file {missing[0]}")
        content = place.read_text(encoding="utf-8")
        if (found := content.count(self.old)) != 1:
            raise ValueError(f"its old text occurs {found} times, expected once")
        if self.old == self.new:
            raise ValueError("its new text equals its old text")
        return content.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.group}: {self.file}: {self.old.strip()}  ->  {self.new.strip()}"


def read(root: Path) -> list[Mutant]:
    """The mutants of all lists, ordered by list.

    Raises:
        ValueError: an entry lacks a key or has another one.
    """
    found = []
    for file in sorted((root / "bench" / "mutants").glob("*.json")):
        for number, entry in enumerate(json.loads(file.read_text(encoding="utf-8"))):
            if set(entry) != {"file", "old", "new", "tests"}:
                raise ValueError(
                    f"{file.name}, entry {number}: keys are {sorted(entry)}, expected file, new, old, tests"
                )
            tests = (entry["tests"],) if isinstance(entry["tests"], str) else tuple(entry["tests"])
            found.append(Mutant(file.stem, entry["file"], entry["old"], entry["new"], tests))
    return found


def chosen(mutants: Sequence[Mutant], only: str | None, part: str) -> list[Mutant]:
    """Those whose list or file is ``only``, and of them every n-th from the i-th on for the part ``i/n``."""
    i, n = (int(number) for number in part.split("/"))
    if not 1 <= i <= n:
        raise ValueError(f"--part takes I/N with 1 <= I <= N, got {part}")
    named = [m for m in mutants if only is None or only == m.group or f"/{m.file}".endswith(f"/{only}")]
    return named[i - 1 :: n]


def tried(tests: Sequence[str], source: Path, root: Path) -> tuple[str, str]:
    """Runs test files against a copy of the sources: "killed", "survived" or "broken", and the test or the reason.

    In a fork of this process, which has loaded what all tests load: much the larger part of a test file's seconds.
    """
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _in_fork(tests, source, root, output.fileno())
        status = _waited(pid)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status is None:
        return "killed", f"no end within {LIMIT} s"
    if status == 0:
        return "survived", ""
    failed = _FAILED.search(text)
    if status == 1 and failed:
        return "killed", failed.group(1)
    return "broken", text.strip()[-2000:]


def _in_fork(tests: Sequence[str], source: Path, root: Path, output: int) -> NoReturn:
    status = 70
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(root)
        sys.path[:0] = [str(source / place) for place in SOURCES]
        # no bytecode: a cached form of a file changed twice within a second would be taken for the new one
        sys.dont_write_bytecode = True
        status = int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _waited(pid: int) -> int | None:
    """A child's exit status, None if it had to be ended after the limit."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def run(mutants: Sequence[Mutant], root: Path) -> int:
    """Tries the mutants one after another; returns the number that were not killed."""
    sound: dict[tuple[str, ...], tuple[str, str]] = {}
    counts = {"killed": 0, "survived": 0, "broken": 0, "does not apply": 0, "tests fail without it": 0}
    with tempfile.TemporaryDirectory() as folder:
        for place in filter(lambda place: (root / place).exists(), SOURCES):
            shutil.copytree(root / place, Path(folder) / place, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in mutants:
            try:
                changed = mutant.text(root)
            except ValueError as error:
                outcome, why = "does not apply", str(error)
            else:
                if mutant.tests not in sound:
                    sound[mutant.tests] = tried(mutant.tests, Path(folder), root)
                copy = Path(folder) / mutant.file
                copy.write_text(changed, encoding="utf-8")
                outcome, why = tried(mutant.tests, Path(folder), root)
                copy.write_text((root / mutant.file).read_text(encoding="utf-8"), encoding="utf-8")
                if sound[mutant.tests][0] != "survived":
                    outcome, why = "tests fail without it", sound[mutant.tests][1]
            counts[outcome] += 1
            print(f"{outcome}: {mutant}" + (f"  ({why})" if why else ""), flush=True)
    print(", ".join(f"{n} {what}" for what, n in counts.items() if n) or "no mutant was chosen")
    return len(mutants) - counts["killed"]


def main(args: Sequence[str] | None = None, root: Path = ROOT) -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", help="a list (its name without .json) or the end of a file's path")
    asked.add_argument("--part", default="1/1", help="I/N: the I-th of N parts")
    given = asked.parse_args(args)
    if any(name.partition(".")[0] == "fedkin" for name in sys.modules):
        raise SystemExit(
            "fedkin is loaded already, so a fork would not load the changed copy; run this in a new process"
        )
    torch.set_num_threads(1)
    mutants = chosen(read(root), given.only, given.part)
    return 1 if run(mutants, root) or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
