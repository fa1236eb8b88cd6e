"""Claims of the papers against measured cells: paired comparisons over seeds and clients, with intervals.

A claim is a set of comparisons. It holds if in each of them the whole 95 % interval lies on the claimed side. It does
not hold if in one of them the whole interval lies on the other side; as there may be many, that interval is wider: its
level is 95 % for all comparisons of the claim together (Bonferroni). Otherwise it is undecided, as for one seed, and as
for a mean over columns some of which are not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedkin.evaluate import Difference, difference
from reproduce.cells import Cell, cells_of
from reproduce.figures import OF_CLIENTS, figure, is_count, of_clients
from reproduce.results import Line
from reproduce.tables import Claim, Table

Word = Literal["holds", "does not hold", "undecided", "not measured yet"]
LEVEL = 0.95
Cells = Mapping[tuple[str, str], Mapping[int, tuple[Cell, Line]]]


@dataclass(frozen=True)
class Compared:
    """A comparison of one row with another.

    Attributes:
        where: key of the column; several separated by commas where the mean over columns is compared.
        columns: number of the columns that the comparison is about; more than in ``where`` if some are not measured.
        found: the difference, positive where the first row is better; None: not measured, or no seed in common.
        ahead: number of seeds in which the first row is better.
        of: unit of the difference: points, rounds, or "" for none.
    """

    row: str
    than: str
    where: str
    word: Word
    found: Difference | None = None
    ahead: int = 0
    of: str = "points"
    columns: int = 1

    @property
    def unit(self) -> float:
        """Factor by which a difference is multiplied for display."""
        return 100.0 if self.of == "points" else 1.0


@dataclass(frozen=True)
class Verdict:
    """Result of the measured cells for a claim at one scale."""

    claim: Claim
    scale: str
    word: Word
    parts: tuple[Compared, ...]


def verdict(table: Table, claim: Claim, scale: str, done: Mapping[str, Line]) -> Verdict:
    """Return the verdict from all comparisons of the claim."""
    cells: dict[tuple[str, str], dict[int, tuple[Cell, Line]]] = {}
    for cell in cells_of(table, scale):
        if cell.digest in done:
            cells.setdefault((cell.row.key, cell.column.key), {})[cell.seed] = (cell, done[cell.digest])
    columns = _columns(table, claim, scale)
    groups = [columns] if claim.pooled else [(column,) for column in columns]
    count = len(claim.pairs) * len(groups)
    parts = tuple(_part(table, claim, pair, group, cells, count) for pair in claim.pairs for group in groups)
    return Verdict(claim, scale, _overall([part.word for part in parts]), parts)


def _columns(table: Table, claim: Claim, scale: str) -> tuple[str, ...]:
    """Return the columns of the claim that exist at this scale."""
    there = table.scales[scale].columns
    asked = tuple(table.columns) if claim.columns is None else claim.columns
    return tuple(column for column in asked if there is None or column in there)


def _overall(words: Sequence[Word]) -> Word:
    if set(words) <= {"not measured yet"}:
        return "not measured yet"
    if "does not hold" in words:
        return "does not hold"
    return "holds" if set(words) == {"holds"} else "undecided"


def _part(
    table: Table, claim: Claim, pair: tuple[str, str], columns: tuple[str, ...], cells: Cells, count: int
) -> Compared:
    """Return one comparison, in one column or over several: those of them that are measured."""
    asked = len(columns)
    columns = tuple(c for c in columns if {*cells.get((pair[0], c), {})} & {*cells.get((pair[1], c), {})})
    where = ", ".join(columns)
    both = [(cells[pair[0], c], cells[pair[1], c]) for c in columns]
    seeds = sorted(set.intersection(*({*a} & {*b} for a, b in both))) if both else []
    if not seeds:
        return Compared(*pair, where, "not measured yet")
    metrics = [claim.metric or table.metrics_of(c)[0] for c in columns]
    gains = [
        {
            (n << 20) + client: gain
            for n, ((a, b), metric) in enumerate(zip(both, metrics, strict=True))
            for client, gain in gains_of(a[seed][1], b[seed][1], metric).items()
        }
        for seed in seeds
    ]
    if not all(gains):
        return Compared(*pair, where, "not measured yet")
    of = "points" if not is_count(metrics[0]) else "rounds" if metrics[0].startswith("rounds-to-") else ""
    same = is_count(metrics[0]) or _same(both[0][0][seeds[0]][0])  # columns are the same in every seed
    found = difference(gains, LEVEL, same)
    wide = difference(gains, 1 - (1 - LEVEL) / count, same)
    ahead = sum(sum(one.values()) > 0 for one in gains)
    word = judged(claim, found, wide, 100.0 if of == "points" else 1.0) if len(columns) == asked else "undecided"
    return Compared(*pair, where, word, found, ahead, of, asked)


def gains_of(line: Line, other: Line, metric: str) -> dict[int, float]:
    """Return the gains of a run over another one of the same seed, by client; as client 0 if the metric does not exist
    per client.

    Fewer rounds are better; a target that was never reached counts as reached in the round after the last.
    """
    if metric in OF_CLIENTS:
        mine, theirs = of_clients(line, metric), of_clients(other, metric)
        return {client: mine[client] - theirs[client] for client in mine.keys() & theirs.keys()}
    if metric.startswith("rounds-to-"):
        rounds = [
            line["final"]["last_round"] + 1 if (t := figure(line, metric)) is None else t for line in (other, line)
        ]
        return {0: float(rounds[0] - rounds[1])}
    pair = (figure(line, metric), figure(other, metric))
    return {} if pair[0] is None or pair[1] is None else {0: pair[0] - pair[1]}


def judged(claim: Claim, found: Difference, wide: Difference, unit: float) -> Word:
    """Return the verdict of one comparison on a claim.

    Args:
        claim: the claim.
        found: the difference with the interval that shows it to hold.
        wide: the difference with the interval that shows it not to hold.
        unit: unit of the claim's bounds, in terms of the difference.
    """
    if found.seeds == 1 or found.low is None or found.high is None or wide.low is None or wide.high is None:
        return "undecided"
    if found.identical and claim.within is None:  # the interval is a point at zero
        return "does not hold"
    if claim.within is not None:
        bound = claim.within / unit
        inside, outside = -bound <= found.low and found.high <= bound, wide.low > bound or wide.high < -bound
    else:
        inside, outside = found.low > claim.by / unit, wide.high < claim.by / unit
    return "holds" if inside else "does not hold" if outside else "undecided"


def _same(cell: Cell) -> bool:
    """Return whether clients are the same in every seed: natural clients, or data split by a separate seed."""
    data = cell.settings.data
    return data.data_seed is not None or data.partition == "natural"
