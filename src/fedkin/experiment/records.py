"""From a round's report to the lines that are written down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedkin.core import stack
from fedkin.evaluate import adjusted_rand, only_class, scores, summarise
from fedkin.server import RoundReport
from fedkin.server.rounds import chosen
from fedkin.server.upload_checks import OUTCOMES

_ALWAYS = (
    "round",
    "cohort",
    "answered",
    "joined",
    "absent",
    "refused",
    "missing",
    "abandoned",
    "bytes_up",
    "bytes_down",
    "bytes_evaluation",
    "evaluated",
)
_WITHOUT_EVALUATION = ("limited", "cluster_sizes", "notes", "dp_steps")


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


@dataclass(frozen=True)
class RoundRecords:
    """The lines of one round for each file."""

    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    relations: list[dict[str, Any]]

    def drop_outcomes(self) -> None:
        """Remove the outcomes of single test samples, which only the lines of a run's last round have."""
        for line in self.clients:
            for name in OUTCOMES:
                line.pop(name, None)


def lines_of(report: RoundReport, people: Participants, described: set[int] | None = None) -> RoundRecords:
    """Return a round's report in plain values: its line, lines of its clients, and relations.

    Args:
        described: clients whose training samples by class are in an earlier line; the first line of any other client
            has them, and the client is added. None: they are not recorded.
    """
    line: dict[str, Any] = {
        "round": report.round,
        "cohort": report.cohort,
        "answered": report.answered,
        "joined": report.joined,
        "absent": report.absent,
        "refused": {str(i): reason for i, reason in report.refused.items()},
        "missing": {str(i): reason for i, reason in sorted(report.missing.items())},
        "abandoned": report.abandoned,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "bytes_evaluation": report.bytes_evaluation,
        "evaluated": bool(report.evaluation),
    }
    clients = []
    if report.evaluation:
        together = stack({i: b.only(("test", "validation", "counts")) for i, b in report.evaluation.items()})
        found = scores(sorted(report.evaluation), together.test, together.validation, together.counts)
        line |= summarise(found)
        clients = [s.line(report.round) for s in found]
        if described is not None:
            _add_counts(clients, report, described)
        _outcomes(clients, report)
        for own, b in zip(clients, report.evaluation.values(), strict=True):
            own |= {"cluster": int(b.cluster)} if "cluster" in b else {}
            own |= {f"note_{name}": float(t) for name, t in b.inside("note").items() if not t.dim()}
        line |= _views(report, clients)
        if lost := [i for i, b in report.evaluation.items() if int(b.get("unpredicted", 0))]:
            line["unpredicted"] = lost
        elif (said := only_class(together.test)) is not None:
            line["only_class"] = said
    if report.unevaluated:
        line["unevaluated"] = {str(i): reason for i, reason in sorted(report.unevaluated.items())}
    if report.limited:
        line["limited"] = {
            str(i): {"claimed": claimed, "used": used} for i, (claimed, used) in sorted(report.limited.items())
        }
    line |= _grouping(report, people)
    if report.notes:
        line["notes"] = report.notes
    return RoundRecords([line], clients, _relations(report))


def unevaluated(line: dict[str, Any]) -> dict[str, Any]:
    """Return the line of a round as it would be if the round had not been evaluated."""
    kept = {name: value for name, value in line.items() if name in _ALWAYS or name in _WITHOUT_EVALUATION}
    refused = {i: why for i, why in line["refused"].items() if not why.startswith("evaluation: ")}
    if "notes" in kept:
        kept["notes"] = {name: v for name, v in kept["notes"].items() if not name.startswith("evaluated_")}
        kept = {name: value for name, value in kept.items() if name != "notes" or value}
    return {**kept, "refused": refused, "bytes_evaluation": 0, "evaluated": False}


def _add_counts(clients: list[dict[str, Any]], report: RoundReport, described: set[int]) -> None:
    """Add a client's training samples by class to its first line; they do not change unless data drift."""
    for line, (i, b) in zip(clients, report.evaluation.items(), strict=True):
        if i not in described:
            line["labels"] = b.counts.tolist()
            described.add(i)


def _outcomes(clients: list[dict[str, Any]], report: RoundReport) -> None:
    """Right or wrong for every test sample, and which samples these are: hexadecimal digits, two for each byte."""
    for line, b in zip(clients, report.evaluation.values(), strict=True):
        line |= {name: bytes(b[name].tolist()).hex() for name in OUTCOMES if name in b}


def _views(report: RoundReport, clients: list[dict[str, Any]]) -> dict[str, float]:
    """Accuracy of further models that a method shows, per client and as the mean over clients."""
    found: dict[str, list[float]] = {}
    for line, b in zip(clients, report.evaluation.values(), strict=True):
        for name in b:
            view, _, part = name.rpartition(".")
            if view and part == "test" and bool(b[name].any()):
                n, _, right = b[name].sum(1).tolist()
                line[f"accuracy_{view}"] = value = right / n
                found.setdefault(f"accuracy_{view}", []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _grouping(report: RoundReport, people: Participants) -> dict[str, Any]:
    """Return the sizes of the server's clusters and, in evaluated rounds, their agreement with the true groups.

    The agreement of the clusters that clients chose at the evaluation is given next to it."""
    if report.clusters is None:
        return {}
    known = report.clusters[report.clusters >= 0]
    out: dict[str, Any] = {"cluster_sizes": torch.bincount(known, minlength=report.cluster_count).tolist()}
    true = people.groups_in(report.round)
    if true is not None and report.evaluation:
        groups = true[: len(report.clusters)]
        out["ari"] = adjusted_rand(report.clusters, groups)
        if (labels := chosen(report.evaluation, len(groups))) is not None:
            out["ari_evaluated"] = adjusted_rand(labels, groups)
    return out


def _relations(report: RoundReport) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    if report.clusters is not None:
        lines.append({"round": report.round, "kind": "clusters", "labels": report.clusters.tolist()})
    if report.weights is not None:
        lines.append({"round": report.round, "kind": "weights", "rows": _sparse(report.cohort, report.weights)})
    return lines


def _sparse(cohort: list[int], weights: Tensor) -> dict[str, dict[str, float]]:
    """Return the entries of each client's row that are not zero, by client."""
    names = [str(j) for j in range(weights.shape[1])]  # once: a round of K clients may have K x K entries
    rows = dict[str, dict[str, float]]()
    for i, row, rounded in zip(cohort, weights, weights.double().round(decimals=6), strict=True):
        there = row.nonzero().flatten()
        rows[str(i)] = dict(zip(map(names.__getitem__, there.tolist()), rounded[there].tolist(), strict=True))
    return rows
