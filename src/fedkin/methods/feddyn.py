"""FedDyn: a linear and a proximal term in clients' losses, so that their optima meet at the common one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedkin.capabilities import Logs, Presets, PrivateSums, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all, to_each
from fedkin.core.rows import grow, put

_PRESETS: Table = {
    "code": {  # alpemreacar/FedDyn, its script for CIFAR-10
        "reg": 0.01,
        "adaptive": True,
        "clip": 10.0,
        "eval_model": "all-mean",
        "training": {"epochs": 5, "batch_size": 50, "lr": 0.1, "weight_decay": 1e-3},
    },
    "cfic-table": {  # WwZzz/easyFL, with which CFIC's authors probably compare
        "training": {"epochs": 5, "batch_size": 64, "lr": 0.01},
    },
}


@dataclass(frozen=True)
class FedDyn(Method):
    """One global model; each client corrects its loss by the gradient it last ended at, the server by their mean."""

    paper = "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Dynamic Regularization (FedDyn), ICLR 2021"
    family = "one global model"
    tuned: ClassVar = {"reg": [0.001, 0.01, 0.1]}  # the grid of the paper

    reg: float = 0.1
    """The paper's alpha: weight of the proximal term, and how fast the linear terms follow. The paper tries 0.1, 0.01,
    0.001. A small one needs many local steps, a large one keeps clients where they are."""
    adaptive: bool = False
    """A client's alpha times (mean number of samples)/(its own), as in the authors' program; the optimum is then the
    sample-weighted one instead of the plain mean over clients."""
    clip: float = 0.0
    """Maximum norm of the gradient of a client's loss with its linear term; 0: the run's, by default none as in the
    paper. The authors' program clips at 10."""
    eval_model: Literal["server", "active-mean", "all-mean"] = "server"
    """What is evaluated: the server's model (which clients start from), the mean of the last participants' models, or
    of all clients' last models (keeps one per client on the server); the authors report the last two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "reg", above=0)
        in_range(self, "clip", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start and h = 0."""
        s = Bundle(model=r.w0, h=torch.zeros(len(r.w0[r.net.params]), dtype=torch.float64))
        if self.eval_model != "server":
            s["shown"] = r.w0
        if self.eval_model == "all-mean":
            s["bank"] = torch.empty(0, r.net.size)
        return s

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Rescale h to the new number of clients, so that it stays the mean of all g."""
        # joining clients have g = 0, so h stays the mean of all g
        size = r.roster.size.double() if self.adaptive else torch.ones(len(r.roster), dtype=torch.float64)
        s = s.but(h=s.h * (1 - size[r.ids].sum() / size.sum()))
        return s.but(bank=grow(s.bank, len(r.roster), s.model)) if "bank" in s else s

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model, with `adaptive` also each client's alpha."""
        if not self.adaptive:
            return to_all(model=s.model)
        return to_all(model=s.model) | to_each(reg=self.reg * r.roster.size.double().mean() / r.size)

    def client_update(self, c: Client) -> Work:
        """Minimise F_k(w) - <g_k, w> + alpha/2 ||w - w_received||^2, return w and keep g_k - alpha (w - w_received)."""
        start, params = c.received.model, c.net.params
        reg = float(c.received.reg) if self.adaptive else self.reg
        g = c.state.get("g", torch.zeros_like(start))
        w = yield Train(start, linear=-g, center=start, mu=reg, clip=self.clip or None)
        g = g.clone()  # without running statistics: these stay 0
        g[params] -= reg * (w - start)[params]
        c.state = Bundle(g=g)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return h - alpha/K sum_k (w_k - w), K counting all clients, and the model mean_k w_k - h / alpha."""
        params = r.net.params
        mean = r.but(uniform=True).mean(up.model)
        step = (mean.double() - s.model.double())[params]
        # K counts all clients that have joined, not the participants
        h = s.h - self.reg * len(r.ids) / len(r.roster) * step
        model = mean.clone()
        model[params] = (mean[params].double() - h / self.reg).to(mean.dtype)
        s = s.but(model=model, h=h)
        if self.eval_model == "active-mean":
            return s.but(shown=mean)
        if self.eval_model == "all-mean":
            bank = put(s.bank, r.ids, up.model)
            return s.but(bank=bank, shown=r.mean(bank, torch.ones(len(bank))))
        return s

    def _pools(self, s: Bundle, r: Round) -> Bundle:
        """Return one pool with equal weights: the server needs the plain mean of all uploads."""
        return Bundle(group=torch.zeros_like(r.ids), weight=r.but(uniform=True).weight)

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send the model that `eval_model` names to every client."""
        return to_all(model=s.get("shown", s.model))

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return the distance of the server's model from the mean of the participants' models."""
        # how far the server's model is from the mean of the participants' models
        return {"server_to_mean": float(s.h.norm()) / self.reg}

    can = property(
        lambda m: (
            RobustMeans(),
            *((PrivateSums(FedDyn._pools),) if m.eval_model != "all-mean" and not m.adaptive else ()),
            Uploads("its model"),
            Logs(FedDyn._numbers),
            Presets(_PRESETS),
        )
    )
