"""DA-PFL: a model per client, pulled towards a mixture of clients whose class counts complement its own.

Equations 3-6 (the affinity of two clients) are in `_entries`, 7-9 in `DAPFL.mixture` and `DAPFL.distribute`, and 10 in
`DAPFL.client_update`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Presets, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, ConfigError, Download, Method, Round, Train, Work, in_range, to_all, to_each
from fedkin.core.rows import grow, put, squared_distances

_BLOCK = 1 << 20  # pairs of clients whose common classes are counted in one step
_PART = 1 << 14  # pairs of clients whose affinities are computed in one step
_ROUNDED = 1 - 1e-12


_PRESETS: Table = {
    "paper": {},
    "code": {  # the settings of the authors' program, without its bug (all clients' models in one storage)
        "distance": "l2",
        "include_self": True,
        "equal": "one",
        "prox": "after",
        "training": {"momentum": 0.5, "weight_decay": 1e-4, "decay_biases": False, "epoch_decay": 0.9},
    },
}


@dataclass(frozen=True)
class DAPFL(Method):
    """A model per client, pulled towards a mixture of clients whose class counts complement its own."""

    title = "DA-PFL"
    paper = "Yang, Feng, Guo, Wang, Ding, Fang, Liao: DA-PFL, Dynamic Affinity Aggregation, arXiv 2403.09284"
    family = "mixture"
    tuned: ClassVar = {"lam": "log:0.1..10", "sigma": "log:0.1..10"}

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
    1 where 1 - exp(-d/sigma) is 0 in float32 (the authors' program)."""
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
        in_range(self, "lam", at_least=0)
        in_range(self, "eps", above=0)
        in_range(self, "floor", above=0, at_most=1)
        if isinstance(self.sigma, str):
            if self.sigma != "median":
                raise ConfigError(f'sigma of DAPFL must be a number above 0 or "median", got {self.sigma!r}')
        else:
            in_range(self, "sigma", above=0)

    def describe(self, c: Client) -> Bundle:
        """Return the client's class counts ``[C]`` (S_i)."""
        return Bundle(counts=c.counts())

    def init(self, r: Round) -> Bundle:
        """Return an empty bank of models; for `variant` "v1" the common start as the global model."""
        if self.variant == "v1":
            return Bundle(model=r.w0)
        return Bundle(bank=torch.empty(0, r.net.size), least=torch.tensor(0.0, dtype=torch.float64))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients at the common start and update the smallest affinity of all pairs."""
        if self.variant == "v1":
            return s
        least = s.least
        if self.variant in ("full", "v2"):  # of joining clients with all
            least = least_entry(self._counts(r), r.ids, least, single=self.single)
        return Bundle(bank=grow(s.bank, len(r.roster), r.w0), least=least)

    def _counts(self, r: Round) -> Tensor:
        """Return the class counts of all that have joined, or their class proportions: float64 ``[K, C]``."""
        counts = r.roster.described.counts.double()
        return counts / counts.sum(1, keepdim=True).clamp(min=1) if self.counts == "proportions" else counts

    def affinity(self, s: Bundle, r: Round) -> Tensor:
        """Return the affinities c ``[m, m]`` of ``r.ids`` (Eqs. 3-6)."""
        if self.variant not in ("full", "v2"):
            return torch.ones(len(r.ids), len(r.ids), dtype=torch.float64)
        return affinity(self._counts(r)[r.ids], single=self.single, floor=self.floor, least=float(s.least))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant its mixture w_i^g of the others' last models (Eq. 9); for "v1" the global model."""
        if self.variant == "v1":
            return to_all(model=s.model)
        rows = s.bank[r.ids]
        alpha = self.mixture(rows[:, r.net.params], self.affinity(s, r))
        learned = torch.zeros(len(r.ids), len(r.roster), dtype=torch.float64)
        learned[:, r.ids] = alpha
        return to_each(model=r.mix(alpha, rows), weights=learned)  # Eq. 9

    def mixture(self, rows: Tensor, c: Tensor) -> Tensor:
        """Return alpha ``[m, m]`` (Eqs. 7-8) of models ``[m, P]`` with affinities ``[m, m]``; rows sum to 1."""
        theta = c * self._factor(rows) if self.variant in ("full", "dynamic") else c.clone()
        theta.diagonal().copy_(c.diagonal() if self.include_self else torch.zeros(len(c)))
        total = theta.sum(1, keepdim=True)
        return torch.where(total > 0, theta / total, torch.eye(len(c), dtype=theta.dtype))  # Eq. 8

    def _factor(self, rows: Tensor) -> Tensor:
        """Return the dynamic factor 1 - exp(-(d + eps)/sigma) of Eq. 7 for all pairs of models ``[m, P]``."""
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
        """Train the client's own model on F_i(w) + lam/2 ||w - w_i^g||^2 (Eq. 10), keep it and return it."""
        # Eq. 10, from the client's last model
        own = Train(c.state.get("model", c.w0), center=c.received.model, mu=self.lam, prox_after=self.prox == "after")
        if self.variant == "v1":
            sent, w = yield (Train(c.received.model), own)
        else:
            sent = w = yield own
        c.state = Bundle(model=w)
        return Bundle(model=sent)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Store the participants' models in the bank; for "v1" return the mean of the models trained for FedAvg."""
        if self.variant == "v1":
            return Bundle(model=r.mean(up.model))
        return s.but(bank=put(s.bank, r.ids, up.model))

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send nothing: a client predicts with the model it keeps."""
        return to_all()

    def personalize(self, c: Client) -> Bundle:
        """Return the client's own model; the common start if it has never trained."""
        return Bundle(model=c.state.get("model", c.w0))

    can = (RobustMeans(), Uploads("its class counts and its model"), Presets(_PRESETS))


# ---- affinity of two clients (Eqs. 3-6) -----------------------------------------------------------------------------


def affinity(counts: Tensor, *, single: str = "floor", floor: float = 0.9, least: float | None = None) -> Tensor:
    """Return the affinity c ``[m, m]`` of class counts ``[m, C]`` (Eqs. 5-6): (e/C) (2 - cos) over e common classes.

    Pairs without a common class get ``floor`` times the smallest computed entry, diagonal included; so do pairs with
    one, unless ``single`` is "formula". If nothing can be computed all entries are equal.

    Args:
        least: the smallest computed entry among all clients, 0 if there is none; by default that among these.
    """
    a = counts.double().T[:, :, None]
    rows = [_entries(some, a.mT) for some in a.split(max(1, _PART // max(1, len(counts))), dim=1)]
    out, e = (torch.cat(parts) for parts in zip(*rows, strict=True))
    computed = e >= _enough(single)
    if least is None:
        least = float(out[computed].min()) if bool(computed.any()) else 0.0
    return torch.where(computed, out, floor * least if least else 1.0)


def least_entry(counts: Tensor, new: Tensor, known: Tensor, *, single: str) -> Tensor:
    """Return the smallest computed entry among all of ``counts [K, C]``, 0 if there is none, float64 ``[]``.

    Work: K products of C numbers for each joining client, and entries of those pairs only that could be smaller.

    Args:
        new: ids of joining clients, ascending, later than all others.
        known: that among the others.
    """
    least, has = float(known) or math.inf, (counts > 0).double()
    for some in new.split(max(1, _BLOCK // max(1, len(counts)))) if len(new) else ():
        least = _least(counts, has, some, least, _enough(single))
    return torch.tensor(0.0 if least == math.inf else least, dtype=torch.float64)


def _least(counts: Tensor, has: Tensor, new: Tensor, known: float, enough: int) -> float:
    """Return the smaller of ``known`` and the least entry of joining clients with all up to themselves.

    An entry is at least e/C.
    """
    e, classes = has[new] @ has[: int(new[-1]) + 1].T, counts.shape[1]
    i, j = ((e >= enough) & (e < known * classes * _ROUNDED)).nonzero(as_tuple=True)
    for part in e[i, j].argsort().split(_PART):  # the fewest common classes first: after these there is little left
        part = part[e[i[part], j[part]] < known * classes * _ROUNDED]
        if len(part):
            entries, _ = _entries(counts[new[i[part]]].T, counts[j[part]].T)
            known = min(known, float(entries.min()))
    return known


def _enough(single: str) -> int:
    """Return the number of common classes from which an affinity is computed."""
    return 1 if single == "formula" else 2


def _entries(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return Eqs. 5-6 for pairs of class counts ``a`` and ``b [C, ...]``, and the number of common classes."""
    both = (a > 0) & (b > 0)  # Eqs. 3-4
    u, v, e = a * both, b * both, both.double().sum(0)
    long = (u.square().sum(0) * v.square().sum(0)).sqrt()
    centre = (u.sum(0) + v.sum(0)) / (2 * e.clamp(min=1))  # the mean of all 2e counts, in Eqs. 5-6
    u, v = (u - centre) * both, (v - centre) * both
    size = (u.square().sum(0) * v.square().sum(0)).sqrt()
    flat = size <= 1e-12 * long  # no spread: the neutral, lowest factor
    cos = torch.where(flat, 1.0, (u * v).sum(0) / torch.where(flat, 1.0, size))
    return e / a.shape[0] * (2 - cos), e
