"""Forward passes outside training by the program of compiled training: evaluation, features, losses, partners' logits.

A method asks `Net` for logits or features as always; where local training is compiled, the network that it is given
has them computed by the program that trains it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedkin.core import Client, Net
from fedkin.core.seeds import generator
from fedkin.engines.native import EXACT, near, program_of, resolved, why_not_compiled
from fedkin.engines.steps import layers_of
from fedkin.engines.tasks import Job

if TYPE_CHECKING:
    from fedkin.engines.compiled.request import CompiledChain

_LEAST = 8
"""Smallest batch size of a program that is good at forward passes: linear layers take as many samples at a time."""
_KEPT = 64 << 20  # bytes of models whose logits are remembered

_VIEWS: WeakKeyDictionary[Net, dict[int, Net | None]] = WeakKeyDictionary()


def evaluating(job: Job) -> Net:
    """Return a job's network, with its passes without gradient compiled if training is."""
    if job.private is not None or resolved(job.gradient) != "compiled":
        return job.net
    net, batch = job.net, job.training.batch_size
    views = _VIEWS.setdefault(net, {})
    if batch not in views:
        passes = compiled_passes(net, batch)
        views[batch] = None if isinstance(passes, str) else net.evaluated_by(passes)
    return views[batch] or net


def compiled_passes(net: Net, batch: int) -> CompiledPasses | str:
    """Return forward passes of a network by a program; or why there are none, and the module is asked.

    Logits and features of the network's start on three random samples are compared with the module's.

    Args:
        batch: size of a batch in training, so that one program is made for both; results do not depend on it.
    """
    if why := why_not_compiled():
        return why
    layers = layers_of(net)
    if isinstance(layers, str):
        return layers
    program = program_of(net, layers, net.shape, min(max(batch, _LEAST), EXACT))
    if isinstance(program, str):
        return program
    x, w = net.layout(torch.randn(3, *net.shape, generator=generator(0, "passes"))), net.w0
    logits, z = program.forward(w, x, features=True)
    with torch.no_grad():
        features, expected = net.features_and_logits(w, x)
    if not near(logits, expected):
        return "its program does not agree with the module"
    return CompiledPasses(program, net, features=z is not None and near(z, features))


@dataclass(kw_only=True)
class RememberingClient(Client):
    """A client that computes the logits of a model on its training data once, however often they are asked for.

    Fed-CAM needs those of a model to choose a cluster, and again as the partner's. Models are compared by their
    numbers, of which copies are kept for as long as the step takes.
    """

    _known: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # model, inputs, logits

    def logits(self, w: Tensor) -> Tensor:
        """Return logits ``[n, C]`` of the model ``w [P]`` on the training data, in evaluation mode."""
        passes = self.net.forward_pass
        if not isinstance(passes, CompiledPasses) or not passes.takes(w, self.data.x):
            return super().logits(w)
        for model, x, computed in self._known:
            if x is self.data.x and torch.equal(model, w):
                return computed.clone()
        computed = super().logits(w)
        self._known.append((w.detach().clone(), self.data.x, computed.clone()))
        while len(self._known) > 1 and sum(model.nbytes for model, _, _ in self._known) > _KEPT:
            del self._known[0]
        return computed


class CompiledPasses:
    """Forward passes of a network by its program, as `fedkin.core.net.ForwardPass`.

    Args:
        features: whether what the program's last layer is given is what the head is given.
    """

    def __init__(self, program: CompiledChain, net: Net, *, features: bool) -> None:
        self._program, self._shape, self._length = program, net.shape, (net.size,)
        self._features = features
        self._modules = list(net.module.modules())
        self._hooks = self._count()  # the network's own, which keeps what the head is given

    def __call__(self, w: Tensor, x: Tensor, *, features: bool) -> tuple[Tensor, Tensor | None] | None:
        """Return the logits ``[B, C]`` and, if ``features``, the head's input ``[B, d]``; None: the module is asked.

        It is where the program cannot read what it is given, and where a pass does more than give its result: while
        torch's calls are watched by a mode, or if a module has a hook.
        """
        if (features and not self._features) or not self.takes(w, x):
            return None
        return self._program.forward(w, x, features=features)

    def takes(self, w: Tensor, x: Tensor) -> bool:
        """Return whether the program computes the pass of ``w`` at ``x``."""
        if self._watched() or not (_readable(w) and _readable(x)):
            return False
        return w.shape == self._length and x.shape[1:] == self._shape

    def _watched(self) -> bool:
        modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
        return modes > 0 or self._count() != self._hooks

    def _count(self) -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in self._modules)


def _readable(t: Tensor) -> bool:
    """Return whether a program can read a tensor: floats in this machine's memory."""
    if type(t) is not Tensor or t.dtype != torch.float32 or not t.is_cpu:
        return False
    try:
        t.data_ptr()
    except RuntimeError:  # inside a transform of torch.func
        return False
    return True
