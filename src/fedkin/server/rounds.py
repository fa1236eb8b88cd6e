"""The round loop, written once: for the simulator and for real hosts, over a small transport."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedkin.capabilities import Asks, Uploads, has
from fedkin.capabilities.asks import Before, asks
from fedkin.capabilities.groups import clusters_of
from fedkin.capabilities.logs import numbers_of
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.views import client_notes
from fedkin.core import Bundle, Download, Method, MethodError, Net, Roster, Round, Training, stack, to_all
from fedkin.core.bundle import not_finite, refusals
from fedkin.core.refusals import UNUSED, Reason, Refused, Stage
from fedkin.engines.tasks import Step, outcomes_due
from fedkin.privacy.secure_sum import MOST, SecureGroup, pooled, require_alike, summed
from fedkin.server.messages import Message, Outcome, RoundReport, Server, Transport
from fedkin.server.plan import Plan, limited
from fedkin.server.upload_checks import ScoreForm, bundled, false_scores, handed_out, probe, scored, too_large

_STAGES: dict[Step, Stage] = {
    "survey": "query", "update": "update", "consult": "evaluate-query", "evaluate": "evaluate", "keep": "keep",
}  # fmt: skip
_TOGETHER = 128  # clients evaluated in one exchange: bounds the memory that their downloads take


@dataclass(frozen=True)
class _Run:
    """The server's side of a run."""

    method: Method
    net: Net
    plan: Plan
    server: Server
    training: Training = field(default_factory=Training)

    def at(self, t: int, step: str, ids: list[int]) -> Round:
        """Return a round as a step of the method sees it."""
        plan, server = self.plan, self.server
        return Round(
            index=t,
            rounds=plan.rounds if needs_of(self.method).total else None,
            net=self.net,
            roster=Roster(limited(server.sizes, plan.max_share), server.described),
            ids=torch.tensor(sorted(ids), dtype=torch.int64),
            cohort=plan.sampled(len(server.sizes)),
            seed=plan.seed,
            step=step,
            uniform=plan.weighting == "uniform",
            aggregation=plan.aggregation,
            metadata_epsilon=plan.metadata_epsilon,
        )

    def weighed(self, r: Round) -> Round:
        """Return the round with the samples of ``r.ids`` limited to the plan's maximum share of their sum."""
        size = r.roster.size.clone()
        size[r.ids] = limited(r.size, self.plan.max_share)
        return r.but(roster=Roster(size, r.roster.described))


@dataclass
class _Answers:
    """Answers of one kind in a round.

    Attributes:
        good: those that can be used, by client, ascending.
        refused: the others, and those that did not arrive.
        sent: what those were sent that answered a question.
        down, up: bytes that had to travel.
        seconds: from the messages to the answers.
        weights: of the download.
    """

    good: dict[int, Bundle] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    sent: dict[int, Bundle] = field(default_factory=dict)
    down: int = 0
    up: int = 0
    seconds: float = 0.0
    weights: Tensor | None = None


def begin(method: Method, net: Net, plan: Plan) -> Server:
    """Return the server before the first round."""
    server = Server(Bundle())
    server.state = bundled(method, "init", method.init(_Run(method, net, plan, server).at(0, "init", [])))
    return server


def rounds(
    method: Method, net: Net, training: Training, transport: Transport, plan: Plan, server: Server
) -> Iterator[RoundReport]:
    """Execute the remaining rounds, changing ``server``; yield a report after each, when the server is consistent.

    Raises:
        MethodError: the method broke its contract on the server side.
    """
    run = _Run(method, net, plan, server, training)
    while server.round < plan.rounds:
        yield _one(run, transport)


def _one(run: _Run, transport: Transport) -> RoundReport:
    method, plan, server = run.method, run.plan, run.server
    started, t = time.perf_counter(), server.round + 1
    joined, said = _admit(run, transport, t)
    here = transport.available(t)
    survey = _query(run, transport, "round", run.at(t, "survey", here))
    r = run.weighed(_sampled(method, server.state, run.at(t, "sample", here)))
    cohort, pools, out = r.ids.tolist(), dict[int, SecureGroup](), dict[int, Reason]()
    if plan.aggregation.secure and cohort:
        most = max(MOST, plan.max_share)  # 1 in a simulation, where nothing is hidden and no weight is lowered
        r, pools, out = pooled(method, server.state, r, limit=lambda weights: limited(weights, most))
    # oversampling does not apply to a method that samples more clients than planned: it waits for all of them
    enough = plan.cohort(len(server.sizes)) if plan.oversampling > 1 and len(cohort) <= r.cohort else None
    update = _ask(run, transport, "update", r, before=survey.sent, pools=pools, enough=enough)
    abandoned, lowered = len(update.good) < plan.min_replies, dict[int, tuple[int, int]]()
    if not abandoned:
        merging = r.among(torch.tensor(list(update.good))).but(step="aggregate")
        if not plan.aggregation.secure:  # sums were weighed by the clients already
            merging = run.weighed(merging)
        if plan.weighting == "samples":  # else no mean is by samples
            lowered = _lowered(server, merging)
        server.state = bundled(method, "aggregate", method.aggregate(server.state, merging, stack(update.good)))
        server.acks = server.acks.clone()
        server.acks[merging.ids] = t
    server.round = t
    merged = time.perf_counter()
    everyone, query, shown = run.at(t, "evaluate", here), _Answers(), _Answers()
    if plan.evaluates(t):
        if plan.consults(t):
            query = _query(run, transport, "evaluation", everyone)
        shown = _ask(run, transport, "evaluate", everyone, before=query.sent)
    ended = time.perf_counter()
    clusters, count = clusters_of(method, server.state, everyone)
    left_out = [out[i].at("update", i) for i in sorted(out)]
    return RoundReport(
        round=t,
        cohort=cohort,
        answered=list(update.good),
        abandoned=abandoned,
        joined=joined,
        absent=sorted(set(range(len(server.sizes))).difference(here)),
        refused=(*survey.refused, *left_out, *update.refused, *query.refused, *shown.refused),
        bytes_down=update.down + survey.down,
        bytes_up=update.up + said + survey.up,
        weights=update.weights,
        clusters=clusters,
        notes=numbers_of(method, server.state),
        evaluation=shown.good,
        seconds={
            "round": merged - started,
            "server": merged - started - survey.seconds - update.seconds,
            "exchange": update.seconds + survey.seconds,
            "evaluation": ended - merged,
        },
        cluster_count=count,
        bytes_evaluation=query.down + query.up + shown.down,
        limited=lowered,
    )


def _ask(
    run: _Run,
    transport: Transport,
    kind: Step,
    r: Round,
    question: Asks | None = None,
    *,
    before: Mapping[int, Bundle] | None = None,
    pools: Mapping[int, SecureGroup] | None = None,
    enough: int | None = None,
    wanted: Collection[int] | None = None,
) -> _Answers:
    """Send the clients ``r.ids`` messages of a kind, and return their answers; the server's state stays.

    Args:
        question: asked by a survey or a consult.
        before: what clients were sent in this round, which does not travel again.
        pools: clients whose uploads are added up, of each.
        enough: number of answers after which no more are waited for.
        wanted: the clients that are sent a message; None: all of ``r.ids``.
    """
    method, server, out = run.method, run.server, _Answers()
    for ids in r.ids.split(max(1, len(r.ids)) if kind in ("survey", "update") else _TOGETHER):
        if wanted is not None and set(ids.tolist()).isdisjoint(wanted):
            continue
        part, download = r.but(ids=ids), to_all()
        if question is not None:
            if (asked := question.question(method, server.state, part)) is None:
                break
            download = asked
        elif kind == "update" and len(ids):
            download = handed_out(method, "distribute", method.distribute(server.state, part))
        elif len(ids):
            download = handed_out(method, "deliver", method.deliver(server.state, part))
        messages = {
            i: m
            for i, m in _messages(kind, download, part, server, pools).items()
            if (m.body or kind != "survey") and (wanted is None or i in wanted)
        }
        require_alike(method, {i: (m.body, m.pool) for i, m in messages.items()})
        counted: dict[int, int] = {}
        out.down += sum(m.body.travelling((before or {}).get(i), counted) for i, m in messages.items())
        started = time.perf_counter()
        replies, missing = transport.exchange(messages, enough)
        out.seconds += time.perf_counter() - started
        good, refused = _checked(run, kind, part, question, messages, replies) if replies else ({}, {})
        out.good |= good
        out.refused += [
            _as_sent(why, messages[i].body).at(_STAGES[kind], i) for i, why in sorted((missing | refused).items())
        ]
        out.up += sum(b.travelling() for b in replies.values())
        out.weights = download.weights
        if question is not None:
            out.sent |= {i: messages[i].body for i in replies}
    return out


def _checked(
    run: _Run,
    kind: Step,
    r: Round,
    question: Asks | None,
    messages: Mapping[int, Message],
    replies: Mapping[int, Bundle],
) -> Outcome:
    """Return the answers that can be used (with secure aggregation the means of their pools), and why others cannot."""
    method, plan, first = run.method, run.plan, messages[min(replies)].body
    why: dict[int, Reason] = {}
    if kind == "evaluate":
        form = ScoreForm(
            names=scored(method, r.net, run.training, first, plan.evaluate),
            classes=r.net.classes,
            notes=client_notes(method),
            outcomes=outcomes_due(plan.outcomes_from, r.index),
            most=plan.max_samples,
        )
        # with privacy options counts hold noise
        sizes = {i: int(run.server.sizes[i]) for i in replies} if plan.outcomes else None
        why = false_scores(replies, form, sizes)
    elif kind != "keep":
        schema = probe(method, r.net, run.training, first, question=question)
        if pools := {i: m.pool for i, m in messages.items() if m.pool is not None}:
            return summed(pools, replies, schema, plan.bound)
        why = refusals(replies, schema, plan.bound)
        if question is None:
            fit = {i: up for i, up in replies.items() if i not in why}
            why |= too_large(fit, {i: m.body for i, m in messages.items()})
        judge = (question or has(method, Uploads) or Uploads()).refuses
        own = {i: judge(method, r, up) for i, up in replies.items() if judge is not None and i not in why}
        why |= {i: reason for i, reason in own.items() if reason is not None}
    return {i: replies[i] for i in sorted(replies) if i not in why}, why


def _as_sent(why: Reason, body: Bundle) -> Reason:
    """Return the reason, or that steps of the method on the server made, and sent, numbers that are not finite."""
    names = not_finite(body) if why.code in UNUSED else []
    return Reason("sent-not-finite", ", ".join(names), why.code) if names else why


def _lowered(server: Server, r: Round) -> dict[int, tuple[int, int]]:
    """Return the claimed and the used number of samples of the clients in a round for which they differ."""
    pairs = zip(r.ids.tolist(), server.sizes[r.ids].tolist(), r.size.tolist(), strict=True)
    return {i: (claimed, used) for i, claimed, used in pairs if claimed != used}


def _admit(run: _Run, transport: Transport, t: int) -> tuple[list[int], int]:
    """Add joining clients to the roster and the state; return their ids and the bytes that they sent."""
    method, server = run.method, run.server
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
    server.state = bundled(method, "admit", method.admit(server.state, run.at(t, "admit", list(new))))
    return sorted(new), said.nbytes


def _query(run: _Run, transport: Transport, before: Before, r: Round) -> _Answers:
    """Ask what the method asks before a round or an evaluation; the answers go into the state."""
    question, server = asks(run.method, before), run.server
    if question is None or len(r.ids) == 0:
        return _Answers()
    got = _ask(run, transport, "survey" if before == "round" else "consult", r, question)
    if got.good:
        answered = r.but(step="collect", ids=torch.tensor(list(got.good)))
        state = question.collect(run.method, server.state, answered, stack(got.good))
        server.state = bundled(run.method, "collect", state)
    return got


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


def asked(
    method: Method,
    net: Net,
    transport: Transport,
    plan: Plan,
    server: Server,
    step: Literal["evaluate", "keep"],
    wanted: Collection[int] | None = None,
) -> tuple[dict[int, Bundle], tuple[Refused, ...]]:
    """Return what clients answer when they evaluate, or keep, the models of the server's last round.

    Nothing is changed by it.

    Args:
        wanted: ids of the clients that are asked; None: all that can be reached. Others receive nothing.

    Returns:
        answers by client, and why others did not answer.
    """
    run, t = _Run(method, net, plan, server), server.round
    got = _ask(run, transport, step, run.at(t, "evaluate", transport.available(t)), wanted=wanted)
    return got.good, tuple(got.refused)


def common(method: Method, net: Net, transport: Transport, plan: Plan, server: Server) -> Bundle:
    """Return what all clients receive alike to predict with after the server's last round."""
    run, t = _Run(method, net, plan, server), server.round
    return method.deliver(server.state, run.at(t, "evaluate", transport.available(t)[:1])).shared


def welcome(
    method: Method, net: Net, transport: Transport, plan: Plan, server: Server, wanted: Collection[int] | None = None
) -> tuple[dict[int, Bundle], Tensor | None]:
    """Admit joining clients, as the next round would, and evaluate clients before the new ones have taken part.

    Args:
        wanted: the clients that are evaluated, see `asked`.

    Returns:
        results of evaluations; the cluster of every client, if the method has clusters.
    """
    run = _Run(method, net, plan, server)
    _admit(run, transport, server.round + 1)
    result, _ = asked(method, net, transport, plan, server, "evaluate", wanted)
    r = run.at(server.round, "evaluate", transport.available(server.round))
    labels = chosen(result, len(server.sizes))
    return result, clusters_of(method, server.state, r)[0] if labels is None else labels


def chosen(evaluation: Mapping[int, Bundle], clients: int) -> Tensor | None:
    """Return the cluster that each client chose at an evaluation, int64 ``[K]``, -1 for clients without evaluation.

    None where clients choose none.
    """
    result = {i: int(b.cluster) for i, b in evaluation.items() if "cluster" in b}
    if not result:
        return None
    labels = torch.full((clients,), -1)
    labels[list(result)] = torch.tensor(list(result.values()))
    return labels
