"""Settings of the data of a run and of their partition over clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fedkin.core import ConfigError
from fedkin.core.errors import nearest
from fedkin.data import (
    PARTITIONS,
    PROTOCOLS,
    Dataset,
    Drift,
    Federation,
    Partition,
    Sharing,
    brings_clients,
    fetched,
    is_shelf,
    share_out,
)
from fedkin.data.partition import settings_of
from fedkin.data.sources.reading import column_names
from fedkin.storage.toml import changed, plain

OnData = Callable[[Dataset | Federation, Federation], None]
"""Called with what was read and with the federation that was made of it."""
_OF_PARTITIONS = (
    "alpha",
    "classes_per_client",
    "groups",
    "classes_per_group",
    "alpha_between",
    "alpha_within",
    "min_samples",
    "tries",
    "balance",
    "equal_shares",
    "protocol",
)
_THERE = {"equal_shares": "balanced", "protocol": "variant"}


@dataclass(frozen=True)
class DataSettings:
    """Data and their partition over clients."""

    data: str = "digits"
    """Name of a data set (digits, synthetic, cifar10, femnist and others; fedkin list data shows all); a path: a folder
    of idx, csv, parquet or image files, an npz, csv or parquet file; hf:NAME or hf:FOLDER (Hugging Face); a function
    that gives data, package.module:function or ./file.py:function; or a folder with a whole federation
    (Federation.save), which needs no other setting."""
    clients: int | None = None
    """Number of clients. Default: 20, or all that the data bring (partition natural; a number draws some of them)."""
    partition: str | None = None
    """Partition of the samples over clients; fedkin list partitions shows all. Default: natural if the data name their
    clients (client_column, one file or folder per client, a function that gives clients), else dirichlet."""
    alpha: float | None = None
    """Concentration of a Dirichlet partition, over classes or sizes; the smaller, the more clients differ."""
    classes_per_client: int | None = None
    """Number of classes per client (partitions classes, extended-dirichlet, cluster-classes)."""
    groups: int | None = None
    """Number of true groups of clients (partitions cluster-dirichlet, cluster-classes; plant)."""
    classes_per_group: int | None = None
    """Number of classes per group (partition cluster-classes)."""
    plant: Literal["labels", "rotations"] | None = None
    """Synthetic true groups: permuted labels or images rotated by quarters, per group. Default: none."""
    drift_round: int | None = None
    """First round in which some clients are in the next group of plant: their data drift. Default: never."""
    drift_fraction: float | None = None
    """Fraction of the clients whose data drift. Default: 0.5."""
    feature_noise: float | None = None
    """Variance of Gaussian noise on the inputs of the last client; client i of N has i/N of it. Default: none."""
    alpha_between: float | None = None
    """Concentration between groups (partition cluster-dirichlet)."""
    alpha_within: float | None = None
    """Concentration inside a group (partition cluster-dirichlet)."""
    min_samples: int | None = None
    """Minimum number of samples per client (partitions dirichlet, quantity, natural and others that can ensure it)."""
    tries: int | None = None
    """Maximum number of draws to reach min_samples (partitions dirichlet, extended-dirichlet, quantity,
    cluster-dirichlet)."""
    balance: bool = False
    """Clients with an equal share of the samples already get no further classes (partition dirichlet)."""
    equal_shares: bool = False
    """Clients with the same class get equal shares of it (partition classes)."""
    protocol: Literal["cifar", "femnist"] | None = None
    """The authors' protocol for one of two data sets (partition dapfl). The partition dapfl-paper stands for cifar with
    the official test part and no validation part, dapfl-paper-femnist for femnist without a validation part."""
    split: Literal["pooled", "official"] = "pooled"
    """Merge the official test part and split every client's samples, or take test samples from the official part."""
    test: float = 0.2
    """Fraction of a client's samples for testing."""
    validation: float = 0.1
    """Fraction of a client's samples for validation."""
    samples_per_client: int | None = None
    """Maximum number of samples per client."""
    target: str | None = None
    """Tables: the column with the class. Hugging Face: the column with the label."""
    client_column: str | None = None
    """Tables, Hugging Face: the column with the client; npz: the array with it."""
    binary: bool = False
    """Tables: two classes, target > 0 and the rest."""
    drop: str | None = None
    """Tables: columns to leave out, with commas between them: id,date. A name with a comma is in double quotes."""
    image_size: int | None = None
    """Images: resize all to this height and width in pixels."""
    scaling: Literal["pooled", "client"] = "pooled"
    """Tables: standardise columns by all clients' training values together, which only a simulation can see, or by
    each client's own."""
    encoding: str | None = None
    """Tables: encoding of the text of csv files, such as cp1252 (Windows), latin1 or utf-16. Default: UTF-8."""
    data_seed: int | None = None
    """Seed of the partition. Default: the run's seed."""
    __repr__ = changed

    def chosen(self) -> str | None:
        """Return the partition's name, chosen by the data where none is set.

        None if the data must be read first, and for a saved federation, which is not shared out any more.
        If the data name the clients, they are used as given, unless a setting is given that only other partitions have.
        """
        if self.partition is not None:
            return str(PROTOCOLS.get(self.partition, {}).get("partition", self.partition))
        if is_shelf(self.data):
            return None
        of_natural = settings_of("natural")
        given = [n for n in self._given() if n not in of_natural]
        if [n for n in given if n != "groups" or not self.plant]:
            return "dirichlet"
        named = True if self.client_column is not None else brings_clients(self.data)
        return {True: "natural", False: "dirichlet", None: None}[named]

    @property
    def open(self) -> bool:
        """Whether no setting says who the clients are, so that the data decide."""
        return self.partition is None and self.clients is None and not self._given()

    def _given(self) -> list[str]:
        """Return the partition settings that are set."""
        return [n for n in _OF_PARTITIONS if getattr(self, n) not in (None, False)]

    def resolved(self) -> DataSettings:
        """Return the settings with the partition's name filled in, if it is known without reading the data.

        For a protocol (see `PROTOCOLS`), everything that it fixes is filled in.

        Raises:
            ConfigError: a setting that the protocol fixes otherwise.
        """
        fixed = PROTOCOLS.get(self.partition or "", {})
        for name, value in fixed.items():
            given, usual = getattr(self, name), getattr(DataSettings(), name)
            if name != "partition" and given not in (usual, value):
                raise ConfigError(
                    f"partition {self.partition!r} means {name} = {value!r}, got {given!r}; leave {name} out, or take "
                    f"partition {fixed['partition']!r}, which leaves it open"
                )
        changes: dict[str, Any] = {**fixed, "partition": self.chosen()}
        return dataclasses.replace(self, **changes)

    def partition_object(self) -> Partition | None:
        """Return the partition with its settings; None if it depends on the data (`deal` decides then).

        Raises:
            ConfigError: unknown partition, or a setting that it does not have.
        """
        name = self.chosen()
        if name is None:
            return None
        if name not in PARTITIONS:
            raise ConfigError(f"unknown partition {name!r}{nearest(name, [*PARTITIONS, *PROTOCOLS])}")
        return self.resolved()._with_settings(name)

    def _drift(self) -> Drift | None:
        if self.drift_round is not None and self.plant is None:
            raise ConfigError(f"drift_round changes the groups of plant, which is not set (given: {self.drift_round})")
        if self.drift_round is None:
            if self.drift_fraction is not None:
                raise ConfigError(f"drift_fraction needs drift_round, which is not set (given: {self.drift_fraction})")
            return None
        return Drift(self.drift_round, Drift.fraction if self.drift_fraction is None else self.drift_fraction)

    def _with_settings(self, partition: str) -> Partition:
        cls, own = PARTITIONS[partition], settings_of(partition)
        chosen: dict[str, Any] = {}
        for name in _OF_PARTITIONS:
            value = getattr(self, name)
            if value is None or value is False or (name == "groups" and self.plant):
                continue
            if (there := _THERE.get(name, name)) not in own:
                has = [n for n in _OF_PARTITIONS if _THERE.get(n, n) in own]
                others = [other for other in PARTITIONS if there in settings_of(other)]
                raise ConfigError(
                    f"partition {partition!r} has no setting {name} (given: {value}); it has {', '.join(has) or 'none'}"
                    f"; partitions with {name}: {', '.join(others)}"
                )
            chosen[there] = value
        return cls(**chosen)

    def federation(self, seed: int, seen: OnData | None = None) -> Federation:
        """Read the data and partition them, or open a federation that is partitioned already.

        Args:
            seed: the run's seed.
            seen: called with what was read and with the federation, before the former is forgotten.

        Raises:
            ConfigError: another setting than ``data`` for the latter.
        """
        if is_shelf(self.data):
            own = [n for n in plain(self) if getattr(self, n) != getattr(DataSettings(), n) and n != "data"]
            if own:
                raise ConfigError(f"{self.data} holds a federation that is shared out already; leave out {own[0]}")
            return Federation.open(self.data)
        how = self.sharing(seed)
        found = fetched(self.data, how)
        federation = share_out(found, how)
        if seen is not None:
            seen(found, federation)
        return federation

    def sharing(self, seed: int) -> Sharing:
        """Return everything but the data themselves, for a run with this seed; a site reads its own data by it."""
        how, partition = self.resolved(), self.partition_object()
        return Sharing(
            partition=partition,
            min_samples=self.min_samples if partition is None else None,
            clients=self.clients,
            seed=seed if self.data_seed is None else self.data_seed,
            test=self.test,
            validation=how.validation,
            split=how.split,
            samples_per_client=self.samples_per_client,
            target=self.target,
            client_column=self.client_column,
            binary=self.binary,
            drop=column_names(self.drop),
            image_size=self.image_size,
            scaling=self.scaling,
            planted=self.plant,
            groups=4 if self.groups is None else self.groups,
            drift=self._drift(),
            feature_noise=self.feature_noise or 0.0,
            encoding=self.encoding,
            made_up=self.open and self.chosen() == "dirichlet",
        )
