"""Random chains of layers, and local SGD of any network in float64 by autograd: the reference of compiled training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkin.core import Bundle, Net, Samples, Train, Training, cross_entropy, distillation, head_loss
from fedkin.core.parts import Part
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches

CLASSES = 4
Make = Callable[[], nn.Module]


def made(kind: type[nn.Module], *args: Any, **more: Any) -> Make:
    return lambda: kind(*args, **more)


def sequence(*layers: Make) -> Make:
    return lambda: nn.Sequential(*[make() for make in layers])


def data_for(shape: tuple[int, ...], n: int = 12, classes: int = CLASSES) -> Samples:
    rng = generator(3, "chains")
    return Samples(torch.randn(n, *shape, generator=rng), torch.randint(classes, (n,), generator=rng))


SHAPE = (2, 15, 12)
SMALL = sequence(made(nn.Linear, 6, 5), made(nn.ReLU), made(nn.Linear, 5, CLASSES))


def one_of_each(width: int) -> Make:
    """A first convolution by rows, one by channels, pooling with the convolution and alone, and linear layers, for
    inputs of `SHAPE`."""
    return sequence(
        made(nn.Conv2d, 2, 6, 3, padding=1), made(nn.ReLU), made(nn.MaxPool2d, 2),
        made(nn.Conv2d, 6, 17, 3, stride=2), made(nn.ReLU), made(nn.AvgPool2d, 2, 1),
        made(nn.Flatten), made(nn.Linear, 34, width), made(nn.ReLU), made(nn.Linear, width, CLASSES),
    )  # fmt: skip


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[list[Make], tuple[int, ...]]:
    """Some convolutions with what may stand between them, and the shape of their inputs.

    Channels on both sides of a vector's 16, kernels, strides and paddings that differ by direction, and poolings that
    leave rows and columns over.
    """
    whole = st.integers
    c = draw(st.sampled_from([1, 2, 3, 5, 16]))
    shape = (c, draw(whole(13, 20)), draw(whole(13, 20)))
    layers: list[Make] = []
    for _ in range(draw(whole(1, 2))):
        out, bias = draw(st.sampled_from([1, 2, 6, 9, 12, 16, 17, 32])), draw(st.booleans())
        kernel, stride, pad = ((draw(whole(a, b)), draw(whole(a, b))) for a, b in ((1, 3), (1, 2), (0, 1)))
        layers.append(made(nn.Conv2d, c, out, kernel, draw(st.sampled_from([1, 1, stride])), pad, bias=bias))
        after = (
            ["pool relu"] * 2
            + ["relu pool"] * 2
            + ["", "relu", "pool", "three", "overlapping", "relu mean", "mean relu"]
        )
        poolings = {
            "pool": made(nn.MaxPool2d, 2),
            "three": made(nn.MaxPool2d, 3),
            "overlapping": made(nn.MaxPool2d, (2, 3), (1, 2)),
            "mean": made(nn.AvgPool2d, 2, draw(whole(1, 2))),
            "relu": made(nn.ReLU),
        }
        more = [poolings[name] for name in draw(st.sampled_from(after)).split()]
        if min(sequence(*layers, *more)()(torch.zeros(1, *shape)).shape[2:]) < 3:
            more = [made(nn.ReLU)]
        layers += more
        c = out
        if min(sequence(*layers)()(torch.zeros(1, *shape)).shape[2:]) < 5:
            break
    if draw(st.booleans()):
        layers.append(made(nn.AdaptiveAvgPool2d, 1))
    return [*layers, made(nn.Flatten)], shape


@st.composite
def chains(draw: st.DrawFn, images: bool) -> tuple[Make, tuple[int, ...]]:
    """A network of linear layers, after convolutions if it takes images, and the shape of its inputs."""
    layers: list[Make] = []
    shape: tuple[int, ...] = (draw(st.sampled_from([1, 5, 16, 40])),)
    if images:
        layers, shape = draw(convolutions())
    width = int(sequence(*layers)()(torch.zeros(1, *shape)).shape[1])
    for _ in range(draw(st.integers(0, 2))):
        units = draw(st.sampled_from([1, 3, 8, 16, 21, 33]))
        layers += [made(nn.Linear, width, units, bias=draw(st.booleans())), made(nn.ReLU)]
        if draw(st.booleans()):
            layers.pop()
        width = units
    layers.append(made(nn.Linear, width, CLASSES, bias=draw(st.booleans())))
    return sequence(*layers), shape


def parts(net: Net) -> dict[str, Part | None]:
    """Parts that may move, by name; all of a network that is all head.

    The last two layers are not one slice, but follow each other in the chain; with the first and the last it is the
    other way round.
    """
    if net.body.start == net.body.stop:
        return dict.fromkeys(("all", "head", "body", "top", "ends"))
    first = next(name for name, (span, _) in net.places().items() if span.start >= net.body.start)
    ends = net.part(first.rpartition(".")[0], net.head_name)
    return {"all": None, "head": net.head, "body": net.body, "top": net.top(2), "ends": ends}


def reference(make: Make, net: Net, request: Train, data: Samples, training: Training, rng: torch.Generator) -> Tensor:
    """The vector that local SGD in float64 comes to, written down as the contract has it."""
    w, part = request.start.double(), slice(None) if request.only is None else request.only
    center, linear = (None if t is None else t.double() for t in (request.center, request.linear))
    decay = (torch.ones(net.size) if training.decay_biases else net.matrices(net.size))[: len(w)].double()
    velocity, lr, module = torch.zeros_like(w), training.lr, make().double()
    for epoch_end, index in batches(len(data), training, rng, skip_single=False):
        w.requires_grad_(True)
        z = _logits(net, module, request, w, data, index)
        if "offset" in request.per_sample:
            z = z + request.per_sample.offset[index].double()
        loss = F.cross_entropy(z, data.y[index])
        if request.loss is distillation:
            loss = loss + _pull(net, module, request, w, data, index, z)
        (d,) = torch.autograd.grad(loss, w)
        w = w.detach()
        d = d + training.decay * decay * w + (0 if linear is None else linear)
        pull = torch.zeros_like(w) if center is None or request.mu == 0 else request.mu * (w - center)
        if not request.prox_after:
            d = d + pull
        velocity = training.momentum * velocity + d
        moved = w - lr * velocity - (training.lr * pull if request.prox_after else 0)
        w = w.clone()
        w[part] = moved[part]
        lr *= training.epoch_decay if epoch_end else 1.0
    return w


def teachers(net: Net, kappa: float, temperature: float) -> Bundle:
    """What a distillation takes: a random classifier, and the two numbers."""
    v = torch.randn(net.head.stop, generator=generator(6))
    return Bundle(teacher=v, kappa=torch.tensor(kappa), temperature=torch.tensor(temperature))


def _pull(net: Net, module: nn.Module, request: Train, w: Tensor, data: Samples, index: Tensor, z: Tensor) -> Tensor:
    """kappa T^2 KL(teacher || student), written down from its definition."""
    seen = list[Tensor]()
    hook = module.get_submodule(net.head_name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        _logits(net, module, request, w, data, index)
    hook.remove()
    (at, shape), bias = net.places()[f"{net.head_name}.weight"], net.places().get(f"{net.head_name}.bias")
    v, temperature = request.aux.teacher.double(), float(request.aux.temperature)
    of_teacher = F.linear(seen[0], v[at].view(shape), None if bias is None else v[bias[0]])
    p, log_q = (of_teacher / temperature).softmax(1), (z / temperature).log_softmax(1)
    return float(request.aux.kappa) * temperature**2 * (p * (p.log() - log_q)).sum() / len(index)


def _logits(net: Net, module: nn.Module, request: Train, w: Tensor, data: Samples, index: Tensor) -> Tensor:
    places = net.places()
    if request.loss is head_loss:
        (at, shape), bias = places[f"{net.head_name}.weight"], places.get(f"{net.head_name}.bias")
        return F.linear(request.per_sample.z[index].double(), w[at].view(shape), None if bias is None else w[bias[0]])
    named = {name: w[span].view(shape) for name, (span, shape) in places.items()}
    logits: Tensor = torch.func.functional_call(module, named, (data.x[index].double(),))
    return logits


TERMS: dict[str, st.SearchStrategy[Any]] = {
    "momentum": st.sampled_from([0.0, 0.9]),
    "weight_decay": st.sampled_from([0.0, 0.1]),
    "decay_biases": st.booleans(),
    "batch_size": st.sampled_from([1, 3, 5, 10, 16]),
    "mu": st.sampled_from([0.0, 0.5]),
    "prox_after": st.booleans(),
    "linear": st.booleans(),
    "part": st.sampled_from(["all", "all", "head", "body", "top"]),
    "offset": st.booleans(),
    "teacher": st.sampled_from([None, None, (0.5, 1.0), (1.0, 3.0)]),
    "clip": st.none(),
}
"""Random terms of `asked`."""


def asked(net: Net, data: Samples, drawn: dict[str, Any]) -> tuple[Train, Training]:
    """A request with random terms: seven steps, short batches among them, a rate that falls between epochs."""
    rng, taught = generator(5), drawn["teacher"]
    rows = {"offset": torch.randn(len(data), CLASSES, generator=rng)} if drawn["offset"] and taught is None else {}
    request = Train(
        net.w0,
        loss=cross_entropy if taught is None else distillation,
        aux=Bundle() if taught is None else teachers(net, *taught),
        per_sample=Bundle(rows),
        only=parts(net)[drawn["part"]],
        center=torch.randn(net.size, generator=rng),
        mu=drawn["mu"],
        prox_after=drawn["prox_after"],
        linear=0.1 * torch.randn(net.size, generator=rng) if drawn["linear"] else None,
        clip=drawn["clip"],
    )
    of_run = {name: drawn[name] for name in ("momentum", "weight_decay", "decay_biases", "batch_size")}
    return request, Training(steps=7, lr=0.05, epoch_decay=0.7, **of_run)
