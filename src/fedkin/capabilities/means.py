"""Robust rules of aggregation."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.core import Aggregation, ConfigError, Method
from fedkin.core.capability import Capability, has


@dataclass(frozen=True)
class RobustMeans(Capability):
    """Every mean, group mean and mixture that the server makes of clients' uploads goes through ``r.mean``,
    ``r.group_mean`` and ``r.mix``, so that a run's rule of aggregation (`fedkin.core.robust`) covers all of them.

    Attributes:
        alone: `client_update` returns, and keeps, trained vectors as they come and nothing else, and `aggregate` reads
            uploads by ``r.mean`` alone. An engine may then leave uploads on its device until their mean is taken there.
    """

    alone: bool = False


def require_robust(method: Method, aggregation: Aggregation) -> None:
    """Raise `ConfigError` unless the rule is the mean, or the method and all that it wraps have `RobustMeans`."""
    if aggregation.rule == "mean":
        return
    if has(method, RobustMeans) is None:
        raise ConfigError(
            f"the rule {aggregation.rule!r} cannot be used with {type(method).__name__}: its server does not merge "
            "uploads by means and mixtures alone; use 'mean', or another method (a custom method declares "
            "it by RobustMeans() in can)"
        )
    for value in vars(method).values():
        if isinstance(value, Method):
            require_robust(value, aggregation)
