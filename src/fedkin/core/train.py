"""Requests for local training, as data: yielded by a method and carried out by an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core.bundle import Bundle, require_tensors
from fedkin.core.errors import MethodError
from fedkin.core.parts import Part, Spans, check_part
from fedkin.core.samples import Batch
from fedkin.core.settings import Optimizer, Training

if TYPE_CHECKING:
    from fedkin.core.net import Net

Loss = Callable[["Net", Tensor, Batch, Bundle], Tensor]
"""``(net, w, batch, aux) -> scalar``: a batch's mean loss.

Write it at the level of a module, so that requests can be compared: clients with equal losses are trained together on
the stacked engine. A `functools.partial` of such a function equals another of the same arguments; a lambda, or a
function made inside a step, equals none but itself.
"""


Projection = Callable[[Tensor], Tensor]
"""``w [..., P] -> [..., P]``: the nearest allowed values, for one vector or for rows. A module-level function."""


def cross_entropy(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the mean cross-entropy of the model ``w``; ``aux.offset [B, C]``, if given, is added to the logits."""
    logits = net(w, batch.x)
    if "offset" in aux:
        logits = logits + aux.offset
    return F.cross_entropy(logits, batch.y)


def head_loss(net: Net, v: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the mean cross-entropy of the classifier ``v [H]`` on stored features ``aux.z [B, d]``."""
    return F.cross_entropy(net.classify(v, aux.z), batch.y)


def distillation(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return CE + kappa T^2 KL(teacher || student); the teacher is a classifier on the student's features.

    The teacher's probabilities have no gradient (Wu et al., PFedCS, AAAI 2025, Eqs. 11-12).

    Args:
        net: the network.
        w: the student, ``[P]``.
        batch: samples.
        aux: ``teacher [H]``, ``kappa`` and ``temperature`` T, one number each.
    """
    z, logits = net.features_and_logits(w, batch.x)
    with torch.no_grad():
        taught = F.softmax(net.classify(aux.teacher, z) / aux.temperature, dim=1)
    student = F.log_softmax(logits / aux.temperature, dim=1)
    kl = F.kl_div(student, taught, reduction="batchmean")
    return F.cross_entropy(logits, batch.y) + aux.kappa * aux.temperature**2 * kl


OVERRIDES = ("epochs", "steps", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "clip")
"""Fields of `Training` that a request may set for itself; None: the run's."""


@dataclass(frozen=True)
class Train:
    """Request to minimise ``loss(net, w, batch, aux) + <linear, w> + mu/2 * ||w - center||^2`` from ``start``.

    ``w = yield Train(...)`` trains one vector; ``a, b = yield (Train(...), Train(...))`` trains two independent ones.

    Attributes:
        start: ``[P]``, a flat vector the loss understands (two heads, two models: concatenate). Never written to.
        models: N if the vector begins with N whole networks, one after another; networks of two kinds as
            ``(c.net, c.net.second)``. Running statistics of each of them, and without ``decay_biases`` the biases, are
            then left out of terms as those of one network are.
        loss: what is minimised, see `Loss`.
        aux: what the loss needs and differs by client: prototypes, a prior, a frozen partner.
        per_sample: one row per training sample, no more and no fewer; the loss finds the rows of its batch in ``aux``
            under the same name.
        only: the part that moves: a slice (``c.net.body``, ``c.net.head``) or a mask ``[P]`` (``c.net.norms``,
            ``c.net.top(2)``). Layers without a parameter in it run in eval mode. Default: all.
        center, mu: proximal term; its gradient ``mu * (w - center)`` is added before momentum, or Adam's moments.
        prox_after: take the proximal step after the optimizer's instead: ``w -= lr * mu * (w_before - center)``, with
            the step size of the round; ``epoch_decay`` does not shorten it (as in DA-PFL's program).
        linear: ``[P]``, linear term (a dual variable, a control variate).
        project: maps the vector to allowed values after every step, such as numbers between 0 and 1. Default: none.
        batches: train on the very batches (and dropout masks) of this step's request of that number, 0 the first.
            Default: each request draws its own, as every request does in private training: two noisy gradients of one
            batch would tell more about it than is accounted for.
        clip: maximum norm of the gradient of loss and linear term; the other terms are added afterwards. Otherwise the
            run's.
        epochs, steps, batch_size, optimizer, lr, momentum, weight_decay: otherwise the run's `Training`; with Adam no
            momentum.
    """

    start: Tensor
    loss: Loss = cross_entropy
    aux: Bundle = field(default_factory=Bundle)
    per_sample: Bundle = field(default_factory=Bundle)
    only: Part | None = None
    center: Tensor | None = None
    mu: float = 0.0
    prox_after: bool = False
    linear: Tensor | None = None
    clip: float | None = None
    project: Projection | None = None
    models: int | tuple[Net, ...] = 1
    batches: int | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    optimizer: Optimizer | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        """Check the parts that fit together.

        Raises:
            MethodError: ``only`` is not a part of ``start``; ``center`` or ``linear`` has another shape; there is no
                ``center`` for ``mu``; ``models`` is not a number of networks; ``aux`` or ``per_sample`` holds something
                else than tensors.
        """
        check_part(self.only, len(self.start))
        require_tensors("aux", self.aux)
        require_tensors("per_sample", self.per_sample)
        for name in ("center", "linear"):
            if (value := getattr(self, name)) is not None and value.shape != self.start.shape:
                raise MethodError(f"{name} has the shape {list(value.shape)}, start {list(self.start.shape)}")
        if self.mu and self.center is None:
            raise MethodError(f"mu = {self.mu} pulls towards center, which is not given; add center=")
        if isinstance(self.models, int) and self.models < 1:
            raise MethodError(f"models must be at least 1, got {self.models}")

    @cached_property
    def moves(self) -> Spans:
        """Part of ``start`` that moves."""
        return Spans.of(self.only, len(self.start))

    def but(self, **changes: Any) -> Train:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)

    def add_logits(self, logits: Tensor) -> Train:
        """Return the same request with ``logits [n, C]`` of a fixed partner added to the model's own."""
        return replace(self, per_sample=self.per_sample.but(offset=logits))

    def training(self, run: Training) -> Training:
        """Return the run's settings with those of this request put in."""
        own: dict[str, Any] = {name: value for name in OVERRIDES if (value := getattr(self, name)) is not None}
        if self.epochs is not None and self.steps is None:
            own["steps"] = None  # a request for epochs overrides a run that counts in steps
        if self.optimizer is not None and self.optimizer != "sgd":
            own.setdefault("momentum", 0.0)  # the run's is SGD's
        return run.but(**own) if own else run

    def signature(self) -> tuple[object, ...]:
        """Return everything about this request but the values of its tensors; equal signatures can share one stack."""
        return (
            _comparable(self.loss),
            _shapes(self.aux, 0),
            _shapes(self.per_sample, 1),  # clients differ in their number of samples
            (tuple(self.start.shape), self.start.dtype),
            None if self.only is None else self.moves,
            self.center is None,
            self.linear is None,
            self.mu,
            self.prox_after,
            self.project,
            self.models if isinstance(self.models, int) else tuple(net.size for net in self.models),
            self.batches,
            *(getattr(self, name) for name in OVERRIDES),
        )


def _shapes(tensors: Bundle, skip: int) -> tuple[object, ...]:
    return tuple((name, tuple(tensors[name].shape[skip:]), tensors[name].dtype) for name in sorted(tensors))


def _comparable(value: object) -> object:
    """Return a key for a loss or an argument of one: equal for partials of one function with equal arguments.

    Arguments are equal if they are equal plain values or tuples of them; tensors and other objects equal themselves
    alone, since nothing is known of what their ``==`` compares.
    """
    if isinstance(value, partial):
        named = tuple((name, _comparable(v)) for name, v in sorted(value.keywords.items()))
        return (partial, _comparable(value.func), _comparable(value.args), named)
    if isinstance(value, tuple):
        return (tuple, *map(_comparable, value))
    if value is None or isinstance(value, bool | int | float | str):
        return (type(value), repr(value))  # 1, 1.0, True and -0.0, 0.0 make different losses
    return value if callable(value) and not isinstance(value, Tensor) else _Itself(value)


class _Itself:
    """Object that equals itself alone, whatever its own ``==`` says; held, so that no other one gets its identity."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
