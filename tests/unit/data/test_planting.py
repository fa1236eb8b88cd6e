"""True groups planted into a federation."""

import pytest
import torch

from fedkin.core import ConfigError, PartitionError
from fedkin.data import IID, Federation, federate, federation_of, load, plant, planted_groups
from fedkin.experiment.settings import DataSettings
from refusals import refuses


def digits(clients: int = 6) -> Federation:
    return federate(load("digits"), IID(), clients=clients, samples_per_client=20)


def test_labels_are_renumbered_by_group() -> None:
    """Group g = k mod 4 calls class c by (c + g) mod 10; the inputs stay."""
    plain = digits()
    f = plant(plain, "labels", 4)
    assert f.groups.tolist() == [0, 1, 2, 3, 0, 1]
    for k, (old, new) in enumerate(zip(plain.clients, f.clients, strict=True)):
        assert new.group == k % 4
        for part in ("train", "validation", "test"):
            a, b = getattr(old, part), getattr(new, part)
            assert torch.equal(b.x, a.x)
            assert torch.equal(b.y, (a.y + k % 4) % 10)


def test_images_are_turned_by_quarters() -> None:
    """Group 1 turned once more is group 2; four quarters are none; the labels stay."""
    plain = digits()
    f = plant(plain, "rotations", 4)
    for k, (old, new) in enumerate(zip(plain.clients, f.clients, strict=True)):
        back = new.train.x
        for _ in range((4 - k % 4) % 4):
            back = torch.rot90(back, 1, (-2, -1))
        assert torch.equal(back, old.train.x)
        assert torch.equal(new.train.y, old.train.y)
    assert not torch.equal(f.clients[1].train.x, plain.clients[1].train.x)


def test_what_cannot_be_planted_is_refused() -> None:
    """Too many groups, groups twice, inputs that are no images, an unknown kind."""
    with refuses(ConfigError, "1..4", "5"):
        plant(digits(), "rotations", 5)
    with refuses(ConfigError, "1..3", "4"):
        plant(digits(3), "labels", 4)
    with pytest.raises(PartitionError):
        plant(plant(digits(), "labels"), "labels")
    with pytest.raises(PartitionError):
        plant(Federation.from_arrays([([[0.0, 1.0]] * 4, [0, 1, 0, 1])]), "rotations", 1)
    with refuses(ConfigError, "labels", "rotations", "'mirror'"):
        plant(digits(), "mirror")  # type: ignore[arg-type]
    assert planted_groups().groups is not None


def test_a_run_can_plant() -> None:
    """``plant`` and ``groups`` of the data settings; four groups unless said."""
    settings = DataSettings(data="digits", partition="iid", clients=8, plant="rotations", samples_per_client=20)
    f = federation_of(settings, 0)
    assert f.groups.max() == 3
    fewer = DataSettings(data="digits", partition="iid", clients=8, plant="labels@groups=2", samples_per_client=20)
    g = federation_of(fewer, 0).groups
    assert g.max() == 1
