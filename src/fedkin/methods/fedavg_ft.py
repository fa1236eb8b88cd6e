"""FedAvg + FT: the reference row of a global model that every client fine-tunes before it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedkin.capabilities import Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all

_PRESETS: Table = {
    "head": {"part": "head", "tune_epochs": 10},  # as Collins et al. (ICML 2021) fine-tune FedAvg
}


@dataclass(frozen=True)
class FedAvgFT(Method):
    """FedAvg; to predict, each client fine-tunes a copy of the global model on its own data."""

    title = "FedAvg + FT"
    paper = "Cheng, Chadha, Duchi: Fine-tuning is Fine in Federated Learning, arXiv 2108.07313"
    family = "personal model"
    tuned: ClassVar = {"tune_epochs": "int:1..10"}

    tune_epochs: int = 5
    """Epochs of fine-tuning, on a copy at each evaluation; 0 is FedAvg."""
    part: Literal["full", "head"] = "full"
    """What is fine-tuned: the whole model, or its head."""
    tune_lr: float | None = None
    """Step size of the fine-tuning. Default: the run's, as it is in that round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "tune_epochs", at_least=0)
        if self.tune_lr is not None:
            in_range(self, "tune_lr", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it, as in FedAvg."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained models, weighted by samples."""
        return Bundle(model=r.mean(up.model))

    def personalize(self, c: Client) -> Work:
        """Fine-tune a copy of the global model, or its head, for `tune_epochs` epochs and return it."""
        w = c.received.model
        if self.tune_epochs:
            only = c.net.head if self.part == "head" else None
            w = yield Train(w, only=only, epochs=self.tune_epochs, lr=self.tune_lr)
        return Bundle(model=w)

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model before fine-tuning as the view "global"."""
        return {"global": Bundle(model=c.received.model)} if self.tune_epochs else {}

    can = property(
        lambda m: (
            RobustMeans(alone=True),
            PrivateSums(),
            Uploads("its model"),
            Views(FedAvgFT._views, trains=m.tune_epochs > 0),
            Presets(_PRESETS),
        )
    )
