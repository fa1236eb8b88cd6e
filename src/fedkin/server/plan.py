"""Settings of the round loop that do not depend on the method."""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor

from fedkin.core.settings import Aggregation, RunSettings


class Plan(RunSettings, frozen=True):
    """Settings of a run and limits on uploads, as the round loop needs them.

    Attributes:
        bound: an upload with a number larger than this is refused.
        aggregation: how means and mixtures of uploads are made, and whether the server learns sums only.
        outcomes: clients send whether each test sample was classified correctly: in the last round, or with
            ``stop_after`` in every evaluation after which the run may end.
        max_share: maximum fraction of a round's samples that a client can have, see `fedkin.server.plan`; 1: any.
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


def limited(claimed: Tensor, most: float) -> Tensor:
    """Return the claimed numbers of samples, lowered so that none is more than a fraction ``most`` of their sum.

    The highest claims are lowered to one common number, rounded down, and no further than needed; with ``most`` = 0.5
    that is one client, which then has as many samples as all others together. ``1 / most`` clients or fewer cannot all
    be below ``most``: their claims stay, as do claims within the limit.

    Args:
        claimed: int64 ``[m]``, at least 1 each.
        most: above 0, at most 1.

    Returns:
        ``claimed`` itself if no claim is too high.
    """
    # of the decimal number that was given: 0.1 as a binary fraction is above a tenth
    share, sizes = Fraction(str(most)), sorted(claimed.tolist(), reverse=True) if most < 1 else []
    if len(sizes) * share <= 1:
        return claimed
    rest = sum(sizes)
    for lowered, size in enumerate(sizes):
        # with `lowered` clients at the number n: n = share (rest + lowered n)
        highest = share * rest / (1 - lowered * share)
        if size <= highest:
            return claimed if lowered == 0 else claimed.clamp(max=int(highest))
        rest -= size
    return claimed
