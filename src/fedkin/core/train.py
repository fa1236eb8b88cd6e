"""Requests for local training, as data: yielded by a method and carried out by an engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core.bundle import Bundle, require_tensors
from fedkin.core.errors import ConfigError, MethodError
from fedkin.core.parts import Part, Spans, check_part
from fedkin.core.samples import Batch

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


Optimizer: TypeAlias = Literal["sgd", "adam", "adamw"]
Schedule: TypeAlias = Literal["step", "cosine"]


@dataclass(frozen=True)
class Training:
    """Settings of local training unless the method overrides them; the optimizer is a new one in every round."""

    epochs: int = 1
    """Passes over the client's training data per round (not used when steps is given)."""
    steps: int | None = None
    """Mini-batch steps per round instead of epochs."""
    batch_size: int = 10
    """Samples per mini-batch; a last, smaller batch is used as well."""
    optimizer: Optimizer = "sgd"
    """Optimizer of the clients, with PyTorch's defaults (adam and adamw: betas 0.9 and 0.999, eps 1e-8)."""
    lr: float = 0.01
    """Step size of the optimizer."""
    momentum: float = 0.0
    """Momentum of SGD."""
    weight_decay: float | None = None
    """L2 coefficient, added to the gradient before momentum; of adamw: apart from the gradient, times the step size.
    Default: 0.01 of adamw, as in PyTorch; otherwise 0."""
    decay_biases: bool = True
    """Apply weight decay also to parameters with one dimension (biases, norms)."""
    clip: float | None = None
    """Maximum norm of the gradient of a mini-batch, before weight decay and proximal terms. Default: no limit."""
    schedule: Schedule = "step"
    """Step size over the rounds: step multiplies it by lr_decay, which is 1 by default and keeps it constant; cosine
    lowers it along half a cosine, from lr in the first round towards 0 after the last."""
    lr_decay: float = 1.0
    """Factor on the step size after every lr_decay_every rounds."""
    lr_decay_every: int = 1
    """Rounds from one use of lr_decay to the next."""
    epoch_decay: float = 1.0
    """Factor on the step size after every local epoch."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr_decay_every"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps must be at least 1, got {self.steps}; leave it out to train by epochs")
        for name, choices in (("optimizer", get_args(Optimizer)), ("schedule", get_args(Schedule))):
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"lr must be a positive number, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be in [0, 1), got {self.momentum}")
        if not (math.isfinite(self.decay) and self.decay >= 0):
            raise ConfigError(f"weight_decay must be 0 or more, got {self.weight_decay}")
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip must be a positive number, got {self.clip}; leave it out for no limit")
        for name in ("lr_decay", "epoch_decay"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise ConfigError(f"{name} must be in (0, 1], got {value}")
        if self.momentum and self.optimizer != "sgd":
            raise ConfigError(
                f"momentum = {self.momentum} belongs to SGD, and the optimizer is {self.optimizer!r}, which has "
                'moments of its own; set momentum = 0 or optimizer = "sgd"'
            )
        if self.lr_decay != 1 and self.schedule == "cosine":
            raise ConfigError(
                f"lr_decay = {self.lr_decay} belongs to the schedule 'step', and the schedule is 'cosine'; set "
                'lr_decay = 1 or schedule = "step"'
            )

    @property
    def decay(self) -> float:
        """Weight decay, as given or by default of the optimizer."""
        return self.weight_decay if self.weight_decay is not None else 0.01 if self.optimizer == "adamw" else 0.0

    def steps_for(self, samples: int) -> int:
        """Return the number of mini-batch steps on a number of samples."""
        return self.steps if self.steps is not None else self.epochs * math.ceil(samples / self.batch_size)

    def in_round(self, round: int, rounds: int) -> Training:
        """Return the settings with the step size of a round, 1 the first, in a run of a number of rounds.

        Later rounds, of clients that join a finished run, are as the last one on the cosine.
        """
        done = max(0, round - 1)
        if self.schedule == "cosine":
            factor = math.cos(math.pi / 2 * min(done, rounds - 1) / rounds) ** 2  # (1 + cos(pi t / T)) / 2, never 0
        else:
            factor = self.lr_decay ** (done // self.lr_decay_every)
        return self if factor == 1 else replace(self, lr=self.lr * factor)


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
        return replace(run, **own) if own else run

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
