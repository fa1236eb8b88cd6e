"""A run as settings: read from flags or a TOML file, written beside the results, enough to run it again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedkin.core import ConfigError, Method, Training
from fedkin.core.errors import nearest
from fedkin.core.method import Moment
from fedkin.data import (
    PARTITIONS,
    PROTOCOLS,
    Dataset,
    Federation,
    Partition,
    Sharing,
    brings_clients,
    fetched,
    is_shelf,
    share_out,
)
from fedkin.engines import EngineName, Gradient
from fedkin.methods import canonical, get_method
from fedkin.storage.client_states import Kept
from fedkin.storage.toml import fill, named, plain, whole
from fedkin.user_code.reference import CodeRef, copies

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
    """A built-in name (digits, synthetic) or that of a known data set (cifar10, femnist; fedkin list data shows all);
    a path: a folder of idx, csv, parquet or image files, an npz, csv or parquet file; hf:NAME or hf:FOLDER (Hugging
    Face); a function that gives data, package.module:function or ./file.py:function; or a folder with a whole
    federation (Federation.save), which needs no other setting."""
    clients: int | None = None
    """Number of clients. Default: 20, or all that the data bring (partition natural)."""
    partition: str | None = None
    """Partition of the samples over clients; fedkin list partitions shows all. Default: natural if the data name their
    clients (client_column, one file or folder per client, a function that gives clients), else dirichlet."""
    alpha: float | None = None
    """Concentration of a Dirichlet partition; the smaller, the more clients differ."""
    classes_per_client: int | None = None
    """Number of classes per client (partitions classes, cluster-classes)."""
    groups: int | None = None
    """Number of true groups of clients (partitions cluster-dirichlet, cluster-classes; plant)."""
    classes_per_group: int | None = None
    """Number of classes per group (partition cluster-classes)."""
    plant: Literal["labels", "rotations"] | None = None
    """Synthetic true groups: permuted labels or images rotated by quarters, per group. Default: none."""
    alpha_between: float | None = None
    """Concentration between groups (partition cluster-dirichlet)."""
    alpha_within: float | None = None
    """Concentration inside a group (partition cluster-dirichlet)."""
    min_samples: int | None = None
    """Minimum number of samples per client (partitions dirichlet, natural and others that can ensure it)."""
    tries: int | None = None
    """Maximum number of draws to reach min_samples (partitions dirichlet, cluster-dirichlet)."""
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
    """Tables: columns to leave out, with commas between them: id,date."""
    image_size: int | None = None
    """Images: resize all to this height and width in pixels."""
    scaling: Literal["pooled", "client"] = "pooled"
    """Tables: standardise columns by all clients' training values together, which only a simulation can see, or by
    each client's own."""
    encoding: str | None = None
    """Tables: encoding of the text of csv files, such as cp1252 (Windows), latin1 or utf-16. Default: UTF-8."""
    data_seed: int | None = None
    """Seed of the partition. Default: the run's seed."""

    def chosen(self) -> str | None:
        """The partition's name, chosen by the data where none is set; None: only the data themselves can say.

        If the data name the clients, they are used as given, unless a setting is given that only other partitions have.
        """
        if self.partition is not None:
            return str(PROTOCOLS.get(self.partition, {}).get("partition", self.partition))
        of_natural = {f.name for f in fields(PARTITIONS["natural"])}  # type: ignore[arg-type]
        given = [n for n in self._given() if n not in of_natural]
        if is_shelf(self.data) or [n for n in given if n != "groups" or not self.plant]:
            return "dirichlet"
        named = True if self.client_column is not None else brings_clients(self.data)
        return {True: "natural", False: "dirichlet", None: None}[named]

    @property
    def open(self) -> bool:
        """Whether no setting says who the clients are, so that the data decide."""
        return self.partition is None and self.clients is None and not self._given()

    def _given(self) -> list[str]:
        """The settings of partitions that are set."""
        return [n for n in _OF_PARTITIONS if getattr(self, n) not in (None, False)]

    def resolved(self) -> DataSettings:
        """The same with the partition's name written out, if it is known without reading the data; of a protocol (see
        `PROTOCOLS`), all that it fixes.

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
        """The partition with its own settings; None where only the data themselves can say which (`deal` does).

        Raises:
            ConfigError: unknown partition, or a setting that it does not have.
        """
        name = self.chosen()
        if name is None:
            return None
        if name not in PARTITIONS:
            raise ConfigError(f"unknown partition {name!r}{nearest(name, [*PARTITIONS, *PROTOCOLS])}")
        return self.resolved()._with_settings(name)

    def _with_settings(self, partition: str) -> Partition:
        cls = PARTITIONS[partition]
        own = {f.name for f in fields(cls)}  # type: ignore[arg-type]  # every partition is a dataclass
        chosen: dict[str, Any] = {}
        for name in _OF_PARTITIONS:
            value = getattr(self, name)
            if value is None or value is False or (name == "groups" and self.plant):
                continue
            if (there := _THERE.get(name, name)) not in own:
                has = [n for n in _OF_PARTITIONS if _THERE.get(n, n) in own]
                raise ConfigError(
                    f"partition {partition!r} has no setting {name} (given: {value}); it has {', '.join(has) or 'none'}"
                )
            chosen[there] = value
        return cls(**chosen)

    def federation(self, seed: int, seen: OnData | None = None) -> Federation:
        """Reads the data and shares them out, or opens a federation that is shared out already.

        Args:
            seed: the run's seed.
            seen: called with what was read and with the federation, before the former is forgotten.

        Raises:
            ConfigError: a setting beside ``data`` for the latter.
        """
        if is_shelf(self.data):
            own = [n for n in plain(self) if getattr(self, n) != getattr(DataSettings(), n) and n != "data"]
            own = [n for n in own if (n, self.partition) != ("partition", "dirichlet")]  # as `Settings.table` writes it
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
        """All of it but the data themselves, for a run with this seed; a site reads its own data by it."""
        how = self.resolved()
        return Sharing(
            partition=self.partition_object(),
            clients=self.clients,
            seed=seed if self.data_seed is None else self.data_seed,
            test=self.test,
            validation=how.validation,
            split=how.split,
            samples_per_client=self.samples_per_client,
            target=self.target,
            client_column=self.client_column,
            binary=self.binary,
            drop=tuple(name.strip() for name in (self.drop or "").split(",") if name.strip()),
            image_size=self.image_size,
            scaling=self.scaling,
            planted=self.plant,
            groups=self.groups or 4,
            encoding=self.encoding,
            made_up=self.open and self.chosen() == "dirichlet",
        )


@dataclass(frozen=True)
class ModelSettings:
    """The network."""

    model: str = "mlp"
    """A name (fedkin list models), or a user-defined class or function: ./file.py:build or package.module:build."""
    head: str | None = None
    """Name of the module that is the head. Default: the last linear layer."""
    init_weights: str | None = None
    """Initial weights: a state_dict as .safetensors. Default: random weights, the same for every method."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.code.name)
        if self.init_weights is not None:  # a run can be resumed from any place
            object.__setattr__(self, "init_weights", str(Path(self.init_weights).expanduser().resolve()))

    @property
    def code(self) -> CodeRef:
        """What the name stands for."""
        return CodeRef.read(self.model)

    def table(self) -> dict[str, Any]:
        """As plain values; of a file, the name of its copy in the run folder and its fingerprint."""
        return {**plain(self), "model": self.code.portable, **self.code.entry(files_only=True)}


@dataclass(frozen=True)
class RunSettings:
    """The run itself."""

    rounds: int = 50
    """Communication rounds."""
    participation: float = 1.0
    """Fraction of the clients that each round samples."""
    seed: int = 0
    """Seed of all random draws."""
    eval_every: int | None = None
    """Evaluate every N rounds and in each of the last ten. Default: about 25 times in a run."""
    evaluate: Moment = "delivered"
    """Evaluate each client's model as it would predict now, with what the server would deliver, or as it was right
    after its last local training."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in averages: its number of training samples, or the same for all."""
    dropout: float = 0.0
    """Probability that a sampled client does not reply."""
    join_late: str | None = None
    """Clients that join late, such as 3@50: three clients join in round 50."""
    min_answers: int = 1
    """Minimum number of usable replies; a round with fewer is abandoned and changes no model."""
    over_selection: float = 1.0
    """Factor on the number of sampled clients, such as 1.3; the first to reply are used."""
    aggregation: Literal["mean", "median", "trimmed", "krum", "norm"] = "mean"
    """How the server aggregates updates: the mean, or a rule that is robust to a minority of malicious updates."""
    assumed_bad: float = 0.2
    """Fraction of the updates that may be malicious (aggregation trimmed and krum)."""
    norm_factor: float = 1.0
    """Maximum distance from the median update, in multiples of the median norm (aggregation norm)."""
    secure_aggregation: bool = False
    """Secure aggregation: the server learns sums of updates only (methods that need no more, at least 3 clients)."""
    attack: Literal["none", "sign-flip", "scale", "random"] = "none"
    """Attack on updates, for research: sign flip, scaling by 100, or random noise."""
    attackers: float = 0.0
    """Fraction of the clients that attack."""
    describe_epsilon: float | None = None
    """Epsilon of the noise on class counts that clients report when they join. Default: exact counts."""
    dp_noise: float | None = None
    """Private training (DP-SGD): noise in units of dp_clip, such as 1.0. Default: plain training."""
    dp_clip: float = 1.0
    """Maximum norm of the gradient of a single sample in private training."""
    dp_delta: float = 1e-5
    """Delta of private training: the probability with which its epsilon may not hold."""
    gradient: Gradient = "auto"
    """How gradients are computed: explicitly for chains of conv, pool, linear and ReLU layers, or by autograd."""
    engine: EngineName = "auto"
    """How clients are trained: in parallel processes, one after another, or in stacks (for a GPU)."""
    workers: int = 0
    """Number of processes of the workers engine; 0 for one per core. Results do not depend on it."""
    state: Kept = "auto"
    """Where clients' private states and the server's model of each client are kept; auto: in files if a model for every
    client takes more than 256 MiB. Results do not depend on it."""


@dataclass(frozen=True)
class HostSettings:
    """Settings for real hosts; a simulation ignores them."""

    clients: int = 1
    """Number of clients to wait for before the first round."""
    least: int = 1
    """Minimum number of connected clients in later rounds."""
    patience: float = 3600.0
    """Maximum seconds to wait for enough clients; then a round goes on with those that are connected."""
    deadline: float = 600.0
    """Maximum seconds for a client's reply, up to 10 of them for transfer; a slower client is left out of the round."""
    max_reply_mb: int = 256
    """Maximum size of a client's reply in MB; a larger one is refused before it is decoded."""
    most_samples: int = 10_000_000
    """Maximum number of training samples that a client may claim."""
    free_names: bool = False
    """Accept clients under other names than those of their registered keys. By default the client-id is the NAME of
    NAME.pub at the link, so that no client can come as another."""
    max_share: float = 0.5
    """Maximum fraction of a round's samples that one client can have by its claim; a larger weight is lowered to it
    and reported in the run's events and rounds. With 1 / max_share clients or fewer (two at 0.5) there is no limit; 1
    switches it off."""

    def __post_init__(self) -> None:
        for name in ("clients", "least", "max_reply_mb", "most_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"[hosts] {name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.max_share <= 1:
            raise ConfigError(f"[hosts] max_share must be above 0 and at most 1, got {self.max_share}")
        for name in ("patience", "deadline"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"[hosts] {name} must be a number of seconds above 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Settings:
    """Everything that makes a run."""

    name: str
    method: Method
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: Training = field(default_factory=Training)
    run: RunSettings = field(default_factory=RunSettings)
    hosts: HostSettings = field(default_factory=HostSettings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", canonical(self.code.name))

    @property
    def code(self) -> CodeRef:
        """What the method's name stands for."""
        return CodeRef.read(self.name)

    def table(self) -> dict[str, Any]:
        """As nested tables of plain values, complete, without settings that are not set."""
        method = {"name": self.code.portable, **self.code.entry(), **plain(self.method)}
        parts: dict[str, Any] = {"training": self.training, "run": self.run}
        if self.hosts != HostSettings():
            parts["hosts"] = self.hosts
        first = {"method": method, "data": plain(self.data.resolved()), "model": self.model.table()}
        return first | {name: plain(part) for name, part in parts.items()}

    def sources(self) -> dict[str, bytes]:
        """The files of one's own code that the table names, to be kept beside it: file name -> content.

        Raises:
            ConfigError: one cannot be read, or two different ones have the same name.
        """
        return copies([self.code, self.model.code])

    def toml(self) -> str:
        """As a TOML file that ``fedkin run`` takes, beside its `sources`."""
        return tomli_w.dumps(self.table())

    def digest(self) -> str:
        """A fingerprint of all that decides the results.

        The engine and its workers are left out: loop and workers agree bit for bit, the stacked engine to the tolerance
        of float32 (its last digits may differ from theirs).
        """
        return digest(self.table())


def digest(table: Mapping[str, Any]) -> str:
    """A fingerprint of a run's table, without what does not decide results."""
    return hashlib.blake2b(json.dumps(decisive(table), sort_keys=True).encode(), digest_size=16).hexdigest()


def decisive(table: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the results, of a run's table, in plain values."""
    kept = table.get("run", {})
    run = (
        {k: v for k, v in kept.items() if k not in ("engine", "workers", "state")} if isinstance(kept, Mapping) else {}
    )
    parts = {**{k: v for k, v in table.items() if k != "hosts"}, "run": run}
    found: dict[str, Any] = whole(
        named(parts, lambda name: CodeRef(name).portable)
    )  # wherever the folder with a copy of code lies
    return found


def settings_from(table: Mapping[str, Any], where: str = "config") -> Settings:
    """Settings from the tables of a TOML file.

    Raises:
        ConfigError: an unknown table or key, or a value of the wrong kind; it names them.
    """
    known = ("method", "data", "model", "training", "run", "hosts")
    if "made_by" in table:
        raise ConfigError(
            f"{where} was made by a program with {table['made_by']}, which only that program has; run it there"
        )
    for name, part in table.items():
        if name not in known:
            raise ConfigError(f"{where}: unknown table [{name}]{nearest(name, known)}")
        if not isinstance(part, Mapping):
            raise ConfigError(f"{where}: [{name}] must be a table, got {part!r}")
    method = dict(table.get("method", {}))
    if "name" not in method:
        raise ConfigError(f'{where}: [method] needs a name, for example name = "fedavg"')
    name, code = str(method.pop("name")), method.pop("code", None)
    made = get_method(name)
    CodeRef(name).require_same(code, f"{where}: [method]")
    return Settings(
        name,
        fill(made, method, f"{where}: [method]"),
        fill(DataSettings(), table.get("data", {}), f"{where}: [data]"),
        model_from(table.get("model", {}), f"{where}: [model]"),
        fill(Training(), table.get("training", {}), f"{where}: [training]"),
        fill(RunSettings(), table.get("run", {}), f"{where}: [run]"),
        fill(HostSettings(), table.get("hosts", {}), f"{where}: [hosts]"),
    )


def model_from(table: Mapping[str, Any], where: str) -> ModelSettings:
    """The network from its table.

    Raises:
        ConfigError: an unknown key, a value of the wrong kind, or its file has changed.
    """
    own = {k: v for k, v in table.items() if k != "code"} if isinstance(table, Mapping) else table
    found: ModelSettings = fill(ModelSettings(), own, where)
    if own is not table:
        found.code.require_same(table.get("code"), where)
    return found
