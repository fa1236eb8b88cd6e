"""Requests that are trained as one native call (`fedkin.engines.compiled`), and why others are not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedkin.core import Bundle, ConfigError, Net, Samples, Train, Training, head_loss
from fedkin.core.seeds import generator
from fedkin.core.settings import Gradient
from fedkin.engines.chain import Layer
from fedkin.engines.compiled.units import NotCovered
from fedkin.engines.forks import before_forks
from fedkin.engines.steps import Teacher, by_autograd, written_out

if TYPE_CHECKING:
    from fedkin.engines.compiled.request import CompiledChain, RequestTerms

INSTALL = "pip install 'fedkin[fast]'"
_OLDEST = (0, 45)
EXACT = 256
"""Batch size up to which programs are made for exactly that size; larger ones are for the next power of two that a
client fills, so that neither memory nor the number of programs grows with a batch size that means "all samples"."""


@dataclass(frozen=True)
class Native:
    """Compiled training of requests of one kind on one client.

    Attributes:
        moving: first and last unit that move.
        teacher: of a distillation.
    """

    program: CompiledChain
    moving: tuple[int, int]
    teacher: Teacher | None = None

    def train(
        self, request: Train, training: Training, data: Samples, epochs: Iterable[tuple[Tensor, float]]
    ) -> Tensor:
        """Return the trained vector ``[P]``.

        Args:
            epochs: samples in the order of training, and the step size of their batches.
        """
        x, offset = request.per_sample.get("z", data.x), request.per_sample.get("offset")
        terms = _terms(request, training, self.teacher)
        return self.program(request.start, x, data.y, epochs, training.batch_size, self.moving, terms, offset)


def why_not_compiled() -> str:
    """Return why nothing can be compiled here; "" if it can."""
    try:
        import llvmlite.binding
    except ModuleNotFoundError:
        return f"llvmlite is not installed: {INSTALL}"
    except (ImportError, OSError) as e:
        return f"llvmlite fails: {e}"
    if tuple(map(int, llvmlite.__version__.split(".")[:2])) < _OLDEST:  # it may have come with another package
        return f"llvmlite {llvmlite.__version__} is too old: {INSTALL}"
    return ""


def resolved(gradient: Gradient) -> Gradient:
    """Return what ``auto`` is on this machine, or what was asked for.

    Raises:
        ConfigError: compiled training was asked for, and nothing can be compiled here.
    """
    why = why_not_compiled()
    if gradient == "compiled" and why:
        raise ConfigError(f'gradient = "compiled" is not possible here ({why}); or set gradient = "auto"')
    if gradient == "auto":
        return "explicit" if why else "compiled"
    return gradient


def native(request: Train, training: Training, data: Samples, net: Net) -> Native | str:
    """Return compiled training for a request; or why there is none, and the passes written out are taken."""
    if why := why_not_compiled():
        return why
    if training.optimizer != "sgd":
        return f"the optimizer is {training.optimizer}"
    if training.clip is not None:
        return "the gradient is clipped"
    layers = written_out(request, net)
    if isinstance(layers, str):
        return layers
    if why := _unreadable(request, data, net):
        return why
    head = request.loss is head_loss
    shape = (request.per_sample.z.shape[1],) if head else net.shape
    program = program_of(net, layers, shape, min(training.batch_size, max(len(data), EXACT)), head=head)
    if isinstance(program, str):
        return program
    moving = program.moving(request.moves)
    if moving is None:
        return "a part of a layer, or a layer between others, stands still"
    return Native(program, moving, Teacher.of(request, net))


def _unreadable(request: Train, data: Samples, net: Net) -> str:
    """Return what a program cannot read, for it checks nothing: types and shapes; "" if it can."""
    n, z, offset = len(data), request.per_sample.get("z"), request.per_sample.get("offset")
    length, teacher = (len(request.start),), request.aux.get("teacher")
    shapes = [(request.start, length), (request.center, length), (request.linear, length), (offset, (n, net.classes))]
    shapes.append((teacher, (net.head.stop,)))
    shapes.append((data.x, (n, *net.shape)) if z is None else (z, (n, z.shape[1])))
    there = [(t, shape) for t, shape in shapes if t is not None]
    if any(t.dtype != torch.float32 or not t.is_cpu or tuple(t.shape) != shape for t, shape in there):
        return "a tensor is not of the expected shape, not float32, or on a device"
    return "" if data.y.dtype == torch.int64 and data.y.shape == (n,) else "labels are not numbers of classes"


_MADE: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], CompiledChain | str]] = WeakKeyDictionary()


def program_of(
    net: Net, layers: tuple[Layer, ...], shape: tuple[int, ...], batch: int, *, head: bool = False
) -> CompiledChain | str:
    """Return the program for batches up to a size, or why there is none; made once per network.

    The gradient of the network's start on three random samples is compared with autograd's, as for passes written out.

    Args:
        layers, shape: of the network and its inputs, or of its ``head`` and features.
    """
    batch = batch if batch <= EXACT else 1 << (batch - 1).bit_length()
    made, kind = _MADE.setdefault(net.module, {}), (head, shape, batch)
    if kind not in made:
        made[kind] = _new_program(net, layers, shape, batch, head=head)
    return made[kind]


def _new_program(
    net: Net, layers: tuple[Layer, ...], shape: tuple[int, ...], batch: int, *, head: bool
) -> CompiledChain | str:
    from fedkin.engines.compiled.request import program

    try:
        made = program(layers, shape, batch)
    except NotCovered as e:
        return str(e)
    except RuntimeError as e:
        return f"LLVM refuses it: {e}"
    agrees = before_forks(partial(_agrees, made, net, shape, head))
    return made if agrees else "its program does not agree with autograd"


def _agrees(program: CompiledChain, net: Net, shape: tuple[int, ...], head: bool) -> bool:
    rng, n = generator(0, "program"), min(3, program.batch)
    x, y = torch.randn(n, *shape, generator=rng), torch.randint(net.classes, (n,), generator=rng)
    if head:
        request = Train(net.w0[net.head].clone(), loss=head_loss, per_sample=Bundle(z=x))
    else:
        request, x = Train(net.w0), net.layout(x)
    start, data, index = request.start, Samples(x, y), torch.arange(n)
    moving = program.moving(request.moves)
    assert moving is not None
    moved = start - program(start, x, y, [(index, 1.0)], n, moving, _terms(request, Training()))
    expected = by_autograd(request, net.training(), start.clone(), data, index)
    return near(moved, expected)


def near(result: Tensor, expected: Tensor) -> bool:
    """Return whether a program computed what torch did, but for rounding."""
    return result.shape == expected.shape and bool((result - expected).abs().max() <= 1e-3 * expected.abs().max())


def _terms(request: Train, training: Training, teacher: Teacher | None = None) -> RequestTerms:
    from fedkin.engines.compiled.request import RequestTerms

    center = request.center if request.mu != 0 else None
    mu = 0.0 if center is None else request.mu
    decay = training.decay
    return RequestTerms(
        center=center,
        linear=request.linear,
        teacher=None if teacher is None else teacher.head,
        pull=0.0 if teacher is None else teacher.scale,
        inverse=1.0 if teacher is None else teacher.inverse,
        mu=0.0 if request.prox_after else mu,
        after=training.lr * mu if request.prox_after else 0.0,
        decay=decay,
        decay_biases=decay if training.decay_biases else 0.0,
        momentum=training.momentum,
    )
