"""FedBN: one common model, but every client keeps its own normalisation layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, to_all


@dataclass(frozen=True)
class FedBN(Method):
    """A common network except for its normalisation layers, which each client keeps, with their running statistics."""

    paper = "Li, Jiang, Zhang, Kamp, Dou: FedBN, Federated Learning on Non-IID Features via Local BN, ICLR 2021"
    family = "personal part"
    reveals = "its model without normalisation layers"
    also_sends = ""
    robust = True
    secure_aggregation = True
    presets: ClassVar = {
        "code": {"training": {"lr": 0.01, "batch_size": 32}, "run": {"weighting": "uniform"}},  # the digits
    }

    def init(self, r: Round) -> Bundle:
        """Return the common start without its normalisation layers."""
        return Bundle(shared=r.w0[~r.net.norms])

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common layers to every participant."""
        return to_all(shared=s.shared)

    def client_update(self, c: Client) -> Work:
        """Train all layers together (Algorithm 1, l. 3-6), keep the normalisation layers and return the others."""
        w = yield Train(self._model(c, c.received.shared))
        c.state = Bundle(norms=w[c.net.norms], trained=w[~c.net.norms])
        return Bundle(shared=w[~c.net.norms])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the common layers, weighted by samples (Algorithm 1, l. 9-11: the layers outside BN)."""
        return Bundle(shared=r.mean(up.shared))

    def personalize(self, c: Client) -> Bundle:
        """Return the common layers with the client's own normalisation layers; those of the start until it trained."""
        return Bundle(model=self._model(c, c.received.shared))

    def views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=self._model(c, c.state.get("trained", c.received.shared)))}

    def _model(self, c: Client, shared: Tensor) -> Tensor:
        w, norms = c.w0, c.net.norms
        w[norms] = c.state.get("norms", w[norms])
        w[~norms] = shared
        return w
