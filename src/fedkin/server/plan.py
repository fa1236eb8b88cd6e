"""What a run does beside its method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import get_args

from fedkin.core import Aggregation, ConfigError, Method
from fedkin.core.cohort import cohort_size
from fedkin.core.method import Moment
from fedkin.privacy.secure_sum import LEAST


@dataclass(frozen=True)
class Plan:
    """What the loop does beside the method.

    Attributes:
        rounds: how many.
        participation: share of the joined clients that a round samples.
        eval_every: evaluate every N rounds, and in each of the last ten.
        uniform: means weigh every client the same instead of by training samples.
        bound: an upload with a number larger than this is refused.
        min_replies: a round with fewer usable uploads is abandoned: the state stays as it was.
        oversampling: factor on the number of sampled clients; the first to answer are taken.
        seed: of all random draws.
        aggregation: how means and mixtures of uploads are made, and whether the server learns sums only.
        outcomes: in the last round clients send whether each test sample was classified correctly.
        evaluate: which of a client's models is scored: see `fedkin.core.method.Moment`.
        max_share: share of a round's samples that a client can have at most, see `fedkin.server.shares`; 1: any. Only
            real hosts need it: in a simulation the numbers of samples are known.
        max_samples: an evaluation on more samples than this is refused.
    """

    rounds: int
    participation: float = 1.0
    eval_every: int = 1
    uniform: bool = False
    bound: float = 1e8
    min_replies: int = 1
    oversampling: float = 1.0
    seed: int = 0
    aggregation: Aggregation = field(default_factory=Aggregation)
    outcomes: bool = False
    evaluate: Moment = "delivered"
    max_share: float = 1.0
    max_samples: int = 10**12

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")
        if not 0 < self.participation <= 1:
            raise ConfigError(f"participation must be in (0, 1], got {self.participation}")
        if self.eval_every < 1:
            raise ConfigError(f"eval_every must be at least 1, got {self.eval_every}")
        if self.evaluate not in get_args(Moment):
            raise ConfigError(f"evaluate must be 'delivered' or 'trained', got {self.evaluate!r}")
        if not self.bound > 0:
            raise ConfigError(f"bound must be above 0, got {self.bound}")
        if self.min_replies < 1:
            raise ConfigError(f"min_replies must be at least 1, got {self.min_replies}")
        if not 1 <= self.oversampling < math.inf:
            raise ConfigError(f"oversampling must be at least 1, such as 1.3, got {self.oversampling}")
        if not 0 < self.max_share <= 1:
            raise ConfigError(f"max_share must be above 0 and at most 1, got {self.max_share}")
        if self.aggregation.secure and self.oversampling > 1:
            raise ConfigError(
                "secure aggregation needs the uploads of all who were asked, so those who answer first cannot be "
                f"chosen; leave out oversampling = {self.oversampling:g}"
            )

    def require(self, method: Method, clients: int | None = None) -> None:
        """Makes sure that a method, and a federation of a number of clients, can do what is planned.

        Raises:
            ConfigError: uploads are not merged, or cannot be hidden, as the plan would have it; too few clients.
        """
        method.require_robust(self.aggregation)
        if not self.aggregation.secure:
            return
        method.require_secure()
        if clients is not None and self.cohort(clients) < LEAST:
            raise ConfigError(
                f"secure aggregation needs at least {LEAST} uploads in a round; participation = {self.participation:g} "
                f"of {clients} clients gives {self.cohort(clients)} (on real hosts [hosts] min_clients is the number "
                "that the run waits for)"
            )

    def cohort(self, clients: int) -> int:
        """Number of answers that a round is meant to have when ``clients`` have joined."""
        return cohort_size(self.participation, clients)

    @property
    def outcomes_in(self) -> int | None:
        """The round whose evaluation sends the outcome of every test sample; None: no round does."""
        return self.rounds if self.outcomes else None

    def evaluates(self, round: int) -> bool:
        """Whether clients are evaluated after this round."""
        return round % self.eval_every == 0 or round > self.rounds - 10
