"""One figure of a measured cell, by the name that tables use, for all clients and for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedkin.evaluate import spread
from fedkin.record.figures import to_target
from fedkin.record.lines import Figures, RoundLine
from reproduce.cells import cells_of
from reproduce.results import Line
from reproduce.tables import Table

OF_CLIENTS = {
    "accuracy": "accuracy",
    "pooled": "accuracy",  # the mean over test samples: clients are compared by their accuracies
    "accuracy_trained": "accuracy_trained",
    "accuracy_delivered": "accuracy_delivered",
    "macro_f1": "macro_f1",
    "macro_f1_weighted": "macro_f1",
    "few": "few",
    "medium": "medium",
    "many": "many",
}
"""Metric -> the figure of single clients by which two methods are compared. Others are compared seed by seed."""
NAMES = {
    "pooled": "accuracy over all test samples",
    "best-on-test": "accuracy in the best round, chosen on test samples",
}
"""Metric -> its name on a page, where it is not the metric itself."""
Measured = Mapping[tuple[str, str], Mapping[int, Line]]
"""Row and column -> seed -> line."""


def measured(table: Table, scale: str, done: Mapping[str, Line]) -> dict[tuple[str, str], dict[int, Line]]:
    """Return the lines of a table at one scale."""
    found: dict[tuple[str, str], dict[int, Line]] = {}
    for cell in cells_of(table, scale):
        if cell.digest in done:
            found.setdefault((cell.row.key, cell.column.key), {})[cell.seed] = done[cell.digest]
    return found


def figure(line: Line, metric: str) -> float | None:
    """Return one figure of a measured cell: a fraction, or a number of rounds; None where it has none.

    In addition to the metrics of the library: ``best-on-test``, the highest accuracy of any round, chosen on the test
    part; ``rounds-to-40``, the first round with an accuracy of at least 40 %, None if there is none. A method without a
    model right after training has its ordinary accuracy there.
    """
    curve = line["curve"]
    if metric == "best-on-test":
        return max((a for a in curve["accuracy"] if a is not None), default=None)
    if metric.startswith("rounds-to-"):
        pairs = zip(curve["rounds"], curve["accuracy"], strict=True)
        rounds = [RoundLine(t, figures=Figures(accuracy=a)) for t, a in pairs]
        reached = to_target(rounds, float(metric.removeprefix("rounds-to-")) / 100)
        return None if reached is None else float(reached.round)
    final = line["final"]
    value = final.get(metric, final["accuracy"] if metric in ("accuracy_trained", "accuracy_delivered") else None)
    return None if value is None else float(value)


def of_clients(line: Line, metric: str) -> dict[int, float]:
    """Return the figure of each client that has one; empty for metrics that do not exist per client."""
    clients = line["clients"]
    values = clients.get(OF_CLIENTS.get(metric, ""))
    if values is None and metric in ("accuracy_trained", "accuracy_delivered"):
        values = clients["accuracy"]
    return {i: v for i, v in zip(clients["ids"], values or (), strict=False) if v is not None}


def is_count(metric: str) -> bool:
    """Return whether a metric is a count or an index, which is not shown in per cent."""
    return metric.startswith("rounds-to-") or metric in ("ari", "ari_evaluated")


def digits_of(metric: str, decimals: int) -> int:
    """Return the number of decimal places of a metric; ``decimals`` is the table's number for fractions."""
    return 0 if metric.startswith("rounds-to-") else decimals if not is_count(metric) else 2


@dataclass(frozen=True)
class Shown:
    """The measured figure of a cell as shown on the page.

    Attributes:
        mean: in the unit of the page: per cent, or a number; None where nothing is measured or no seed has one.
        text: mean with standard deviation, and the number of seeds if some are missing.
    """

    mean: float | None
    text: str


def shown(lines: Mapping[int, Line], metric: str, seeds: int, decimals: int) -> Shown:
    """Return the mean over seeds."""
    if not lines:
        return Shown(None, "–")
    values = [figure(line, metric) for line in lines.values()]
    if metric.startswith("rounds-to-") and None in values:
        last = max(line["final"]["last_round"] for line in lines.values())
        some = f" in {values.count(None)} of {len(values)}" if len(values) > 1 else ""
        return Shown(None, f"> {last}{some}")
    found = spread(values)
    if found is None:
        return Shown(None, "·")
    unit, digits = 1.0 if is_count(metric) else 100.0, digits_of(metric, decimals)
    text = f"{unit * found.mean:.{digits}f}"
    text += f" ± {unit * found.std:.{digits}f}" if found.std is not None else ""
    text += " †" if any("diverged" in line for line in lines.values()) else ""
    text += f" ({len(lines)})" if len(lines) < seeds else ""
    return Shown(unit * found.mean, text)
