"""Cold start: the cluster, weights and accuracy of a client that joins after the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, has
from fedkin.core import Aggregation, Bundle, ConfigError, DataError, Method
from fedkin.core.errors import counted
from fedkin.core.samples import ClientData
from fedkin.engines import Loop
from fedkin.evaluate import interval, score
from fedkin.evaluate.choice import majority_class
from fedkin.experiment.execute import one_thread
from fedkin.experiment.finished import FinishedRun
from fedkin.exporting.finished import Run, finished, name_of
from fedkin.exporting.joining_client import Source, newcomer, notes_on
from fedkin.methods import Local
from fedkin.server import Plan, Server, Simulation, asked, begin, common, rounds, welcome

_MOST = 10  # maximum number of weights that are reported


@dataclass(frozen=True)
class Drill:
    """The result for the joining client.

    Attributes:
        data: source of its data.
        title, round: the run's method, and the round after which the client joins.
        train, validation, test: its numbers of samples.
        cluster: cluster assigned before its first round; None where the method has none or does not know it.
        mates: the other clients of this cluster.
        weights: the ten largest weights of the mixture that it receives in its first round, by client; None where
            it receives no mixture.
        accuracy: accuracy on its test part, by the number of rounds that it took part in.
        interval: 95 % interval of each accuracy, see `fedkin.evaluate.interval`.
        macro_f1: macro-F1, likewise.
        clusters: its cluster after these rounds.
        local: accuracy of training on its data alone, by rounds; the last entry is as many rounds as the run had.
        global_model: accuracy of the model that the run sends to all clients; None where there is none.
        constant: accuracy of always predicting its most frequent training class; None without training samples.
        notes: caveats to read before the figures: few test samples, copies of training samples, data unlike those of
            the run.
    """

    data: str
    title: str
    round: int
    train: int
    validation: int
    test: int
    cluster: int | None
    mates: tuple[str, ...]
    weights: Mapping[str, float] | None
    accuracy: Mapping[int, float]
    interval: Mapping[int, tuple[float, float]]
    macro_f1: Mapping[int, float]
    clusters: Mapping[int, int | None]
    local: Mapping[int, float]
    global_model: float | None
    constant: float | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def chart(self) -> dict[str, Any]:
        """Return a chart of the accuracy over its rounds, of local training and of the global model."""
        own = [{"round": a, "accuracy": 100 * v, "way": f"joins {self.title}"} for a, v in self.accuracy.items()]
        alone = [{"round": a, "accuracy": 100 * self.local[a], "way": "its data alone"} for a in self.accuracy]
        flat = {f"its data alone, {counted(self.round, 'round')}": self.local[self.round]}
        more = {"global model as it is": self.global_model, "its most frequent class, always": self.constant}
        flat |= {way: value for way, value in more.items() if value is not None}
        lines = [{"accuracy": 100 * v, "way": way} for way, v in flat.items()]
        y: dict[str, Any] = {"field": "accuracy", "type": "quantitative", "title": "accuracy on its test part, %"}
        y |= {"scale": {"domain": [0, 100]}}
        colour: dict[str, Any] = {"field": "way", "type": "nominal", "title": None, "sort": None}
        x: dict[str, Any] = {
            "field": "round",
            "type": "quantitative",
            "title": "rounds of its own",
            "axis": {"tickMinStep": 1},
        }
        return {
            "title": f"A client that joins after round {self.round}: {self.test} test samples",
            "width": 420, "height": 260,
            "layer": [
                {"data": {"values": own + alone}, "mark": {"type": "line", "point": True},
                 "encoding": {"x": x, "y": y, "color": colour}},
                {"data": {"values": lines}, "mark": {"type": "rule", "strokeDash": [5, 4]},
                 "encoding": {"y": y, "color": colour}},
            ],
        }  # fmt: skip


def join(run: Run, data: Source, after: Sequence[int] = (0, 1, 5), *, encoding: str | None = None) -> Drill:
    """Have a client join after the run's last round and take part in further rounds.

    In these rounds all clients are asked and only the joining client answers: the other clients, and the server's
    records of them, stay as they are, and the server's average is the upload of the joining client. So a method with
    one model for all trains this model on the joining client's data, while a method that keeps models of clients mixes
    them for it. The run is not changed.

    Args:
        run: the result of `fedkin.run`, or a run folder.
        data: samples of the joining client, which are split as the run's.
        after: numbers of further rounds after which the client is evaluated.
        encoding: text encoding of csv files; None: that of the run's data.

    Raises:
        DataError: data that cannot be read, or do not fit the run's inputs and classes; no test samples.
        ConfigError: invalid numbers of rounds; a run that cannot be continued, see `export`.
    """
    if not after or min(after) < 0 or max(after) > 10_000:
        raise ConfigError(f"after must be numbers of rounds from 0 to 10000, such as 0 1 5, got {list(after)}")
    p = finished(run)
    new = newcomer(p, data, encoding)
    shard, where = new.shard, new.where
    if not len(shard.test):
        raise DataError(f"{where}: no sample is left for testing; provide more samples")
    rounds_of_own = sorted(set(after))
    way = _joined(p, shard, rounds_of_own)
    scores = {a: score(way.found[a].test, way.found[a].counts) for a in rounds_of_own}
    return Drill(
        data=where,
        title=p.experiment.title,
        round=p.server.round,
        train=len(shard.train),
        validation=len(shard.validation),
        test=len(shard.test),
        cluster=way.clusters[0],
        mates=_mates(p, way.labels),
        weights=None if way.weights is None else _told(p, way.weights),
        accuracy={a: s.accuracy or 0.0 for a, s in scores.items()},
        interval={a: interval(s.correct, s.n_test) for a, s in scores.items()},
        macro_f1={a: s.macro_f1 or 0.0 for a, s in scores.items()},
        clusters={a: way.clusters[a] for a in rounds_of_own},
        local=_alone(p, shard, sorted({*after, p.server.round})),
        global_model=_global(p, shard),
        constant=_constant(shard),
        notes=notes_on(p, new),
    )


@dataclass(frozen=True)
class _Way:
    """Evaluations and clusters of a joining client by its rounds; clusters of all clients and its first weights."""

    found: dict[int, Bundle]
    clusters: dict[int, int | None]
    labels: Tensor | None
    weights: Tensor | None


def _joined(p: FinishedRun, shard: ClientData, after: Sequence[int]) -> _Way:
    c, new, start = p.experiment, len(p.server.sizes), p.server.round
    state, described = p.server.state.owned(), Bundle(p.server.described)
    server = Server(state, start, p.server.sizes.clone(), described, p.server.acks.clone())
    last = max(1, *after)  # at least one round, which shows the mixture that the client receives
    plan = _alone_in(c.plan, start + last)
    grouped = has(c.method, Grouped) is not None
    weights: Tensor | None = None
    with one_thread():
        session = Loop().start(replace(p.job, shards=[*(p.job.shards[i] for i in range(new)), shard]))
        try:
            answer = {t: [new] for t in range(start + 1, start + last + 1)}  # all are asked, only this client answers
            clients = Simulation(session, new + 1, seed=p.job.seed, trace=answer)
            clients.restore(p.states, p.server.acks)
            seen, labels = welcome(c.method, c.net, clients, plan, server, None if grouped else [new])
            found, clusters = {0: seen[new]}, {0: _of(labels, new)}
            for report in islice(rounds(c.method, c.net, c.setup.training, clients, plan, server), last):
                if report.weights is not None and weights is None and new in report.cohort:
                    weights = report.weights[report.cohort.index(new)]
                at = report.round - start
                if at in after:
                    found |= {at: asked(c.method, c.net, clients, plan, server, "evaluate", [new])[0][new]}
                    chosen = found[at].get("cluster")
                    clusters[at] = _of(report.clusters, new) if chosen is None else int(chosen)
        finally:
            session.close()
    return _Way(found, clusters, labels, weights)


def _alone_in(plan: Plan, last: int) -> Plan:
    """Return the plan of rounds that one client answers: its answer is the mean, whatever the rule. No client is
    evaluated in them: the last ten rounds, in which all would be, come after those that are run."""
    total = last + 10
    return replace(
        plan, rounds=total, eval_every=total + 1, min_replies=1, oversampling=1.0, aggregation=Aggregation(),
        participation=1.0,
    )  # fmt: skip


def _alone(p: FinishedRun, shard: ClientData, after: Sequence[int]) -> dict[int, float]:
    """Return the accuracy of training on the joining client's data alone, by rounds."""
    c = p.experiment
    plan = _alone_in(c.plan, max(1, *after))
    method, found = Local(), dict[int, float]()
    with one_thread():
        session = Loop().start(replace(p.job, method=method, shards=[shard]))
        try:
            clients = Simulation(session, 1, seed=p.job.seed, joins=[0])
            server = begin(method, c.net, plan)
            seen, _ = welcome(method, c.net, clients, plan, server)
            found[0] = _accuracy(seen[0].test)
            for report in islice(rounds(method, c.net, c.setup.training, clients, plan, server), max(after)):
                if report.round in after:
                    own = asked(method, c.net, clients, plan, server, "evaluate")[0]
                    found[report.round] = _accuracy(own[0].test)
        finally:
            session.close()
    return {a: found[a] for a in after}


def _global(p: FinishedRun, shard: ClientData) -> float | None:
    """Return the accuracy of the model that all clients receive, if there is one and it predicts by itself."""
    c = p.experiment
    if c.method.family in ("clusters", "no federation") or type(c.method).predict is not Method.predict:
        return None
    with one_thread():
        session = Loop().start(p.job)
        try:
            clients = Simulation(session, len(p.federation), seed=p.job.seed, joins=list(p.joins))
            clients.restore(p.states, p.server.acks)
            sent = common(c.method, c.net, clients, c.plan, p.server)
        finally:
            session.close()
        if sent.get("model", torch.empty(0)).shape != (c.net.size,):
            return None
        with torch.no_grad():
            right = c.net(sent.model, c.net.layout(shard.test.x)).argmax(1) == shard.test.y
    return float(right.double().mean())


def _constant(shard: ClientData) -> float | None:
    most = majority_class(shard.train.y.bincount().tolist())
    return None if most is None else float((shard.test.y == most).double().mean())


def _accuracy(counts: Tensor) -> float:
    return float(counts[2].sum() / counts[0].sum())


def _of(labels: Tensor | None, client: int) -> int | None:
    """Return a client's cluster, None if it is not known."""
    return None if labels is None or int(labels[client]) < 0 else int(labels[client])


def _mates(p: FinishedRun, labels: Tensor | None) -> tuple[str, ...]:
    """Return the other clients of the joining client's cluster; it is the last of ``labels [K]``."""
    own = None if labels is None else _of(labels, len(labels) - 1)
    if labels is None or own is None:
        return ()
    return tuple(name_of(p, i) or str(i) for i in (labels[:-1] == own).nonzero().flatten().tolist())


def _told(p: FinishedRun, weights: Tensor) -> dict[str, float]:
    """Return the largest weights by client; the joining client is called ``itself``."""
    own = len(p.server.sizes)
    order = weights.argsort(descending=True)[:_MOST].tolist()
    there = [i for i in order if float(weights[i]) > 0]
    return {"itself" if i == own else name_of(p, i) or str(i): round(float(weights[i]), 6) for i in there}
