"""Federated methods: frozen dataclasses of hyperparameters with a handful of pure steps."""

from __future__ import annotations

import inspect
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedkin.core.bundle import Bundle, Download
from fedkin.core.errors import ConfigError, MethodError
from fedkin.core.net import Net
from fedkin.core.robust import Aggregation
from fedkin.core.sides import Client, Round
from fedkin.core.train import Optimizer, Train

Work: TypeAlias = Generator[Train | tuple[Train, ...], Any, Bundle]
"""Client code: yields requests for training, is sent the trained vectors, and returns the bundle that leaves."""

Moment: TypeAlias = Literal["delivered", "trained"]
"""When a client's model is scored: as it would predict now, with what the server would deliver and what the client
keeps; or right after its last local training."""
PRESET_TABLES = ("training", "run")
"""Tables of settings that a preset may hold next to fields of its method."""

FAMILIES = ("no federation", "one global model", "personal part", "personal model", "mixture", "clusters", "knowledge")
"""What clients get from a method: nothing; the same model for all; a personal part on a common model; a personal model;
a model mixed for each; the model of their cluster; knowledge other than models, such as prototypes."""


class Method(ABC):
    """A federated method: what clients and server do, never where or in what order clients are trained.

    A method is a frozen dataclass whose fields are its hyperparameters (a docstring below each field is its help text).
    Methods are final: a method that inherits from another raises `TypeError` when its class is made; wrap it instead.
    """

    paper: ClassVar[str] = ""
    """Authors, title, venue."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named settings: fields of the method, of training under ``training`` and of the run itself under ``run``."""
    family: ClassVar[str] = ""
    """What clients get from it: one of `FAMILIES`."""
    reveals: ClassVar[str] = ""
    """What the server learns about one client, in addition to its number of samples; a short phrase."""
    robust: ClassVar[bool] = False
    """Whether every mean, group mean and mixture that the server makes of clients' uploads goes through ``r.mean``,
    ``r.group_mean`` and ``r.mix``, so that a run's rule of aggregation (`fedkin.core.robust`) covers all of them."""
    groups_models: ClassVar[bool] = False
    """Whether the server makes clusters of uploads that consist of a ``model`` alone."""
    sends_as_trained: ClassVar[bool] = False
    """Whether `client_update` returns, and keeps, trained vectors as they come and nothing else, and `aggregate` reads
    uploads by ``r.mean`` alone. An engine may then leave uploads on its device until their mean is taken there."""

    @property
    def title(self) -> str:
        """Name of the method in tables, as its paper writes it; by default the name of the class.

        A method that wraps another one has both names. A method states it as a plain attribute where it differs.
        """
        own, inner = type(self).__name__, getattr(self, "inner", None)
        return f"{inner.title}-{own}" if isinstance(inner, Method) else own

    @property
    def summary(self) -> str:
        """What the method does in one sentence: by default the first line of its docstring."""
        return (type(self).__doc__ or "").strip().splitlines()[0] if type(self).__doc__ else ""

    @property
    def export_rule(self) -> Mapping[str, Any] | None:
        """Rule by which `predict` turns the result of `personalize` into logits, for the loader of exported folders.

        By default ``{"kind": "model"}``, one network, or None, which cannot be exported, where `predict` is overridden.
        The other kinds are those of `fedkin.exporting.loader`. A method states it as a plain attribute.
        """
        return {"kind": "model"} if type(self).predict is Method.predict else None

    @property
    def also_sends(self) -> str | None:
        """What a client sends about its training data in a round in addition to trained vectors; "" if nothing.

        None: not stated, and taken to be something.

        Only where it is "" can private training (DP-SGD) guarantee anything. It also states that every loss is a mean
        over the samples of a batch, and that requests depend on the training data through ``per_sample`` and trained
        vectors alone. A method states it as a plain attribute.
        """
        return None

    @property
    def sends_exact(self) -> frozenset[Literal["counts", "scores"]]:
        """Exact figures of a client's data that its uploads and answers hold as such.

        "counts" of its classes; "scores", accuracies or losses of models. Nodes whose owners keep such figures
        (``--max-metadata-epsilon``, ``--keep-scores``) refuse the method. A method that wraps another one has its
        figures. A method states it as a plain attribute.
        """
        inner = getattr(self, "inner", None)
        return inner.sends_exact if isinstance(inner, Method) else frozenset()

    @property
    def follows_total(self) -> str | None:
        """Reason why the steps depend on the number of rounds of the run, ``r.total``; "" if they do not.

        None: not stated; the method is taken to depend on it if its source reads ``.total``.

        The rounds of a run of such a method are not the first rounds of a longer run, so it cannot be made longer.
        """
        return None

    @property
    def presumes_sgd(self) -> str:
        """Reason why clients must train by SGD, such as a formula for the length of its steps; "" if they need not.

        A method states it as a plain attribute.
        """
        return ""

    @property
    def secure_aggregation(self) -> bool:
        """Whether one mean of the uploads, or one per fixed group, is all that the server needs (secure aggregation).

        If so, ``aggregate`` gives the same state when every upload is replaced by the mean of its pool (see `pools`).
        Uploads are floating-point numbers, and ``distribute`` sends the clients of a pool the same tensors. A method
        states it as a plain attribute.
        """
        return False

    @property
    def reads_validation(self) -> bool:
        """Whether its steps read clients' validation samples, which then cannot judge its models without bias.

        A method states it as a plain attribute.
        """
        return False

    @property
    def sends_scores(self) -> bool:
        """Whether clients send figures of their models on validation samples, as answers to `consult`.

        A method states it as a plain attribute.
        """
        return False

    @property
    def noisy_scores(self) -> bool:
        """Whether clients send scores, and in runs with `metadata_epsilon` one `Client.choice` in their place.

        A method states it as a plain attribute.
        """
        return False

    @property
    def second_network(self) -> str | None:
        """Name of a second network that clients train next to the run's, `fedkin.core.net.Net.second`; None: none.

        "" for another one of the run's kind. By default that of a wrapped method. A method states it as a property.
        """
        inner = getattr(self, "inner", None)
        return inner.second_network if isinstance(inner, Method) else None

    @property
    def trains_to_predict(self) -> bool:
        """Whether `personalize` requests training from some clients; by default, whether it is a program.

        A method whose settings decide states it as a property.
        """
        return inspect.isgeneratorfunction(type(self).personalize)

    @property
    def client_notes(self) -> Mapping[str, tuple[float, float]]:
        """Numbers in the result of `personalize` that evaluations record for each client, by name, with their range.

        ``{"share": (0.0, 1.0)}``: every result has a ``share []``, which is at least 0 and at most 1. It leaves the
        client with the results of its evaluation and is the field ``note_share`` of its line in ``clients.jsonl``. A
        method states it as a plain attribute.
        """
        return {}

    @property
    def tuned(self) -> Mapping[str, Sequence[float | str] | str]:
        """Fields that a tuned comparison varies (`--tune`), each with the values to try or a range of them.

        Values are a list, a range is ``log:1e-3..1``, ``0..1`` or ``int:1..5``: the paper's own where it has them,
        otherwise about a factor of ten around the default. The training's step size is varied for every method, and
        fields of a wrapped method are those that it states itself. A method states it as a plain attribute.
        """
        return {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__bases__:
            if base is not Method and issubclass(base, Method):
                raise TypeError(f"{cls.__name__} inherits from the method {base.__name__}; methods are final, wrap it")

    @classmethod
    def presets_for(cls, given: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return the presets of the method that has these fields; by default all presets of the class.

        To be overridden by a class that stands for several methods with presets of different names or settings.
        """
        return cls.presets

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Return the method with the fields of a named preset.

        The table in `presets_for` holds the settings of training and run that go with it.

        Raises:
            ConfigError: the method, as ``changes`` make it, has no such preset.
        """
        presets = cls.presets_for(changes)
        if name not in presets:
            raise ConfigError(f"{cls.__name__} has no preset {name!r}; it has {sorted(presets) or 'none'}")
        fields = {k: v for k, v in presets[name].items() if k not in PRESET_TABLES}
        if isinstance(inner := changes.get("inner"), Method) and "inner" in fields:  # those of a wrapped method
            changes["inner"] = type(inner)(**{**vars(inner), **fields["inner"]})
        return cls(**{**fields, **changes})

    # ---- server -----------------------------------------------------------------------------------------------
    @abstractmethod
    def init(self, r: Round) -> Bundle:
        """Return the server's state before any client is known."""

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Return the state with the joining clients ``r.ids`` in it, in any round; ``r.roster`` already holds them."""
        return s

    def survey(self, s: Bundle, r: Round) -> Download | None:
        """Return what each of the available clients ``r.ids`` is asked at the start of a round; by default None.

        It is for information from clients that do not train in this round. A client with an empty row is not asked.
        """
        return None

    def consult(self, s: Bundle, r: Round) -> Download | None:
        """Return what each of the clients ``r.ids`` is asked after an evaluated round's aggregation; by default None.

        It is for information on the models as they are now, which prediction depends on: the answers (see `answer`;
        ``c.received`` then holds ``consult``) go through `collect` before `deliver`. What both send under one name
        travels once. With `metadata_epsilon` clients are asked in the last round alone, since noise covers one answer.
        """
        return None

    def collect(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the state after the stacked answers of a survey; row i of ``up`` came from ``r.ids[i]``."""
        return s

    def sample(self, s: Bundle, r: Round) -> Tensor | Bundle:
        """Return the available clients ``r.ids`` that take part: by default ``r.cohort`` of them, uniformly.

        The default draws from a stream that does not depend on the method, so that methods see the same schedule. A
        method that draws more than that returns a bundle: distinct ``ids`` and, next to them, a row for each under any
        name; the later steps of the round find these rows in ``r.drawn``.
        """
        return uniform_cohort(r)

    @abstractmethod
    def distribute(self, s: Bundle, r: Round) -> Download:
        """Return what each of ``r.ids`` is sent: `to_all`, `to_each`, or both joined with ``|``."""

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Return what each of ``r.ids`` is sent to predict with: by default the same as for training."""
        return self.distribute(s, r)

    @abstractmethod
    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the next state from the stacked uploads; row i of ``up`` came from ``r.ids[i]``.

        It is not called without any upload.
        """

    def pools(self, s: Bundle, r: Round) -> Bundle:
        """Return the groups of clients whose uploads secure aggregation averages, and the weights.

        Returns:
            ``group`` int64 ``[m]``, below 0 for a client whose upload would not be used; ``weight`` ``[m]``. By default
            one group, weighing as ``r.mean`` does.
        """
        return Bundle(group=torch.zeros_like(r.ids), weight=r.weight)

    def refuses(self, r: Round, up: Bundle) -> str | None:
        """Return why one client's upload cannot be used although names, shapes and types are right; None if it can.

        It is for numbers that are used as an index: one out of range would end the round for all clients. Answers to
        `consult` are checked by it as well.
        """
        return None

    def relations(self, s: Bundle, r: Round) -> Tensor | None:
        """Return the cluster of every client, int64 ``[K]`` (-1 = not known), for methods that group clients.

        It is the cluster that the server used when the client last took part, not the one that the client would choose
        now.
        """
        return None

    def cluster_count(self, s: Bundle, r: Round) -> int | None:
        """Return the number of clusters, empty ones included; None: one more than the highest of `relations`."""
        return None

    def notes(self, s: Bundle) -> dict[str, float]:
        """Return numbers about the state that are worth a line in the log of each round.

        Those of an evaluation alone (of answers to `consult`) have names that begin with ``evaluated_``.
        """
        return {}

    def caveat(self, net: Net, s: Bundle) -> str:
        """Return a caveat on results with a network and a final state, for the notes of a run: why the method does
        there what another one does; "" if there is none. By default that of a wrapped method.
        """
        inner = getattr(self, "inner", None)
        return inner.caveat(net, s.inside("inner")) if isinstance(inner, Method) else ""

    # ---- client -----------------------------------------------------------------------------------------------
    def describe(self, c: Client) -> Bundle:
        """Return what a client sends once, at first contact, before any model."""
        return Bundle()

    def answer(self, c: Client) -> Work | Bundle:
        """Return a client's answer to a survey or `consult`, from its data, its state and what it was sent.

        Its state stays. It trains only where the answer is about a prediction that is an adaptation of what is sent.
        """
        return Bundle()

    @abstractmethod
    def client_update(self, c: Client) -> Work:
        """Yield `Train` requests for one round of a client and return what leaves the client."""

    def personalize(self, c: Client) -> Work | Bundle:
        """Return the model that this client predicts with now, from what it is sent and keeps.

        By default it is the one that is sent.

        It trains first only where the paper defines its prediction as an adaptation of what is sent. The model right
        after the last local training, where that is another one, is the view "trained".
        """
        return Bundle(model=c.received.model)

    def views(self, c: Client) -> dict[str, Bundle]:
        """Return further models to evaluate next to that of `personalize`, by name.

        "trained" is the one after the last local training, scored in its place in runs with ``evaluate = "trained"``.
        """
        return {}

    # ---- anywhere ---------------------------------------------------------------------------------------------
    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the logits ``[B, C]`` of the result of `personalize`."""
        return net(b.model, x)

    # ---- hyperparameters --------------------------------------------------------------------------------------
    def __post_init__(self) -> None:
        """Check fields that name one of several choices; a method with checks of its own calls this first."""
        for field, choices in _choices(type(self)).items():
            if getattr(self, field) not in choices:
                wanted = ", ".join(map(repr, choices))
                raise ConfigError(
                    f"{field} of {type(self).__name__} must be one of {wanted}; got {getattr(self, field)!r}"
                )

    def require_clusters(self, *, of_models: bool = False) -> None:
        """Raise `ConfigError` unless this is a clustered method.

        A clustered method states the `relations` of its clients and, if it states its family, is of the family that
        gives a client the model of its cluster.

        Args:
            of_models: it must also be able to make clusters of models that were trained without it.
        """
        if type(self).relations is Method.relations or self.family not in ("", "clusters"):
            raise ConfigError(f"{type(self).__name__} is not a clustered method and cannot be wrapped as one")
        if of_models and not self.groups_models:
            raise ConfigError(
                f"{type(self).__name__} cannot group models that clients trained alone; use another warm-up"
            )

    def require_robust(self, aggregation: Aggregation) -> None:
        """Raise `ConfigError` unless the rule is the mean, or this method and all that it wraps are `robust`."""
        if aggregation.rule == "mean":
            return
        if not self.robust:
            raise ConfigError(
                f"the rule {aggregation.rule!r} cannot be used with {type(self).__name__}: its server does not merge "
                "uploads by means and mixtures alone; use 'mean', or another method (a custom method declares "
                "it by robust = True)"
            )
        for value in vars(self).values():
            if isinstance(value, Method):
                value.require_robust(aggregation)

    def require_optimizer(self, optimizer: Optimizer) -> None:
        """Raise `ConfigError` unless this method and all that it wraps can train by an optimizer."""
        if optimizer != "sgd" and self.presumes_sgd:
            raise ConfigError(
                f"{type(self).__name__} cannot train by optimizer = {optimizer!r}: {self.presumes_sgd}; "
                'set optimizer = "sgd", or take another method'
            )
        for value in vars(self).values():
            if isinstance(value, Method):
                value.require_optimizer(optimizer)

    def require_secure(self) -> None:
        """Raise `ConfigError` unless means of uploads are all that this method's server needs."""
        if not self.secure_aggregation:
            raise ConfigError(
                f"secure aggregation cannot be used with {type(self).__name__} as it is set: its server must see "
                "single uploads, or sends each client tensors of its own; leave it out, or take another method "
                "(docs/robust-and-private.md has a list; a custom method declares it by secure_aggregation = True)"
            )

    def check(
        self,
        field: str,
        *,
        at_least: float | None = None,
        above: float | None = None,
        at_most: float | None = None,
        below: float | None = None,
    ) -> None:
        """Raise `ConfigError`, with field, value and range, unless the field is a finite number in the range."""
        value = getattr(self, field)
        rules = [
            ("at least", at_least, operator.ge),
            ("above", above, operator.gt),
            ("at most", at_most, operator.le),
            ("below", below, operator.lt),
        ]
        wanted = " and ".join(f"{word} {bound:g}" for word, bound, _ in rules if bound is not None)
        fits = isinstance(value, (int, float)) and math.isfinite(value)
        fits = fits and all(holds(value, bound) for _, bound, holds in rules if bound is not None)
        if not fits:
            raise ConfigError(f"{field} of {type(self).__name__} must be {wanted}, got {value}")


@cache
def _choices(kind: type) -> Mapping[str, tuple[Any, ...]]:
    """Return the fields of a class that name one of several choices, with these."""
    return {field: get_args(hint) for field, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}


def at_moment(own: Bundle, views: Mapping[str, Bundle], moment: Moment) -> dict[str, Bundle]:
    """Return the model that counts, under "", and the others by name.

    Args:
        own: the result of `personalize`.
        views: the result of `views`.
        moment: at "trained" the view of this name counts, if there is one, and ``own`` is called "delivered".
    """
    if moment == "delivered" or "trained" not in views:
        return {"": own, **views}
    return {"": views["trained"], "delivered": own, **{n: b for n, b in views.items() if n != "trained"}}


def uniform_cohort(r: Round) -> Tensor:
    """Draw ``r.cohort`` of ``r.ids`` without replacement, ascending; the same for every method of one seed."""
    order = torch.randperm(len(r.ids), generator=r.rng)
    return r.ids[order[: r.cohort]].sort().values


def first(work: Work) -> Train:
    """Return the one request of a wrapped program.

    Raises:
        MethodError: it asks for two trainings at once.
    """
    asked = next(work)
    if not isinstance(asked, Train):
        raise MethodError("a method that trains several models cannot be wrapped; the wrapped one must train one model")
    return asked


def ready(b: Work | Bundle) -> Bundle:
    """Return what a wrapped method predicts with.

    Raises:
        MethodError: it would train first.
    """
    if not isinstance(b, Bundle):
        raise MethodError("a method that trains before it predicts cannot be wrapped")
    return b


def through(work: Work | Bundle) -> Work:
    """Return the result of a step that may be a program: for ``yield from``, which passes its requests on."""
    return work if isinstance(work, Bundle) else (yield from work)


def untrained(work: Work | Bundle) -> Bundle | None:
    """Return the result of a step that asks for no training; None if it does."""
    if isinstance(work, Bundle):
        return work
    try:
        next(work)
    except StopIteration as end:
        return Bundle(end.value)
    work.close()
    return None


def finish(work: Work, got: Tensor) -> Bundle:
    """Return the result of a wrapped program once its one request has been trained.

    Raises:
        MethodError: it asks for another.
    """
    try:
        work.send(got)
    except StopIteration as end:
        return Bundle(end.value)
    raise MethodError("a method that trains more than once in a round cannot be wrapped")
