"""kNN-Per: the global model next to the labels of the nearest training samples, by its own features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import Needs, PrivateSums, RobustMeans, Uploads, Views
from fedkin.core import Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_all
from fedkin.core.sides import chunked

_GRID = tuple(i / 10 for i in range(11))  # weights to choose from
_UNKNOWN = 0.5  # without validation samples


@dataclass(frozen=True)
class KNNPer(Method):
    """One global model; a client mixes its prediction with the labels of its nearest training samples."""

    title = "kNN-Per"
    paper = "Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization, ICML 2022"
    family = "personal part"
    tuned: ClassVar = {"neighbours": "int:3..30", "scale": "log:0.1..10"}

    neighbours: int = 10
    """Number of nearest training samples whose labels count (the paper's k); all of a client that has fewer."""
    weight: float | Literal["validation"] = "validation"
    """Weight of the neighbours' labels (the paper's lambda), or "validation": the best of 0, 0.1, ..., 1 there."""
    scale: float = 1.0
    """Distance in features at which a neighbour counts 1/e of one at distance 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "neighbours", at_least=1)
        in_range(self, "scale", above=0)
        if self.weight != "validation":
            in_range(self, "weight", at_least=0, at_most=1)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it, as FedAvg does."""
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the models, weighted by samples."""
        return Bundle(model=r.mean(up.model))

    def personalize(self, c: Client) -> Bundle:
        """Return the global model, the features and labels of the training samples, and the weight lambda."""
        model = c.received.model
        store = Bundle(model=model, features=c.features(model), labels=c.data.y.clone())
        return store.but(weight=torch.tensor(self._weight(c, store)))

    def _weight(self, c: Client, store: Bundle) -> float:
        """Return lambda: as set, or the smallest with the highest accuracy on the validation samples."""
        if self.weight != "validation":
            return self.weight
        if not len(c.validation):
            return _UNKNOWN
        both = chunked(lambda x: torch.stack(self._shares(c.net, store, x), 1), c.validation.x)
        right = [(mixed(both[:, 0], both[:, 1], lam).argmax(1) == c.validation.y).sum() for lam in _GRID]
        return _GRID[int(torch.stack(right).argmax())]

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model as the view "global"."""
        return {"global": Bundle(model=c.received.model)}

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the logarithm of both predictions' mixture ``[B, C]``; the model's logits without a memory."""
        if "features" not in b:
            return net(b.model, x)
        model, memory = self._shares(net, b, x)
        return mixed(model, memory, b.weight).log()

    def _shares(self, net: Net, b: Bundle, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class probabilities of the model and of the memory, ``[B, C]`` each."""
        z, logits = net.features_and_logits(b.model, x)
        return logits.softmax(1), memory(z, b.features, b.labels, self.neighbours, self.scale, net.classes)

    can = property(
        lambda m: (
            RobustMeans(),
            PrivateSums(),
            Uploads("its model", "the scores of predictions that depend on stored samples"),
            Views(KNNPer._views),
            Needs(validation=m.weight == "validation"),
        )
    )


def mixed(model: Tensor, memory: Tensor, weight: Tensor | float) -> Tensor:
    """Return ``weight memory + (1 - weight) model``."""
    return weight * memory + (1 - weight) * model


def memory(z: Tensor, keys: Tensor, labels: Tensor, neighbours: int, scale: float, classes: int) -> Tensor:
    """Return the memory's class probabilities ``[B, C]`` at features ``z [B, d]``.

    ``p_c`` is proportional to the sum of ``exp(-|z - key| / scale)`` over those of the nearest keys that have label c.

    Args:
        keys: features ``[n, d]``.
        labels: int64 ``[n]``.
    """
    apart = torch.cdist(z, keys, compute_mode="donot_use_mm_for_euclid_dist")
    near, which = apart.topk(min(neighbours, len(keys)), largest=False)
    weights = (-near / scale).softmax(1)  # their sum is 1
    return (weights[:, :, None] * F.one_hot(labels, classes)[which]).sum(1)
