"""What clients and classes are called on axes, and the order in which clients stand there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SIDE = 100
"""A map has no more rows than this: of more clients, neighbours in its order share a row."""


def different(names: Sequence[str]) -> list[str]:
    """The same names; those that came before with their place, so that each stands for one row or column."""
    taken: set[str] = set()
    found = []
    for i, name in enumerate(names):
        found.append(f"{name} ({i})" if name in taken else name)
        taken.add(found[-1])
    return found


def called(count: int, names: Sequence[str]) -> list[str]:
    """Names of a number of clients or classes, all different; its number where one has none."""
    return different([names[i] if i < len(names) and names[i] else str(i) for i in range(count)])


def along(order: Sequence[int], names: Sequence[str]) -> list[str]:
    """The labels of a map's rows ``[S]``, S at most `SIDE`: clients in their order, or how many share a row."""
    side = min(len(order), SIDE)
    if side == len(order):
        return [names[i] for i in order]
    size = len(order) / side
    return [f"{b + 1} (about {size:.0f} clients)" for b in range(side)]


def places(order: Sequence[int]) -> np.ndarray:
    """The row of the map that each client stands in, int64 ``[K]``."""
    k = len(order)
    place = np.empty(k, dtype=np.int64)
    place[np.asarray(order, dtype=np.int64)] = np.arange(k) * min(k, SIDE) // max(k, 1)
    return place


def ordered(k: int, groups: Sequence[int] | None, usual: Sequence[int] | None = None) -> tuple[list[int], str]:
    """Clients by their true group, else by their usual cluster, else by number; and the sentence that says which."""
    by, said = (groups, "true groups") if groups is not None else (usual, "the clusters of the last fifth of the run")
    if by is None:
        return list(range(k)), "In the order of their numbers."
    return [int(i) for i in np.argsort(padded(by, k), kind="stable")], f"In the order of {said}."


def padded(groups: Sequence[int] | None, k: int) -> np.ndarray:
    """Groups as int ``[K]``, -1 where unknown."""
    result = np.full(k, -1)
    given = list(groups or [])[:k]
    result[: len(given)] = given
    return result
