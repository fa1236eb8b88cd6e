"""The two sides of a round: all that client code and server code may touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedkin.core import robust
from fedkin.core.bundle import Bundle
from fedkin.core.errors import MethodError, ModelError
from fedkin.core.net import Net
from fedkin.core.samples import Samples
from fedkin.core.seeds import generator
from fedkin.core.settings import Aggregation, Training

_CHUNK = 256  # samples per forward pass outside training


@dataclass
class Client:
    """One client during one step: its own data, its own state and what it was sent. Nothing else can be reached.

    Attributes:
        id: the client's number.
        data: its training part, ``x [n, *shape]``, ``y [n]``.
        validation: its validation part; empty for a method that does not state that it reads it
            (`fedkin.capabilities.Needs`).
        net: the network, a pure function of a flat vector.
        training: how it trains unless a request says otherwise.
        received: what ``distribute`` sent to it.
        state: what stays on it between rounds; assign a new bundle. Committed only when its upload was aggregated.
        group: the true group of its data where the federation knows it, else -1; for reference rows only.
        choice_noise: ``(choice, of) -> the reported one`` in a run with `metadata_epsilon`, see `choice`.
    """

    id: int
    data: Samples
    validation: Samples
    net: Net
    training: Training
    received: Bundle
    state: Bundle
    seed: int = 0
    round: int = 0
    group: int = -1
    choice_noise: Callable[[int, int], int] | None = None
    _rng: torch.Generator | None = None

    @property
    def rng(self) -> torch.Generator:
        """This client's generator for this round."""
        if self._rng is None:
            self._rng = generator(self.seed, "client", self.round, self.id)
        return self._rng

    @property
    def w0(self) -> Tensor:
        """The common start of the run ``[P]``, the same on every client."""
        return self.net.w0

    def counts(self) -> Tensor:
        """Training samples per class, int64 ``[C]``; while joining a run with `metadata_epsilon`, with noise."""
        return self.data.counts(self.net.classes)

    def choice(self, chosen: int, of: int) -> int:
        """Return the choice among ``0 .. of - 1`` to report; in a run with `metadata_epsilon`, by randomised response.

        One choice in a run is covered: a host draws once, and answers later questions with the same.
        """
        return chosen if self.choice_noise is None else self.choice_noise(chosen, of)

    def logits(self, w: Tensor) -> Tensor:
        """Return logits ``[n, C]`` of the model ``w [P]`` on the training data, in evaluation mode."""
        return chunked(lambda x: self.net(w, x), self.data.x)

    def features(self, w: Tensor) -> Tensor:
        """Return the head's input ``[n, d]`` on the training data, in evaluation mode.

        Raises:
            ModelError: the head is not given one vector per sample.
        """
        features = chunked(lambda x: self.net.features_and_logits(w, x)[0], self.data.x)
        if features.dim() != 2:
            raise ModelError(
                f"features are vectors, and the head {self.net.head_name!r} is given {list(features.shape[1:])}"
            )
        return features

    def loss(self, w: Tensor) -> float:
        """Mean cross-entropy of ``w`` on the whole training part, eval mode."""
        return float(F.cross_entropy(self.logits(w), self.data.y))

    def accuracy(self, w: Tensor) -> float:
        """Share of the training part that ``w`` classifies rightly, eval mode."""
        return float((self.logits(w).argmax(1) == self.data.y).double().mean())

    def class_means(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Mean feature of each class ``[C, d]`` (zero where a class is absent) and the class counts ``[C]``."""
        z, counts = self.features(w).double(), self.counts()
        sums = torch.zeros(self.net.classes, z.shape[1], dtype=torch.float64).index_add_(0, self.data.y, z)
        return (sums / counts.clamp(min=1)[:, None]).float(), counts

    def inside(self, prefix: str) -> Client:
        """Return this client as a wrapped method sees it: what it received and keeps under ``prefix.``."""
        return replace(self, received=self.received.inside(prefix), state=self.state.inside(prefix), _rng=None)


def chunked(f: Callable[[Tensor], Tensor], x: Tensor, size: int = _CHUNK) -> Tensor:
    """``f`` over ``x`` in chunks of a number of samples, without gradient."""
    with torch.no_grad():
        return torch.cat([f(part) for part in (x.split(size) if len(x) > size else (x,))]) if len(x) else f(x)


@dataclass(frozen=True)
class Roster:
    """Clients that have joined, as the server knows them; row i is client i.

    Attributes:
        size: training samples, int64 ``[K]``.
        described: what ``describe`` said, ``[K, ...]`` each.
    """

    size: Tensor
    described: Bundle = field(default_factory=Bundle)

    def __len__(self) -> int:
        return int(self.size.shape[0])


@dataclass(frozen=True)
class Round:
    """One step of the server in one round.

    Attributes:
        index: the round, from 1; 0 before the first.
        rounds: rounds of the run; None for a method that does not state that it reads them, see `total`.
        net: the network.
        roster: the clients that have joined.
        ids: int64 ``[m]``, ascending: those the step is about (available, sampled, answered, joining).
        cohort: how many clients a round should have.
        drawn: what ``sample`` decided except the ids, row i for ``ids[i]``; in ``distribute`` and ``aggregate``.
        uniform: every client weighs the same in means, instead of by training samples.
        aggregation: how means and mixtures of clients' rows are made.
        stream: sets a wrapped method's random starts apart from its wrapper's.
        metadata_epsilon: of the noise on what clients report of themselves; None: they report it exactly.
    """

    index: int
    rounds: int | None
    net: Net
    roster: Roster
    ids: Tensor
    cohort: int = 1
    drawn: Bundle = field(default_factory=Bundle)
    seed: int = 0
    step: str = ""
    uniform: bool = False
    aggregation: Aggregation = field(default_factory=Aggregation)
    stream: str = ""
    metadata_epsilon: float | None = None

    @property
    def total(self) -> int:
        """Rounds of the run.

        Raises:
            MethodError: the method does not state that its steps depend on them.
        """
        if self.rounds is None:
            raise MethodError(
                "r.total is read, and the method does not say so; a run of it could then be made longer, although its "
                'rounds would be others. State why they depend on it: Needs(total="...") in can'
            )
        return self.rounds

    @property
    def size(self) -> Tensor:
        """Training samples of ``ids``, int64 ``[m]``."""
        return self.roster.size[self.ids]

    @property
    def weight(self) -> Tensor:
        """What each of ``ids`` weighs in a mean, float64 ``[m]``."""
        return torch.ones(len(self.ids), dtype=torch.float64) if self.uniform else self.size.double()

    @property
    def w0(self) -> Tensor:
        """The common start ``[P]``."""
        return self.net.w0

    def fresh(self, i: int) -> Tensor:
        """Return the i-th independent random start ``[P]``; ``fresh(0)`` is ``w0`` unless the method is wrapped."""
        return self.net.fresh(i) if not self.stream else self.net.fresh(self.stream, i)

    @property
    def rng(self) -> torch.Generator:
        """A generator for this step of this round; every use starts it anew."""
        return generator(self.seed, "server", self.stream, self.step, self.index)

    def client_rng(self, client: int) -> torch.Generator:
        """Return a generator for this step, this round and one client."""
        return generator(self.seed, "server", self.stream, self.step, self.index, client)

    def mean(self, rows: Tensor, weight: Tensor | None = None) -> Tensor:
        """Mean of ``rows [m, ...]`` over ``ids`` by the run's rule; by training samples, or else by ``weight [m]``."""
        return robust.mean(self.aggregation, rows, self.weight if weight is None else weight)

    def group_mean(self, rows: Tensor, group: Tensor, otherwise: Tensor) -> Tensor:
        """Mean of each group's rows ``[G, P]`` by the run's rule; an empty group keeps its row of ``otherwise``."""
        return robust.group_mean(self.aggregation, rows, self.weight, group, otherwise)

    def mix(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return mixtures ``[a, P]`` of ``rows [m, P]``, one for each row of ``weights [a, m]``, by the run's rule.

        Raises:
            MethodError: a weight is negative and the rule is not the mean.
        """
        return robust.mix(self.aggregation, weights, rows)

    def among(self, ids: Tensor) -> Round:
        """Return the same round for some of its ``ids``, ascending, with their rows of ``drawn``."""
        row = torch.searchsorted(self.ids, ids)
        return self.but(ids=ids, drawn=Bundle({name: rows[row] for name, rows in self.drawn.items()}))

    def but(self, **changes: Any) -> Round:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)
