"""Data of one site of a real federation: the same numbers as the client has in a simulation.

site = SiteData("hospital.csv")
card = site.card(how)                    # sent to the server, which merges the cards of all sites
shard = site.shard(merged, number, how)  # stays here, as does all below
how_made = site.preparation(merged, number, how)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedkin.core.errors import ConfigError, PartitionError
from fedkin.core.grammar import chosen
from fedkin.core.samples import Samples
from fedkin.core.settings import DataSettings
from fedkin.data.card import Card
from fedkin.data.checks import check_one_client, check_range, listed, refuse_first
from fedkin.data.dataset import Dataset
from fedkin.data.federate import federate, site_client
from fedkin.data.federation import ClientData, Federation
from fedkin.data.partition import PARTITIONS, Dirichlet, Natural, Partition
from fedkin.data.partition.base import DEFAULT_CLIENTS as DEFAULT_CLIENTS
from fedkin.data.preparation import Preparation
from fedkin.data.shelf import is_shelf
from fedkin.data.sources import SOURCES, brings_clients, csv_files, read
from fedkin.data.sources.tables import read_tables, table_card
from fedkin.data.synthetic import Drift, add_feature_noise, plant

# settings that also apply to a federation made elsewhere
_OF_ALL = ("data", "data_seed", "plant", "feature_noise")
_FEW = 20  # minimum number of samples of a synthetic client
OnData = Callable[[Dataset | Federation, Federation], None]
"""Called with what was read and with the federation that was made of it."""


def seeded(data: DataSettings, seed: int) -> DataSettings:
    """Return the settings of a run's data with the seed that decides, which is the run's unless they have their own."""
    return data if data.data_seed is not None else data.but(data_seed=seed)


def partition_of(how: DataSettings, dataset: Dataset) -> Partition:
    """Return how data are shared out: as set, else by the clients that they bring, else by a Dirichlet distribution."""
    if how.partition is None:
        return Dirichlet() if dataset.client is None else Natural()
    return chosen(how.partition, PARTITIONS, "partition")[1]


def resolved(how: DataSettings) -> DataSettings:
    """Return the settings with the partition's name filled in, if it is known without reading the data."""
    if how.partition is not None:
        chosen(how.partition, PARTITIONS, "partition")
        return how
    if is_shelf(how.data):
        return how
    named = True if how.client_column is not None else brings_clients(how.data)
    return how if named is None else how.but(partition=Natural.name if named else Dirichlet.name)


def federation_of(data: DataSettings, seed: int, seen: OnData | None = None) -> Federation:
    """Read the data and partition them, or open a federation that is partitioned already.

    ``seen`` is called with what was read and with the federation, before the former is forgotten.
    """
    if is_shelf(data.data):
        _require_only(data, ("data",), f"{data.data} holds a federation")
        return Federation.open(data.data)
    how = seeded(data, seed)
    result = fetched(data.data, how)
    federation = share_out(result, how)
    if seen is not None:
        seen(result, federation)
    return federation


def deal(data: str | Path, how: DataSettings) -> Federation:
    """Read a data set and share it out; ``how.data`` is not looked at."""
    return share_out(fetched(data, how), how)


def fetched(data: str | Path, how: DataSettings) -> Dataset | Federation:
    """Return the data as read, before they are shared out; a function may give a whole federation. See `deal`."""
    return read(data, how)


def share_out(data: Dataset | Federation, how: DataSettings, partition: Partition | None = None) -> Federation:
    """Share out data that were read; see `deal`. A program may give a partition of its own."""
    if isinstance(data, Federation):
        _require_only(how, _OF_ALL, f"{data.name} gives a federation")
        return _skewed(data, how)
    partition = partition or partition_of(how, data)
    try:
        federation = federate(
            data, partition, clients=how.clients, seed=how.data_seed or 0, test=how.test, validation=how.validation,
            split=how.split, samples_per_client=how.samples_per_client,
        )  # fmt: skip
    except PartitionError as error:
        made_up = how.clients is None and how.partition in (None, Dirichlet.name) and data.client is None
        if not made_up:
            raise
        raise PartitionError(_unnamed(data, str(error))) from error
    return _skewed(federation, how)


def _require_only(how: DataSettings, names: tuple[str, ...], what: str) -> None:
    """Raise `ConfigError` if a setting is given that data which are shared out already do not have."""
    usual = DataSettings()
    for name in DataSettings.__struct_fields__:
        if name not in names and getattr(how, name) != getattr(usual, name):
            raise ConfigError(f"{what}, which is shared out already; leave out {name}")


def _skewed(federation: Federation, how: DataSettings) -> Federation:
    """Return the clients with noise and planted groups, as the settings ask for."""
    seed = how.data_seed or 0
    noisy = add_feature_noise(federation, how.feature_noise, seed)
    if how.planted is None:
        return noisy
    kind, groups = how.planted
    drift = None if groups.drift is None else Drift(groups.drift, groups.fraction)
    return plant(noisy, kind, groups.groups, drift=drift, seed=seed)


def _unnamed(dataset: Dataset, why: str) -> str:
    """Return what is wrong with data that name no clients, if the default cannot share them out."""
    few, table = max(2, len(dataset) // _FEW), dataset.table is not None
    column = "--client-column COLUMN, or " if table else ""
    return (
        f"{dataset.name} does not name its clients, and its {len(dataset)} samples cannot be dealt to "
        f"{DEFAULT_CLIENTS} synthetic clients, which is the default ({why.partition(';')[0]}); name the clients: "
        f"{column}a folder with one {'file' if table else 'folder'} for each client; or, to try things out, make up "
        f"fewer: --partition iid --clients {few}"
    )


def _partition(how: DataSettings) -> Partition:
    return chosen(how.partition or Dirichlet.name, PARTITIONS, "partition")[1]


class SiteData:
    """Data of one site: its own, or, for trying out, one share of a data set dealt out as in a simulation.

    The last card and the last shard are kept; make another object to read the files anew.

    Args:
        data: a path to this site's own csv or npz file or folder of idx files or images; with ``share`` anything that
            `load` takes, the same at all sites.
        share: number of the share, from 0.
        texts: columns of a csv file that are described as texts although they hold numbers here, since another site
            has texts in them: their different values are then on the card.
        dealer: reads and deals out what shares are shares of; one that remembers serves many shares in one process.

    """

    def __init__(
        self,
        data: str | Path,
        *,
        share: int | None = None,
        texts: Sequence[str] = (),
        dealer: Callable[[str | Path, DataSettings], Federation] = deal,
    ) -> None:
        if share is not None:
            check_range("share", share, least=0)
        self.data, self.share, self.texts, self._deal = str(data), share, tuple(texts), dealer
        self._card: tuple[DataSettings, Card] | None = None
        self._shard: tuple[tuple[Card, int, DataSettings], ClientData, Preparation | None] | None = None
        self._dealt: tuple[DataSettings, _Share] | None = None

    def card(self, how: DataSettings) -> Card:
        """Return the description of this site's data."""
        if self._card is None or self._card[0] != how:
            result = self._own_card(how) if self.share is None else self._shared(how).card
            self._card = how, Card.from_json(result.to_json(), self.data)  # as other hosts will
        return self._card[1]

    def shard(self, card: Card, number: int, how: DataSettings) -> ClientData:
        """Return this site's data in their parts, as client ``number`` of the run, by the card of all sites.

        A share is the client of that number in the simulation, whatever the number here.
        """
        return self._read(card, number, how)[0]

    def preparation(self, card: Card, number: int, how: DataSettings) -> Preparation | None:
        """Return how the inputs of `shard` were made of raw data, for this client; None if that is not known."""
        return self._read(card, number, how)[1]

    def name(self, how: DataSettings) -> str:
        """Return the name of these data in a model's card: without the path of their file, which stays private."""
        return f"{Path(self.data).stem}, {Natural.name}" if self.share is None else self._shared(how).name

    def _read(self, card: Card, number: int, how: DataSettings) -> tuple[ClientData, Preparation | None]:
        asked = (card, number, how)
        if self._shard is None or self._shard[0] != asked:
            result = self._own_shard(*asked) if self.share is None else self._share_of(card, how)
            self._shard = asked, *result
        return self._shard[1:]

    def _own_card(self, how: DataSettings) -> Card:
        tables = self._tables(how)
        if tables:
            return table_card(tables, how, name=self.data, texts=self.texts)
        if self.texts:
            raise ConfigError(f"columns to describe as texts are for csv tables; {self.data} is not one")
        dataset = self._array(how)
        return Card("array", dataset.classes, dataset.labels, inputs=dataset.shape)

    def _own_shard(self, card: Card, number: int, how: DataSettings) -> tuple[ClientData, Preparation | None]:
        if tables := self._tables(how):
            dataset = read_tables(tables, how, name=self.data, card=card)
            check_one_client(dataset.client_names, self.data)
        else:
            dataset = as_agreed(self._array(how), card, self.data)
        natural = _partition(how)
        least = natural.min_samples if isinstance(natural, Natural) else 1
        return site_client(dataset, number, how, min_samples=least)

    def _tables(self, how: DataSettings) -> list[Path]:
        """Return this site's csv files, if it has any and the settings can be followed by one site alone."""
        tables = [] if self.data in SOURCES else csv_files([Path(self.data)])
        partition, names = _partition(how), ("drop", "plant", "feature_noise")
        cannot = [
            *([f"built-in data, {self.data},"] if self.data in SOURCES else []),
            *([] if isinstance(partition, Natural) else [f"partition '{partition.name}'"]),
            *(["scaling 'pooled'"] if tables and how.scaling == "pooled" else []),
            *(name for name in names if getattr(how, name)),
        ]
        if cannot:
            raise ConfigError(
                f"a site takes its own data as they are, and cannot follow {listed(cannot)}, since this needs all data "
                'in one place: set partition = "natural" and scaling = "client" in [data], in the simulator too, and '
                "leave the others out; or deal out one data set: --share 0, --share 1 and so on"
            )
        return tables

    def _array(self, how: DataSettings) -> Dataset:
        dataset = read(self.data, how, site=True)
        if isinstance(dataset, Federation):
            raise ConfigError(f"{self.data} gives a federation of several clients; a site brings its own data alone")
        check_one_client(dataset.client_names, self.data)
        return dataset

    def _shared(self, how: DataSettings) -> _Share:
        """Return this share of the whole data set."""
        assert self.share is not None  # the callers have looked
        if self._dealt is None or self._dealt[0] != how:
            federation = self._deal(self.data, how)
            if self.share >= len(federation):
                raise ConfigError(
                    f"no share {self.share}: {federation.name} has {len(federation)} clients, "
                    f"so shares 0 to {len(federation) - 1}"
                )
            card = Card("array", federation.classes, federation.labels, inputs=federation.shape)
            made = federation.preparation and federation.preparation.of(self.share)
            self._dealt = how, _Share(federation.name, card, federation.clients[self.share], made)
        return self._dealt[1]

    def _share_of(self, card: Card, how: DataSettings) -> tuple[ClientData, Preparation | None]:
        own = self._shared(how)
        both = [f"inputs {list(c.shape)} and {c.classes} classes" for c in (own.card, card)]
        fault = f"{both[0]}; all sites agreed on {both[1]}: with --share all of them need the same data set"
        refuse_first(self.data, [] if own.card == card else [fault])
        return own.shard, own.preparation


class _Share(NamedTuple):
    """One client's share of a data set, with the name and card of the whole."""

    name: str
    card: Card
    shard: ClientData
    preparation: Preparation | None


def as_agreed(dataset: Dataset, card: Card, where: str, who: str = "all sites agreed on") -> Dataset:
    """Return the same samples with the classes of a card, which is what ``who`` says."""
    refuse_first(where, _misfits(Card("array", dataset.classes, dataset.labels, inputs=dataset.shape), card, who))
    known = card.labels or tuple(map(str, range(card.classes)))
    own = dataset.labels or tuple(map(str, range(dataset.classes)))
    new = torch.tensor([known.index(label) for label in own])
    test, made = dataset.official_test, dataset.preparation
    return replace(
        dataset,
        y=new[dataset.y],
        classes=card.classes,
        labels=card.labels,
        preparation=made and replace(made, labels=card.labels),
        official_test=None if test is None else Samples(test.x, new[test.y]),
    )


def _misfits(own: Card, agreed: Card, who: str) -> Iterator[str]:
    """Yield in what arrays differ from those that ``who`` says."""
    kinds = [
        f"{card.kind} inputs {list(card.inputs)} with {'numbered' if card.labels is None else 'named'} classes"
        for card in (own, agreed)
    ]
    if kinds[0] != kinds[1]:
        yield f"{kinds[0]}; {who} {kinds[1]}"
    known = agreed.labels or tuple(map(str, range(agreed.classes)))
    if unknown := [label for label in own.labels or map(str, range(own.classes)) if label not in known]:
        yield f"class {listed(unknown)} is not one of those that {who}, {listed(known)}"
