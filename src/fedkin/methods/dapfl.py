"""DA-PFL: a model per client, pulled towards a mixture of clients whose class counts complement its own.

The affinity of two clients (Eqs. 3-6) is in `fedkin.functional.affinity`; Eqs. 7-9 are in `DAPFL.mixture` and
`DAPFL.distribute`, Eq. 10 in `DAPFL.client_update`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.core import Bundle, Client, ConfigError, Download, Method, Round, Train, Work, to_all, to_each
from fedkin.core.rows import grow, put, squared_distances
from fedkin.functional.affinity import affinity, least_entry


@dataclass(frozen=True)
class DAPFL(Method):
    """A model per client, pulled towards a mixture of clients whose class counts complement its own."""

    paper = "Yang, Feng, Guo, Wang, Ding, Fang, Liao: DA-PFL, Dynamic Affinity Aggregation, arXiv 2403.09284"
    family = "mixture"
    reveals = "its class counts and its model"
    beside_training = ""
    robust = True
    presets: ClassVar = {
        "paper": {},
        "code": {  # the settings of the authors' program, without its bug (all clients' models in one storage)
            "distance": "l2",
            "include_self": True,
            "equal": "one",
            "prox": "after",
            "recipe": {"momentum": 0.5, "weight_decay": 1e-4, "decay_biases": False, "epoch_decay": 0.9},
        },
    }

    lam: float = 1.0
    """Strength of the pull towards the mixture (Eq. 10)."""
    sigma: float | Literal["median"] = 1.0
    """Scale of distances in the dynamic factor 1 - exp(-d/sigma); "median": the cohort's median distance."""
    eps: float = 1e-8
    """Added to every distance (Eq. 7)."""
    variant: Literal["full", "v2", "v1", "v1-uniform", "dynamic"] = "full"
    """full: affinity x distance; v2: affinity only; v1: neither, as the paper counts it (a pull towards the FedAvg
    model, that is Ditto); v1-uniform: a plain mean of the others; dynamic: distance only."""
    distance: Literal["squared", "l2"] = "squared"
    """Eq. 7 squares the norm, the authors' program does not."""
    include_self: bool = False
    """Whether a client's own model is part of its mixture, with factor 1 (the authors' program)."""
    equal: Literal["eps", "one"] = "eps"
    """Dynamic factor of two equal models, such as those of clients that never trained: that of distance eps (Eq. 7), or
    1 wherever 1 - exp(-d/sigma) is 0 in float32 (the authors' program)."""
    single: Literal["floor", "formula"] = "floor"
    """Two clients with one common class: treated as without overlap, or by the formula, which ignores sample counts."""
    floor: float = 0.9
    """Affinity without overlap, as a share of the smallest computed one."""
    counts: Literal["raw", "proportions"] = "raw"
    """Affinity from class counts (the paper; confounded by data size) or from class proportions."""
    prox: Literal["loss", "after"] = "loss"
    """The pull as a term of the loss, or as a separate step after each SGD step, with the step size of the round
    (the authors' program)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lam", at_least=0)
        self.check("eps", above=0)
        self.check("floor", above=0, at_most=1)
        if isinstance(self.sigma, str):
            if self.sigma != "median":
                raise ConfigError(f'sigma of DAPFL must be a number above 0 or "median", got {self.sigma!r}')
        else:
            self.check("sigma", above=0)

    def describe(self, c: Client) -> Bundle:
        return Bundle(counts=c.counts())

    def init(self, r: Round) -> Bundle:
        if self.variant == "v1":
            return Bundle(model=r.w0)
        return Bundle(bank=torch.empty(0, r.net.size), least=torch.tensor(0.0, dtype=torch.float64))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        if self.variant == "v1":
            return s
        least = s.least
        if self.variant in ("full", "v2"):  # of newcomers with all
            least = least_entry(self._counts(r), r.ids, least, single=self.single)
        return Bundle(bank=grow(s.bank, len(r.roster), r.w0), least=least)

    def _counts(self, r: Round) -> Tensor:
        """Class counts of all that have joined, or their class proportions: float64 ``[K, C]``."""
        counts = r.roster.described.counts.double()
        return counts / counts.sum(1, keepdim=True).clamp(min=1) if self.counts == "proportions" else counts

    def affinity(self, s: Bundle, r: Round) -> Tensor:
        """c ``[m, m]`` of ``r.ids``."""
        if self.variant not in ("full", "v2"):
            return torch.ones(len(r.ids), len(r.ids), dtype=torch.float64)
        return affinity(self._counts(r)[r.ids], single=self.single, floor=self.floor, least=float(s.least))

    def distribute(self, s: Bundle, r: Round) -> Download:
        if self.variant == "v1":
            return to_all(model=s.model)
        rows = s.bank[r.ids]
        alpha = self.mixture(rows[:, r.net.params], self.affinity(s, r))
        learned = torch.zeros(len(r.ids), len(r.roster), dtype=torch.float64)
        learned[:, r.ids] = alpha
        return to_each(model=r.mix(alpha, rows), weights=learned)  # Eq. 9

    def mixture(self, rows: Tensor, c: Tensor) -> Tensor:
        """alpha ``[m, m]`` (Eqs. 7-8) of models ``[m, P]`` with affinities ``[m, m]``; rows sum to 1."""
        theta = c * self._factor(rows) if self.variant in ("full", "dynamic") else c.clone()
        theta.diagonal().copy_(c.diagonal() if self.include_self else torch.zeros(len(c)))
        total = theta.sum(1, keepdim=True)
        return torch.where(total > 0, theta / total, torch.eye(len(c), dtype=theta.dtype))  # Eq. 8

    def _factor(self, rows: Tensor) -> Tensor:
        """The dynamic factor 1 - exp(-(d + eps)/sigma) of Eq. 7 for all pairs of models ``[m, P]``, ``[m, m]``."""
        d = squared_distances(rows)
        d = d.sqrt() if self.distance == "l2" else d
        others = ~torch.eye(len(d), dtype=torch.bool)
        median = float(d[others].median()) if len(d) > 1 else 1.0
        sigma = max(median, self.eps) if self.sigma == "median" else float(self.sigma)
        # 1 - exp(x) is exactly 0 in round 1, when all models are equal; expm1 keeps the ratios
        factor = -torch.expm1(-(d + self.eps) / sigma)
        if self.equal == "one":
            which = rows.unique(dim=0, return_inverse=True)[1]  # distances of equal rows are 0 but for rounding
            vanishes = torch.exp(-(d / sigma).float()) == 1
            factor = torch.where(vanishes | (which[:, None] == which), 1.0, factor)
        return factor

    def client_update(self, c: Client) -> Work:
        # Eq. 10, from the client's last model
        own = Train(c.state.get("model", c.w0), center=c.received.model, mu=self.lam, prox_after=self.prox == "after")
        if self.variant == "v1":
            sent, w = yield (Train(c.received.model), own)
        else:
            sent = w = yield own
        c.state = Bundle(model=w)
        return Bundle(model=sent)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        if self.variant == "v1":
            return Bundle(model=r.mean(up.model))
        return s.but(bank=put(s.bank, r.ids, up.model))

    def deliver(self, s: Bundle, r: Round) -> Download:
        return to_all()

    def personalize(self, c: Client) -> Bundle:
        return Bundle(model=c.state.get("model", c.w0))
