"""Tables hold the numbers they were given, in every rendering."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import t

from fedkin.evaluate import spread
from fedkin.record.result import Result, by_title
from fedkin.report import tables
from fedkin.report.content import content_of
from fedkin.report.headline import headline
from fedkin.report.standings import same_clients
from madeup import about, edit


@pytest.fixture
def groups(made):
    """Local at 70 %, M at 80 % with client 0 at 60 %, two seeds of each, 9 MB a run; O|dd never compared (seed 5)."""
    return by_title(
        [
            made("Local", 0, top=0.7),
            made("Local", 1, top=0.7),
            made("M", 0, top=0.8, gains={0: -0.2}),
            made("M", 1, top=0.8),
            made("O|dd", 5, top=0.5),
        ]
    )


def test_comparison_rows_by_hand(groups):
    """M: accuracies .75 and .8; gains over Local of the same seed .05 and .1."""
    rows = {row.title: row for row in tables.comparison_rows(groups)}
    m = rows["M"]
    assert m.accuracy.values == pytest.approx((0.75, 0.8))
    assert m.worst_decile.values == pytest.approx((0.6, 0.8))
    assert m.gain.values == pytest.approx((0.05, 0.1))
    assert m.finding.harmed is None
    assert m.difference.mean == pytest.approx(0.075)
    assert m.megabytes.mean == pytest.approx(9.0)


def test_comparison_table_cells(groups):
    """Mean ± std in per cent, gain with sign, no count of harmed clients without single test samples, megabytes."""
    grid = tables.comparison_table(tables.comparison_rows(groups), extra=headline(groups))
    assert grid.rows[1] == ("M", "77.5 ± 3.5", "77.5", "70.0 ± 14.1", "70.0 ± 0.0", "+7.5 ± 3.5", "–", "9")
    assert grid.rows[2] == ("O|dd", "50.0", "50.0", "50.0", "40.0", "–", "–", "9")
    assert grid.note.startswith("accuracy: mean over clients in round 3; last: accuracy in the last round alone; ")
    assert not grid.bold
    assert "each method's own seeds" in grid.note


def test_the_other_moment_has_a_column_where_it_exists(made):
    """Method M also has accuracies after training, .6 in every round: a column, with a dash for Local."""
    local, run = made("Local"), made("M")
    edit(run, lambda line: {"accuracy_trained": 0.6})
    grid = tables.comparison_table(tables.comparison_rows(by_title([local, run])))
    assert grid.columns[:4] == ("method", "accuracy %", "last", "trained %")
    assert [row[3] for row in grid.rows] == ["–", "60.0"]
    assert "; trained: accuracy right after the last local training" in grid.note
    assert "trained %" not in tables.comparison_table(tables.comparison_rows(by_title([local]))).columns
    assert ("the same, right after the last local training", "60.0 %") in [
        row[:2] for row in tables.final_table(run).rows
    ]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_narrow_screen_cuts_no_name_and_no_figure(made, seeds):
    """80 columns with every column that there may be, long names and spreads over ten points."""
    clients = dict.fromkeys(range(8), 0.1)
    runs = [
        made(title, s, clients=8, top=0.4 + s / 5 + a, gains=clients if s else None, answers="t", samples=20)
        for title, a in (("Local", 0.2), ("Local (full)", 0.1), ("IFCA-CAM (Eq. 6)", 0.0))
        for s in seeds
    ]
    for run in runs:
        edit(run, lambda line, a=0.4 + run.seed / 5: {"accuracy_trained": a})
    groups = by_title(runs)
    grid = tables.comparison_table(tables.comparison_rows(groups), extra=headline(groups))
    console = Console(file=io.StringIO(), width=80)
    console.print(tables.to_rich(grid, 80))
    lines = console.file.getvalue().splitlines()
    text = "\n".join(lines[: lines.index(next(one for one in lines if one.startswith("accuracy: ")))])
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    found = text.replace("±", " ± ").split()
    assert all(set(cell.split()) <= set(found) for row in grid.rows for cell in row)
    assert set(" ".join(grid.columns).split()) <= set(found)


@pytest.mark.parametrize("width", [20, 50, 80])
def test_a_table_too_wide_for_any_screen_cuts_no_figure(width):
    """Figures are whole, the part behind ± in a second line, even if the table is then wider than the screen."""
    cells = tuple(f"{i}2.5 ± 10.{i}" for i in range(9))
    columns = ("method", *(f"figure {i}" for i in range(9)))
    grid = tables.Grid("", columns, (("IFCA", *cells), ("A/B", *["–"] * 9)))
    console = Console(file=io.StringIO(), width=width)
    console.print(tables.to_rich(grid, width), crop=False)
    text = console.file.getvalue()
    assert "…" not in text
    assert set(" ".join(cells).split()) <= set(text.replace("±", "± ").split())
    assert max(map(len, text.splitlines())) <= (80 if width == 80 else 72)


def test_bold_is_what_an_interval_sets_apart(made):
    def rows(*titles, clients=6, seeds=(0, 1, 2)):
        tops = {"A": 0.8, "B": 0.801, "Local": 0.7}
        jitter = {t: {i: 0.01 * ((i + n) % 3) for i in range(clients)} for n, t in enumerate(tops)}
        runs = [made(t, s, clients=clients, top=tops[t], gains=jitter[t]) for t in titles for s in seeds]
        return [row.title for row in tables.comparison_rows(by_title(runs)) if row.best]

    assert rows("Local", "A", "B") == ["A", "B"]
    assert rows("A", "B") == []
    assert rows("Local", "A", "B", clients=4, seeds=(0,)) == []


@pytest.mark.parametrize(
    ("digests", "names", "cell", "of"),
    [
        (("x", "x"), (), "2 of 8", "clients"),  # the same test samples in both seeds: the same clients
        (("x", "y"), ("a", "b"), "2 of 8", "clients"),
        (("x", "y"), (), "4 of 16", "client results"),
        ((None, "x"), (), "–", ""),
    ],
)
def test_harmed_clients_are_a_range(made, digests, names, cell, of):
    """Two of eight clients lose 20 points of 200 samples, clearly."""
    runs = []
    for seed, digest in enumerate(digests):
        more = {"clients": 8, "samples": 200, "answers": digest, "names": names}
        runs.append(made("Local", seed, top=0.6, **more))
        runs.append(made("M", seed, top=0.7 + 0.01 * seed, gains={2: -0.3, 5: -0.3}, **more))
    rows = tables.comparison_rows(by_title(runs))
    grid = tables.comparison_table(rows)
    assert grid.rows[1][6] == cell
    assert (f"harmed: number of {of} whose accuracy is truly more than 1 point below Local's" in grid.note) == bool(of)
    assert rows[1].finding.losing == ((2, 5) if of == "clients" else ())


def test_a_range_has_both_ends(made):
    """24 samples and a loss of two of them tell little: from 0 to more than the one that is measured."""
    more = {"clients": 10, "samples": 24, "answers": "x"}
    gains = {0: -2 / 24, **{i: 2 / 24 * (i % 3) for i in range(1, 10)}}
    rows = tables.comparison_rows(by_title([made("Local", top=0.5, **more), made("M", top=0.5, gains=gains, **more)]))
    found = rows[1].finding.harmed
    assert found.low == 0
    assert found.high > 1
    assert tables.comparison_table(rows).rows[1][6] == f"0–{found.high} of 10"


def config(**data):
    """A summary with these settings of the data."""
    return {"config": {"data": {"data": "digits", "partition": "dirichlet", **data}}}


def test_all_of_a_comparison_have_the_same_intervals(made):
    rng = np.random.default_rng(3)
    jitter = {t: {i: float(g) for i, g in enumerate(rng.normal(0, 0.08, 20))} for t in "ABCDEF"}
    runs = [made("Local", s, clients=20, top=0.6) for s in range(3)]
    for title, own in jitter.items():
        turned = [{i: own[(i + 7 * s) % 20] for i in own} for s in range(3)]
        runs += [made(title, s, clients=20, top=0.63, gains=turned[s]) for s in range(3)]
    runs = [edit(run, **config(partition="natural", test=0.5)) for run in runs]
    alone = {row.title: row.finding for row in tables.comparison_rows(by_title(runs))}
    page = content_of(runs).findings["Local"]
    one = {row.title: row.finding for row in tables.comparison_rows(by_title(runs[:6]))}
    assert set(page) == set(jitter)
    for title, found in page.items():
        assert found == alone[title]
        assert (found.comparisons, found.these.mean) == (6, found.difference.mean)
    a, b = page["A"].difference, one["A"].difference
    assert a.mean == b.mean
    assert a.high < b.high
    spread = np.std([x.mean for x in tables.comparison_rows(by_title(runs))[1].against], ddof=1)
    assert page["A"].these.high - a.mean == pytest.approx(t.ppf(0.975, 2) * spread * (1 / 3 + 1) ** 0.5)


@pytest.mark.parametrize(
    ("summary", "sizes", "digests", "same"),
    [
        (config(), (20, 30), (None, None), False),
        (config(), (20, 20), ("x", "y"), False),
        (config(), (20, 20), (None, None), None),  # a folder with a federation says dirichlet as well
        (config(), (20, 20), ("x", "x"), True),
        (config(data_seed=0), (20, 30), (None, None), True),
        (config(partition="natural"), (20, 30), ("x", "y"), True),
        (config(partition=None), (20, 30), (None, None), None),
        ({"names": ("a", "b", "c", "d")}, (20, 30), (None, None), True),
        ({"config": {"made_by": "federation", "data": {"partition": "dirichlet"}}}, (20, 30), ("x", "y"), None),
        ({"config": {"made_by": "federation", "data": {}}}, (20, 20), ("x", "x"), True),
        ({}, (20, 30), (None, None), None),
    ],
)
def test_whether_seeds_have_the_same_clients(made, summary, sizes, digests, same):
    """Settings tell, or names, or equal test samples; a program that deals the data itself does not."""
    runs = [made("M", s, samples=n, answers=d) for s, (n, d) in enumerate(zip(sizes, digests, strict=True))]
    runs = [edit(run, **summary) for run in runs]
    assert same_clients(by_title(runs)) is same


def test_rank_is_the_mean_place_over_common_seeds(made):
    """Seed 0: A first, B and C share places two and three; seed 1: C, B, A. Seed 2 has A alone and does not count."""
    tops = {"A": (0.9, 0.5, 0.9), "B": (0.7, 0.6), "C": (0.1 + 0.6, 0.7)}
    runs = [made(t, s, top=a) for t, accuracies in tops.items() for s, a in enumerate(accuracies)]
    ranks = {row.title: row.rank for row in tables.comparison_rows(by_title(runs))}
    assert ranks == {"A": (1 + 3) / 2, "B": (2.5 + 2) / 2, "C": (2.5 + 1) / 2}


def test_a_run_without_figures_is_all_dashes():
    """Never evaluated: dashes, nothing bold."""
    grid = tables.comparison_table(tables.comparison_rows({"A": [Result(run=about("A"), config={})]}))
    assert grid.rows == (("A", "–", "–", "–", "–", "–", "–", "0"),)
    assert not grid.bold


def bold(groups, row=1):
    """The table with one accuracy bold."""
    return replace(tables.comparison_table(tables.comparison_rows(groups)), bold=frozenset({(row, 1)}))


def test_markdown_has_the_same_cells_and_escapes_pipes(groups):
    """One line per method; bold figures between asterisks; a pipe in a name does not make a column."""
    lines = tables.to_markdown(bold(groups)).splitlines()
    assert lines[3].startswith("| M | **77.5 ± 3.5** | – | 70.0 ± 14.1 |")
    assert lines[4].startswith("| O\\|dd | 50.0 |")
    assert lines[1].startswith("| :-- | --: |")


def test_the_console_shows_names_as_they_are(made):
    grid = tables.comparison_table(tables.comparison_rows(by_title([made("[red]M")])))
    console = Console(file=io.StringIO(), width=160)
    console.print(tables.to_rich(grid))
    assert "[red]M" in console.file.getvalue()
    assert "80.0" in console.file.getvalue()


def test_html_is_escaped(made):
    """A name with angle brackets stays text."""
    grid = bold(by_title([made("<b>M & N")]), row=0)
    text = tables.to_html(grid)
    assert "&lt;b&gt;M &amp; N" in text
    assert "<strong>80.0</strong>" in text


def climbing(made, rounds=10):
    """A run whose accuracy in round t is t / 100, and whose validation accuracy is highest in round 4."""
    run = made(rounds=rounds)
    return edit(run, lambda line: {"accuracy": line.round / 100, "validation": 0.9 if line.round == 4 else 0.1})


def test_final_table_shows_the_mean_the_last_round_and_the_round_chosen_by_validation(made):
    """Rounds 9 and 10 average to 9.5 %; metrics that no round has are left out."""
    grid = tables.final_table(climbing(made))
    assert grid.columns == ("", "rounds 9 to 10", "round 10", "round 4")
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["accuracy, mean over clients"] == ("9.5 %", "10.0 %", "4.0 %")
    assert rows["validation accuracy"] == ("10.0 %", "10.0 %", "90.0 %")
    assert "accuracy on few-sample classes" not in rows
    assert grid.note == (
        "rounds 9 to 10: the mean over evaluated rounds; round 10: the last; round 4: the best on validation data; "
        "30 MB sent up and down in training"
    )


def test_a_run_that_diverged_is_marked(made):
    """All uploads of rounds 2 and 3 hold NaN: a dagger and the round."""
    bad = made("M", 0)
    lost = {"answered": (), "refused": dict.fromkeys(range(4), "not-finite")}
    edit(bad, lambda line: lost if line.round > 1 else None)
    assert tables.final_table(bad).note.endswith("; † training diverged from round 2 on")
    groups = by_title([bad, made("M", 1), made("Local", 0)])
    grid = tables.comparison_table(tables.comparison_rows(groups), extra=headline(groups))
    assert grid.rows[0][1] == "80.0 ± 0.0 †"
    assert grid.rows[1][1] == "80.0"
    assert grid.note.endswith("; † M: diverged from round 2 on (seed 0)")
    alone = by_title([bad, made("Local", 0)])
    assert headline(alone).notes == ["† M: diverged from round 2 on"]


def test_captions_name_the_best_rounds(made):
    """In a comparison by the rule; for one run by its number, in the first column, without a mean."""
    groups = by_title([replace(climbing(made), at_best=True), replace(made("Local"), at_best=True)])
    grid = tables.comparison_table(tables.comparison_rows(groups), extra=headline(groups))
    assert grid.rows[0][1:3] == ("4.0", "10.0")
    assert "accuracy: mean over clients in each run's best round on validation data;" in grid.note
    grid = tables.final_table(replace(climbing(made), at_best=True))
    assert grid.columns == ("", "round 4", "round 10")
    assert grid.note.startswith("round 10: the last; round 4: the best on validation data;")


def test_many_clients_are_cut_to_the_worst_and_best_ten(made):
    """Of 150 clients 10 + 10 and a row of dots; 25 are still shown whole."""
    grid = tables.client_table(made(clients=150, gains={i: i / 1000 for i in range(150)}))
    assert len(grid.rows) == 21
    assert (grid.rows[0][0], grid.rows[9][0], grid.rows[10][0], grid.rows[20][0]) == ("0", "9", "…", "149")
    assert "of 150 clients" in grid.note
    assert len(tables.client_table(made(clients=25)).rows) == 25


def test_a_gain_that_rounds_to_zero_has_no_minus() -> None:
    """As on the page; the ends of intervals keep theirs, which says that zero is inside."""
    assert tables.percent(spread([-0.0004, -0.0002]), sign=True) == "+0.0 ± 0.0"
    assert tables.percent(spread([-0.0006]), sign=True) == "-0.1"


def test_what_is_not_known_is_taken_for_the_same_clients(made):
    """The interval of runs that say nothing is that of named clients, and wider than for clients dealt anew."""
    gains = {i: 0.03 * i for i in range(8)}

    def half(summary, samples=(20, 21)):
        runs = [made("Local", s, clients=8, top=0.5, samples=n, **summary) for s, n in enumerate(samples)]
        runs += [made("M", s, clients=8, top=0.5, gains=gains, samples=n, **summary) for s, n in enumerate(samples)]
        found = tables.comparison_rows(by_title(runs))[1].difference
        return found.high - found.mean

    assert half({}) == half(config(data_seed=1)) > 1.1 * half(config())
