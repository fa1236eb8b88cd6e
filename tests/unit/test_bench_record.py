"""Records of speed: pairs of two programs, their accuracies, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench import record
from bench.speed.drive import Ran
from bench.speed.measure import Ours
from bench.speed.workloads import Workload

TINY = Workload("W4", "tiny", "mlp", (1, 4, 4), 3, clients=3, cohort=3, samples=6, tests=4, batch=6, lr=0.1, rounds=1)


def ran(seconds: float, accuracy: float) -> Ran:
    return Ran([seconds], 1.0, 2.0, 1.0, accuracy)


def test_pairs_are_one_after_the_other_and_the_ratio_is_their_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former program runs from its own sources; three seeds of data take turns, each with both accuracies."""
    asked: list[tuple[Any, bool]] = []
    seconds = iter([4.0, 1.0, 6.0, 2.0, 5.0, 1.0, 9.0, 1.0])

    def run(self: Ours, w: Workload, folder: Path, **more: Any) -> Ran:
        asked.append((more.get("src"), more["paper"]))
        assert (folder / "start.npz").is_file()
        return ran(next(seconds), 0.5 if "src" in more else 0.6)

    monkeypatch.setattr(Ours, "run", run)
    line = record.measured(TINY, Path("there"), 4, paper=False, evaluate=True)
    assert asked == [(Path("there/src"), False), (None, False)] * 4
    assert line["pairs"] == [[4.0, 1.0], [6.0, 2.0], [5.0, 1.0], [9.0, 1.0]]
    assert (line["ratio"], line["spread"]) == (4.5, [3.0, 9.0])
    assert line["accuracy"] == {"0": [0.5, 0.6], "1": [0.5, 0.6], "2": [0.5, 0.6]}
    assert line["equal"] is False


@pytest.mark.parametrize(
    ("pairs", "equal"),
    [
        ([(0.9, 0.9)], True),
        ([(0.9, 0.95)], False),
        ([(0.90, 0.91), (0.92, 0.92), (0.94, 0.95)], True),  # 0.7 points apart, seeds 2 points
        ([(0.90, 0.93), (0.92, 0.95), (0.94, 0.97)], False),
        ([(0.90, 0.87), (0.92, 0.89), (0.94, 0.91)], False),
    ],
)
def test_an_accuracy_is_the_same_if_seeds_differ_as_much(pairs: list[tuple[float, float]], equal: bool) -> None:
    """A mean difference of more than one standard deviation over seeds is another result, in either direction."""
    assert record.same_accuracy(pairs) is equal


def test_a_line_is_written_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table names both commits, the workload and the machine; text around it stays."""
    (tmp_path / "README.md").write_text("before\n<!-- records -->\nold\n<!-- /records -->\nafter\n")
    monkeypatch.setattr(record, "WORKLOADS", {"W4": TINY})
    monkeypatch.setattr(record, "_commit", lambda place: "abc" if place == Path("there") else "def")
    monkeypatch.setattr(Ours, "run", lambda *_, **more: ran(3.0 if "src" in more else 2.0, 0.5))
    record.main(["there", "W4", "--what", "less of it", "--pairs", "2", "--folder", str(tmp_path)])
    (line,) = [json.loads(text) for text in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert (line["what"], line["before"], line["now"], line["equal"]) == ("less of it", "abc", "def", True)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n<!-- records -->\n| day |")
    assert "less of it (`abc` to `def`) | W4 fedavg | **1.50** (1.50 to 1.50) | 2 | yes, 2 seeds |" in text
    assert text.endswith("<!-- /records -->\nafter\n")
    assert "old" not in text


def test_the_page_has_the_lines() -> None:
    """`python -m bench.record --table` makes the table of bench/records anew."""
    text = (record.RECORDS / "README.md").read_text(encoding="utf-8")
    assert record.renewed(text, record.read(record.RECORDS)) == text
