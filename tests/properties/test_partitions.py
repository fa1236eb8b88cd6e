"""Properties of partitions for any labels, number of clients and seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedkin.core.errors import PartitionError
from fedkin.data import (
    IID,
    ClassesPerClient,
    ClusterClasses,
    ClusterDirichlet,
    DAPFLPartition,
    Dataset,
    Dirichlet,
    DirichletTotal,
    ExtendedDirichlet,
    Natural,
    Partition,
    Pool,
    QuantitySkew,
    federate,
)
from fedkin.data.splitting import three_parts

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

sizes = st.lists(st.integers(0, 60), min_size=2, max_size=6).filter(lambda s: sum(s) >= 20)
seeds = st.integers(0, 2**31)

COMPLETE: list[Partition] = [
    IID(),
    Dirichlet(0.3, min_samples=1),
    Dirichlet(0.05, min_samples=1, balance=True),
    DirichletTotal(0.05),
    DirichletTotal(20.0),
    ClusterDirichlet(groups=2, alpha_between=1.0, min_samples=1, min_group=0.0),
    QuantitySkew(0.5, min_samples=1),
    ExtendedDirichlet(2, 1.0, min_samples=1, tries=100),
]


def pool_of(counts: list[int]) -> Pool:
    return Pool(y=np.repeat(np.arange(len(counts)), counts), classes=len(counts), name="toy")


def split(partition: Partition, pool: Pool, clients: int, seed: int) -> list[np.ndarray]:
    try:
        return list(partition.split(pool, clients, seed).train)
    except PartitionError:
        assume(False)
        raise


@pytest.mark.parametrize("partition", COMPLETE, ids=repr)
@QUICK
@given(counts=sizes, clients=st.integers(2, 12), seed=seeds)
def test_every_sample_exactly_once(partition: Partition, counts: list[int], clients: int, seed: int) -> None:
    """A disjoint partition gives every sample to exactly one client, and every client something."""
    pool = pool_of(counts)
    train = split(partition, pool, clients, seed)
    assert len(train) == clients
    assert min(map(len, train)) >= 1
    assert np.array_equal(np.sort(np.concatenate(train)), np.arange(len(pool)))


@QUICK
@given(
    counts=st.lists(st.integers(30, 60), min_size=3, max_size=6),
    clients=st.integers(3, 12),
    balanced=st.booleans(),
    seed=seeds,
)
def test_classes_once_and_covered(counts: list[int], clients: int, balanced: bool, seed: int) -> None:
    """Each client has its number of classes; with enough clients every sample is used exactly once, else at most."""
    pool = pool_of(counts)
    for partition, each in ((ClassesPerClient(2, balanced=balanced), 2), (ClusterClasses(2, 3, 2), 2)):
        train = split(partition, pool, clients, seed)
        used = np.concatenate(train)
        assert len(np.unique(used)) == len(used)
        assert all(len(np.unique(pool.y[i])) == each for i in train)
        if isinstance(partition, ClassesPerClient) and clients * each >= pool.classes:
            assert len(used) == len(pool)


@QUICK
@given(counts=sizes, clients=st.integers(1, 10), alpha=st.floats(1e-4, 1e3), seed=seeds)
def test_total_dirichlet_sizes(counts: list[int], clients: int, alpha: float, seed: int) -> None:
    """Sizes differ by one at most, for any concentration: no underflow."""
    lengths = [len(i) for i in split(DirichletTotal(alpha), pool_of(counts), clients, seed)]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    "partition", [*COMPLETE, ClassesPerClient(2), ClusterClasses(2, 2, 1), DAPFLPartition(total=40)], ids=repr
)
@QUICK
@given(seed=seeds)
def test_same_seed_same_split(partition: Partition, seed: int) -> None:
    pool = pool_of([150, 200, 170])
    first, again = split(partition, pool, 6, seed), split(partition, pool, 6, seed)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@QUICK
@given(client=st.lists(st.integers(-1, 5), min_size=20, max_size=60), least=st.integers(1, 5))
def test_natural_keeps_whole_clients(client: list[int], least: int) -> None:
    """Every large enough client keeps all of its samples and no other's."""
    ids = np.array(client)
    pool = Pool(y=np.zeros(len(ids), dtype=np.int64), classes=1, client=ids)
    train = split(Natural(min_samples=least), pool, 10, 0)
    large = [c for c in range(6) if (ids == c).sum() >= least]
    assert [np.flatnonzero(ids == c).tolist() for c in large] == [np.sort(i).tolist() for i in train]


@QUICK
@given(
    y=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    test=st.floats(0, 0.6),
    validation=st.floats(0, 0.39),
    seed=seeds,
    units=st.booleans(),
)
def test_three_parts(y: list[int], test: float, validation: float, seed: int, units: bool) -> None:
    """Parts are disjoint and complete, training is never empty, wanted parts are there from three samples on."""
    labels, unit = np.array(y), np.arange(len(y)) // 2 if units else None
    rng = np.random.default_rng(seed)
    train, held, tested = three_parts(labels, test=test, validation=validation, rng=rng, unit=unit)
    assert np.array_equal(np.sort(np.concatenate([train, held, tested])), np.arange(len(y)))
    assert len(train) >= 1
    if len(y) >= (5 if units else 3):
        assert (len(held) > 0) == (validation > 0)
        assert (len(tested) > 0) == (test > 0)


@QUICK
@given(counts=st.lists(st.integers(20, 60), min_size=2, max_size=4), clients=st.integers(1, 6), seed=seeds)
def test_cap_and_federation(counts: list[int], clients: int, seed: int) -> None:
    """A capped federation has at most the cap per client, no sample twice, and labels that belong to their inputs."""
    y = torch.from_numpy(pool_of(counts).y)
    data = Dataset(x=torch.arange(len(y), dtype=torch.float32)[:, None], y=y, classes=len(counts))
    f = federate(data, IID(), clients=clients, seed=seed, samples_per_client=7)
    seen: list[int] = []
    for shard in f.clients:
        parts = [shard.train, shard.validation, shard.test]
        assert sum(map(len, parts)) <= 7
        for part in parts:
            index = part.x[:, 0].long()
            assert torch.equal(y[index], part.y)
            seen += index.tolist()
    assert len(set(seen)) == len(seen)
