"""Every place that judges a method uses one word for it, which knows the number of seeds."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from fedkin.cli.outcome import style_of
from fedkin.report import tables
from fedkin.report.content import content_of
from fedkin.report.page import write_page
from fedkin.report.publication_tables import Origin, write_tables

GAINS = {"up": 0.05, "same": 0.0, "down": -0.05}
WORDS = {
    1: {"up": "ahead", "same": "level", "down": "behind"},
    3: {"up": "better", "same": "no clear difference", "down": "worse"},
}
STYLES = {1: {"up": "", "same": "dim", "down": ""}, 3: {"up": "green", "same": "dim", "down": "red"}}


@pytest.mark.parametrize("seeds", WORDS)
def test_one_word_per_number_of_seeds_everywhere(made, tmp_path: Path, seeds: int) -> None:
    """The same gains in one seed and in three: on the terminal, in table.md, table.tex, table.csv and on the page."""
    spread = {i: 0.004 * (-1) ** i for i in range(8)}
    runs = [made("Local", s, clients=8, top=0.6, samples=200) for s in range(seeds)]
    runs += [
        made(title, s, clients=8, top=0.6, samples=200, gains={i: gain + g for i, g in spread.items()})
        for title, gain in GAINS.items()
        for s in range(seeds)
    ]
    report, words, others = content_of(runs), WORDS[seeds], WORDS[4 - seeds].values()
    rows = tables.comparison_rows(report.runs, findings=report.findings["Local"])
    for row in rows[1:]:
        assert report.verdict(row.title, "Local").startswith(f"{row.title}: {words[row.title]} ")
        assert style_of(row.finding) == STYLES[seeds][row.title]
    text = "".join(f"- {report.sentence(title, 'Local')}\n" for title in GAINS)
    write_tables(tmp_path, rows, Origin("fedkin compare"), text=text)
    for title, word in words.items():
        assert f"- {title}: {word} " in (tmp_path / "table.md").read_text()
    with (tmp_path / "table.csv").open() as file:
        assert {row["method"]: row["verdict"] for row in csv.DictReader(file)} == {"Local": "", **words}
    path = write_page(tmp_path, report)
    result = re.search(r'<section id="result".*?</section>', path.read_text(encoding="utf-8"), re.DOTALL)[0]
    shown = re.findall(r'<tr data-method="(.*?)".*?<td class="hp" data-value="(.*?)"', result, re.DOTALL)
    assert dict(shown) == {"Local": "reference", **words}
    said = re.sub(r"<[^>]*>", " ", result) + (tmp_path / "table.md").read_text() + (tmp_path / "table.tex").read_text()
    for other in others:
        assert not re.search(rf"\b{other}\b (than|with|from|Local|of\b)", said), other
