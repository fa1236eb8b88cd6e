"""From a data set and a partition to a federation: pooled and official splits, caps, determinism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedkin.core.errors import ConfigError, DataError, PartitionError
from fedkin.core.samples import Samples
from fedkin.data import (
    IID,
    Assignment,
    ClassesPerClient,
    DAPFLPartition,
    Dataset,
    Dirichlet,
    Federation,
    Natural,
    Partition,
    federate,
    planted_groups,
)
from fedkin.data.dataset import Pool
from refusals import refuses

Make = Callable[..., Dataset]


def numbers(data: Samples) -> list[int]:
    """The samples' numbers, which are their inputs."""
    return [int(v) for v in data.x[:, 0]]


def official(n: int, first: int, classes: int = 3) -> Samples:
    return Samples(torch.arange(first, first + n, dtype=torch.float32)[:, None], torch.arange(n) % classes)


def test_pooled_uses_every_sample_once(make_dataset: Make) -> None:
    """With a pooled split the official test part is shared out too, each sample to exactly one part of one client."""
    f = federate(make_dataset(60, official_test=official(30, 60)), IID(), clients=4, seed=3)
    seen = [i for s in f.clients for part in (s.train, s.validation, s.test) for i in numbers(part)]
    assert sorted(seen) == list(range(90))
    assert f.name == "toy, iid"


def test_official_keeps_test_images_for_testing(make_dataset: Make) -> None:
    """With the official split nobody trains on a test image, and clients are tested on their own classes only."""
    f = federate(
        make_dataset(60, official_test=official(30, 60)),
        ClassesPerClient(classes_per_client=1, balanced=True),
        clients=6,
        split="official",
    )
    assert sorted(i for s in f.clients for i in numbers(s.test)) == list(range(60, 90))
    assert all(i < 60 for s in f.clients for i in numbers(s.train) + numbers(s.validation))
    for s in f.clients:
        assert set(s.test.y.tolist()) == set(s.train.y.tolist())
        assert len(s.test) == 5


def test_official_needs_a_test_part(make_dataset: Make) -> None:
    with refuses(ConfigError, "'pooled'"):
        federate(make_dataset(), IID(), clients=2, split="official")
    with refuses(ConfigError, "split: ", "'oficial'", "pooled, official"):
        federate(make_dataset(), IID(), clients=2, split="oficial")  # type: ignore[arg-type]


def test_same_seed_same_federation(make_dataset: Make) -> None:
    """The federation depends on the seed alone, not on the global random state, which it leaves as it was."""
    data = make_dataset(200)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = federate(data, Dirichlet(0.5, min_samples=1), clients=5, seed=7).fingerprint()
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(2)
    assert federate(data, Dirichlet(0.5, min_samples=1), clients=5, seed=7).fingerprint() == first
    assert federate(data, Dirichlet(0.5, min_samples=1), clients=5, seed=8).fingerprint() != first


def test_units_that_several_clients_have_are_noted(make_dataset: Make) -> None:
    """Counted by hand: test samples of a recording that another client trains on."""
    data = make_dataset(60, classes=1, unit=torch.arange(60) // 3)
    f = federate(data, IID(), clients=4, seed=1)
    trained = {i // 3 for s in f.clients for i in numbers(s.train)}
    tested = [i // 3 in trained for s in f.clients for i in numbers(s.test)]
    assert 0 < sum(tested) <= len(tested)
    (note,) = f.notes
    assert note.startswith(f"{sum(tested)} of {len(tested)} test samples are of a unit of which another client trains")
    assert "the partition iid deals single samples" in note
    assert federate(data, IID(), clients=1).notes == ()
    anew = make_dataset(60, classes=1, unit=torch.arange(60) % 30 // 3, client=torch.arange(60) // 30)
    assert federate(anew, Natural(), seed=1).notes == ()
    assert federate(anew, IID(), clients=4, seed=1).notes


def test_units_of_the_official_test_part(make_dataset: Make) -> None:
    """Numbered together, they stay with those of the training part; without numbers each sample is one."""
    more = {"unit": torch.arange(60) // 3, "official_test": official(30, 60, 1)}
    data = make_dataset(60, classes=1, **more, test_unit=20 + torch.arange(30) // 3)
    (s,) = federate(data, IID(), clients=1, seed=1).clients
    assert sum(len({i // 3 for i in numbers(part)}) for part in (s.train, s.validation, s.test)) == 30
    (alone,) = federate(make_dataset(60, classes=1, **more), IID(), clients=1, seed=1).clients
    assert sum(len({i // 3 for i in numbers(p)}) for p in (alone.train, alone.validation, alone.test)) > 30


def test_natural_clients_without_names_keep_their_numbers(make_dataset: Make) -> None:
    """Where some are left out, the others are called by their number in the data, in notes as well."""
    client = torch.tensor([0] * 20 + [1] * 5 + [2] * 20 + [3] * 15)
    f = federate(make_dataset(60, client=client), Natural())
    assert f.client_names == ("client 0", "client 2", "client 3")
    assert "left out for fewer than 10 samples: client 1 (5)" in f.notes[0]
    assert federate(make_dataset(60, client=client), Natural(min_samples=5)).client_names is None
    drawn = federate(make_dataset(60, client=client), Natural(min_samples=5), clients=2, seed=1)
    assert drawn.client_names is not None
    assert [int(name.removeprefix("client ")) for name in drawn.client_names] == [
        int(client[numbers(s.train)[0]]) for s in drawn.clients
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"client_names": ("a", "b"), "client": torch.arange(60) % 3}, {"unit": torch.arange(60) / 2},
        {"groups": torch.tensor([0, 1]), "client": torch.arange(60) % 3}, {"client": torch.arange(60) / 2},
        {"client": torch.arange(60) - 2}, {"client": torch.zeros(3, dtype=torch.int64)},
        {"client_names": ("a", "b", "a"), "client": torch.arange(60) % 3},
    ],
)  # fmt: skip
def test_ids_that_do_not_fit(make_dataset: Make, more: dict[str, Any]) -> None:
    with refuses(DataError, next(iter(more)).removesuffix("_names")):
        make_dataset(60, **more)


def test_clients_of_the_test_part_alone_are_noted(make_dataset: Make) -> None:
    """Their samples are used by no one else; where no client has any of its own, all are shared out."""

    def made(testers: list[int]) -> Federation:
        test_client = torch.tensor(testers)[torch.arange(20) % len(testers)]
        part = {"official_test": official(20, 60), "client": torch.arange(60) % 2, "test_client": test_client}
        return federate(make_dataset(60, **part), Natural(), split="official")

    (note,) = made([0, 1, 2, 4]).notes
    assert note.startswith(
        "2 clients have samples in the official test part only and cannot take part: client 2, client 4 (10 samples)"
    )
    assert made([2]).notes == ()


def test_natural_clients_are_never_tested_on_others_samples(make_dataset: Make) -> None:
    """If one client has no official test sample the others keep theirs, and a note names it."""

    def made(testers: list[int]) -> Federation:
        test_client = torch.tensor(testers)[torch.arange(20) % len(testers)]
        more = {"official_test": official(20, 60), "client": torch.arange(60) % 3, "test_client": test_client}
        return federate(make_dataset(60, **more, client_names=tuple("abcd")), Natural(), split="official")

    some, none = made([0, 2]), made([3])
    assert [numbers(s.test) for s in some.clients] == [list(range(60, 80, 2)), [], list(range(61, 80, 2))]
    assert some.notes == ("1 client has no sample in the official test part and cannot be tested: b",)
    assert sorted(i for s in none.clients for i in numbers(s.test)) == list(range(60, 80))
    assert none.notes == ()


def test_dapfl_uses_its_own_test_rule(make_dataset: Make) -> None:
    """DA-PFL's test images come from the official part, or from a sixth of each class that nobody trains on."""
    data = make_dataset(3000, official_test=official(600, 3000))
    f = federate(data, DAPFLPartition(1.0), clients=5, split="official", validation=0)
    assert all(i >= 3000 for s in f.clients for i in numbers(s.test))
    assert f.sizes()[:, 1].tolist() == [0] * 5
    f = federate(data, DAPFLPartition(1.0), clients=5)
    tested = {i for s in f.clients for i in numbers(s.test)}
    assert not tested & {i for s in f.clients for i in numbers(s.train) + numbers(s.validation)}


def test_planted_groups() -> None:
    """Planted clients come with their true groups; group g calls class c by the number c + g."""
    f = planted_groups(clients=6, groups=3, samples=40, classes=4, noise=0.0)
    assert isinstance(f, Federation)
    assert f.groups.tolist() == [0, 1, 2, 0, 1, 2]
    called = [{tuple(x.tolist()): int(y) for x, y in zip(s.train.x, s.train.y, strict=True)} for s in f.clients]
    for k in range(6):
        assert all(called[k][x] == (called[0][x] + k % 3) % 4 for x in called[0])


@pytest.mark.parametrize("wrong", [len, "iid", Dirichlet], ids=["function", "name", "class"])
def test_something_else_than_a_partition_or_a_data_set_is_refused(wrong: Any, make_dataset: Make) -> None:
    with refuses(ConfigError, "fedkin.Dirichlet(alpha=0.5)", type(wrong).__name__):
        federate(make_dataset(20), wrong, clients=2)
    with refuses(ConfigError, "fedkin.Dataset"):
        federate(wrong, IID(), clients=2)


@dataclass(frozen=True)
class Given(Partition):
    """Of a user: the same numbers for client 1, whatever there is."""

    name: ClassVar[str] = "given"
    numbers: tuple[int, ...] = (3, 4)

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        return Assignment(train=(np.arange(3), np.array(self.numbers)))


def test_a_partition_of_ones_own(make_dataset: Make) -> None:
    """Numbers of samples that do not exist are refused with partition and client."""
    assert len(federate(make_dataset(20), Given(), clients=2)) == 2
    for numbers, wrong in (((3, 20), 20), ((-1, 3), -1)):
        with refuses(PartitionError, "'given'", "client 1", f"sample {wrong} (train)", 19):
            federate(make_dataset(20), Given(numbers), clients=2)


def test_official_gives_small_clients_a_test_image(make_dataset: Make) -> None:
    """A client too small for a share of the official test part still gets one image of its most frequent class."""
    f = federate(make_dataset(60, official_test=official(3, 60)), IID(), clients=20, split="official")
    assert int(f.sizes()[:, 2].min()) == 1
    assert all(set(s.test.y.tolist()) <= {*s.train.y.tolist(), *s.validation.y.tolist()} for s in f.clients)


def test_planted_inputs() -> None:
    """With kind 'inputs' a group's inputs are turned: lengths stay, directions do not; labels mean the same."""
    f = planted_groups(clients=4, groups=2, kind="inputs", noise=0.0, shape=(1, 4, 4))
    assert f.shape == (1, 4, 4)
    means = [torch.stack([s.train.x[s.train.y == c].mean(0).flatten() for c in range(4)]) for s in f.clients]
    assert torch.allclose(means[0].norm(dim=1), means[1].norm(dim=1), atol=1e-4)
    assert torch.allclose(means[0], means[2], atol=1e-5)
    assert not torch.allclose(means[0], means[1], atol=0.1)
