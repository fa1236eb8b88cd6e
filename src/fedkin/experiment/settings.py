"""Settings of a run: read from flags or a TOML file, written next to the results, enough to make the run again.

One dataclass is one group: a table of a config file, a group of flags, an argument of `fedkin.run`. Each setting is
declared once, here or, where a room below needs the group, there: `Training`, `RunSettings`, `Aggregation`, `Attack`,
`Privacy`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.core import Aggregation, ConfigError, Method, Training
from fedkin.core.errors import nearest
from fedkin.engines import EngineName, Gradient
from fedkin.experiment.data_settings import DataSettings, OnData
from fedkin.methods import Safe, canonical, get_method, get_title, settings_in
from fedkin.privacy.budget import Privacy
from fedkin.server import Attack, RunSettings
from fedkin.storage.client_states import Kept
from fedkin.storage.toml import changed, fill, named, plain, whole
from fedkin.user_code.reference import CodeRef, copies

__all__ = [
    "Compute",
    "DataSettings",
    "HostSettings",
    "ModelSettings",
    "OnData",
    "RunSettings",
    "Settings",
    "Setup",
    "digest",
    "settings_from",
    "setup_from",
]


@dataclass(frozen=True)
class ModelSettings:
    """The network."""

    model: str = "mlp"
    """Name of a network (fedkin list models), or a class or function: ./file.py:build or package.module:build."""
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
class Compute:
    """Computation of a run: results do not depend on it, except for their last digits."""

    engine: EngineName = "auto"
    """How clients are trained: in parallel processes, one after another, or in stacks (for a GPU)."""
    workers: int = 0
    """Number of processes of the workers engine; 0 for one per core."""
    gradient: Gradient = "auto"
    """How clients' models are trained: "compiled" (needs fedkin[fast]) or "explicit" for chains of conv, pool, linear
    and ReLU layers, "autograd" for any; each where it can be, else the next. auto: the fastest that is installed."""
    state: Kept = "auto"
    """Where clients' private states and the server's model of each client are kept; auto: in files if a model for every
    client takes more than 256 MiB."""


@dataclass(frozen=True)
class HostSettings:
    """Settings for real hosts; a simulation ignores them."""

    min_clients: int = 1
    """Number of clients to wait for before the first round."""
    min_connected: int = 1
    """Minimum number of connected clients in later rounds."""
    wait_timeout: float = 3600.0
    """Maximum seconds to wait for enough clients; then a round goes on with those that are connected."""
    reply_timeout: float = 600.0
    """Maximum seconds for a client's reply, up to 10 of them for transfer; a slower client is left out of the round."""
    max_samples: int = 10_000_000
    """Maximum number of training samples that a client may claim."""
    free_names: bool = False
    """Accept clients under other names than those of their registered keys. By default the client-id is the NAME of
    NAME.pub at the link, so that no client can come as another."""
    max_share: float = 0.5
    """Maximum fraction of a round's samples that one client can have by its claim; a larger weight is lowered to it
    and reported in the run's events and rounds. With 1 / max_share clients or fewer (two at 0.5) there is no limit; 1
    switches it off."""

    def __post_init__(self) -> None:
        for name in ("min_clients", "min_connected", "max_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"[hosts] {name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.max_share <= 1:
            raise ConfigError(f"[hosts] max_share must be above 0 and at most 1, got {self.max_share}")
        for name in ("wait_timeout", "reply_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"[hosts] {name} must be a number of seconds above 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, repr=False)
class Setup:
    """All settings of a run but its method: one field for each table of a config file."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: Training = field(default_factory=Training)
    run: RunSettings = field(default_factory=RunSettings)
    aggregation: Aggregation = field(default_factory=Aggregation)
    attack: Attack = field(default_factory=Attack)
    privacy: Privacy = field(default_factory=Privacy)
    compute: Compute = field(default_factory=Compute)
    hosts: HostSettings = field(default_factory=HostSettings)
    __repr__ = changed

    def groups(self) -> dict[str, Any]:
        """Return the groups by name."""
        return {f.name: getattr(self, f.name) for f in fields(Setup)}

    def tables(self) -> dict[str, Any]:
        """Return nested tables of plain values, complete, without settings that are not set; hosts only if any is."""
        found = {name: plain(group) for name, group in self.groups().items() if group != HostSettings()}
        return found | {"data": plain(self.data.resolved()), "model": self.model.table()}


@dataclass(frozen=True, repr=False)
class Settings(Setup):
    """All settings of a run.

    Attributes:
        name: of the method.
        method: the method with its hyperparameters.
    """

    name: str
    method: Method

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", canonical(self.code.name))
        if own := settings_in(self.name):
            method = self.method.inner if isinstance(self.method, Safe) else self.method
            if fill(method, own, self.name) != method:
                raise ConfigError(
                    f"{self.title}: the method has other values than its name says; set fields by the name or by flags "
                    "and [method], not both"
                )

    @property
    def code(self) -> CodeRef:
        """What the method's name stands for."""
        return CodeRef.read(self.name)

    @property
    def title(self) -> str:
        """Name of the run in tables: that of the method's name and, of a safe form, the mode if its title shows it."""
        title, method = get_title(self.name), self.method
        return title + method.title.removeprefix(f"{method.inner.title}-safe") if isinstance(method, Safe) else title

    def table(self) -> dict[str, Any]:
        """Return the method and all groups as nested tables of plain values."""
        return {"method": {"name": self.code.portable, **self.code.entry(), **plain(self.method)}, **self.tables()}

    def sources(self) -> dict[str, bytes]:
        """Return the files of user-defined code that the table names, to be stored next to it: file name -> content.

        Raises:
            ConfigError: one cannot be read, or two different ones have the same name.
        """
        return copies([self.code, self.model.code])

    def toml(self) -> str:
        """Return a TOML file that ``fedkin run`` takes, next to its `sources`."""
        return tomli_w.dumps(self.table())

    def digest(self) -> str:
        """Return a fingerprint of all settings that decide the results.

        The engine and its workers are left out: loop and workers agree bit for bit, the stacked engine to the tolerance
        of float32 (its last digits may differ from theirs).
        """
        return digest(self.table())


def digest(table: Mapping[str, Any]) -> str:
    """Return a fingerprint of the settings in a run's table that decide the results."""
    return hashlib.blake2b(json.dumps(decisive(table), sort_keys=True).encode(), digest_size=16).hexdigest()


def decisive(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the results, of a run's table, in plain values."""
    compute = table.get("compute", {})
    kept = {name: value for name, value in table.items() if name not in ("hosts", "compute")}
    if isinstance(compute, Mapping) and "gradient" in compute:
        kept["compute"] = {"gradient": compute["gradient"]}
    # wherever the folder with a copy of code is
    found: dict[str, Any] = whole(named(kept, lambda name: CodeRef(name).portable))
    return found


def settings_from(table: Mapping[str, Any], where: str = "config", *, checked: bool = True) -> Settings:
    """Read settings from the tables of a TOML file.

    Args:
        table: the tables.
        where: the file, for messages.
        checked: as of `fedkin.storage.toml.fill`.

    Raises:
        ConfigError: an unknown table or key, or a value of the wrong kind; it names them.
    """
    if "made_by" in table:
        raise ConfigError(
            f"{where} was made by a program with {table['made_by']}, which only that program has; run it there"
        )
    rest = {k: v for k, v in table.items() if k != "method"}
    groups = setup_from(rest, where, also=("method",), checked=checked).groups()
    method = table.get("method", {})
    if not isinstance(method, Mapping):
        raise ConfigError(f"{where}: [method] must be a table, got {method!r}")
    if "name" not in method:
        raise ConfigError(f'{where}: [method] needs a name, for example name = "fedavg"')
    name, code = str(method["name"]), method.get("code")
    own = {k: v for k, v in method.items() if k not in ("name", "code")}
    made = get_method(name)
    CodeRef(name).require_same(code, f"{where}: [method]")
    return Settings(name, fill(made, own, f"{where}: [method]", checked=checked), **groups)


def setup_from(table: Mapping[str, Any], where: str, also: tuple[str, ...] = (), *, checked: bool = True) -> Setup:
    """Read all groups of settings but the method from tables.

    Args:
        table: group -> its settings.
        where: the file, for messages.
        also: names of further tables of such a file, for messages.
        checked: as of `fedkin.storage.toml.fill`; settings for hosts always are, since they have no flags.

    Raises:
        ConfigError: an unknown table or key, or a value of the wrong kind; it names them.
    """
    usual = Setup()
    known = (*also, *(f.name for f in fields(Setup)))
    for name, part in table.items():
        if name not in known:
            raise ConfigError(f"{where}: unknown table [{name}]{nearest(name, known)}")
        if not isinstance(part, Mapping):
            raise ConfigError(f"{where}: [{name}] must be a table, got {part!r}")
    groups = {
        name: fill(getattr(usual, name), part, f"{where}: [{name}]", checked=checked or name == "hosts")
        for name, part in table.items()
        if name != "model"
    }
    return Setup(**groups, model=model_from(table.get("model", {}), f"{where}: [model]"))


def model_from(table: Mapping[str, Any], where: str) -> ModelSettings:
    """Return the network from its table.

    Raises:
        ConfigError: an unknown key, a value of the wrong kind, or its file has changed.
    """
    own = {k: v for k, v in table.items() if k != "code"} if isinstance(table, Mapping) else table
    found: ModelSettings = fill(ModelSettings(), own, where)
    if own is not table:
        found.code.require_same(table.get("code"), where)
    return found
