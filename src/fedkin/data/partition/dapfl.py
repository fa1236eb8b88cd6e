"""Data protocol of DA-PFL's authors (Yang et al., arXiv 2403.09284), for that paper's tables.

Clients share samples: counts per class are drawn first and then filled from the whole pool for each client anew. So it
is not a partition in the strict sense; for anything but the paper's tables use ``dirichlet``. A client whose drawn
count is larger than the class takes the whole class (it happens with 500 images a class and 100 clients).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedkin.core.grammar import converted
from fedkin.data.checks import Indices
from fedkin.data.dataset import Pool
from fedkin.data.partition.base import Assignment, Counts, Partition, clients_or_default, ranged
from fedkin.data.splitting import generator

HELD_OUT = 1 / 6
"""Part of each class kept for testing where the source has no test part: CIFAR's own proportion, 10,000 of 60,000."""
FEMNIST_POOL = 4000
"""Images per class that the authors' FEMNIST preparation keeps."""


@dataclass(frozen=True)
class DAPFLPartition(Partition):
    """The DA-PFL authors' protocol: Dirichlet counts with a floor, drawn anew per client, so clients share samples."""

    # what else the protocol fixes (no validation part, which tests) is in `PROTOCOLS`

    name: ClassVar[str] = "dapfl"

    alpha: float = ranged(0.5, above=0)
    """Concentration of the Dirichlet draw of each class over clients."""
    variant: Literal["cifar", "femnist"] = "cifar"
    """``cifar``: test samples from a part of their own, a tenth of the training counts. ``femnist``: 9 to 1 of all."""
    total: int | None = ranged(None, least=1)
    """Samples per class over all clients before the floor; unset: the authors' 30 to 60 per client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        converted(self.variant, Literal["cifar", "femnist"], "variant")

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; the result has its own test samples. See `Partition.split`.

        ``cifar`` draws them from the official test part, or, where that is merged or missing, from a sixth of each
        class that is held out first. ``femnist`` shares out pooled samples and ignores an official test part.
        """
        k = clients_or_default(clients, pool)
        rng = generator(seed, "partition", self.name, self.variant)
        total = self.total or self._usual_total(pool.classes, k)
        drawn = (rng.dirichlet(np.full(k, self.alpha), size=pool.classes).T * total).astype(np.int64)
        if self.variant == "femnist":
            return self._running(pool, np.stack([_floor_femnist(row) for row in drawn]), rng)
        return self._independent(pool, np.stack([_floor_cifar(row, rng) for row in drawn]), rng)

    def _usual_total(self, classes: int, clients: int) -> int:
        """Return T of the authors' code: by variant, number of classes and number of clients."""
        if self.variant == "femnist":
            return clients * (50 if clients < 100 else 60)
        return clients * (50 if classes > 10 and clients >= 100 else 30)

    def _independent(self, pool: Pool, counts: Counts, rng: np.random.Generator) -> Assignment:
        train_part, test_part = _parts(pool, rng)
        train, test = [], []
        for row in counts:
            wanted = np.where(row > 0, (0.1 * row + 1).astype(np.int64), 0)
            train.append(_draw(train_part, row, rng))
            test.append(_draw(test_part, wanted, rng))
        return Assignment(train=tuple(train), test=tuple(test))

    def _running(self, pool: Pool, counts: Counts, rng: np.random.Generator) -> Assignment:
        """Treat each class as a ring of samples of which the clients take consecutive pieces, one after the
        other."""
        rings = [rng.permutation(np.flatnonzero(pool.y == c))[:FEMNIST_POOL] for c in range(pool.classes)]
        at = np.zeros(pool.classes, dtype=np.int64)
        train, test = [], []
        for row in counts:
            mine: tuple[list[Indices], list[Indices]] = ([], [])
            for c in np.flatnonzero(row):
                some = min(int(row[c]), len(rings[c]))
                piece = rings[c][(at[c] + np.arange(some)) % max(1, len(rings[c]))]
                at[c] += some
                border = int(0.9 * some)
                mine[0].append(piece[:border])
                mine[1].append(piece[border:])
            train.append(np.sort(np.concatenate(mine[0])))
            test.append(np.sort(np.concatenate(mine[1])))
        return Assignment(train=tuple(train), test=tuple(test))


def _floor_cifar(drawn: Counts, rng: np.random.Generator) -> Counts:
    """Return one client's counts, corrected as by the authors.

    A class of 100 or more, at least two classes, a floor.
    """
    row = drawn.copy()
    if row.max() < 100:
        row[row.argmax()] = 120
    low = int(row.max() / 10)
    while (row > 0).sum() <= 1:
        empty = np.flatnonzero(row == 0)
        if len(empty) == 0:
            break
        row[rng.choice(empty)] = low
    some = np.flatnonzero(row > 0)
    least = some[row[some].argmin()]
    if row[least] < low:
        others = some[(some != least) & (row[some] < low)]
        row[others] += low
    row[least] = low
    return row


def _floor_femnist(drawn: Counts) -> Counts:
    """Return the FEMNIST variant of the corrections.

    The first smallest class, possibly an empty one, is set to the floor.
    """
    row = drawn.copy()
    if row.max() < 120:
        row[row.argmax()] = 120
    low = int(row.max() / 10)
    least = int(row.argmin())
    others = np.flatnonzero((row > 0) & (row < low))
    row[others[others != least]] += low
    row[least] = low
    return row


def _parts(pool: Pool, rng: np.random.Generator) -> tuple[list[Indices], list[Indices]]:
    """Return the samples of each class to draw training and test samples from."""
    own = [np.flatnonzero(pool.y == c) for c in range(pool.classes)]
    if pool.test_y is not None:
        return own, [len(pool) + np.flatnonzero(pool.test_y == c) for c in range(pool.classes)]
    mixed = [rng.permutation(numbers) for numbers in own]
    borders = [round(len(numbers) * HELD_OUT) for numbers in own]
    return [m[b:] for m, b in zip(mixed, borders, strict=True)], [m[:b] for m, b in zip(mixed, borders, strict=True)]


def _draw(part: list[Indices], row: Counts, rng: np.random.Generator) -> Indices:
    """Draw N samples of each class without replacement; all samples of a class that has fewer."""
    picked = [rng.choice(part[c], size=min(int(row[c]), len(part[c])), replace=False) for c in np.flatnonzero(row)]
    return np.sort(np.concatenate(picked))
