"""Per-FedAvg: one start for everybody that is good after a step of gradient descent on one's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all
from fedkin.functional.meta import meta_loss


@dataclass(frozen=True)
class PerFedAvg(Method):
    """One global model, trained to be good after each client's own step of gradient descent from it."""

    paper = "Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020"
    family = "own model"
    reveals = "its model"
    beside_training = "meta-steps, which are no means over samples"
    robust = True
    secure_aggregation = True
    presets: ClassVar = {
        "paper": {"outer_lr": 0.001, "recipe": {"batch": 40}},
        "pfedcs": {  # one step size for both, as in the comparison of the PFedCS paper
            "inner_lr": 0.005,
            "outer_lr": 0.005,
            "recipe": {"lr": 0.005, "batch": 100, "epochs": 5},
        },
    }

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
    weighted: bool = False
    """Average by training samples; the paper takes the plain mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("inner_lr", at_least=0)
        self.check("delta", above=0)
        self.check("adapt_steps", at_least=0)
        if self.outer_lr != "run":
            self.check("outer_lr", above=0)

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        aux = Bundle(inner_lr=torch.tensor(self.inner_lr))
        if self.order == "hessian-free":
            aux = aux.but(delta=torch.tensor(self.delta))
        batch = c.recipe.batch * (2 if self.order == "first" else 3)  # one mini-batch for each gradient of a meta-step
        steps = max(1, c.recipe.steps_for(len(c.data)))  # as many as FedAvg takes
        lr = c.recipe.lr if self.outer_lr == "run" else self.outer_lr
        meta = Train(c.received.model, loss=meta_loss, aux=aux, steps=steps, batch=batch, lr=lr)
        w = yield meta.but(momentum=0.0, weight_decay=0.0)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=self._weighing(r).mean(up.model))

    def pools(self, s: Bundle, r: Round) -> Bundle:
        return Bundle(group=torch.zeros_like(r.ids), weight=self._weighing(r).weight)

    def _weighing(self, r: Round) -> Round:
        return r if self.weighted else r.but(uniform=True)

    def personalize(self, c: Client) -> Work:
        w = c.received.model
        if self.adapt_steps and self.inner_lr:
            w = yield Train(w, steps=self.adapt_steps, lr=self.inner_lr, momentum=0.0, weight_decay=0.0)
        return Bundle(model=w)

    def views(self, c: Client) -> dict[str, Bundle]:
        return {"meta": Bundle(model=c.received.model)}
