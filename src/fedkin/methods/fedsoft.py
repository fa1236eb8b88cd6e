"""FedSoft: one model per client whose data mix several sources, pulled to all centres by importance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.capabilities import Asks, Grouped, Presets, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all, to_each
from fedkin.core.rows import grow, mix, put
from fedkin.functional.grouping import first_argmin

_PRESETS: Table = {
    "code": {  # the authors' program on CIFAR-10 and its rotated images, 100 clients; it trains by Adam
        "clusters": 2,
        "lam": 0.01,
        "per_cluster": 15,
        "training": {"epochs": 10, "batch_size": 64},
    },
}


@dataclass(frozen=True)
class FedSoft(Method):
    """A model per client, pulled to every cluster model by the share of its samples that this one fits best."""

    paper = "Ruan, Joe-Wong: FedSoft, Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022"
    family = "clusters"
    tuned: ClassVar = {"clusters": "int:2..5", "lam": "log:0.01..1"}

    clusters: int = 3
    """Number of cluster models."""
    lam: float = 0.1
    """Strength of the pull: lam/2 sum_s u_s ||w - c_s||^2 in every client's loss."""
    sigma: float = 1e-4
    """Minimum importance of a cluster for a client, so that every client can be chosen for every cluster."""
    tau: int = 2
    """Rounds between two estimates of importances on all clients; a joining client is asked when it joins."""
    selection: bool = True
    """Draw clients per cluster by importance; otherwise all take part and a centre is their mean by importance."""
    per_cluster: int | None = None
    """Clients drawn for each cluster. Default: the cohort divided by the clusters, at least 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "clusters", at_least=1)
        in_range(self, "lam", at_least=0)
        in_range(self, "sigma", above=0, at_most=1)
        in_range(self, "tau", at_least=1)
        if self.per_cluster is not None:
            in_range(self, "per_cluster", at_least=1)

    def init(self, r: Round) -> Bundle:
        """Return independent random centres ``[S, P]``."""
        # independent starts: equal ones would fit every sample equally well in every round
        return Bundle(
            centres=torch.stack([r.fresh(i) for i in range(self.clusters)]),
            u=torch.empty(0, self.clusters, dtype=torch.float64),
            asked=torch.empty(0, dtype=torch.bool),
        )

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients with equal importance of all centres."""
        even = torch.full((self.clusters,), 1 / self.clusters, dtype=torch.float64)  # until it has answered
        k = len(r.roster)
        return s.but(u=grow(s.u, k, even), asked=grow(s.asked, k, torch.tensor(False)))

    # ---- importance: which centre fits each sample best ---------------------------------------------------------
    def _question(self, s: Bundle, r: Round) -> Download | None:
        """Ask all available clients every `tau` rounds, and clients that have never answered, to rate the centres."""
        new = ~s.asked[r.ids]
        if (r.index - 1) % self.tau == 0:
            return to_all(centres=s.centres)
        if not bool(new.any()):
            return None
        return to_each(given=new, centres=s.centres.expand(len(new), -1, -1))

    def _answer(self, c: Client) -> Bundle:
        """Return the fraction of training samples that each centre fits best, ``[S]``."""
        losses = [F.cross_entropy(c.logits(w), c.data.y, reduction="none") for w in c.received.centres]
        best = first_argmin(torch.stack(losses, 1))
        return Bundle(share=torch.bincount(best, minlength=self.clusters) / len(best))

    def _collect(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Store the importances u_ks, at least `sigma` each."""
        u = up.share.double().clamp(self.sigma, 1)
        return s.but(u=put(s.u, r.ids, u), asked=put(s.asked, r.ids, torch.tensor(True)))

    # ---- one round ----------------------------------------------------------------------------------------------
    def importance(self, s: Bundle, r: Round) -> Tensor:
        """Return v ``[m, S]``: client i's part in centre s, ``u_is n_i`` over its sum; columns sum to 1."""
        v = s.u[r.ids] * r.weight[:, None]
        return v / v.sum(0)

    def sample(self, s: Bundle, r: Round) -> Tensor | Bundle:
        """Draw `per_cluster` clients for each centre by importance and return their union; all without `selection`."""
        if not self.selection:
            return r.ids
        count = min(max(1, r.cohort // self.clusters) if self.per_cluster is None else self.per_cluster, len(r.ids))
        drawn = torch.multinomial(self.importance(s, r).T, count, replacement=False, generator=r.rng)
        chosen = torch.zeros(self.clusters, len(r.ids), dtype=torch.bool).scatter(1, drawn, True).T
        union = chosen.any(1)
        return Bundle(ids=r.ids[union], chosen=chosen[union])

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send all centres, and to each participant its importances u_k ``[S]``."""
        return to_all(centres=s.centres) | to_each(u=s.u[r.ids].float())

    def client_update(self, c: Client) -> Work:
        """Minimise F_k(w) + lam/2 sum_s u_ks ||w - c_s||^2 from the client's own model, keep w and return it."""
        # sum_s u_s ||w - c_s||^2 is U ||w - mean||^2 and a constant, with U = sum_s u_s and the mean by u
        w = yield Train(self._own(c), center=self._mean(c), mu=self.lam * float(c.received.u.sum()))
        c.state = Bundle(model=w)
        return Bundle(model=w)

    def _mean(self, c: Client) -> Tensor:
        u = c.received.u.double()
        return mix((u / u.sum())[None], c.received.centres)[0]

    def _own(self, c: Client) -> Tensor:
        # the first is a random one apart from all centres, the same for all clients
        return c.state.model if "model" in c.state else c.net.fresh("own", 0)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return each centre's plain mean over the clients drawn for it; without `selection` sum_k v_sk w_k."""
        if not self.selection:
            return s.but(centres=r.mix(self.importance(s, r).T, up.model))
        client, centre = r.drawn.chosen.nonzero(as_tuple=True)
        of_centre = r.but(ids=r.ids[client], uniform=True)  # a plain mean of those drawn for it; none: unchanged
        return s.but(centres=of_centre.group_mean(up.model[client], centre, s.centres))

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return each client's most important centre, int64 ``[K]``; -1 for clients that have not answered."""
        return torch.where(s.asked, first_argmin(-s.u), -1)

    def _count(self, s: Bundle, r: Round) -> int:
        """Return the number of centres."""
        return self.clusters

    def personalize(self, c: Client) -> Bundle:
        """Return the client's own model."""
        return Bundle(model=self._own(c))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the client's most important centre as the view "centre"."""
        return {"centre": Bundle(model=c.received.centres[int(first_argmin(-c.received.u[None]))])}

    can = (
        RobustMeans(),
        Uploads(
            "its model, and the share of its samples that each cluster model fits best",
            "the share of its samples that each cluster model fits best",
        ),
        Asks("round", _question, _answer, _collect),
        Grouped(_labels, _count),
        Views(_views),
        Presets(_PRESETS),
    )
