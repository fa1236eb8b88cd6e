"""Clusters of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from fedkin.core import Bundle, ConfigError, Method, MethodError, Round
from fedkin.core.capability import Capability, has


@dataclass(frozen=True)
class Grouped(Capability):
    """The method groups clients.

    Attributes:
        labels: ``(method, state, round)`` -> the cluster of every client, int64 ``[K]`` (-1 = not known), or None. It
            is the cluster that the server used when the client last took part, not the one that it would choose now.
        count: the same -> number of clusters, empty ones included; None: one more than the highest label.
        of_models: the server makes clusters of uploads that consist of a ``model`` alone.
    """

    labels: Callable[[Any, Bundle, Round], Tensor | None]
    count: Callable[[Any, Bundle, Round], int] | None = None
    of_models: bool = False

    def inside(self, round: Callable[[Any, Round], Round]) -> Self:
        """Return it as a wrapper of ``inner`` has it; ``round``: how the wrapped method sees the round."""
        own, count = self, self.count

        def labels(m: Any, s: Bundle, r: Round) -> Tensor | None:
            return own.labels(m.inner, s.inside("inner"), round(m, r))

        def counted(m: Any, s: Bundle, r: Round) -> int:
            assert count is not None  # else it is not used
            return count(m.inner, s.inside("inner"), round(m, r))

        return replace(self, labels=labels, count=None if count is None else counted)


def labels_of(method: Method, s: Bundle, r: Round) -> Tensor | None:
    """Return the cluster of every client, int64 ``[K]``; None where the method groups none."""
    return None if (own := has(method, Grouped)) is None else own.labels(method, s, r)


def clusters_of(method: Method, s: Bundle, r: Round) -> tuple[Tensor | None, int]:
    """Return the cluster of every client, as `labels_of`, and the number of clusters.

    Raises:
        MethodError: a client is in a cluster beyond the last.
    """
    groups, labels = has(method, Grouped), labels_of(method, s, r)
    if groups is None or labels is None:
        return None, 0
    known = 1 + int(labels.max()) if len(labels) else 0
    count = known if groups.count is None else groups.count(method, s, r)
    if known > count:
        raise MethodError(
            f"{type(method).__name__} puts a client into cluster {known - 1}; its count of clusters says that "
            f"there are {count}, 0 to {count - 1}"
        )
    return labels, count


def require_clusters(method: Method, *, of_models: bool = False) -> None:
    """Raise `ConfigError` unless this is a clustered method.

    A clustered method is `Grouped` and, if it states its family, is of the family that gives a client the model of its
    cluster.

    Args:
        of_models: it must also be able to make clusters of models that were trained without it.
    """
    groups = has(method, Grouped)
    if groups is None or method.family not in ("", "clusters"):
        raise ConfigError(f"{type(method).__name__} is not a clustered method and cannot be wrapped as one")
    if of_models and not groups.of_models:
        raise ConfigError(
            f"{type(method).__name__} cannot group models that clients trained alone; use another warm-up"
        )
