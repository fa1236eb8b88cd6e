"""True groups planted into a federation, and noise on the inputs of clients."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.core import ConfigError, PartitionError
from fedkin.data import (
    IID,
    Federation,
    SiteData,
    add_feature_noise,
    federate,
    federation_of,
    load,
    plant,
    planted_groups,
    seeded,
)  # fmt: skip
from fedkin.data.checks import PARTS
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


def zeros(clients: int = 3, fill: float = 0.0) -> Federation:
    """Clients whose inputs are all 0, so that noisy ones are the noise; the first client's are ``fill``."""
    y = np.arange(100) % 4
    return Federation.from_arrays([(np.full((100, 60), fill if k == 0 else 0.0), y) for k in range(clients)])


def test_variance_rises_with_the_clients_number() -> None:
    """Client i of 3 has mean 0 and variance 0.3 i/3 on every number, in training, validation and test alike."""
    plain, noisy = zeros(), add_feature_noise(zeros(), 0.3)
    drawn = []
    for k, (before, after) in enumerate(zip(plain.clients, noisy.clients, strict=True)):
        for part in PARTS:
            x = getattr(after, part).x
            assert (x.dtype, x.shape) == (torch.float32, getattr(before, part).x.shape)
            assert torch.equal(getattr(after, part).y, getattr(before, part).y)
            variance = 0.1 * (k + 1)
            assert abs(float(x.mean())) < 4 * (variance / x.numel()) ** 0.5
            assert abs(float(x.var()) / variance - 1) < 4 * (2 / x.numel()) ** 0.5
            drawn.append(x[:10] / variance**0.5)
    assert np.abs(np.corrcoef(torch.stack(drawn).flatten(1).numpy()) - np.eye(9)).max() < 4 / 600**0.5


def test_noise_is_fixed_by_seed_client_and_sample() -> None:
    """The same noise for the same seed, whatever other clients' data are; other noise for another seed."""
    first, again = add_feature_noise(zeros(), 0.3, seed=1), add_feature_noise(zeros(fill=5.0), 0.3, seed=1)
    assert first.clients[0].train.x.mean() < 1 < again.clients[0].train.x.mean()
    for k in (1, 2):
        assert torch.equal(first.clients[k].train.x, again.clients[k].train.x)
    other = add_feature_noise(zeros(), 0.3, seed=2)
    assert not torch.equal(first.clients[1].train.x, other.clients[1].train.x)
    assert add_feature_noise(first, 0.0) is first


@pytest.mark.parametrize("variance", [-0.1, float("nan"), float("inf")])
def test_a_variance_is_a_number_of_at_least_0(variance: float) -> None:
    with refuses(ConfigError, "feature_noise", variance):
        add_feature_noise(zeros(), variance)


def test_a_run_can_have_noise_on_any_partition() -> None:
    """``feature_noise`` of the data settings is drawn with the data's seed, and goes with planted groups."""
    how = {"data": "digits", "partition": "quantity", "clients": 5, "samples_per_client": 20}
    noisy = federation_of(DataSettings(**how, feature_noise=0.1, data_seed=3), 0)  # type: ignore[arg-type]
    plain = federation_of(DataSettings(**how, data_seed=3), 0)  # type: ignore[arg-type]
    assert noisy.name == "digits, quantity, feature noise of variance up to 0.1"
    assert noisy.fingerprint() == add_feature_noise(plain, 0.1, seed=3).fingerprint() != plain.fingerprint()
    both = federation_of(DataSettings(**how, feature_noise=0.1, data_seed=3, plant="labels"), 0)  # type: ignore[arg-type]
    assert both.fingerprint() == plant(noisy, "labels").fingerprint()


def test_noise_is_not_for_data_of_a_site(tmp_path: Path) -> None:
    """A site of its own takes its data as they are; a share of a data set is that of the simulation."""
    how = seeded(DataSettings(partition="natural", feature_noise=0.1), 0)
    (tmp_path / "hospital.csv").write_text("x,y\n1,0\n2,1\n")
    with refuses(ConfigError, "feature_noise"):
        SiteData(tmp_path / "hospital.csv").card(how)
    settings = DataSettings(data="digits", partition="iid", clients=4, feature_noise=0.1)
    site, how = SiteData("digits", share=2), seeded(settings, 0)
    assert torch.equal(site.shard(site.card(how), 0, how).train.x, federation_of(settings, 0).clients[2].train.x)
