"""Fed-CAM: a global model and a cluster model whose outputs add up, around any clustered method."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.core import Bundle, Client, Download, Method, Net, Round, Train, Work, to_all, to_each
from fedkin.core.rows import grow, put


@dataclass(frozen=True)
class CAM(Method):
    """A global and a cluster model whose logits add up; the clusters are those of the wrapped method."""

    paper = (
        "Ma, Zhou, Long, Jiang, Zhang: Structured Federated Learning through Clustered Additive Modeling, NeurIPS 2023"
    )

    inner: Method
    """The clustered method that is wrapped."""
    warmup: int | None = None
    """Rounds before both models are trained together, counted in the run. Default: 3 of 10, as in the paper."""
    warmup_of: Literal["global", "cluster"] = "global"
    """What the warm-up trains: the global model by FedAvg, or a cluster model on each client alone."""
    order: Literal["simultaneous", "cluster-first", "global-first"] = "simultaneous"
    """Which of the two models a client trains first; each is trained with the other's output added."""
    update: Literal["damped", "mean"] = "damped"
    """New cluster model: moved by its members' share of all samples (Eq. 6), or their mean."""
    persist: bool = False
    """Clients go on from their own last cluster model instead of the cluster's."""

    def __post_init__(self) -> None:
        if self.warmup is not None:
            self.check("warmup", at_least=0)

    # ---- server -----------------------------------------------------------------------------------------------
    def init(self, r: Round) -> Bundle:
        s = Bundle(model=r.w0, **self.inner.init(self._inside(r)).under("inner"))
        if self.warmup_of == "global":
            return s
        own = Bundle(own=torch.empty(0, r.net.size), warm=torch.empty(0, dtype=torch.bool), formed=torch.tensor(False))
        return s.but(**own)

    def _inside(self, r: Round) -> Round:
        """The round as the wrapped method sees it: independent starts, and means by this wrapper's rule."""
        return r.but(stream="inner", damped=self.update == "damped")

    def admit(self, s: Bundle, r: Round) -> Bundle:
        s = s.but(**self.inner.admit(s.inside("inner"), self._inside(r)).under("inner"))
        if self.warmup_of == "global":
            return s
        k = len(r.roster)
        return s.but(own=grow(s.own, k, torch.zeros(r.net.size)), warm=grow(s.warm, k, torch.tensor(False)))

    def _rounds_of_warmup(self, r: Round) -> int:
        return round(0.3 * r.total) if self.warmup is None else self.warmup

    def _warming(self, s: Bundle, r: Round) -> bool:
        unformed = self.warmup_of == "cluster" and self._rounds_of_warmup(r) > 0 and not bool(s.formed)
        return r.index <= self._rounds_of_warmup(r) or unformed

    def sample(self, s: Bundle, r: Round) -> Tensor:
        return self.inner.sample(s.inside("inner"), r)

    def distribute(self, s: Bundle, r: Round) -> Download:
        if self.warmup_of == "global":
            return to_all(model=s.model) | (to_all() if self._warming(s, r) else self._clusters(s, r))
        late = self._rounds_of_warmup(r)  # a newcomer makes up for the whole warm-up at once
        if self._warming(s, r):
            return to_all(warmup=torch.tensor(1))
        cold = ~s.warm[r.ids] & (late > 0)
        return (
            to_all(model=s.model) | self._clusters(s, r) | to_each(given=cold, warmup=torch.full((len(r.ids),), late))
        )

    def _clusters(self, s: Bundle, r: Round) -> Download:
        return self.inner.distribute(s.inside("inner"), self._inside(r)).under("inner")

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        if "own" in up:  # warm-up of cluster models: the last round's end groups everybody who has one
            warm = put(s.warm, r.ids, torch.tensor(True))
            s = s.but(own=put(s.own, r.ids, up.own), warm=warm)
            ids = warm.nonzero().flatten()
            if r.index < self._rounds_of_warmup(r):
                return s
            inner = self.inner.aggregate(
                s.inside("inner"), self._inside(r).but(ids=ids, damped=False), Bundle(model=s.own[ids])
            )
            return s.but(own=s.own * 0, formed=torch.tensor(True), **inner.under("inner"))
        s = s.but(model=r.mean(up.model))
        if "warm" in s:
            s = s.but(warm=put(s.warm, r.ids, torch.tensor(True)))
        inside = up.inside("inner")
        return s.but(**self.inner.aggregate(s.inside("inner"), self._inside(r), inside).under("inner")) if inside else s

    def relations(self, s: Bundle, r: Round) -> Tensor | None:
        return self.inner.relations(s.inside("inner"), self._inside(r))

    # ---- client -----------------------------------------------------------------------------------------------
    def describe(self, c: Client) -> Bundle:
        return self.inner.describe(c)

    def client_update(self, c: Client) -> Work:
        if "model" not in c.received:
            w = yield self._alone(c)
            c.state = Bundle(own=w)
            return Bundle(own=w)
        if not c.received.inside("inner"):
            w = yield Train(c.received.model)
            return Bundle(model=w)
        return (yield from self._both(c))

    def _alone(self, c: Client) -> Train:
        """A cluster model trained alone, for as many rounds at once as the server asks for."""
        times, start = int(c.received.warmup), c.state.get("own", c.net.fresh("inner", 0))
        if c.recipe.steps is not None:
            return Train(start, steps=times * c.recipe.steps)
        return Train(start, epochs=times * c.recipe.epochs)

    def _both(self, c: Client) -> Work:
        """Each model trained with the other's logits added; the other stands still, so its logits are computed once."""
        h = c.received.model
        inside = c.inside("inner", offset=c.logits(h))
        work = self.inner.client_update(inside)
        asked = next(work)
        if not isinstance(asked, Train):
            raise TypeError("Fed-CAM wraps methods that train one model at a time")
        if self.persist and "own" in c.state:
            asked = asked.but(start=c.state.own)
        if "warmup" in c.received:
            f = yield self._alone(c)
            g = yield Train(h, per_sample=Bundle(offset=c.logits(f)))
        elif self.order == "simultaneous":
            g, f = yield (Train(h, per_sample=Bundle(offset=c.logits(asked.start))), _add(asked, c.logits(h)))
        elif self.order == "cluster-first":
            f = yield _add(asked, c.logits(h))
            g = yield Train(h, per_sample=Bundle(offset=c.logits(f)))
        else:
            g = yield Train(h, per_sample=Bundle(offset=c.logits(asked.start)))
            f = yield _add(asked, c.logits(g))
        up = yield from _finish(work, f, c.logits(g))
        c.state = Bundle(**inside.state.under("inner"), **({"own": f} if self.persist else {}))
        return Bundle(model=g, **up.under("inner"))

    def personalize(self, c: Client) -> Bundle:
        if not c.received.inside("inner"):
            start = c.state.get("own", c.net.fresh("inner", 0)) if "model" not in c.received else c.received.model
            return Bundle(alone=start)
        h = c.received.model
        b = self.inner.personalize(c.inside("inner", offset=c.logits(h)))
        assert isinstance(b, Bundle), "Fed-CAM wraps methods whose clients predict without further training"
        return Bundle(model=h, **b.under("inner"), **({"cluster": b.cluster} if "cluster" in b else {}))

    def predict(self, net: Net, b: Bundle, x: Tensor) -> Tensor:
        if "alone" in b:
            return net(b.alone, x)
        return net(b.model, x) + self.inner.predict(net, b.inside("inner"), x)


def _add(request: Train, logits: Tensor) -> Train:
    return request.but(per_sample=request.per_sample.but(offset=logits))


def _finish(work: Work, got: Tensor, logits: Tensor) -> Generator[Train | tuple[Train, ...], Any, Bundle]:
    """Runs the rest of a wrapped program, which mostly only returns its upload."""
    while True:
        try:
            asked = work.send(got)
        except StopIteration as end:
            return Bundle(end.value)
        got = yield _add(asked, logits) if isinstance(asked, Train) else tuple(_add(a, logits) for a in asked)
