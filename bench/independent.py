"""How far methods are from a second program of each, written after its paper in float64 with plain autograd.

    python bench/independent.py      # writes bench/results/independent.json

`docs/generate.py` makes the table of docs/results/independent.md of it.

The second programs are the tests ``test_an_independent_program_gives_the_same`` in ``tests/golden``; they compare by
``plain.distance``, whose results are recorded here.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / "bench" / "results" / "independent.json"
NAME = "test_an_independent_program_gives_the_same"
OTHERS = {
    "cam": ("ifca-cam", "ifca-cam-eq6", "fesem-cam"),
    "clustered_sampling": ("clustered-sampling", "clustered-sampling-size"),
    "dapfl": ("da-pfl",),
    "ensemble": ("fedavg-ensemble", "fedprox-ensemble"),
    "fedamp": ("fedamp", "heur-fedamp"),
    "fedopt": ("fedadam", "fedyogi", "fedadagrad", "fedavgm"),
}
"""Test file -> its methods, where it is not named after a single one."""


@dataclass
class Found:
    """Comparisons of one method: number of compared numbers, and the largest difference of any of them."""

    numbers: int = 0
    largest: float = 0.0


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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep failures."""
        if report.failed:
            self.failed.append(report.nodeid)


SMALL = 3e-7  # differences up to this are in one line of the table


def methods_of(name: str) -> tuple[str, ...]:
    """Return the methods of a test file."""
    return OTHERS.get(name, (name.replace("_", "-"),))


def table() -> str:
    """Return the table: a line for each second program with a difference above `SMALL`, and one for the others."""
    from fedkin.methods import get_title

    found = sorted(json.loads(FILE.read_text(encoding="utf-8")).items())
    lines = ["| method | numbers | largest difference |", "| --- | --: | --: |"]
    others = [(name, one) for name, one in found if one["largest"] <= SMALL]
    for name, one in found:
        if one["largest"] > SMALL:
            titles = ", ".join(map(get_title, methods_of(name)))
            lines.append(f"| {titles} | {one['numbers']:,} | {one['largest']:.1e} |")
    count = sum(len(methods_of(name)) for name, _ in others)
    least, most = min(one["numbers"] for _, one in others), max(one["numbers"] for _, one in others)
    largest = max(one["largest"] for _, one in others)
    return "\n".join([*lines, f"| the other {count} methods | {least:,} to {most:,} | {largest:.1e} |"])


def main() -> int:
    """Run the tests and write the file; the exit status is 1 if one of them failed."""
    recorder = Recorder()
    flags = ["-q", "--no-header", "-p", "no:cacheprovider", "-k", NAME, "--rootdir", str(ROOT)]
    code = pytest.main([*flags, str(ROOT / "tests" / "golden")], plugins=[recorder])
    FILE.write_text(json.dumps({name: asdict(one) for name, one in sorted(recorder.found.items())}, indent=1) + "\n")
    return 1 if code or recorder.failed else 0


if __name__ == "__main__":
    sys.exit(main())
