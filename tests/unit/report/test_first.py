"""Which figure comes first in tables and on pages, and what a constant answer gets."""

import html
import re
from dataclasses import replace

import pytest

from fedkin.evaluate import Constant
from fedkin.record.result import Result, by_title
from fedkin.report import curves, tables
from fedkin.report.client_table import client_table_of, table
from fedkin.report.headline import constants_of, first_of, headline
from fedkin.report.publication_tables import paper_table
from madeup import edit
from pages import comparison_page

ONE_SIDED = [9, 6, 6, 7]  # of 10, 11, 12 and 13 test samples: client 0 is one of four
FAIR = [7, 6, 6, 7]


def named(run: Result, *names: str, classes: tuple[str, ...] = ()) -> Result:
    """The same run; its clients and classes have names, and the first line of client 0 has its samples by class."""
    first = edit(run, clients=lambda line: {"labels": (1, 8)} if (line.round, line.client) == (1, 0) else None)
    return edit(replace(first), names=names, classes=classes)


def test_what_a_run_wrote_of_constant_answers(made):
    """Right and tested samples of each client, with names where there are any; nothing without training counts."""
    assert constants_of(made()) == []
    first, second, *_ = constants_of(made(right=ONE_SIDED))
    assert (first, second) == (Constant("client 0", None, 9, 10), Constant("client 1", None, 6, 11))
    first, second, *_ = constants_of(named(made(right=ONE_SIDED), "zurich", "ohio", classes=("no", "yes")))
    assert (first, second) == (Constant("zurich", "yes", 9, 10), Constant("ohio", None, 6, 11))
    assert constants_of(named(made(right=ONE_SIDED)))[0].answer == "class 1"


@pytest.mark.parametrize(
    ("seeds", "balanced", "metric"),
    [
        ([ONE_SIDED], 0.5, "balanced"),
        ([FAIR], 0.5, "accuracy"),
        ([ONE_SIDED, FAIR], 0.5, "accuracy"),  # one of eight
        ([ONE_SIDED, ONE_SIDED], 0.5, "balanced"),
    ],
)
def test_the_clients_of_all_seeds_decide_together(made, seeds, balanced, metric):
    """Each seed's clients count once, however many methods there are."""
    runs = [made(t, s, right=r, balanced=balanced) for t in ("Local", "A", "B") for s, r in enumerate(seeds)]
    found = first_of(by_title(runs))
    assert (found.metric, found.tested) == (metric, 4 * len(seeds))


def test_named_clients_of_several_seeds_are_counted_once(made):
    """Client 0 is right in 9 and 8 of 10 test samples: one client of four with 85 %. Without names it is two of eight,
    and the sentence says of which seed."""
    seeds = [ONE_SIDED, [8, *ONE_SIDED[1:]]]
    runs = [made("A", s, right=r, balanced=0.5) for s, r in enumerate(seeds)]
    found = first_of({"A": [named(run, "zurich", "ohio", "bonn", "rome") for run in runs]})
    assert (found.one_sided, found.tested) == ((Constant("zurich", "class 1", 17, 20),), 4)
    assert "at 2 of 8 clients" in first_of({"A": runs}).reason
    assert "(client 0 of seed 0: always" in first_of({"A": runs}).reason


@pytest.fixture
def runs(made):
    """Local is higher by accuracy, A by balanced accuracy; two seeds."""
    figures = {"Local": (0.8, 0.5), "A": (0.7, 0.6)}
    return [
        named(made(t, s, top=a + s / 100, right=ONE_SIDED, balanced=b + s / 100), "zurich", classes=("no", "yes"))
        for t, (a, b) in figures.items()
        for s in (0, 1)
    ]


def test_balanced_accuracy_comes_first_in_tables(runs):
    """In place of macro-F1, with the reason, and it is what is bold."""
    rows = tables.comparison_rows(by_title(runs))
    rows[0] = replace(rows[0], best=True)
    beside = headline(by_title(runs), first_of(by_title(runs)))
    for grid in (tables.comparison_table(rows, extra=beside), paper_table(rows, extra=beside)):
        assert grid.columns[:4] == ("method", "balanced %", "accuracy %", "last")
        assert grid.rows[1][:3] == ("A", "60.5 ± 0.7", "70.5 ± 0.7")
        assert grid.bold == {(0, 1)}
        assert "(zurich: always predicting yes is right in 90 %)" in grid.note
        assert "a client's most frequent class: 62.1)" in grid.note
    for grid in (tables.comparison_table(rows), paper_table(rows)):
        assert grid.columns[:5] == ("method", "accuracy %", "last", "worst 10 %", "macro-F1 %")
        assert grid.bold == {(0, 1)}
        assert "zurich" not in grid.note
        assert "a client's most frequent class: 62.1)" in grid.note


def test_the_final_table_begins_with_the_figure_that_comes_first(made):
    """Balanced accuracy with the reason, or accuracy; what a constant answer gets stands among the rows."""
    run = named(made(right=ONE_SIDED, balanced=0.55), "zurich", classes=("no", "yes"))
    grid = tables.final_table(run, first_of({"M": [run]}))
    assert grid.rows[0] == ("balanced accuracy, mean over clients", "55.0 %")
    assert grid.note.startswith("accuracy is not a fair headline (zurich")
    assert {row[0]: row[1] for row in grid.rows}["always the client's most frequent class"] == "62.1 %"
    assert tables.final_table(run).rows[0][0] == "accuracy, mean over clients"


def test_clients_have_what_a_constant_answer_gets(made):
    """On the screen and on the page, per client; no such column without training counts."""
    run = made(right=ONE_SIDED)
    assert tables.client_table(run).columns == ("client", "test samples", "accuracy %", "majority %")
    assert {row[0]: row[3] for row in tables.client_table(run).rows} == {
        "0": "90.0",
        "1": "54.5",
        "2": "50.0",
        "3": "53.8",
    }
    assert table(run, [client_table_of(run)], {}, {})["columns"]["majority %"] == [90.0, 54.55, 50.0, 53.85]
    assert "majority %" not in table(made(), [client_table_of(made())], {}, {})["columns"]
    assert "majority %" not in tables.client_table(made()).columns


def heading(text: str) -> str:
    found = re.search(r"<h1>(.*?)</h1>", text, re.DOTALL)
    assert found
    return html.unescape(found[1])


def test_the_page_of_a_comparison_begins_with_balanced_accuracy(runs, tmp_path):
    """The heading and the first chart are of balanced accuracy; the reason and the verdicts on accuracy follow."""
    text = comparison_page(tmp_path, runs)
    assert heading(text).startswith(
        'A: <span class="g">better than training alone by 10 points of balanced accuracy</span>.'
    )
    assert '<p class="lede">Accuracy is not a fair headline (zurich: always predicting yes is right in 90%). ' in text
    assert "<h3>Balanced accuracy against Local</h3>\n<ul>\n<li>A: better than Local by 10.0 points (" in text


def test_charts_begin_with_balanced_accuracy(runs, made):
    """Final figures in its order, curves with it as the measure that is shown first."""
    groups = by_title(runs)
    first = first_of(groups)
    final = curves.final_accuracies(groups, "Local", first)
    assert final.fact == "A is highest with 60.5 % balanced accuracy; 1 of 1 is above Local"
    assert curves.final_accuracies(groups, "Local").fact.startswith("Local is highest with 80.5 %;")
    drawn = curves.over_rounds(groups, first)
    assert {r["value"] for r in drawn[0].spec["data"]["values"]} == {50.5, 60.5}
    assert [one.fact.partition(":")[0] for one in drawn] == ["Balanced", "Mean", "Worst tenth"]
    assert [one.fact.partition(":")[0] for one in curves.over_rounds(groups)] == ["Mean", "Worst tenth"]
    one = curves.one_over_rounds(groups["A"][0], "Local", None, False)
    values = {(r["series"], r["value"]) for r in one.spec["data"]["values"]}
    assert {("balanced", 60.0), ("always its most frequent class", 62.1)} <= values
    plain = curves.one_over_rounds(groups["A"][0], "Local", None, True).spec["data"]["values"]
    assert {row["series"] for row in plain} == {"mean over clients", "worst 10 %"}


def test_the_balanced_accuracy_of_a_constant_answer_is_beside_the_methods(made, tmp_path):
    """In the notes of both tables, and as a caveat where a method is not above it."""
    runs = [named(made(t, right=ONE_SIDED, balanced=b), "zurich") for t, b in (("Local", 0.62), ("A", 0.59))]
    groups = by_title(runs)
    for known in (False, True):
        for run in runs if known else ():
            edit(run, lambda line: {"majority_balanced": 0.6})
        groups = by_title([replace(run) for run in runs])  # figures are computed once for each
        rows, lead = tables.comparison_rows(groups), headline(groups, first_of(groups))
        for grid in (tables.comparison_table(rows, extra=lead), paper_table(rows, extra=lead)):
            said = "mean over clients (always predicting a client's most frequent class: 60.0)"
            assert (said in grid.note) == known
        text = html.unescape(comparison_page(tmp_path, groups["Local"] + groups["A"]))
        caveat = "A: Balanced accuracy is 59.0% on average, not above the 60.0% of always predicting"
        assert (caveat in text) == known
        assert "Balanced accuracy is 62.0%" not in text
