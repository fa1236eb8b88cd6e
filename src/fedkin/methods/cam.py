"""Fed-CAM: a global model and a cluster model whose outputs add up, around any clustered method."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedkin.capabilities import Asks, Capability, Grouped, Logs, Presets, RobustMeans, Uploads, Views
from fedkin.capabilities.groups import require_clusters
from fedkin.capabilities.needs import needs_of
from fedkin.capabilities.views import views_of
from fedkin.core import (
    Bundle,
    Client,
    Download,
    Method,
    MethodError,
    Net,
    Round,
    Train,
    Training,
    Work,
    cross_entropy,
    finish,
    first,
    in_range,
    ready,
    to_all,
    to_each,
)
from fedkin.core.rows import grow, put
from fedkin.functional.grouping import moved_by_share

Order: TypeAlias = Literal["simultaneous", "cluster-first", "global-first"]
Both: TypeAlias = Generator[Train | tuple[Train, ...], Any, tuple[Tensor, Bundle]]

_TABLES = {
    "steps": 10,
    "batch_size": 32,
    "lr": 0.001,
    "momentum": 0.9,
}  # of the paper; fedbase is the package behind them
_PRESETS: dict[str, dict[str, dict[str, Any]]] = {  # by the class of the wrapped method
    "IFCA": {
        "paper": {"update": "damped", "training": _TABLES},
        "fedbase-0.10.3-ifca": {
            "order": "cluster-first",
            "update": "mean",
            "choose_on": "cluster",
            "training": _TABLES,
        },
    },
    "FeSEM": {
        "paper": {"warmup_of": "cluster", "update": "mean", "training": _TABLES},
        "fedbase-0.10.3-fesem": {
            "warmup_of": "cluster",
            "order": "global-first",
            "update": "mean",
            "training": _TABLES,
        },
    },
}


@dataclass(frozen=True)
class CAM(Method):
    """A global and a cluster model whose logits add up; the clusters are those of the wrapped method.

    Names: h, the global model, is ``model``; the cluster models f are the wrapped method's, named under ``inner.``.

    A run has up to three phases. They are distinguished by the names in a bundle:

    - warm-up of h (``warmup_of="global"``): the server is in its first ``warmup`` rounds; a download holds ``model``
      alone, and clients train it by FedAvg.
    - warm-up of f (``warmup_of="cluster"``): the state holds ``own``, every client's last f; a download holds
      ``warmup`` alone (for how many rounds to train), and a client goes on from the f that it keeps.
    - joint rounds: a download holds ``model`` and entries under ``inner.``; both models are trained (Eqs. 5 and 8). A
      client that missed the warm-up of f finds ``warmup`` in it as well and makes up for all of it at once.
    """

    paper = "Ma, Zhou, Long, Jiang, Zhang: Structured FL through Clustered Additive Modeling, NeurIPS 2023"
    family = "clusters"
    inner: Method
    """The clustered method that is wrapped."""
    warmup: int | None = None
    """Rounds before both models are trained together, counted in the run. Default: 3 of 10, as in the paper."""
    warmup_of: Literal["global", "cluster"] = "global"
    """What the warm-up trains: the global model by FedAvg, or a cluster model on each client alone."""
    order: Order = "simultaneous"
    """Which of the two models a client trains first; each is trained with the other's output added."""
    update: Literal["mean", "damped"] = "mean"
    """New cluster model: its members' mean, or moved by their share of the participants' samples (Eq. 6)."""
    choose_on: Literal["sum", "cluster"] = "sum"
    """Clients that choose their cluster measure both models' sum (Eq. 2), or cluster models alone."""

    @property
    def title(self) -> str:
        """The wrapped method's title with "-CAM", and "(Eq. 6)" for the damped update."""
        return f"{self.inner.title}-CAM" + (" (Eq. 6)" if self.update == "damped" else "")

    @property
    def summary(self) -> str:
        """What the method does in one sentence, with the wrapped method's title."""
        moves = "; cluster models move by their members' share of the samples" if self.update == "damped" else ""
        return f"A global plus a cluster model whose logits add up, in the clusters of {self.inner.title}{moves}."

    def __post_init__(self) -> None:
        super().__post_init__()
        require_clusters(self.inner, of_models=self.warmup_of == "cluster")
        if self.warmup is not None:
            in_range(self, "warmup", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return the common start as h and the wrapped method's state, with empty banks if f is warmed up."""
        s = Bundle(model=r.w0, **self.inner.init(self._inside(r)).under("inner"))
        alone = self.warmup_of == "cluster" and self._rounds_of_warmup(r) > 0
        return s.but(own=torch.empty(0, r.net.size), warm=torch.empty(0, dtype=torch.bool)) if alone else s

    def _inside(self, r: Round) -> Round:
        """Return the round as the wrapped method sees it.

        Its random starts are independent of h's, and its group means are those of ``update``: the members' mean (Eq.
        11), or Eq. 6.
        """
        inside = r.but(stream="inner")
        return _Damped(**vars(inside)) if self.update == "damped" else inside

    def _rounds_of_warmup(self, r: Round) -> int:
        return round(0.3 * r.total) if self.warmup is None else self.warmup

    def _warming(self, s: Bundle, r: Round) -> bool:
        """Return whether one of the two models is still trained alone."""
        return "own" in s or (self.warmup_of == "global" and r.index <= self._rounds_of_warmup(r))

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients to the warm-up of f and to the wrapped method's state."""
        new = {"own": torch.zeros(r.net.size), "warm": torch.tensor(False)}
        s = s.but(**{name: grow(s[name], len(r.roster), row) for name, row in new.items() if name in s})
        return s.but(**self.inner.admit(s.inside("inner"), self._inside(r)).under("inner"))

    def _asks(self, own: Asks) -> Asks:
        """Return the wrapped method's question, with h (Eq. 2); nothing is asked during a warm-up."""
        inside = own.inside(CAM._within, CAM._inside)

        def question(m: CAM, s: Bundle, r: Round) -> Download | None:
            if m._warming(s, r) or (asked := inside.question(m, s, r)) is None:
                return None
            given = torch.tensor([bool(asked.row(i)) for i in range(len(r.ids))])  # h goes to those who are asked
            return to_each(given=given, model=s.model.expand(len(given), -1)) | asked

        return replace(inside, question=question)

    def sample(self, s: Bundle, r: Round) -> Tensor | Bundle:
        """Return the wrapped method's cohort; a uniform one during a warm-up."""
        return super().sample(s, r) if self._warming(s, r) else self.inner.sample(s.inside("inner"), r)

    def distribute(self, s: Bundle, r: Round, evaluate: bool = False) -> Download:
        """Send h and what the wrapped method sends; in a warm-up h alone, or the number of rounds to train f."""
        if self._warming(s, r):
            return to_all(warmup=torch.tensor(1)) if "own" in s else to_all(model=s.model)
        step = self.inner.deliver if evaluate else self.inner.distribute
        both = to_all(model=s.model) | step(s.inside("inner"), self._inside(r)).under("inner")
        late = ~s.warm[r.ids] if "warm" in s else r.ids < 0  # joining clients make up for the whole warm-up at once
        return both | to_each(given=late, warmup=torch.full((len(r.ids),), self._rounds_of_warmup(r)))

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send h and what the wrapped method delivers to predict with."""
        return self.distribute(s, r, evaluate=True)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Return the mean of the h (Eq. 9) and the wrapped method's new clusters (Eq. 6 or 11)."""
        s = s.but(warm=put(s.warm, r.ids, torch.tensor(True))) if "warm" in s else s
        if "own" in s:  # warm-up of f
            s = s.but(own=put(s.own, r.ids, up.model))
            if r.index < self._rounds_of_warmup(r):
                return s
            ids = s.warm.nonzero().flatten()  # the first clusters, of all models that were warmed up
            inside, models = r.but(stream="inner", ids=ids), Bundle(model=s.own[ids])
            inner = self.inner.aggregate(s.inside("inner"), inside, models).under("inner")
            return Bundle(model=s.model, warm=s.warm, **inner)
        s, mine = s.but(model=r.mean(up.model)), up.inside("inner")  # Eq. 9; without "inner.": warm-up of h
        # the wrapped method's own step groups clients and makes cluster models by r.group_mean: Eq. 6 or Eq. 11
        return s.but(**self.inner.aggregate(s.inside("inner"), self._inside(r), mine).under("inner")) if mine else s

    def describe(self, c: Client) -> Bundle:
        """Return the wrapped method's description of the client."""
        return self.inner.describe(c)

    def _within(self, c: Client) -> Client:
        """Return the client as the wrapped method sees it: its measures are of h + f_k (Eq. 2), or of f_k alone."""
        inside = c.inside("inner")
        if self.choose_on == "cluster":
            return inside
        seen = {field.name: getattr(inside, field.name) for field in fields(Client)}
        return _Beside(**seen, alone=inside, partner=c.logits(c.received.model))

    def client_update(self, c: Client) -> Work:
        """Train h and f, each with the other's logits added (Eqs. 5 and 8); in a warm-up one of them alone."""
        if not c.received.inside("inner"):  # warm-up: of f if "warmup" was sent, else of h
            w = yield self._alone(c) if "warmup" in c.received else Train(c.received.model)
            c.state = Bundle(own=w) if "warmup" in c.received else c.state
            return Bundle(model=w)
        inside = self._within(c)
        work, alone = self.inner.client_update(inside), self._alone(c) if "warmup" in c.received else None
        g, up = yield from train_both(c, c.received.model, work, self.order, alone=alone)
        c.state = Bundle(**inside.state.under("inner"))
        return Bundle(model=g, **up.under("inner"))

    def _alone(self, c: Client) -> Train:
        """Return the request of the warm-up of f, for the number of rounds that the server asks for, without h."""
        own = c.state.own if "own" in c.state else c.net.fresh("inner", 0)
        return for_rounds(own, int(c.received.warmup), c.training)

    def personalize(self, c: Client) -> Bundle:
        """Return h and the wrapped method's model of the client; in a warm-up the one that is trained."""
        if not c.received.inside("inner"):
            return Bundle(alone=self._alone(c).start if "warmup" in c.received else c.received.model)
        b = ready(self.inner.personalize(self._within(c)))
        return Bundle(model=c.received.model, **b.under("inner"), **({"cluster": b.cluster} if "cluster" in b else {}))

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the wrapped method's views, each with h added."""
        seen = views_of(self.inner, self._within(c)) if c.received.inside("inner") else {}
        return {name: Bundle(model=c.received.model, **b.under("inner")) for name, b in seen.items()}

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        """Return the sum of the logits of h and f, ``[B, C]``; in a warm-up those of the one model."""
        return net(b.alone, x) if "alone" in b else net(b.model, x) + self.inner.predict(net, b.inside("inner"), x)

    @property
    def can(self) -> tuple[Capability, ...]:
        """What the wrapped method can do, with h added."""
        total = "" if self.warmup is not None else "its warm-up, where not set, is 3 of 10 rounds"
        needs, presets = needs_of(self.inner), {"paper": {"training": _TABLES}}  # around others than the paper's
        stated: list[Capability] = [
            RobustMeans(),
            Views(CAM._views),
            replace(needs, total=needs.total or total),
            Presets(_PRESETS.get(type(self.inner).__name__, presets)),
        ]
        for one in self.inner.can:
            if isinstance(one, Uploads):
                shown = "its copies of a global and a cluster model, and what the wrapped method shows"
                stated.append(replace(one.inside(), reveals=shown))
            elif isinstance(one, Asks):
                stated.append(self._asks(one))
            elif isinstance(one, Grouped):
                stated.append(one.inside(CAM._inside))
            elif isinstance(one, Logs):
                stated.append(one.inside())
        return tuple(stated)


# ---- round and client as the wrapped method sees them ---------------------------------------------------------------
@dataclass(frozen=True)
class _Damped(Round):
    """A round in which a cluster model moves by its members' share of the participants' samples (Eq. 6)."""

    def group_mean(self, rows: Tensor, group: Tensor, otherwise: Tensor) -> Tensor:
        return moved_by_share(self, super().group_mean(rows, group, otherwise), group, otherwise)


@dataclass(kw_only=True)
class _Beside(Client):
    """A client that measures every model together with h: the logits of both are added (Eq. 2).

    Attributes:
        alone: the same client, measuring single models.
        partner: logits of h on the training data ``[n, C]``.
    """

    alone: Client
    partner: Tensor

    def logits(self, w: Tensor) -> Tensor:
        return self.alone.logits(w) + self.partner

    def features(self, w: Tensor) -> Tensor:
        return self.alone.features(w)


# ---- training of two models whose logits add up ---------------------------------------------------------------------


def train_both(c: Client, h: Tensor, work: Work, order: Order, *, alone: Train | None = None) -> Both:
    """Train two models, each with the other's logits added: for ``yield from`` in a client's program.

    Eq. 5 of the paper trains the cluster model f next to h, Eq. 8 the global model h next to f. The partner is
    fixed, so its logits on the training data are computed once. Simultaneous: both partners are as they were received.
    Otherwise the second model is trained next to the trained first.

    Args:
        c: the client, whose logits are those of one model.
        h: the global model ``[P]``.
        work: the program that trains the cluster model f; it asks for one training.
        order: which model is trained first.
        alone: carried out instead of what the program asks for, without a partner; h is then trained next to it.

    Returns:
        The trained h and what the program returned.

    Raises:
        MethodError: the program asks for more than one training, or trains by a custom loss, to which a partner's
            logits cannot be added.
    """
    f = first(work)
    if f.loss is not cross_entropy:
        name = getattr(f.loss, "__name__", str(f.loss))
        raise MethodError(f"a method that trains by {name} cannot be wrapped; the wrapped one must use cross-entropy")
    if alone is not None:
        w = yield alone
        g = yield Train(h).add_logits(c.logits(w))  # Eq. 8
    elif order == "simultaneous":  # Eqs. 8 and 5
        g, w = yield (Train(h).add_logits(c.logits(f.start)), f.add_logits(c.logits(h)))
    elif order == "cluster-first":
        w = yield f.add_logits(c.logits(h))  # Eq. 5
        g = yield Train(h).add_logits(c.logits(w))  # Eq. 8
    else:
        g = yield Train(h).add_logits(c.logits(f.start))  # Eq. 8
        w = yield f.add_logits(c.logits(g))  # Eq. 5
    return g, finish(work, w)


def for_rounds(start: Tensor, rounds: int, training: Training) -> Train:
    """Return one request for as much training from ``start [P]`` as the run asks for in ``rounds`` rounds."""
    if training.steps is not None:
        return Train(start, steps=rounds * training.steps)
    return Train(start, epochs=rounds * training.epochs)
