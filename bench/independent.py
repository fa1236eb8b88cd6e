"""How far methods are from a second program of each, written after its paper in float64 with plain autograd.

    python bench/independent.py      # prints the table of docs/results/independent.md

The second programs are the tests ``test_an_independent_program_gives_the_same`` in ``tests/golden``; they compare by
``plain.distance``, whose results are recorded here.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAME = "test_an_independent_program_gives_the_same"
SEVERAL = {"fedopt": ("fedadam", "fedyogi", "fedadagrad", "fedavgm")}
"""Test file -> its methods, where these are several."""


@dataclass
class Found:
    """Comparisons of one method: number of compared numbers, and the largest difference of any of them."""

    numbers: int = 0
    largest: float = 0.0
    about: str = ""


@dataclass
class Recorder:
    """A plugin of pytest that records every distance of the selected tests, by test file."""

    found: dict[str, Found] = field(default_factory=lambda: defaultdict(Found))
    failed: list[str] = field(default_factory=list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Wrap the comparison, once the tests' folder can be imported from."""
        import plain

        def distance(got: plain.Tensor, wanted: plain.Tensor) -> float:
            value = measured(got, wanted)
            one = self.found[self._now]
            one.numbers, one.largest = one.numbers + wanted.numel(), max(one.largest, value)
            return value

        measured, plain.distance = plain.distance, distance

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Say whose comparisons follow."""
        self._now = item.path.stem.removeprefix("test_")
        doc = " ".join((item.function.__doc__ or "").split())
        self.found[self._now].about = doc

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep failures."""
        if report.failed:
            self.failed.append(report.nodeid)


def table(found: dict[str, Found]) -> str:
    """Return the table, one line for each second program."""
    from fedkin.methods import get_title

    lines = ["| method | second program | numbers | largest difference |", "| --- | --- | --: | --: |"]
    for name, one in sorted(found.items()):
        titles = ", ".join(get_title(m) for m in SEVERAL.get(name, (name.replace("_", "-"),)))
        lines.append(f"| {titles} | {one.about.removesuffix('.')} | {one.numbers:,} | {one.largest:.1e} |")
    return "\n".join(lines)


def main() -> int:
    """Run the tests and print the table; the exit status is 1 if one of them failed."""
    recorder = Recorder()
    flags = ["-q", "--no-header", "-p", "no:cacheprovider", "-k", NAME, "--rootdir", str(ROOT)]
    code = pytest.main([*flags, str(ROOT / "tests" / "golden")], plugins=[recorder])
    print(table(recorder.found))
    return 1 if code or recorder.failed else 0


if __name__ == "__main__":
    sys.exit(main())
