"""pFedMe: a personal model near the global one, which moves towards the clients' personal models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedkin.capabilities import Needs, Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all

_PRESETS: Table = {
    "code": {  # CharlieDinh/pFedMe, MNIST with a linear model; its optimiser adds 0.001 theta to every gradient
        "inner_lr": 0.1,
        "training": {"steps": 20, "batch_size": 20, "lr": 0.005, "weight_decay": 1e-3},
    },
}


@dataclass(frozen=True)
class PFedMe(Method):
    """A personal model per client, solved near its copy of the global model, which then moves towards it."""

    title = "pFedMe"
    paper = "Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes (pFedMe), NeurIPS 2020"
    family = "personal model"
    tuned: ClassVar = {"lam": "log:0.1..50", "inner_lr": "log:5e-3..0.5"}  # lam: the range of the paper

    lam: float = 15.0
    """Strength of the pull of the personal model towards the client's copy of the global one."""
    inner_steps: int = 5
    """Gradient steps on one mini-batch for a personal model (the paper's K)."""
    inner_lr: float = 0.05
    """Step size of these steps."""
    outer_lr: float | None = None
    """Step size of the copy of the global model (the paper's eta): it goes this times lam of the way to the personal
    model after every mini-batch. Default: as the run."""
    beta: float = 1.0
    """Factor on the server's step to the mean of the copies; 1 takes the mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "lam", above=0)
        in_range(self, "inner_steps", at_least=1)
        in_range(self, "inner_lr", above=0)
        if self.outer_lr is not None:
            in_range(self, "outer_lr", above=0)
        in_range(self, "beta", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Solve for a personal model theta on one mini-batch after another, and move w towards it each time."""
        params, theta = c.net.params, c.received.model
        w, eta = theta.clone(), c.training.lr if self.outer_lr is None else self.outer_lr
        for first in range(0, self.inner_steps * c.training.steps_for(len(c.data)), self.inner_steps):
            near_w = Train(theta, center=w, mu=self.lam, steps=1, lr=self.inner_lr)
            theta = yield near_w  # on a new mini-batch D, then on the same one
            for _ in range(1, self.inner_steps):
                theta = yield near_w.but(start=theta, batches=first)  # min f(theta; D) + lam/2 ||theta - w||^2 (Eq. 7)
            moved = theta.clone()  # running statistics are those of theta: w itself is never evaluated
            moved[params] = w[params] - eta * self.lam * (w - theta)[params]  # Algorithm 1, line 8
            w = moved
        c.state = Bundle(model=theta)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return (1 - beta) w + beta mean_S(w_i), a plain mean as in the paper (Algorithm 1, line 11)."""
        params, model = r.net.params, r.but(uniform=True).mean(up.model)
        model[params] = (1 - self.beta) * s.model[params] + self.beta * model[params]
        return Bundle(model=model)

    def _pools(self, s: Bundle, r: Round) -> Bundle:
        """Return one pool with equal weights."""
        return Bundle(group=torch.zeros_like(r.ids), weight=r.but(uniform=True).weight)

    def personalize(self, c: Client) -> Bundle:
        """Return the personal model theta; the global model if the client has never trained."""
        return Bundle(model=c.state.get("model", c.received.model))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model as the view "global"."""
        return {"global": Bundle(model=c.received.model)}

    can = (
        RobustMeans(),
        PrivateSums(_pools),
        Uploads("its copy of the global model; its personal model stays", "several gradients of the same batch"),
        Views(_views),
        Needs(sgd="each gradient step of its solver is a request of its own, in which Adam would only see the sign"),
        Presets(_PRESETS),
    )
