"""The round loop, written once: the same for the simulator and for real hosts, over a small transport."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

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
from fedkin.core.bundle import refusals
from fedkin.engines.tasks import Step
from fedkin.privacy.secure_sum import SecureGroup, pooled, summed
from fedkin.server.plan import Plan
from fedkin.server.shares import limited
from fedkin.server.upload_checks import bundled, false_score, handed_out, probe, scored

_TOGETHER = 128  # clients evaluated in one exchange: bounds the memory that their downloads take


@dataclass(frozen=True)
class Message:
    """What the server sends one client.

    Attributes:
        step: what is asked for.
        round: the round.
        seq: this message's number; the same number again asks for the same answer again.
        ack: the number of this client's last upload that was aggregated.
        body: what ``distribute`` gave for it.
        pool: with secure aggregation, whose uploads the answer is added up with: it is `secure.fixed` numbers then.
    """

    step: Step
    round: int
    seq: int
    ack: int
    body: Bundle
    pool: SecureGroup | None = None


class Transport(Protocol):
    """How the server reaches clients. Clients are numbered in the order in which they joined."""

    def available(self, round: int) -> list[int]:
        """Clients that could take part now."""

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        """Clients numbered ``known`` and up that have come, with what they say of themselves (``size`` at least)."""

    def exchange(
        self, messages: Mapping[int, Message], enough: int | None = None
    ) -> tuple[dict[int, Bundle], dict[int, str]]:
        """Answers of those who answered, and why the others did not; ``enough`` answers need no others waited for."""


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
    """What one round did.

    Attributes:
        cohort, answered: ids; refused: why an upload was not used; missing: why an answer did not come.
        abandoned: fewer answers than the plan wants, so the state is that of the round before.
        bytes_down, bytes_up: bytes that had to travel for training, joining and surveys included: see
            `Bundle.travelling`.
        joined: ids of newcomers.
        absent: ids of those who have joined and could not be reached, so that no cohort was drawn from them.
        weights: ``[m, K]`` for the cohort, whom each one's download was mixed from; or None.
        clusters: int64 ``[K]``, the cluster of every client that the server used when the client last took part, -1
            where none is known; or None.
        notes: what the method says of its state.
        evaluation: per client what an evaluation gave; empty if the round was not evaluated.
        seconds: wall time of the whole round; and of its parts.
        cluster_count: how many clusters there are, empty ones included.
        bytes_evaluation: bytes that had to travel to clients for the evaluation alone, in no other figure.
        unevaluated: why an evaluation did not come, by id.
        limited: clients whose claimed number of samples was too large a share: what they claimed, what was used.
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
    """The server before the first round.

    Raises:
        ConfigError: the plan asks for what the method's server cannot do.
    """
    plan.require(method)
    return Server(bundled(method, "init", method.init(_round(net, plan, Server(Bundle()), 0, "init", []))))


def rounds(
    method: Method, net: Net, training: Training, transport: Transport, plan: Plan, server: Server
) -> Iterator[RoundReport]:
    """Runs the rounds that are left, changing ``server``; a report after each, when the server is consistent.

    Raises:
        MethodError: the method broke its contract on the server side.
    """
    while server.round < plan.rounds:
        yield _one(method, net, training, transport, plan, server)


def _one(method: Method, net: Net, training: Training, transport: Transport, plan: Plan, server: Server) -> RoundReport:
    started, t = time.perf_counter(), server.round + 1
    joined, said = _admit(method, net, transport, plan, server, t)
    here = transport.available(t)
    survey = _survey(method, training, transport, plan, server, _round(net, plan, server, t, "survey", here))
    r = _weighed(_sampled(method, server.state, _round(net, plan, server, t, "sample", here)), plan)
    cohort, pools, out = r.ids.tolist(), dict[int, SecureGroup](), dict[int, str]()
    if plan.aggregation.secure and cohort:
        r, pools, out = pooled(method, server.state, r)
    download = handed_out(method, "distribute", method.distribute(server.state, r)) if len(r.ids) else to_all()
    messages = _messages("update", download, r, server, pools)
    sent = time.perf_counter()
    # over-selection does not apply to a method that asks more clients than the plan means: it waits for all of them
    meant = plan.oversampling > 1 and len(cohort) <= r.cohort
    enough = plan.cohort(len(server.sizes)) if meant else None
    replies, missing = transport.exchange(messages, enough)
    received = time.perf_counter()
    good, refused = _checked(method, training, plan, r, messages, replies)
    abandoned, less = len(good) < plan.min_replies, dict[int, tuple[int, int]]()
    if not abandoned:
        ids = torch.tensor(list(good))
        merging = r.among(ids).but(step="aggregate")
        merging = (
            merging if plan.aggregation.secure else _weighed(merging, plan)
        )  # sums were weighed by the clients already
        less = _lowered(server, merging)
        merged_state = method.aggregate(server.state, merging, stack(good))
        server.state = bundled(method, "aggregate", merged_state)
        server.acks = server.acks.clone()
        server.acks[ids] = t
    server.round = t
    merged = time.perf_counter()
    everyone = _round(net, plan, server, t, "evaluate", here)
    shown = _evaluated(method, training, transport, plan, server, everyone) if plan.evaluates(t) else _Shown()
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
        notes=method.notes(server.state),
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
    """Uploads that can be used, with secure aggregation the means of their pools instead; and why others cannot."""
    if not replies:
        return {}, {}
    schema = probe(method, r.net, training, messages[min(replies)].body)
    if plan.aggregation.secure:
        pools = {i: m.pool for i, m in messages.items() if m.pool is not None}
        return summed(pools, replies, schema, plan.bound)
    unfit = refusals(replies, schema, plan.bound)
    why = {i: unfit.get(i) or method.refuses(r, up) for i, up in replies.items()}
    refused = {i: reason for i, reason in why.items() if reason}
    return {i: replies[i] for i in sorted(replies) if i not in refused}, refused


def _weighed(r: Round, plan: Plan) -> Round:
    """The round with the samples of ``r.ids`` limited to the plan's largest share of their sum."""
    if plan.max_share == 1 or len(r.ids) == 0:
        return r
    size = r.roster.size.clone()
    size[r.ids] = limited(r.size, plan.max_share)
    return r.but(roster=Roster(size, r.roster.described))


def _lowered(server: Server, r: Round) -> dict[int, tuple[int, int]]:
    """The clients of a round that claim more samples than are used: what they claim, what is used."""
    pairs = zip(r.ids.tolist(), server.sizes[r.ids].tolist(), r.size.tolist(), strict=True)
    return {i: (claimed, used) for i, claimed, used in pairs if claimed != used}


def _round(net: Net, plan: Plan, server: Server, t: int, step: str, ids: list[int]) -> Round:
    size = server.sizes if plan.max_share == 1 else limited(server.sizes, plan.max_share)
    return Round(
        index=t,
        total=plan.rounds,
        net=net,
        roster=Roster(size, server.described),
        ids=torch.tensor(sorted(ids), dtype=torch.int64),
        cohort=math.ceil(plan.cohort(len(server.sizes)) * plan.oversampling - 1e-9),
        seed=plan.seed,
        step=step,
        uniform=plan.weighting == "uniform",
        aggregation=plan.aggregation,
    )


def _admit(method: Method, net: Net, transport: Transport, plan: Plan, server: Server, t: int) -> tuple[list[int], int]:
    """Takes newcomers into the roster and the state; their ids and the bytes they sent."""
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
    admitted = method.admit(server.state, _round(net, plan, server, t, "admit", list(new)))
    server.state = bundled(method, "admit", admitted)
    return sorted(new), said.nbytes


@dataclass(frozen=True)
class _Survey:
    """Cost of a survey, clients that did not answer it, and what was sent to those that did."""

    refused: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    sent: dict[int, Bundle] = field(default_factory=dict)


def _survey(method: Method, training: Training, transport: Transport, plan: Plan, server: Server, r: Round) -> _Survey:
    """Holds a survey if the method wants one now; the answers go into the state."""
    download = method.survey(server.state, r) if len(r.ids) else None
    if download is None:
        return _Survey()
    messages = {i: m for i, m in _messages("survey", download, r, server).items() if m.body}
    sent = time.perf_counter()
    replies, missing = transport.exchange(messages)
    seconds = time.perf_counter() - sent
    refused: dict[int, str] = {}
    if replies:
        schema = probe(method, r.net, training, messages[min(replies)].body, survey=True)
        unfit = refusals(replies, schema, plan.bound)
        refused = {i: f"survey: {reason}" for i, reason in unfit.items()}
    good = {i: replies[i] for i in sorted(replies) if i not in refused}
    if good:
        state = method.collect(server.state, r.but(step="collect", ids=torch.tensor(list(good))), stack(good))
        server.state = bundled(method, "collect", state)
    bytes_down = _travelling(messages)
    bytes_up = sum(b.travelling() for b in replies.values())
    return _Survey(refused, missing, bytes_down, bytes_up, seconds, {i: messages[i].body for i in replies})


def _sampled(method: Method, s: Bundle, r: Round) -> Round:
    """The round for those who take part, with what else was drawn."""
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


def _travelling(messages: Mapping[int, Message], sent: Mapping[int, Bundle] | None = None) -> int:
    """Bytes of messages that must travel; ``sent``: tensors that clients have been sent in this round already."""
    counted: dict[int, int] = {}
    return sum(m.body.travelling((sent or {}).get(i), counted) for i, m in messages.items())


@dataclass(frozen=True)
class _Shown:
    """Results of an evaluation by client, why other answers are not used or did not come, and bytes that had to travel
    to clients."""

    found: dict[int, Bundle] = field(default_factory=dict)
    false: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0


def _evaluated(
    method: Method, training: Training, transport: Transport, plan: Plan, server: Server, r: Round
) -> _Shown:
    """Every client that has joined, in batches, with the models as they are after the round."""
    found, false, missing, bytes_down = dict[int, Bundle](), dict[int, str](), dict[int, str](), 0
    for ids in r.ids.split(_TOGETHER) if len(r.ids) else ():
        part = r.but(ids=ids)
        download = handed_out(method, "deliver", method.deliver(server.state, part))
        messages = _messages("evaluate", download, part, server)
        bytes_down += _travelling(messages)
        answers, late = transport.exchange(messages)
        missing |= late
        if answers:
            names = scored(method, r.net, training, messages[min(answers)].body, plan.evaluate)
        for i, b in answers.items():
            size = int(server.sizes[i]) if plan.outcomes else None  # with privacy options counts hold noise
            last = r.index == plan.outcomes_in
            if why := false_score(b, names, r.net.classes, outcomes=last, size=size, most=plan.max_samples):
                false[i] = f"evaluation: {why}"
            else:
                found[i] = b
    return _Shown({i: found[i] for i in sorted(found)}, false, missing, bytes_down)


def hand_over(method: Method, net: Net, transport: Transport, plan: Plan, server: Server) -> dict[int, str]:
    """Lets every client that can be reached keep the model it predicts with; why the others have none."""
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
    """What clients answer when they evaluate, or keep, the models as they are after the server's last round; nothing
    is changed by it.

    Args:
        wanted: ids of those who are asked; None: all that can be reached. Others are never told anything.

    Yields:
        answers of some clients, and why others of them did not answer: clients are asked a few at a time.
    """
    t = server.round
    everyone = _round(net, plan, server, t, "evaluate", transport.available(t))
    for ids in everyone.ids.split(_TOGETHER) if len(everyone.ids) else ():
        if wanted is None or not set(ids.tolist()).isdisjoint(wanted):
            part = everyone.but(ids=ids)
            download = handed_out(method, "deliver", method.deliver(server.state, part))
            messages = _messages(step, download, part, server)
            yield transport.exchange({i: m for i, m in messages.items() if wanted is None or i in wanted})


def common(method: Method, net: Net, transport: Transport, plan: Plan, server: Server) -> Bundle:
    """What every client is given to predict with, the same for all, after the server's last round."""
    t = server.round
    return method.deliver(server.state, _round(net, plan, server, t, "evaluate", transport.available(t)[:1])).shared


def welcome(
    method: Method, net: Net, transport: Transport, plan: Plan, server: Server, wanted: Collection[int] | None = None
) -> tuple[dict[int, Bundle], Tensor | None]:
    """Takes newcomers in, as the next round would, and tells how they fare before they have taken part.

    Args:
        wanted: who is evaluated, see `asked`.

    Returns:
        what evaluations gave; the cluster of every client, if the method has clusters.
    """
    _admit(method, net, transport, plan, server, server.round + 1)
    found = {i: b for got, _ in asked(method, net, transport, plan, server, "evaluate", wanted) for i, b in got.items()}
    r = _round(net, plan, server, server.round, "evaluate", transport.available(server.round))
    labels = chosen(found, len(server.sizes))
    return found, _grouped(method, server, r)[0] if labels is None else labels


def chosen(evaluation: Mapping[int, Bundle], clients: int) -> Tensor | None:
    """The cluster that each client chose at an evaluation, int64 ``[K]``, -1 for those that were not evaluated; None
    where clients choose none."""
    found = {i: int(b.cluster) for i, b in evaluation.items() if "cluster" in b}
    if not found:
        return None
    labels = torch.full((clients,), -1)
    labels[list(found)] = torch.tensor(list(found.values()))
    return labels


def _grouped(method: Method, server: Server, r: Round) -> tuple[Tensor | None, int]:
    """The clusters that the server uses, and how many there are.

    Raises:
        MethodError: a client is in a cluster beyond the last.
    """
    labels = method.relations(server.state, r)
    if labels is None:
        return None, 0
    known = 1 + int(labels.max()) if len(labels) else 0
    count = method.cluster_count(server.state, r)
    if count is not None and known > count:
        raise MethodError(
            f"relations of {type(method).__name__} puts a client into cluster {known - 1}; cluster_count says that "
            f"there are {count}, 0 to {count - 1}"
        )
    return labels, known if count is None else count
