"""FedGH: the server trains one header on the clients' mean features per class; bodies stay where they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin.capabilities import Presets, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all
from fedkin.functional.retraining import as_head, as_matrix, feature_size, fit, require_head_last, with_bias

_PRESETS: Table = {
    "code": {
        "clip": 50.0,
        "run": {"evaluate": "trained"},
        "training": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3, "epochs": 10, "batch_size": 64},
    },
}


@dataclass(frozen=True)
class FedGH(Method):
    """One body per client; a common header that the server trains on the clients' mean features per class."""

    paper = (
        "Yi, Wang, Liu, Shi, Yu: FedGH, Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023"
    )
    family = "knowledge"
    tuned: ClassVar = {"server_lr": "log:1e-3..0.1"}

    server_lr: float = 0.01
    """Step size of the server's SGD on the header."""
    server_batch: int = 1
    """Mean features per step; 1 is the paper's sequential update, client by client."""
    clip: float | None = None
    """Maximum norm of a client's gradient. Default: the run's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "server_lr", at_least=0)
        in_range(self, "server_batch", at_least=1)
        if self.clip is not None:
            in_range(self, "clip", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the head of the common start as the header."""
        feature_size(r.net)  # raises unless the head is a linear layer
        require_head_last(r.net)
        return Bundle(head=r.w0[r.net.head].clone())

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the header to every participant."""
        return to_all(head=s.head)

    def client_update(self, c: Client) -> Work:
        """Train the header on the client's own body, keep the model and return the mean feature of each class."""
        w = yield Train(self._start(c), clip=self.clip)
        c.state = Bundle(model=w)
        means, counts = c.class_means(w)  # eval mode, final weights, all samples
        return Bundle(means=means, has=counts > 0)

    def _start(self, c: Client) -> Tensor:
        """Return the received header on the client's own body."""
        return torch.cat([c.received.head, c.state.get("model", c.w0)[c.net.body]])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Train the header in one pass over the mean features of all clients and return it."""
        y = up.has.nonzero()[:, 1]  # clients in the order of their ids, classes ascending within each
        x = with_bias(r.net, up.means[up.has])
        header = fit(as_matrix(r.net, s.head), x, y, lr=self.server_lr, batch=self.server_batch)
        return Bundle(head=as_head(r.net, header))

    def personalize(self, c: Client) -> Bundle:
        """Return the client's body with the current header."""
        return Bundle(model=self._start(c))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=c.state.get("model", self._start(c)))}

    can = (
        Uploads(
            "which classes it has and its mean feature of each", "which classes it has and its mean feature of each"
        ),
        Views(_views),
        Presets(_PRESETS),
    )
