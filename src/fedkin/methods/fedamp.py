"""FedAMP and HeurFedAMP: a model per client, pulled towards a mixture in which similar models weigh more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.capabilities import Logs, Presets, RobustMeans, Uploads
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, ConfigError, Download, Method, Round, Train, Work, in_range, to_all, to_each
from fedkin.core.rows import grow, put
from fedkin.functional.pairs import cosines_from, distances_from, median_above_zero, renewed, widened

_BLOCK = 1 << 20  # pairs of clients handled in one step


_PRESETS: Table = {
    "flgo": {"variant": "heur", "server_step": 1e4, "step_decay": 0.1, "decay_every": 30},
    "pfllib": {"sigma": 1.0, "server_step": 1.0, "over": "participants"},
}


@dataclass(frozen=True)
class FedAMP(Method):
    """A model per client, pulled towards a mixture in which similar models weigh more."""

    paper = "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning, AAAI 2021"
    family = "mixture"
    tuned = property(lambda m: {"lam": "log:0.1..10"} | ({"scale": "log:2.5..250"} if m.variant == "heur" else {}))

    variant: Literal["distance", "heur"] = "distance"
    """Weights from distances of models (FedAMP), or from their cosines (HeurFedAMP, for deep networks)."""
    lam: float = 1.0
    """Strength of the pull, lam/(2 alpha_k) ||w - u||^2, towards the mixture u."""
    server_step: float | None = None
    """alpha_k: the others' weights are proportional to it, the pull is lam/alpha_k. Default: a step that leaves every
    client at least half of its mixture, and a pull of lam."""
    step_decay: float = 1.0
    """Factor on alpha_k after every N rounds; less than 1 makes the pull grow."""
    decay_every: int = 30
    """Rounds from one such decay to the next."""
    sigma: float | Literal["median", "first"] = "median"
    """Scale of squared distances: a number, their median after every round, or that after the first one."""
    scale: float = 25.0
    """heur: factor on cosines; large means that only the most similar models count."""
    self_weight: float | None = None
    """heur: weight of a client's own model in its mixture. Default: one over the number of models."""
    over: Literal["bank", "participants"] = "bank"
    """Mix the last models of all clients that have sent one, or only those of a round's participants."""

    @property
    def title(self) -> str:
        """FedAMP, or HeurFedAMP for `variant` "heur"."""
        return "HeurFedAMP" if self.variant == "heur" else "FedAMP"

    @property
    def summary(self) -> str:
        """What the variant does in one sentence."""
        if self.variant == "heur":
            return "A model per client, pulled towards a mixture by the cosines of the models."
        return "A model per client, pulled towards a mixture in which similar models attract each other."

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "lam", at_least=0)
        in_range(self, "step_decay", above=0, at_most=1)
        in_range(self, "decay_every", at_least=1)
        in_range(self, "scale", at_least=0)
        if self.server_step is not None:
            in_range(self, "server_step", above=0)
        if self.self_weight is not None:
            in_range(self, "self_weight", at_least=0, at_most=1)
        if not isinstance(self.sigma, str):
            in_range(self, "sigma", above=0)
        elif self.sigma not in ("median", "first"):
            raise ConfigError(f'sigma of FedAMP must be a number above 0, "median" or "first", got {self.sigma!r}')

    def init(self, r: Round) -> Bundle:
        """Return an empty bank of models; sigma is unknown until models have been sent."""
        # sigma 0 stands for "not known yet": it is a median of distances between trained models, and none has been
        # sent. Until then no model enters another client's mixture, so the first participants train alone.
        sigma = 0.0 if isinstance(self.sigma, str) else self.sigma
        numbers = {"sigma": sigma, "step": 0.0, "guarded": 0.0, "pull": 0.0, "clamped": 0.0}
        s = Bundle(bank=torch.empty(0, r.net.size), seen=torch.empty(0, dtype=torch.bool))
        if self.variant == "distance":  # of all pairs: the scale is their median, the longest step looks at all rows
            s["near"] = torch.empty(0, 0, dtype=torch.float64)
        return s.but(**{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()})

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients at the common start, with their distances to all others."""
        k, bank = len(s.seen), grow(s.bank, len(r.roster), r.w0)
        s = s.but(bank=bank, seen=grow(s.seen, len(r.roster), torch.tensor(False)))
        if "near" not in s or len(r.ids) == 0:
            return s
        row = distances_from(bank[: k + 1, r.net.params], torch.tensor([k]))[
            0, :k
        ]  # joining clients are all at the start
        return s.but(near=widened(s.near, len(r.roster), row))

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant its mixture u_k = sum_j xi_kj w_j and the strength of the pull, lam / alpha_k."""
        xi = self.mixture(s, r)
        pull = torch.tensor(self.lam / self._alpha(r), dtype=torch.float64)
        return to_each(model=r.mix(xi, s.bank), weights=xi) | to_all(pull=pull)

    def _alpha(self, r: Round) -> float:
        given = 1.0 if self.server_step is None else self.server_step
        return max(1e-300, float(given * self.step_decay ** ((r.index - 1) // self.decay_every)))

    def _open(self, s: Bundle, r: Round) -> Tensor:
        """Return the clients that others may learn from, bool ``[K]``: those that have sent a model."""
        return s.seen if self.over == "bank" else torch.zeros_like(s.seen).index_fill_(0, r.ids, True) & s.seen

    def mixture(self, s: Bundle, r: Round) -> Tensor:
        """Return xi ``[m, K]``: the weight of each last model, without running statistics, for each of ``r.ids``."""
        others = others_of(r.ids, self._open(s, r))
        if self.variant == "heur":
            own = 1 / (1 + others.sum(1)) if self.self_weight is None else torch.full((len(others),), self.self_weight)
            return cosine_attention(self._cosines(s, r), others, r.ids, self.scale, own)
        step, _ = self.step(s, r)
        known = s.sigma > 0  # if not, no other is left, and any scale gives a client the weight 1 of its own model
        xi = attention(s.near[r.ids], others & known, r.ids, float(s.sigma) or 1.0, step)
        return xi.clamp(min=0)  # by rounding, a 0 may be -1e-16

    def _cosines(self, s: Bundle, r: Round) -> Tensor:
        if self.over == "bank":
            return cosines_from(s.bank[:, r.net.params], r.ids)
        out = torch.zeros(len(r.ids), len(s.seen), dtype=torch.float64)
        out[:, r.ids] = cosines_from(s.bank[r.ids][:, r.net.params], torch.arange(len(r.ids)))
        return out

    def step(self, s: Bundle, r: Round) -> tuple[float, bool]:
        """Return the step alpha_k of the weights, and whether it was shortened because an own weight was below 0.

        xi_ij = alpha_k A'(d_ij), A'(d) = exp(-d/sigma)/sigma at most 1/sigma; an own weight is 1 minus the others'.
        """
        wanted, sigma = self._alpha(r), float(s.sigma) or 1.0  # while sigma is not known there is no other to weigh
        if self.variant == "heur":
            return wanted, False
        may_teach = self._open(s, r)
        most = int(others_of(r.ids, may_teach).sum(1).max()) if len(r.ids) and float(s.sigma) else 0
        if self.server_step is None:
            wanted = sigma / 2 / max(1, most)  # the others' weights sum to at most 1/2
        if wanted * most <= sigma:  # ... to at most 1, as no slope A' is above 1 / sigma
            return wanted, False
        rows = may_teach.index_fill(0, r.ids, True).nonzero().flatten()
        step = min(wanted, largest_step_among(s.near, rows, may_teach, sigma))
        return step, step < wanted

    def client_update(self, c: Client) -> Work:
        """Minimise F_k(w) + pull/2 ||w - u_k||^2 from the client's own model, keep w and return it."""
        asked = float(c.received.pull)
        # at most half the way to the mixture in a step; from 2/lr on it diverges
        pull = min(asked, 0.5 / c.training.lr)
        w = yield Train(c.state.get("model", c.w0), center=c.received.model, mu=pull)
        c.state = Bundle(model=w)
        return Bundle(model=w, pull=torch.tensor(pull), clamped=torch.tensor(float(pull < asked)))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Store the participants' models and renew their distances and sigma."""
        step, guarded = self.step(s, r)  # as it was for this round, for the log
        new = s.but(bank=put(s.bank, r.ids, up.model), seen=put(s.seen, r.ids, torch.tensor(True)))
        sigma = float(s.sigma)
        if self.variant == "distance":
            new["near"] = renewed(s.near, r.ids, distances_from(new.bank[:, r.net.params], r.ids))
            if self.sigma == "median" or (self.sigma == "first" and sigma == 0):
                sigma = median_above_zero(new.near, new.seen) or sigma  # 0: fewer than two different models
        pull, clamped = float(up.pull.mean()), float(up.clamped.mean())
        numbers = {"sigma": sigma, "step": step, "guarded": float(guarded), "pull": pull, "clamped": clamped}
        return new.but(**{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()})

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send nothing: a client predicts with the model it keeps."""
        return to_all()

    def personalize(self, c: Client) -> Bundle:
        """Return the client's own model; the common start if it has never trained."""
        return Bundle(model=c.state.get("model", c.w0))

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return scale and step of the weights, the pull, and how often these had to be limited."""
        wanted = ("pull", "clamped") if self.variant == "heur" else ("sigma", "step", "guarded", "pull", "clamped")
        return {name: float(s[name]) for name in wanted}

    can = property(
        lambda m: (
            RobustMeans(),
            Uploads("its model"),
            Logs(FedAMP._numbers),
            Presets({n: p for n, p in _PRESETS.items() if p.get("variant", m.variant) == m.variant}),
        )
    )


# ---- weights from distances and from cosines ------------------------------------------------------------------------


def attention(d: Tensor, others: Tensor, me: Tensor, sigma: float, step: float) -> Tensor:
    """Return FedAMP's weights float64 ``[m, a]``, rows sum to 1.

    They are one gradient step on the sum of 1 - exp(-d/sigma).

    The own weight is what the others leave; it is negative where ``step`` is larger than `largest_step`.

    Args:
        d: squared distances of m models to a models, their own among them, ``[m, a]``.
        others: bool ``[m, a]``, row i: the clients that client i may learn from; never itself.
        me: int64 ``[m]``, the column of each client's own model.
        sigma: scale of distances, above 0.
        step: length of the gradient step (its factor of 2 is absorbed).
    """
    xi = step * _slope(d, others, sigma)
    return xi.scatter_(1, me[:, None], 1 - xi.sum(1, keepdim=True))


def largest_step(d: Tensor, others: Tensor, sigma: float) -> float:
    """Return the longest step of `attention` that leaves no client a negative own weight; infinite if none learns."""
    largest = float(_slope(d, others, sigma).sum(1).max()) if len(d) else 0.0
    return 1 / largest if largest > 0 else torch.inf


def largest_step_among(near: Tensor, ids: Tensor, may_teach: Tensor, sigma: float) -> float:
    """Return `largest_step` of the clients ``ids [n]``, in blocks of rows of ``near [K, K]``; see also `others_of`."""
    parts = ids.split(max(1, _BLOCK // max(1, len(near))))
    return min(largest_step(near[some], others_of(some, may_teach), sigma) for some in parts)


def others_of(ids: Tensor, may_teach: Tensor) -> Tensor:
    """Return the clients that each of ``ids [m]`` may learn from, bool ``[m, K]``: ``may_teach [K]`` without itself."""
    return may_teach.repeat(len(ids), 1).scatter_(1, ids[:, None], False)


def _slope(d: Tensor, others: Tensor, sigma: float) -> Tensor:
    """Return A'(d) of A(d) = 1 - exp(-d/sigma), 0 where a client may not learn."""
    return torch.where(others, torch.exp(-d.double() / sigma) / sigma, 0.0)


def cosine_attention(cos: Tensor, others: Tensor, me: Tensor, scale: float, own: Tensor) -> Tensor:
    """Return HeurFedAMP's weights float64 ``[m, a]``, rows sum to 1: ``own [m]``, the rest a softmax of scale * cos.

    A client without others to learn from keeps its own model.

    Args:
        cos: cosines of m models with a models ``[m, a]``; others, me: as in `attention`.
    """
    anybody = others.any(1, keepdim=True)
    logits = torch.where(others, scale * cos.double(), -torch.inf)
    shares = torch.where(anybody, logits, 0.0).softmax(1)
    kept = torch.where(anybody, own.double()[:, None], 1.0)
    return ((1 - kept) * shares).scatter_(1, me[:, None], kept)
