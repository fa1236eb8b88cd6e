"""MOON: features of a client's model are drawn to those of the global model, and away from those of its last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import PrivateSums, RobustMeans, Uploads
from fedkin.core import Batch, Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_all


@dataclass(frozen=True)
class MOON(Method):
    """One global model; clients' features are kept close to the global model's and away from their last model's."""

    paper = "Li, He, Song: Model-Contrastive Federated Learning (MOON), CVPR 2021"
    family = "one global model"
    tuned: ClassVar = {"mu": [0.1, 1.0, 5.0, 10.0]}  # the grid of the authors

    mu: float = 1.0
    """Weight of the contrastive loss; the authors tune it in {0.1, 1, 5, 10}."""
    temperature: float = 0.5
    """Temperature of the contrastive loss: the smaller, the more a difference of two similarities counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "mu", at_least=0)
        in_range(self, "temperature", above=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start as the global model."""
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model on `contrastive_loss`, keep the result as the client's last model and return it."""
        request = Train(c.received.model)
        # without a last model both similarities are the same, and the contrast has no gradient
        if self.mu and "model" in c.state:
            fixed = Bundle(mu=torch.tensor(self.mu), temperature=torch.tensor(self.temperature))
            # neither model moves: one pass over the data before training instead of one in every epoch
            rows = Bundle(z_global=c.features(c.received.model), z_last=c.features(c.state.model))
            request = request.but(loss=contrastive_loss, aux=fixed, per_sample=rows)
        w = yield request
        c.state = Bundle(model=w)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the trained models, weighted by samples."""
        return Bundle(model=r.mean(up.model))

    can = (RobustMeans(), PrivateSums(), Uploads("its model"))


def contrastive_loss(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the cross-entropy plus ``mu l_con``, the mean over the samples of a batch.

    ``l_con = -log(e^(sim(z, z_glob)/tau) / (e^(sim(z, z_glob)/tau) + e^(sim(z, z_prev)/tau)))`` with the cosine as
    similarity and the head's input as features z ``[B, d]``; ``aux`` holds those of the two fixed models.
    """
    z, logits = net.features_and_logits(w, batch.x)
    near, far = F.cosine_similarity(z, aux.z_global), F.cosine_similarity(z, aux.z_last)
    contrast = F.softplus((far - near) / aux.temperature).mean()  # log(1 + e^((far - near)/tau))
    return F.cross_entropy(logits, batch.y) + aux.mu * contrast
