"""The one object that a run starts from: on this machine, on a server, on a client's host, or to ask it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from msgspec import structs
from torch import Tensor, nn

from fedkin.capabilities.needs import needs_of
from fedkin.core import Bundle, ClientData, ConfigError, Method, Net, Samples
from fedkin.core.errors import nearest
from fedkin.core.grammar import Table
from fedkin.data import Dataset, Federation
from fedkin.data.shelf import Shelf
from fedkin.engines import Job
from fedkin.experiment.fingerprints import SECOND, about_of, made_by, network_marks, sizes_of
from fedkin.experiment.settings import Settings, completed, digest, method_of, table_of, title_of
from fedkin.inspection import require_two_classes
from fedkin.methods import get_method, get_title
from fedkin.models import MODELS
from fedkin.models.start import Model, factory
from fedkin.privacy.budget import private_of
from fedkin.privacy.dp_sgd import require_single_gradients
from fedkin.privacy.noise import KeyedReports
from fedkin.server import Plan, Server
from fedkin.server.requirements import require


class DataShape(Protocol):
    """Data that a network is made for: a federation, or the card of data on other hosts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def classes(self) -> int:
        """Number of classes."""


@dataclass(frozen=True)
class Experiment:
    """A run before its first round: all that stays the same while it goes on, made once.

    Attributes:
        method: with its hyperparameters.
        net: the network, at the values that the run starts from.
        settings: all of them, complete.
        plan: what the round loop needs of them.
        title: the method's display name.
        table: all settings, as a run folder has them.
        marks: fingerprints by which a run is recognised: of settings, data and networks.
        about: what each of them is of, as JSON, for messages.
    """

    method: Method
    net: Net
    settings: Settings
    plan: Plan
    title: str
    table: Table
    marks: Mapping[str, str]
    about: Mapping[str, str]

    @classmethod
    def prepare(cls, settings: Settings, federation: Federation, title: str | None = None) -> Experiment:
        """Make the run that settings describe.

        Args:
            settings: all of it.
            federation: the data that they name.
            title: display name. Default: the method's.

        Raises:
            DataError: all samples of the federation are of one class.
            ConfigError: a setting is out of range, or the method cannot do what another one asks for.
            ModelError: the network does not fit the data.
        """
        s = completed(settings)
        require_two_classes(federation)
        start = _Start(s.model.model, s.model.head, s.model.init_weights)
        return cls._here(method_of(s), federation, start, s, title or title_of(s))

    @classmethod
    def of(
        cls,
        method: Method | str,
        federation: Federation,
        model: Model | None,
        settings: Settings,
        title: str | None = None,
    ) -> Experiment:
        """Make a run of objects that a program has.

        Args:
            model: None: that of the settings.
            settings: all settings but the method and the data.
            method, federation, title: as of `fedkin.run`, with its errors.
        """
        if isinstance(method, str):
            title, method = title or get_title(method), get_method(method)
        require_method(method)
        _require_federation(federation)
        s = completed(made_by(method, federation, model, settings))
        require_two_classes(federation)
        start = _Start(s.model.model if model is None else model, s.model.head, s.model.init_weights)
        return cls._here(method, federation, start, s, title or method.title)

    @classmethod
    def _here(cls, method: Method, federation: Federation, start: _Start, settings: Settings, title: str) -> Experiment:
        return cls._made(
            method, federation, start, settings, plan_of(settings), len(federation), title=title,
            data=federation.fingerprint(), size=sizes_of(federation), samples=federation.clients[0].train.x[:2],
            validation=bool(federation.sizes()[:, 1].any()),
        )  # fmt: skip

    @classmethod
    def on_hosts(cls, settings: Settings, card: DataShape, run: str, samples: Tensor | None = None) -> Experiment:
        """Make the same run at its server or at a client's host, where data are not in one place.

        Args:
            settings: all of it.
            card: what the data of all clients have in common.
            run: the run's name, in place of a fingerprint of the data.
            samples: inputs of a client's data ``[n, *shape]``, at its host; None: at the server, which has none.

        Raises:
            ConfigError: the method cannot do what a setting asks for.
            ModelError: the network does not fit the data.
        """
        start = _Start(settings.model.model, settings.model.head, None)  # a message must not choose a file to be read
        return cls._made(
            method_of(settings), card, start, settings, plan_of(settings, on_hosts=True),
            title=title_of(settings), data=run, size={"run": run}, samples=samples,
        )  # fmt: skip

    @classmethod
    def _made(
        cls,
        method: Method,
        of: DataShape,
        start: _Start,
        settings: Settings,
        plan: Plan,
        clients: int | None = None,
        *,
        title: str,
        data: str,
        size: Table,
        samples: Tensor | None,
        validation: bool | None = None,
    ) -> Experiment:
        require(settings, method, clients=clients, validation=validation)
        make = factory(start.model, of.shape, of.classes, start.init_weights)
        second = _second(method, of)
        net = Net(
            make, of.shape, of.classes, head=start.head, seed=settings.run.seed, second=second, samples=samples,
            name=start.model if isinstance(start.model, str) else None,
        )  # fmt: skip
        if needs_of(method).second is not None:
            _ = net.second  # made now, so that what does not fit is seen before anything is trained
        require(settings, method, net)
        if settings.privacy.noise_multiplier is not None:
            require_single_gradients(net)
        table = table_of(settings)
        marks = {"config": digest(table), "data": data, **network_marks(net)}
        return cls(method, net, settings, plan, title, table, marks, about_of(table, size, net))

    @property
    def networks(self) -> str:
        """Fingerprint of all networks, which server and clients of real hosts compare."""
        return "".join(mark for name, mark in self.marks.items() if name in ("network", SECOND))

    def laid_out(self, clients: Sequence[ClientData]) -> Sequence[ClientData]:
        """Return clients' data in the memory layout that the network is fastest on.

        Data that are on disk stay there; each client's are laid out when they are read.
        """
        if isinstance(clients, Shelf):
            return clients
        return [_laid_out(self.net, shard) for shard in clients]

    def job(self, clients: Sequence[ClientData], *, outcomes: bool = True, secret: bool = False) -> Job:
        """Return what an engine needs to know: the clients' data, and how they train.

        Args:
            clients: their data, laid out.
            outcomes: the outcomes of single test samples may be sent where the plan asks for them.
            secret: on real hosts: noise does not follow from the run's seed, which others know, and the host adds it to
                what clients report of themselves.
        """
        privacy, seed = self.settings.privacy, self.settings.run.seed
        said = None if secret or privacy.metadata_epsilon is None else KeyedReports(privacy.metadata_epsilon, seed)
        return Job(
            self.method,
            self.net,
            self.settings.training,
            clients,
            seed,
            count_noise=None if said is None else said.counts,
            choice_noise=None if said is None else said.choice,
            private=private_of(privacy, secret=secret),
            gradient=self.settings.compute.gradient,
            outcomes=self.plan.outcomes_from if outcomes else None,
            evaluate=self.settings.run.evaluate,
            rounds=self.plan.rounds,
        )


@dataclass(frozen=True)
class _Start:
    """A network of a program: an object, or a name that is not resolved to a file's place."""

    model: Model
    head: str | None
    init_weights: str | None


def plan_of(settings: Settings, *, on_hosts: bool = False) -> Plan:
    """Return the part of a run's settings that the round loop needs.

    Args:
        settings: all of them.
        on_hosts: with the limits on clients' claims that real hosts need.
    """
    plan = Plan(
        **structs.asdict(settings.run),
        aggregation=settings.aggregation,
        outcomes=not settings.privacy.asked,
        metadata_epsilon=settings.privacy.metadata_epsilon,
    )
    return plan.but(max_share=settings.hosts.max_share, max_samples=settings.hosts.max_samples) if on_hosts else plan


def require_method(value: object) -> Method:
    """Return a method object, or raise `ConfigError`: programs pass classes."""
    if not isinstance(value, Method):
        raise ConfigError(f"a method is a name, such as 'fedavg', or an object, such as FedAvg(), got {value!r}")
    return value


def _require_federation(value: object) -> None:
    """Raise `ConfigError` unless it is a federation: programs pass data that are not shared out."""
    if isinstance(value, Federation):
        return
    how = "share it out first: fedkin.federate(dataset, fedkin.Dirichlet(alpha=0.5), clients=20)"
    got = f"a Dataset; {how}" if isinstance(value, Dataset) else f"an object of type {type(value).__name__}; {how}"
    raise ConfigError(f"federation must be a fedkin.Federation, got {got}")


def _second(method: Method, of: DataShape) -> Callable[[], nn.Module] | None:
    """Return the maker of a method's second network; None: that of the run's.

    Raises:
        ConfigError: it is not a network of the catalogue. A method's settings must not choose code to be run.
    """
    name = needs_of(method).second
    if name and name not in MODELS:
        raise ConfigError(
            f"the second network of {method.title} must be a network of the catalogue (fedkin list models), or be left "
            f"out for one of the run's kind; got {name!r}{nearest(name, MODELS)}"
        )
    return factory(name, of.shape, of.classes) if name else None


def require_validation(federation: Federation, setting: str) -> None:
    """Raise `ConfigError` if no client has validation data, which a setting needs."""
    if not federation.sizes()[:, 1].any():
        raise ConfigError(
            f"{setting} goes by validation accuracy, and no client has validation data; give clients some "
            "(--validation 0.1; a saved federation must be saved again with some), or leave it out"
        )


def _laid_out(net: Net, shard: ClientData) -> ClientData:
    # what torch.inference_mode made cannot be trained on
    parts = [
        Samples(*(t.clone() if t.is_inference() else t for t in (d.x, d.y)))
        for d in (shard.train, shard.validation, shard.test)
    ]
    train, held, tested = (Samples(net.layout(d.x), d.y) for d in parts)
    drift = None if shard.drift is None else (shard.drift[0], _laid_out(net, shard.drift[1]))
    return replace(shard, train=train, validation=held, test=tested, drift=drift)


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A run after its last round, all clients with it: what `fedkin.exporting` takes models from.

    Attributes:
        experiment: what stayed the same.
        job: the clients' data, and how they train.
        federation: the data as they were given: names of classes and clients.
        joins: the round in which each client came.
        server: the server after the last round.
        states: every client's private state after it.
        folder: where the run was written, or None.
    """

    experiment: Experiment
    job: Job
    federation: Federation
    joins: Sequence[int]
    server: Server
    states: Mapping[int, Bundle]
    folder: Path | None = None
