"""CReFF: FedAvg whose classifier the server retrains on features that give the same gradients as the clients' data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin.capabilities import Presets, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all
from fedkin.functional.prototypes import class_average
from fedkin.functional.retraining import (
    as_head,
    as_matrix,
    class_gradients,
    drawn_shares,
    feature_size,
    fit,
    matched_features,
    random_head,
    require_head_last,
    with_bias,
)

_PRESETS: Table = {"code": {"training": {"epochs": 10, "lr": 0.1, "batch_size": 32}}}


@dataclass(frozen=True)
class CReFF(Method):
    """FedAvg whose classifier is retrained in every round on balanced federated features."""

    paper = "Shang, Lu, Huang, Wang: Federated Learning on Heterogeneous and Long-Tailed Data, IJCAI 2022"
    family = "one global model"
    tuned: ClassVar = {"matching_lr": "log:0.01..1", "crt_lr": "log:1e-3..0.1"}

    features: int = 100
    """Federated features per class."""
    repeats: int = 10
    """Draws over which a client averages the gradient of a class."""
    real_batch: int = 32
    """Samples of a class in each draw, or all that the client has."""
    matching_steps: int = 100
    """Steps per round in which the federated features are fitted to the gradients."""
    matching_lr: float = 0.1
    """Step size of that matching."""
    crt_epochs: int = 300
    """Epochs per round in which a new classifier is trained on the federated features, on the server."""
    crt_lr: float = 0.01
    """Step size of that training."""
    crt_batch: int = 32
    """Federated features per step of that training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("features", "repeats", "real_batch", "crt_epochs", "crt_batch"):
            in_range(self, field, at_least=1)
        in_range(self, "matching_steps", at_least=0)
        in_range(self, "matching_lr", above=0)
        in_range(self, "crt_lr", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start, a random classifier and normally distributed federated features ``[C, M, d]``."""
        rng, d = r.rng, feature_size(r.net)
        require_head_last(r.net)
        features = torch.randn(r.net.classes, self.features, d, generator=rng)
        return Bundle(model=r.w0, head=random_head(r.net, rng), features=features)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model and the retrained classifier to every participant."""
        return to_all(model=s.model, head=s.head)

    def client_update(self, c: Client) -> Work:
        """Train the received model; return it with the retrained classifier's gradient for each class."""
        # gradients of the retrained classifier, on features of the model as received, in eval mode
        x, header = with_bias(c.net, c.features(c.received.model)), as_matrix(c.net, c.received.head)
        share = drawn_shares(c.data.y, self.repeats, self.real_batch, c.rng)
        gradients = class_gradients(header, x, c.data.y, share)
        w = yield Train(c.received.model)
        return Bundle(model=w, gradients=gradients, has=c.counts() > 0)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean model, the features matched to the mean gradients, and a classifier retrained on them."""
        rng, owned = r.rng, up.has.any(0)
        mean = class_average(up.gradients, up.has, torch.zeros_like(up.gradients[0]))
        header, labels = as_matrix(r.net, s.head), owned.nonzero().flatten()
        features = s.features.clone()
        features[owned] = matched_features(
            header, features[owned], labels, mean[owned], steps=self.matching_steps, lr=self.matching_lr
        )
        return Bundle(model=r.mean(up.model), head=self._retrain(r, features, rng), features=features)

    def _retrain(self, r: Round, features: Tensor, rng: torch.Generator) -> Tensor:
        """Return a new classifier ``[H]``, trained on all federated features."""
        y = torch.arange(r.net.classes).repeat_interleave(self.features)
        x = with_bias(r.net, features.flatten(0, 1))
        new = as_matrix(r.net, random_head(r.net, rng))
        new = fit(new, x, y, lr=self.crt_lr, batch=self.crt_batch, epochs=self.crt_epochs, rng=rng)
        return as_head(r.net, new)

    def personalize(self, c: Client) -> Bundle:
        """Return the global model's body with the retrained classifier."""
        return Bundle(model=torch.cat([c.received.head, c.received.model[c.net.body]]))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model with its averaged classifier as the view "averaged"."""
        return {"averaged": Bundle(model=c.received.model)}

    can = (
        Uploads(
            "its model, which classes it has and a gradient of the classifier for each",
            "which classes it has and a gradient of the classifier for each",
        ),
        Views(_views),
        Presets(_PRESETS),
    )
