"""Ditto: a personal model on each client, pulled towards a global model that is trained next to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedkin.capabilities import Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, ConfigError, Download, Method, Round, Train, Work, in_range, to_all

_PRESETS: Table = {
    "code": {
        "coupled_steps": True,
        "training": {"steps": 2, "batch_size": 16, "lr": 0.05},
    },  # the Fashion-MNIST script
}


@dataclass(frozen=True)
class Ditto(Method):
    """A global model by FedAvg and a personal model per client, pulled towards the global one."""

    paper = "Li, Hu, Beirami, Smith: Ditto, Fair and Robust Federated Learning Through Personalization, ICML 2021"
    family = "personal model"
    tuned: ClassVar = {"lam": [0.1, 1.0, 2.0]}  # the grid of the paper

    lam: float = 1.0
    """Strength of the pull towards the global model; 0 is local training."""
    personal_epochs: int | None = None
    """Epochs per round of the client's own model. Default: as the run."""
    coupled_steps: bool = False
    """Both models see the same batches, one step of each on every batch (the authors' program)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "lam", at_least=0)
        if self.personal_epochs is not None:
            in_range(self, "personal_epochs", at_least=1)
            if self.coupled_steps:
                raise ConfigError("coupled_steps gives both models the same batches; leave personal_epochs out")

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model w to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the global model, and the personal model v on F_k(v) + lam/2 ||v - w||^2; return only the former."""
        v, anchor = c.state.get("model", c.w0), c.received.model  # the anchor is fixed while both models move
        # the own model first: with lam = 0 it then meets the very batches of local training
        own = Train(v, center=anchor, mu=self.lam, epochs=self.personal_epochs)
        v, w = yield (own, Train(anchor, batches=0 if self.coupled_steps else None))
        c.state = Bundle(model=v)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained global models, weighted by samples."""
        return Bundle(model=r.mean(up.model))

    def personalize(self, c: Client) -> Bundle:
        """Return the personal model v; the common start if the client has never trained."""
        return Bundle(model=c.state.get("model", c.w0))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model as the view "global"."""
        return {"global": Bundle(model=c.received.model)}

    can = property(
        lambda m: (
            RobustMeans(),
            PrivateSums(),
            Uploads(
                "its copy of the global model; its personal model stays",
                "two gradients of the same batches (coupled_steps)" if m.coupled_steps else "",
            ),
            Views(Ditto._views),
            Presets(_PRESETS),
        )
    )
