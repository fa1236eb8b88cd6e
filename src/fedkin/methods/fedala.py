"""FedALA: each client starts from an elementwise mixture of the global model and its own, with learnt weights."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

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
class FedALA(Method):
    """Each client mixes the last layers of the global model and its own, number by number, with weights it learns."""

    paper = "Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA, Adaptive Local Aggregation for Personalized FL, AAAI 2023"
    family = "personal model"
    tuned: ClassVar = {"share": "0.1..1", "mix_lr": "log:0.1..10"}

    layers: int = 1
    """Number of last layers that are mixed (the paper's p); the layers before them are those of the global model."""
    share: float = 0.8
    """Share of the training samples from which the weights are learnt in a round (the paper's s)."""
    mix_lr: float = 1.0
    """Step size of the weights (the paper's eta)."""
    first_epochs: int = 11
    """Passes over that share when a client learns its weights for the first time; later it is one per round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "layers", at_least=1)
        in_range(self, "share", above=0, at_most=1)
        in_range(self, "mix_lr", above=0)
        in_range(self, "first_epochs", at_least=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        r.net.top(self.layers)  # raises if there are fewer
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Learn the weights W (Eq. 5), train from the mixture of Eq. 4, keep both and return the model."""
        start, mix = yield from self._mixed(c)
        w = yield Train(start)
        c.state = Bundle(model=w) if mix is None else Bundle(model=w, mix=mix)
        return Bundle(model=w)

    def _mixed(self, c: Client) -> Generator[Train, Any, tuple[Tensor, Tensor | None]]:
        """Learn the weights ``[p]`` and return the mixture and them; the global model until the client has its own."""
        if "model" not in c.state:
            return c.received.model, None
        own, new, top = c.state.model, c.received.model, c.net.top(self.layers)
        weights = torch.ones(c.net.size)  # 1 below the last layers: the global model's
        weights[top] = c.state.get("mix", weights[top])
        epochs = 1 if "mix" in c.state else self.first_epochs
        steps = epochs * math.ceil(self.share * len(c.data) / c.training.batch_size)
        learn = Train(weights, loss=mixture_loss, aux=Bundle(own=own, new=new), only=top, project=between)
        learn = learn.but(steps=steps, lr=self.mix_lr, optimizer="sgd", momentum=0.0, weight_decay=0.0)  # Eq. 5
        weights = yield learn
        return mixture(own, new, weights), weights[top]

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the models, weighted by samples."""
        return Bundle(model=r.mean(up.model))

    def personalize(self, c: Client) -> Work:
        """Return the mixture with the newest global model, by weights learnt on a copy, before any training of it."""
        model, _ = yield from self._mixed(c)
        return Bundle(model=model)

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model as "global" and the client's model after its last training as "trained"."""
        trained = c.state.get("model", c.received.model)
        return {"global": Bundle(model=c.received.model), "trained": Bundle(model=trained)}

    can = (RobustMeans(), PrivateSums(), Uploads("its model"), Views(_views))


# ---- the mixture ----------------------------------------------------------------------------------------------------
def mixture(own: Tensor, new: Tensor, weights: Tensor) -> Tensor:
    """Return ``own + (new - own) * weights``, number by number ``[P]`` (Eq. 4); exactly ``new`` where a weight is 1."""
    return torch.lerp(own, new, weights)


def mixture_loss(net: Net, weights: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the cross-entropy of the mixture of ``aux.own`` and ``aux.new`` as a function of its weights ``[P]``."""
    return loss_of_weights(cross_entropy, net, weights, batch, aux)


def loss_of_weights(f: Loss, net: Net, weights: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the loss f of the mixture; its gradient in the weights is ``grad f * (new - own)`` (Eq. 5)."""
    return f(net, mixture(aux.own, aux.new, weights), batch, Bundle())


def between(weights: Tensor) -> Tensor:
    """Return the weights between 0 and 1 (the paper's sigma)."""
    return weights.clamp(0, 1)
