"""The round loop: what is sent and counted, what is refused, when clients are evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.capabilities import Grouped, PrivateSums
from fedkin.core import (
    Aggregation,
    Bundle,
    ClientData,
    ConfigError,
    Download,
    Method,
    MethodError,
    Round,
    Training,
    to_all,
    to_each,
)
from fedkin.core.refusals import outside
from fedkin.core.settings import Settings
from fedkin.methods import CAM, CFIC, DAPFL, IFCA, METHODS, PFA, FedAvg, FedPer, FedSoft, FeSEM, get_method
from fedkin.server import Message, Outcome, Plan, RoundReport, begin, join_rounds, rounds
from fedkin.server.requirements import require
from fedkin.server.rounds import chosen
from fedkin.testing.toys import network, samples
from fedkin.testing.trial import Exchange, Setting, Touch, lose, play
from refusals import refuses
from toys import method, refused

P = network("mlp").size  # 73 numbers of four bytes


def reports(method: Method, touch: Touch | None = None, **changes: Any) -> list[RoundReport]:
    plan = {"rounds": 3, "participation": 0.7, **changes.pop("plan", {})}
    return play(method, Setting(plan=Plan(**plan), **changes), touch=touch).reports


def variant(**steps: Any) -> Method:
    """FedAvg with other steps."""
    body = {n: FedAvg.__dict__[n] for n in ("init", "distribute", "client_update", "aggregate")}
    made: Method = type("Variant", (Method,), {**body, "after_training": False, **steps})()
    return made


def replies(client: int, change: Any) -> Touch:
    """One client's upload is changed on its way."""

    def touch(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        answers, missing = pass_on(messages)
        if client in answers:
            answers[client] = change(answers[client])
        return answers, missing

    return touch


# ---- the plan -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("replies", "method", "clients", "more", "facts"),
    [
        (4, FedAvg(), 3, {}, ("min_replies = 4", "asks 3 of 3 clients")),
        (3, FedAvg(), 3, {}, ()),
        (4, FedAvg(), None, {}, ()),  # on hosts, whose number is not known
        (5, FedAvg(), 10, {"participation": 0.3}, ("min_replies = 5", "asks 3 of 10 clients")),
        (5, FedAvg(), 10, {"participation": 0.3, "oversampling": 1.3}, ("a round asks 4 of 10",)),
        (4, FedAvg(), 10, {"participation": 0.3, "oversampling": 1.3}, ()),
        (5, FedSoft(), 10, {"participation": 0.3}, ()),  # chooses clients itself
    ],
)
def test_more_replies_than_a_round_can_have_are_refused(
    replies: int, method: Method, clients: Any, more: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """All rounds would be computed, and abandoned."""
    with refuses(ConfigError, *facts) if facts else nullcontext():
        require(Settings().but(min_replies=replies, **more), method, clients=clients)


def test_clients_are_evaluated_every_so_many_rounds_and_in_the_last_ten() -> None:
    """The final figure is a mean over the last ten rounds, so these are always evaluated."""
    plan = Plan(rounds=25, eval_every=7)
    assert [t for t in range(1, 26) if plan.evaluates(t)] == [7, 14, *range(16, 26)]
    assert [t for t in range(1, 5) if Plan(rounds=4, eval_every=100).evaluates(t)] == [1, 2, 3, 4]


@pytest.mark.parametrize(("participation", "size"), [(1.0, 6), (0.7, 4), (0.5, 3), (1 / 3, 2), (0.1, 1), (0.01, 1)])
def test_cohorts_have_the_share_asked_for_and_at_least_one(participation: float, size: int) -> None:
    """Rounded down, except for what is a whole number up to rounding (a third of six is two)."""
    for r in reports(FedAvg(), plan={"participation": participation}):
        assert len(r.cohort) == len(set(r.cohort)) == size
        assert r.cohort == sorted(r.cohort)


def test_cohorts_are_the_same_for_every_method_of_a_seed() -> None:
    """Methods are compared on the same schedule; another seed has another."""
    plan = {"rounds": 4, "participation": 0.5}
    schedule = [[r.cohort for r in reports(m, plan=plan)] for m in (FedAvg(), FedPer(), IFCA(), DAPFL())]
    assert all(s == schedule[0] for s in schedule)
    assert [r.cohort for r in reports(FedAvg(), plan={**plan, "seed": 5})] != schedule[0]


# ---- bytes --------------------------------------------------------------------------------------------------------
def test_bytes_are_those_of_the_numbers_sent() -> None:
    """A model down and one up for four clients, six sizes in round 1; evaluations are counted apart."""
    first, *rest = reports(FedAvg())
    assert first.bytes_down == 4 * 4 * P
    assert first.bytes_up == 4 * 4 * P + 6 * 8
    assert {(r.bytes_down, r.bytes_up) for r in rest} == {(16 * P, 16 * P)}
    plan = {"rounds": 14, "eval_every": 2}
    found = reports(FedAvg(), plan=plan)
    assert [r.bytes_evaluation for r in found[:4]] == [0, 6 * 4 * P, 0, 6 * 4 * P]
    assert {r.bytes_down for r in found} == {4 * 4 * P}
    assert {r.bytes_evaluation for r in reports(DAPFL(), plan=plan)} == {0}


def test_bytes_of_joining_and_of_lost_answers() -> None:
    """Counts of newcomers; lost answers are not counted up, refused ones are."""
    found = reports(DAPFL(), joins=join_rounds(6, "2@3"))
    up = [r.bytes_up - len(r.answered) * 4 * P for r in found]
    assert up == [4 * 32, 0, 2 * 32]
    assert [r.joined for r in found] == [[0, 1, 2, 3], [], [4, 5]]
    cohort = reports(FedAvg())[1].cohort
    lost = reports(FedAvg(), lose({2: cohort[:1]}))[1]
    bad = reports(FedAvg(), replies(cohort[0], lambda b: b.but(model=b.model / 0)))[1]
    assert (lost.bytes_down, lost.bytes_up) == (16 * P, 12 * P)
    assert (bad.bytes_down, bad.bytes_up) == (16 * P, 16 * P)


def test_rows_are_counted_for_those_who_get_them() -> None:
    """A row that only some are given costs only theirs; what is for all costs each of them."""

    def distribute(self: Method, s: Bundle, r: Round) -> Download:
        given = torch.arange(len(r.ids)) < 1
        return to_all(model=s.model) | to_each(given=given, extra=torch.zeros(len(r.ids), 10))

    found = reports(variant(distribute=distribute))
    assert [r.bytes_down for r in found] == [4 * 4 * P + 40] * 3


# ---- refusals -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda b: Bundle(), "names"),
        (lambda b: b.but(n=torch.tensor(5)), "names"),
        (lambda b: b.but(model=b.model[:-1]), "shape"),
        (lambda b: b.but(model=b.model[None]), "shape"),
        (lambda b: b.but(model=b.model.double()), "shape"),
        (lambda b: b.but(model=b.model * float("nan")), "not-finite"),
        (lambda b: b.but(model=b.model - 1e30), "too-large"),
        (lambda b: b.but(model=b.model * 1e4), "outlier"),
        (lambda b: b.but(model=b.model * 0 - 1e4), "outlier"),
    ],
    ids=["empty", "a name more", "shape", "dimension", "type", "nan", "1e30", "ten thousandfold", "1e4"],
)
def test_a_bad_upload_is_refused_for_that_client_alone(change: Any, code: str) -> None:
    """The round goes on with the others as if this answer had been lost, and the report says why."""
    victim = reports(FedAvg())[0].cohort[1]
    touched = play(FedAvg(), Setting(plan=Plan(2, 0.7)), touch=replies(victim, change))
    plain = play(FedAvg(), Setting(plan=Plan(2, 0.7)), touch=lose({1: [victim], 2: [victim]}))
    for r in touched.reports:
        if victim in r.cohort:
            assert [(one.client, one.stage, one.code) for one in r.refused] == [(victim, "update", code)]
        assert victim not in r.answered
    assert torch.equal(touched.server.state.model, plain.server.state.model)


@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold", "fedproto", "fedpac", "fedfa", "feddbe"])
def test_clients_with_other_data_are_not_refused(name: str) -> None:
    """One has a hundred times as many samples as each other, and its update is fifty times as long as it would be."""
    sizes = (5, 5, 500, 5, 5)
    shards = tuple(
        ClientData(*(samples(0, i, part, k) for part, k in (("train", n), ("validation", 3), ("test", 4))))
        for i, n in enumerate(sizes)
    )

    def longer(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        answers, missing = pass_on(messages)
        if 2 in answers and messages[2].step == "update":
            answers[2] = Bundle({n: _longer(t, messages[2].body.get(n)) for n, t in answers[2].items()})
        return answers, missing

    for touch in (None, longer):
        found = play(get_method(name), Setting(plan=Plan(2), shards=shards), touch=touch).reports
        assert not any(report.refused for report in found)


def _longer(t: Tensor, sent: Tensor | None) -> Tensor:
    if not t.is_floating_point() or t.dim() == 0:
        return t
    return t + 49 * (t - sent) if sent is not None else 50 * t


@pytest.mark.parametrize("secure", [False, True])
def test_numbers_that_the_server_spoilt_are_said_to_be_its_own(secure: bool) -> None:
    """A mean that `aggregate` divides by 0: uploads of the next round are refused, which no learning rate mends; with
    secure aggregation clients keep theirs back."""

    def aggregate(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=r.mean(up.model) / 0, step=torch.tensor(r.index))

    method = variant(aggregate=aggregate, can=(PrivateSums(),))
    plan = Plan(2, 0.7, aggregation=Aggregation(secure=secure))
    first, second = play(method, Setting(plan=plan)).reports
    assert len(first.answered) == 4
    assert [one.client for one in second.refused] == second.cohort
    assert {(one.code, one.tensor) for one in second.refused} == {("sent-not-finite", "model")}
    assert not first.refused


def test_a_round_in_which_all_are_refused_changes_nothing() -> None:
    """`aggregate` is not called, nobody is acknowledged, the next round starts from the same state."""
    trial = play(FedAvg(), Setting(plan=Plan(2, bound=1e-3)))
    assert torch.equal(trial.server.state.model, network("mlp").w0)
    assert trial.server.acks.tolist() == [0] * 6
    assert trial.server.round == 2


def test_uploads_come_to_aggregate_in_ascending_order() -> None:
    """Row i came from r.ids[i], whatever the order in which answers arrived."""
    seen: list[tuple[list[int], Tensor]] = []

    def aggregate(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
        seen.append((r.ids.tolist(), up.model[:, 0]))
        return s

    def backwards(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        answers, missing = pass_on(messages)
        return {i: answers[i] for i in sorted(answers, reverse=True)}, missing

    method = variant(aggregate=aggregate)
    trial = play(method, Setting(plan=Plan(1, 0.7)), touch=backwards)
    ids, first = seen[0]
    assert ids == sorted(ids) == trial.reports[0].answered
    assert first.tolist() == [float(trial.uploads[0][i].model[0]) for i in ids]


# ---- a method that breaks its contract ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"sample": lambda self, s, r: torch.tensor([0, 6])}, "sample of Variant gave [0, 6], which must be distinc"),
        ({"sample": lambda self, s, r: torch.tensor([2, 2])}, "sample of Variant gave [2, 2]"),
        ({"sample": lambda self, s, r: torch.tensor([-1])}, "out of [0, 1, 2, 3, 4, 5"),
        ({"distribute": lambda self, s, r: to_each(model=s.model[None])}, "'model' has 1 rows for 4 clients"),
        ({"deliver": lambda self, s, r: to_each(model=s.model.repeat(7, 1))}, "'model' has 7 rows for 6 clients"),
        ({"init": lambda self, r: None}, "Variant.init must return a Bundle, got NoneType (is `return` missing"),
        ({"admit": lambda self, s, r: {}}, "Variant.admit must return a Bundle, got dict"),
        ({"distribute": lambda self, s, r: None}, "distribute must return what to_all or to_each gives, got NoneType"),
        ({"distribute": lambda self, s, r: s}, "distribute must return what to_all or to_each gives, got Bundle"),
        ({"deliver": lambda self, s, r: None}, "deliver must return what to_all or to_each gives, got NoneType"),
        ({"aggregate": lambda self, s, r, up: None}, "aggregate must return a Bundle, got NoneType (is `return` miss"),
    ],
    ids=[
        *("not there", "twice", "negative", "too few rows", "too many rows"),
        *("no state", "no bundle", "nothing for anybody", "state for all", "nothing to predict with", "no new state"),
    ],
)
def test_the_server_side_of_a_method_is_checked(steps: dict[str, Any], message: str) -> None:
    """Sampled clients must be there and distinct; there is one row for each receiver."""
    with refuses(MethodError, message):
        reports(variant(**steps))


# ---- nobody there -------------------------------------------------------------------------------------------------
class Nobody:
    """A transport to which nobody has come yet."""

    def available(self, round: int) -> list[int]:
        return []

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        return {}

    def exchange(self, messages: Mapping[int, Message], enough: int | None = None) -> Outcome:
        assert not messages
        return {}, {}


@pytest.mark.parametrize("name", METHODS)
def test_rounds_pass_while_nobody_is_there(name: str) -> None:
    """Every method waits with its state unchanged until the first client comes."""
    net, plan = network("mlp"), Plan(rounds=2)
    method = METHODS[name]()
    server = begin(method, net, plan)
    before = server.state.owned()
    for r in rounds(method, net, Training(), Nobody(), plan, server):
        assert (r.cohort, r.answered, r.joined, r.evaluation) == ([], [], [], {})
        assert (r.bytes_down, r.bytes_up) == (0, 0)
    assert server.round == 2
    assert all(torch.equal(server.state[n], t) for n, t in before.items())


# ---- reports ------------------------------------------------------------------------------------------------------
def test_missing_answers_are_told_and_few_abandon_the_round() -> None:
    """The server acknowledges the others only; with too few nothing changes."""
    cohort = reports(FedAvg())[1].cohort
    trial = play(FedAvg(), Setting(plan=Plan(3, 0.7)), touch=lose({2: cohort[:2]}))
    assert refused(trial.reports[1]) == dict.fromkeys(cohort[:2], "gone")
    assert trial.reports[1].answered == cohort[2:]
    assert all(int(trial.moments[2].server.acks[i]) != 2 for i in cohort[:2])
    assert all(int(trial.moments[2].server.acks[i]) == 2 for i in cohort[2:])
    cohort = reports(FedAvg())[1].cohort
    trial = play(FedAvg(), Setting(plan=Plan(3, 0.7, min_replies=3)), touch=lose({2: cohort[:2]}))
    assert [r.abandoned for r in trial.reports] == [False, True, False]
    before, after = trial.moments[1].server, trial.moments[2].server
    assert torch.equal(before.state.model, after.state.model)
    assert torch.equal(before.acks, after.acks)
    assert not torch.equal(after.state.model, trial.moments[3].server.state.model)


def test_over_selection_takes_those_who_answer_first() -> None:
    """Four of six are needed: all six are asked and four are used, not always the same; with drop-outs there are more
    often four than without asking more."""
    several = reports(FedAvg(), plan={"rounds": 8, "oversampling": 1.5})
    assert all(len(r.cohort) == 6 and len(r.answered) == 4 for r in several)
    assert set(refused(several[0]).values()) == {"passed-over"}
    assert len({tuple(r.answered) for r in several}) > 1
    plain, more = (reports(FedAvg(), plan={"rounds": 20, "oversampling": over}, dropout=0.3) for over in (1.0, 1.5))
    full = [sum(len(r.answered) == 4 for r in found) for found in (plain, more)]
    assert full[0] < full[1]


def test_clusters_are_those_that_the_server_used() -> None:
    """IFCA, four of six in a round, evaluated in every one: a client's cluster changes in rounds that it answered only,
    and before its first answer none is known; what all six choose at evaluations stands apart."""
    found = reports(IFCA(clusters=2), plan={"rounds": 6})
    before, never = [-1] * 6, set(range(6))
    for r in found:
        assert r.clusters is not None
        now, never = r.clusters.tolist(), never - set(r.answered)
        assert {i for i in range(6) if now[i] != before[i]} <= set(r.answered)
        assert {i for i in range(6) if now[i] < 0} == never
        assert all(int(r.evaluation[i].cluster) in (0, 1) for i in range(6))
        before = now
    assert len(found[0].answered) == 4
    assert chosen(found[0].evaluation, 7).tolist() == [int(found[0].evaluation[i].cluster) for i in range(6)] + [-1]
    assert chosen(reports(FedAvg())[0].evaluation, 6) is None


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (IFCA(clusters=8), 8),
        (FeSEM(clusters=8), 8),
        (PFA(clusters=8), 8),
        (FedSoft(clusters=8), 8),
        (CAM(IFCA(clusters=8), warmup=1), 8),
        (CFIC(), 4),  # three labels, and clients whose labels are all alike
        (FedAvg(), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else str(value),
)
def test_empty_clusters_are_counted(method: Method, count: int) -> None:
    """Eight clusters for six clients: eight in every round, whoever is in which; methods without clusters have none."""
    assert {r.cluster_count for r in reports(method)} == {count}


def test_a_cluster_beyond_the_last_is_the_methods_fault() -> None:
    """A client in cluster 4 of 4 is named; without a count there are as many as labels need."""
    labels = lambda self, s, r: torch.full((len(r.roster),), 4)  # noqa: E731
    assert {r.cluster_count for r in reports(method(can=(Grouped(labels),)))} == {5}
    wrong = method(can=(Grouped(labels, lambda self, s, r: 4),))
    with refuses(MethodError, "a client into cluster 4; its count of clusters says that there are 4, 0 to 3"):
        reports(wrong)


@pytest.mark.parametrize("bad", [999, -1])
def test_an_index_out_of_range_is_refused_for_its_client(bad: int) -> None:
    """A cluster number that does not exist is refused and named; the others' uploads are used, the round goes on."""
    found = reports(IFCA(clusters=2), replies(0, lambda up: up.but(cluster=torch.tensor(bad))))

    touched = [r for r in found if 0 in r.cohort]
    assert touched
    for r in touched:
        assert r.refused == (outside("cluster", bad, 0, 1).at("update", 0),)
        assert r.answered == [i for i in r.cohort if i != 0]
