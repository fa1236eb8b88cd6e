"""FedBN: one common model, but every client keeps its own normalisation layers, or only their running statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedkin.capabilities import Logs, Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Net, Round, Train, Work, to_all

_PRESETS: Table = {
    "code": {"training": {"lr": 0.01, "batch_size": 32}, "run": {"weighting": "uniform"}},  # the digits
}


@dataclass(frozen=True)
class FedBN(Method):
    """A common network except for its normalisation layers, which each client keeps, with their running statistics."""

    paper = "Li, Jiang, Zhang, Kamp, Dou: FedBN, Federated Learning on Non-IID Features via Local BN, ICLR 2021"
    family = "personal part"

    keep: Literal["layers", "statistics"] = "layers"
    """What stays on a client: whole normalisation layers, or their running statistics alone; scales and shifts are then
    averaged (SiloBN; Andreux, du Terrail, Beguier, Tramel: Siloed Federated Learning, DCL 2020)."""

    @property
    def title(self) -> str:
        """FedBN, or SiloBN where only the statistics stay."""
        return "FedBN" if self.keep == "layers" else "SiloBN"

    def init(self, r: Round) -> Bundle:
        """Return the common start without what stays on clients."""
        return Bundle(shared=r.w0[~self._own(r.net)])

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common layers to every participant."""
        return to_all(shared=s.shared)

    def client_update(self, c: Client) -> Work:
        """Train all layers together (Algorithm 1, l. 3-6), keep the normalisation layers and return the others."""
        w, own = (yield Train(self._model(c, c.received.shared))), self._own(c.net)
        c.state = Bundle(norms=w[own], trained=w[~own])
        return Bundle(shared=w[~own])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the common layers, weighted by samples (Algorithm 1, l. 9-11: the layers outside BN)."""
        return Bundle(shared=r.mean(up.shared))

    def personalize(self, c: Client) -> Bundle:
        """Return the common layers with the client's own normalisation layers; those of the start until it trained."""
        return Bundle(model=self._model(c, c.received.shared))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=self._model(c, c.state.get("trained", c.received.shared)))}

    def _caveat(self, net: Net, s: Bundle) -> str:
        """Return that nothing stays on clients, if the network has no such layers: the paper presumes batch norm."""
        if self._own(net).any():
            return ""
        what = "normalisation layers" if self.keep == "layers" else "running statistics"
        return (
            f"{self.title} keeps {what} on the clients, and the network has none, so it is FedAvg here; take a network "
            "with batch normalisation, such as cam-cnn or resnet18"
        )

    def _model(self, c: Client, shared: Tensor) -> Tensor:
        w, own = c.w0, self._own(c.net)
        w[own] = c.state.get("norms", w[own])
        w[~own] = shared
        return w

    def _own(self, net: Net) -> Tensor:
        """Return what stays on a client, a mask ``[P]``."""
        norms = net.norms
        if self.keep == "statistics":
            norms[: net.buffers.start] = False
        return norms

    can = property(
        lambda m: (
            RobustMeans(),
            PrivateSums(),
            Uploads(f"its model without {'normalisation layers' if m.keep == 'layers' else 'statistics'}"),
            Views(FedBN._views),
            Logs(caveat=FedBN._caveat),
            Presets(_PRESETS),
        )
    )
