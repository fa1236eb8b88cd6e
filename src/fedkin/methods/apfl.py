"""APFL: each client mixes the global model with a model of its own, and learns how much of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads, Views
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


@dataclass(frozen=True)
class APFL(Method):
    """A global model and a personal model per client, mixed with a weight that each client learns."""

    paper = "Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, arXiv 2003.13461, 2020"
    family = "personal model"
    tuned: ClassVar = {"mixing": "0..1"}

    mixing: float = 0.5
    """A client's first weight of its personal model (the paper's alpha), between 0, the global model, and 1."""
    adapt: Literal["step", "round", "never"] = "step"
    """When a client takes a step of its weight: with every step of the models, once per round before them, or never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "mixing", at_least=0, at_most=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model w to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the copy w of the global model, the personal model v and its weight alpha on the same batches."""
        w, v, alpha = c.received.model, self._own(c), self._alpha(c)
        if self.adapt == "round":
            step = Train(alpha, loss=loss_of_alpha, aux=Bundle(w=w, v=v), project=between, steps=1)
            alpha = yield step.but(optimizer="sgd", momentum=0.0, weight_decay=0.0)
        if self.adapt == "step":
            z = yield Train(torch.cat([w, v, alpha]), loss=joint_loss, models=2, project=between)
            alpha = z[2 * c.net.size :]
        else:
            z = yield Train(torch.cat([w, v]), loss=joint_loss, models=2, aux=Bundle(alpha=alpha))
        w, v = z[: c.net.size], z[c.net.size : 2 * c.net.size]
        c.state = Bundle(model=v, alpha=alpha, trained=w)
        return Bundle(model=w)

    def _own(self, c: Client) -> Tensor:
        return c.state.get("model", c.w0)

    def _mixture(self, c: Client, w: Tensor) -> Tensor:
        v = self._own(c)
        if "model" not in c.state:  # never trained: its running statistics were not measured
            v[c.net.buffers] = w[c.net.buffers]
        return mixture(c.net, w, v, self._alpha(c))

    def _alpha(self, c: Client) -> Tensor:
        return c.state.get("alpha", torch.tensor([self.mixing]))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained copies of w, weighted by samples (Algorithm 1)."""
        return Bundle(model=r.mean(up.model))

    def personalize(self, c: Client) -> Bundle:
        """Return the mixture alpha v + (1 - alpha) w with the newest global model."""
        return Bundle(model=self._mixture(c, c.received.model))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model as "global" and the mixture right after the last training as "trained"."""
        w = c.state.get("trained", c.received.model)
        return {
            "global": Bundle(model=c.received.model),
            "trained": Bundle(model=self._mixture(c, w)),
        }

    can = (
        RobustMeans(),
        PrivateSums(),
        Uploads("its copy of the global model; its personal model and its weight stay"),
        Views(_views),
    )


# ---- the mixture ----------------------------------------------------------------------------------------------------
def mixture(net: Net, w: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
    """Return ``alpha v + (1 - alpha) w`` ``[P]``; running statistics are those of v, which are the mixture's own."""
    mixed = alpha * v + (1 - alpha) * w
    return torch.cat([mixed[net.params], v[net.buffers]])


def joint_loss(net: Net, z: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return ``f(w) + f(alpha v + (1 - alpha) w)`` for cross-entropy f, see `joint`."""
    return joint(cross_entropy, net, z, batch, aux)


def joint(f: Loss, net: Net, z: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return ``f(w) + f(alpha v + (1 - alpha) w)``, in whose second term w is a constant.

    Its gradient has all that Algorithm 1 needs for one batch: ``grad f(w)`` for w, ``alpha grad f(mixture)`` for v and
    ``<v - w, grad f(mixture)>`` for alpha.

    Args:
        z: ``[w | v]``, or ``[w | v | alpha]`` ``[2 P + 1]`` where alpha is learnt.
        aux: ``alpha`` ``[1]`` where it is not.
    """
    w, v = z[: net.size], z[net.size : 2 * net.size]
    alpha = aux.alpha if "alpha" in aux else z[2 * net.size :]
    global_loss = f(net, w, batch, Bundle())
    mixed = mixture(net, w.detach(), v, alpha)
    loss = global_loss + f(net, mixed, batch, Bundle())
    if net.buffers.start < net.buffers.stop:  # the pass moved those of the mixture, which are kept with v
        z.data[net.size : 2 * net.size][net.buffers] = mixed.data[net.buffers]
    return loss


def loss_of_alpha(net: Net, alpha: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the cross-entropy of the mixture of ``aux.w`` and ``aux.v`` as a function of its weight ``alpha [1]``."""
    return cross_entropy(net, mixture(net, aux.w, aux.v, alpha), batch, Bundle())


def between(z: Tensor) -> Tensor:
    """Return ``z [..., n]`` with its last number, alpha, between 0 and 1."""
    return torch.cat([z[..., :-1], z[..., -1:].clamp(0, 1)], dim=-1)
