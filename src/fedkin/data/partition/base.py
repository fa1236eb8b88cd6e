"""Base of all partitions: the call, its result, the checks and the distribution of samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedkin.core.errors import PartitionError
from fedkin.data.checks import Indices, check_range
from fedkin.data.dataset import Pool

DEFAULT_CLIENTS = 20
Counts = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Assignment:
    """Samples of each client.

    Attributes:
        train: numbers of each client's samples, sorted. They are split further into train, validation and test,
            unless ``test`` is given.
        test: numbers of each client's test samples, for protocols with their own test rule.
        groups: true group of each client, int64 ``[K]``, where the partition makes or knows groups.
        names: names of the clients, where they have any.
        notes: facts that the user should know, such as clients that were left out.
    """

    train: tuple[Indices, ...]
    test: tuple[Indices, ...] | None = None
    groups: Tensor | None = None
    names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def ranged(default: T, **limits: float) -> T:
    """Return a field of a partition with its default and its range: the limits of `check_range`."""
    return field(default=default, metadata=limits)


class Partition(ABC):
    """Way of sharing out samples to clients: a frozen dataclass whose fields are its settings.

    Its draws depend on the seed alone. A partition sees labels and client ids, never inputs.

    Raises:
        ConfigError: a setting out of the range that `ranged` declares.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # every partition is a dataclass
    name: ClassVar[str]

    def __post_init__(self) -> None:
        for own in fields(self):
            if own.metadata and getattr(self, own.name) is not None:
                check_range(own.name, getattr(self, own.name), **own.metadata)

    @abstractmethod
    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out ``pool``.

        Args:
            pool: labels of the samples, see `Dataset.pool`.
            clients: number of clients.
            seed: fixes every draw.

        Raises:
            PartitionError: impossible with these samples.
            ConfigError: a number out of range.
        """


def clients_or_default(clients: int | None, pool: Pool) -> int:
    """Return the number of clients, `DEFAULT_CLIENTS` if none is given; raise unless there is a sample for each."""
    count = DEFAULT_CLIENTS if clients is None else clients
    check_range("clients", count, least=1)
    check_enough(1, count, pool)
    return count


def drawn_until(draw: Callable[[], Counts], clients: int, pool: Pool, how: Any) -> Counts:
    """Return the first draw of counts ``[..., K]``, by class or in all, that gives every client enough samples.

    ``how`` is the partition, with ``alpha``, ``min_samples`` and ``tries``.
    """
    check_enough(how.min_samples, clients, pool)
    for _ in range(how.tries):
        counts = draw()
        sizes = counts.reshape(-1, clients).sum(axis=0)
        if sizes.min() >= how.min_samples:
            return counts
    worst = int(sizes.argmin())
    raise PartitionError(
        f"Dirichlet({how.alpha:g}) gave client {worst} only {sizes[worst]} samples after {how.tries} tries; lower "
        f"min_samples (now {how.min_samples}) or clients (now {clients}), or raise alpha or tries"
    )


def check_enough(min_samples: int, clients: int, pool: Pool) -> None:
    """Raise PartitionError if there are too few samples in all."""
    if min_samples * clients > len(pool):
        what = f"cannot share the {len(pool)} samples of {pool.name}; lower"
        if min_samples > 1:
            needed = f"with at least {min_samples} samples each need {min_samples * clients} samples"
            what = f"{needed}, {pool.name} has {len(pool)}; lower min_samples or"
        raise PartitionError(f"{clients} clients {what} the number of clients")


def members(pool: Pool) -> list[Indices]:
    """Return the numbers of the samples of each class."""
    return [np.flatnonzero(pool.y == c) for c in range(pool.classes)]


def deal(samples: Sequence[Indices], counts: Counts, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Share out the samples of each class at random: ``counts [classes, K]`` of them, at most as many as there are."""
    shares: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for numbers, row in zip(samples, counts, strict=True):
        pieces = np.split(rng.permutation(numbers), np.cumsum(row))
        for share, piece in zip(shares, pieces, strict=False):  # the last piece has no client
            share.append(piece)
    return tuple(np.sort(np.concatenate(share)) for share in shares)


def cut(total: int | Counts, shares: npt.NDArray[np.float64]) -> Counts:
    """Return whole numbers in the proportions of ``shares [..., K]`` that sum to ``total`` exactly."""
    ends = np.floor(np.cumsum(shares, axis=-1) * np.asarray(total)[..., None] + 1e-9).astype(np.int64)
    ends[..., -1] = total
    pieces: Counts = np.diff(np.minimum(ends, np.asarray(total)[..., None]), axis=-1, prepend=0)
    return pieces


def largest_remainder(total: int, shares: npt.NDArray[np.float64]) -> Counts:
    """Split ``total`` into whole numbers nearest to the proportions ``shares [n]``, ties to the first.

    The proportions sum to 1.
    """
    exact = total * shares
    whole = np.floor(exact + 1e-9).astype(np.int64)
    rest = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
    return whole
