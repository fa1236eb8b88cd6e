"""A method for hosts whose survey trains: `Twice`."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.capabilities import Asks, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class Twice(Method):
    """FedAvg, and a second model that is trained in the survey before each round."""

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0, other=r.w0.clone())

    def _question(self, s: Bundle, r: Round) -> Download:
        return to_all(other=s.other)

    def _answer(self, c: Client) -> Work:
        return Bundle(other=(yield Train(c.received.other)))

    def _collect(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return s.but(other=r.mean(up.other))

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        return Bundle(model=(yield Train(c.received.model)))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return s.but(model=r.mean(up.model))

    can = (Uploads("its models"), Asks("round", _question, _answer, _collect))
