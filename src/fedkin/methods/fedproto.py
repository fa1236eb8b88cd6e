"""FedProto: clients share the means of their features per class, never a model, and predict by the nearest mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin.capabilities import Presets, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_all
from fedkin.core.refusals import Reason, outside
from fedkin.functional.prototypes import class_average, nearness, no_prototypes, prototype_loss

_PRESETS: Table = {
    "code": {"restrict_classes": True, "training": {"lr": 0.01, "momentum": 0.5, "epochs": 1, "batch_size": 4}},
    "code-cifar10": {
        "lam": 0.1,
        "restrict_classes": True,
        "training": {"lr": 0.01, "momentum": 0.5, "epochs": 1, "batch_size": 4},
    },
}


@dataclass(frozen=True)
class FedProto(Method):
    """One model per client; only prototypes, the mean features of each class, are shared."""

    paper = "Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto, AAAI 2022"
    family = "knowledge"
    tuned: ClassVar = {"lam": "log:0.1..10"}

    lam: float = 1.0
    """Weight of the pull of features towards their class's prototype."""
    weighted: bool = False
    """Weigh clients by their samples of the class when prototypes are averaged; they then send class counts."""
    restrict_classes: bool = False
    """Predict only classes of the client's own training data, as the authors' program does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "lam", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return prototypes ``[C, d]`` of zeros, none of them known."""
        return no_prototypes(r.net)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the prototypes, and which classes have one, to every participant."""
        return to_all(prototypes=s.prototypes, known=s.known)

    def client_update(self, c: Client) -> Work:
        """Train the client's own model on `prototype_loss`; return its mean feature of each class."""
        aux = c.received.but(lam=torch.tensor(self.lam))
        w = yield Train(self._model(c), loss=prototype_loss, aux=aux)
        c.state = Bundle(model=w, prototypes=c.received.prototypes, known=c.received.known)
        means, counts = c.class_means(w)  # eval mode, final weights, all samples
        return Bundle(means=means, weight=counts if self.weighted else counts > 0)

    def _model(self, c: Client) -> Tensor:
        return c.state.get("model", c.w0)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return each class's mean over the clients that have it; a class that none has keeps its prototype."""
        prototypes = class_average(up.means, up.weight, s.prototypes)
        return Bundle(prototypes=prototypes, known=s.known | (up.weight > 0).any(0))

    def _refuses(self, r: Round, up: Bundle) -> Reason | None:
        """Return a reason if a class count is negative."""
        return outside("weight", int(up.weight.min()), 0, math.inf)

    def personalize(self, c: Client) -> Bundle:
        """Return the client's model with the current prototypes."""
        return self._with(c, c.received)

    def _with(self, c: Client, given: Bundle) -> Bundle:
        """Return the client's model with the prototypes of a round."""
        known = given.known & (c.counts() > 0) if self.restrict_classes else given.known
        return Bundle(model=self._model(c), prototypes=given.prototypes, known=known)

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model without prototypes as "head" and with those of its last training as "trained"."""
        return {"head": Bundle(model=self._model(c)), "trained": self._with(c, c.state or c.received)}

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return minus the squared distances to the prototypes ``[B, C]``; the head's logits if none is known."""
        z, logits = net.features_and_logits(b.model, x)
        return nearness(z, b.prototypes, b.known) if "known" in b and bool(b.known.any()) else logits

    can = (
        Uploads(
            "which classes it has and its mean feature of each",
            "which classes it has and its mean feature of each",
            refuses=_refuses,
        ),
        Views(_views),
        Presets(_PRESETS),
    )
