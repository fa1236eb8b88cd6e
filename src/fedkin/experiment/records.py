"""From a round's report to the lines that are written down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from msgspec.structs import replace
from torch import Tensor

from fedkin.core import Bundle, stack
from fedkin.evaluate import adjusted_rand, only_class, scores
from fedkin.privacy.budget import Spent, written
from fedkin.record.figures import summarise
from fedkin.record.lines import ClientLine, Figures, RelationLine, RoundLine
from fedkin.server import RoundReport
from fedkin.server.rounds import chosen
from fedkin.server.upload_checks import OUTCOMES


class Participants(Protocol):
    """Clients of a run: a federation, or the clients that have joined so far."""

    def __len__(self) -> int: ...

    def groups_in(self, round: int) -> Tensor | None:
        """Return the true group of each client in a round, ``[K]``, where they are known."""

    @property
    def client_names(self) -> tuple[str, ...] | None:
        """What the clients are called, where they have names."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """What the classes are called, where they have names."""


@dataclass
class RoundRecords:
    """The lines of one round for each file."""

    round: RoundLine
    clients: list[ClientLine]
    relations: list[RelationLine]

    def drop_outcomes(self) -> None:
        """Remove the outcomes of single test samples, which only the lines of a run's last round have."""
        self.clients = [without_outcomes(line) for line in self.clients]


def without_outcomes(line: ClientLine) -> ClientLine:
    """Return a client's line without the outcomes of single test samples."""
    return replace(line, right=b"", test_part="", logits="")


def lines_of(
    report: RoundReport,
    people: Participants,
    described: set[int] | None = None,
    spent: Mapping[int, Spent] | None = None,
) -> RoundRecords:
    """Return the lines of a round.

    Args:
        described: clients whose training samples by class are in an earlier line; the first line of any other client
            has them, and the client is added. None: they are not recorded.
        spent: private training of the round.
    """
    clients, figures = _evaluation(report, people, described) if report.evaluation else ([], None)
    known = None if report.clusters is None else report.clusters[report.clusters >= 0]
    line = RoundLine(
        round=report.round,
        cohort=tuple(report.cohort),
        answered=tuple(report.answered),
        joined=tuple(report.joined),
        absent=tuple(report.absent),
        abandoned=report.abandoned,
        refused=report.refused,
        bytes_up=report.bytes_up,
        bytes_down=report.bytes_down,
        bytes_evaluation=report.bytes_evaluation,
        limited=dict(sorted(report.limited.items())),
        private=written(spent or {}),
        cluster_sizes=() if known is None else tuple(torch.bincount(known, minlength=report.cluster_count).tolist()),
        notes=_noted(report, of_evaluation=False),
        figures=figures,
    )
    return RoundRecords(line, clients, _relations(report))


def unevaluated(line: RoundLine) -> RoundLine:
    """Return the line of a round as it would be if the round had not been evaluated."""
    kept = tuple(r for r in line.refused if r.stage not in ("evaluate-query", "evaluate"))
    return replace(line, refused=kept, bytes_evaluation=0, figures=None)


def _noted(report: RoundReport, *, of_evaluation: bool) -> dict[str, float | None]:
    """Return the numbers of the method that are about the evaluation, or all others."""
    return {n: v for n, v in report.notes.items() if n.startswith("evaluated_") is of_evaluation}


def _evaluation(
    report: RoundReport, people: Participants, described: set[int] | None
) -> tuple[list[ClientLine], Figures]:
    together = stack({i: b.only(("test", "validation", "counts")) for i, b in report.evaluation.items()})
    ids = sorted(report.evaluation)
    plain = scores(report.round, ids, together.test, together.validation, together.counts)
    clients = [_client(line, report.evaluation[line.client], described) for line in plain]
    lost = tuple(i for i, b in report.evaluation.items() if int(b.get("unpredicted", 0)))
    views = dict.fromkeys(name for line in clients for name in line.views)
    return clients, replace(
        summarise(clients),
        **_agreement(report, people),
        unpredicted=lost,
        only_class=None if lost else only_class(together.test),
        views={name: _mean([line.views[name] for line in clients if name in line.views]) for name in views},
        notes=_noted(report, of_evaluation=True),
    )


def _client(line: ClientLine, b: Bundle, described: set[int] | None) -> ClientLine:
    """Return a client's line with what is not a count by class."""
    labels = ()
    if described is not None and line.client not in described:  # they do not change unless data drift
        labels = tuple(b.counts.tolist())
        described.add(line.client)
    right, part, logits = (bytes(b[name].tolist()) if name in b else b"" for name in OUTCOMES)
    return replace(
        line,
        cluster=int(b.cluster) if "cluster" in b else None,
        labels=labels,
        views=_views(b),
        notes={name: float(t) for name, t in b.inside("note").items() if not t.dim()},
        right=right,
        test_part=part.hex(),
        logits=logits.hex() if any(logits) else "",  # zeros: not finite
    )


def _views(b: Bundle) -> dict[str, float | None]:
    """Return the accuracy of further models that a method shows of a client."""
    result: dict[str, float | None] = {}
    for name in b:
        view, _, part = name.rpartition(".")
        if view and part == "test" and bool(b[name].any()):
            n, _, right = b[name].sum(1).tolist()
            result[view] = right / n
    return result


def _mean(values: list[float | None]) -> float:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known)


def _agreement(report: RoundReport, people: Participants) -> dict[str, float | None]:
    """Return how the server's clusters agree with the true groups, and those that clients chose at the evaluation."""
    true = None if report.clusters is None else people.groups_in(report.round)
    if true is None or report.clusters is None:
        return {}
    groups = true[: len(report.clusters)]
    labels = chosen(report.evaluation, len(groups))
    own = None if labels is None else adjusted_rand(labels, groups)
    return {"ari": adjusted_rand(report.clusters, groups), "ari_evaluated": own}


def _relations(report: RoundReport) -> list[RelationLine]:
    if report.clusters is None and report.weights is None:
        return []
    clusters = () if report.clusters is None else tuple(report.clusters.tolist())
    weights = {} if report.weights is None else _sparse(report.cohort, report.weights)
    return [RelationLine(report.round, weights, clusters)]


def _sparse(cohort: list[int], weights: Tensor) -> dict[int, dict[int, float]]:
    """Return the entries of each client's row that are not zero, by client."""
    rows = dict[int, dict[int, float]]()
    for i, row, rounded in zip(cohort, weights, weights.double().round(decimals=6), strict=True):
        there = row.nonzero().flatten()
        rows[i] = dict(zip(there.tolist(), rounded[there].tolist(), strict=True))
    return rows
