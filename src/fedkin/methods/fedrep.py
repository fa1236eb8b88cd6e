"""FedRep: many epochs on the client's own head, then a few on the common body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, head_loss, in_range, to_all
from fedkin.functional.retraining import require_head_last

_CODE = {
    "final_head_epochs": 10,
    "first_head": "average",
    "training": {"lr": 0.01, "batch_size": 10, "momentum": 0.5, "weight_decay": 1e-4, "decay_biases": False},
}


_PRESETS: Table = {
    "code": {**_CODE, "head_epochs": 10, "body_epochs": 1},  # CIFAR-10, two classes per client
    "code-many-classes": {**_CODE, "head_epochs": 10, "body_epochs": 5},  # five classes per client, CIFAR-100
}


@dataclass(frozen=True)
class FedRep(Method):
    """A common body and one head per client; the head is trained to the end before the body moves."""

    paper = "Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized FL, ICML 2021"
    family = "personal part"
    tuned: ClassVar = {"head_epochs": "int:1..15"}

    head_epochs: int = 10
    """Epochs on the head, with the body as received; on top of those on the body, not part of them."""
    body_epochs: int | None = None
    """Epochs on the body, with the head just trained. Default: as the run."""
    final_head_epochs: int = 0
    """Epochs on the head at evaluation, on a copy, as if training had ended with this round."""
    first_head: Literal["start", "average"] = "start"
    """A client's first head: the common start, or the mean of the last round's heads, which then leave the clients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "head_epochs", at_least=1)
        in_range(self, "final_head_epochs", at_least=0)
        if self.body_epochs is not None:
            in_range(self, "body_epochs", at_least=1)

    def init(self, r: Round) -> Bundle:
        """Return the body of the common start, and its head for `first_head` "average"."""
        require_head_last(r.net)
        s = Bundle(body=r.w0[r.net.body].clone())
        return s.but(head=r.w0[r.net.head].clone()) if self.first_head == "average" else s

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common body, and for `first_head` "average" the mean head, to every participant."""
        return to_all(**s)

    def client_update(self, c: Client) -> Work:
        """Train the head on the received body, then the body on that head; keep the head and return the body."""
        head = yield self._fit(c, self.head_epochs)
        w = yield Train(torch.cat([head, c.received.body]), only=c.net.body, epochs=self.body_epochs)
        c.state = Bundle(head=head)
        up = Bundle(body=w[c.net.body])
        return up.but(head=head) if self.first_head == "average" else up

    def _fit(self, c: Client, epochs: int) -> Train:
        """Return the request that trains the head alone.

        The body does not move, so one pass over the data gives all features.
        """
        z = c.features(self._model(c))
        return Train(self._head(c), loss=head_loss, per_sample=Bundle(z=z), epochs=epochs)

    def _head(self, c: Client) -> Tensor:
        return c.state.get("head", c.received.get("head", c.w0[c.net.head]))

    def _model(self, c: Client) -> Tensor:
        return torch.cat([self._head(c), c.received.body])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained bodies, and of the heads if they were sent, weighted by samples."""
        return Bundle({name: r.mean(rows) for name, rows in up.items()})

    def personalize(self, c: Client) -> Work:
        """Return the common body with the client's head, fine-tuned on a copy for `final_head_epochs` epochs."""
        head = self._head(c)
        if self.final_head_epochs:
            head = yield self._fit(c, self.final_head_epochs)
        return Bundle(model=torch.cat([head, c.received.body]))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model before the final training of its head as the view "untuned"."""
        return {"untuned": Bundle(model=self._model(c))} if self.final_head_epochs else {}

    can = property(
        lambda m: (
            RobustMeans(),
            PrivateSums(),
            Uploads("its body"),
            Views(FedRep._views, trains=m.final_head_epochs > 0),
            Presets(_PRESETS),
        )
    )
