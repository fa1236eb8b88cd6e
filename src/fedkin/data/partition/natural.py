"""Natural clients, as the data came with them: hospitals, writers, subjects, files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedkin.core.errors import PartitionError, counted
from fedkin.data.checks import Indices, check_range, is_nameless, listed
from fedkin.data.dataset import Pool
from fedkin.data.partition.base import Assignment, Partition, ranged
from fedkin.data.splitting import generator

_SHOWN = 5


@dataclass(frozen=True)
class Natural(Partition):
    """The clients the data came with (hospital, writer, subject, file); true groups where the source knows them."""

    name: ClassVar[str] = "natural"

    min_samples: int = ranged(10, least=1)
    """Clients with fewer samples are left out."""

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
        if clients is not None:
            check_range("clients", clients, least=1)
        ids, sizes = np.unique(pool.client[pool.client >= 0], return_counts=True)
        large = ids[sizes >= self.min_samples]
        if len(large) == 0:
            raise PartitionError(
                f"none of the {len(ids)} natural clients of {pool.name} has {self.min_samples} samples, the largest "
                f"has {sizes.max(initial=0)}; lower min_samples"
            )
        if clients is not None and clients < len(large):
            rng = generator(seed, "partition", self.name)
            large = np.sort(rng.choice(large, size=clients, replace=False))
        test = _own_tests(pool, large)
        unnamed = pool.client_names is None and np.array_equal(large, np.arange(len(large)))
        return Assignment(
            train=_of_clients(pool.client, large),
            test=test,
            groups=None if pool.groups is None else pool.groups[torch.from_numpy(large)].clone(),
            names=None if unnamed else _names(pool, large),
            notes=(*self._left_out(pool, ids, sizes, large), *_nameless(pool, large), *_tests(pool, ids, large, test)),
        )

    def _left_out(self, pool: Pool, ids: Indices, sizes: Indices, drawn: Indices) -> Iterator[str]:
        """Yield notes on clients that are too small, and on those that the draw left out."""
        small = sizes < self.min_samples
        if names := _names(pool, ids[small]):
            shown = listed([f"{name} ({size})" for name, size in zip(names, sizes[small], strict=True)], _SHOWN)
            who = "1 client of the data is" if len(names) == 1 else f"{len(names)} clients of the data are"
            yield (
                f"{who} left out for fewer than {self.min_samples} samples: {shown}. "
                "--partition natural@min_samples=1 keeps all clients"
            )
        if names := _names(pool, np.setdiff1d(ids[~small], drawn)):
            yield (
                f"{len(drawn)} of the {int((~small).sum())} clients of the data take part, drawn at random by the seed "
                f"(clients = {len(drawn)}); left out: {listed(names, _SHOWN)}. Without --clients all take part"
            )


def _tests(pool: Pool, ids: Indices, drawn: Indices, tests: tuple[Indices, ...] | None) -> Iterator[str]:
    """Yield notes on clients with samples in one of the two official parts only; ``ids`` are those of the first."""
    if tests is None or pool.test_client is None:
        return
    if names := _names(pool, drawn[[not len(numbers) for numbers in tests]]):
        yield f"{_have(names)} no sample in the official test part and cannot be tested: {listed(names, _SHOWN)}"
    others, sizes = np.unique(pool.test_client[pool.test_client >= 0], return_counts=True)
    lost = ~np.isin(others, ids)
    if names := _names(pool, others[lost]):
        yield (
            f"{_have(names)} samples in the official test part only and cannot take part: {listed(names, _SHOWN)} "
            f"({counted(int(sizes[lost].sum()), 'sample')}). --split pooled deals out both parts together"
        )


def _have(names: Sequence[str]) -> str:
    return "1 client has" if len(names) == 1 else f"{len(names)} clients have"


def _nameless(pool: Pool, ids: Indices) -> Iterator[str]:
    """Yield a note on samples whose field of the client is empty."""
    for k, name in zip(ids, _names(pool, ids), strict=True):
        if is_nameless(name):
            count = counted(int((pool.client == k).sum()), "sample")
            yield (
                f"{count} with an empty field where the client is named: they are one client, '{name}', although they "
                "may be from several"
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


def _names(pool: Pool, ids: Indices) -> tuple[str, ...]:
    """Return the clients' names; those without are called by their number in the data."""
    return tuple(f"client {i}" if pool.client_names is None else pool.client_names[i] for i in ids)
