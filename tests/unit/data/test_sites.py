"""A site alone has the same numbers as the client has in a simulation with everybody's files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedkin.core.errors import ConfigError, DataError, PartitionError
from fedkin.core.samples import Samples
from fedkin.data import (
    Card,
    ClientData,
    Dataset,
    Natural,
    SiteData,
    deal,
    federate,
    federation_of,
    load,
    merge,
    seeded,
    site_client,
)
from fedkin.experiment.settings import DataSettings
from refusals import refuses

OWN = DataSettings(partition="natural@min_samples=1", data_seed=5, target="sick", scaling="client")

# As the four hospitals of the UCI heart disease data: one has no value of ca and thal at all, one has every field.
HEART = {
    "cleveland": "63,1,233,0,6,0\n67,1,286,3,3,2\n37,0,250,0,3,0\n41,0,204,2,7,1\n56,1,236,1,3,0\n62,0,268,2,,3\n",
    "hungarian": "28,1,132,,,0\n29,1,243,,,0\n30,0,,0,6,1\n31,0,219,,,4\n32,1,198,,3,1\n",
    "switzerland": "32,1,0,,,1\n34,1,0,,,1\n35,1,0,,,2\n36,1,0,,,4\n38,0,0,,,3\n",
    "va": "63,1,260,,7,2\n44,1,209,,,0\n60,1,218,,3,2\n55,1,228,0,,3\n66,1,213,,,0\n66,1,,,7,1\n",
}


def equal(one: ClientData, two: ClientData) -> bool:
    """To the last bit, also -0.0 and 0.0."""
    pairs = [(getattr(one, part), getattr(two, part)) for part in ("train", "validation", "test")]
    same = all(torch.equal(a.x.view(torch.int32), b.x.view(torch.int32)) and torch.equal(a.y, b.y) for a, b in pairs)
    return same and one.group == two.group


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """A folder with one file per hospital."""
    folder = tmp_path / "heart"
    folder.mkdir()
    for name, rows in HEART.items():
        (folder / f"{name}.csv").write_text("age,sex,chol,ca,thal,sick\n" + rows)
    return folder


def read_apart(folder: Path, how: DataSettings, texts: tuple[str, ...] = ()) -> tuple[Card, list[ClientData]]:
    """What the sites make of their files, each in its own folder's order of numbers, with nothing but cards shared."""
    sites = {path.stem: SiteData(path, texts=texts) for path in sorted(folder.iterdir())}
    card = Card.from_json(merge({name: site.card(how) for name, site in sites.items()}).to_json())
    return card, [site.shard(card, k, how) for k, site in enumerate(sites.values())]


# ---- own tables ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("binary", [False, True])
def test_hospitals_apart_and_together(hospitals: Path, binary: bool) -> None:
    """Four hospitals with columns that are empty somewhere: the same shards, bit for bit, as from one folder."""
    how = OWN.but(binary=binary, samples_per_client=5)
    together = deal(hospitals, how)
    card, shards = read_apart(hospitals, how)
    assert (card.shape, card.classes, card.labels) == (together.shape, together.classes, together.labels)
    for k, path in enumerate(sorted(hospitals.iterdir())):
        assert SiteData(path).preparation(card, k, how) == together.preparation.of(k)
    assert card.shape == (5 + 3,)  # chol, ca and thal have a flag for empty fields
    assert all(equal(*pair) for pair in zip(shards, together.clients, strict=True))
    x = torch.cat([part.x for part in (shards[2].train, shards[2].validation, shards[2].test)])
    assert set(x[:, 4].tolist()) == {0.0}  # no value of ca in Switzerland: zeros, and the flag
    assert set(x[:, 5].tolist()) == {1.0}


CELLS = {
    "numbers": st.sampled_from(["1", "2.5", "-3", "", "1e3", "0.1", "NA"]),
    "whole": st.sampled_from(["0", "1", "2.0", "10"]),
    "texts": st.sampled_from(["x", "y", "", "é", "?", "1"]),
    "empty": st.sampled_from(["", "nan"]),
}
COLUMNS = ("a", "b", "c")


@st.composite
def tables(draw: st.DrawFn) -> list[str]:
    """Two to four files with the same columns in any order; what a column holds may differ between files."""
    usual = {c: draw(st.sampled_from(["numbers", "texts", "mixed"])) for c in COLUMNS}
    usual["sick"] = draw(st.sampled_from(["whole", "texts"]))
    files = []
    for _ in range(draw(st.integers(2, 4))):
        header = draw(st.permutations([*COLUMNS, "sick"]))
        kinds = {c: draw(st.sampled_from(list(CELLS))) if usual[c] == "mixed" else usual[c] for c in header}
        cells = {c: CELLS[kind] for c, kind in kinds.items()}
        cells["sick"] = cells["sick"].filter(lambda text: text not in ("", "?"))
        rows = draw(st.lists(st.tuples(*(cells[c] for c in header)), min_size=1, max_size=7))
        files.append("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    return files


@settings(max_examples=40, deadline=None)
@given(files=tables(), declared=st.booleans())
def test_any_tables_apart_and_together(files: list[str], declared: bool) -> None:
    """Random tables: sites that shared nothing but cards have what a simulation has of all files, bit for bit."""
    with tempfile.TemporaryDirectory() as name:
        for i, text in enumerate(files):
            (Path(name) / f"site{i}.csv").write_text(text, encoding="utf-8")
        texts = ("sick", *COLUMNS) if declared else ()
        try:
            together = deal(name, OWN)
        except DataError:
            with pytest.raises(DataError):
                read_apart(Path(name), OWN, texts)
            return
        try:
            card, shards = read_apart(Path(name), OWN, texts)
        except DataError as error:
            if "have 1 class" in str(error):  # a simulation is refused later, where it would begin
                assert together.classes == 1
            elif declared or "holds numbers at" not in str(error):
                raise
            return
    if declared and any("among them counts as missing" in note for note in together.notes):
        return
    assert together.classes > 1
    assert (card.shape, card.classes, card.labels) == (together.shape, together.classes, together.labels)
    assert all(equal(*pair) for pair in zip(shards, together.clients, strict=True))


def test_a_site_that_comes_later(hospitals: Path) -> None:
    """It reads by the agreed card: an unknown text becomes zeros; an unknown class or other columns are refused."""
    (hospitals / "va.csv").write_text("age,ward,sick\n1,a,0\n3,b,1\n")
    card = merge({"va": SiteData(hospitals / "va.csv").card(OWN)})
    late = hospitals / "late.csv"
    late.write_text("ward,age,sick\nz,,1\nb,3,0\n")
    shard = SiteData(late).shard(card, 1, OWN.but(test=0.0, validation=0.0))
    assert shard.train.x.tolist() == [[0, 0, 0], [0, 0, 1]]
    assert shard.train.y.tolist() == [1, 0]
    for text, facts in (
        ("age,ward,sick\n1,a,7\n", ("class 7", "'sick'", "0, 1")),
        ("age,sex,sick\n1,a,0\n", ("ward", "sex")),
        ("age,ward,sick\nold,a,0\n", ("age",)),
    ):
        late.write_text(text)
        with refuses(DataError, *facts):
            SiteData(late).shard(card, 1, OWN)
    with pytest.raises(DataError):
        SiteData(hospitals / "va.csv").shard(card, 0, OWN.but(binary=True))


def test_settings_that_a_site_cannot_follow(hospitals: Path) -> None:
    """What needs everybody's data in one place is refused at the card already, with what to do."""
    site = SiteData(hospitals / "va.csv")
    for how, fact in (
        (OWN.but(scaling="pooled"), 'scaling = "client"'),
        (OWN.but(partition="iid"), 'partition = "natural"'),
        (OWN.but(plant="labels"), "plant"),
        (OWN.but(target=None), "target"),
    ):
        with refuses(ConfigError, fact):
            site.card(how)
    card = merge({"va": site.card(OWN)})
    with pytest.raises(ConfigError):
        site.shard(card, 0, OWN.but(scaling="pooled"))
    with refuses(PartitionError, "6", "10"):
        site.shard(card, 0, OWN.but(partition="natural"))
    with refuses(ConfigError, "--share 0"):
        SiteData("digits").card(OWN.but(target=None, scaling="pooled"))


def test_several_clients_are_not_one_site(hospitals: Path) -> None:
    """A folder of several files, or a client column with several clients, is more than one site's own data."""
    with refuses(DataError, "4"):
        SiteData(hospitals).card(OWN)
    path = hospitals / "va.csv"
    path.write_text("age,ward,sick\n1,a,0\n3,b,1\n")
    with refuses(DataError, "2"):
        SiteData(path).card(OWN.but(client_column="ward"))
    path.write_text("age,ward,sick\n1,a,0\n3,a,1\n")
    assert SiteData(path).card(OWN.but(client_column="ward")).shape == (1,)
    assert SiteData(path).card(OWN.but(client_column="hospital")).shape == (2,)


# ---- own arrays ---------------------------------------------------------------------------------------------------
def test_arrays_apart_and_together(tmp_path: Path) -> None:
    """One npz file per client, with units that stay together: as the joint file; classes are the largest label's."""
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(90, 4)).astype(np.float32), np.arange(90) % 3
    y, unit = rng.integers(0, 7, 90), np.arange(90) // 9
    y[client == 1] %= 3
    np.savez(tmp_path / "all.npz", x=x, y=y, hospital=client, unit=unit)
    how = OWN.but(target=None, scaling="pooled", client_column="hospital", samples_per_client=25)
    together = deal(tmp_path / "all.npz", how)
    sites = {}
    for k in range(3):
        own = client == k
        np.savez(tmp_path / f"{k}.npz", x=x[own], y=y[own], unit=unit[own])
        sites[str(k)] = SiteData(tmp_path / f"{k}.npz")
    cards = {name: site.card(how) for name, site in sites.items()}
    assert [card.classes for card in cards.values()] == [7, 3, 7]
    card = merge(cards)
    assert (card.shape, card.classes) == (together.shape, together.classes) == ((4,), 7)
    for k, site in enumerate(sites.values()):
        assert equal(site.shard(card, k, how), together.clients[k])
    with pytest.raises(DataError):
        sites["0"].shard(structs.replace(card, classes=5), 0, how)
    with pytest.raises(DataError):
        sites["0"].shard(structs.replace(card, inputs=(5,)), 0, how)
    with pytest.raises(DataError):
        sites["0"].shard(structs.replace(card, kind="table"), 0, how)
    with pytest.raises(ConfigError):
        SiteData(tmp_path / "0.npz", texts=["x"]).card(how)
    with refuses(DataError, "3"):
        SiteData(tmp_path / "all.npz").card(how)


def test_named_classes_of_arrays(tmp_path: Path) -> None:
    """Classes that are texts get the numbers that they have among all sites' classes."""
    how, sites = OWN.but(target=None, scaling="pooled", test=0.0, validation=0.0), {}
    for name, labels in (("a", ["owl", "cat", "owl"]), ("b", ["dog", "owl"])):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((len(labels), 2)), y=np.array(labels))
        sites[name] = SiteData(tmp_path / f"{name}.npz")
    card = merge({name: site.card(how) for name, site in sites.items()})
    assert card.labels == ("cat", "dog", "owl")
    assert [site.shard(card, 0, how).train.y.tolist() for site in sites.values()] == [[2, 0, 2], [1, 2]]
    made = sites["b"].preparation(card, 0, how)
    assert (made.labels, sites["b"].name(how)) == (card.labels, "b, natural")
    with pytest.raises(DataError):
        sites["b"].shard(structs.replace(card, classes=2, labels=("cat", "dog")), 0, how)
    with pytest.raises(DataError):
        sites["b"].shard(structs.replace(card, labels=None), 0, how)


def test_a_small_site_may_have_large_labels(tmp_path: Path, write_idx: Callable[[Path, np.ndarray], None]) -> None:
    """Three samples of class 61: right at a site, a mistake in data that are all there are."""
    y = np.array([61, 0, 61])
    np.savez(tmp_path / "few.npz", x=np.zeros((3, 2)), y=y)
    folder = tmp_path / "idx"
    folder.mkdir()
    write_idx(folder / "train-images-idx3-ubyte", np.zeros((3, 2, 2)))
    write_idx(folder / "train-labels-idx1-ubyte", y)
    how = OWN.but(target=None, scaling="pooled")
    for path in (tmp_path / "few.npz", folder):
        assert SiteData(path).card(how).classes == 62
        with pytest.raises(DataError):
            load(path)


# ---- one client's split -------------------------------------------------------------------------------------------
def with_clients(make_dataset: Callable[..., Dataset], test_part: bool) -> Dataset:
    more: dict[str, Any] = {"client": torch.arange(90) % 4, "unit": torch.arange(90) // 8}
    if test_part:
        x = torch.arange(90, 130, dtype=torch.float32)[:, None]
        more |= {"official_test": Samples(x, torch.arange(40) % 3), "test_client": torch.arange(40) % 4}
    return make_dataset(90, **more)


def only(dataset: Dataset, k: int) -> Dataset:
    """The data of one client alone."""
    assert dataset.client is not None
    own, test, more = dataset.client == k, dataset.official_test, {}
    if test is not None and dataset.test_client is not None:
        of_test = dataset.test_client == k
        more = {"official_test": Samples(test.x[of_test], test.y[of_test])}
    return Dataset(dataset.x[own], dataset.y[own], dataset.classes, "toy", unit=dataset.unit[own], **more)


@pytest.mark.parametrize("test_part", [False, True])
@pytest.mark.parametrize("split", ["pooled", "official"])
@pytest.mark.parametrize("cap", [None, 12])
def test_site_shard(make_dataset: Callable[..., Dataset], test_part: bool, split: Any, cap: int | None) -> None:
    """One client's samples alone split as among all others: with units, caps and official test parts."""
    dataset = with_clients(make_dataset, test_part)
    more: dict[str, Any] = {"split": split, "samples_per_client": cap, "test": 0.3}
    how = DataSettings(data_seed=9, **more)
    if split == "official" and not test_part:
        with pytest.raises(ConfigError):
            site_client(only(dataset, 0), 0, how)
        return
    together = federate(dataset, Natural(), seed=9, **more)
    for k, shard in enumerate(together.clients):
        assert equal(site_client(only(dataset, k), k, how)[0], shard)
    assert not equal(site_client(only(dataset, 0), 1, how)[0], together.clients[0])


# ---- shares, for trying out ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "data",
    [
        DataSettings(clients=3, partition="dirichlet@alpha=0.5"),
        DataSettings(clients=4, partition="iid", plant="labels@groups=2", samples_per_client=30),
        DataSettings("synthetic", partition="natural", split="pooled", data_seed=3),
    ],
    ids=["digits", "planted", "synthetic"],
)
def test_shares(data: DataSettings) -> None:
    """Share k of a built-in data set is client k of the simulation with the same settings, true group and all."""
    federation, how = federation_of(data, 7), seeded(data, 7)
    sites = [SiteData(data.data, share=k) for k in range(2)]
    card = merge({str(k): site.card(how) for k, site in enumerate(sites)})
    assert (card.shape, card.classes) == (federation.shape, federation.classes)
    for k, site in enumerate(sites):
        shard = site.shard(card, 5, how)
        assert equal(shard, federation.clients[k])
        assert shard.group == (-1 if federation.groups is None else k % 2 if data.plant else k % 3)


def test_shares_of_a_folder_of_tables(hospitals: Path) -> None:
    """A share may be standardised by the values of all: whoever deals it out has read them."""
    how = OWN.but(scaling="pooled")
    site, together = SiteData(hospitals, share=3), deal(hospitals, how)
    card = site.card(how)
    assert equal(site.shard(card, 3, how), together.clients[3])
    assert site.preparation(card, 3, how) == together.preparation
    assert together.preparation is not None
    assert site.name(how) == together.name == "heart, natural"


def test_shares_that_are_not_there(hospitals: Path) -> None:
    """The message says which there are; nodes that deal out different data are noticed."""
    with refuses(ConfigError, "4", "0", "3"):
        SiteData(hospitals, share=4).card(OWN)
    with refuses(ConfigError, "0", "-1"):
        SiteData(hospitals, share=-1)
    card = merge({"x": SiteData("digits", share=0).card(DataSettings(partition="iid", clients=2))})
    with refuses(DataError, "8", "5", "1", "10"):
        SiteData(hospitals, share=0).shard(card, 0, OWN)
