"""Names of clients and classes on axes, and the order of clients there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SIDE = 100
"""Maximum number of rows of a map: with more clients, neighbours in its order share a row."""


def different(names: Sequence[str]) -> list[str]:
    """Return the names; repeated ones get their position, so that each stands for one row or column."""
    taken: set[str] = set()
    found = []
    for i, name in enumerate(names):
        found.append(f"{name} ({i})" if name in taken else name)
        taken.add(found[-1])
    return found


def called(count: int, names: Sequence[str]) -> list[str]:
    """Return names of a number of clients or classes, all different; the number where one has no name."""
    return different([names[i] if i < len(names) and names[i] else str(i) for i in range(count)])


def along(order: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return labels of a map's rows ``[S]``, S at most `SIDE`: clients in order, or the number that shares a row."""
    side = min(len(order), SIDE)
    if side == len(order):
        return [names[i] for i in order]
    size = len(order) / side
    return [f"{b + 1} (about {size:.0f} clients)" for b in range(side)]


def places(order: Sequence[int]) -> np.ndarray:
    """Return the row of the map of each client, int64 ``[K]``."""
    k = len(order)
    place = np.empty(k, dtype=np.int64)
    place[np.asarray(order, dtype=np.int64)] = np.arange(k) * min(k, SIDE) // max(k, 1)
    return place


def ordered(k: int, groups: Sequence[int] | None, usual: Sequence[int] | None = None) -> tuple[list[int], str]:
    """Return clients by true group, else by usual cluster, else by number; and the sentence on their order."""
    by, said = (groups, "true groups") if groups is not None else (usual, "the clusters of the last fifth of the run")
    if by is None:
        return list(range(k)), "In the order of their numbers."
    return [int(i) for i in np.argsort(padded(by, k), kind="stable")], f"In the order of {said}."


def padded(groups: Sequence[int] | None, k: int) -> np.ndarray:
    """Return groups as int ``[K]``, -1 where unknown."""
    result = np.full(k, -1)
    given = list(groups or [])[:k]
    result[: len(given)] = given
    return result
