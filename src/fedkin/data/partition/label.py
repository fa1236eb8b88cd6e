"""Partitions by label or by quantity, with and without true groups of clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from fedkin.core.errors import PartitionError
from fedkin.data.checks import Indices, check_range
from fedkin.data.dataset import Pool
from fedkin.data.partition.base import (
    Assignment,
    Counts,
    Partition,
    check_enough,
    clients_or_default,
    cut,
    deal,
    drawn_until,
    largest_remainder,
    members,
    ranged,
)  # fmt: skip
from fedkin.data.splitting import generator

Floats = npt.NDArray[np.float64]
_TRIES_FOR_DISTINCT = 100


@dataclass(frozen=True)
class IID(Partition):
    """Samples dealt at random, equally many to each client."""

    name: ClassVar[str] = "iid"

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; see `Partition.split`."""
        k = clients_or_default(clients, pool)
        order = generator(seed, "partition", self.name).permutation(len(pool))
        return Assignment(train=tuple(np.sort(share) for share in np.array_split(order, k)))


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class shared out in proportions drawn from Dirichlet(alpha): the usual label skew."""

    name: ClassVar[str] = "dirichlet"

    alpha: float = ranged(0.5, above=0)
    """Concentration: below 1 clients hold few classes, above 10 nearly the same mix."""
    min_samples: int = ranged(10, least=1)
    """Minimum number of samples per client; the draw is repeated until every client has it."""
    balance: bool = False
    """A client that holds its equal share gets nothing of the classes to come (as NIID-Bench and PFLlib do)."""
    tries: int = ranged(50_000, least=1)
    """Draws before giving up. Alpha 0.01 with 10 classes and 20 clients takes thousands."""

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; see `Partition.split`."""
        k = clients_or_default(clients, pool)
        rng, samples = generator(seed, "partition", self.name), members(pool)
        counts = drawn_until(lambda: self._draw(samples, k, rng), k, pool, self)
        return Assignment(train=deal(samples, counts, rng))

    def _draw(self, samples: list[Indices], clients: int, rng: np.random.Generator) -> Counts:
        shares = rng.dirichlet(np.full(clients, self.alpha), size=len(samples))
        sizes = np.array([len(numbers) for numbers in samples])
        if not self.balance:
            return cut(sizes, shares)
        counts, fair = np.zeros((len(samples), clients), dtype=np.int64), sizes.sum() / clients
        for c in rng.permutation(np.flatnonzero(sizes)):  # while samples are left, some client is open
            open_ = counts.sum(axis=0) < fair
            share = np.where(open_, shares[c], 0.0)
            if share.sum() <= 0:  # the open clients' shares are below what a float can hold
                share = open_ / open_.sum()
            counts[c] = cut(int(sizes[c]), share / share.sum())
        return counts


@dataclass(frozen=True)
class QuantitySkew(Partition):
    """Clients' sizes in proportions drawn from Dirichlet(alpha), samples dealt at random: quantity skew."""

    name: ClassVar[str] = "quantity"

    alpha: float = ranged(0.5, above=0)
    """Concentration: below 1 a few clients hold most samples, above 10 sizes are similar."""
    min_samples: int = ranged(10, least=1)
    """Minimum number of samples per client; the draw is repeated until every client has it."""
    tries: int = ranged(50_000, least=1)
    """Draws before giving up."""

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; see `Partition.split`.

        ``q ~ Dir_K(alpha)``, and client k gets a fraction ``q_k`` of all samples, whatever their labels: the quantity
        skew of Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (NIID-Bench),
        where alpha is called beta and is 0.5 or 0.1. As in their program, q is drawn again until every client has
        enough samples, there 10.
        """
        k = clients_or_default(clients, pool)
        rng = generator(seed, "partition", self.name)
        sizes = drawn_until(lambda: cut(len(pool), rng.dirichlet(np.full(k, self.alpha))), k, pool, self)
        return Assignment(train=deal([np.arange(len(pool))], sizes[None], rng))


@dataclass(frozen=True)
class DirichletTotal(Partition):
    """Clients of equal size whose class mixes are drawn from Dirichlet(alpha * p), total concentration alpha."""

    name: ClassVar[str] = "dirichlet-total"

    alpha: float = ranged(0.5, above=0)
    """Total concentration. With C equal classes each has alpha / C: far harsher than ``dirichlet`` with that alpha."""

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; see `Partition.split`.

        Clients are served in random order. A client whose class has run out takes the classes that are left in its own
        proportions among them, which are again Dirichlet distributed with the same parameters; so the skew stays, but
        the last clients get what is left. Sizes differ by one at most and every sample is used.
        Source: FLGo, on which CFIC's experiments seem to have run: an inference from its models and defaults, which are
        those of the paper; the paper does not name it.
        """
        k = clients_or_default(clients, pool)
        rng, samples = generator(seed, "partition", self.name), members(pool)
        stock = np.array([len(numbers) for numbers in samples])
        p = stock / stock.sum()
        sizes = np.full(k, len(pool) // k) + (np.arange(k) < len(pool) % k)
        counts = np.zeros((pool.classes, k), dtype=np.int64)
        for client in rng.permutation(k):
            counts[:, client] = _serve(int(sizes[client]), stock, _log_dirichlet(self.alpha * p, rng))
            stock = stock - counts[:, client]
        return Assignment(train=deal(samples, counts, rng))


def _log_dirichlet(alpha: Floats, rng: np.random.Generator) -> Floats:
    """Return the logarithms of a Dirichlet draw up to a constant; -inf where alpha is 0.

    In logarithms, proportions such as 1e-400 stay distinct.
    """
    log = np.full(len(alpha), -np.inf)
    some = alpha > 0
    # G(a) = G(a + 1) * U^(1/a): a gamma variate of small shape a is below the smallest float, its logarithm is not
    log[some] = np.log(rng.gamma(alpha[some] + 1)) + np.log(1 - rng.random(int(some.sum()))) / alpha[some]
    return log


def _serve(size: int, stock: Counts, log_mix: Floats) -> Counts:
    """Return ``size`` samples in the proportions ``log_mix``, as far as the stock of each class allows."""
    got = np.zeros(len(stock), dtype=np.int64)
    while (need := size - int(got.sum())) > 0:
        logits = np.where(stock > got, log_mix, -np.inf)
        share = np.exp(logits - logits.max())
        got += np.minimum(largest_remainder(need, share / share.sum()), stock - got)
    return got


@dataclass(frozen=True)
class ClassesPerClient(Partition):
    """A fixed number of classes per client, called pathological; no sample is shared."""

    name: ClassVar[str] = "classes"

    classes_per_client: int = ranged(2, least=1)
    """Classes each client holds. With clients * classes_per_client below the number of classes, some stay unused."""
    balanced: bool = False
    """Owners of a class get equal shares of it; otherwise weights from 0.1 to 1 are drawn."""

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; see `Partition.split`."""
        k = clients_or_default(clients, pool)
        samples = members(pool)
        present = present_classes(samples, pool, classes_per_client=self.classes_per_client)
        rng = generator(seed, "partition", self.name)
        owned = np.zeros((pool.classes, k), dtype=bool)
        owned[present] = hand_out(np.ones((len(present), k), dtype=bool), self.classes_per_client, rng)
        return Assignment(train=deal(samples, share_classes(samples, owned, self.balanced, pool, rng), rng))


@dataclass(frozen=True)
class ExtendedDirichlet(Partition):
    """A few random classes per client, each class shared out to its clients by Dirichlet(alpha)."""

    name: ClassVar[str] = "extended-dirichlet"

    classes_per_client: int = ranged(2, least=1)
    """Classes allocated to each client. Of some it may get no sample, if alpha is small."""
    alpha: float = ranged(10.0, above=0)
    """Concentration over the clients of a class: the smaller, the more their shares of it differ."""
    min_samples: int = ranged(10, least=1)
    """Minimum number of samples per client; the second draw is repeated until every client has it."""
    tries: int = ranged(10_000, least=1)
    """Draws before giving up, of classes and of samples."""

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; see `Partition.split`.

        ExDir(C, alpha) of Li and Lyu, Convergence Analysis of Sequential Federated Learning on Heterogeneous Data,
        NeurIPS 2023: each client is allocated C different classes at random; then for each
        class c ``p_c ~ Dir(alpha q_c)``, where ``q_c`` is 1 for the clients of the class and 0 for others, and client k
        gets a fraction ``p_{c,k}`` of its samples.

        Their program draws the classes again until every class has clients, at least a fifth of what equal use would
        give it; this is done here as well, so every sample is used. It also gives no further classes to a client with
        its equal share of all samples. The paper does not mention that, and it is not done here.
        """
        k = clients_or_default(clients, pool)
        samples = members(pool)
        present = present_classes(samples, pool, classes_per_client=self.classes_per_client)
        rng = generator(seed, "partition", self.name)
        owned = self._allocated(len(present), k, pool, rng)
        held = [(samples[c], np.flatnonzero(row)) for c, row in zip(present, owned, strict=True)]
        counts = drawn_until(lambda: self._draw(held, k, rng), k, pool, self)
        return Assignment(train=deal([numbers for numbers, _ in held], counts, rng))

    def _allocated(self, classes: int, clients: int, pool: Pool, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Return the classes of each client, ``[classes, K]``: ``classes_per_client`` each, every class used."""
        each = self.classes_per_client
        least = max(1, each * clients // classes // 5)
        for _ in range(self.tries if each * clients >= classes else 0):
            owned = rng.random((classes, clients)).argsort(axis=0) < each
            if owned.sum(axis=1).min() >= least:
                return owned
        raise PartitionError(
            f"{each} random classes for each of {clients} clients left one of the {classes} classes of {pool.name} "
            f"with fewer than {least} clients in {self.tries} tries; raise classes_per_client, clients or tries, or "
            "use partition 'classes', which uses classes equally often or leaves some out"
        )

    def _draw(self, held: list[tuple[Indices, Indices]], clients: int, rng: np.random.Generator) -> Counts:
        counts = np.zeros((len(held), clients), dtype=np.int64)
        for c, (numbers, owners) in enumerate(held):
            counts[c, owners] = cut(len(numbers), rng.dirichlet(np.full(len(owners), self.alpha)))
        return counts


def present_classes(samples: list[Indices], pool: Pool, **wanted: int) -> Indices:
    """Return the classes that have samples, ``[classes]``; raise PartitionError if a setting asks for more of them."""
    present = np.array([c for c, numbers in enumerate(samples) if len(numbers)])
    for name, value in wanted.items():
        if value > len(present):
            raise PartitionError(f"{name} is {value}, but {pool.name} has only {len(present)} classes; lower it")
    return present


def hand_out(allowed: npt.NDArray[np.bool_], each: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Give every taker ``each`` of the items it is allowed, those given out least so far, ties at random.

    So every item is given out when there are enough takers, and about equally often. ``allowed`` and the result are
    ``[items, takers]``.
    """
    given = np.zeros_like(allowed)
    for taker in rng.permutation(allowed.shape[1]):
        wear = given.sum(axis=1) + rng.random(len(allowed))
        wear[~allowed[:, taker]] = np.inf
        given[np.argsort(wear)[:each], taker] = True
    return given


def share_classes(
    samples: list[Indices], owned: npt.NDArray[np.bool_], balanced: bool, pool: Pool, rng: np.random.Generator
) -> Counts:
    """Return the shares of each class for its owners: at least one sample each.

    The shares are equal, or have weights drawn from [0.1, 1).
    """
    counts = np.zeros(owned.shape, dtype=np.int64)
    for c, numbers in enumerate(samples):
        owners = rng.permutation(np.flatnonzero(owned[c]))
        if len(owners) == 0:
            continue
        if len(owners) > len(numbers):
            raise PartitionError(
                f"class {c} of {pool.name} has {len(numbers)} samples for {len(owners)} clients that are to hold it; "
                "use fewer clients or fewer classes per client"
            )
        weight = np.ones(len(owners)) if balanced else rng.uniform(0.1, 1, len(owners))
        counts[c, owners] = 1 + largest_remainder(len(numbers) - len(owners), weight / weight.sum())
    return counts


# ---- with true groups of clients, as in Fed-CAM (Ma et al., NeurIPS 2023): skewed between, alike within --------------
# Clients of a group have consecutive numbers; groups differ in size by one client at most.
def _group_of_client(groups: int, clients: int) -> Indices:
    check_range(f"{groups} groups need as many clients, got {clients}: groups", groups, most=clients)
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
        k = clients_or_default(clients, pool)
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
        check_range(
            "classes_per_client, which classes_per_group bounds,", self.classes_per_client, most=self.classes_per_group
        )

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Share out the samples; the result has true groups. See `Partition.split`."""
        k = clients_or_default(clients, pool)
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
