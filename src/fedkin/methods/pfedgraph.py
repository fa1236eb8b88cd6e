"""pFedGraph: the server infers for each client with whom to collaborate, and mixes its model from theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import RobustMeans, Uploads, Views
from fedkin.core import Batch, Bundle, Client, Download, Method, Net, Round, Train, Work, in_range, to_each
from fedkin.core.rows import gram, grow, put
from fedkin.functional.divisions import rows_or_mean


@dataclass(frozen=True)
class PFedGraph(Method):
    """A model per client, mixed from those whose changes point the same way, and pulled along them in training."""

    title = "pFedGraph"
    paper = "Ye, Ni, Wu, Chen, Wang: Personalized Federated Learning with Inferred Collaboration Graphs, ICML 2023"
    family = "mixture"
    tuned: ClassVar = {"spread": "log:0.08..8", "lam": "log:1e-3..0.1"}

    spread: float = 0.8
    """How much weights stay near the clients' shares of samples (the paper's alpha); large: FedAvg, small: the most
    similar client alone."""
    lam: float = 0.01
    """Weight of the pull, in training, to the direction of the models that the client's own is mixed from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "spread", above=0)
        in_range(self, "lam", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return empty records of the clients' mixed models, and of the directions that they are pulled to."""
        return Bundle(bank=torch.empty(0, r.net.size), pulls=torch.empty(0, r.net.params.stop))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients with the common start, and nothing to be pulled to."""
        nowhere = torch.zeros(r.net.params.stop)
        return Bundle(bank=grow(s.bank, len(r.roster), r.w0), pulls=grow(s.pulls, len(r.roster), nowhere))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant its mixed model and, after its first round, the direction to be pulled to."""
        pulls = s.pulls[r.ids]
        return self.deliver(s, r) | to_each(given=pulls.any(1) & bool(self.lam), pull=pulls)

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send each client its mixed model, and the mean of these to a client that has not taken part yet."""
        return to_each(model=rows_or_mean(s.bank, s.pulls, 0.0, r))

    def client_update(self, c: Client) -> Work:
        """Train the received model on `aligned_loss`, or without a pull if there is none, and return it."""
        request = Train(c.received.model)
        if "pull" in c.received:
            aux = Bundle(pull=c.received.pull, lam=torch.tensor(self.lam))
            request = request.but(loss=aligned_loss, aux=aux)
        w = yield request
        c.state = Bundle(trained=w)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Mix a model and a direction for each participant by its row of the collaboration graph."""
        weights, params = self.graph(up.model[:, r.net.params] - r.w0[r.net.params], r.weight), r.net.params
        units = F.normalize(up.model[:, params], dim=1)
        return Bundle(
            bank=put(s.bank, r.ids, r.mix(weights, up.model)),  # theta_i = sum_j w_ij theta_j
            pulls=put(s.pulls, r.ids, r.mix(weights, units)),
        )

    def graph(self, changes: Tensor, size: Tensor) -> Tensor:
        """Return the weights ``[m, m]`` of the participants, float64, from their changes ``[m, P]`` since the start.

        Row i minimises ``-sum_j w_ij cos(change_i, change_j) + alpha ||w_i - p||^2`` over the simplex, p the shares of
        ``size [m]``: the nearest point of the simplex to ``p + cos_i / (2 alpha)``.
        """
        products = gram(changes)
        lengths = products.diagonal().sqrt().clamp(min=1e-300)
        cosines = products / lengths[:, None] / lengths
        return onto_simplex(size.double() / size.double().sum() + cosines / (2 * self.spread))

    def personalize(self, c: Client) -> Bundle:
        """Return the client's mixed model."""
        return Bundle(model=c.received.model)

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=c.state.get("trained", c.received.model))}

    can = (RobustMeans(), Uploads("its model"), Views(_views))


def onto_simplex(rows: Tensor) -> Tensor:
    """Return the nearest points of the simplex to ``rows [a, m]``.

    Held, Wolfe, Crowder: Validation of subgradient optimization, Mathematical Programming 6, 1974.
    """
    ordered = rows.sort(dim=1, descending=True).values
    number = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    above = (ordered.cumsum(1) - 1) / number  # what all are lowered by if the first of them stay positive
    last = (ordered > above).sum(1, keepdim=True) - 1
    return (rows - above.gather(1, last)).clamp(min=0)


def aligned_loss(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Return the cross-entropy minus ``lam <pull, w> / ||w||`` with ``aux.pull [P]``, over trainable parameters.

    The pull is ``sum_j w_ij theta_j / ||theta_j||``, so the term is lam times the mean cosine with those models.
    """
    own = w[net.params]
    cosine = (own @ aux.pull) / torch.linalg.vector_norm(own)
    loss: Tensor = F.cross_entropy(net(w, batch.x), batch.y) - aux.lam * cosine
    return loss
