"""Settings of the round loop that do not depend on the method."""

from __future__ import annotations

from fedkin.core.settings import Aggregation, RunSettings


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

    def consults(self, round: int) -> bool:
        """Return whether clients are asked (`fedkin.capabilities.Asks`) before the evaluation of this round."""
        return self.metadata_epsilon is None or round == self.rounds

    @property
    def outcomes_from(self) -> int | None:
        """The first round whose evaluation sends the outcome of every test sample; None: no round does."""
        if not self.outcomes:
            return None
        return self.rounds if self.stop_after is None else min(self.rounds, self.stop_after + 1)
