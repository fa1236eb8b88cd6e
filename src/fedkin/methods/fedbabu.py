"""FedBABU: only the body is trained, through a head that stays at its start; clients fine-tune copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all

_PRESETS: Table = {
    "code": {"finetune_lr": 1e-3, "training": {"lr": 0.1, "momentum": 0.9, "batch_size": 50}},
}


@dataclass(frozen=True)
class FedBABU(Method):
    """A common body trained through a head that stays at its random start; each client fine-tunes a copy to predict."""

    paper = "Oh, Kim, Yun: FedBABU, Toward Enhanced Representation for Federated Image Classification, ICLR 2022"
    family = "personal part"
    tuned: ClassVar = {"finetune_epochs": "int:1..10"}

    part: Literal["full", "head", "body"] = "full"
    """What a client fine-tunes to predict with: the whole model, the head or the body."""
    finetune_epochs: int = 5
    """Epochs of that fine-tuning, on a copy at each evaluation; 0 predicts with the global model."""
    finetune_lr: float | None = None
    """Step size of that fine-tuning. Default: a tenth of the run's, as it is in that round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "finetune_epochs", at_least=0)
        if self.finetune_lr is not None:
            in_range(self, "finetune_lr", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the body of the common start."""
        return Bundle(body=r.w0[r.net.body].clone())

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common body to every participant; every client derives the fixed head by itself."""
        return to_all(body=s.body)

    def client_update(self, c: Client) -> Work:
        """Train the body through the fixed head and return it."""
        w = yield Train(self._model(c), only=c.net.body)
        return Bundle(body=w[c.net.body])

    def _model(self, c: Client) -> Tensor:
        # every client has the common start, so the head is never sent
        return torch.cat([c.w0[c.net.head], c.received.body])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained bodies, weighted by samples."""
        return Bundle(body=r.mean(up.body))

    def personalize(self, c: Client) -> Work:
        """Fine-tune `part` of a copy of the common model for `finetune_epochs` epochs and return it."""
        w = self._model(c)
        only = {"full": None, "head": c.net.head, "body": c.net.body}[self.part]
        if self.finetune_epochs:
            # the features were trained with a fixed head: with the full step size the head would overshoot
            lr = 0.1 * c.training.lr if self.finetune_lr is None else self.finetune_lr
            w = yield Train(w, only=only, epochs=self.finetune_epochs, lr=lr)
        return Bundle(model=w)

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the common model before fine-tuning as the view "global"."""
        return {"global": Bundle(model=self._model(c))} if self.finetune_epochs else {}

    can = property(
        lambda m: (
            RobustMeans(),
            PrivateSums(),
            Uploads("its body"),
            Views(FedBABU._views, trains=m.finetune_epochs > 0),
            Presets(_PRESETS),
        )
    )
