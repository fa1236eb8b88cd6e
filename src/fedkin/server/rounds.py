"""The round loop, written once: for the simulator and for real hosts, over a small transport."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, has
from fedkin.capabilities.asks import Before, asks
from fedkin.capabilities.groups import labels_of
from fedkin.capabilities.logs import numbers_of
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.uploads import unusable
from fedkin.capabilities.views import client_notes
from fedkin.core import (
    Bundle,
    Download,
    Method,
    MethodError,
    Net,
    Roster,
    Round,
    Training,
    stack,
    to_all,
)
from fedkin.core.bundle import not_finite, refusals
from fedkin.engines.tasks import Step, outcomes_due
from fedkin.privacy.secure_sum import MOST, OUT_OF_RANGE, SecureGroup, pooled, summed
from fedkin.server.plan import Plan
from fedkin.server.shares import limited
from fedkin.server.upload_checks import ScoreForm, bundled, false_scores, handed_out, probe, scored, too_large

_ASKED: dict[Before, str] = {"round": "survey", "evaluation": "evaluation: asked before it"}
_TOGETHER = 128  # clients evaluated in one exchange: bounds the memory that their downloads take


@dataclass(frozen=True)
class Message:
    """Message of the server to one client.

    Attributes:
        step: the requested step.
        round: the round.
        seq: number of this message; the same number again requests the same answer again.
        ack: the number of this client's last upload that was aggregated.
        body: what ``distribute`` returned for the client.
        pool: with secure aggregation, the clients whose uploads are added up with the answer, which then has
            fixed-point numbers (`fedkin.privacy.secure_sum.fixed`).
    """

    step: Step
    round: int
    seq: int
    ack: int
    body: Bundle
    pool: SecureGroup | None = None


class Transport(Protocol):
    """Connection of the server to clients, which are numbered in the order in which they joined."""

    def available(self, round: int) -> list[int]:
        """Return the clients that can take part in this round."""

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        """Return the descriptions (at least ``size``) of clients that join, by number from ``known`` on."""

    def exchange(
        self, messages: Mapping[int, Message], enough: int | None = None
    ) -> tuple[dict[int, Bundle], dict[int, str]]:
        """Return answers, and why other clients sent none; no more are waited for after ``enough`` of them."""


@dataclass
class Server:
    """The server between two rounds: all that a checkpoint holds of it."""

    state: Bundle
    round: int = 0
    sizes: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    described: Bundle = field(default_factory=Bundle)
    acks: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @property
    def roster(self) -> Roster:
        """The clients that have joined: their sizes and what they described."""
        return Roster(self.sizes, self.described)


@dataclass(frozen=True)
class RoundReport:
    """Report of one round.

    Attributes:
        cohort, answered: ids of the sampled clients, and of those whose uploads were used.
        refused: why an upload was not used, by id; missing: why an answer did not arrive.
        abandoned: fewer answers than the plan requires, so the state is that of the round before.
        bytes_down, bytes_up: bytes that had to travel for training, joining and surveys included: see
            `Bundle.travelling`.
        joined: ids of the clients that joined in this round.
        absent: ids of clients that have joined and could not be reached, so they were not sampled.
        weights: ``[m, K]``, weights of all clients in the download of each sampled one; or None.
        clusters: int64 ``[K]``, the cluster of every client that the server used when the client last took part, -1
            where none is known; or None.
        notes: numbers of the method about its state.
        evaluation: result of the evaluation by client; empty if the round was not evaluated.
        seconds: wall time of the whole round and of its parts.
        cluster_count: number of clusters, including empty ones.
        bytes_evaluation: bytes that had to travel for the evaluation alone, in no other figure: to clients, and what
            they answered before it (`fedkin.capabilities.Asks`).
        unevaluated: why an evaluation, or the answer to a question before it, did not arrive, by id.
        limited: claimed and used number of samples of clients that claimed too large a share, by id.
    """

    round: int
    cohort: list[int]
    answered: list[int]
    abandoned: bool
    joined: list[int]
    absent: list[int]
    refused: dict[int, str]
    missing: dict[int, str]
    bytes_down: int
    bytes_up: int
    weights: Tensor | None
    clusters: Tensor | None
    notes: dict[str, float]
    evaluation: dict[int, Bundle]
    seconds: dict[str, float]
    cluster_count: int = 0
    bytes_evaluation: int = 0
    unevaluated: dict[int, str] = field(default_factory=dict)
    limited: dict[int, tuple[int, int]] = field(default_factory=dict)


def begin(method: Method, net: Net, plan: Plan) -> Server:
    """Return the server before the first round.

    Raises:
        ConfigError: the plan requires something that the method's server cannot do.
    """
    plan.require(method)
    return Server(bundled(method, "init", method.init(_round(method, net, plan, Server(Bundle()), 0, "init", []))))


def rounds(
    method: Method, net: Net, training: Training, transport: Transport, plan: Plan, server: Server
) -> Iterator[RoundReport]:
    """Execute the remaining rounds, changing ``server``; yield a report after each, when the server is consistent.

    Raises:
        MethodError: the method broke its contract on the server side.
    """
    while server.round < plan.rounds:
        yield _one(method, net, training, transport, plan, server)


def _one(method: Method, net: Net, training: Training, transport: Transport, plan: Plan, server: Server) -> RoundReport:
    started, t = time.perf_counter(), server.round + 1
    joined, said = _admit(method, net, transport, plan, server, t)
    here = transport.available(t)
    survey = _query(
        method, training, transport, plan, server, "round", _round(method, net, plan, server, t, "survey", here)
    )
    r = _weighed(_sampled(method, server.state, _round(method, net, plan, server, t, "sample", here)), plan)
    cohort, pools, out = r.ids.tolist(), dict[int, SecureGroup](), dict[int, str]()
    if plan.aggregation.secure and cohort:
        most = max(MOST, plan.max_share)  # 1 in a simulation, where nothing is hidden and no weight is lowered
        r, pools, out = pooled(method, server.state, r, limit=lambda weights: limited(weights, most))
    download = handed_out(method, "distribute", method.distribute(server.state, r)) if len(r.ids) else to_all()
    messages = _messages("update", download, r, server, pools)
    _require_alike(method, messages)
    sent = time.perf_counter()
    # oversampling does not apply to a method that samples more clients than planned: it waits for all of them
    meant = plan.oversampling > 1 and len(cohort) <= r.cohort
    enough = plan.cohort(len(server.sizes)) if meant else None
    replies, missing = transport.exchange(messages, enough)
    received = time.perf_counter()
    good, refused = _checked(method, training, plan, r, messages, replies)
    refused |= _as_sent(refused, messages)
    missing |= _as_sent({i: why for i, why in missing.items() if why == OUT_OF_RANGE}, messages)
    abandoned, less = len(good) < plan.min_replies, dict[int, tuple[int, int]]()
    if not abandoned:
        ids = torch.tensor(list(good))
        merging = r.among(ids).but(step="aggregate")
        merging = (
            merging if plan.aggregation.secure else _weighed(merging, plan)
        )  # sums were weighed by the clients already
        less = {} if plan.weighting == "uniform" else _lowered(server, merging)  # then no mean is by samples
        merged_state = method.aggregate(server.state, merging, stack(good))
        server.state = bundled(method, "aggregate", merged_state)
        server.acks = server.acks.clone()
        server.acks[ids] = t
    server.round = t
    merged = time.perf_counter()
    everyone = _round(method, net, plan, server, t, "evaluate", here)
    shown = _Shown()
    if plan.evaluates(t):
        before = _query(method, training, transport, plan, server, "evaluation", everyone)
        shown = _evaluated(method, training, transport, plan, server, everyone, before)
    ended = time.perf_counter()
    clusters, count = _grouped(method, server, everyone)
    return RoundReport(
        round=t,
        cohort=cohort,
        answered=list(good),
        abandoned=abandoned,
        joined=joined,
        absent=sorted(set(range(len(server.sizes))).difference(here)),
        refused=shown.false | survey.refused | refused,
        missing=survey.missing | out | missing,
        bytes_down=_travelling(messages, survey.sent) + survey.bytes_down,
        bytes_up=sum(b.travelling() for b in replies.values()) + said + survey.bytes_up,
        weights=download.weights,
        clusters=clusters,
        notes=numbers_of(method, server.state),
        evaluation=shown.found,
        seconds={
            "round": merged - started,
            "server": (sent - started - survey.seconds) + (merged - received),
            "exchange": received - sent + survey.seconds,
            "evaluation": ended - merged,
        },
        cluster_count=count,
        bytes_evaluation=shown.bytes_down,
        unevaluated=shown.missing,
        limited=less,
    )


def _checked(
    method: Method,
    training: Training,
    plan: Plan,
    r: Round,
    messages: Mapping[int, Message],
    replies: Mapping[int, Bundle],
) -> tuple[dict[int, Bundle], dict[int, str]]:
    """Return the uploads that can be used (with secure aggregation the means of their pools), and why others cannot."""
    if not replies:
        return {}, {}
    schema = probe(method, r.net, training, messages[min(replies)].body)
    if plan.aggregation.secure:
        pools = {i: m.pool for i, m in messages.items() if m.pool is not None}
        return summed(pools, replies, schema, plan.bound)
    unfit = refusals(replies, schema, plan.bound)
    unfit |= too_large({i: up for i, up in replies.items() if i not in unfit}, {i: m.body for i, m in messages.items()})
    why = {i: unfit.get(i) or unusable(method, r, up) for i, up in replies.items()}
    refused = {i: reason for i, reason in why.items() if reason}
    return {i: replies[i] for i in sorted(replies) if i not in refused}, refused


def _as_sent(reasons: Mapping[int, str], messages: Mapping[int, Message]) -> dict[int, str]:
    """Return the reasons of clients that were sent numbers that are not finite, with the names of their tensors.

    Uploads that are used are finite, so steps of the method on the server have made such numbers: training did not
    diverge. `fedkin.evaluate.divergence` finds the text.
    """
    sent = {i: not_finite(messages[i].body) for i in reasons if i in messages}
    return {
        i: f"{reasons[i]}; had been sent NaN or infinity in {', '.join(names)}" for i, names in sent.items() if names
    }


def _weighed(r: Round, plan: Plan) -> Round:
    """Return the round with the samples of ``r.ids`` limited to the plan's maximum share of their sum."""
    if plan.max_share == 1 or len(r.ids) == 0:
        return r
    size = r.roster.size.clone()
    size[r.ids] = limited(r.size, plan.max_share)
    return r.but(roster=Roster(size, r.roster.described))


def _lowered(server: Server, r: Round) -> dict[int, tuple[int, int]]:
    """Return the claimed and the used number of samples of the clients in a round for which they differ."""
    pairs = zip(r.ids.tolist(), server.sizes[r.ids].tolist(), r.size.tolist(), strict=True)
    return {i: (claimed, used) for i, claimed, used in pairs if claimed != used}


def _round(method: Method, net: Net, plan: Plan, server: Server, t: int, step: str, ids: list[int]) -> Round:
    size = server.sizes if plan.max_share == 1 else limited(server.sizes, plan.max_share)
    return Round(
        index=t,
        rounds=plan.rounds if needs_of(method).total else None,
        net=net,
        roster=Roster(size, server.described),
        ids=torch.tensor(sorted(ids), dtype=torch.int64),
        cohort=plan.sampled(len(server.sizes)),
        seed=plan.seed,
        step=step,
        uniform=plan.weighting == "uniform",
        aggregation=plan.aggregation,
        metadata_epsilon=plan.metadata_epsilon,
    )


def _admit(method: Method, net: Net, transport: Transport, plan: Plan, server: Server, t: int) -> tuple[list[int], int]:
    """Add joining clients to the roster and the state; return their ids and the bytes that they sent."""
    new = transport.joiners(len(server.sizes), t)
    if not new:
        return [], 0
    said = stack(new)
    described = {n: rows for n, rows in said.items() if n != "size"}
    server.sizes = torch.cat([server.sizes, said.size.to(torch.int64)])
    server.described = Bundle(
        {n: torch.cat([server.described[n], rows]) if n in server.described else rows for n, rows in described.items()}
    )
    server.acks = torch.cat([server.acks, torch.zeros(len(new), dtype=torch.int64)])
    admitted = method.admit(server.state, _round(method, net, plan, server, t, "admit", list(new)))
    server.state = bundled(method, "admit", admitted)
    return sorted(new), said.nbytes


@dataclass
class _Answers:
    """What a question cost, what was sent to those that answered, and why other answers are not used or missing."""

    sent: dict[int, Bundle] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0


def _query(
    method: Method, training: Training, transport: Transport, plan: Plan, server: Server, before: Before, r: Round
) -> _Answers:
    """Ask what the method asks before a round, or in batches before an evaluation; answers go into the state."""
    done, question = _Answers(), asks(method, before)
    if question is None or len(r.ids) == 0 or (before == "evaluation" and not plan.consults(r.index)):
        return done
    for ids in [r.ids] if before == "round" else r.ids.split(_TOGETHER):
        part = r.but(ids=ids)
        if (download := question.question(method, server.state, part)) is None:
            break
        messages = _messages("survey" if before == "round" else "consult", download, part, server)
        if before == "round":  # who is sent nothing is not asked; an evaluation asks every client
            messages = {i: m for i, m in messages.items() if m.body}
        done.bytes_down += _travelling(messages)
        started = time.perf_counter()
        replies, missing = transport.exchange(messages)
        done.seconds += time.perf_counter() - started
        schema = probe(method, r.net, training, messages[min(replies)].body, question=question) if replies else Bundle()
        why = refusals(replies, schema, plan.bound)
        if (judge := question.refuses) is not None:
            own = {i: judge(method, part, up) for i, up in replies.items() if i not in why}
            why |= {i: reason for i, reason in own.items() if reason}
        done.bytes_up += sum(b.travelling() for b in replies.values())
        done.sent |= {i: messages[i].body for i in replies}
        done.refused |= {i: f"{_ASKED[before]}: {reason}" for i, reason in why.items()}
        done.missing |= missing
        good = {i: replies[i] for i in sorted(replies) if i not in why}
        if good:
            answered = part.but(step="collect", ids=torch.tensor(list(good)))
            server.state = bundled(method, "collect", question.collect(method, server.state, answered, stack(good)))
    return done


def _sampled(method: Method, s: Bundle, r: Round) -> Round:
    """Return the round for the sampled clients, with what else was drawn."""
    if len(r.ids) == 0:
        return r.but(step="distribute")
    out = method.sample(s, r)
    drawn = out if isinstance(out, Bundle) else Bundle(ids=out)
    cohort, order = drawn.ids.to(torch.int64).sort()
    at = torch.searchsorted(r.ids, cohort).clamp_(max=len(r.ids) - 1)  # both are ascending
    if not torch.equal(r.ids[at], cohort) or len(set(at.tolist())) != len(cohort):
        raise MethodError(
            f"sample of {type(method).__name__} gave {cohort.tolist()}, which must be distinct clients out of "
            f"{r.ids.tolist()}"
        )
    beside = Bundle({name: rows[order] for name, rows in drawn.items() if name != "ids"})
    return r.but(step="distribute", ids=cohort, drawn=beside)


def _messages(
    step: Step, download: Download, r: Round, server: Server, pools: Mapping[int, SecureGroup] | None = None
) -> dict[int, Message]:
    for name, rows in download.rows.items():
        if len(rows) != len(r.ids):
            raise MethodError(f"{name!r} has {len(rows)} rows for {len(r.ids)} clients; row i is for r.ids[i]")
    acks, pool = server.acks[r.ids].tolist(), pools or {}
    return {
        k: Message(step, r.index, r.index, acks[i], download.row(i), pool.get(k)) for i, k in enumerate(r.ids.tolist())
    }


def _require_alike(method: Method, messages: Mapping[int, Message]) -> None:
    """Raise `MethodError` if clients whose uploads are added up are sent different tensors: masks would not cancel."""
    for i, m in messages.items():
        first = m.body if m.pool is None else messages[m.pool.members[0]].body
        if m.body.keys() != first.keys() or not all(_equal(t, first[name]) for name, t in m.body.items()):
            raise MethodError(
                f"secure aggregation cannot be used with {type(method).__name__} as it is set: clients whose uploads "
                f"are added up must be sent the same tensors, and client {i} is sent others than the first of its sum"
            )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a.nan_to_num(), b.nan_to_num())


def _travelling(messages: Mapping[int, Message], sent: Mapping[int, Bundle] | None = None) -> int:
    """Return the bytes of messages that must travel; ``sent``: tensors that clients received earlier in this round."""
    counted: dict[int, int] = {}
    return sum(m.body.travelling((sent or {}).get(i), counted) for i, m in messages.items())


@dataclass(frozen=True)
class _Shown:
    """Results of an evaluation by client, why other answers are not used or missing, and bytes sent to clients."""

    found: dict[int, Bundle] = field(default_factory=dict)
    false: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0


def _evaluated(
    method: Method,
    training: Training,
    transport: Transport,
    plan: Plan,
    server: Server,
    r: Round,
    asked_before: _Answers,
) -> _Shown:
    """Evaluate every client that has joined, in batches, with the models after the round."""
    found, false = dict[int, Bundle](), dict(asked_before.refused)
    missing = {i: f"asked before it: {why}" for i, why in asked_before.missing.items()}
    bytes_down = asked_before.bytes_down + asked_before.bytes_up
    for ids in r.ids.split(_TOGETHER) if len(r.ids) else ():
        part = r.but(ids=ids)
        download = handed_out(method, "deliver", method.deliver(server.state, part))
        messages = _messages("evaluate", download, part, server)
        sent = asked_before.sent  # what both send under one name travels once
        there = {i: m.body.only(frozenset(sent.get(i, Bundle())) & m.body.keys()) for i, m in messages.items()}
        bytes_down += _travelling(messages, there)
        answers, late = transport.exchange(messages)
        missing |= late
        if not answers:
            continue
        form = ScoreForm(
            names=scored(method, r.net, training, messages[min(answers)].body, plan.evaluate),
            classes=r.net.classes,
            notes=client_notes(method),
            outcomes=outcomes_due(plan.outcomes_from, r.index),
            most=plan.max_samples,
        )
        # with privacy options counts hold noise
        whys = false_scores(answers, form, {i: int(server.sizes[i]) for i in answers} if plan.outcomes else None)
        false |= {i: f"evaluation: {why}" for i, why in whys.items()}
        found |= {i: b for i, b in answers.items() if i not in whys}
    return _Shown({i: found[i] for i in sorted(found)}, false, missing, bytes_down)


def hand_over(method: Method, net: Net, transport: Transport, plan: Plan, server: Server) -> dict[int, str]:
    """Have every client that can be reached store the model it predicts with; return why others have none."""
    return {i: why for _, missing in asked(method, net, transport, plan, server, "keep") for i, why in missing.items()}


def asked(
    method: Method,
    net: Net,
    transport: Transport,
    plan: Plan,
    server: Server,
    step: Literal["evaluate", "keep"],
    wanted: Collection[int] | None = None,
) -> Iterator[tuple[dict[int, Bundle], dict[int, str]]]:
    """Yield what clients answer when they evaluate, or keep, the models of the server's last round.

    Nothing is changed by it.

    Args:
        wanted: ids of the clients that are asked; None: all that can be reached. Others receive nothing.

    Yields:
        answers of some clients, and why others did not answer: clients are asked in batches.
    """
    t = server.round
    everyone = _round(method, net, plan, server, t, "evaluate", transport.available(t))
    for ids in everyone.ids.split(_TOGETHER) if len(everyone.ids) else ():
        if wanted is None or not set(ids.tolist()).isdisjoint(wanted):
            part = everyone.but(ids=ids)
            download = handed_out(method, "deliver", method.deliver(server.state, part))
            messages = _messages(step, download, part, server)
            yield transport.exchange({i: m for i, m in messages.items() if wanted is None or i in wanted})


def common(method: Method, net: Net, transport: Transport, plan: Plan, server: Server) -> Bundle:
    """Return what all clients receive alike to predict with after the server's last round."""
    t = server.round
    return method.deliver(
        server.state, _round(method, net, plan, server, t, "evaluate", transport.available(t)[:1])
    ).shared


def welcome(
    method: Method, net: Net, transport: Transport, plan: Plan, server: Server, wanted: Collection[int] | None = None
) -> tuple[dict[int, Bundle], Tensor | None]:
    """Admit joining clients, as the next round would, and evaluate clients before the new ones have taken part.

    Args:
        wanted: the clients that are evaluated, see `asked`.

    Returns:
        results of evaluations; the cluster of every client, if the method has clusters.
    """
    _admit(method, net, transport, plan, server, server.round + 1)
    found = {i: b for got, _ in asked(method, net, transport, plan, server, "evaluate", wanted) for i, b in got.items()}
    r = _round(method, net, plan, server, server.round, "evaluate", transport.available(server.round))
    labels = chosen(found, len(server.sizes))
    return found, _grouped(method, server, r)[0] if labels is None else labels


def chosen(evaluation: Mapping[int, Bundle], clients: int) -> Tensor | None:
    """Return the cluster that each client chose at an evaluation, int64 ``[K]``, -1 for clients without evaluation.

    None where clients choose none.
    """
    found = {i: int(b.cluster) for i, b in evaluation.items() if "cluster" in b}
    if not found:
        return None
    labels = torch.full((clients,), -1)
    labels[list(found)] = torch.tensor(list(found.values()))
    return labels


def _grouped(method: Method, server: Server, r: Round) -> tuple[Tensor | None, int]:
    """Return the clusters that the server uses, and their number.

    Raises:
        MethodError: a client is in a cluster beyond the last.
    """
    groups, labels = has(method, Grouped), labels_of(method, server.state, r)
    if groups is None or labels is None:
        return None, 0
    known = 1 + int(labels.max()) if len(labels) else 0
    count = None if groups.count is None else groups.count(method, server.state, r)
    if count is not None and known > count:
        raise MethodError(
            f"{type(method).__name__} puts a client into cluster {known - 1}; its count of clusters says that "
            f"there are {count}, 0 to {count - 1}"
        )
    return labels, known if count is None else count
