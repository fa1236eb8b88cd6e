"""FedFomo: each client mixes a few other clients' models, weighed by how much they improve on its validation data.

The method itself is `choose` (the server), `gained` and `client_update` (the client) and one line of `aggregate`,
P[k, n] += Delta_n. All other lines keep records: the clients of the uploads and, for the report, each client's
last mixture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedkin.capabilities import Logs, Needs, Presets, Uploads, Views
from fedkin.capabilities.presets import Table
from fedkin.core import Bundle, Client, Download, Method, Round, Train, Work, in_range, to_all, to_each
from fedkin.core.refusals import Reason, outside
from fedkin.core.rows import grow, mix, put
from fedkin.functional.pairs import added, key, recalled

_LARGEST = 1e6  # of a gain: a model that has diverged must not give the client that tried it a number out of bounds


_PRESETS: Table = {
    "code": {  # the authors' CIFAR-10 command, which keeps a fifth of a client's samples for validation
        "norm": "l1",
        "affinity": "normalised",
        "run": {"evaluate": "trained"},
        "training": {"epochs": 5, "batch_size": 50, "lr": 0.1, "schedule": "step@factor=0.99", "weight_decay": 1e-4},
    },
}


@dataclass(frozen=True)
class FedFomo(Method):
    """Each client mixes a few other clients' models, weighed by how much they improve on its validation data."""

    paper = "Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized FL with First Order Model Optimization, ICLR 2021"
    family = "mixture"
    tuned: ClassVar = {"peers": "int:1..8", "epsilon": "0..1"}

    peers: int = 4
    """Number of other clients' models that a participant is sent; its own model is a further candidate."""
    epsilon: float = 0.3
    """Probability, in the first round, that a place goes to a random client instead of the one that helped most."""
    epsilon_decay: float = 0.05
    """Decrease of that probability in every round."""
    norm: Literal["l2", "l1"] = "l2"
    """Distance by which a gain in loss is divided."""
    fallback: Literal["previous", "trained"] = "previous"
    """Model if no candidate improves: the one before the last local training, or the trained one."""
    affinity: Literal["raw", "normalised"] = "raw"
    """Numbers added to a client's record of others: its gains, or these divided by the absolute value of their sum."""
    pool: Literal["last-round", "bank"] = "last-round"
    """Models that may be sent: the uploads of the last round, or the newest of every client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "peers", at_least=0)
        in_range(self, "epsilon", at_least=0, at_most=1)
        in_range(self, "epsilon_decay", at_least=0)

    def init(self, r: Round) -> Bundle:
        """Return empty records of uploads, affinities and mixtures."""
        width = 1 + self.peers
        return Bundle(
            models=torch.empty(0, r.net.size),
            owner=torch.empty(0, dtype=torch.int64),  # the client of each of them
            known=torch.empty(0, dtype=torch.int64),  # pairs of clients of which something is known, ascending,
            affinity=torch.empty(0, dtype=torch.float64),  # and the gains of the first from the second's models
            sources=torch.empty(0, width, dtype=torch.int64),  # the clients of each one's last mixture, itself first,
            learned=torch.empty(0, width, dtype=torch.float64),  # and with what weight
            stuck=torch.tensor(0.0, dtype=torch.float64),  # share of the round's clients without any gain
        )

    def admit(self, s: Bundle, r: Round) -> Bundle:
        """Add the joining clients, each with affinity 0.1 to itself and a mixture of its own model alone."""
        own, itself = torch.full((len(r.ids), 1 + self.peers), -1), torch.eye(1 + self.peers, dtype=torch.float64)[0]
        own[:, 0] = r.ids
        return s.but(
            known=torch.cat([s.known, key(r.ids, r.ids)]),
            affinity=torch.cat([s.affinity, torch.full(r.ids.shape, 0.1, dtype=torch.float64)]),
            sources=put(grow(s.sources, len(r.roster), torch.full((1 + self.peers,), -1)), r.ids, own),
            learned=grow(s.learned, len(r.roster), itself),
        )

    def distribute(self, s: Bundle, r: Round) -> Download:
        """Send each participant the models chosen for it, with the ids of their clients."""
        weights = torch.zeros(len(r.ids), len(r.roster), dtype=torch.float64)
        weights.scatter_add_(1, s.sources[r.ids].clamp(min=0), s.learned[r.ids])  # as of their last participation
        return self._candidates(s, r) | to_each(weights=weights)

    def _candidates(self, s: Bundle, r: Round) -> Download:
        """Return the others' models for each of ``r.ids``, and the ids of their clients."""
        chosen = [self.choose(s, r, k) for k in r.ids.tolist()]
        width = max((len(c) for c in chosen), default=0)
        if width == 0:
            return to_all()
        places = torch.stack([torch.nn.functional.pad(c, (0, width - len(c)), value=-1) for c in chosen])
        models, owner = s.models[places.clamp(min=0)], s.owner[places.clamp(min=0)]
        models[places < 0] = 0.0
        return to_each(models=models, ids=torch.where(places < 0, -1, owner))

    def choose(self, s: Bundle, r: Round, k: int) -> Tensor:
        """Return the rows of ``s.models`` that client k is sent, at most ``peers``, never its own."""
        # each of M places: with probability eps_t any other client, else the one with the largest P[k, n] that is left
        others = (s.owner != k).nonzero().flatten()
        liked = recalled(s.known, s.affinity, key(torch.tensor(k), s.owner[others]))
        return others[greedy(liked, self.peers, self.exploration(r.index), r.client_rng(k))]

    def exploration(self, t: int) -> float:
        """Return the probability of a random client in round t = 1, 2, ..."""
        return max(0.0, self.epsilon - self.epsilon_decay * (t - 1))

    def client_update(self, c: Client) -> Work:
        """Mix own and received models by their gains, train the mixture and return it with the gains."""
        start, ids, gained = self._mixed(c)
        w = yield Train(start)
        c.state = Bundle(before=start, model=w)
        return Bundle(model=w, ids=ids, gains=gained)

    def _mixed(self, c: Client) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mixture ``[P]`` of the own model and those received; their ids and gains."""
        # theta_prev, the model before the last local training, and the client's own theta_k after it
        before, own = c.state.get("before", c.w0), c.state.get("model", c.w0)
        ids = c.received.get("ids", torch.empty(0, dtype=torch.int64))
        candidates = torch.cat([own[None], c.received.models]) if len(ids) else own[None]
        gained = self.gained(c, before, candidates, ids)
        if bool((gained > 0).any()):
            # theta_prev + sum w_n (theta_n - theta_prev) = sum w_n theta_n, where w_n = max(Delta_n, 0) over their sum
            return mix(shares(gained)[None], candidates)[0], ids, gained
        return before if self.fallback == "previous" else own, ids, gained

    def gained(self, c: Client, before: Tensor, candidates: Tensor, ids: Tensor) -> Tensor:
        """Return Delta_n = (L(theta_prev) - L(theta_n)) / ||theta_n - theta_prev|| of own and received models.

        The result is float64; 0 where there is no model (id -1) and at distance 0. L is the loss on the validation
        part; on the training part, for a client without the former.
        """
        held = replace(c, data=c.validation) if len(c.validation) else c
        there = [True, *(ids >= 0).tolist()]
        losses = [held.loss(w) if here else 0.0 for w, here in zip(candidates, there, strict=True)]
        order, trained = 1 if self.norm == "l1" else 2, c.net.params
        away = [torch.linalg.vector_norm((w - before)[trained].double(), order) for w in candidates]
        return gains(held.loss(before), torch.tensor(losses), torch.stack(away) * torch.tensor(there))

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        """Add the gains to the affinities, P[k, n] += Delta_n, and replace the uploads in the pool."""
        who = torch.cat([r.ids[:, None], up.ids], 1)
        gained = torch.where(who >= 0, up.gains, 0.0)
        size = gained.sum(1, keepdim=True).abs().clamp(min=1e-9) if self.affinity == "normalised" else 1.0
        there, pairs = who >= 0, key(r.ids[:, None], who)
        # P[k, n] += Delta_n
        known, affinity = added(s.known, s.affinity, pairs[there], (gained / size)[there])
        sources, learned = torch.full((len(who), 1 + self.peers), -1), torch.zeros(len(who), 1 + self.peers).double()
        sources[:, : who.shape[1]], learned[:, : who.shape[1]] = who, shares(gained)
        owner, models = r.ids.clone(), up.model.clone()
        if self.pool == "bank":
            kept = ~torch.isin(s.owner, owner)
            owner, models = torch.cat([s.owner[kept], owner]), torch.cat([s.models[kept], models])
        last = {"sources": put(s.sources, r.ids, sources), "learned": put(s.learned, r.ids, learned)}
        last["stuck"] = (up.gains <= 0).all(1).double().mean()
        return Bundle(models=models, owner=owner, known=known, affinity=affinity, **last)

    def _refuses(self, r: Round, up: Bundle) -> Reason | None:
        """Return a reason if an id is out of range or occurs twice."""
        ids = up.ids[up.ids != -1].tolist()
        if len(set(ids)) < len(ids):
            return Reason("duplicate", "ids", max(ids, key=ids.count))
        return next(filter(None, (outside("ids", i, 0, len(r.roster) - 1) for i in ids)), None)

    def deliver(self, s: Bundle, r: Round) -> Download:
        """Send each client the models that would be chosen for it in the next round."""
        return self._candidates(s, r.but(index=r.index + 1))  # as the next round would begin

    def personalize(self, c: Client) -> Bundle:
        """Return the mixture of the client's own model and those received."""
        return Bundle(model=self._mixed(c)[0])

    def _views(self, c: Client) -> dict[str, Bundle]:
        """Return the model after the client's last training as the view "trained"."""
        return {"trained": Bundle(model=c.state.get("model", c.w0))}

    def _numbers(self, s: Bundle) -> dict[str, float]:
        """Return the mean weight of clients' own models and the fraction of participants without any gain."""
        return {"own_weight": float(s.learned[:, 0].mean()), "stuck": float(s.stuck)}

    can = (
        Uploads(
            "its model, and how well some others' models fit its validation data",
            "how well others' models fit its validation data",
            frozenset({"scores"}),
            refuses=_refuses,
        ),
        Views(_views),
        Needs(validation=True),
        Logs(_numbers),
        Presets(_PRESETS),
    )


# ---- gains, weights and choice --------------------------------------------------------------------------------------
def gains(before: float, losses: Tensor, distances: Tensor) -> Tensor:
    """Return (before - loss) / distance of each candidate, float64 ``[a]``: its gain per unit of distance.

    0 at distance 0; within +-1e6, so that a loss which is infinite or not a number leaves a finite number, its worst
    for a candidate.

    Args:
        before: loss of the model that candidates are compared with.
        losses: of the candidates ``[a]``.
        distances: of the candidates from that model ``[a]``.
    """
    raw = (before - losses.double()) / torch.where(distances > 0, distances.double(), 1.0)
    return torch.where(distances > 0, raw, 0.0).nan_to_num(-_LARGEST).clamp(-_LARGEST, _LARGEST)


def shares(gained: Tensor) -> Tensor:
    """Return the positive gains ``[..., a]`` divided by their sum, float64; 1 for the first if there is none."""
    positive = gained.double().clamp(min=0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, positive / total, torch.eye(positive.shape[-1], dtype=torch.float64)[0])


def greedy(values: Tensor, count: int, chance: float, rng: torch.Generator) -> list[int]:
    """Return up to ``count`` different positions in ``values [n]``: each the best one left or, by chance, any one left.

    Equal values come in random order.
    """
    order = torch.randperm(len(values), generator=rng)
    left = order[values[order].argsort(descending=True, stable=True)].tolist()
    chosen: list[int] = []
    while left and len(chosen) < count:
        explores = float(torch.rand((), generator=rng)) < chance
        chosen.append(left.pop(int(torch.randint(len(left), (), generator=rng)) if explores else 0))
    return chosen
