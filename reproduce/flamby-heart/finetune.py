"""FLamby's FedAvgFineTuning: after FedAvg each client goes on for 100 steps by itself.

Used as a method, ``./finetune.py:FedAvgFT100``. It differs from ``fedavg-ft`` in counting steps, not epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedkin import Bundle, Method, Train, to_all
from fedkin.capabilities import PrivateSums, RobustMeans
from fedkin.core import Client, Download, Round, Work


@dataclass(frozen=True)
class FedAvgFT100(Method):
    """FedAvg; to predict, each client trains a copy of the global model for a number of steps."""

    tune_steps: int = 100
    """Steps of SGD on the copy, with the batch size and step size of the run."""

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=r.mean(up.model))

    def personalize(self, c: Client) -> Work:
        w = yield Train(c.received.model, steps=self.tune_steps)
        return Bundle(model=w)

    can = (RobustMeans(), PrivateSums())
