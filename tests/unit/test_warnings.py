"""What a careful colleague would say: each warning on a case made for it, and silence where there is nothing to say."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.evaluate import Changed, against
from fedkin.evaluate import warnings as careful
from fedkin.record.lines import ClientLine
from madeup import answers, round_line, rounds


def kinds(found: list[careful.Warning]) -> list[str]:
    return [w.kind for w in found]


@pytest.mark.parametrize(("gained", "lost", "said"), [(2, 0, True), (5, 0, True), (6, 0, False), (20, 14, True)])
def test_test_parts_too_small_for_the_gains(gained: int, lost: int, said: bool) -> None:
    """Of both clients: exact p-values .5, .06, .03 and .39; losses are judged as gains are."""
    for side in (1, -1):
        net = side * np.repeat([1, -1, 0], [gained, lost, 10]).astype(np.int8)
        found = careful.small_tests({0: 20, 1: 21}, {0: Changed(net, "a"), 1: Changed(-net, "b")})
        assert kinds(found) == (["small tests"] if said else [])


@pytest.mark.parametrize(
    ("accuracy", "majority", "said"),
    [(0.7, 0.71, True), (0.71, 0.71, True), (0.72, 0.71, False), (None, 0.7, False), (0.7, None, False)],
)
def test_a_method_no_better_than_a_constant_answer(accuracy: float | None, majority: float | None, said: bool) -> None:
    """Only where both are known; as good is not better."""
    found = careful.constant(accuracy, majority)
    other = careful.constant(accuracy, majority, "balanced accuracy")
    assert [w.text.startswith("Balanced accuracy is 7") for w in other] == [True] * len(found)
    assert kinds(found) == (["constant"] if said else [])
    assert all("71.0 %" in w.text for w in found)


def test_clients_that_never_took_part_or_were_refused() -> None:
    """Client 2 is nowhere, 1 is refused in one of two rounds, round 2 is abandoned; only uploads that are refused
    count."""
    both = [round_line(1, answered=(0, 1)), round_line(2, answered=(0,), refused={1: "not-finite"}, abandoned=True)]
    never, refused, lost = careful.participation(both, 3, ("a", "b", "c"))
    assert "no training: client c." in never.text
    assert "client b " in refused.text
    assert lost.text == "1 of 2 rounds was abandoned for too few answers (the first is 2)."
    assert careful.participation(both[:1], 2) == []
    assert careful.participation([], 3) == []
    kinds_of = (("evaluate", "not-finite"), ("query", "not-finite"), ("update", "pool-broken"))
    lines = [
        round_line(r, answered=(0, 1), refused={1: code}, stage=stage) for r, (stage, code) in enumerate(kinds_of, 1)
    ]
    assert careful.participation(lines, 2) == []
    lines.append(round_line(4, answered=(0,), refused={1: "not-finite"}))
    assert kinds(careful.participation(lines, 2)) == ["refused"]


def test_cohorts_that_are_smaller_than_participation_asks_for() -> None:
    """Ten clients, half of them asked for: cohorts of 3 and 5 are 4 of 5 on average. An eleventh joins in round 3 and
    eight are absent: no more than the three that are left can be drawn."""
    lines = [round_line(1, joined=tuple(range(10)), cohort=(0, 1, 2)), round_line(2, cohort=(0, 1, 2, 3, 4))]
    (found,) = careful.cohorts(lines, 0.5)
    assert found.kind == "smaller cohorts"
    assert found.text.startswith("On average 4.0 different clients trained in a round, where participation asks for 5")
    assert careful.cohorts(lines, 0.4) == []
    assert careful.cohorts(lines[1:], 0.5) == []
    few = round_line(3, joined=(10,), absent=tuple(range(8)), cohort=(8, 9, 10))
    whole = round_line(1, joined=tuple(range(10)), cohort=(5, 6, 7, 8, 9))
    assert careful.cohorts([whole, few], 0.5) == []
    assert careful.cohorts([], 0.5) == []


def test_a_run_that_ended_early_or_rises_still() -> None:
    """Two points more in the last fifth; a drift that is planned for later rounds."""
    assert kinds(careful.course(rounds(*[0.5] * 6, 0.50, 0.50, 0.52, 0.52))) == ["rising"]
    (found,) = careful.course(rounds(*[0.5] * 6, 0.50, 0.50, 0.52, 0.52), ended_early=True)
    assert found.text.endswith("end later, with a larger stop_after.")
    assert careful.course(rounds(*[0.1 * i for i in range(6)], 0.7, 0.7, 0.7, 0.7)) == []
    assert careful.course(rounds(0.1, 0.5, 0.9)) == []
    (found,) = careful.drift(rounds(0.1, 0.2, 0.3), 4)
    assert found.text == "No client's data drifted: the drift is planned for round 4, and the run ended with round 3."
    assert careful.drift(rounds(0.1, 0.2, 0.3, 0.4), 4) == []
    assert careful.drift(rounds(0.1), None) == []
    assert careful.drift([], 4) == []


def test_a_run_that_went_wrong() -> None:
    """Diverged, with the first round; one cluster for more than 90 % of the clients."""
    (found,) = careful.course([round_line(2, evaluated=False, refused={3: "not-finite"})])
    assert found.text.startswith("Training diverged from round 2 on: ")
    assert "--lr" in found.text
    assert careful.course([round_line(2, refused={3: "shape"})]) == []
    (found,) = careful.clusters([4] * 19 + [1])
    assert found.text.startswith("Cluster 4 holds 19 of 20 clients")
    assert careful.clusters([4] * 18 + [1, 1]) == []
    assert kinds(careful.clusters([0, 0, 0, -1, -1])) == ["one cluster"]
    assert careful.clusters([0, 0]) == []
    assert careful.clusters([]) == []


@pytest.mark.parametrize("bits", [0b00000000, 0b11110000, 0b11111111])
def test_equal_answers_are_no_collapse_where_logits_differ_or_are_not_known(bits: int) -> None:
    """None, half or all of the samples are right under both: only equal logits of every client are a collapse."""

    def clients(*logits: str) -> dict[int, ClientLine]:
        return {i: answers(bytes([bits]), 8, f"samples of {i}", one) for i, one in enumerate(logits)}

    def said(first: dict[int, ClientLine], second: dict[int, ClientLine]) -> list[str]:
        accuracy = {0: 0.5, 1: 1.0}
        return kinds(careful.collapsed(against(accuracy, accuracy, answers=(first, second)), "alone", safe=False))

    one = clients("aa", "bb")
    assert said(one, one) == ["collapse"]
    assert said(one, clients("aa", "cc")) == said(one, clients("aa")) == said(one, {}) == []
    assert said(clients("", ""), clients("", "")) == said(clients("aa", ""), clients("aa", "")) == []
    elsewhere = {i: answers(one[i].right, 8, "other samples", one[i].logits) for i in one}
    assert said(one, elsewhere) == []


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ([0.8, 0.69, 0.8], True),
        ([0.3, 0.8, None], True),
        ([0.8, 0.71, 0.75], False),
        ([0.8, None], False),
        ([0.8], False),
        ([None], False),
        ([], False),
    ],
)
def test_a_seed_that_lies_far_from_the_others(accuracies: list[float | None], said: bool) -> None:
    """More than ten points between two seeds; seeds without a figure do not count."""
    assert kinds(careful.unsteady(accuracies)) == (["unsteady"] if said else [])
