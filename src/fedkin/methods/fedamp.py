"""FedAMP and HeurFedAMP: a model per client, pulled towards a mixture in which similar models weigh more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.core import Bundle, Client, ConfigError, Download, Method, Round, Train, Work, to_all, to_each
from fedkin.core.rows import grow, put, squared_distances
from fedkin.functional.attention import attention, cosine_attention, largest_step
from fedkin.functional.linkage import cosines


@dataclass(frozen=True)
class FedAMP(Method):
    """A model per client, pulled towards a mixture in which similar models weigh more."""

    paper = "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning, AAAI 2021"
    family = "mixture"
    reveals = "its model"
    beside_training = ""
    robust = True
    secure_aggregation = False
    presets: ClassVar = {
        "flgo": {"variant": "heur", "server_step": 1e4, "step_decay": 0.1, "decay_every": 30},
        "pfllib": {"sigma": 1.0, "server_step": 1.0, "over": "participants"},
    }

    variant: Literal["distance", "heur"] = "distance"
    """Weights from distances of models (FedAMP), or from their cosines (HeurFedAMP, for deep networks)."""
    lam: float = 1.0
    """Strength of the pull, lam/(2 alpha_k) ||w - u||^2, towards the mixture u."""
    server_step: float | None = None
    """alpha_k: the others' weights are proportional to it, the pull is lam/alpha_k. Default: a step that leaves every
    client at least half of its mixture, and a pull of lam."""
    step_decay: float = 1.0
    """Factor on alpha_k after every so many rounds; less than 1 makes the pull grow."""
    decay_every: int = 30
    """Rounds from one such decay to the next."""
    sigma: float | Literal["median", "first"] = "median"
    """Scale of squared distances: a number, their median after every round, or that after the first one."""
    scale: float = 25.0
    """heur: factor on cosines; large means that only the most similar models count."""
    self_weight: float | None = None
    """heur: what a client's own model weighs in its mixture. Default: one over the number of models."""
    over: Literal["bank", "participants"] = "bank"
    """Mix the last models of all clients that have sent one, or only those of a round's participants."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("lam", at_least=0)
        self.check("step_decay", above=0, at_most=1)
        self.check("decay_every", at_least=1)
        self.check("scale", at_least=0)
        if self.server_step is not None:
            self.check("server_step", above=0)
        if self.self_weight is not None:
            self.check("self_weight", at_least=0, at_most=1)
        if not isinstance(self.sigma, str):
            self.check("sigma", above=0)
        elif self.sigma not in ("median", "first"):
            raise ConfigError(f'sigma of FedAMP must be a number above 0, "median" or "first", got {self.sigma!r}')

    def init(self, r: Round) -> Bundle:
        sigma = 0.0 if isinstance(self.sigma, str) else self.sigma  # 0: not known yet, nobody learns
        numbers = {"sigma": sigma, "step": 0.0, "guarded": 0.0, "pull": 0.0, "clamped": 0.0}
        return Bundle(
            bank=torch.empty(0, r.net.size),
            seen=torch.empty(0, dtype=torch.bool),
            near=torch.empty(0, 0, dtype=torch.float64),
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
        )

    def admit(self, s: Bundle, r: Round) -> Bundle:
        bank = grow(s.bank, len(r.roster), r.w0)
        return s.but(bank=bank, seen=grow(s.seen, len(r.roster), torch.tensor(False)), near=self._near(bank, r))

    def _near(self, bank: Tensor, r: Round) -> Tensor:
        """Squared distances, or cosines, of all pairs ``[K, K]``: of what is trained, not of running statistics."""
        trained = bank[:, r.net.params]
        return cosines(trained) if self.variant == "heur" else squared_distances(trained)

    def distribute(self, s: Bundle, r: Round) -> Download:
        xi, _, _ = self.mixture(s, r)
        pull = torch.tensor(self.lam / self._alpha(r), dtype=torch.float64)
        return to_each(model=r.mix(xi, s.bank), weights=xi) | to_all(pull=pull)

    def _alpha(self, r: Round) -> float:
        given = 1.0 if self.server_step is None else self.server_step
        return max(1e-300, float(given * self.step_decay ** ((r.index - 1) // self.decay_every)))

    def mixture(self, s: Bundle, r: Round) -> tuple[Tensor, float, bool]:
        """xi ``[m, K]``, what each last model weighs for each of ``r.ids``; the step taken; whether it was shortened.

        Who has never sent a model is in nobody's mixture but its own.
        """
        chosen = torch.zeros(len(s.seen), dtype=torch.bool)
        chosen[r.ids] = True
        a = (chosen | s.seen if self.over == "bank" else chosen).nonzero().flatten()
        others, near = s.seen[a] & ~torch.eye(len(a), dtype=torch.bool), s.near[a][:, a]
        wanted = step = self._alpha(r)
        if self.variant == "heur":
            own = 1 / (1 + others.sum(1)) if self.self_weight is None else torch.full((len(a),), self.self_weight)
            weights = cosine_attention(near, others, self.scale, own)
        else:
            others, sigma = others & (s.sigma > 0), float(s.sigma) or 1.0
            if self.server_step is None:
                wanted = sigma / 2 / max([1, *others.sum(1).tolist()])
            step = min(wanted, largest_step(near, others, sigma))  # a longer one leaves somebody less than nothing
            weights = attention(near, others, sigma, step).clamp(min=0)  # by rounding, a 0 may be -1e-16
        xi = torch.zeros(len(r.ids), len(s.seen), dtype=torch.float64)
        xi[:, a] = weights[torch.searchsorted(a, r.ids)]
        return xi, step, step < wanted

    def client_update(self, c: Client) -> Work:
        asked = float(c.received.pull)
        pull = min(asked, 0.5 / c.recipe.lr)  # at most half the way to the mixture in a step; from 2/lr on it diverges
        w = yield Train(c.state.get("model", c.w0), center=c.received.model, mu=pull)
        c.state = Bundle(model=w)
        return Bundle(model=w, pull=torch.tensor(pull), clamped=torch.tensor(float(pull < asked)))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        _, step, guarded = self.mixture(s, r)  # as it was for this round, for the log
        bank, seen = put(s.bank, r.ids, up.model), s.seen.clone()
        seen[r.ids] = True
        near, sigma = self._near(bank, r), float(s.sigma)
        if self.variant == "distance" and (self.sigma == "median" or (self.sigma == "first" and sigma == 0)):
            d = near[seen][:, seen]
            sigma = float(d[d > 0].median()) if bool((d > 0).any()) else sigma
        pull, clamped = float(up.pull.mean()), float(up.clamped.mean())
        numbers = {"sigma": sigma, "step": step, "guarded": float(guarded), "pull": pull, "clamped": clamped}
        kept = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        return Bundle(bank=bank, seen=seen, near=near, **kept)

    def deliver(self, s: Bundle, r: Round) -> Download:
        return to_all()

    def personalize(self, c: Client) -> Bundle:
        return Bundle(model=c.state.get("model", c.w0))

    def notes(self, s: Bundle) -> dict[str, float]:
        wanted = ("pull", "clamped") if self.variant == "heur" else ("sigma", "step", "guarded", "pull", "clamped")
        return {name: float(s[name]) for name in wanted}
