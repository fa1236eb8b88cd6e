"""Cold start: the cluster, weights and accuracy of a client that joins after the end of a run.

Its data are read as those of the run, split as the run splits, and compared with the run's training data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.capabilities import Grouped, has
from fedkin.core import Aggregation, Bundle, ConfigError, DataError, Method
from fedkin.core.samples import ClientData
from fedkin.data import Card, Federation, load
from fedkin.data.arrays import array_of
from fedkin.data.checks import check_range, listed, refuse_first
from fedkin.data.columns import raw_rows
from fedkin.data.preparation import Preparation
from fedkin.data.sites import as_agreed
from fedkin.data.sources import csv_files
from fedkin.data.sources.tables import Table, numbered_classes, read_csv
from fedkin.evaluate import interval, score
from fedkin.evaluate.choice import majority_class
from fedkin.experiment.prepare import FinishedRun
from fedkin.exporting.finished import Run, clients_of, finished, name_of, simulation
from fedkin.exporting.ranges import of_all, unusual_inputs, unusual_rows
from fedkin.inspection.duplicates import FEW_INPUTS, hash_rows
from fedkin.methods import Local
from fedkin.server import Plan, Server, asked, begin, common, rounds, welcome

Source = Path | str | tuple[Any, Any]
"""A file or folder, or arrays ``(x [n, *shape], y [n])`` as the run's inputs."""
FEW = 30
"""Minimum of test samples without a note on their number: 50 % accuracy then has a 95 % interval of 34 points."""
_SHOWN = 5  # maximum number of clients that are named
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
    for rounds_more in after:
        check_range("after, a number of rounds,", rounds_more, least=0, most=10_000)
    p = finished(run)
    new = newcomer(p, data, encoding)
    shard, where = new.shard, new.where
    if not len(shard.test):
        raise DataError(f"{where}: no sample is left for testing; provide more samples")
    rounds_of_own = sorted(set(after))
    way = _joined(p, shard, rounds_of_own)
    scores = {a: score(way.answers[a].test, way.answers[a].counts) for a in rounds_of_own}
    most = majority_class(shard.train.y.bincount().tolist())
    constant = None if most is None else float((shard.test.y == most).double().mean())
    return Drill(
        data=where, title=p.experiment.title, round=p.server.round, train=len(shard.train),
        validation=len(shard.validation), test=len(shard.test), cluster=way.clusters[0], mates=_mates(p, way.labels),
        weights=None if way.weights is None else _told(p, way.weights),
        accuracy={a: s.accuracy or 0.0 for a, s in scores.items()},
        interval={a: interval(s.correct, s.n_test) for a, s in scores.items()},
        macro_f1={a: s.macro_f1 or 0.0 for a, s in scores.items()},
        clusters={a: way.clusters[a] for a in rounds_of_own},
        local=_alone(p, shard, sorted({*after, p.server.round})), global_model=_global(p, shard),
        constant=constant, notes=notes_on(p, new),
    )  # fmt: skip


@dataclass(frozen=True)
class _Way:
    """Evaluations and clusters of a joining client by its rounds; clusters of all clients and its first weights."""

    answers: dict[int, Bundle]
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
    job = replace(p.job, shards=[*(p.job.shards[i] for i in range(new)), shard])
    answer = {t: [new] for t in range(start + 1, start + last + 1)}  # all are asked, only this client answers
    with clients_of(job, trace=answer) as clients:
        clients.restore(p.states, p.server.acks)
        seen, labels = welcome(c.method, c.net, clients, plan, server, None if grouped else [new])
        result, clusters = {0: seen[new]}, {0: _of(labels, new)}
        for report in islice(rounds(c.method, c.net, c.settings.training, clients, plan, server), last):
            if report.weights is not None and weights is None and new in report.cohort:
                weights = report.weights[report.cohort.index(new)]
            at = report.round - start
            if at in after:
                result |= {at: asked(c.method, c.net, clients, plan, server, "evaluate", [new])[0][new]}
                chosen = result[at].get("cluster")
                clusters[at] = _of(report.clusters, new) if chosen is None else int(chosen)
    return _Way(result, clusters, labels, weights)


def _alone_in(plan: Plan, last: int) -> Plan:
    """Return the plan of rounds that one client answers: its answer is the mean, whatever the rule. No client is
    evaluated in them: the last ten rounds, in which all would be, come after those that are run."""
    total = last + 10
    return plan.but(
        rounds=total, eval_every=total + 1, min_replies=1, oversampling=1.0, aggregation=Aggregation(),
        participation=1.0,
    )  # fmt: skip


def _alone(p: FinishedRun, shard: ClientData, after: Sequence[int]) -> dict[int, float]:
    """Return the accuracy of training on the joining client's data alone, by rounds."""
    c = p.experiment
    plan = _alone_in(c.plan, max(1, *after))
    method, result = Local(), dict[int, float]()
    with clients_of(replace(p.job, method=method, shards=[shard]), joins=[0]) as clients:
        server = begin(method, c.net, plan)
        seen, _ = welcome(method, c.net, clients, plan, server)
        result[0] = _accuracy(seen[0].test)
        for report in islice(rounds(method, c.net, c.settings.training, clients, plan, server), max(after)):
            if report.round in after:
                own = asked(method, c.net, clients, plan, server, "evaluate")[0]
                result[report.round] = _accuracy(own[0].test)
    return {a: result[a] for a in after}


def _global(p: FinishedRun, shard: ClientData) -> float | None:
    """Return the accuracy of the model that all clients receive, if there is one and it predicts by itself."""
    c = p.experiment
    if c.method.family in ("clusters", "no federation") or type(c.method).predict is not Method.predict:
        return None
    with simulation(p) as clients:
        sent = common(c.method, c.net, clients, c.plan, p.server).get("model", torch.empty(0))
    if sent.shape != (c.net.size,):
        return None
    with torch.no_grad():
        right = c.net(sent, c.net.layout(shard.test.x)).argmax(1) == shard.test.y
    return float(right.double().mean())


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


# ---- its data --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class JoiningData:
    """A joining client's data.

    Attributes:
        shard: its samples in their parts.
        where: their source.
        rows: the table that they were read from, if they are rows of one.
    """

    shard: ClientData
    where: str
    rows: Table | None = None


def newcomer(p: FinishedRun, data: Source, encoding: str | None = None) -> JoiningData:
    """Return the joining client's samples, prepared and split as the run's."""
    federation, settings = p.federation, p.experiment.settings
    rows = None
    if isinstance(data, tuple):
        where = "the joining client's data"
        x, y = torch.tensor(array_of(data[0], where, "inputs")), data[1]
    else:
        where = str(data)
        x, y, rows = _read(where, federation, encoding or settings.data.encoding)
    x = x.to(federation.clients[0].train.x.dtype)
    shapes = tuple(x.shape[1:]), federation.shape
    fault = f"inputs of shape {list(shapes[0])}, the run's are {list(shapes[1])}"
    refuse_first(where, [] if shapes[0] == shapes[1] else [fault])
    labels = federation.labels or tuple(map(str, range(federation.classes)))
    made = Federation.from_arrays(
        [(x, y)], classes=federation.classes, name=where, seed=p.job.seed, labels=labels,
        test=settings.data.test, validation=settings.data.validation,
    ).clients[0]  # fmt: skip
    return JoiningData(made, where, rows)


def notes_on(p: FinishedRun, new: JoiningData) -> tuple[str, ...]:
    """Return caveats to read before a joining client's figures: few test samples, copies, data unlike the run's."""
    n = len(new.shard.test)
    few = [f"only {n} test samples: accuracies are uncertain, see their intervals"] if n < FEW else []
    return (*few, *_several(p, new), *_copies(p, new.shard), *_unusual(p, new))


def _several(p: FinishedRun, new: JoiningData) -> list[str]:
    """Return a note on a table whose rows name more than one client."""
    client = _client_column(p)
    if new.rows is None or client not in new.rows.columns:
        return []
    names = sorted(set(new.rows.column(client, "client")))
    shown = f"{len(names)} clients ({listed(names, _SHOWN)})"
    return [f"the column {client} names {shown}: their rows join as one"] if names[1:] else []


def _client_column(p: FinishedRun) -> Any:
    """Return the column that named the client of the run's rows; None if there was none."""
    made = p.federation.preparation
    taken = {} if made is None else dict(made.taken)
    return p.experiment.settings.data.client_column or taken.get("client")


def _unusual(p: FinishedRun, new: JoiningData) -> list[str]:
    """Return notes on values unlike those of all clients' training samples."""
    seen, made = of_all(p.federation, exact=True), p.federation.preparation
    if new.rows is None or made is None:
        x = torch.cat([new.shard.train.x, new.shard.validation.x, new.shard.test.x]).numpy()
        return unusual_inputs(x, seen)
    records, drop = new.rows.records(), p.experiment.settings.data.drop
    unused = (made.target, _client_column(p), *(drop or "").split(","))
    raw = raw_rows(records, made.columns, new.rows.places)
    return unusual_rows(records, raw, made.columns, seen, unused)


def _copies(p: FinishedRun, shard: ClientData) -> list[str]:
    """Return notes on samples that others train on, and on test samples that are also training samples."""
    train, held, test = (hash_rows(part.x) for part in (shard.train, shard.validation, shard.test))
    own, everything = set(train.tolist()), np.concatenate([train, held, test])
    result = []
    inside = sum(h in own for h in test.tolist())
    if inside:
        result.append(f"{inside} of {len(test)} test samples equal training samples of the joining client")
    trained = {i: set(hash_rows(other.train.x).tolist()) for i, other in enumerate(p.federation.clients)}
    of = Counter({i: sum(h in there for h in everything.tolist()) for i, there in trained.items()})
    of, hit = +of, set[int]().union(*trained.values())
    total = sum(h in hit for h in everything.tolist())
    if total:
        names = ", ".join(f"{name_of(p, i) or i}: {n}" for i, n in of.most_common(_SHOWN))
        rest = f" and {len(of) - _SHOWN} more clients" if len(of) > _SHOWN else ""
        tested = sum(h in hit for h in test.tolist())
        result.append(
            f"{total} of {len(everything)} samples, {tested} of {len(test)} test samples among them, equal training "
            f"samples of other clients ({names}{rest}): their figures say nothing of new data"
        )
    if result and len(set(everything.tolist())) < FEW_INPUTS * len(everything):
        result.append("the inputs have so few distinct values that samples may be equal by chance")
    return result


def _read(data: str, federation: Federation, encoding: str | None) -> tuple[Any, Any, Table | None]:
    """Return inputs and classes of a joining client, prepared as the run's, and the table if they are its rows."""
    made, labels = federation.preparation, federation.labels
    files = csv_files([Path(data)]) if Path(data).exists() else []
    if made is not None and made.kind == "table" and files:
        table = read_csv(files, Path(data).name, encoding)
        return *_rows(table, made, federation), table
    side = made.size[0] if made is not None and made.size is not None and made.resized else None
    result = load(data, image_size=side, site=True)
    x = result.rows(np.arange(len(result.all_labels))).x
    if x.ndim == 4 and len(federation.shape) == 3 and (x.shape[1], federation.shape[0]) == (1, 3):
        x = x.expand(-1, 3, -1, -1)  # grey images for a run on coloured ones
    names = labels or tuple(map(str, range(federation.classes)))  # numbers are the places of these
    card = Card("array", federation.classes, None if result.labels is None else names, inputs=result.shape)
    agreed = as_agreed(result, card, data, "the run knows")
    return x, agreed.all_labels, None


def _rows(table: Table, made: Preparation, federation: Federation) -> tuple[Any, Any]:
    """Return inputs and classes of a table."""
    if made.per_client:
        raise ConfigError(
            "the run scales each client's columns by its own values (scaling = 'client'), and a joining client has "
            "none yet; run with scaling = 'pooled' to use join"
        )
    labels = federation.labels or tuple(map(str, range(federation.classes)))
    whole = not made.binary and all(label.lstrip("-").isdecimal() for label in labels)
    card = Card("table", federation.classes, labels, whole, target=made.target, binary=made.binary)
    x = made.scaled(raw_rows(table.records(), made.columns, table.places))
    return x, numbered_classes(table, card, "the run knows", "correct it, or leave these rows out")
