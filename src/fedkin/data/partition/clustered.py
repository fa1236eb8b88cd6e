"""Partitions with true groups of clients, as in Fed-CAM (Ma et al., NeurIPS 2023): skewed between, alike within.

Clients of a group have consecutive numbers; groups differ in size by one client at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from fedkin.core.errors import ConfigError, PartitionError
from fedkin.data.checks import Indices
from fedkin.data.dataset import Pool
from fedkin.data.draws import generator
from fedkin.data.partition.base import (
    Assignment,
    Counts,
    Partition,
    check_clients,
    check_enough,
    cut,
    deal,
    members,
    ranged,
)
from fedkin.data.partition.label import hand_out, present_classes, share_classes

_TRIES_FOR_DISTINCT = 100


def _group_of_client(groups: int, clients: int) -> Indices:
    if groups > clients:
        raise ConfigError(f"{groups} groups need at least {groups} clients, got {clients}; lower groups")
    sizes = np.full(groups, clients // groups) + (np.arange(groups) < clients % groups)
    return np.repeat(np.arange(groups), sizes)


@dataclass(frozen=True)
class ClusterDirichlet(Partition):
    """Classes shared out to groups by Dirichlet(alpha_between), inside a group by Dirichlet(alpha_within)."""

    name: ClassVar[str] = "cluster-dirichlet"

    groups: int = ranged(5, least=1)
    """Number of true groups."""
    alpha_between: float = ranged(0.1, above=0)
    """Concentration over groups: small, so that groups differ."""
    alpha_within: float = ranged(10.0, above=0)
    """Concentration over the clients of a group: large, so that they are similar."""
    min_samples: int = ranged(10, least=1)
    """Minimum number of samples per client; the draw is repeated until every client has it."""
    min_group: float = ranged(0.3, least=0, below=1)
    """Every group holds at least this fraction of an equal share of the samples (Fed-CAM's code: 0.3)."""
    tries: int = ranged(1000, least=1)
    """Draws before giving up."""

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; the result has true groups. See `Partition.split`."""
        k = check_clients(clients, pool, self.name)
        check_enough(self.min_samples, k, pool)
        group = _group_of_client(self.groups, k)
        rng, samples = generator(seed, "partition", self.name), members(pool)
        sizes = np.array([len(numbers) for numbers in samples])
        small = 0
        for _ in range(self.tries):
            between = cut(sizes, rng.dirichlet(np.full(self.groups, self.alpha_between), size=len(sizes)))
            small = int(between.sum(axis=0).min())
            if small < self.min_group * len(pool) / self.groups:
                continue
            counts = self._within(between, group, rng)
            small = int(counts.sum(axis=0).min())
            if small >= self.min_samples:
                return Assignment(train=deal(samples, counts, rng), groups=torch.from_numpy(group))
        raise PartitionError(
            f"{self.groups} groups by Dirichlet({self.alpha_between:g}) of at least {self.min_group:g} of an equal "
            f"share, with clients of at least {self.min_samples} samples, did not come up in {self.tries} tries (the "
            f"last gave {small}); lower groups, min_group or min_samples, or raise alpha_between or alpha_within"
        )

    def _within(self, between: Counts, group: Indices, rng: np.random.Generator) -> Counts:
        counts = np.zeros((len(between), len(group)), dtype=np.int64)
        for g in range(self.groups):
            own = np.flatnonzero(group == g)
            counts[:, own] = cut(between[:, g], rng.dirichlet(np.full(len(own), self.alpha_within), size=len(between)))
        return counts


@dataclass(frozen=True)
class ClusterClasses(Partition):
    """A few classes per group, of which each client of the group holds some; equal shares of a class."""

    name: ClassVar[str] = "cluster-classes"

    groups: int = ranged(5, least=1)
    """Number of true groups."""
    classes_per_group: int = 3
    """Classes of a group, drawn at random; sets differ between groups where possible."""
    classes_per_client: int = ranged(2, least=1)
    """Classes of a client, drawn from its group's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes_per_client > self.classes_per_group:
            raise ConfigError(
                f"classes_per_client is {self.classes_per_client}, more than classes_per_group, "
                f"{self.classes_per_group}; lower it"
            )

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; the result has true groups. See `Partition.split`."""
        k = check_clients(clients, pool, self.name)
        group, samples = _group_of_client(self.groups, k), members(pool)
        present = present_classes(samples, pool, classes_per_group=self.classes_per_group)
        rng = generator(seed, "partition", self.name)
        of_group = self._sets(len(present), rng)
        owned = np.zeros((pool.classes, k), dtype=bool)
        for g in range(self.groups):
            allowed = np.repeat(of_group[:, g, None], int((group == g).sum()), axis=1)
            owned[np.ix_(present, np.flatnonzero(group == g))] = hand_out(allowed, self.classes_per_client, rng)
        counts = share_classes(samples, owned, True, pool, rng)
        return Assignment(train=deal(samples, counts, rng), groups=torch.from_numpy(group))

    def _sets(self, classes: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Return the classes of each group, ``[classes, groups]``: all classes used when possible, sets distinct."""
        everything = np.ones((classes, self.groups), dtype=bool)
        sets = hand_out(everything, self.classes_per_group, rng)
        if math.comb(classes, self.classes_per_group) < self.groups:
            return sets
        for _ in range(_TRIES_FOR_DISTINCT):
            if len(np.unique(sets, axis=1).T) == self.groups:
                break
            sets = hand_out(everything, self.classes_per_group, rng)
        return sets
