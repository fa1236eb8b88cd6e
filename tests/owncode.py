"""A method of somebody's own, as the text of a file."""

from __future__ import annotations

CAUTIOUS = '''"""Mine."""

from dataclasses import dataclass

import fedkin


@dataclass(frozen=True)
class Cautious(fedkin.Method):
    """FedAvg that goes only part of the way."""

    step: float = 0.5
    """How far to go towards the mean of the clients' models."""

    def init(self, r):
        return fedkin.Bundle(model=r.w0)

    def distribute(self, s, r):
        return fedkin.to_all(model=s.model)

    def client_update(self, c):
        w = yield fedkin.Train(c.received.model)
        return fedkin.Bundle(model=w)

    def aggregate(self, s, r, up):
        return fedkin.Bundle(model=s.model + self.step * (r.mean(up.model) - s.model))
'''
