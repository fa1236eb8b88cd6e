"""FedDBE: a client's bias of its features is kept apart, so that the common body learns features without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import Presets, PrivateSums, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Batch, Bundle, Client, Download, Method, ModelError, Net, Round, Train, Work, in_range, to_all
from fedkin.functional.retraining import as_head, as_matrix, feature_size, require_head_last

_PRESETS: Table = {
    "code": {"training": {"epochs": 1, "batch_size": 10, "lr": 0.005}},  # TsingZ0/DBE, Fashion-MNIST
}


@dataclass(frozen=True)
class FedDBE(Method):
    """A common model whose features have one mean everywhere; each client adds a vector of its own to them."""

    paper = (
        "Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in Representation "
        "Space (DBE), NeurIPS 2023"
    )
    family = "personal part"
    tuned: ClassVar = {"kappa": "log:5..500"}

    kappa: float = 50.0
    """Weight of the pull of a batch's mean feature towards the common one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "kappa", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start; the common mean feature is not known yet."""
        feature_size(r.net)  # raises unless the head is a linear layer
        require_head_last(r.net)
        if r.net.head.stop == r.net.head_weight.stop:
            raise ModelError(f"the head {r.net.head_name!r} needs a bias: a client's vector is put into it")
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model and, once it is known, the common mean feature to every participant."""
        return to_all(**s)

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every client."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train model and vector on `debiased_loss`, keep the vector and return the model.

        Until a common mean feature exists, train the model alone and return its mean feature with it.
        """
        if "mean" not in c.received:
            w = yield Train(c.received.model)
            c.state = Bundle(bias=self._bias(c), trained=w)
            return Bundle(model=w, mean=c.features(w).mean(0))
        aux = Bundle(mean=c.received.mean, kappa=torch.tensor(self.kappa))
        v = yield Train(torch.cat([c.received.model, self._bias(c)]), loss=debiased_loss, aux=aux)
        w, bias = v[: c.net.size], v[c.net.size :]
        c.state = Bundle(bias=bias, trained=w)
        return Bundle(model=w)

    def _bias(self, c: Client) -> Tensor:
        return c.state.get("bias", torch.zeros(feature_size(c.net)))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the models, weighted by samples; in the first round also that of the mean features."""
        return s.but(**{name: r.mean(rows) for name, rows in up.items()})

    def personalize(self, c: Client) -> Bundle:
        """Return the global model with the client's vector in the bias of its head."""
        return Bundle(model=with_vector(c.net, c.received.model, self._bias(c)))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the global model as "generic" and the model after the client's last training as "trained"."""
        trained = c.state.get("trained", c.received.model)
        return {
            "generic": Bundle(model=c.received.model),
            "trained": Bundle(model=with_vector(c.net, trained, self._bias(c))),
        }

    can = (
        RobustMeans(),
        PrivateSums(),
        Uploads(
            "its model and, once, its mean feature", "its mean feature in the first round, and batch means in its loss"
        ),
        Views(_views),
        Presets(_PRESETS),
    )


def debiased_loss(net: Net, v: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the cross-entropy on features with the client's vector, plus the pull of their mean without it.

    ``v`` is a model ``[P]`` and behind it the vector ``[d]``. The pull is ``kappa/2`` times the mean, over the d
    numbers, of the squared difference of the batch's mean feature and ``aux.mean [d]``.
    """
    w, bias = v[: net.size], v[net.size :]
    z, _ = net.features_and_logits(w, batch.x)
    pull = 0.5 * (z.mean(0) - aux.mean).square().mean()
    return F.cross_entropy(net.classify(w[net.head], z + bias), batch.y) + aux.kappa * pull


def with_vector(net: Net, w: Tensor, bias: Tensor) -> Tensor:
    """Return the model ``[P]`` that gives at features z what ``w`` gives at ``z + bias``: ``W (z + bias) + b``."""
    matrix = as_matrix(net, w[net.head]).clone()
    matrix[:, -1] += matrix[:, :-1] @ bias
    return torch.cat([as_head(net, matrix), w[net.body]])
