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
from reproduce.figures import figure, shown
from reproduce.listing import listing, state_of
from reproduce.pages import overview, page
from reproduce.reading import papers
from reproduce.results import append, file_of
from reproduce.tables import Claim, Paper, Table
from reproduce.verdicts import Verdict, verdict
from reproduce.words import claim_line, difference_text

from fedkin.core import ConfigError
from fedkin.evaluate import Difference
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


def evidence(table: Table, found: Verdict) -> str:
    """What a claim's line says after the verdict."""
    return claim_line(table, found).partition("**: ")[2].removesuffix(".")


# ---- figures ------------------------------------------------------------------------------------------------------
def test_figures_of_a_cell() -> None:
    """Each metric is read from its entry of the line; one without an entry is None."""
    one = line("a", [0.4, 0.6], final={"ari": 0.25, "accuracy_trained": 0.75})
    assert figure(one, "accuracy") == 0.5
    assert figure(one, "accuracy_trained") == 0.75
    assert figure(line("a", [0.5]), "accuracy_trained") == 0.5, "the same model at both moments"
    assert figure(one, "ari") == 0.25
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
    assert evidence(table, found) == "+20.0 [+17.5 to +22.5]"


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
    assert evidence(table, found) == "-20.0 [-22.5 to -17.5]"


def test_one_seed_tells_nothing(toy: Paper) -> None:
    """One seed gives an interval over its clients and no verdict."""
    table = toy.tables[0]
    found = verdict(table, BETTER, "paper", lines(table, {"fedavg/few": [0.5], "da-pfl/few": [0.75]}))
    assert found.word == "undecided"
    assert evidence(table, found) == "+25.0 [+25.0 to +25.0, 1 seed]"


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
    assert (found.word, evidence(table, found)) == ("holds", "+5.0 [+5.0 to +5.0, 2 seeds]")


def test_equal_figures_are_not_above(toy: Paper) -> None:
    """Equal figures fail a claim of being above, and keep one of being within a bound."""
    table = toy.tables[0]
    same = lines(table, {"fedavg/few": [0.5, 0.6], "da-pfl/few": [0.5, 0.6]})
    found = verdict(table, BETTER, "paper", same)
    assert (found.word, evidence(table, found)) == ("does not hold", "equal to the last digit")
    assert verdict(table, replace(BETTER, within=0.5), "paper", same).word == "holds"


def test_all_comparisons_of_a_claim_must_hold(toy: Paper) -> None:
    """A claim with several comparisons holds if all do, and fails if one does."""
    table = toy.tables[0]
    order = Claim("in this order", (("da-pfl", "fedavg"), ("strong", "da-pfl")), ("few",))
    cells = {"fedavg/few": [0.5, 0.5], "da-pfl/few": [0.6, 0.6]}
    found = verdict(table, order, "paper", lines(table, cells))
    assert found.word == "undecided"
    assert evidence(table, found).startswith("of 2 holds 1, not measured 1; least FedAvg")
    assert verdict(table, order, "paper", lines(table, {**cells, "strong/few": [0.7, 0.7]})).word == "holds"
    against = verdict(table, order, "paper", lines(table, {**cells, "strong/few": [0.4, 0.4]}))
    assert against.word == "does not hold"
    assert evidence(table, against) == (
        "of 2 holds 1, fails 1; least DA-PFL (6 clients), -20.0 [-20.0 to -20.0, 2 seeds]"
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
    assert (found.word, evidence(table, found)) == (
        "undecided",
        "+10.0 [+10.0 to +10.0, 2 seeds] (mean over 1 of 2 columns)",
    )
    two = replace(mean, pairs=(("da-pfl", "fedavg"), ("strong", "fedavg")))
    found = verdict(table, two, "paper", lines(table, {**some, "strong/few": [0.4, 0.4], "strong/many": [0.6, 0.6]}))
    assert [part.word for part in found.parts] == ["undecided", "undecided"]
    assert "open 2; least FedAvg (mean over 2 columns), +0.0 [" in evidence(table, found)
    assert verdict(table, mean, "paper", lines(table, {"fedavg/few": [0.5, 0.5]})).word == "not measured yet"


def test_fewer_rounds_are_better_and_few_figures_have_no_interval(toy: Paper) -> None:
    """Rounds 1, 2 and 5 have a quarter, a half and all of the accuracy: 40 % is reached in round 5, never and 2."""
    table = toy.tables[1]
    faster = Claim("faster", (("da-pfl", "fedavg"),), ("forty",))
    own = {"fedavg/forty": [0.5, 0.3], "da-pfl/forty": [0.9, 0.9]}
    found = verdict(table, faster, "paper", lines(table, own))
    assert found.word == "undecided"
    why = "too few for an interval"
    assert evidence(table, found) == f"3.5 rounds fewer, better in 2 of 2 seeds, {why}"  # 5 - 2 and 6 - 2
    slower = replace(faster, pairs=(("fedavg", "da-pfl"),))
    found = verdict(table, slower, "paper", lines(table, own))
    assert evidence(table, found) == f"3.5 rounds more, better in 0 of 2 seeds, {why}"
    same = lines(table, {**own, "da-pfl/forty": [0.5, 0.3]})
    assert evidence(table, verdict(table, faster, "paper", same)) == "no difference"
    ends = Difference(-2.0, -5.0, 1.0, 0.95, 3, 4, 0.1)
    said = difference_text(replace(found.parts[0], found=ends), 3)
    assert said == "2.0 rounds more [5.0 more to 1.0 fewer]"


# ---- pages --------------------------------------------------------------------------------------------------------
def rows_of(text: str) -> list[list[str]]:
    """The cells of all Markdown tables in a text, row by row."""
    return [[c.strip() for c in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("|")]


def test_a_page_has_the_paper_s_number_before_ours(toy: Paper) -> None:
    """Rows and columns with a measured cell; a cell is `paper/ours`, with a dash where a number is missing."""
    found = lines(toy.tables[0], {"fedavg/few": [0.5, 0.5, 0.5], "fedavg/many": [0.25], "da-pfl/many": [0.5]})
    text = page(toy, found)
    rows = rows_of(text)
    assert rows[0] == ["", "6 clients", "8 clients"]
    assert rows[2:4] == [
        ["FedAvg", "50.00/50.00±0.00", "60.00/25.00 (1)"],
        ["DA-PFL", "70.00/–", "–/50.00 (1)"],
    ]
    assert not {"DA-PFL, strong", "DA-PFL, code"} & {row[0] for row in rows}
    assert "All of it." in text
    assert "mean over rounds 4 to 5." in text
    assert "DA-PFL is above FedAvg. **Undecided**" in text
    second = rows[rows.index(["", "forty", "few"]) :]
    assert second[2] == ["FedAvg", "9/5±0", "30.00/·"], "the same runs: 40 % in round 5"
    assert rows_of(page(toy, lines(toy.tables[0], {"fedavg/few": [0.5]})))[0] == ["", "6 clients"]
    asked = replace(toy.tables[0], claims=(replace(BETTER, question=True),))
    assert rows_of(page(replace(toy, tables=(asked,)), found)) == [], "an experiment of ours is stated by its answers"
    bare = replace(asked, claims=(), numbers={})
    assert rows_of(page(replace(toy, tables=(bare,)), found))[2] == ["FedAvg", "50.00±0.00", "25.00 (1)"]


def test_a_page_names_the_tables_without_cells(tmp_path: Path) -> None:
    """With the reason that a table gives; they have no section."""
    toy = paper(tmp_path, one=ONE.replace("[data]", 'unmeasured = "no data"\n\n[data]', 1))
    text = page(toy, {})
    assert "## Not measured yet\n\n- Table 1: no data.\n- Table 2.\n" in text
    assert rows_of(text) == []


def test_a_question_has_an_answer_for_each_comparison(tmp_path: Path) -> None:
    """With the column where the question has several; those that are not measured are left out."""
    asked = '[[claims]]\ntext = "Is it?"\nquestion = true\nrow = "da-pfl"\nthan = ["fedavg", "strong"]\n'
    few = {"fedavg/few": [0.5, 0.5], "da-pfl/few": [0.6, 0.6]}
    gain = "+10.0 [+10.0 to +10.0]"
    toy = paper(tmp_path, one=ONE + asked)
    assert f"- Is it? FedAvg (6 clients): {gain}.\n" in page(toy, lines(toy.tables[0], few))
    found = lines(toy.tables[0], {**few, "strong/few": [0.6, 0.6]})
    both = "DA-PFL, strong (6 clients): equal to the last digit"
    assert f"- Is it? FedAvg (6 clients): {gain}; {both}.\n" in page(toy, found)
    assert "Is it?" not in page(toy, lines(toy.tables[0], {"code/few": [0.5]}))
    one = paper(tmp_path, one=ONE + asked + 'columns = ["few"]\n')
    assert f"- Is it? FedAvg: {gain}.\n" in page(one, lines(one.tables[0], few))


def test_the_summary_has_figures_of_cells(toy: Paper) -> None:
    """The mean over seeds, 50, of the paper's scale; rounds without decimals; printed numbers; or a dash."""
    told = replace(
        toy,
        summary="\nFedAvg {one/fedavg/few} %, round {two/fedavg/forty}, {one/da-pfl/many}, "
        "{one/fedavg/many:printed} %, {two/fedavg/forty:printed}.\n",
    )
    text = page(told, lines(toy.tables[0], {"fedavg/few": [0.45, 0.55]}))
    assert "Toys.\n\nFedAvg 50.0 %, round 5, –, 60.00 %, 9.\n\n## Protocol\n" in text
    for name in ("three/fedavg/few", "one/fedavgg/few", "one/fedavg/forty", "one/da-pfl/many:printed"):
        with pytest.raises(ConfigError):
            page(replace(toy, summary=f"{{{name}}}"), {})


def test_the_table_s_scale_is_shown_where_the_paper_s_is_not_measured(toy: Paper) -> None:
    """Its one seed has 70; the paper's, once there is one, 50."""
    table = replace(toy.tables[0], shown="small")
    told = replace(toy, tables=(table,), summary="{one/fedavg/few} %")
    small = {c.digest: line(c.digest, [0.7]) for c in cells_of(table, "small")}
    assert "\n70.0 %\n" in page(told, small)
    assert "Fewer rounds." in page(told, small)
    assert "\n50.0 %\n" in page(told, {**small, **lines(table, {"fedavg/few": [0.5]})})


@pytest.mark.parametrize(("by", "shown"), [(17.0, False), (20.0, True), (23.0, True)])
def test_a_claim_has_its_reason_unless_it_holds(tmp_path: Path, by: float, shown: bool) -> None:
    """After its figures, if it fails or is open."""
    claim = f'than = "baselines"\ncolumns = ["few"]\nby = {by}\nreason = "the rounds, as in Table 9"'
    one = ONE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]").replace('than = "baselines"', claim, 1)
    toy = paper(tmp_path, one=one)
    assert ("]. Reason: the rounds, as in Table 9." in page(toy, lines(toy.tables[0], CLOSE))) == shown


def test_claims_are_counted_on_one_page(toy: Paper) -> None:
    """By paper, in the order holds, does not hold, undecided, not measured; the paper's page has the evidence."""
    full = {**CLOSE, "fedavg/many": [0.5, 0.5, 0.5], "da-pfl/many": [0.6, 0.6, 0.6]}
    found = lines(toy.tables[0], full)
    assert "| [Toy](toy.md) | 1 | 0 | 0 | 0 |" in overview([toy], found)
    assert "| [Toy](toy.md) | 0 | 0 | 0 | 1 |" in overview([toy], {})
    least = "least FedAvg (8 clients), +10.0 [+10.0 to +10.0]"
    assert f"- DA-PFL is above FedAvg. **Holds**: of 2 holds 2; {least}.\n" in page(toy, found)


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
    assert "56.21/50.00 (1)" in (tmp_path / "docs" / "dapfl.md").read_text()
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
