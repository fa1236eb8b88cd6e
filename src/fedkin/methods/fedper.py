"""FedPer: a common body, and a head that never leaves its client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads, Views
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class FedPer(Method):
    """A common body; each client keeps its own head (the last linear layer)."""

    paper = "Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, arXiv 1912.00818"
    family = "personal part"

    independent_heads: bool = False
    """Heads start at random on each client, as in the paper, instead of from the common start."""

    def init(self, r: Round) -> Bundle:
        """Return the body of the common start."""
        return Bundle(body=r.w0[r.net.body].clone())

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common body to every participant."""
        return to_all(body=s.body)

    def client_update(self, c: Client) -> Work:
        """Train the common body and the client's head together, keep the head and return the body."""
        w = yield Train(torch.cat([self._head(c), c.received.body]))
        c.state = Bundle(head=w[c.net.head], trained=w[c.net.body])
        return Bundle(body=w[c.net.body])

    def _head(self, c: Client) -> Tensor:
        start = c.net.fresh("head", c.id) if self.independent_heads else c.w0
        return c.state.get("head", start[c.net.head])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained bodies, weighted by samples."""
        return Bundle(body=r.mean(up.body))

    def personalize(self, c: Client) -> Bundle:
        """Return the common body with the client's own head."""
        return Bundle(model=torch.cat([self._head(c), c.received.body]))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=torch.cat([self._head(c), c.state.get("trained", c.received.body)]))}

    can = (RobustMeans(), PrivateSums(), Uploads("its body"), Views(_views))
