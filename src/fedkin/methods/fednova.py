"""FedNova: changes of clients' models are divided by the length of their steps before they are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedkin.capabilities import Needs, PrivateSums, RobustMeans, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all
from fedkin.functional.step_size import accumulated_step


@dataclass(frozen=True)
class FedNova(Method):
    """One global model; a client that takes more local steps than others does not count more for it."""

    paper = (
        "Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated "
        "Optimization, NeurIPS 2020"
    )
    family = "one global model"
    tuned: ClassVar = {"server_momentum": "0..0.95"}

    server_momentum: float = 0.0
    """Factor on the sum of the server's earlier steps (gmf in the authors' program); 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "server_momentum", at_least=0, below=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start, with `server_momentum` also a velocity of 0."""
        s = Bundle(model=r.w0)
        return s.but(velocity=torch.zeros(r.net.params.stop)) if self.server_momentum else s

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model x to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train x and return the change per unit of step, (x_i - x)/(eta ||a_i||_1), and the length eta ||a_i||_1."""
        x, params = c.received.model, c.net.params
        change = (yield Train(x)) - x
        # a = [1, ..., 1] for plain SGD, so that eta ||a||_1 is eta times the number of steps (Eq. 4)
        length = accumulated_step(c.training, len(c.data), skip_single=c.net.batchnorm)
        if length:
            change[params] /= length
        return Bundle(change=change, length=torch.tensor(length))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return x + tau_eff sum_i p_i (x_i - x)/||a_i||_1 with tau_eff = sum_i p_i ||a_i||_1 (Algorithm 1)."""
        params, step = r.net.params, r.mean(up.change)  # of running statistics the plain mean change
        step[params] *= r.mean(up.length)  # eta tau_eff
        if self.server_momentum:
            step[params] += self.server_momentum * s.velocity
            return Bundle(model=s.model + step, velocity=step[params].clone())
        return Bundle(model=s.model + step)

    can = (
        RobustMeans(),
        PrivateSums(),
        Uploads("its model"),
        Needs(sgd="it divides a change by the length of the SGD steps that made it"),
    )
