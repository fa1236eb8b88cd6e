"""Local training: no federation. The row every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class Local(Method):
    """Every client trains alone; nothing is sent."""

    family = "no federation"
    reveals = "nothing"
    beside_training = ""
    secure_aggregation = True  # nothing is sent, so nothing must be seen

    def init(self, r: Round) -> Bundle:
        return Bundle()

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all()

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.state.get("model", c.w0))
        c.state = Bundle(model=w)
        return Bundle()

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return s

    def personalize(self, c: Client) -> Bundle:
        return Bundle(model=c.state.get("model", c.w0))
