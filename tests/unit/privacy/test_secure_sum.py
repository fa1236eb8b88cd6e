"""Sums of whole numbers in place of single uploads: what the arithmetic promises, and what a round does with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Aggregation, Bundle, ConfigError, MethodError
from fedkin.core.refusals import Reason
from fedkin.core.rows import weighted_mean
from fedkin.core.settings import Settings
from fedkin.methods import FedAvg, FedDyn, FedRep, Oracle, PerFedAvg
from fedkin.privacy.secure_sum import BITS, LIMIT, OutOfRange, SecureGroup, fixed, summed
from fedkin.server import Message, Outcome, Plan
from fedkin.server.requirements import require
from fedkin.testing.trial import Exchange, Setting, Touch, lose, play
from refusals import refuses
from toys import refused

SECURE: dict[str, Any] = {"rounds": 4, "participation": 0.7, "seed": 1, "aggregation": Aggregation(secure=True)}
numbers = st.lists(st.floats(-LIMIT, LIMIT, width=32), min_size=3, max_size=3)


def pools(weights: list[float]) -> dict[int, SecureGroup]:
    members = tuple(range(len(weights)))
    return {i: SecureGroup(members, w, sum(weights)) for i, w in enumerate(weights)}


# ---- the arithmetic -----------------------------------------------------------------------------------------------
@given(st.lists(st.tuples(numbers, st.integers(1, 10**7)), min_size=3, max_size=12))
def test_the_sum_is_the_weighted_mean(told: list[tuple[list[float], int]]) -> None:
    """Off by at most m 2^-35 and one rounding to float32, for any numbers in range and any sizes."""
    rows, weights = torch.tensor([x for x, _ in told]), [float(n) for _, n in told]
    each, single = pools(weights), {i: Bundle(w=row) for i, row in enumerate(rows)}
    good, refused = summed(each, {i: fixed(b, each[i]) for i, b in single.items()}, single[0], 2 * LIMIT)
    assert not refused
    exact = weighted_mean(rows.double(), torch.tensor(weights, dtype=torch.float64))
    allowed = len(rows) * 2.0**-35 + exact.abs() * 2.0**-23 + 1e-7
    assert bool(((good[0].w.double() - exact).abs() <= allowed).all())
    assert all(torch.equal(b.w, good[0].w) for b in good.values())


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=8), st.integers(-(2**60), 2**60))
def test_whatever_is_added_and_taken_away_cancels(masks: list[int], content: int) -> None:
    """Sums wrap at 2^63: masks of any size leave the content, in every order. The ground on which masks work."""
    last = (content - sum(masks) + 2**63) % 2**64 - 2**63
    addends = [*masks, last]
    members = tuple(range(len(addends)))
    for order in (addends, addends[::-1]):
        replies = {i: Bundle(w=torch.tensor([a])) for i, a in enumerate(order)}
        like = Bundle(w=torch.zeros(1, dtype=torch.float64))
        good, _ = summed(dict.fromkeys(members, SecureGroup(members, 1, len(members))), replies, like, 1e30)
        assert float(good[0].w) == content / 2**BITS


def test_the_largest_numbers_do_not_wrap() -> None:
    """A thousand clients at the limit have the limit as their mean."""
    each = pools([1.0] * 1000)
    one = Bundle(w=torch.tensor([LIMIT, -LIMIT], dtype=torch.float64))
    good, refused = summed(each, {i: fixed(one, p) for i, p in each.items()}, one, LIMIT + 1)
    assert not refused
    assert good[0].w.tolist() == pytest.approx([LIMIT, -LIMIT], abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1.01e8])
def test_a_number_that_cannot_be_added_up(bad: float) -> None:
    """It would take the whole pool's sum with it, so the client itself does not send it."""
    with pytest.raises(OutOfRange):
        fixed(Bundle(w=torch.tensor([0.0, bad])), SecureGroup((0, 1, 2), 1.0, 3.0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_only_fractions_are_added_up(dtype: torch.dtype) -> None:
    """Marks and whole numbers are read one by one by whoever sends them: the method's word was wrong."""
    one = Bundle(has=torch.ones(2, dtype=dtype))
    with refuses(MethodError, "'has'"):
        fixed(one, SecureGroup((0, 1, 2), 1.0, 3.0))
    with refuses(MethodError, "'has'"):
        summed(pools([1.0] * 3), {0: one}, one, 1.0)


# ---- the plan -----------------------------------------------------------------------------------------------------
def test_what_contradicts_it() -> None:
    """Rules and oversampling need single uploads; below three there is nothing to hide in."""
    secure = Settings().but(secure=True, participation=0.1)
    require(secure, FedAvg(), clients=30)
    for changes, clients, said in (
        ({"rule": "median"}, 30, "'median'"),
        ({"oversampling": 1.3}, 30, "oversampling = 1.3"),
        ({}, 29, "participation = 0.1 of 29 clients gives 2"),
    ):
        with refuses(ConfigError, said):
            require(secure.but(**changes), FedAvg(), clients=clients)


# ---- rounds -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", [FedAvg(), FedRep(), PerFedAvg(), FedDyn()], ids=lambda m: type(m).__name__)
def test_a_run_ends_as_without_it(method: Any) -> None:
    """Up to the rounding of sums: four rounds of four of six clients, with batch normalisation."""
    plain = play(method, Setting("norm", plan=Plan(**{**SECURE, "aggregation": Aggregation()})))
    summed_up = play(method, Setting("norm", plan=Plan(**SECURE)))
    for name, t in plain.server.state.items():
        torch.testing.assert_close(summed_up.server.state[name], t, rtol=1e-4, atol=1e-5)
    assert [r.answered for r in summed_up.reports] == [r.answered for r in plain.reports]
    assert [r.bytes_up for r in summed_up.reports[1:]] == [2 * r.bytes_up for r in plain.reports[1:]]


@pytest.mark.parametrize("step", ["lost", "refused"])
def test_without_one_upload_the_round_is_abandoned(step: str) -> None:
    """Server and clients are as after the round before; whose upload was missing is said to the others."""
    victim = play(FedRep(), Setting(plan=Plan(**SECURE))).reports[1].answered[0]

    def spoilt(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        answers, missing = pass_on(messages)
        if victim in answers and messages[victim].step == "update" and messages[victim].round == 2:
            answers[victim] = Bundle(body=answers[victim].body[1:])
        return answers, missing

    touch: Touch = lose({2: [victim]}) if step == "lost" else spoilt
    trial = play(FedRep(), Setting(plan=Plan(**SECURE)), touch=touch)
    report, before, after = trial.reports[1], trial.moments[1], trial.moments[2]
    assert report.abandoned
    assert report.answered == []
    others = [one for one in report.refused if one.client != victim]
    assert {(one.code, one.value) for one in others} == {("pool-broken", victim)}
    assert torch.equal(before.server.state.body, after.server.state.body)
    assert all(torch.equal(t, after.states[i][n]) for i, b in before.states.items() for n, t in b.items())
    assert [r.abandoned for r in trial.reports] == [False, True, False, False]


def test_a_sum_that_cannot_be_is_not_used() -> None:
    """Masks that do not cancel leave numbers up to 2^29, of which hardly one in five is below the bound."""
    noise = torch.randint(-(2**63), 2**63 - 1, (73,), generator=torch.Generator().manual_seed(0))

    def touch(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        answers, missing = pass_on(messages)
        if next(iter(messages.values())).round == 2 and next(iter(messages.values())).step == "update":
            first = min(answers)
            answers[first] = Bundle(model=answers[first].model + noise)
        return answers, missing

    trial = play(FedAvg(), Setting(plan=Plan(**SECURE)), touch=touch)
    assert [r.abandoned for r in trial.reports] == [False, True, False, False]
    assert set(refused(trial.reports[1]).values()) == {"pool-numbers"}


def test_groups_are_summed_apart_and_small_ones_sit_out() -> None:
    """Oracle on six clients in two groups of three: with all of them both groups learn, with five one sits out."""
    everyone = play(Oracle(), Setting(plan=Plan(**{**SECURE, "participation": 1.0})))
    assert [r.answered for r in everyone.reports] == [list(range(6))] * 4
    five = play(Oracle(), Setting(plan=Plan(**{**SECURE, "participation": 0.9})))
    for report, before, after in zip(five.reports, five.moments, five.moments[1:], strict=False):
        out = sorted(set(report.cohort) - set(report.answered))
        assert len(report.cohort) == 5
        assert len(report.answered) == 3
        assert {i % 2 for i in out} == {1 - report.answered[0] % 2}
        assert report.refused == tuple(Reason("left-out", value=2, expected="3").at("update", i) for i in out)
        if before.server.round:
            stays = before.server.state.groups.tolist().index(out[0] % 2)
            assert torch.equal(before.server.state.models[stays], after.server.state.models[stays])


def test_a_client_whose_numbers_cannot_be_added_up_says_so() -> None:
    """A diverged training: the reason is in the line, its state is not taken, the round is abandoned."""

    def touch(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        far = {i: replace(m, body=Bundle(model=m.body.model * 1e9)) for i, m in messages.items() if m.round == 2}
        return pass_on({**messages, **far} if next(iter(messages.values())).step == "update" else messages)

    trial = play(FedAvg(), Setting(plan=Plan(**SECURE)), touch=touch)
    assert trial.reports[1].abandoned
    assert set(refused(trial.reports[1]).values()) == {"not-summable"}
