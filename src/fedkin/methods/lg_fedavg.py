"""LG-FedAvg: a common head on representations that never leave their clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads, Views
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class LGFedAvg(Method):
    """Each client keeps its own body; the head (the last linear layer) is common."""

    title = "LG-FedAvg"
    paper = (
        "Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally, Federated "
        "Learning with Local and Global Representations, 2020"
    )
    family = "personal part"

    def init(self, r: Round) -> Bundle:
        """Return the head of the common start."""
        return Bundle(head=r.w0[r.net.head].clone())

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common head to every participant."""
        return to_all(head=s.head)

    def client_update(self, c: Client) -> Work:
        """Train the common head and the client's body together, keep the body and return the head."""
        w = yield Train(self._model(c))
        c.state = Bundle(body=w[c.net.body], trained=w[c.net.head])
        return Bundle(head=w[c.net.head])

    def _model(self, c: Client) -> Tensor:
        """Return the received head on the client's own body."""
        return torch.cat([c.received.head, c.state.get("body", c.w0[c.net.body])])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained heads, weighted by samples."""
        return Bundle(head=r.mean(up.head))

    def personalize(self, c: Client) -> Bundle:
        """Return the client's body with the common head."""
        return Bundle(model=self._model(c))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        if not c.state:
            return {"trained": self.personalize(c)}
        return {"trained": Bundle(model=torch.cat([c.state.trained, c.state.body]))}

    can = (RobustMeans(), PrivateSums(), Uploads("its head"), Views(_views))
