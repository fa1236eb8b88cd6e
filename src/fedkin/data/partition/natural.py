"""Natural clients, as the data came with them: hospitals, writers, subjects, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedkin.core.errors import ConfigError, PartitionError, counted
from fedkin.data.checks import Indices, is_nameless
from fedkin.data.dataset import Pool
from fedkin.data.draws import generator
from fedkin.data.partition.base import Assignment, Partition, check_at_least

_SHOWN = 5


@dataclass(frozen=True)
class Natural(Partition):
    """The clients the data came with (hospital, writer, subject, file); true groups where the source knows them."""

    name: ClassVar[str] = "natural"

    min_samples: int = 10
    """Clients with fewer samples are left out."""

    def __post_init__(self) -> None:
        check_at_least(1, min_samples=self.min_samples)

    def split(self, pool: Pool, clients: int | None, seed: int) -> Assignment:
        """Keep the natural clients; see `Partition.split`.

        ``clients`` is their maximum number, drawn at random; None keeps all.

        Where the official test part is kept apart and chosen clients have samples in it, those are their test samples;
        chosen clients without any are not tested. Samples whose client is not known are left out.
        """
        if pool.client is None:
            raise PartitionError(
                f"{pool.name} has no natural clients; name the client column or array, or use another partition"
            )
        if clients is not None and clients < 1:
            raise ConfigError(f"clients must be at least 1, got {clients}")
        ids, sizes = np.unique(pool.client[pool.client >= 0], return_counts=True)
        large = ids[sizes >= self.min_samples]
        if len(large) == 0:
            raise PartitionError(
                f"none of the {len(ids)} natural clients of {pool.name} has {self.min_samples} samples, the largest "
                f"has {sizes.max(initial=0)}; lower min_samples"
            )
        enough = large
        if clients is not None and clients < len(large):
            rng = generator(seed, "partition", self.name)
            large = np.sort(rng.choice(large, size=clients, replace=False))
        test = _own_tests(pool, large)
        return Assignment(
            train=_of_clients(pool.client, large),
            test=test,
            groups=None if pool.groups is None else pool.groups[torch.from_numpy(large)].clone(),
            names=_names_of_all(pool, large),
            notes=(
                *self._left_out(pool, ids, sizes),
                *_undrawn(pool, enough, large),
                *_nameless(pool, large),
                *_untested(pool, large, test),
                *(_untrained(pool, ids) if test is not None else ()),
            ),
        )

    def _left_out(self, pool: Pool, ids: Indices, sizes: Indices) -> tuple[str, ...]:
        small = np.flatnonzero(sizes < self.min_samples)
        if not len(small):
            return ()
        names = _names(pool, ids[small])
        shown = ", ".join(f"{name} ({sizes[i]})" for name, i in zip(names[:_SHOWN], small, strict=False))
        more = f" and {len(small) - _SHOWN} more" if len(small) > _SHOWN else ""
        who = "1 client of the data is" if len(small) == 1 else f"{len(small)} clients of the data are"
        return (
            f"{who} left out for fewer than {self.min_samples} samples: {shown}{more}. "
            "--min-samples 1 keeps all clients",
        )


def _names_of_all(pool: Pool, ids: Indices) -> tuple[str, ...] | None:
    """Return the names of clients that take part; None if they have none and their numbers are those of the data."""
    if pool.client_names is None and np.array_equal(ids, np.arange(len(ids))):
        return None
    return tuple(_names(pool, ids))


def _untrained(pool: Pool, ids: Indices) -> tuple[str, ...]:
    """Return a note on clients whose samples are all in the official test part; ``ids`` are those of the others."""
    if pool.test_client is None:
        return ()
    others, sizes = np.unique(pool.test_client[pool.test_client >= 0], return_counts=True)
    lost = ~np.isin(others, ids)
    names = _names(pool, others[lost])
    if not names:
        return ()
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    who = "1 client has" if len(names) == 1 else f"{len(names)} clients have"
    return (
        f"{who} samples in the official test part only and cannot take part: {shown} "
        f"({counted(int(sizes[lost].sum()), 'sample')}). --split pooled deals out both parts together",
    )


def _undrawn(pool: Pool, ids: Indices, drawn: Indices) -> tuple[str, ...]:
    """Return a note on clients with enough samples that the draw left out."""
    names = _names(pool, np.setdiff1d(ids, drawn))
    if not names:
        return ()
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return (
        f"{len(drawn)} of the {len(ids)} clients of the data take part, drawn at random by the seed (clients = "
        f"{len(drawn)}); left out: {shown}. Without --clients all take part",
    )


def _nameless(pool: Pool, ids: Indices) -> tuple[str, ...]:
    """Return a note on samples whose field of the client is empty."""
    assert pool.client is not None  # `Natural.split` has looked
    return tuple(
        f"{counted(int((pool.client == k).sum()), 'sample')} with an empty field where the client is named: they are "
        f"one client, '{name}', although they may be from several"
        for k, name in zip(ids, _names(pool, ids), strict=True)
        if is_nameless(name)
    )


def _of_clients(client: Indices, ids: Indices) -> tuple[Indices, ...]:
    """Return the numbers of the samples of each of these clients."""
    order = np.argsort(client, kind="stable")
    ordered = client[order]
    first, last = np.searchsorted(ordered, ids, side="left"), np.searchsorted(ordered, ids, side="right")
    return tuple(order[a:b] for a, b in zip(first, last, strict=True))


def _own_tests(pool: Pool, ids: Indices) -> tuple[Indices, ...] | None:
    if pool.test_client is None:
        return None
    tests = tuple(len(pool) + numbers for numbers in _of_clients(pool.test_client, ids))
    return tests if any(len(numbers) for numbers in tests) else None


def _untested(pool: Pool, ids: Indices, tests: tuple[Indices, ...] | None) -> tuple[str, ...]:
    """Return a note on clients without official test samples, if others have some."""
    lacking = [] if tests is None else [k for k, numbers in enumerate(tests) if not len(numbers)]
    if not lacking:
        return ()
    names = _names(pool, ids[lacking])
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    who = "1 client has" if len(names) == 1 else f"{len(names)} clients have"
    return (f"{who} no sample in the official test part and cannot be tested: {shown}",)


def _names(pool: Pool, ids: Indices) -> list[str]:
    """Return the clients' names; those without are called by their number in the data."""
    return [f"client {i}" if pool.client_names is None else pool.client_names[i] for i in ids]
