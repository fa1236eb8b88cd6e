"""Data of one site of a real federation: the same numbers as the client has in a simulation.

site = SiteData("hospital.csv")
card = site.card(how)                    # sent to the server, which merges the cards of all sites
shard = site.shard(merged, number, how)  # stays here, as does all below
how_made = site.preparation(merged, number, how)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import torch

from fedkin.core.errors import ConfigError, DataError, PartitionError
from fedkin.core.samples import Samples
from fedkin.data.card import Card
from fedkin.data.checks import Scaling, check_one_client, check_scaling
from fedkin.data.dataset import Dataset
from fedkin.data.feature_noise import add_feature_noise
from fedkin.data.federate import federate, site_client
from fedkin.data.federation import ClientData, Federation
from fedkin.data.partition import Dirichlet, Natural, Partition
from fedkin.data.planting import Drift, Kind, plant
from fedkin.data.preparation import Preparation
from fedkin.data.sources import SOURCES, Reading, csv_files, read
from fedkin.data.sources.reading import listed
from fedkin.data.sources.tables import read_tables, table_card

DEFAULT_CLIENTS = 20
# settings that also apply to a federation made elsewhere
_OF_ALL = ("planted", "groups", "drift", "feature_noise", "made_up")
_FEW = 20  # minimum number of samples of a synthetic client


@dataclass(frozen=True)
class Sharing:
    """Settings of a run's data: how they are read, shared out to clients and split; see `federate` and `load`.

    Attributes:
        partition: how samples are shared out; None: `Natural` where the data bring their clients, else `Dirichlet`.
        min_samples: minimum number of samples per client where the data decide; None: the partition's default.
        clients: number of clients; None: 20, or all that the data bring with the partition `Natural`.
        seed: fixes every draw.
        test, validation, split, samples_per_client: as for `federate`.
        target, client_column, binary, drop, image_size, scaling, encoding: as for `load`; ``client_column`` is its
            ``client``.
        planted: true groups to plant, see `plant`.
        groups: how many of them.
        drift: when they change; None: never.
        feature_noise: variance of the noise on inputs, see `add_feature_noise`.
        made_up: no setting defines the clients, so that the partition is a default.
    """

    partition: Partition | None
    min_samples: int | None = None
    clients: int | None = None
    seed: int = 0
    test: float = 0.2
    validation: float = 0.1
    split: Literal["pooled", "official"] = "pooled"
    samples_per_client: int | None = None
    target: str | None = None
    client_column: str | None = None
    binary: bool = False
    drop: tuple[str, ...] = ()
    image_size: int | None = None
    scaling: Scaling = "pooled"
    planted: Kind | None = None
    groups: int = 4
    drift: Drift | None = None
    feature_noise: float = 0.0
    encoding: str | None = None
    made_up: bool = False

    def partition_of(self, found: Dataset) -> Partition:
        """Return how data are shared out."""
        if self.partition is not None:
            return self.partition
        kind = Dirichlet if found.client is None else Natural
        return kind() if self.min_samples is None else kind(min_samples=self.min_samples)

    def reading(self, *, site: bool = False) -> Reading:
        """Return the settings that readers take."""
        return Reading(
            self.target, self.client_column, self.binary, self.drop, self.image_size, self.scaling, site, self.encoding
        )


def deal(data: str | Path, how: Sharing) -> Federation:
    """Read a data set and share it out.

    Raises:
        DataError, ConfigError: as `load`, `federate`, `add_feature_noise` and `plant`; a setting of the sharing for
            what a function has shared out already.
    """
    return share_out(fetched(data, how), how)


def fetched(data: str | Path, how: Sharing) -> Dataset | Federation:
    """Return the data as read, before they are shared out; a function may give a whole federation. See `deal`."""
    return read(data, how.reading())


def share_out(found: Dataset | Federation, how: Sharing) -> Federation:
    """Share out data that were read; see `deal`."""
    if isinstance(found, Federation):
        plain = Sharing(None)
        names = [f.name for f in fields(how) if f.name not in ("seed", *_OF_ALL)]
        own = [name for name in names if getattr(how, name) != getattr(plain, name)]
        if own:
            raise ConfigError(f"{found.name} gives a federation, which is shared out already; leave out {own[0]}")
        return _skewed(found, how)
    partition = how.partition_of(found)
    clients = DEFAULT_CLIENTS if how.clients is None and not isinstance(partition, Natural) else how.clients
    try:
        federation = federate(
            found,
            partition,
            clients=clients,
            seed=how.seed,
            test=how.test,
            validation=how.validation,
            split=how.split,
            samples_per_client=how.samples_per_client,
        )
    except PartitionError as error:
        if not how.made_up or found.client is not None:
            raise
        raise PartitionError(_unnamed(found, clients or DEFAULT_CLIENTS, str(error))) from error
    return _skewed(federation, how)


def _skewed(federation: Federation, how: Sharing) -> Federation:
    """Return the clients with noise and planted groups, as the settings ask for."""
    noisy = add_feature_noise(federation, how.feature_noise, how.seed)
    if how.planted is None:
        return noisy
    return plant(noisy, how.planted, how.groups, drift=how.drift, seed=how.seed)


def _unnamed(found: Dataset, clients: int, why: str) -> str:
    """Return what is wrong with data that name no clients, if the default cannot share them out."""
    few, table = max(2, len(found) // _FEW), found.table is not None
    column = "--client-column COLUMN, or " if table else ""
    return (
        f"{found.name} does not name its clients, and its {len(found)} samples cannot be dealt to {clients} synthetic "
        f"clients, which is the default ({why.partition(';')[0]}); name the clients: {column}a folder with one "
        f"{'file' if table else 'folder'} for each client; or, to try things out, make up fewer: "
        f"--partition iid --clients {few}"
    )


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

    Raises:
        ConfigError: a negative share, or texts with a share.
    """

    def __init__(
        self,
        data: str | Path,
        *,
        share: int | None = None,
        texts: Sequence[str] = (),
        dealer: Callable[[str | Path, Sharing], Federation] = deal,
    ) -> None:
        if share is not None and share < 0:
            raise ConfigError(f"share must be at least 0, got {share}")
        if share is not None and texts:
            raise ConfigError(
                "columns to describe as texts are for a site's own table; a share is read with all others"
            )
        self.data, self.share, self.texts, self._deal = str(data), share, tuple(texts), dealer
        self._card: tuple[Sharing, Card] | None = None
        self._shard: tuple[tuple[Card, int, Sharing], ClientData, Preparation | None] | None = None
        self._dealt: tuple[Sharing, _Share] | None = None

    def card(self, how: Sharing) -> Card:
        """Return the description of this site's data.

        Raises:
            DataError: the data cannot be used, or hold several clients.
            ConfigError: the settings ask for what one site cannot do alone.
        """
        if self._card is None or self._card[0] != how:
            found = self._own_card(how) if self.share is None else self._shared(how).card
            self._card = how, found.checked(self.data)
        return self._card[1]

    def shard(self, card: Card, number: int, how: Sharing) -> ClientData:
        """Return this site's data in their parts.

        Args:
            card: what all sites agreed on, see `merge`.
            number: this client's number in the run. A share is the client of that number in the simulation, whatever
                the number here.
            how: the run's settings of data.

        Raises:
            DataError: the data cannot be used, or do not fit the card.
            ConfigError: the settings ask for what one site cannot do alone.
        """
        return self._read(card, number, how)[0]

    def preparation(self, card: Card, number: int, how: Sharing) -> Preparation | None:
        """Return how the inputs of `shard` were made of raw data, for this client; None if that is not known.

        Raises:
            DataError, ConfigError: as `shard`.
        """
        return self._read(card, number, how)[1]

    def name(self, how: Sharing) -> str:
        """Return the name of these data in a model's card: without the path of their file, which stays private."""
        return f"{Path(self.data).stem}, {Natural.name}" if self.share is None else self._shared(how).name

    def _read(self, card: Card, number: int, how: Sharing) -> tuple[ClientData, Preparation | None]:
        asked = (card, number, how)
        if self._shard is None or self._shard[0] != asked:
            found = self._own_shard(*asked) if self.share is None else self._share_of(card, how)
            self._shard = asked, *found
        return self._shard[1:]

    def _own_card(self, how: Sharing) -> Card:
        tables = self._tables(how)
        if tables:
            check_scaling(how.scaling, self.data)
            return table_card(tables, how.reading(), name=self.data, texts=self.texts)
        if self.texts:
            raise ConfigError(f"columns to describe as texts are for csv tables; {self.data} is not one")
        dataset = self._array(how)
        return Card("array", dataset.classes, dataset.labels, inputs=dataset.shape)

    def _own_shard(self, card: Card, number: int, how: Sharing) -> tuple[ClientData, Preparation | None]:
        tables = self._tables(how)
        kind = "table" if tables else "array"
        if card.kind != kind:
            raise DataError(f"{self.data}: data of the kind {kind}, all sites agreed on {card.kind}")
        if tables:
            dataset = read_tables(tables, how.reading(), name=self.data, card=card)
            check_one_client(dataset.client_names, self.data)
        else:
            dataset = _as_agreed(self._array(how), card, self.data)
        return site_client(
            dataset,
            number,
            seed=how.seed,
            test=how.test,
            validation=how.validation,
            split=how.split,
            samples_per_client=how.samples_per_client,
            min_samples=how.partition.min_samples if isinstance(how.partition, Natural) else 1,
        )

    def _tables(self, how: Sharing) -> list[Path]:
        """Return this site's csv files, if it has any and the settings can be followed by one site alone."""
        if self.data in SOURCES:
            raise ConfigError(
                f"{self.data} is built in, not this site's own data; to try things out give every site a share of it: "
                "--share 0, --share 1 and so on"
            )
        first = [] if isinstance(how.partition, Natural) else [f"partition '{(how.partition or Dirichlet()).name}'"]
        if what := first + [name for name in ("drop", "planted", "feature_noise") if getattr(how, name)]:
            raise ConfigError(
                f"a site takes its own data as they are, and cannot follow {listed(what)}, which need all data in one "
                'place: set partition = "natural" in [data], in the simulator too, and leave the others out; or deal '
                "out one data set with --share"
            )
        return csv_files([Path(self.data)])

    def _array(self, how: Sharing) -> Dataset:
        dataset = read(self.data, how.reading(site=True))
        if isinstance(dataset, Federation):
            raise ConfigError(f"{self.data} gives a federation of several clients; a site brings its own data alone")
        check_one_client(dataset.client_names, self.data)
        return dataset

    def _shared(self, how: Sharing) -> _Share:
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
            made = None if federation.preparation is None else federation.preparation.of(self.share)
            self._dealt = how, _Share(federation.name, card, federation.clients[self.share], made)
        return self._dealt[1]

    def _share_of(self, card: Card, how: Sharing) -> tuple[ClientData, Preparation | None]:
        own = self._shared(how)
        if own.card != card:
            raise DataError(
                f"{self.data}: inputs {list(own.card.shape)} and {own.card.classes} classes; all sites agreed on "
                f"{list(card.shape)} and {card.classes}: with --share all of them need the same data set"
            )
        return own.shard, own.preparation


@dataclass(frozen=True)
class _Share:
    """One client's share of a data set, with the name and card of the whole."""

    name: str
    card: Card
    shard: ClientData
    preparation: Preparation | None


def _as_agreed(dataset: Dataset, card: Card, where: str) -> Dataset:
    """Return the same samples with the classes that all sites agreed on."""
    if dataset.shape != card.inputs or (dataset.labels is None) != (card.labels is None):
        raise DataError(
            f"{where}: inputs {list(dataset.shape)} with {'named' if dataset.labels else 'numbered'} classes; all "
            f"sites agreed on {list(card.inputs)} with {'named' if card.labels else 'numbered'} ones"
        )
    known = card.labels or tuple(map(str, range(card.classes)))
    own = dataset.labels or tuple(map(str, range(dataset.classes)))
    if unknown := [label for label in own if label not in known]:
        raise DataError(
            f"{where}: class {listed(unknown)} is not one of those that all sites agreed on, {listed(known)}"
        )
    new = torch.tensor([known.index(label) for label in own])
    test, made = dataset.official_test, dataset.preparation
    return replace(
        dataset,
        y=new[dataset.y],
        classes=card.classes,
        labels=card.labels,
        preparation=None if made is None else replace(made, labels=card.labels),
        official_test=None if test is None else Samples(test.x, new[test.y]),
    )
