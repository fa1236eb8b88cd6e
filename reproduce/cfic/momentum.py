"""A control for CFIC's correction: the same momentum on the server without groups of clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkin import Bundle, Client, Method, Round, Train, to_all
from fedkin.capabilities import Uploads
from fedkin.core import Download, Work


@dataclass(frozen=True)
class ServerMomentum(Method):
    """FedAvg with a momentum of unit steps of the mean model: CFIC's correction with all clients in one group."""

    family = "one global model"

    memory: float = 0.9
    """How much of the momentum lasts into the next round."""
    beta: float = 0.1
    """Length of a step."""

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0, h=torch.zeros(r.net.size))

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        mean = r.mean(up.model)
        step = torch.zeros_like(s.h)
        step[r.net.params] = (mean - s.model)[r.net.params]
        h = self.memory * s.h - self.beta * step / step.norm().clamp(min=1e-30)
        return Bundle(model=mean - h, h=h)

    can = (Uploads("its model"),)
