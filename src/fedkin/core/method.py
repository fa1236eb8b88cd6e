"""Federated methods: frozen dataclasses of hyperparameters with a handful of pure steps."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedkin.core.bundle import Bundle, Download
from fedkin.core.capability import Capability
from fedkin.core.errors import ConfigError, MethodError
from fedkin.core.net import Net
from fedkin.core.settings import Moment
from fedkin.core.sides import Client, Round
from fedkin.core.train import Train

Work: TypeAlias = Generator[Train | tuple[Train, ...], Any, Bundle]
"""Client code: yields requests for training, is sent the trained vectors, and returns the bundle that leaves."""

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
    family: ClassVar[str] = ""
    """What clients get from it: one of `FAMILIES`."""

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
    def can(self) -> tuple[Capability, ...]:
        """What the method can do beyond its steps: values of `fedkin.capabilities`, one of each kind, of `Asks` two.

        A method states it as a plain attribute, or as a property where its settings decide.
        """
        return ()

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

    # ---- server -----------------------------------------------------------------------------------------------
    @abstractmethod
    def init(self, r: Round) -> Bundle:
        """Return the server's state before any client is known."""

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Return the state with the joining clients ``r.ids`` in it, in any round; ``r.roster`` already holds them."""
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

    # ---- client -----------------------------------------------------------------------------------------------
    def describe(self, c: Client) -> Bundle:
        """Return what a client sends once, at first contact, before any model."""
        return Bundle()

    @abstractmethod
    def client_update(self, c: Client) -> Work:
        """Yield `Train` requests for one round of a client and return what leaves the client."""

    def personalize(self, c: Client) -> Work | Bundle:
        """Return the model that this client predicts with now, from what it is sent and keeps.

        By default it is the one that is sent.

        It trains first only where the paper defines its prediction as an adaptation of what is sent. The model right
        after the last local training, where that is another one, is the view "trained" (`fedkin.capabilities.Views`).
        """
        return Bundle(model=c.received.model)

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


def in_range(
    method: Method,
    field: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise `ConfigError`, with field, value and range, unless the field is a finite number in the range."""
    value = getattr(method, field)
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
        raise ConfigError(f"{field} of {type(method).__name__} must be {wanted}, got {value}")


@cache
def _choices(kind: type) -> Mapping[str, tuple[Any, ...]]:
    """Return the fields of a class that name one of several choices, with these."""
    return {field: get_args(hint) for field, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}


def at_moment(own: Bundle, views: Mapping[str, Bundle], moment: Moment) -> dict[str, Bundle]:
    """Return the model that counts, under "", and the others by name.

    Args:
        own: the result of `personalize`.
        views: further models, see `fedkin.capabilities.Views`.
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
