"""A federation checks its clients and can tell whether data changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.core.errors import ConfigError, DataError
from fedkin.core.samples import Samples
from fedkin.data import ClientData, Federation
from refusals import refuses


def part(n: int, label: int = 0, shape: tuple[int, ...] = (2,)) -> Samples:
    return Samples(torch.zeros(n, *shape), torch.full((n,), label))


def shard(n: int = 2, **parts: Samples) -> ClientData:
    return ClientData(**{"train": part(n), "validation": part(1), "test": part(1), **parts})


def test_properties() -> None:
    """Length, input shape, sizes and class counts follow from the shards; empty validation and test are allowed."""
    f = Federation((shard(3), shard(train=part(2, 1), validation=part(0), test=part(0))), classes=2)
    assert (len(f), f.shape) == (2, (2,))
    assert f.sizes().tolist() == [[3, 1, 1], [2, 0, 0]]
    assert f.counts().tolist() == [[3, 0], [0, 2]]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite_is_named(value: float) -> None:
    x = torch.zeros(4, 2)
    x[3, 1] = value
    with refuses(DataError, "client 0", "sample 3"):
        Federation((shard(train=Samples(x, torch.zeros(4, dtype=torch.int64))),), classes=2)


X, Y = torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("x", "y"),
    [(X.double(), Y), (X, Y.int()), (X, Y[:1]), (X[0], Y), (X.numpy(), Y.numpy()), (X, Y.numpy())],
    ids=["float64", "int32", "one label", "one dimension", "arrays", "an array"],
)
def test_types(x: Any, y: Any) -> None:
    """Inputs are tensors of float32, labels of int64, as many of one as of the other."""
    with refuses(DataError, "client 0"):
        Federation((shard(train=Samples(x, y)),), classes=2)


BAD = Samples(torch.zeros(3, 2), torch.tensor([0, 1, 7]))


@pytest.mark.parametrize(
    ("shards", "facts"),
    [
        ((), ("at least one client",)),
        ((shard(), shard(train=part(0))), ("client 1", "no training sample")),
        ((shard(), shard(test=BAD)), ("client 1, test part", "label 7", "sample 2", "0..1")),
        ((shard(train=part(2, -1)),), ("client 0", "label -1", "sample 0")),
        ((shard(), shard(train=part(2, shape=(3,)))), ("client 1", "[3]", "client 0", "[2]")),
    ],
)
def test_clients_that_cannot_take_part_are_named(shards: tuple[ClientData, ...], facts: tuple[str, ...]) -> None:
    with refuses(DataError, *facts):
        Federation(shards, classes=2)


def test_groups_and_names_must_fit() -> None:
    """Groups are int64, one per client; class names one per class; client names one per client."""
    with refuses(DataError, "int64"):
        Federation((shard(),), classes=2, groups=torch.tensor([0, 1]))
    with refuses(DataError, "int64"):
        Federation((shard(),), classes=2, groups=torch.tensor([0.0]))
    with refuses(DataError, "1", "2"):
        Federation((shard(),), classes=2, labels=("cat",))
    with refuses(DataError, "2", "1"):
        Federation((shard(),), classes=2, client_names=("a", "b"))
    with refuses(DataError, "'a'"):
        Federation((shard(), shard(), shard()), classes=2, client_names=("a", "b", "a"))


def test_fingerprint_sees_every_change() -> None:
    """Equal data have equal fingerprints; one pixel, one label, or a sample in another part changes it."""
    base = Federation((shard(3), shard(2)), classes=2)
    assert base.fingerprint() == Federation((shard(3), shard(2)), classes=2, name="other").fingerprint()
    assert len(base.fingerprint()) == 32
    x = torch.zeros(3, 2)
    x[0, 0] = 1e-6
    others = [
        Federation((shard(train=Samples(x, torch.zeros(3, dtype=torch.int64))), shard(2)), classes=2),
        Federation((shard(train=part(3, 1)), shard(2)), classes=2),
        Federation((shard(2), shard(3)), classes=2),
        Federation((shard(2, validation=part(2)), shard(2)), classes=2),
        dataclasses.replace(base, classes=3),
    ]
    assert len({f.fingerprint() for f in [base, *others]}) == 6


def test_from_arrays() -> None:
    """Own arrays are split per client into three disjoint parts that hold everything."""
    rng = np.random.default_rng(0)
    own = [(np.arange(n, dtype=float)[:, None], rng.integers(0, 3, n)) for n in (50, 20)]
    f = Federation.from_arrays(own, classes=3, groups=[1, 0], client_names=["north", "south"])
    assert f.sizes().tolist() == [[35, 5, 10], [14, 2, 4]]
    assert f.groups.tolist() == [1, 0]
    assert [s.group for s in f.clients] == [1, 0]
    assert f.client_names == ("north", "south")
    for (x, y), s in zip(own, f.clients, strict=True):
        seen = torch.cat([s.train.x, s.validation.x, s.test.x])[:, 0].long()
        assert sorted(seen.tolist()) == list(range(len(x)))
        assert torch.cat([s.train.y, s.validation.y, s.test.y]).tolist() == y[seen.numpy()].tolist()


def test_from_arrays_errors() -> None:
    """Clients without samples, labels that are no whole numbers, arrays that are none: refused by client."""
    good = (np.zeros((3, 2)), np.zeros(3, dtype=int))
    with refuses(DataError, "client 1"):
        Federation.from_arrays([good, (np.zeros((0, 2)), np.zeros(0, dtype=int))])
    with refuses(DataError, "client 1"):
        Federation.from_arrays([good, (np.zeros((3, 2)), np.zeros(3))])
    with refuses(DataError, "client 0"):
        Federation.from_arrays([([[1.0], [1.0, 2.0]], [0, 1])])
    with refuses(DataError, "client 0", "-1"):
        Federation.from_arrays([(np.zeros((3, 2)), -np.ones(3, dtype=int))])
    with refuses(ConfigError, "test + validation", "1.1"):
        Federation.from_arrays([good], test=0.6, validation=0.5)
