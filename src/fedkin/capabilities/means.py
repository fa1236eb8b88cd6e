"""Robust rules of aggregation."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.core.capability import Capability


@dataclass(frozen=True)
class RobustMeans(Capability):
    """Every mean, group mean and mixture that the server makes of clients' uploads goes through ``r.mean``,
    ``r.group_mean`` and ``r.mix``, so that a run's rule of aggregation (`fedkin.core.robust`) covers all of them.

    Attributes:
        alone: `client_update` returns, and keeps, trained vectors as they come and nothing else, and `aggregate` reads
            uploads by ``r.mean`` alone. An engine may then leave uploads on its device until their mean is taken there.
    """

    alone: bool = False
