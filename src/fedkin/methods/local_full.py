"""Local training at full strength, the stronger reference: every client in every round, its best model kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedkin.capabilities import Needs, PrivateSums, Role, Uploads
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class LocalFull(Method):
    """Every client trains alone in every round and keeps its best model on validation data; nothing is sent."""

    title = "Local (full)"
    paper = "a reference row without a paper"
    family = "no federation"

    def init(self, r: Round) -> Bundle:
        """Return an empty state: there is no server model."""
        return Bundle()

    def sample(self, s: Bundle, r: Round) -> Tensor:
        """Return all available clients, regardless of the run's participation."""
        return r.ids  # all that can be reached, for any participation of the run

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send nothing."""
        return to_all()

    def client_update(self, c: Client) -> Work:
        """Train the client's model and keep the one with the best validation accuracy so far; return nothing."""
        w = yield Train(c.state.get("model", c.w0))
        chosen: Tensor = c.state.chosen if "chosen" in c.state else w
        held_out = replace(c, data=c.validation)
        # The kept model is scored anew, since validation data change under drift. Later models win ties: validation
        # parts are small, many rounds are equal on them, and of models that they cannot distinguish the one that has
        # trained longer is kept. Without validation data all rounds are equal.
        if not len(c.validation) or held_out.accuracy(w) >= held_out.accuracy(chosen):
            chosen = w
        c.state = Bundle(model=w, chosen=chosen)
        return Bundle()

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the state unchanged."""
        return s

    def personalize(self, c: Client) -> Bundle:
        """Return the best model so far; the common start if the client has never trained."""
        return Bundle(model=c.state.get("chosen", c.w0))

    can = (Role("alone-full"), PrivateSums(), Uploads("nothing"), Needs(validation=True))
