"""PFedCS: a classifier customised from clients with similar classifiers teaches each client's own.

Equation 4 is `threshold`, Eq. 5 (candidates within the threshold) is in `PFedCS.mixture`, Eq. 6 in `PFedCS._teachers`,
Eqs. 7-8 are `customised_weights`, Eqs. 9-10 are in `PFedCS.client_update`, the loss of Eqs. 11-12 is `distillation`
of the core. The paper does not number the distances (`row_distances`) and the mixture of two normals (`candidates`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Needs, Presets, RobustMeans, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import (
    Bundle,
    Client,
    Download,
    Method,
    Round,
    Train,
    Work,
    distillation,
    head_loss,
    in_range,
    to_all,
    to_each,
)
from fedkin.core.rows import grow, put
from fedkin.functional.grouping import two_gaussians, two_means, two_ward
from fedkin.functional.pairs import differences_from
from fedkin.functional.retraining import require_head_last

_PRESETS: Table = {  # the paper's model of a client is the one after its last local training
    # its four-layer network on CIFAR-10 and -100; Tiny-ImageNet
    "paper": {"run": {"evaluate": "trained"}, "training": {"epochs": 5, "batch_size": 100, "lr": 0.005}},
    "paper-resnet18": {"run": {"evaluate": "trained"}, "training": {"epochs": 5, "batch_size": 100, "lr": 0.1}},
}
_HALF = "its first stage lasts half of the rounds where beta is not set"


@dataclass(frozen=True)
class PFedCS(Method):
    """A common body; for a while a classifier mixed from clients with similar classifiers teaches each client's own."""

    paper = (
        "Wu, Jia, Liu, Xiang, Xu, Dou: PFedCS, A Personalized Federated Learning Method for Enhancing Collaboration "
        "among Similar Classifiers, AAAI 2025"
    )
    family = "personal part"
    tuned: ClassVar = {"lam": "0..1", "kappa": "log:0.1..10"}

    beta: int | None = None
    """Rounds of stage 1, in which classifiers are shared; then only bodies are. Default: half of the rounds (our
    choice; the paper gives no value)."""
    lam: float = 0.5
    """Weight of similarity against data size in the mixture (Eq. 7); the default is our choice, the paper gives no
    value."""
    select: Literal["gmm", "kmeans", "hier", "fixed", "all", "random", "none"] = "gmm"
    """Candidates for collaboration: the nearer of two groups (by mixture of normals, K-means, Ward), those within a
    fixed distance, all, some at random, none (that is FedPer)."""
    fixed: float = 0.5
    """Largest relative distance for select "fixed"."""
    random_size: int = 3
    """Number of candidates for select "random"."""
    rho: int = 1
    """Epochs for which the client fine-tunes the customised classifier before it teaches."""
    teacher_lr: float | None = None
    """Step size of that fine-tuning. Default: the run's."""
    kappa: float = 1.0
    """Weight of the distillation term (Eq. 12 prints none)."""
    temperature: float = 1.0
    """Temperature of the distillation."""
    weights: Literal["union", "others", "literal-norm"] = "union"
    """Eqs. 6-8 over the collaborators and the client; over the collaborators; or as printed, divided by their sum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "lam", at_least=0, at_most=1)
        for field, least in (("rho", 0), ("random_size", 1), ("kappa", 0), ("fixed", 0)):
            in_range(self, field, at_least=least)
        in_range(self, "temperature", above=0)
        for name, low in (("beta", 0), ("teacher_lr", 1e-12)):
            if getattr(self, name) is not None:
                in_range(self, name, at_least=low)

    def init(self, r: Round) -> Bundle:
        """Return the body of the common start and an empty cache of heads."""
        require_head_last(r.net)
        w = r.w0
        return Bundle(
            body=w[r.net.body].clone(),
            heads=torch.empty(0, len(w[r.net.head])),
            uploaded=torch.empty(0, dtype=torch.int64),  # the round of each cached head, 0 = none
        )

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add an empty place in the cache for each joining client."""
        heads = grow(s.heads, len(r.roster), torch.zeros(s.heads.shape[1]))
        return s.but(heads=heads, uploaded=grow(s.uploaded, len(r.roster), torch.tensor(0)))

    def _last_round(self, r: Round) -> int:
        """Return the last round of stage 1."""
        return 0 if self.select == "none" else r.total // 2 if self.beta is None else self.beta

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the common body; in stage 1 also the customised heads (Eqs. 4-8) and a request for heads."""
        body = to_all(body=s.body)
        if r.index >= self._last_round(r):  # no further round of stage 1: classifiers stay on the clients from now on
            return body | self._teachers(s, r) if r.index == self._last_round(r) else body
        return body | to_all(collect=torch.tensor(True)) | self._teachers(s, r)

    def _teachers(self, s: Bundle, r: Round) -> Download:
        """Return a customised classifier for each of ``r.ids`` that has a classifier in the pool of at least two."""
        pool = (s.uploaded > 0).nonzero().flatten()
        given = torch.isin(r.ids, pool) & (len(pool) > 1)
        p = torch.zeros(len(r.ids), len(r.roster), dtype=torch.float64)
        if not bool(given.any()):
            return to_all()
        for some in given.nonzero().flatten().split(max(1, (1 << 20) // len(pool))):
            p[some[:, None], pool] = self.mixture(s, r, r.ids[some], pool)
        return to_each(given=given, weights=p, teacher=r.mix(p[:, pool], s.heads[pool]))  # Eq. 6

    def mixture(self, s: Bundle, r: Round, ids: Tensor, pool: Tensor) -> Tensor:
        """Return the weights of the heads of ``pool [a]`` in the customised classifiers of ``ids``, ``[m, a]``.

        They are float64 and sum to 1.
        """
        me = torch.searchsorted(pool, ids)
        d = row_distances(s.heads[pool][:, r.net.head_weight], me)
        others = torch.ones_like(d, dtype=torch.bool).scatter_(1, me[:, None], False)
        chosen = others.clone()
        if self.select == "random":
            orders = [torch.randperm(len(pool) - 1, generator=r.client_rng(k)) for k in ids.tolist()]
            places = torch.stack(orders)[:, : self.random_size]
            chosen = torch.zeros_like(others).scatter_(1, places + (places >= me[:, None]), True)
        elif self.select != "all":
            away = d[others].view(len(ids), -1)
            near = candidates(away, self.select, self.fixed)
            near &= away <= threshold(away, r.index, self._last_round(r))[:, None] * (1 + 1e-12)  # Eq. 5
            chosen[others] = near.flatten()
        return customised_weights(d, chosen, me, r.roster.size[pool], self.lam, self.weights)

    def client_update(self, c: Client) -> Work:
        """Train body and head, in stage 1 with a customised head as teacher (Eqs. 9-12); keep the head."""
        w = torch.cat([self._head(c), c.received.body])
        if "teacher" not in c.received:
            w = yield Train(w)
        else:
            v, z = c.received.teacher, c.features(w)
            if self.rho:  # Eqs. 9-10, on the features of the body as received, which are fixed
                tuned = Train(v, loss=head_loss, per_sample=Bundle(z=z), epochs=self.rho, lr=self.teacher_lr)
                v = yield tuned
            # Eqs. 11-12
            aux = Bundle(kappa=torch.tensor(self.kappa), temperature=torch.tensor(self.temperature), teacher=v)
            w = yield Train(w, loss=distillation, aux=aux)
        c.state = Bundle(head=w[c.net.head], trained=w[c.net.body])
        up = Bundle(body=w[c.net.body])
        return up.but(head=w[c.net.head]) if "collect" in c.received else up

    def _head(self, c: Client) -> Tensor:
        return c.state.get("head", c.w0[c.net.head])

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean body, weighted by samples, and put the uploaded heads into the cache."""
        s = s.but(body=r.mean(up.body))
        if "head" not in up:
            return s
        return s.but(heads=put(s.heads, r.ids, up.head), uploaded=put(s.uploaded, r.ids, torch.tensor(r.index)))

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send the common body to every client."""
        return to_all(body=s.body)

    def personalize(self, c: Client) -> Bundle:
        """Return the common body with the client's own head."""
        return Bundle(model=torch.cat([self._head(c), c.received.body]))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=torch.cat([self._head(c), c.state.get("trained", c.received.body)]))}

    can = property(
        lambda m: (
            RobustMeans(),
            Uploads("its body and, in stage 1, its classifier"),
            Views(PFedCS._views),
            Needs(total=_HALF if m.select != "none" and m.beta is None else ""),
            Presets(_PRESETS),
        )
    )


# ---- collaborators and weights (Eqs. 4-8) ---------------------------------------------------------------------------
def row_distances(heads: Tensor, me: Tensor) -> Tensor:
    """Return squared distances of the classifiers ``me [m]`` to all ``heads [a, H]``, each row divided by its largest.

    Float64 ``[m, a]``. From differences: equal classifiers are at distance 0 exactly. All zero if all are equal.
    """
    u = differences_from(heads, me, 2)
    largest = u.max(1, keepdim=True).values
    return torch.where(largest > 0, u / largest, u)


def candidates(d: Tensor, rule: str, fixed: float = 0.5) -> Tensor:
    """Return the nearer of two groups of the others' distances in every row ``d [..., n]``, bool ``[..., n]``.

    With ``fixed`` these are the clients up to a distance.

    Bool ``[..., n]``. One other is a candidate; so are all if their distances are equal, or so nearly equal (within
    about 1e-3, the root of the mixture's least variance) that a mixture of two finds no client in its nearer half.
    """
    if rule == "fixed":
        return d <= fixed
    if d.shape[-1] < 2 or d.numel() == 0:
        return torch.ones_like(d, dtype=torch.bool)
    rows = d.reshape(-1, d.shape[-1])
    out = torch.ones_like(rows, dtype=torch.bool)
    low, high = rows.aminmax(dim=1)
    apart = high - low > 1e-12 * high.clamp(min=1)
    nearer = {"gmm": two_gaussians, "kmeans": two_means, "hier": two_ward}[rule](rows[apart])
    out[apart] = nearer | ~nearer.any(1, keepdim=True)
    return out.reshape(d.shape)


def threshold(d: Tensor, t: int, beta: int) -> Tensor:
    """Return Eq. 4 for every row ``d [..., n]``, ``[...]``: from the mean, in beta steps, to the minimum in round beta.

    A convex sum, one step from the mean in round 1. The printed form avg + (t/beta)(min - avg) is one rounding step
    below the minimum in every second case, and no client would pass it. 0 without others.
    """
    if d.shape[-1] == 0:
        return d.new_zeros(d.shape[:-1])
    r = min(1.0, t / beta)
    return (1 - r) * d.mean(-1) + r * d.amin(-1)


def customised_weights(d: Tensor, chosen: Tensor, me: Tensor, sizes: Tensor, lam: float, reading: str) -> Tensor:
    """Return the weights of all pooled classifiers for the clients ``me``, float64 ``[m, a]`` (Eqs. 7-8).

    Rows sum to 1. Eq. 6 sums over the collaborators and the client, Eqs. 7-8 give weights of the collaborators alone;
    ``reading`` selects how the two are combined.

    Args:
        d: relative distances ``[m, a]``, 0 from a client to itself.
        chosen: the collaborators of each, bool ``[m, a]``, without itself.
        me: int64 ``[m]``, where each client's own classifier is.
        sizes: training samples ``[a]``.
        lam: similarity against size.
        reading: "union" (collaborators and the client), "others" (collaborators) or "literal-norm" (the printed
            weights, which do not sum to 1, divided by their sum).
    """
    member, alone = chosen.scatter(1, me[:, None], True), ~chosen.any(1, keepdim=True)
    base = member if reading == "union" else chosen | (alone & member)
    if reading == "literal-norm":  # where all are equally far, the printed weights are 0/0
        least, largest = _range(d, base)
        base = torch.where(least == largest, member, base)
    (least, largest), count = _range(d, base), base.sum(1, keepdim=True).double()
    mean = torch.where(base, d, 0.0).sum(1, keepdim=True) / count
    even = (least == largest) | (mean >= largest)
    # Eqs. 7-8: similarity and size, added up by lam
    similar = torch.where(even, 1 / count, (largest - d) / (count * torch.where(even, 1.0, largest - mean)))
    of_size = sizes.double() / torch.where(base, sizes.double(), 0.0).sum(1, keepdim=True)
    receives = chosen if reading == "others" else member
    p = torch.where(receives, lam * similar + (1 - lam) * of_size, 0.0)
    return torch.where(alone, member.double(), p / p.sum(1, keepdim=True))


def _range(d: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest distance among ``base``, ``[m, 1]`` each."""
    least = torch.where(base, d, torch.inf).amin(1, keepdim=True)
    return least, torch.where(base, d, -torch.inf).amax(1, keepdim=True)
