"""Per-FedAvg: one common start that is good after a step of gradient descent on a client's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Needs, Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import (
    Batch,
    Bundle,
    Client,
    Download,
    Method,
    Net,
    Round,
    Train,
    Work,
    cross_entropy,
    in_range,
    to_all,
)
from fedkin.core.train import Loss

_PRESETS: Table = {
    "paper": {"outer_lr": 0.001, "training": {"batch_size": 40}},
    "pfedcs": {  # one step size for both, as in the comparison of the PFedCS paper
        "inner_lr": 0.005,
        "outer_lr": 0.005,
        "training": {"lr": 0.005, "batch_size": 100, "epochs": 5},
    },
}


@dataclass(frozen=True)
class PerFedAvg(Method):
    """One global model, trained to be good after each client's own step of gradient descent from it."""

    title = "Per-FedAvg"
    paper = "Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020"
    family = "personal model"
    tuned: ClassVar = {"inner_lr": "log:1e-3..0.1"}

    inner_lr: float = 0.01
    """Step size with which a client adapts the model to its data (the paper's alpha)."""
    outer_lr: float | Literal["run"] = "run"
    """Step size of the meta-steps (the paper's beta, 0.001 there); "run": the run's own step size."""
    order: Literal["first", "hessian-free"] = "first"
    """Leave the second derivative out, or estimate it by a difference of gradients."""
    delta: float = 1e-3
    """Step of that difference."""
    adapt_steps: int = 1
    """Steps of one mini-batch of training samples that a client takes before it predicts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "inner_lr", at_least=0)
        in_range(self, "delta", above=0)
        in_range(self, "adapt_steps", at_least=0)
        if self.outer_lr != "run":
            in_range(self, "outer_lr", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Take meta-steps along `meta_gradient` (Algorithm 1), as many as FedAvg takes steps, and return the model."""
        aux = Bundle(inner_lr=torch.tensor(self.inner_lr))
        if self.order == "hessian-free":
            aux = aux.but(delta=torch.tensor(self.delta))
        # one mini-batch for each gradient of a meta-step
        batch = c.training.batch_size * (2 if self.order == "first" else 3)
        steps = max(1, c.training.steps_for(len(c.data)))  # as many as FedAvg takes
        lr = c.training.lr if self.outer_lr == "run" else self.outer_lr
        meta = Train(c.received.model, loss=meta_loss, aux=aux, steps=steps, batch_size=batch, lr=lr)
        w = yield meta.but(momentum=0.0, weight_decay=0.0)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the plain mean of the models, as in the paper."""
        return Bundle(model=r.but(uniform=True).mean(up.model))

    def _pools(self, s: Bundle, r: Round) -> Bundle:
        """Return one pool with equal weights."""
        return Bundle(group=torch.zeros_like(r.ids), weight=r.but(uniform=True).weight)

    def personalize(self, c: Client) -> Work:
        """Adapt a copy of the global model by `adapt_steps` steps of one mini-batch each and return it."""
        w = c.received.model
        if self.adapt_steps and self.inner_lr:
            w = yield Train(w, steps=self.adapt_steps, lr=self.inner_lr, momentum=0.0, weight_decay=0.0)
        return Bundle(model=w)

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model before adaptation as the view "meta"."""
        return {"meta": Bundle(model=c.received.model)}

    can = (
        RobustMeans(),
        PrivateSums(_pools),
        Uploads("its model", "meta-steps, which are no means over samples"),
        Views(_views),
        Needs(sgd="its meta-steps and its adaptation are plain gradient steps"),
        Presets(_PRESETS),
    )


# ---- the meta-gradient ----------------------------------------------------------------------------------------------
def meta_loss(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return a scalar whose gradient in ``w`` is the direction of one meta-step for cross-entropy.

    Its value means nothing.

    ``aux.inner_lr`` is the inner step; the Hessian-free term is added if ``aux.delta``, its difference step, is given.
    """
    parts = split(batch, 3 if "delta" in aux else 2, at_least=2 if net.batchnorm else 1)
    return meta_gradient(cross_entropy, net, w, parts, aux.inner_lr, aux.get("delta")) @ w


def meta_gradient(
    task: Loss, net: Net, w: Tensor, parts: Sequence[Batch], inner_lr: Tensor, delta: Tensor | None = None
) -> Tensor:
    """Return the gradient ``[P]`` in ``w`` of the loss after one inner step (Fallah et al. 2020, Algorithm 1).

    First order: ``g = grad f(w - inner_lr grad f(w; D); D')``. With ``delta``: ``g - inner_lr h``, where h is the
    difference quotient ``[grad f(w + delta g; D'') - grad f(w - delta g; D'')] / (2 delta)`` in place of a Hessian.
    Running statistics in ``w`` are left as the pass on D' leaves them; the other passes do not count.

    Args:
        task: the loss f; only its gradient is used.
        parts: D, D' and, with ``delta``, D''.
    """
    here = w.detach()
    adapted = here - inner_lr * _gradient(task, net, here.clone(), parts[0])
    g = _gradient(task, net, adapted, parts[1])
    if net.buffers.start < net.buffers.stop:
        w.data[net.buffers] = adapted[net.buffers]
    if delta is None:
        return g
    devices = [w.device] if w.is_cuda else []
    with torch.random.fork_rng(devices=devices):  # both sides drop the same units: noise over 2 delta would hide h
        ahead = _gradient(task, net, here + delta * g, parts[2])
    behind = _gradient(task, net, here - delta * g, parts[2])
    return g - inner_lr * (ahead - behind) / (2 * delta)


def _gradient(task: Loss, net: Net, w: Tensor, batch: Batch) -> Tensor:
    """Return the gradient ``[P]`` at ``w``, whose running statistics take part in the pass."""
    w.requires_grad_(True)
    (g,) = torch.autograd.grad(task(net, w, batch, Bundle()), w)
    w.requires_grad_(False)
    return g


def split(batch: Batch, parts: int, *, at_least: int = 1) -> list[Batch]:
    """Return the batch in N disjoint parts of sizes as even as possible; each is the whole batch if one is too small.

    Args:
        at_least: samples that a part needs (two under batch normalisation).
    """
    if len(batch.y) < parts * at_least:
        return [batch] * parts
    pieces = zip(batch.x.tensor_split(parts), batch.y.tensor_split(parts), strict=True)
    return [Batch(x, y) for x, y in pieces]
