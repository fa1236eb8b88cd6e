"""Tables hold the numbers they were given, in every rendering."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedkin.core.errors import ConfigError
from fedkin.report import tables
from fedkin.report.folder import by_title


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
    """M: accuracies .75 and .8; gains over Local of the same seed .05 and .1; one of four clients harmed in seed 0."""
    rows = {row.title: row for row in tables.comparison_rows(groups)}
    m = rows["M"]
    assert m.accuracy.values == pytest.approx((0.75, 0.8))
    assert m.worst_decile.values == pytest.approx((0.6, 0.8))
    assert m.gain.values == pytest.approx((0.05, 0.1))
    assert [a.harmed for a in m.against] == [1, 0]
    assert m.megabytes.mean == pytest.approx(9.0)


def test_only_runs_of_the_same_seed_are_compared(groups):
    """Seed 5 has no Local: no gain and no harm; Local is not compared with itself."""
    rows = {row.title: row for row in tables.comparison_rows(groups)}
    assert rows["O|dd"].gain is None
    assert rows["Local"].gain is None


def test_comparison_table_cells(groups):
    """Mean ± std in per cent, gain with sign, harmed clients per seed, megabytes; two such seeds set nobody apart."""
    grid = tables.comparison_table(tables.comparison_rows(groups))
    assert grid.rows[1] == ("M", "77.5 ± 3.5", "70.0 ± 14.1", "70.0 ± 0.0", "+7.5 ± 3.5", "0.5/4", "9")
    assert grid.rows[2] == ("O|dd", "50.0", "50.0", "40.0", "–", "–", "9")
    assert not grid.bold
    assert "each method's own seeds" in grid.note


def test_the_other_moment_has_a_column_where_it_exists(made):
    """Method M also has accuracies after training, .6 in every round: a column, with a dash for Local; and a row in the
    table of its run."""
    local, run = made("Local"), made("M")
    for line in run.rounds:
        line["accuracy_trained"] = 0.6
    grid = tables.comparison_table(tables.comparison_rows(by_title([local, run])))
    assert grid.columns[:3] == ("method", "accuracy %", "trained %")
    assert [row[2] for row in grid.rows] == ["–", "60.0"]
    assert "trained %: the same, right after the last local training" in grid.note
    assert "trained %" not in tables.comparison_table(tables.comparison_rows(by_title([local]))).columns
    assert ("the same, right after the last local training", "60.0 %") in [
        row[:2] for row in tables.final_table(run).rows
    ]


def test_bold_is_what_an_interval_sets_apart(made):
    """Three methods, six clients, three seeds: A and B near 80 % and never far from each other, Local always 10 points
    below: both are bold. Without a method that is clearly below, or with four clients in one seed, nobody is."""

    def rows(*titles, clients=6, seeds=(0, 1, 2)):
        tops = {"A": 0.8, "B": 0.801, "Local": 0.7}
        jitter = {t: {i: 0.01 * ((i + n) % 3) for i in range(clients)} for n, t in enumerate(tops)}
        runs = [made(t, s, clients=clients, top=tops[t], gains=jitter[t]) for t in titles for s in seeds]
        return [row.title for row in tables.comparison_rows(by_title(runs)) if row.best]

    assert rows("Local", "A", "B") == ["A", "B"]
    assert rows("A", "B") == []
    assert rows("Local", "A", "B", clients=4, seeds=(0,)) == []


def test_rank_is_the_mean_place_over_common_seeds(made):
    """Seed 0: A first, B and C share places two and three; seed 1: C, B, A. Seed 2 has A alone and does not count."""
    tops = {"A": (0.9, 0.5, 0.9), "B": (0.7, 0.6), "C": (0.7, 0.7)}
    runs = [made(t, s, top=a) for t, accuracies in tops.items() for s, a in enumerate(accuracies)]
    ranks = {row.title: row.rank for row in tables.comparison_rows(by_title(runs))}
    assert ranks == {"A": (1 + 3) / 2, "B": (2.5 + 2) / 2, "C": (2.5 + 1) / 2}


def test_no_rank_without_a_common_seed(groups):
    """O|dd ran another seed than the others."""
    assert all(row.rank is None for row in tables.comparison_rows(groups))


def test_a_run_without_figures_is_all_dashes():
    """Never evaluated: dashes, nothing bold."""
    from fedkin.report.folder import Run

    grid = tables.comparison_table(tables.comparison_rows({"A": [Run("A")]}))
    assert grid.rows == (("A", "–", "–", "–", "–", "–", "–"),)
    assert not grid.bold


def bold(groups, row=1):
    """The table with one accuracy bold."""
    return replace(tables.comparison_table(tables.comparison_rows(groups)), bold=frozenset({(row, 1)}))


def test_markdown_has_the_same_cells_and_escapes_pipes(groups):
    """One line per method; bold figures between asterisks; a pipe in a name does not make a column."""
    lines = tables.to_markdown(bold(groups)).splitlines()
    assert lines[3].startswith("| M | **77.5 ± 3.5** | 70.0 ± 14.1 |")
    assert lines[4].startswith("| O\\|dd | 50.0 |")
    assert lines[1].startswith("| :-- | --: |")


def test_plain_text_is_aligned_and_marks_the_best(groups):
    """Every line of the body ends in the same column; bold figures have an asterisk."""
    lines = tables.to_text(bold(groups)).splitlines()
    assert len({len(line) for line in lines[:-1]}) == 1
    assert "77.5 ± 3.5*" in lines[3]


def test_the_console_shows_names_as_they_are(made):
    """Square brackets in a name are text, not markup."""
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


def test_final_table_shows_last_rounds_and_the_round_chosen_by_validation(made):
    """Validation grows with the round, so round 3 is chosen; metrics nobody has are left out."""
    grid = tables.final_table(made())
    assert grid.columns == ("", "last 3 rounds", "round 3")
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["accuracy, mean over clients"] == ("80.0 %", "80.0 %")
    assert rows["validation accuracy"] == ("20.0 %", "30.0 %")
    assert "accuracy on few-sample classes" not in rows
    assert grid.note == (
        "last 3 rounds: mean over the last evaluated rounds; round 3: the best on validation data; "
        "9 MB sent up and down in training"
    )


def test_final_table_without_validation_has_no_best_column(made):
    """Nothing stands in for a missing validation part."""
    run = made()
    for line in run.rounds:
        line["validation"] = None
    assert len(tables.final_table(run).columns) == 2


def test_client_table_orders_by_gain(made):
    """With Local the client that loses most comes first; without it the least accurate."""
    run = made(gains={2: -0.3})
    grid = tables.client_table(run, {0: 0.9, 1: 0.7, 2: 0.4})
    assert grid.columns == ("client", "test samples", "accuracy %", "Local %", "gain, points")
    assert grid.rows[0] == ("0", "10", "80.0", "90.0", "-10.0")
    assert grid.rows[-1] == ("3", "13", "80.0", "–", "–")
    assert tables.client_table(run).rows[0] == ("2", "12", "50.0")


def test_many_clients_are_cut_to_the_worst_and_best_ten(made):
    """Of 150 clients 10 + 10 and a row of dots; 25 are still shown whole."""
    grid = tables.client_table(made(clients=150, gains={i: i / 1000 for i in range(150)}))
    assert len(grid.rows) == 21
    assert (grid.rows[0][0], grid.rows[9][0], grid.rows[10][0], grid.rows[20][0]) == ("0", "9", "…", "149")
    assert "of 150 clients" in grid.note
    assert len(tables.client_table(made(clients=25)).rows) == 25


def test_client_table_shows_names(made):
    """Clients that have names are shown by number and name."""
    run = made(clients=2)
    named = replace(run, summary={**run.summary, "clients": {"count": 2, "names": ["cleveland", "va"]}})
    assert {row[0] for row in tables.client_table(named).rows} == {"0 cleveland", "1 va"}
    assert {row[0] for row in tables.client_table(run).rows} == {"0", "1"}


def test_client_table_refuses_fewer_rows_than_it_shows(made):
    """Ten and ten need twenty."""
    with pytest.raises(ConfigError, match="most >= 20"):
        tables.client_table(made(), most=5)
