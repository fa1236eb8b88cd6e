"""FedMGDA+: the server moves along the shortest mixture of the clients' normalised updates.

To first order no participant's loss rises in that direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Logs, Presets, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all
from fedkin.core.rows import gram, mix
from fedkin.functional.simplex import shortest

_PRESETS: Table = {
    "code": {  # watml/Fed-MGDA, CIFAR-10 with batches of 10; its clients always use momentum 0.5
        "eps": 1.0,
        "decay": 0.89,
        "training": {"epochs": 1, "batch_size": 10, "lr": 0.01, "momentum": 0.5},
    },
    "cfic-table": {  # FLGo's (WwZzz/easyFL); that CFIC's authors compare with it is inferred
        "lambda0": "samples",
        "training": {"epochs": 5, "batch_size": 64, "lr": 0.01},
    },
}


@dataclass(frozen=True)
class FedMGDA(Method):
    """One global model that moves along the shortest mixture of the participants' normalised updates."""

    title = "FedMGDA+"
    paper = "Hu, Shaloudegi, Zhang, Yu: Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 9(4), 2022"
    family = "one global model"
    tuned: ClassVar = {"eps": "0..1", "eta": "log:0.1..10"}

    eps: float = 0.1
    """Maximum difference of a client's weight from lambda0. 1: any weight, then no participant's loss rises (to first
    order); 0: lambda0 itself, that is FedAvg with updates of equal norm."""
    lambda0: Literal["uniform", "samples"] = "uniform"
    """Reference weights: equal for all, or by training samples."""
    eta: float = 1.0
    """The server's step along the common direction: its norm in parameter space is at most this, for any step size of
    the clients."""
    decay: float = 1.0
    """Factor on eta after every 100 rounds."""
    normalise: bool = True
    """Scale all updates to norm 1 first. Without it (MGDA) the shortest update gets most of the weight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "eps", at_least=0, at_most=1)
        in_range(self, "eta", above=0)
        in_range(self, "decay", above=0, at_most=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        nothing = torch.tensor(0.0, dtype=torch.float64)
        return Bundle(model=r.w0, length=nothing, least=nothing.clone())

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return w - eta sum_k lambda_k g_k / ||g_k||, with g_k = w - w_k and `weights` as lambda."""
        params = r.net.params
        g = (s.model - up.model)[:, params]
        products = gram(g)
        norms = products.diagonal().sqrt()
        scale = norms.clamp(min=1e-300) if self.normalise else torch.ones_like(norms)
        products = products / scale[:, None] / scale
        weights = self.weights(products, r.weight if self.lambda0 == "samples" else torch.ones_like(norms))
        common = mix((weights / scale)[None], g)[0]
        eta = self.eta * self.decay ** ((r.index - 1) // 100)
        model = r.mean(up.model)  # of which only the running statistics are kept
        model[params] = s.model[params] - eta * common
        along = products @ weights
        least = along[norms > 0].min() if bool((norms > 0).any()) else torch.zeros_like(along[0])
        return Bundle(model=model, length=(weights @ along).clamp(min=0).sqrt(), least=least.clone())

    def weights(self, products: Tensor, prior: Tensor) -> Tensor:
        """Return lambda ``[m]``, float64, from the updates' inner products ``[m, m]``; 0 for updates of length 0."""
        out = torch.zeros(len(prior), dtype=torch.float64)
        moved = products.diagonal() > 0
        if bool(moved.any()):
            near = prior[moved].double() / prior[moved].double().sum()
            low, high = (near - self.eps).clamp(min=0), (near + self.eps).clamp(max=1)
            out[moved] = shortest(products[moved][:, moved], low, high)
        return out

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return the norm of the common direction and its smallest inner product with an update."""
        # 0: no direction is good for all (Pareto-stationary); least_along below 0: the step goes against an update
        return {"common_length": float(s.length), "least_along": float(s.least)}

    can = (Uploads("its model"), Logs(_numbers), Presets(_PRESETS))
