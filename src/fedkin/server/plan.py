"""Settings of the round loop that do not depend on the method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedkin.capabilities.asks import sends_scores
from fedkin.capabilities.means import require_robust
from fedkin.capabilities.sums import require_secure
from fedkin.core import Aggregation, ConfigError, Method
from fedkin.core.cohort import cohort_size
from fedkin.core.method import Moment
from fedkin.privacy.secure_sum import LEAST


@dataclass(frozen=True)
class RunSettings:
    """The run itself."""

    rounds: int = 50
    """Communication rounds."""
    participation: float = 1.0
    """Fraction of the clients that each round samples."""
    seed: int = 0
    """Seed of all random draws."""
    eval_every: int | None = None
    """Evaluate every N rounds and in each of the last ten. Default: about 25 times in a run."""
    stop_after: int | None = None
    """End the run early, after N evaluations in a row without a new maximum of the mean validation accuracy. Default:
    never."""
    evaluate: Moment = "delivered"
    """Evaluate each client's model as it would predict now, with what the server would deliver, or as it was right
    after its last local training."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in averages: its number of training samples, or the same for all."""
    dropout: float = 0.0
    """Probability that a sampled client does not reply."""
    late_joiners: str | None = None
    """Clients that join late, such as 3@50: three clients join in round 50."""
    min_replies: int = 1
    """Minimum number of usable replies; a round with fewer is abandoned and changes no model."""
    oversampling: float = 1.0
    """Factor on the number of sampled clients, such as 1.3; the first to reply are used."""

    def __post_init__(self) -> None:
        for name in ("rounds", "min_replies", "eval_every", "stop_after"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.participation <= 1:
            raise ConfigError(f"participation must be in (0, 1], got {self.participation}")
        if self.evaluate not in get_args(Moment):
            raise ConfigError(f"evaluate must be 'delivered' or 'trained', got {self.evaluate!r}")
        if self.weighting not in ("samples", "uniform"):
            raise ConfigError(f"weighting must be 'samples' or 'uniform', got {self.weighting!r}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 1 <= self.oversampling < math.inf:
            raise ConfigError(f"oversampling must be at least 1, such as 1.3, got {self.oversampling}")

    @property
    def interval(self) -> int:
        """Number of rounds from one evaluation to the next."""
        return max(1, self.rounds // 25) if self.eval_every is None else self.eval_every

    def evaluates(self, round: int) -> bool:
        """Return whether clients are evaluated after this round."""
        return round % self.interval == 0 or round > self.rounds - 10

    def cohort(self, clients: int) -> int:
        """Return the number of clients that a round samples when ``clients`` have joined."""
        return cohort_size(self.participation, clients)


@dataclass(frozen=True)
class Plan(RunSettings):
    """Settings of a run and limits on uploads, as the round loop needs them.

    Attributes:
        bound: an upload with a number larger than this is refused.
        aggregation: how means and mixtures of uploads are made, and whether the server learns sums only.
        outcomes: clients send whether each test sample was classified correctly: in the last round, or with
            ``stop_after`` in every evaluation after which the run may end.
        max_share: maximum fraction of a round's samples that a client can have, see `fedkin.server.shares`; 1: any.
            Only real hosts need it: in a simulation the numbers of samples are known.
        max_samples: an evaluation on more samples than this is refused.
        metadata_epsilon: of the noise on what clients report of themselves; None: they report it exactly.
    """

    bound: float = 1e8
    aggregation: Aggregation = field(default_factory=Aggregation)
    outcomes: bool = False
    max_share: float = 1.0
    max_samples: int = 10**12
    metadata_epsilon: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bound > 0:
            raise ConfigError(f"bound must be above 0, got {self.bound}")
        if not 0 < self.max_share <= 1:
            raise ConfigError(f"max_share must be above 0 and at most 1, got {self.max_share}")
        if self.aggregation.secure and self.oversampling > 1:
            raise ConfigError(
                "secure aggregation needs the uploads of all who were asked, so those who answer first cannot be "
                f"chosen; leave out oversampling = {self.oversampling:g}"
            )

    def sampled(self, clients: int) -> int:
        """Return the number of clients that a round asks, with those beyond `cohort`."""
        return math.ceil(self.cohort(clients) * self.oversampling - 1e-9)

    def consults(self, round: int) -> bool:
        """Return whether clients are asked (`fedkin.capabilities.Asks`) before the evaluation of this round."""
        return self.metadata_epsilon is None or round == self.rounds

    def require(self, method: Method, clients: int | None = None) -> None:
        """Check that a method, and a federation of a number of clients, can do what is planned.

        Raises:
            ConfigError: uploads are not merged, or cannot be hidden, as the plan would have it; too few clients.
        """
        require_robust(method, self.aggregation)
        if self.metadata_epsilon is not None and self.stop_after is not None and sends_scores(method) == "noisy":
            raise ConfigError(
                f"stop_after = {self.stop_after} cannot be used with metadata_epsilon = {self.metadata_epsilon:g} and "
                f"{type(method).__name__}: its clients report their choice in the last round, and a run that ends "
                "early would have none; leave out one of the two"
            )
        if clients is not None and self.min_replies > clients:
            raise ConfigError(
                f"min_replies = {self.min_replies} cannot be reached by {clients} clients: every round would be "
                "abandoned"
            )
        most = None if clients is None else min(clients, self.sampled(clients))
        if most is not None and self.min_replies > most and type(method).sample is Method.sample:
            raise ConfigError(
                f"min_replies = {self.min_replies} cannot be reached: a round samples {most} of {clients} clients, and "
                "every round would be abandoned; raise participation"
            )
        if not self.aggregation.secure:
            return
        require_secure(method)
        if clients is not None and self.cohort(clients) < LEAST:
            raise ConfigError(
                f"secure aggregation needs at least {LEAST} uploads in a round; participation = {self.participation:g} "
                f"of {clients} clients gives {self.cohort(clients)} (on real hosts [hosts] min_clients is the number "
                "that the run waits for)"
            )

    @property
    def outcomes_from(self) -> int | None:
        """The first round whose evaluation sends the outcome of every test sample; None: no round does."""
        if not self.outcomes:
            return None
        return self.rounds if self.stop_after is None else min(self.rounds, self.stop_after + 1)
