"""FedEM: every client's data are a mixture of a few distributions; a model for each, and a client's shares of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads
from fedkin.core import Batch, Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_all


@dataclass(frozen=True)
class FedEM(Method):
    """A few common models, each for one component of all data; a client mixes their predictions by its shares."""

    paper = "Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture, NeurIPS 2021"
    family = "mixture"
    tuned: ClassVar = {"components": "int:2..5"}

    components: int = 3
    """Number of models (the paper's M); every participant trains all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "components", at_least=1)

    def init(self, r: Round) -> Bundle:
        """Return independent random starts ``[M, P]``: equal ones would stay equal."""
        return Bundle(models=torch.stack([r.fresh(k) for k in range(self.components)]))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send all models to every participant."""
        return to_all(models=s.models)

    def client_update(self, c: Client) -> Work:
        """Weigh the samples (Eq. 7), take the mean as shares (Eq. 8), and train all models by these weights (Eq. 9)."""
        weights = self._responsibilities(c)
        trained = yield tuple(
            Train(w, loss=weighted_loss, per_sample=Bundle(weight=weights[:, m]))
            for m, w in enumerate(c.received.models)
        )
        c.state = Bundle(share=weights.mean(0))
        return Bundle(models=torch.stack(trained))

    def _responsibilities(self, c: Client) -> Tensor:
        """Return ``q [n, M]``, proportional to ``pi_m exp(-loss of model m)`` on each training sample (Eq. 7)."""
        share = c.state.get("share", torch.full((self.components,), 1 / self.components))
        losses = [F.cross_entropy(c.logits(w), c.data.y, reduction="none") for w in c.received.models]
        return (share.log() - torch.stack(losses, 1)).softmax(1)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of each model, weighted by all samples of a client (Algorithm 1)."""
        return Bundle(models=r.mean(up.models))

    def personalize(self, c: Client) -> Bundle:
        """Return all models and the client's shares; those of one E-step from equal shares if it never trained."""
        share = c.state.share if "share" in c.state else self._responsibilities(c).mean(0)
        return Bundle(models=c.received.models, share=share)

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the log of ``sum_m pi_m p_m`` ``[B, C]``, p_m the class probabilities of model m."""
        logits = torch.stack([net(w, x) for w in b.models])
        return (logits.log_softmax(2) + b.share.log()[:, None, None]).logsumexp(0)

    can = (
        RobustMeans(),
        PrivateSums(),
        Uploads("its copies of all models", "models trained on samples weighted by its losses and shares"),
    )


def weighted_loss(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the batch's mean of ``weight [B]`` times the cross-entropy of each sample (Eq. 9)."""
    return (aux.weight * F.cross_entropy(net(w, batch.x), batch.y, reduction="none")).mean()
