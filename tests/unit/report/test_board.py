"""The first screen: for whom it paid, in words, figures and marks."""

from __future__ import annotations

import html
import re

import pytest

from fedkin.report import charts, dots, wording
from fedkin.report.content import Content, content_of
from fedkin.report.wording import part
from madeup import edit


def block(found: Content, title: str) -> str:
    """A method's first screen."""
    return part("result.html", "block", found, title)


def said(found: Content, title: str) -> str:
    """The headline."""
    return html.unescape(re.sub("<.*?>", "", re.search("<h1>(.*?)</h1>", block(found, title), re.DOTALL)[1]))


def eight(made, title: str, top: float, gains: dict[int, float] | None = None, seed: int = 0, **more):
    """A run of eight clients with 200 test samples each."""
    return made(title, seed, clients=8, top=top, gains=gains, samples=200, **more)


# ---- words


CLEAR = {i: 0.05 + i / 1000 for i in range(8)}
MIXED = dict.fromkeys(range(7), 0.05) | {7: -0.1}
HEADLINES = [
    # seeds, gains, the headline; the same gains in one seed never say "better", and in three never "ahead"
    (1, CLEAR, "M: 5 points above training alone in this one run. Likely +5.1 to +5.6 for clients like these."),
    (3, CLEAR, "M: better than training alone by 5 points. Likely +5.1 to +5.6 over 3 seeds."),
    (1, MIXED, "M: level with training alone in this one run, at +3.1 points. Likely −1 to +8 for clients like these."),
    (3, MIXED, "M: no clear difference from training alone, at +3.1 points. Likely −1 to +8 over 3 seeds."),
    (1, {i: -g for i, g in CLEAR.items()}, "No method is above training alone on average. The highest, M: 5 points "
                                           "below training alone in this one run."),
    (3, {i: -g for i, g in CLEAR.items()}, "No method is above training alone on average. The highest, M: worse than "
                                           "training alone by 5 points."),
    (1, {}, "M has the same accuracy as training alone at every client."),
]  # fmt: skip


@pytest.mark.parametrize(("seeds", "gains", "expected"), HEADLINES)
def test_the_headline_says_how_much_and_knows_the_number_of_seeds(made, seeds, gains, expected) -> None:
    """One seed is ahead, behind or level in this one run; with several it is better, worse or unclear."""
    each = range(seeds)
    runs = [eight(made, t, 0.6, gains if t == "M" else None, seed=s) for t in ("Local", "M") for s in each]
    for run in runs:
        edit(run, names=tuple("abcdefgh"))
    assert said(content_of(runs), "M") == expected
    text = block(content_of(runs), "M")
    assert ("For these 8 clients themselves: " in text) == (seeds > 1)


def test_below_the_headline_is_what_was_measured_and_who_is_truly_worse_off(made) -> None:
    """Of the last round: clients measured higher, equal and lower; a range for those that are truly worse off."""
    more = {"answers": "x"}
    runs = [eight(made, "Local", 0.6, **more), eight(made, "M", 0.6, {0: 0.1, 1: 0.02, 2: -0.02}, **more)]
    text = block(content_of(runs), "M")
    found = re.search(r'<p class="lede">(.*?)</p>', text)[1]
    assert re.match(r"Measured higher for 2 of 8 clients, equal for 5, lower for 1: between 0 and \d are truly", found)
    assert found.endswith("One seed: run two more before choosing.")
    assert re.search(r"clear by themselves: 1; truly worse off: 0–\d<", text)
    runs[1] = eight(made, "M", 0.6, {1: 0.02, 2: -0.02}, **more)
    assert "lower for 1; tests of 200 samples cannot tell single clients apart: between" in block(content_of(runs), "M")


def test_all_statements_on_single_clients_are_of_the_last_round(made) -> None:
    """A client that lost over ten rounds and gained in the last one is higher, in counts, marks and table alike."""
    runs = [eight(made, t, a, g, answers="x", rounds=20) for t, a, g in (("Local", 0.6, {}), ("M", 0.65, {0: 0.05}))]
    edit(runs[1], clients=lambda line: {"accuracy": 0.5} if line.round < 20 else None)
    found = content_of(runs)
    standing = found.standing("M")
    assert (standing.counts(1), standing.difference.mean < 0) == ([8], True)
    (figure,) = found.figures["gains"]
    marks = [row for row in figure.spec["data"]["values"] if row["part"] == "client"]
    assert {row["kind"] for row in marks} == {"higher"}
    table = next(part for part in found.parts if part.run.title == "M").table["columns"]
    assert table["gain over Local"][:2] == [10.0, 5.0]
    assert table["accuracy %"][0] == 70.0


def test_nothing_learned_comes_before_who_gained(made) -> None:
    """Every method is right for 192 of 200 samples, as the constant answer is: that is the headline, whoever gained."""
    given = {"right": [192] * 8, "balanced": 0.5}
    runs = [eight(made, "Local", 0.96, **given), eight(made, "M", 0.96, {0: 0.01}, **given)]
    first = {"majority": 192, "labels": (90, 10)}
    for run in runs:
        edit(run, clients=lambda line: first if (line.round, line.client) == (1, 0) else {"majority": 192})
    assert said(content_of(runs), "M") == (
        "No method predicts this outcome clearly better than always giving a client's most frequent class. "
        "Only 64 of 1,600 test samples (4%) have another class."
    )
    better = [runs[0], eight(made, "M", 0.99, {0: 0.001}, right=[192] * 8, balanced=0.53)]
    edit(better[1], clients=lambda line: {"majority": 192})
    assert said(content_of(better), "M").startswith("M: 3 points of balanced accuracy above")


def test_the_four_figures(made) -> None:
    """Mean, counts, the worst client with its name, traffic."""
    runs = [eight(made, "Local", 0.6, {3: -0.08}), eight(made, "M", 0.7, {5: -0.2})]
    text = block(content_of(runs), "M")
    figures = re.findall(r'<div class="kpi"><h2>.*?</h2>\n<div class="big">(.*?)</div>', text)
    assert figures == ["67.5%", "7<i>/</i>0<i>/</i>1", "50.0%", "9<small>MB</small>"]
    assert "client 5 · alone, worst 52.0% (client 3)" in text
    assert "alone 59.0% · +8.5 points" in text


def test_numbers_in_words() -> None:
    """A true minus sign, whole points but for small ones, ranges, long names cut in their middle."""
    assert [wording.signed(v) for v in (0.062, -0.0041, 0.0004, -0.0)] == ["+6.2", "−0.4", "0.0", "0.0"]
    assert [wording.points(v) for v in (0.064, -0.012, 0.004)] == ["6 points", "1 point", "0.4 points"]
    assert wording.ranged([3, 5]) == "3 to 5"
    assert wording.listed(["a", "b", "c"], "or") == "a, b or c"
    assert wording.cut("University Hospital West 2") == "Universit…West 2"
    shown = {name: wording.fitted(name, 8.6) for name in ("IFCA-CAM (Eq. 6)", "Clustered Sampling", "DA-PFL (lam=0.1)")}
    assert list(shown.values()) == ["IFCA-CAM (Eq. 6)", "Clustered…pling", "DA-PFL (l…=0.1)"]
    assert wording.fitted("iiiiiiiiiiiiiiiiiiiiiiiii", 8.6) == "i" * 25


# ---- caveats


# ---- marks


def test_marks_are_filled_where_a_client_is_clear_by_itself(made) -> None:
    """Exact tests on 200 samples with Holm's correction for eight clients."""
    gains = {0: 0.1, 1: 0.03, 2: 0.0004, 3: -0.03, 4: -0.1}
    found = content_of([eight(made, "Local", 0.6, answers="x"), eight(made, "M", 0.6, gains, answers="x")])
    (figure,) = found.figures["gains"]
    assert charts.svg(figure.titled).startswith("<svg")
    rows = {r["id"]: (r["kind"], r["clear"]) for r in figure.spec["data"]["values"] if r["part"] == "client"}
    assert [rows[i] for i in range(5)] == [
        ("higher", "yes"), ("higher", "no"), ("equal", "no"), ("lower", "no"), ("lower", "yes"),
    ]  # fmt: skip
    assert figure.fact == "M: 2 higher, 2 lower, mean 0.0"
    table = next(part for part in found.parts if part.run.title == "M").table["columns"]
    assert table["p over Local"][1] == pytest.approx(2 / 2**6, abs=1e-4)
    assert table["clear over Local"][:5] == [True, False, False, False, True]


def test_marks_do_not_overlap() -> None:
    """Twenty equal gains in a row of 38 pixels: none is where another is, and all are inside."""
    offsets = dots._dodged([10.0 + 12 * (i // 4) for i in range(20)], 4.9, 9.8)
    places = [(12 * (i // 4), dy) for i, dy in enumerate(offsets)]
    assert len(set(places)) == 20
    assert max(map(abs, offsets)) <= dots.ROW / 2 - 4


def test_many_clients_are_bins(made) -> None:
    """Of 1,000 clients every one is in a bin; lower ones are below the line, others above it."""
    gains = {i: (i - 200) / 2000 for i in range(1000)}
    runs = [made("Local", top=0.4, clients=1000, rounds=1), made("M", top=0.4, clients=1000, rounds=1, gains=gains)]
    (figure,) = content_of(runs).figures["gains"]
    rows = [r for r in figure.spec["data"]["values"] if r["part"] == "client"]
    assert sum(row["clients"] for row in rows) == 1000
    assert len(rows) < 60
    assert all((row["dy"] > 0) == (row["kind"] == "lower") for row in rows)
    assert charts.svg(figure.titled).startswith("<svg")


# ---- the table


def test_the_table_shares_the_rows_of_the_chart(made) -> None:
    """In the same order; one-word verdicts with a sign; the interval is text in a saved table."""
    runs = [eight(made, "Local", 0.6), eight(made, "A", 0.7, {i: i / 1000 for i in range(8)})]
    runs += [eight(made, "B", 0.5, {i: i / 1000 for i in range(8)}), eight(made, "C", 0.6, {0: 0.02, 1: -0.02})]
    found = content_of(runs)
    text = part("board.html", "board", found)
    assert re.findall(r'<tr data-method="(.*?)"', text) == ["A", "Local", "C", "B"]
    layer = found.figures["gains"][0].spec["layer"][0]
    assert layer["encoding"]["y"]["scale"]["domain"] == ["A", "Local", "C", "B"]
    verdicts = re.findall(r'<td class="hp" data-value="(.*?)"><span class="v \w+"><span aria-hidden="true">(.)<', text)
    assert verdicts == [("ahead", "▲"), ("reference", "–"), ("level", "≈"), ("behind", "▼")]
    assert re.search(r'data-value="\+\d+\.\d to \+\d+\.\d"', text)


def test_only_equal_logits_are_no_learning(made) -> None:
    """The same right answers may come from different models; equal logits do not."""
    for logits, expected in (
        (("a1", "b2"), "M has the same accuracy as training alone at every client."),
        (
            ("a1", "a1"),
            "M predicts exactly as training alone does at every client. It learned nothing from the others.",
        ),
    ):
        runs = [eight(made, t, 0.6, answers="d", logits=one) for t, one in zip(("Local", "M"), logits, strict=True)]
        assert said(content_of(runs), "M") == expected


def test_a_diverged_training_comes_before_its_effect(made) -> None:
    """The headline says that training diverged, before whom its last usable models helped."""
    bad = eight(made, "M", 0.7)
    edit(bad, lambda line: {"answered": (), "refused": dict.fromkeys(range(8), "not-finite")})
    found = said(content_of([eight(made, "Local", 0.6), bad]), "M")
    assert found.startswith("Training diverged with M from round 1 on. Its last usable models: 10 points above")
