"""FedOpt: the mean change of the clients' models is the gradient of an optimiser on the server.

FedAdam, FedYogi, FedAdagrad (Reddi et al. 2021) and FedAvgM (Hsu et al. 2019) differ in that optimiser alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all

_TITLES = {"adam": "FedAdam", "yogi": "FedYogi", "adagrad": "FedAdagrad", "momentum": "FedAvgM"}


@dataclass(frozen=True)
class FedOpt(Method):
    """One global model, moved by an optimiser on the server along the mean change of the clients' models."""

    paper = (
        "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021; "
        "FedAvgM: Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
        "Classification, 2019"
    )
    family = "one global model"
    tuned: ClassVar = {"server_lr": "log:1e-3..10"}  # the range of the paper

    rule: Literal["adam", "yogi", "adagrad", "momentum"] = "adam"
    """The server's optimiser: FedAdam, FedYogi, FedAdagrad or FedAvgM."""
    server_lr: float = 0.03
    """Step size of the server (the paper's eta)."""
    beta1: float = 0.9
    """Decay of the mean of past changes; for momentum the factor on their sum."""
    beta2: float = 0.99
    """Decay of the mean of past squared changes (adam, yogi)."""
    tau: float = 1e-3
    """Added to the root of the squared changes, whose first value is its square: a smaller one adapts more (all but
    momentum)."""

    @property
    def title(self) -> str:
        """The name that its paper gives to the rule."""
        return _TITLES[self.rule]

    @property
    def summary(self) -> str:
        """What the method does in one sentence, with the server's optimiser."""
        with_what = "momentum" if self.rule == "momentum" else self.rule.capitalize()
        return f"One global model, moved by {with_what} on the server along the mean change of the clients' models."

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "server_lr", above=0)
        in_range(self, "beta1", at_least=0, below=1)
        in_range(self, "beta2", at_least=0, below=1)
        in_range(self, "tau", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start, m = 0 and, but for momentum, v = tau^2, the least that the paper allows."""
        m = torch.zeros(r.net.params.stop)
        s = Bundle(model=r.w0, m=m)
        return s if self.rule == "momentum" else s.but(v=torch.full_like(m, self.tau**2))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the model x after one step of the rule, with its m and v; running statistics are the plain mean."""
        params = r.net.params
        x, model = s.model[params].double(), r.mean(up.model)
        delta = model[params].double() - x
        if self.rule == "momentum":  # Hsu et al., Sec. 4.2
            m = self.beta1 * s.m.double() + delta
            step, new = m, Bundle(m=m.float())
        else:  # Reddi et al., Algorithm 2, which corrects no bias
            m = self.beta1 * s.m.double() + (1 - self.beta1) * delta
            v = self.squares(s.v.double(), delta.square())
            step, new = m / (v.sqrt() + self.tau), Bundle(m=m.float(), v=v.float())
        model[params] = (x + self.server_lr * step).to(model.dtype)
        return new.but(model=model)

    def squares(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the next v ``[P]`` from the last one and the squared mean change ``[P]`` (Algorithm 2)."""
        if self.rule == "adagrad":
            return v + squared
        if self.rule == "yogi":
            return v - (1 - self.beta2) * squared * torch.sign(v - squared)
        return self.beta2 * v + (1 - self.beta2) * squared

    can = (RobustMeans(alone=True), PrivateSums(), Uploads("its model"))
