"""Local training on a stack: many requests of one kind, parameters ``[S, P]``, one step of all of them at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from fedkin.core import Batch, Bundle, Net, Samples, Train, Training
from fedkin.core.seeds import key
from fedkin.core.train import OVERRIDES, Loss
from fedkin.engines.loop import orders
from fedkin.engines.stacked_conv import AsProducts, with_products
from fedkin.engines.stacked_device import Place, failed
from fedkin.engines.stacked_rows import DeviceSamples, SegmentBatches, StackPlan, StackRows, plan, steps_of
from fedkin.engines.terms import Terms
from fedkin.engines.turns import Draws

_USUAL = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}  # all other settings are None


class MeanEntropy(TorchFunctionMode):
    """Mode in which ``F.cross_entropy(logits [B, C, ...], labels)`` takes ten operations; its results are torch's own.

    Args:
        labels: of a batch's samples, ``[B, ...]``; of other tensors, and with other arguments, torch computes it.
    """

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self._labels = labels

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.cross_entropy and self._plain(*args[1:], **kwargs):
            return -F.log_softmax(args[0], 1).gather(1, self._labels[:, None]).mean()
        return func(*args, **kwargs)

    def _plain(self, target: Tensor, weight: Tensor | None = None, **settings: object) -> bool:
        usual = all(value is None or value == _USUAL.get(name) for name, value in settings.items())
        return usual and weight is None and target is self._labels


# ---- training ---------------------------------------------------------------------------------------------------
Kind: TypeAlias = tuple[object, ...]
_STEP = 3  # memory of a step that is not measured, as a multiple of the tensors kept for the backward pass
_VECTORS = 8  # and in vectors [P]: models, gradients, momentum, centers, and intermediate results
_MOMENTS = 4  # further ones of Adam


@dataclass(frozen=True)
class StackRequest:
    """Request with all that it needs.

    Attributes:
        data: the client's training part, on the host.
        run: the client's training settings in this round.
    """

    request: Train
    data: Samples
    run: Training
    draws: Draws

    @cached_property
    def training(self) -> Training:
        """Settings of the run, overridden by those of the request."""
        return self.request.training(self.run)

    @property
    def steps(self) -> int:
        """Number of steps that the training settings ask for."""
        return self.training.steps_for(len(self.data)) if len(self.data) else 0

    @property
    def pull(self) -> Tensor | None:
        """Center of the proximal term, if there is one."""
        return self.request.center if self.request.mu != 0 else None

    def kind(self) -> Kind:
        """Return a key that is equal for requests that can share a stack: same loss, shapes and settings.

        The step size comes last.

        They may differ in the number of steps, in which batches they draw, and in the proximal term's strength.
        """
        free: dict[str, Any] = {"batches": None, "center": None, "mu": 0.0}
        settled: dict[str, Any] = dict.fromkeys(OVERRIDES)
        r = self.training
        settings = (r.batch_size, r.optimizer, r.momentum, r.decay, r.decay_biases, r.clip, r.epoch_decay, r.lr)
        return (*self.request.but(**free, **settled).signature(), *settings)


class Steps:
    """Step of all rows at once, for requests of one kind.

    Attributes:
        key: equal for steps that compute the same in the same way, whatever the step size (but that of a separate
            proximal step).
        part: the hull of the part that moves.
    """

    def __init__(self, first: StackRequest, net: Net, place: Place, *, products: AsProducts = False) -> None:
        request = first.request
        self.key = (*(first.kind() if request.prox_after else first.kind()[:-1]), products)
        self.part, self._project = request.moves.hull, request.project
        terms = replace(Terms.of(request, first.training, net), linear=None, center=None)  # those are of the rows
        constant: dict[str, Any] = {name: place.up(t) for name, t in vars(terms).items() if isinstance(t, Tensor)}
        self._terms = replace(terms, **constant)
        self._moving = net.training(request.only)
        # running statistics are moved in place; in a stack of vectors that would be lost, so they are results
        self._tail = net.buffers if len(request.start) == net.size else slice(0, 0)
        value = _Value(request.loss, self._moving, products)
        one = value.with_statistics if self._tail.start < self._tail.stop else value.alone
        self._gradients = vmap(grad(one, has_aux=True), randomness="different")  # dropout draws for every client

    def __call__(self, rows: StackRows, batch: DeviceSamples, lr: float | Tensor) -> None:
        """Move ``rows`` in place by one step on a batch ``[m, B, ...]``."""
        gradient, statistics = self._gradients(rows.w, batch.x, batch.y, rows.aux, batch.extra)
        terms = replace(self._terms, linear=rows.linear, center=rows.center, mu=rows.mu)
        terms.step(rows.w[:, self.part], gradient[:, self.part].contiguous(), rows.moments, lr)
        if self._project is not None:
            rows.w.copy_(self._project(rows.w))
        if statistics:
            rows.w[:, self._tail] = torch.cat(statistics, 1)

    def moments(self, w: Tensor) -> Tensor | None:
        """Return what the optimizer keeps before the first step of models ``[S, P]``."""
        return self._terms.moments(w[:, self.part])

    def release(self) -> None:
        """Release what the last step left in the network, up to a graph of all that it computed."""
        self._moving.release()


@dataclass(frozen=True)
class _Value:
    """Loss of one row at its batch."""

    loss: Loss
    net: Net
    products: AsProducts

    def alone(self, w: Tensor, x: Tensor, y: Tensor, *more: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss, and no running statistics."""
        return self._of(self.net, w, x, y, *more), []

    def with_statistics(self, w: Tensor, x: Tensor, y: Tensor, *more: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss, and the running statistics after the pass."""
        with self.net.with_statistics(w) as (net, statistics):
            return self._of(net, w, x, y, *more), [t.flatten() for t in statistics]

    def _of(
        self, net: Net, w: Tensor, x: Tensor, y: Tensor, aux: dict[str, Tensor], extra: dict[str, Tensor]
    ) -> Tensor:
        with MeanEntropy(y), with_products(self.products):
            return self.loss(net, w, Batch(x, y), Bundle({**aux, **extra}))


class SegmentRunner(Protocol):
    """Callable that carries out the steps of one segment, on ``rows`` in place."""

    def __call__(self, steps: Steps, rows: StackRows, batches: SegmentBatches, lr: float | Tensor, /) -> None: ...


def eagerly(steps: Steps, rows: StackRows, batches: SegmentBatches, lr: float | Tensor) -> None:
    """Take one step after another."""
    for t in range(len(batches)):
        steps(rows, batches.at(t), lr)


def train(
    asked: Sequence[StackRequest],
    net: Net,
    place: Place,
    run: SegmentRunner = eagerly,
    *,
    products: AsProducts = False,
    stay: bool = False,
) -> list[Tensor]:
    """Return the trained vectors ``[P]`` of requests of one kind, each equal to that of `sgd`.

    They are the rows of one tensor on the host, in the order of the requests.

    Args:
        products: convolutions that are computed as products of matrices.
        stay: the tensor is left on the device.
    """
    drawn = [list(orders(len(a.data), a.training, a.draws.rng(), skip_single=net.batchnorm)) for a in asked]
    training = asked[0].training
    order = sorted(range(len(asked)), key=lambda i: -steps_of(drawn[i], training.batch_size))
    stack = [asked[i] for i in order]
    steps = Steps(stack[0], net, place, products=products)
    rows = _rows(stack, steps, place)
    if steps.part.start < steps.part.stop:
        place.seed(key(stack[0].draws.noise, *(a.draws.noise for a in stack[1:])))
        todo = plan([drawn[i] for i in order], training.batch_size, decays=training.epoch_decay != 1.0)
        with warnings.catch_warnings():  # of a layer that is not stacked after all, but computed client by client
            warnings.filterwarnings("error", "There is a performance drop")
            _carry_out(todo, stack, steps, rows, place, run)
    if order != sorted(order):
        rows.w = rows.w.index_select(0, place.up(torch.tensor(order).argsort()))
    return list(place.done(rows.w) if stay else place.down(rows.w))


def _carry_out(
    todo: StackPlan, stack: Sequence[StackRequest], steps: Steps, rows: StackRows, place: Place, run: SegmentRunner
) -> None:
    samples, index, beside = _samples(stack, todo, place)
    training = stack[0].training
    for s in todo.segments:
        who = s.rows if isinstance(s.rows, slice) else place.sent(s.rows)
        part, here = rows.at(who), slice(s.first, s.first + s.steps * s.m * s.size)
        batches = SegmentBatches(samples, *(t[here].view(s.steps, s.m, s.size) for t in (index, beside)))
        lr: float | Tensor = training.lr
        if training.epoch_decay != 1.0:
            sizes = [[training.lr * training.epoch_decay**e] for e in s.epochs]
            lr = place.sent(torch.tensor(sizes, dtype=rows.w.dtype))
        run(steps, part, batches, lr)
        rows.put(who, part)


def _samples(stack: Sequence[StackRequest], todo: StackPlan, place: Place) -> tuple[DeviceSamples, Tensor, Tensor]:
    """Return all samples of a stack on the device; the plan's index into them, and into the further inputs."""
    own = {id(a.data): a.data for a in stack}  # two requests of one client share its data
    starts, n = dict[int, int](), 0
    for name, data in own.items():
        starts[name], n = n, n + len(data)
    joined = place.data.joined(list(own.values()))
    index = place.sent(todo.index + torch.tensor([starts[id(a.data)] for a in stack])[todo.row])
    names = stack[0].request.per_sample
    if not names:
        return DeviceSamples(joined.x, joined.y, {}), index, index
    lengths = torch.tensor([0] + [len(a.data) for a in stack])
    extra = {name: place.up(torch.cat([a.request.per_sample[name].detach() for a in stack])) for name in names}
    return DeviceSamples(joined.x, joined.y, extra), index, place.sent(todo.index + lengths.cumsum(0)[:-1][todo.row])


def _rows(stack: Sequence[StackRequest], steps: Steps, place: Place) -> StackRows:
    part, requests, pulls = steps.part, [a.request for a in stack], [a.pull for a in stack]
    w = place.rows([r.start for r in requests])
    center: Tensor | None = None
    mu: float | Tensor = stack[0].request.mu
    if any(c is not None for c in pulls):  # rows without a pull: one of weight 0, towards where they are
        center = place.rows([(r.start if c is None else c)[part] for r, c in zip(requests, pulls, strict=True)])
        strengths = [0.0 if c is None else r.mu for r, c in zip(requests, pulls, strict=True)]
        if len(set(strengths)) > 1:
            mu = place.up(torch.tensor(strengths, dtype=w.dtype)[:, None])
    linear = [r.linear for r in requests if r.linear is not None]  # all of a kind have one, or none
    return StackRows(
        w=w,
        moments=steps.moments(w),
        center=center,
        linear=place.rows([t[part] for t in linear]) if linear else None,
        mu=mu,
        aux={name: place.rows([r.aux[name] for r in requests]) for name in requests[0].aux},
    )


def one_batch(a: StackRequest, net: Net, place: Place) -> None:
    """Compute the loss of a request on one batch of its client, with a gradient in its vector."""
    n, request = min(len(a.data), a.training.batch_size), a.request
    extra = {name: place.up(t[:n].detach()) for name, t in request.per_sample.items()}
    w = place.rows([request.start])[0].requires_grad_(True)
    batch = Batch(place.up(a.data.x[:n]), place.up(a.data.y[:n]))
    request.loss(net.training(request.only), w, batch, Bundle({**place.bundle(request.aux), **extra}))


def bytes_of(
    a: StackRequest, net: Net, place: Place, *, longest: int | None = None, products: AsProducts = False
) -> int:
    """Return about the number of bytes that one row of a stack takes on the device.

    These are its vectors, its samples, and what a step takes: measured on a GPU, else estimated from what one batch
    keeps for the backward pass.

    Args:
        longest: samples of the largest client in the stack, where that is less than a batch.
    """
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), with_products(products):
        one_batch(a, net, place)
    per_step = (place.cuda and _bytes_of_step(a, net, place, products)) or _STEP * sum(kept.values())
    batch = a.training.batch_size
    step = per_step * min(batch, longest or batch) / max(1, min(len(a.data), batch))
    beside = sum(t.nbytes for t in a.request.per_sample.values())
    vectors = _VECTORS + (0 if a.training.optimizer == "sgd" else _MOMENTS)
    return int(step + vectors * a.request.start.nbytes + a.data.x.nbytes + beside)


def _bytes_of_step(a: StackRequest, net: Net, place: Place, products: AsProducts) -> int:
    """Return the bytes that a step of two rows takes for each, workspaces of libraries included; 0 if it fails."""
    n = min(len(a.data), a.training.batch_size)
    steps, taken = Steps(a, net, place, products=products), 0
    try:
        rows = _rows([a, a], steps, place)
        extra = {name: place.rows([t[:n]] * 2) for name, t in a.request.per_sample.items()}
        batch = DeviceSamples(place.rows([a.data.x[:n]] * 2), place.rows([a.data.y[:n]] * 2), extra)
        steps(rows, batch, 0.0)  # in their first call libraries take what they keep
        steps.release()
        taken = place.peak(lambda: steps(rows, batch, 0.0)) // 2
    except Exception as e:  # it fails in training as well, where it is handled
        if failed(e):
            raise
    steps.release()
    return taken
