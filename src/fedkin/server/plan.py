"""Settings of the round loop that do not depend on the method."""

from __future__ import annotations

import math

from fedkin.capabilities.asks import sends_scores
from fedkin.capabilities.means import require_robust
from fedkin.capabilities.sums import require_secure
from fedkin.core import ConfigError, Method
from fedkin.core.settings import Aggregation, RunSettings
from fedkin.privacy.secure_sum import LEAST


class Plan(RunSettings, frozen=True):
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
    aggregation: Aggregation = Aggregation()
    outcomes: bool = False
    max_share: float = 1.0
    max_samples: int = 10**12
    metadata_epsilon: float | None = None

    def __post_init__(self) -> None:
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
