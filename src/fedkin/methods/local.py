"""Local training without federation: the reference that every other method is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.capabilities import PrivateSums, Role, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class Local(Method):
    """Every client trains alone; nothing is sent."""

    family = "no federation"

    def init(self, r: Round) -> Bundle:
        """Return an empty state: there is no server model."""
        return Bundle()

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send nothing."""
        return to_all()

    def client_update(self, c: Client) -> Work:
        """Train the client's own model further, keep it and return nothing."""
        w = yield Train(c.state.get("model", c.w0))
        c.state = Bundle(model=w)
        return Bundle()

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the state unchanged."""
        return s

    def personalize(self, c: Client) -> Bundle:
        """Return the client's own model; the common start if it has never trained."""
        return Bundle(model=c.state.get("model", c.w0))

    can = (Role("alone"), PrivateSums(), Uploads("nothing"))
