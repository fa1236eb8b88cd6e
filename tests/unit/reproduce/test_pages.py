"""Tables, verdicts and pages from lines made by hand; every expected number is worked out in its test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reproduce.__main__ import main
from reproduce.cells import cells_of
from reproduce.claims import claims_page
from reproduce.figures import figure, measured, shown
from reproduce.listing import listing, state_of
from reproduce.pages import page, write
from reproduce.reading import papers
from reproduce.results import append, file_of
from reproduce.scatter import scatter
from reproduce.tables import Claim, Paper, Table
from reproduce.verdicts import verdict
from reproduce.words import difference_text, sentence

from fedkin.core import ConfigError
from fedkin.evaluate import Difference
from fedkin.report.figures import ROW
from papers import ONE, line, paper

Lines = dict[str, dict[str, Any]]
BETTER = Claim("above", (("da-pfl", "fedavg"),), ("few",))


@pytest.fixture
def toy(tmp_path: Path) -> Paper:
    """A paper of two small tables with three seeds."""
    return paper(tmp_path, one=ONE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))


def lines(table: Table, accuracies: Mapping[str, Sequence[float | Sequence[float]]], **more: Any) -> Lines:
    """Lines of cells by ROW/COLUMN: for each seed what all of its six clients have, or a figure for each."""
    found: Lines = {}
    for cell in cells_of(table, "paper"):
        values = accuracies.get(f"{cell.row.key}/{cell.column.key}", ())
        if cell.seed < len(values):
            value = values[cell.seed]
            clients = [value] * 6 if isinstance(value, float) else list(value)
            found[cell.digest] = line(cell.digest, clients, seed=cell.seed, **more)
    return found


# ---- figures ------------------------------------------------------------------------------------------------------
def test_figures_of_a_cell() -> None:
    """Each metric is read from its entry of the line; one without an entry is None."""
    one = line("a", [0.4, 0.6], final={"ari": 0.25, "accuracy_trained": 0.75}, cluster_sizes=[3, 0, 1])
    assert figure(one, "accuracy") == 0.5
    assert figure(one, "accuracy_trained") == 0.75
    assert figure(line("a", [0.5]), "accuracy_trained") == 0.5, "the same model at both moments"
    assert figure(one, "ari") == 0.25
    assert figure(one, "clusters-used") == 2
    assert figure(one, "best-on-test") == 0.5, "of 0.125, 0.25 and 0.5"
    assert [figure(one, f"rounds-to-{t}") for t in (12.5, 13, 50, 51)] == [1, 2, 5, None]
    assert figure(one, "many") is None


def test_ours_is_the_mean_over_seeds_with_its_deviation() -> None:
    """Our figure is the mean over seeds with its deviation, and says how many seeds there are if some are missing."""
    both = {0: line("a", [0.5]), 1: line("b", [0.6])}
    assert shown(both, "accuracy", 2, 2).text == "55.00 ± 7.07"  # 10 / sqrt(2)
    assert shown(both, "accuracy", 3, 1).text == "55.0 ± 7.1 (2)"
    assert shown({0: both[0]}, "accuracy", 3, 2).text == "50.00 (1)"
    assert shown({}, "accuracy", 3, 2).text == "–"
    assert shown({0: line("a", [0.5], diverged=3)}, "accuracy", 1, 2).text == "50.00 †"
    assert shown({0: both[0]}, "few", 1, 2).text == "·"
    assert shown({1: line("a", [0.5], cluster_sizes=[3, 0, 10])}, "cluster-sizes", 2, 2).text == "10 3 0"
    assert shown(both, "rounds-to-15", 2, 0).text == "2 ± 1"  # rounds 2 and 1: 1.5 and 0.71
    assert shown(both, "rounds-to-55", 2, 0).text == "> 5 in 1 of 2"
    assert shown({0: both[0]}, "rounds-to-55", 1, 0).text == "> 5"


# ---- verdicts -----------------------------------------------------------------------------------------------------
# Three seeds with gains of 19, 20 and 21 points, the same for all clients: mean 20, and Student's interval over the
# seeds, as clients do not differ: the standard error is 1 / sqrt(3) = 0.577, times 4.303 (2 degrees of freedom): 2.48.
CLOSE = {"fedavg/few": [0.5, 0.5, 0.5], "da-pfl/few": [0.69, 0.7, 0.71]}


@pytest.mark.parametrize(
    ("by", "word"),
    [
        (0.0, "holds"),
        (17.5, "holds"),  # 20 - 2.48 is 17.52
        (17.6, "undecided"),
        (22.4, "undecided"),  # 20 + 2.48 is 22.48
        (22.5, "does not hold"),
    ],
)
def test_the_interval_decides(toy: Paper, by: float, word: str) -> None:
    """A claim holds, fails or is open as its bound lies below, above or inside the 95 % interval 20 ± 2.48."""
    table = toy.tables[0]
    found = verdict(table, replace(BETTER, by=by), "paper", lines(table, CLOSE))
    assert found.word == word
    assert sentence(table, found) == "+20.0 points, 95 % interval +17.5 to +22.5 over 3 seeds"


@pytest.mark.parametrize(("within", "word"), [(22.5, "holds"), (20.0, "undecided"), (17.5, "does not hold")])
def test_a_bound_on_both_sides(toy: Paper, within: float, word: str) -> None:
    """`within` compares the size of the difference with its bound in the same three ways."""
    table = toy.tables[0]
    assert verdict(table, replace(BETTER, within=within), "paper", lines(table, CLOSE)).word == word


def test_of_many_comparisons_a_failure_needs_a_wider_interval(toy: Paper) -> None:
    """Two comparisons: 97.5 % each, Student's 6.205 in place of 4.303, so 20 + 3.58: 23 is no longer beyond it."""
    table = toy.tables[0]
    both = lines(table, {**CLOSE, "strong/few": [0.9, 0.9, 0.9]})
    alone, beside = replace(BETTER, by=23.0), replace(BETTER, pairs=(("da-pfl", "fedavg"), ("strong", "fedavg")), by=23)
    assert verdict(table, alone, "paper", both).word == "does not hold"
    assert verdict(table, beside, "paper", both).word == "undecided"
    assert verdict(table, replace(beside, by=24), "paper", both).word == "does not hold"


def test_the_other_way_round_it_does_not_hold(toy: Paper) -> None:
    """With the two methods exchanged the interval lies below zero and the claim fails."""
    table = toy.tables[0]
    turned = replace(BETTER, pairs=(("fedavg", "da-pfl"),))
    found = verdict(table, turned, "paper", lines(table, CLOSE))
    assert found.word == "does not hold"
    assert sentence(table, found) == "-20.0 points, 95 % interval -22.5 to -17.5 over 3 seeds"


def test_one_seed_tells_nothing(toy: Paper) -> None:
    """One seed gives an interval over its clients and no verdict."""
    table = toy.tables[0]
    found = verdict(table, BETTER, "paper", lines(table, {"fedavg/few": [0.5], "da-pfl/few": [0.75]}))
    assert found.word == "undecided"
    assert sentence(table, found) == "+25.0 points, 95 % interval +25.0 to +25.0 over the clients of one seed"


def test_only_seeds_that_both_have_are_compared(toy: Paper) -> None:
    """A comparison uses the seeds that both cells have; without one it is not measured."""
    table = toy.tables[0]
    some = lines(table, {"fedavg/few": [0.5, 0.5, 0.5], "da-pfl/few": [0.75]})
    found = verdict(table, BETTER, "paper", some).parts[0].found
    assert found is not None
    assert found.seeds == 1
    assert verdict(table, BETTER, "paper", lines(table, {"fedavg/few": [0.5]})).word == "not measured yet"
    assert verdict(table, BETTER, "small", some).word == "not measured yet", "another scale has other cells"


def test_clients_are_paired(toy: Paper) -> None:
    """Clients between 10 and 85 %, each 5 points better under the method: the gains alone count."""
    table = toy.tables[0]
    base = [0.1, 0.25, 0.4, 0.55, 0.7, 0.85]
    better = [value + 0.05 for value in base]
    found = verdict(table, BETTER, "paper", lines(table, {"fedavg/few": [base] * 2, "da-pfl/few": [better] * 2}))
    assert (found.word, sentence(table, found)) == ("holds", "+5.0 points, 95 % interval +5.0 to +5.0 over 2 seeds")


def test_equal_figures_are_not_above(toy: Paper) -> None:
    """Equal figures fail a claim of being above, and keep one of being within a bound."""
    table = toy.tables[0]
    same = lines(table, {"fedavg/few": [0.5, 0.6], "da-pfl/few": [0.5, 0.6]})
    found = verdict(table, BETTER, "paper", same)
    assert (found.word, sentence(table, found)) == ("does not hold", "equal to the last digit")
    assert verdict(table, replace(BETTER, within=0.5), "paper", same).word == "holds"


def test_all_comparisons_of_a_claim_must_hold(toy: Paper) -> None:
    """A claim with several comparisons holds if all do, and fails if one does."""
    table = toy.tables[0]
    order = Claim("in this order", (("da-pfl", "fedavg"), ("strong", "da-pfl")), ("few",))
    cells = {"fedavg/few": [0.5, 0.5], "da-pfl/few": [0.6, 0.6]}
    found = verdict(table, order, "paper", lines(table, cells))
    assert found.word == "undecided"
    assert sentence(table, found).startswith("holds in 1 of 2 comparisons; not measured in 1; least against FedAvg")
    assert verdict(table, order, "paper", lines(table, {**cells, "strong/few": [0.7, 0.7]})).word == "holds"
    against = verdict(table, order, "paper", lines(table, {**cells, "strong/few": [0.4, 0.4]}))
    assert against.word == "does not hold"
    assert sentence(table, against) == (
        "holds in 1 of 2 comparisons; fails in 1; least against DA-PFL (6 clients): "
        "-20.0 points, 95 % interval -20.0 to -20.0 over 2 seeds"
    )


def test_a_mean_over_columns_is_one_comparison(toy: Paper) -> None:
    """+10 in one column and -5 in the other, whatever the client and the seed: +2.5 on average over 12 clients."""
    table = toy.tables[0]
    cells = {"fedavg/few": [0.5, 0.5], "da-pfl/few": [0.6, 0.6], "fedavg/many": [0.5, 0.5], "da-pfl/many": [0.45, 0.45]}
    each = replace(BETTER, columns=None)
    assert verdict(table, each, "paper", lines(table, cells)).word == "does not hold"
    found = verdict(table, replace(each, pooled=True), "paper", lines(table, cells))
    (part,) = found.parts
    assert part.found is not None
    assert part.found.mean == pytest.approx(0.025)
    assert part.found.clients == 12


def test_a_mean_over_columns_some_of_which_are_not_measured(toy: Paper) -> None:
    """It shows the mean over those that are, +10, and how many these are; it is not decided, whatever its interval."""
    table = toy.tables[0]
    some = {"fedavg/few": [0.5, 0.5], "da-pfl/few": [0.6, 0.6], "fedavg/many": [0.5, 0.5]}
    mean = replace(BETTER, columns=None, pooled=True)
    found = verdict(table, mean, "paper", lines(table, some))
    assert (found.word, sentence(table, found)) == (
        "undecided",
        "+10.0 points, 95 % interval +10.0 to +10.0 over 2 seeds (mean over 1 of 2 columns)",
    )
    two = replace(mean, pairs=(("da-pfl", "fedavg"), ("strong", "fedavg")))
    found = verdict(table, two, "paper", lines(table, {**some, "strong/few": [0.4, 0.4], "strong/many": [0.6, 0.6]}))
    assert [part.word for part in found.parts] == ["undecided", "undecided"]
    assert "open in 2; least against FedAvg (mean over 2 columns): +0.0 points" in sentence(table, found)
    assert verdict(table, mean, "paper", lines(table, {"fedavg/few": [0.5, 0.5]})).word == "not measured yet"


def test_fewer_rounds_are_better_and_few_figures_have_no_interval(toy: Paper) -> None:
    """Rounds 1, 2 and 5 have a quarter, a half and all of the accuracy: 40 % is reached in round 5, never and 2."""
    table = toy.tables[1]
    faster = Claim("faster", (("da-pfl", "fedavg"),), ("forty",))
    own = {"fedavg/forty": [0.5, 0.3], "da-pfl/forty": [0.9, 0.9]}
    found = verdict(table, faster, "paper", lines(table, own))
    assert found.word == "undecided"
    why = "too few for an interval"
    assert sentence(table, found) == f"3.5 rounds fewer, better in 2 of 2 seeds, {why}"  # 5 - 2 and 6 - 2
    slower = replace(faster, pairs=(("fedavg", "da-pfl"),))
    found = verdict(table, slower, "paper", lines(table, own))
    assert sentence(table, found) == f"3.5 rounds more, better in 0 of 2 seeds, {why}"
    same = lines(table, {**own, "da-pfl/forty": [0.5, 0.3]})
    assert sentence(table, verdict(table, faster, "paper", same)) == "no difference"
    ends = Difference(-2.0, -5.0, 1.0, 0.95, 3, 4, 0.1)
    said = difference_text(replace(found.parts[0], found=ends))
    assert said == "2.0 rounds more, 95 % interval 5.0 more to 1.0 fewer over 3 seeds"


# ---- pages --------------------------------------------------------------------------------------------------------
def rows_of(text: str) -> list[list[str]]:
    """The cells of all Markdown tables in a text, row by row."""
    return [[c.strip() for c in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("|")]


def test_the_paper_s_number_stands_before_ours(toy: Paper) -> None:
    """A cell of the page shows `paper / ours`, with a dash where a number is missing."""
    found = lines(toy.tables[0], {"fedavg/few": [0.5, 0.5, 0.5], "fedavg/many": [0.25], "da-pfl/many": [0.5]})
    text = page(toy, found)
    rows = rows_of(text)
    assert rows[0] == ["", "6 clients", "8 clients"]
    assert rows[2] == ["FedAvg", "50.00 / 50.00 ± 0.00", "60.00 ± 1.50 / 25.00 (1)"]
    assert rows[3] == ["DA-PFL", "70.00 / –", "– / 50.00 (1)"]
    assert "Ours: mean over rounds 4 to 5." in text
    assert "DA-PFL is above FedAvg. **Undecided**" in text
    assert "Scale `paper`: All of it. Cells: `python -m reproduce run toy/one --scale paper`." in text
    assert "Scale `small`" not in text, "it has no cells"
    second = rows[rows.index(["", "forty", "few"]) :]
    assert second[2] == ["FedAvg", "9 / 5 ± 0", "30.00 / ·"], "the same runs: 40 % in round 5"


def test_figures_that_the_paper_does_not_print_stand_alone(tmp_path: Path) -> None:
    """A metric without printed numbers shows ours alone."""
    two = ONE.replace("[data]", 'metrics = ["accuracy", "macro_f1"]\n\n[data]', 1).replace(
        "[numbers]", "[numbers.accuracy]"
    )
    toy = paper(tmp_path, one=two)
    rows = rows_of(page(toy, lines(toy.tables[0], {"fedavg/few": [0.5, 0.5]}, final={"macro_f1": 0.25})))
    assert [row[1] for row in rows if row[0] == "FedAvg"][:2] == ["50.00 / 50.00 ± 0.00", "25.00 ± 0.00"]


def test_rows_of_ours_are_shown_when_measured(toy: Paper) -> None:
    """Without a cell and a printed number a row is named below the table; with a cell in any column it is in it."""
    table = toy.tables[0]
    some = {"fedavg/few": [0.5, 0.5, 0.5]}
    text = page(toy, lines(table, some))
    assert not {"DA-PFL, strong", "DA-PFL, code"} & {row[0] for row in rows_of(text)}
    both = "Rows of ours without a measured cell: DA-PFL, strong; DA-PFL, code."
    assert f"Ours: mean over rounds 4 to 5. {both}" in text
    text = page(toy, lines(table, {**some, "strong/many": [0.5]}))
    assert ["DA-PFL, strong", "– / –", "– / 50.00 (1)"] in rows_of(text)
    assert "Rows of ours without a measured cell: DA-PFL, code." in text
    assert "Rows of ours" not in page(toy, {})
    ours = replace(toy, tables=(replace(table, numbers={}),))
    assert ["DA-PFL, strong", "–", "–"] in rows_of(page(ours, {})), "a table of ours that is not measured"


def test_the_reason_why_a_table_is_not_measured(tmp_path: Path) -> None:
    """Both pages give it for claims and questions without a comparison; a table that is like it has its own."""
    asked = '[[claims]]\ntext = "Is it?"\nquestion = true\nrow = "strong"\nthan = ["fedavg"]\n'
    toy = paper(tmp_path, one=ONE.replace("[data]", 'unmeasured = "no data"\n\n[data]', 1) + asked)
    text = page(toy, {})
    assert "\nNot measured yet: no data.\n" in text
    assert "- DA-PFL is above FedAvg. **Not measured yet**: no data.\n- Is it? Not measured yet: no data.\n" in text
    assert text.count("no data") == 3, "the second table has no reason"
    text = claims_page([toy], {})
    assert "| DA-PFL is above FedAvg. | not measured yet | no data |" in text
    assert "| Is it? | – | not measured yet: no data |\n" in text
    few = {"fedavg/few": [0.5, 0.5], "da-pfl/few": [0.6, 0.6], "fedavg/many": [0.5], "da-pfl/many": [0.6]}
    text = page(toy, lines(toy.tables[0], few))
    assert text.count("no data") == 1, "the question alone"


def test_questions_have_an_answer_for_each_comparison(tmp_path: Path) -> None:
    """One that is measured stands behind the question, several in a list; the page of claims has a row for each."""
    asked = '[[claims]]\ntext = "Is it?"\nquestion = true\nrow = "da-pfl"\nthan = ["fedavg", "strong"]\n'
    toy = paper(tmp_path, one=ONE + asked)
    few = {"fedavg/few": [0.5, 0.5], "da-pfl/few": [0.6, 0.6]}
    gain = "+10.0 points, 95 % interval +10.0 to +10.0 over 2 seeds"
    assert f"- Is it? Against FedAvg (6 clients): {gain}.\n" in page(toy, lines(toy.tables[0], few))
    assert f"| Is it? | FedAvg (6 clients) | {gain} |\n" in claims_page([toy], lines(toy.tables[0], few))
    found = lines(toy.tables[0], {**few, "strong/few": [0.6, 0.6]})
    same = "DA-PFL, strong (6 clients)"
    listed = f"- Is it?\n    - Against FedAvg (6 clients): {gain}.\n    - Against {same}: equal to the last digit.\n"
    assert listed in page(toy, found)
    rows = f"| Is it? | FedAvg (6 clients) | {gain} |\n|  | {same} | equal to the last digit |\n"
    head = "Further questions of ours:\n\n| question | against | found |\n| :-- | :-- | :-- |\n"
    assert head + rows in claims_page([toy], found)
    assert "Further questions" not in claims_page([paper(tmp_path)], found)


def test_the_summary_has_figures_of_cells(toy: Paper) -> None:
    """Both pages begin with it: the mean over seeds, 50, of the paper's scale; rounds without decimals; or a dash."""
    told = replace(toy, summary="\nFedAvg {one/fedavg/few} %, round {two/fedavg/forty}, DA-PFL {one/da-pfl/many}.\n")
    found = lines(toy.tables[0], {"fedavg/few": [0.45, 0.55]})
    assert "tests.\n\n## In short\n\nFedAvg 50.0 %, round 5, DA-PFL –.\n\n## Protocol\n" in page(
        replace(told, cite="Toy tests"), found
    )
    assert "Someone: Toys.\n\nFedAvg 50.0 %, round 5, DA-PFL –.\n\n|" in claims_page([told], found)
    assert "In short" not in page(toy, found)
    for name in ("three/fedavg/few", "one/fedavgg/few", "one/fedavg/forty"):
        with pytest.raises(ConfigError, match=f"the summary of toy names {name}; its tables have no such cell"):
            page(replace(toy, summary=f"{{{name}}}"), found)


def test_the_summary_has_printed_figures(toy: Paper) -> None:
    """As the paper's table has them, without their deviations; a dash or a cell that is not there has none."""
    told = replace(toy, summary="{one/fedavg/many:printed} %, {one/da-pfl/few:printed} %, {two/fedavg/forty:printed}")
    assert "\n60.00 %, 70.00 %, 9\n" in page(told, lines(toy.tables[0], {"fedavg/few": [0.45]}))
    for name in ("one/da-pfl/many", "one/strong/few"):
        with pytest.raises(ConfigError, match=f"names the printed {name}; there is none"):
            page(replace(toy, summary=f"{{{name}:printed}}"), {})


def test_a_summary_takes_the_table_s_scale_where_the_paper_s_is_not_measured(toy: Paper) -> None:
    """Its one seed has 70; the paper's, once there is one, 50."""
    table = replace(toy.tables[0], shown="small")
    told = replace(toy, tables=(table,), summary="{one/fedavg/few} %")
    small = {c.digest: line(c.digest, [0.7]) for c in cells_of(table, "small")}
    assert "\n70.0 %\n" in page(told, small)
    assert "\n50.0 %\n" in page(told, {**small, **lines(table, {"fedavg/few": [0.5]})})


def test_a_page_without_cells(toy: Paper) -> None:
    """Without a measured cell the page shows the paper's numbers, no figure and no verdict."""
    text = page(toy, {})
    assert ["FedAvg", "50.00 / –", "60.00 ± 1.50 / –"] in rows_of(text)
    assert "DA-PFL is above FedAvg. **Not measured yet**." in text
    assert "svg" not in text
    assert "| DA-PFL is above FedAvg. | not measured yet | – |" in claims_page([toy], {})


@pytest.mark.parametrize(("by", "told"), [(17.0, False), (20.0, True), (23.0, True)])
def test_the_reason_of_a_claim_is_told_unless_it_holds(tmp_path: Path, by: float, told: bool) -> None:
    """Both pages give the claim's reason after its figures, if it fails or is open; not if it holds."""
    claim = f'than = "baselines"\ncolumns = ["few"]\nby = {by}\nreason = "the rounds, as in Table 9"'
    one = ONE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]").replace('than = "baselines"', claim, 1)
    toy = paper(tmp_path, one=one)
    found = lines(toy.tables[0], CLOSE)
    for text in page(toy, found), claims_page([toy], found):
        assert ("over 3 seeds. Reason: the rounds, as in Table 9" in text) == told
    for text in page(toy, {}), claims_page([toy], {}):
        assert "Table 9" not in text, "nothing is measured"


def test_the_figure_has_a_point_where_both_have_a_number(toy: Paper, tmp_path: Path) -> None:
    """The scatter has one point per cell with a printed and a measured number."""
    table = toy.tables[0]
    found = lines(table, {"fedavg/few": [0.5, 0.6], "da-pfl/many": [0.5]})
    chart = scatter(table, measured(table, "paper", found), 3)
    assert chart is not None
    (one,) = chart["concat"]
    assert one["title"]["text"] == "6 clients", "the paper prints nothing for DA-PFL with 8 clients"
    (point,) = one["data"]["values"]
    assert (point["row"], point["paper"], point["ours"]) == ("FedAvg", 50.0, pytest.approx(55.0))
    files = write([toy], found, tmp_path / "docs")
    assert {path.name for path in files} == {"toy-one-paper.svg", "toy-two-paper.svg", "toy.md"}
    assert "<svg" in (tmp_path / "docs/papers/toy-one-paper.svg").read_text()
    assert "![Table 1: paper against measured](papers/toy-one-paper.svg)" in (tmp_path / "docs/toy.md").read_text()


def test_names_of_equal_points_stand_below_each_other(toy: Paper) -> None:
    """The names of a figure are a line of text apart, in the order of the measured numbers, however close these are."""
    table = toy.tables[0]
    numbers = {"accuracy": {"fedavg": {"few": (50.0, None)}, "da-pfl": {"few": (60.0, None)}}}
    found = lines(table, {"fedavg/few": [0.5], "da-pfl/few": [0.5001]})
    chart = scatter(replace(table, numbers=numbers), measured(table, "paper", found), 1)
    assert chart is not None
    (one,) = chart["concat"]
    upper, lower = one["data"]["values"]
    assert (upper["row"], lower["row"]) == ("DA-PFL", "FedAvg")
    low, high = one["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert (upper["label"] - lower["label"]) / (high - low) * one["height"] == pytest.approx(ROW, abs=0.5)
    assert low < lower["label"] < upper["label"] < high


def test_claims_have_one_page(toy: Paper) -> None:
    """The page of claims has each verdict with its evidence, and their numbers by paper."""
    table = toy.tables[0]
    full = {**CLOSE, "fedavg/many": [0.5, 0.5, 0.5], "da-pfl/many": [0.6, 0.6, 0.6]}
    text = claims_page([toy], lines(table, full))
    least = "least against FedAvg (8 clients): +10.0 points, 95 % interval +10.0 to +10.0 over 3 seeds"
    assert f"| DA-PFL is above FedAvg. | **holds** | holds in 2 of 2 comparisons; {least} |" in text
    assert "[Tables, settings and figures](toy.md)" in text
    assert "| [Toy](toy.md) | 1 | 0 | 0 | 0 |" in text
    assert "| [Toy](toy.md) | 0 | 0 | 0 | 1 |" in claims_page([toy], {})


def test_what_is_left(toy: Paper) -> None:
    """21 cells of 24 are missing; each is expected to take the median of those of FedAvg with 6 clients, 30 s."""
    table = toy.tables[0]
    some = [c for c in cells_of(table, "paper") if c.path.startswith("toy/one/fedavg/few/")]
    done = {c.digest: line(c.digest, [0.5], seconds=s) for c, s in zip(some, (10.0, 30.0, 5000.0), strict=True)}
    state = state_of(table, "paper", done)
    assert (state.cells, state.done, state.left, state.guessed) == (24, 3, 21 * 30.0, False)
    assert state_of(table, "paper", {}).left == 24 * 10
    assert state_of(table, "paper", {}).guessed
    text = listing([toy], done)
    assert re.search(r"toy/one +paper +3 of 24 +0\.2 h", text)
    assert re.search(r"toy/one +small +0 of 4 +~0\.0 h", text)


# ---- the command --------------------------------------------------------------------------------------------------
def test_the_command_lists_names_and_writes_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """run --dry lists missing cells, table writes pages, config prints a cell; bad names end with code 2."""
    found = papers(["dapfl"])[0]
    table = found.tables[4]
    for one in lines(table, {"v2/20-low": [0.5], "da-pfl/20-low": [0.75]}).values():
        append(file_of(table, tmp_path / "results"), one)
    flags = ["--results", str(tmp_path / "results")]
    assert main([*flags, "run", "dapfl/table5/v2", "dapfl/table5/da-pfl", "--dry"]) == 0
    names = [text.split()[-1] for text in capsys.readouterr().out.splitlines()]
    assert names == [f"dapfl/table5/{row}/20-low/{seed}" for seed in (1, 2) for row in ("v2", "da-pfl")]
    assert main([*flags, "table", "dapfl", "--docs", str(tmp_path / "docs")]) == 0
    assert "56.21 / 50.00 (1)" in (tmp_path / "docs" / "dapfl.md").read_text()
    assert (tmp_path / "docs" / "papers.md").is_file()
    capsys.readouterr()
    assert main(["config", "dapfl/table5/v2/20-low/2"]) == 0
    assert 'variant = "v2"' in capsys.readouterr().out
    assert main(["config", "dapfl/table5/v2/20-low"]) == 2
    assert "are 3 cells" in capsys.readouterr().err
    assert main(["table", "nature"]) == 2
    assert main([*flags, "adopt", "dapfl/table5"]) == 0
    assert "0 cells; --yes takes them over" in capsys.readouterr().out


def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    """`run --dry | head -1` prints its line, and no traceback for the rest, more than a pipe holds (64 KiB)."""
    command = [sys.executable, "-m", "reproduce", "--results", str(tmp_path), "run", "--dry", "--scale", "paper"]
    where = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        assert "dapfl/" in ran.stdout.readline()
        ran.stdout.close()
        assert ran.stderr.read() == ""
        assert ran.wait() == 1
