"""CFIC: cohorts drawn evenly over groups of clients with one label feature, and a momentum correction; one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Grouped, Logs, Presets, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all, uniform_cohort
from fedkin.core.refusals import Reason, outside
from fedkin.core.rows import grow

_UNKNOWN, _BALANCED = -2, -1


_PRESETS: Table = {
    # "five local iterations" are taken for epochs, an inference: the paper's models and defaults are FLGo's
    "paper": {"register": "lazy", "training": {"epochs": 5, "batch_size": 64, "lr": 0.01}},
}


@dataclass(frozen=True)
class CFIC(Method):
    """Clients grouped by their dominant label, cohorts even over groups, momentum from group directions; one model."""

    paper = "Yang, Ma, Fan, Xie: Cluster Federated Learning with Intra-Cluster Correction, CMC 84(2), 2025"
    family = "one global model"
    tuned: ClassVar = {"beta": [0.03, 0.1, 0.3, 1.0]}

    memory: float = 0.9
    """Factor on the correction h of the round before (alpha in Eq. 4)."""
    beta: float = 0.1
    """Norm of a group's step in the correction; an absolute length in parameter space."""
    beta_decay: float = 1.0
    """Factor on beta after every round."""
    correction: bool = True
    """The intra-cluster correction (IC); without it the model is the plain mean."""
    even_sampling: bool = True
    """Cohorts drawn evenly over groups (IS); without it uniformly."""
    quota: Literal["equal", "paper"] = "equal"
    """Clients of each group in a cohort: an equal number, or at most one (the printed formula)."""
    feature: Literal["deviation", "dominant"] = "deviation"
    """A client's group: the label whose share is farthest from uniform (Eq. 2), or the most frequent one (the text)."""
    register: Literal["eager", "lazy"] = "eager"
    """A client sends its label when it joins, or with its first model (Algorithm 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "memory", at_least=0, below=1)
        in_range(self, "beta", at_least=0)
        in_range(self, "beta_decay", above=0, at_most=1)

    def describe(self, c: Client) -> Bundle:
        """Return the client's label feature (Eq. 2) with `register` "eager"."""
        return Bundle(label=self._label(c)) if self.register == "eager" else Bundle()

    def _label(self, c: Client) -> Tensor:
        return torch.tensor(label_feature(c.counts(), kind=self.feature))

    def init(self, r: Round) -> Bundle:
        """Return the common start, a correction h of zeros and no known labels."""
        h = torch.zeros(r.net.size)
        return Bundle(model=r.w0, h=h, label=torch.empty(0, dtype=torch.int64), ratio=torch.tensor(0.0))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients with their label features, unknown for `register` "lazy"."""
        label = grow(s.label, len(r.roster), torch.tensor(_UNKNOWN))
        if self.register == "eager":
            label[r.ids] = r.roster.described.label[r.ids]
        return s.but(label=label)

    def sample(self, s: Bundle, r: Round) -> Tensor:
        """Return a cohort drawn evenly over the label groups; a uniform one in round 1 or without `even_sampling`."""
        if r.index == 1 or not self.even_sampling:
            return uniform_cohort(r)
        return even_cohort(r.ids, s.label[r.ids], r.cohort, self.quota, r.rng)

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send the global model to every participant."""
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        """Train the received model and return it, with the label feature for `register` "lazy"."""
        w = yield Train(c.received.model)
        return Bundle(model=w) if self.register == "eager" else Bundle(model=w, label=self._label(c))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the global model and the correction h after Eqs. 3-5."""
        label = s.label.clone()
        if "label" in up:
            label[r.ids] = up.label
        mean = r.mean(up.model)
        if not self.correction:
            return s.but(model=mean, label=label)
        _, group = label[r.ids].unique(return_inverse=True)
        means = r.group_mean(up.model, group, torch.zeros(int(group.max()) + 1, len(mean)))  # Eq. 3
        share = torch.zeros(len(means), dtype=torch.float64).index_add_(0, group, r.weight) / r.weight.sum()
        units = _units(means - s.model, r.net.params)
        beta = self.beta * self.beta_decay ** (r.index - 1)
        h = (self.memory * s.h.double() - beta * (share @ units.double())).float()  # Eq. 4
        ratio = h.norm() / (mean - s.model)[r.net.params].norm().clamp(min=1e-30)
        return Bundle(model=mean - h, h=h, label=label, ratio=ratio)  # Eq. 5

    def _refuses(self, r: Round, up: Bundle) -> Reason | None:
        """Return a reason if the label is out of range."""
        return outside("label", int(up.label), _BALANCED, r.net.classes - 1) if "label" in up else None

    def _labels(self, s: Bundle, r: Round) -> Tensor:
        """Return the label group of each client, int64 ``[K]``; -1 where it is unknown."""
        label = torch.where(s.label == _BALANCED, r.net.classes, s.label)
        return torch.where(label == _UNKNOWN, -1, label)

    def _count(self, s: Bundle, r: Round) -> int:
        """Return the number of groups: one per label, and the last for clients with equal shares of all labels."""
        return r.net.classes + 1

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return the norm of the correction h as a multiple of the norm of FedAvg's step."""
        # healthy between 0.5 and 3; above 8 the correction outweighs what the clients learned
        return {"correction_to_step": float(s.ratio)} if self.correction else {}

    can = property(
        lambda m: (
            RobustMeans(),
            Uploads(
                "its dominant label and its model",
                "" if m.register == "eager" else "its label, with its first model",
                frozenset() if m.register == "eager" else frozenset({"counts"}),
                refuses=CFIC._refuses,
            ),
            Grouped(CFIC._labels, CFIC._count),
            Logs(CFIC._numbers),
            Presets(_PRESETS),
        )
    )


def _units(steps: Tensor, params: slice) -> Tensor:
    """Return steps ``[g, P]`` scaled to norm 1, or 0 where they are 0; running statistics are left out."""
    out = torch.zeros_like(steps)
    length = steps[:, params].double().norm(dim=1, keepdim=True)
    out[:, params] = (steps[:, params] / torch.where(length > 0, length, 1.0)).float()
    return out


def label_feature(counts: Tensor, *, kind: str = "deviation") -> int:
    """Return a client's group from its class counts ``[C]``: the label whose share is farthest from 1/C (Eq. 2).

    The printed ratio of logarithms has its least value exactly there; evaluated as printed it gives NaN. Ties go to an
    over-represented label, then to the lowest; equal shares give -1, a group of their own.
    """
    if kind == "dominant":
        return int((counts == counts.max()).to(torch.uint8).argmax())
    excess = counts * len(counts) - counts.sum()
    far = excess.abs() == excess.abs().max()
    if not bool(excess.any()):
        return _BALANCED
    over = far & (excess > 0)
    return int((over if bool(over.any()) else far).to(torch.uint8).argmax())


def even_cohort(ids: Tensor, labels: Tensor, budget: int, quota: str, rng: torch.Generator) -> Tensor:
    """Draw ``budget`` of ``ids [m]``, evenly over the groups that ``labels [m]`` make; ascending.

    Clients of unknown label are one more group. The paper lets them only fill up what the known groups leave, which
    may be nothing in every round: then they never train, and their labels are never learned.
    """
    budget = min(budget, len(ids))
    groups = [ids[labels == k] for k in labels.unique().tolist()]
    each = budget // max(1, len(groups))
    if each == 0 and quota == "equal":
        chosen = torch.randperm(len(groups), generator=rng)[:budget]
        return torch.stack([_draw(groups[g], 1, rng)[0] for g in chosen.tolist()]).sort().values
    each = min(each, 1) if quota == "paper" else each
    picked = torch.cat([_draw(g, each, rng) for g in groups] + [ids[:0]])
    rest = ids[~torch.isin(ids, picked)]
    return torch.cat([picked, _draw(rest, budget - len(picked), rng)]).sort().values


def _draw(ids: Tensor, count: int, rng: torch.Generator) -> Tensor:
    return ids[torch.randperm(len(ids), generator=rng)[:count]]
