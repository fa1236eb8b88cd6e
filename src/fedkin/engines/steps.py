"""One step of training: how the gradient is computed, and the terms that are added to it.

``autograd`` takes any network and loss. ``explicit`` writes the passes out (`fedkin.engines.explicit`), for chains of
convolution, pooling, linear and ReLU layers under the cross-entropy. ``compiled`` does not come here: it trains such
chains without a step of Python (`fedkin.engines.native`), and the rest as ``explicit`` does, which in turn leaves to
autograd what is not a chain. ``auto`` is the fastest that is there. All agree to rounding, so a run's results depend on
which was taken, never on the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core import (
    Batch,
    Bundle,
    MethodError,
    Net,
    Samples,
    Train,
    Training,
    cross_entropy,
    distillation,
    head_loss,
)
from fedkin.core.parts import Spans
from fedkin.core.seeds import generator
from fedkin.core.settings import Gradient
from fedkin.engines.chain import Layer, Linear, NotAChain, chain_of
from fedkin.engines.explicit import Pass
from fedkin.engines.forks import before_forks
from fedkin.engines.terms import Terms
from fedkin.privacy.dp_sgd import PrivateSteps


class Step(Protocol):
    """Step of training, of the vector that it was made for."""

    def __call__(self, index: Tensor, lr: float) -> None:
        """Move the vector by the batch of the samples ``index [B]``."""


def step_for(
    request: Train,
    training: Training,
    data: Samples,
    net: Net,
    w: Tensor,
    private: PrivateSteps | None = None,
    gradient: Gradient = "auto",
) -> Step:
    """Return the step for a request, moving its part of ``w`` in place."""
    terms = Terms.of(request, training, net)
    if private is None and gradient != "autograd":
        layers = written_out(request, net)
        if not isinstance(layers, str):
            return _Explicit(request, training, data, net, w, terms, layers)
    return _General(request, data, net, w, terms, private)


class _General:
    """Step by autograd, or by the noisy gradients of private training.

    Gradients are taken with respect to the flat vector at once, so that one addition is the whole step.
    """

    def __init__(
        self, request: Train, data: Samples, net: Net, w: Tensor, terms: Terms, private: PrivateSteps | None
    ) -> None:
        self._request, self._data, self._w, self._part = request, data, w, request.moves.hull
        self._net = net.training(request.only)
        self._private, self._terms = private, terms
        self._moments: Tensor | None = None

    def __call__(self, index: Tensor, lr: float) -> None:
        at = (self._request, self._net, self._w, self._data, index)
        if self._private is None:
            grad = by_autograd(*at)[self._part].contiguous()
        else:
            grad = self._private.gradient(*at)
        self._moments = self._terms.step(self._w[self._part], grad, self._moments, lr)
        if (project := self._request.project) is not None:
            self._w.copy_(project(self._w))


class _Explicit:
    """Step by passes written out.

    Plain SGD's passes move the vector themselves, with momentum the velocity; a clipped or an Adam's step needs the
    whole gradient first.
    """

    def __init__(
        self,
        request: Train,
        training: Training,
        data: Samples,
        net: Net,
        w: Tensor,
        terms: Terms,
        layers: Sequence[Layer],
    ) -> None:
        self._x, self._y = request.per_sample.get("z", data.x), data.y
        self._offset, self._eye = request.per_sample.get("offset"), _eye(net.classes)
        self._part = request.moves.hull
        self._w, self._terms, self._momentum = w[self._part], terms, training.momentum
        self._whole = training.clip is not None or training.optimizer != "sgd"  # by the gradient alone
        self._moments: Tensor | None = None
        self._direct = not self._whole and not training.momentum
        self._aim = w if self._direct else torch.zeros_like(w)
        self._pass = Pass(layers, w, self._aim, request.moves)
        if not self._whole:
            self._pass.factors.keep = self._pass.factors.keep_bias = training.momentum
        self._decay = (training.decay, training.decay if training.decay_biases else 0.0)
        self._teacher = Teacher.of(request, net)
        self._mu, self._lr = request.mu if terms.center is not None else 0.0, -1.0
        self._shift: Tensor | None = None

    def __call__(self, index: Tensor, lr: float) -> None:
        logits = self._pass.forward(take(self._x, index))
        if self._offset is not None:
            logits = logits + self._offset.index_select(0, index)  # a new one: the last layer may have kept its own
        g = logits.softmax(1).sub_(self._eye.index_select(0, self._y.index_select(0, index)))
        if self._teacher is not None:
            g.add_(self._teacher.pull(self._pass.features, logits))
        factors = self._pass.factors
        if not self._direct:
            factors.rate = 1 / index.shape[0]
            self._pass.backward(g)
            d = self._aim[self._part]
            if self._whole:
                self._moments = self._terms.step(self._w, d, self._moments, lr)
            else:  # it is the velocity; the rest of its step follows
                self._terms.along(self._w, self._terms.direction(d, self._w), lr)
            return
        factors.rate = -lr / index.shape[0]
        if lr != self._lr:  # what of a direct step does not depend on the batch: a pull on all of w, and a shift
            self._lr = lr
            after = self._terms.after  # without momentum a separate proximal step is a term of the gradient
            mu = self._mu if after is None else self._mu * (after / lr)
            factors.keep, factors.keep_bias = (1 - lr * (mu + decay) for decay in self._decay)
            force = self._terms.force(mu)
            self._shift = None if force is None else force * lr
        self._pass.backward(g)
        if self._shift is not None:
            self._w.add_(self._shift)


@dataclass(frozen=True)
class Teacher:
    """Classifier on the student's features whose probabilities the student follows, see `distillation`.

    Attributes:
        head: ``[H]``, the classifier; ``weight [C, d]`` and ``bias [C]`` or None are views of it.
        scale: kappa T, the weight of the pull.
        inverse: 1 / T.
    """

    head: Tensor
    weight: Tensor
    bias: Tensor | None
    scale: float
    inverse: float

    @classmethod
    def of(cls, request: Train, net: Net) -> Teacher | None:
        """Return the teacher of a request; None if its loss has none."""
        if request.loss is not distillation:
            return None
        v, head = request.aux.teacher, _head_of(net)
        layer = head[0]
        assert isinstance(layer, Linear)
        temperature = float(request.aux.temperature)
        bias = None if layer.bias is None else v[layer.bias]
        scale = float(request.aux.kappa) * temperature
        return cls(v, v[layer.weight].view(layer.shape), bias, scale, 1 / temperature)

    def pull(self, z: Tensor, logits: Tensor) -> Tensor:
        """Return the gradient of a batch's summed kappa T^2 KL at the logits ``[B, C]``, of features ``z [B, d]``."""
        taught = F.linear(z, self.weight, self.bias)
        return (logits * self.inverse).softmax(1).sub_((taught * self.inverse).softmax(1)).mul_(self.scale)


def written_out(request: Train, net: Net) -> tuple[Layer, ...] | str:
    """Return the layers whose passes can be written out for a request; or why they cannot."""
    aux = {*request.aux, *request.per_sample}
    if request.project is not None:
        return "every step is followed by a projection"
    if request.loss is cross_entropy:
        if aux - {"offset"} or "offset" in request.aux or len(request.start) != net.size:
            return "the loss needs more than the network's logits"
        layers = layers_of(net)
    elif request.loss is distillation:
        layers = _taught(request, net, aux)
    elif request.loss is head_loss:
        if aux != {"z"} or "z" in request.aux or request.per_sample.z.dim() != 2:
            return "the features do not belong to the samples"
        layers = _head_of(net)
    else:
        return f"the loss {getattr(request.loss, '__name__', 'of the request')} is not the cross-entropy"
    if not isinstance(layers, str):
        edges = {edge for s in net.layers() for edge in (s.start, s.stop)}
        if not edges.issuperset(edge for span in request.moves.each for edge in span):
            return "a part of a layer stands still"
    return layers


def _taught(request: Train, net: Net, aux: set[str]) -> tuple[Layer, ...] | str:
    """Return the layers of a network that learns from a teacher, or why its passes cannot be written out."""
    head = _head_of(net)
    if isinstance(head, str):
        return head
    if aux != {"teacher", "kappa", "temperature"} or request.per_sample or len(request.start) != net.size:
        return "the loss needs more than the network's logits and features"
    layers = layers_of(net)
    if not isinstance(layers, str) and (layers[-1] != head[0] or len(request.aux.teacher) != net.head.stop):
        return "the teacher is not a classifier on the inputs of the last layer"
    return layers


@lru_cache(maxsize=8)
def _eye(classes: int) -> Tensor:
    return torch.eye(classes)


_FOUND: WeakKeyDictionary[nn.Module, tuple[Layer, ...] | str] = WeakKeyDictionary()


def layers_of(net: Net) -> tuple[Layer, ...] | str:
    """Return the layers of a network whose passes can be written out, or why they cannot; found once per network.

    The gradient of its start on three random samples is compared with autograd's, so that no forward pass is used that
    was misread.
    """
    if net.module not in _FOUND:
        try:
            layers = chain_of(net)
            agrees = before_forks(partial(_agrees, net, layers))
            _FOUND[net.module] = layers if agrees else "its forward pass does more than its layers"
        except NotAChain as e:
            _FOUND[net.module] = str(e)
    return _FOUND[net.module]


def _agrees(net: Net, layers: Sequence[Layer]) -> bool:
    rng = generator(0, "chain")
    x, y = net.layout(torch.randn(3, *net.shape, generator=rng)), torch.randint(net.classes, (3,), generator=rng)
    w, gradient = net.w0, torch.zeros(net.size)
    steps = Pass(layers, w, gradient, Spans.of(None, net.size))
    steps.factors.rate = 1 / 3
    steps.backward(steps.forward(x.clone()).softmax(1).sub_(F.one_hot(y, net.classes)))
    expected = by_autograd(Train(w), net.training(), w, Samples(x, y), torch.arange(3))
    return bool((gradient - expected).abs().max() <= 1e-3 * expected.abs().max())


def _head_of(net: Net) -> tuple[Layer, ...] | str:
    """Return the layer of the head alone, on stored features."""
    places = net.places()
    weight, bias = places[f"{net.head_name}.weight"], places.get(f"{net.head_name}.bias")
    if type(net.module.get_submodule(net.head_name)) is not nn.Linear:
        return "its head is not one linear layer"
    return (Linear(weight[0], (weight[1][0], weight[1][1]), None if bias is None else bias[0]),)


def by_autograd(request: Train, net: Net, w: Tensor, data: Samples, index: Tensor) -> Tensor:
    """Return the gradient of the loss at one batch, ``[P]``.

    Raises:
        MethodError: the loss returned something else than one number.
    """
    aux: Bundle = request.aux
    if request.per_sample:
        aux = aux.but(**{name: rows[index] for name, rows in request.per_sample.items()})
    w.requires_grad_(True)
    batch = Batch(take(data.x, index), data.y[index])
    try:
        loss = request.loss(net, w, batch, aux)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside the loss
        raise MethodError(f"{error}; a loss is called as loss(net, w, batch, aux)") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise MethodError(f"the loss returned {_no_loss(loss)}")
    (grad,) = torch.autograd.grad(loss, w)
    w.requires_grad_(False)
    return grad


def _no_loss(loss: object) -> str:
    if isinstance(loss, Tensor):
        return f"shape {list(loss.shape)}; it must be a scalar: take the mean over the batch"
    hint = "is `return` missing?" if loss is None else "it must be a tensor with a gradient: leave out .item()"
    return f"{type(loss).__name__} {loss!r}; {hint}"


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return rows of ``x`` in ``x``'s own memory layout."""
    if x.dim() == 4 and x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return x.index_select(0, index)
