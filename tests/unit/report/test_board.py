"""The first screen: for whom it paid, in words, figures and marks."""

from __future__ import annotations

import re

import pytest

from fedkin.evaluate import warnings as careful
from fedkin.report import board, charts, dots, page, pictures, wording
from fedkin.report.figures import best_first
from fedkin.report.page_data import PageData
from fedkin.report.result import Scene, block, sentences


def scene(runs: list, reference: str = "Local") -> Scene:
    """The first screen of a comparison."""
    report: PageData = page.several_runs(runs, reference)
    return Scene(report, reference, best_first(report.runs), ())


def said(found: Scene, title: str) -> str:
    first, second = sentences(found, title)
    return " ".join(filter(None, ("".join(text for text, _ in first), second)))


def eight(made, title: str, top: float, gains: dict[int, float] | None = None, seed: int = 0, **more):
    """A run of eight clients with 200 test samples each."""
    return made(title, seed, clients=8, top=top, gains=gains, samples=200, **more)


# ---- words


FEW = {
    "gains": dict.fromkeys(range(7), 0.05) | {7: -0.1},
    "said": "M helped 7 of 8 clients and harmed 1. Over all 8, a mean gain of 3 points could be chance.",
}
ALL = {
    "gains": {i: 0.05 + i / 1000 for i in range(8)},
    "said": "M helped all 8 clients. Over all 8, accuracy rose by 5 points on average.",
}
NONE = {
    "gains": {i: -0.05 - i / 1000 for i in range(8)},
    "said": "No method is above training alone on average. M, the highest, helped none of 8 clients and harmed 8.",
}
SAME = {
    "gains": {},
    "answers": "d",
    "logits": "a1",
    "said": "M ended exactly where training alone ended, for every client. It learned nothing from the others.",
}


@pytest.mark.parametrize("case", [FEW, ALL, NONE, SAME])
def test_the_headline_says_for_whom_then_how_much(made, case) -> None:
    """Helped and harmed as counts, the average over all clients, in whole points; no verdict where it may be chance."""
    known = {name: case[name] for name in ("answers", "logits") if name in case}
    found = scene([eight(made, "Local", 0.6, **known), eight(made, "M", 0.6, case["gains"], **known)])
    assert said(found, "M") == case["said"]


def test_the_headline_of_several_seeds_has_ranges(made) -> None:
    """Two clients are harmed in one seed, one in the other."""
    runs = [eight(made, "Local", 0.6, seed=s) for s in (0, 1)]
    runs += [eight(made, "M", 0.7, dict.fromkeys(range(1 + s), -0.2), seed=s) for s in (0, 1)]
    assert said(scene(runs), "M").startswith("M helped 6 to 7 of 8 clients across 2 seeds and harmed 1 to 2.")


def test_a_diverged_training_comes_before_its_effect(made) -> None:
    """The headline says that training diverged, before whom its last usable models helped."""
    bad = eight(made, "M", 0.7)
    for line in bad.rounds:
        line["answered"], line["refused"] = [], {str(c): "model holds nan" for c in range(8)}
    found = said(scene([eight(made, "Local", 0.6), bad]), "M")
    assert found.startswith("Training diverged with M from round 1 on. Its last usable models helped all 8")


def test_harmed_clients_are_named_where_they_are_at_most_two(made) -> None:
    """The worst first; of three only their number."""
    for count, expected in ((2, "harmed 2 (b and a)."), (3, "harmed 3.")):
        runs = [eight(made, "Local", 0.6), eight(made, "M", 0.7, {i: -0.2 - 0.05 * i for i in range(count)})]
        for run in runs:
            run.summary["clients"] = {"count": 8, "names": list("abcdefgh")}
        assert expected in said(scene(runs), "M")


def test_clients_are_above_or_below_another_method_and_not_helped(made) -> None:
    """Helped and harmed are kept for training alone."""
    found = scene([eight(made, "FedAvg", 0.6), eight(made, "M", 0.7, {0: -0.3})], "FedAvg")
    assert said(found, "M").startswith("M is above FedAvg for 7 of 8 clients and below it for 1.")
    assert "helped" not in block(found, "M")


def test_the_sentence_below_has_the_interval_and_plain_fedavg(made) -> None:
    """Half of the traffic: said where FedAvg is no worse."""
    gains = {i: 0.001 * i for i in range(8)}
    runs = [eight(made, "Local", 0.6), eight(made, "FedAvg", 0.7), eight(made, "M", 0.7, {0: 0.01, 1: -0.01})]
    runs[0] = eight(made, "Local", 0.6, gains)
    for line in runs[2].rounds:
        line["bytes_up"] = 4_000_000
    text = block(scene(runs), "M")
    assert re.search(r"The 95% interval for that average is \+\d+\.\d to \+\d+\.\d points, over these 8 clients", text)
    assert re.search(r"There is no clear difference from plain FedAvg \(0\.0, interval −0\.\d to \+0\.\d\)", text)
    assert "which needs 50% of the traffic." in text
    assert "2.0 × FedAvg (9 MB)" in text


def test_the_four_figures(made) -> None:
    """Mean, counts, the worst client with its name, traffic."""
    runs = [eight(made, "Local", 0.6, {3: -0.08}), eight(made, "M", 0.7, {5: -0.2})]
    text = block(scene(runs), "M")
    figures = re.findall(r'<div class="kpi"><h2>.*?</h2><div class="big">(.*?)</div>', text)
    assert figures == ["67.5%", "7<i>/</i>0<i>/</i>1", "50.0%", "9<small>MB</small>"]
    assert "client 5 · alone, the worst has 52.0% (client 3)" in text
    assert "alone 59.0% · +8.5 points" in text


def test_numbers_in_words() -> None:
    """A true minus sign, whole points but for small ones, ranges, long names cut in their middle."""
    assert [wording.signed(v) for v in (0.062, -0.0041, 0.0004, -0.0)] == ["+6.2", "−0.4", "0.0", "0.0"]
    assert [wording.points(v) for v in (0.064, -0.012, 0.004)] == ["6 points", "1 point", "0.4 points"]
    assert wording.counted([3, 5]) == "3 to 5"
    assert wording.listed(["a", "b", "c"], "or") == "a, b or c"
    assert wording.cut("University Hospital West 2") == "Universit…West 2"
    shown = {name: wording.fitted(name, 8.6) for name in ("IFCA-CAM (Eq. 6)", "Clustered Sampling", "DA-PFL (lam=0.1)")}
    assert list(shown.values()) == ["IFCA-CAM (Eq. 6)", "Clustered…pling", "DA-PFL (l…=0.1)"]
    assert wording.fitted("iiiiiiiiiiiiiiiiiiiiiiiii", 8.6) == "i" * 25
    assert wording.tight("95 % of 3 %") == "95% of 3%"


# ---- caveats


def test_caveats_are_one_line_with_the_methods_they_are_about() -> None:
    """Two to four words each; more than four kinds are counted; equal kinds are said once."""
    found = [careful.Warning("rising", "A, B: Accuracy still rises."), careful.Warning("one seed", "One seed only."),
             careful.Warning("collapse", "A equals Local for every client: check."),
             careful.Warning("small tests", "Small."), careful.Warning("never", "Never."),
             careful.Warning("never", "B: Never.")]  # fmt: skip
    text = board.caveats(found, ["A", "B"])
    assert "<b>6 caveats:</b> A and B still rising · one seed · A equals Local · small test parts · 1 more" in text
    assert text.count("<li>") == 6
    assert board.caveats([], []) == ""


# ---- marks


def test_marks_are_helped_unchanged_or_harmed_within_or_beyond_chance(made) -> None:
    """Of 200 samples 3 points are within chance, 10 are beyond it; 0.04 points are no change."""
    gains = {0: 0.1, 1: 0.03, 2: 0.0004, 3: -0.03, 4: -0.1}
    found = scene([eight(made, "Local", 0.6), eight(made, "M", 0.6, gains)])
    (figure,) = found.report.figures["gains"]
    assert charts.svg(figure.titled).startswith("<svg")
    rows = {r["id"]: (r["kind"], r["chance"]) for r in figure.spec["data"]["values"] if r["part"] == "client"}
    assert [rows[i] for i in range(5)] == [
        ("helped", "beyond"), ("helped", "within"), ("unchanged", "within"), ("harmed", "within"), ("harmed", "beyond"),
    ]  # fmt: skip
    assert figure.fact == "M: 2 helped, 2 harmed, mean 0.0"
    standing = found.standing("M")
    assert standing is not None
    assert (standing.beyond(1), standing.beyond(-1), standing.counts(0)) == (1, 1, [4])


def test_marks_do_not_overlap() -> None:
    """Twenty equal gains in a row of 38 pixels: none is where another is, and all are inside."""
    offsets = dots._dodged([10.0 + 12 * (i // 4) for i in range(20)], 4.9, 9.8)
    places = [(12 * (i // 4), dy) for i, dy in enumerate(offsets)]
    assert len(set(places)) == 20
    assert max(map(abs, offsets)) <= dots.ROW / 2 - 4


def test_many_clients_are_bins(made) -> None:
    """Of 1,000 clients every one is in a bin; harmed ones are below the line, others above it."""
    gains = {i: (i - 200) / 2000 for i in range(1000)}
    runs = [made("Local", top=0.4, clients=1000, rounds=1), made("M", top=0.4, clients=1000, rounds=1, gains=gains)]
    (figure,) = scene(runs).report.figures["gains"]
    rows = [r for r in figure.spec["data"]["values"] if r["part"] == "client"]
    assert sum(row["clients"] for row in rows) == 1000
    assert len(rows) < 60
    assert all((row["dy"] > 0) == (row["kind"] == "harmed") for row in rows)
    assert charts.svg(figure.titled).startswith("<svg")


def test_the_highest_bin_ends_with_the_axis(made) -> None:
    """An accuracy of 100 % is inside the picture."""
    run = made("M", top=0.6, clients=1000, rounds=1, gains=dict.fromkeys(range(500), 0.4))
    (figure,) = scene([run]).report.figures["gains"]
    rows = {r["gain"]: r["clients"] for r in figure.spec["data"]["values"] if r["part"] == "client"}
    assert max(rows) < 100
    assert rows[max(rows)] == 500


def test_without_a_reference_marks_are_accuracies(made) -> None:
    """No verdict, no loss: each client at its accuracy."""
    found = scene([eight(made, "M", 0.7, {0: -0.2})])
    (figure,) = found.report.figures["gains"]
    rows = [r["gain"] for r in figure.spec["data"]["values"] if r["part"] == "client"]
    assert sorted(rows) == [50.0] + [70.0] * 7
    assert said(found, "M") == "M reached 67.5% accuracy on average over 8 clients, 50.0% for the worst tenth of them."
    assert "Verdict" not in board.board(found)


# ---- the table


def test_the_table_shares_the_rows_of_the_chart(made) -> None:
    """In the same order; one-word verdicts with a sign; the interval is text in a saved table."""
    runs = [eight(made, "Local", 0.6), eight(made, "A", 0.7, {i: i / 1000 for i in range(8)})]
    runs += [eight(made, "B", 0.5, {i: i / 1000 for i in range(8)}), eight(made, "C", 0.6, {0: 0.02, 1: -0.02})]
    found = scene(runs)
    text = board.board(found)
    assert re.findall(r'<tr data-method="(.*?)"', text) == ["A", "Local", "C", "B"]
    layer = found.report.figures["gains"][0].spec["layer"][0]
    assert layer["encoding"]["y"]["scale"]["domain"] == ["A", "Local", "C", "B"]
    verdicts = re.findall(r'<td class="hp" data-value="(.*?)"><span class="v \w+"><span aria-hidden="true">(.)<', text)
    assert verdicts == [("better", "▲"), ("reference", "–"), ("unclear", "≈"), ("worse", "▼")]
    assert re.search(r'data-value="\+\d+\.\d to \+\d+\.\d"', text)


def test_pictures_have_a_sentence() -> None:
    """A text alternative for each; of more than forty clients a bar."""
    assert 'aria-label="2 helped"' in pictures.clients([(1, True), (1, False)], "2 helped")
    many = pictures.clients([(1, True)] * 30 + [(-1, True)] * 20, "30 helped, 20 harmed")
    assert many.count("<rect") == 3
    assert 'width="60.00%"' in many
    wide = pictures.interval(-0.01, 0.02, 0.05, (-0.1, 0.1), "unclear")
    assert "95% interval −1.0 to +5.0 points" in wide
