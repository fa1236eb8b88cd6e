"""Each partition does what it says, and refuses what is impossible."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.core.errors import ConfigError, PartitionError
from fedkin.data import (
    PARTITIONS,
    Assignment,
    ClassesPerClient,
    ClusterClasses,
    ClusterDirichlet,
    DAPFLPartition,
    Dirichlet,
    DirichletTotal,
    ExtendedDirichlet,
    Natural,
    Partition,
    Pool,
    QuantitySkew,
)
from refusals import refuses

Make = Callable[..., Pool]


def table(assigned: Assignment, pool: Pool) -> np.ndarray:
    """Samples per client and class."""
    return np.stack([np.bincount(pool.y[i], minlength=pool.classes) for i in assigned.train])


def test_registry() -> None:
    """Every partition is a frozen dataclass with a one-line description."""
    for name, kind in PARTITIONS.items():
        assert kind.name == name
        assert kind.__doc__
        assert "\n" not in kind.__doc__
        partition = kind()
        for field in dataclasses.fields(partition):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(partition, field.name, 1)


RANGED = [(k, f) for k in PARTITIONS.values() for f in dataclasses.fields(k) if f.metadata]


@pytest.mark.parametrize(("kind", "field"), RANGED, ids=lambda value: value.name)
def test_a_setting_out_of_its_range_is_refused(kind: type[Partition], field: dataclasses.Field[float]) -> None:
    """By name and with its value, at both ends and for what is no number."""
    ends = {"least": -1, "above": 0, "below": 0}
    for value in (*(limit + ends[name] for name, limit in field.metadata.items()), float("nan"), float("inf")):
        with refuses(ConfigError, field.name, value):
            kind(**{field.name: value})


def test_every_number_of_a_partition_has_a_range() -> None:
    """But for the classes of a group, which have that of a client's below them."""
    plain = {f.name for k in PARTITIONS.values() for f in dataclasses.fields(k) if not f.metadata}
    assert plain == {"balance", "balanced", "classes_per_group", "variant"}


ANY = [kind() for kind in PARTITIONS.values() if kind is not Natural]
IMPOSSIBLE: list[tuple[Partition, tuple[int, ...], int | None, type[Exception], str]] = [
    *((partition, (50, 50, 50), 0, ConfigError, "clients") for partition in ANY),
    *((partition, (5, 5), 11, PartitionError, "11 10") for partition in ANY),
    (Dirichlet(0.05, tries=100), (100, 100, 100), 20, PartitionError, "0.05 100 min_samples"),
    (Dirichlet(1.0, min_samples=30), (50, 50), 10, PartitionError, "300 100"),
    (QuantitySkew(0.01, tries=50), (200, 100), 6, PartitionError, "0.01 50"),
    (ClassesPerClient(4), (9, 9, 9), 3, PartitionError, "classes_per_client 4 3"),
    (ClassesPerClient(2), (50, 2), 5, PartitionError, "class 1 2 5"),
    (ExtendedDirichlet(2), (50,) * 10, 4, PartitionError, "4 2 10"),
    (ExtendedDirichlet(1, tries=9), (50,) * 10, 10, PartitionError, "10 9"),
    (ExtendedDirichlet(11), (50,) * 10, 10, PartitionError, "11 10"),
    (ExtendedDirichlet(2, 0.001, tries=20), (50,) * 10, 20, PartitionError, "0.001 20"),
    (ClusterDirichlet(groups=2, min_samples=30), (50, 50), 10, PartitionError, "300 100"),
    (ClusterDirichlet(groups=3, alpha_between=0.001), (100, 100), 9, PartitionError, "3 0.001 1000"),
    (ClusterClasses(groups=2), (50, 50), 4, PartitionError, "classes_per_group 3 2"),
    (ClusterClasses(groups=5), (50, 50, 50), 4, ConfigError, "groups 5 4"),
    (Natural(), (5, 5), None, PartitionError, "client column"),
]


@pytest.mark.parametrize(("partition", "sizes", "clients", "kind", "facts"), IMPOSSIBLE, ids=repr)
def test_what_is_impossible_is_refused(
    partition: Partition, sizes: tuple[int, ...], clients: int, kind: type[Exception], facts: str, make_pool: Make
) -> None:
    with refuses(kind, *facts.split()):
        partition.split(make_pool(*sizes), clients, 0)


def test_settings_that_contradict_each_other() -> None:
    with refuses(ConfigError, "classes_per_client", 4, 3):
        ClusterClasses(classes_per_client=4)


def test_dirichlet_draws_until_it_holds(make_pool: Make) -> None:
    """PFedCS's hardest setting: alpha .01, ten classes, 20 clients. Hundreds of draws are needed."""
    pool = make_pool(*[6000] * 10)
    counts = table(Dirichlet(0.01).split(pool, 20, 0), pool)
    assert counts.sum() == 60_000
    assert counts.sum(axis=1).min() >= 10


def test_dirichlet_balance(make_pool: Make) -> None:
    """With balance no client is given another class once it has an equal share: sizes are far closer."""
    pool = make_pool(*[600] * 100)
    free, balanced = (
        table(Dirichlet(0.1, min_samples=1, balance=b).split(pool, 20, 0), pool).sum(axis=1) for b in (False, True)
    )
    assert balanced.sum() == free.sum() == 60000
    assert balanced.max() <= 3000 + 600
    assert free.max() > balanced.max()


def test_dirichlet_total_sizes_and_skew(make_pool: Make) -> None:
    """Sizes are equal, and the median largest share at total alpha 0.05 is 1.00 (0.82 per class, as measured)."""
    pool = make_pool(*[6000] * 10)
    total = table(DirichletTotal(0.05).split(pool, 100, 0), pool)
    assert set(total.sum(axis=1)) == {600}
    assert np.median(total.max(axis=1) / 600) > 0.995
    per_class = table(Dirichlet(0.05, min_samples=1).split(pool, 100, 0), pool)
    assert 0.7 < np.median(per_class.max(axis=1) / per_class.sum(axis=1)) < 0.92


def test_quantity_skew_has_the_moments_of_its_distribution(make_pool: Make) -> None:
    """Of q ~ Dir_4(2): mean 1/4, variance (1/4)(3/4) / (4 * 2 + 1) = 1/48. Labels are those of a draw without
    replacement: the number of class 0 among a client's n of 900 samples, a third of class 0, has the variance
    n (1/3)(2/3) (900 - n) / 899, so its square distance from n/3 is that on average."""
    pool = make_pool(300, 600)
    counts = np.stack([table(QuantitySkew(2.0, min_samples=1).split(pool, 4, s), pool) for s in range(250)])
    assert (counts.sum(axis=(1, 2)) == 900).all()
    n = counts.sum(axis=2)
    np.testing.assert_allclose((n / 900).mean(axis=0), 1 / 4, atol=0.02)
    np.testing.assert_allclose((n / 900).var(axis=0), 1 / 48, rtol=0.15)
    expected = n * (1 / 3) * (2 / 3) * (900 - n) / 899
    assert abs(np.square(counts[:, :, 0] - n / 3).sum() / expected.sum() - 1) < 0.1


def test_extended_dirichlet_has_the_moments_of_both_draws(make_pool: Make) -> None:
    """3 of 10 classes for each of 40 clients: the clients of a class are binomial, mean 12, variance 40 * .3 * .7 =
    8.4 (equal use would have variance 0). For the shares p of m clients by Dir(2), E[sum p^2] = 3 / (2 m + 1)."""
    pool = make_pool(*[1000] * 10)
    owners, ratio = [], []
    for seed in range(40):
        counts = table(ExtendedDirichlet(3, 2.0, min_samples=1).split(pool, 40, seed), pool)
        assert counts.sum() == 10_000
        assert (counts > 0).sum(axis=1).max() == 3
        m = (counts > 0).sum(axis=0)  # a client of a class has none of 1000 samples once in 4000 times
        owners.append(m)
        ratio.append(np.square(counts / 1000).sum(axis=0) * (2 * m + 1) / 3)
    assert abs(np.mean(owners) - 12) < 0.02
    assert abs(np.square(np.array(owners) - 12).mean() / 8.4 - 1) < 0.15
    assert abs(np.mean(ratio) - 1) < 0.05


def test_extended_dirichlet_uses_every_class(make_pool: Make) -> None:
    """With one class each, 12 clients share out all of 8 classes for every seed; an empty class is not given out."""
    pool = make_pool(*[40] * 4, 0, *[40] * 4)
    for seed in range(5):
        counts = table(ExtendedDirichlet(1, 100.0, min_samples=1).split(pool, 12, seed), pool)
        assert (counts > 0).sum(axis=1).tolist() == [1] * 12
        assert counts.sum(axis=0).tolist() == [40] * 4 + [0] + [40] * 4


def spread(counts: np.ndarray) -> float:
    """Mean over classes (rows) of the sum of squared shares, above what equal shares have."""
    shares = counts[counts.sum(axis=1) >= 500]
    shares = shares / shares.sum(axis=1, keepdims=True)
    return float(np.square(shares).sum(axis=1).mean()) - 1 / counts.shape[1]


@pytest.mark.parametrize(("alpha_between", "alpha_within"), [(0.1, 10.0), (1.0, 10.0), (0.1, 1.0)])
def test_cluster_dirichlet_has_its_concentrations(make_pool: Make, alpha_between: float, alpha_within: float) -> None:
    """For shares p of n parts by Dirichlet(a), E[sum p^2] = (a + 1)/(n a + 1): of a class over 4 groups at a = 0.1
    .786 (.4 at ten times the a), of a group's part of it over 5 clients at a = 10 .2157 (.2016). Without bounds on
    sizes, which would make large groups likelier; 150 classes, to a seventh of what is above equal shares."""
    pool = make_pool(*[4000] * 150)
    partition = ClusterDirichlet(4, alpha_between, alpha_within, min_samples=1, min_group=0.0)
    assigned = partition.split(pool, 20, 0)
    assert torch.bincount(assigned.groups).tolist() == [5, 5, 5, 5]
    counts, group = table(assigned, pool).T, assigned.groups.numpy()
    groups = np.stack([counts[:, group == g].sum(axis=1) for g in range(4)], axis=1)
    for a, found, parts in (
        (alpha_between, groups, 4),
        (alpha_within, np.concatenate([counts[:, group == g] for g in range(4)]), 5),
    ):
        wanted = (a + 1) / (parts * a + 1) - 1 / parts
        assert abs(spread(found) / wanted - 1) < 1 / 7


def test_cluster_classes_sets(make_pool: Make) -> None:
    """A client's classes are among its group's; groups' sets are distinct and use all classes where possible."""
    pool = make_pool(*[600] * 10)
    for seed in range(5):
        assigned = ClusterClasses(groups=5).split(pool, 50, seed)
        counts = table(assigned, pool)
        assert set((counts > 0).sum(axis=1)) == {2}
        sets = [frozenset(np.flatnonzero(counts[assigned.groups.numpy() == g].sum(axis=0))) for g in range(5)]
        assert len(set(sets)) == 5
        assert {len(s) for s in sets} == {3}
        assert counts.sum() == 6000


def test_natural() -> None:
    """Clients are those of the data; small ones and unknown samples are left out; groups and names follow."""
    pool = Pool(
        y=np.zeros(60, dtype=np.int64),
        classes=1,
        name="toy",
        client=np.repeat([2, 0, 1, -1], [20, 30, 4, 6]),
        client_names=("a", "b", "c"),
        groups=torch.tensor([5, 6, 7]),
    )
    assigned = Natural(min_samples=10).split(pool, None, 0)
    assert [len(i) for i in assigned.train] == [30, 20]
    assert assigned.train[1].tolist() == list(range(20))
    assert assigned.names == ("a", "c")
    assert assigned.groups.tolist() == [5, 7]
    (note,) = assigned.notes
    assert "left out for fewer than 10 samples: b (4)" in note
    assert not Natural(min_samples=1).split(pool, None, 0).notes
    assert len(Natural(min_samples=1).split(pool, None, 0).train) == 3
    some = Natural(min_samples=1).split(pool, 2, 0)
    assert len(some.train) == 2
    assert some.names is not None
    (out,) = {"a", "b", "c"} - set(some.names)
    (note,) = some.notes
    assert f"left out: {out}" in note
    assert len(Natural(min_samples=1).split(pool, 99, 0).train) == 3
    with refuses(PartitionError, "3", "99", "30"):
        Natural(min_samples=99).split(pool, None, 0)


def test_samples_without_a_client_are_one_that_is_named_and_noted(make_pool: Make) -> None:
    """Nobody is left to wonder about a client with an empty name; one that does not take part is not mentioned."""
    pool = dataclasses.replace(make_pool(30, 21), client=np.repeat([0, 1], [17, 34]), client_names=("(empty)", "Graz"))
    assert Natural().split(pool, None, 0).notes == (
        "17 samples with an empty field where the client is named: they are one client, '(empty)', although they may "
        "be from several",
    )
    (left_out,) = Natural(min_samples=20).split(pool, None, 0).notes
    assert "(empty) (17)" in left_out


# variant, images per class, classes, clients, alpha; training samples per client: min, median, mean, max; mean of test
# samples; classes per client: min, mean
SIZES = [
    ("cifar", 6000, 10, 20, 1.0, (270, 356, 365, 519), 42, (8.4, 9.7)),
    ("cifar", 600, 20, 20, 0.5, (430, 681, 711, 1136), 81, (14.4, 17.3)),
    ("femnist", 4000, 10, 20, 0.5, (247, 482, 518, 997), 62, (7.7, 9.6)),
    ("femnist", 4000, 10, 100, 0.5, (224, 572, 624, 1566), 74, (7.1, 9.7)),
]


@pytest.mark.parametrize("case", SIZES, ids=repr)
def test_dapfl_sizes(case: tuple[Any, ...], make_pool: Make) -> None:
    """The sizes that the authors' code gives (means over 20 draws): samples per client, test samples, classes."""
    variant, images, classes, clients, alpha, sizes, tests, own = case
    pool = make_pool(*[images] * classes)
    train, test, held = [], [], []
    for seed in range(20):
        assigned = DAPFLPartition(alpha, variant=variant).split(pool, clients, seed)
        n = np.array([len(i) for i in assigned.train])
        train.append([n.min(), np.median(n), n.mean(), n.max()])
        assert assigned.test is not None
        test.append(np.mean([len(i) for i in assigned.test]))
        per_client = (table(assigned, pool) > 0).sum(axis=1)
        held.append([per_client.min(), per_client.mean()])
    np.testing.assert_allclose(np.mean(train, axis=0), sizes, rtol=0.06)
    np.testing.assert_allclose(np.mean(test), tests, rtol=0.02)
    np.testing.assert_allclose(np.mean(held, axis=0), own, atol=0.55)


def test_dapfl_draws(make_pool: Make) -> None:
    """Inside a client no sample is used twice, test samples are never training samples, every count has the floor."""
    pool = make_pool(*[6000] * 10)
    assigned = DAPFLPartition(0.5).split(pool, 20, 0)
    counts = table(assigned, pool)
    assert all(len(set(i)) == len(i) for i in (*assigned.train, *assigned.test))
    assert not set(np.concatenate(assigned.train)) & set(np.concatenate(assigned.test))
    tests = np.stack([np.bincount(pool.y[i], minlength=10) for i in assigned.test])
    assert (tests == np.where(counts > 0, counts // 10 + 1, 0)).all()
    assert (counts.max(axis=1) >= 100).all()
    assert ((counts > 0).sum(axis=1) >= 2).all()
    shared = np.unique(np.concatenate(assigned.train)).size / counts.sum()
    assert 0.9 < shared < 0.97  # 6 % of the draws are repeats at 20 clients
