"""Construction of a federation from a data set and a partition."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from fedkin.core.errors import ConfigError, PartitionError, counted
from fedkin.core.grammar import converted
from fedkin.core.settings import DataSettings
from fedkin.data.checks import Indices
from fedkin.data.dataset import Dataset, Pool
from fedkin.data.federation import ClientData, Federation
from fedkin.data.partition import Assignment, Dirichlet, Natural, Partition
from fedkin.data.preparation import Preparation
from fedkin.data.splitting import Parts, check_fractions, generator, three_parts

_log = logging.getLogger("fedkin.data")


def federate(
    dataset: Dataset,
    partition: Partition | None = None,
    *,
    clients: int | None = None,
    seed: int = 0,
    test: float = 0.2,
    validation: float = 0.1,
    split: Literal["pooled", "official"] = "pooled",
    samples_per_client: int | None = None,
) -> Federation:
    """Share out a data set.

    ``pooled`` merges the official test part, if there is one, into the samples, shares all of them out and splits
    each client's into train, validation and test. ``official`` shares out the training part only; each client's test
    samples come from the official test part: of every class it trains on, the same proportion as it has of that class
    in training (at least one sample in all). Protocols with their own test rule (``dapfl``, ``natural`` where
    clients are known in both parts) keep it, and ``test`` is ignored.

    Tables are scaled by the training samples of the clients alone, and texts that no training sample has become zeros.

    Args:
        dataset: the samples.
        partition: how to share them out. Default: the clients that the data bring (`Natural`), or without any
            ``Dirichlet(0.5)``.
        clients: number of clients; None: 20, or all that the data bring.
        seed: fixes every draw; the global random state is neither used nor changed.
        test: fraction of a client's samples for testing; ignored where test samples come from elsewhere.
        validation: fraction of a client's samples (without separate test samples) for validation.
        split: use of the official test part.
        samples_per_client: maximum number of samples per client, drawn at random; separate test samples are
            not counted.

    Raises:
        PartitionError: impossible with these samples.
        ConfigError: a setting out of range.
    """
    partition = partition or (Dirichlet() if getattr(dataset, "client", None) is None else Natural())
    if not (isinstance(dataset, Dataset) and isinstance(partition, Partition)):
        raise ConfigError(
            "expected a fedkin.Dataset, such as fedkin.load('digits'), and a Partition, such as "
            f"fedkin.Dirichlet(alpha=0.5), got {type(dataset).__name__} and {type(partition).__name__}"
        )
    check_fractions(test, validation, samples_per_client)
    pool = dataset.pool(converted(split, Literal["pooled", "official"], "split"))
    assigned = partition.split(pool, clients, seed)
    _check_numbers(assigned, pool, partition.name)
    train = tuple(_capped(index, samples_per_client, seed, k) for k, index in enumerate(assigned.train))
    tests = assigned.test
    if tests is None and pool.test_y is not None:
        tests = _official_tests(train, pool, seed)
    dealer = _Dealer(dataset, seed, test, validation)
    parts = [dealer.parts(k, index, None if tests is None else tests[k]) for k, index in enumerate(train)]
    preparation = dealer.prepare(parts)
    shards = [dealer.shard(part, k, preparation) for k, part in enumerate(parts)]
    notes = (*dataset.notes, *assigned.notes, *dealer.torn(parts, partition.name))
    for note in notes:
        _log.warning("%s: %s", dataset.name, note)
    return Federation(
        clients=tuple(shards), classes=dataset.classes, name=f"{dataset.name}, {partition.name}",
        groups=None if assigned.groups is None else assigned.groups.to(torch.int64), labels=dataset.labels,
        client_names=assigned.names, preparation=preparation, notes=notes,
    )  # fmt: skip


def _check_numbers(assigned: Assignment, pool: Pool, name: str) -> None:
    """Raise `PartitionError` if a client has numbers of samples that the pool does not have."""
    there = len(pool) + (0 if pool.test_y is None else len(pool.test_y))
    for part, end, clients in (("train", len(pool), assigned.train), ("test", there, assigned.test or ())):
        for k, index in enumerate(clients):
            if (wrong := index[(index < 0) | (index >= end)]).size:
                raise PartitionError(
                    f"partition {name!r} gives client {k} the sample {wrong[0]} ({part}), expected 0 to {end - 1}"
                )


def site_client(
    dataset: Dataset, number: int, how: DataSettings, *, min_samples: int = 1
) -> tuple[ClientData, Preparation | None]:
    """Return the data of the one client whose data are here, and how its inputs were made, if that is known.

    They equal, bit for bit, ``clients[number]`` and ``preparation.of(number)`` of ``federate(everything, Natural(),
    ...)`` in a place that has the data of all clients. With ``official`` that holds where every client has an official
    test part of its own. Natural clients in the data set are not looked at.
    """
    seed = how.data_seed or 0
    check_fractions(how.test, how.validation, how.samples_per_client)
    pool = dataset.pool(how.split)
    if len(pool) < min_samples:
        raise PartitionError(
            f"{dataset.name} has {len(pool)} samples, fewer than min_samples, {min_samples}: a simulation would leave "
            "this client out; lower min_samples in [data] or do without this site"
        )
    own = None if pool.test_y is None else np.arange(len(pool), len(pool) + len(pool.test_y))
    dealer = _Dealer(dataset, seed, how.test, how.validation)
    parts = dealer.parts(number, _capped(np.arange(len(pool)), how.samples_per_client, seed, number), own)
    preparation = dealer.prepare([parts])
    return dealer.shard(parts, 0, preparation), preparation


class _Dealer:
    """Splitter of one client's samples after another into their parts."""

    def __init__(self, dataset: Dataset, seed: int, test: float, validation: float) -> None:
        self._dataset, self._seed, self._fractions = dataset, seed, (test, validation)
        self._y, self._unit = dataset.all_labels.numpy(), dataset.all_units

    def parts(self, number: int, index: Indices, tests: Indices | None) -> Parts:
        """Return the train, validation and test samples of client ``number``, who has the samples ``index``.

        A client may have test samples of its own.
        """
        test, validation = self._fractions
        unit = None if self._unit is None else self._unit[index]
        rng, fraction = generator(self._seed, "split", number), test if tests is None else 0.0
        result = three_parts(self._y[index], test=fraction, validation=validation, rng=rng, unit=unit)
        train_part, validation_part, test_part = (index[i] for i in result)
        return train_part, validation_part, test_part if tests is None else tests

    def torn(self, parts: Sequence[Parts], partition: str) -> tuple[str, ...]:
        """Return a note on test samples of a unit that another client trains on; `parts` keeps units of one together.

        Units that are numbered anew within each natural client are told apart.
        """
        if self._unit is None:
            return ()
        client = self._dataset.pool().client
        unit = self._unit if client is None else self._unit * (client.max() + 2) + client + 1
        trained = unit[np.concatenate([train for train, _, _ in parts])]
        tested = unit[np.concatenate([test for _, _, test in parts])]
        if not (count := int(np.isin(tested, trained).sum())):
            return ()
        return (
            f"{count} of {counted(len(tested), 'test sample')} are of a unit of which another client trains on other "
            f"samples, so accuracies may be too high: the partition {partition} deals single samples. --partition "
            "natural keeps the samples of a client together, and --client-column makes clients of an array: that of "
            "the units, or one that does not vary within a unit",
        )

    def prepare(self, parts: Sequence[Parts]) -> Preparation | None:
        """Return how inputs are made; only the clients' training parts are counted and averaged for it."""
        table = self._dataset.table
        return self._dataset.preparation if table is None else table.fit([train for train, _, _ in parts])

    def shard(self, parts: Parts, at: int, preparation: Preparation | None) -> ClientData:
        """Return the samples of the client who is number ``at`` among those of the preparation."""
        own = None if preparation is None else preparation.of(at)
        train, held, tested = (self._dataset.rows(part, own) for part in parts)
        return ClientData(train, held, tested)


def _capped(index: Indices, most: int | None, seed: int, client: int) -> Indices:
    if most is None or len(index) <= most:
        return index
    return np.sort(generator(seed, "cap", client).choice(index, size=most, replace=False))


def _official_tests(train: tuple[Indices, ...], pool: Pool, seed: int) -> tuple[Indices, ...]:
    """Return test samples of each client in the proportions of its training samples, of its own classes only."""
    rng, test_y = generator(seed, "official test"), pool.test_y
    assert test_y is not None  # the caller has looked
    counts = np.stack([np.bincount(pool.y[index], minlength=pool.classes) for index in train])
    shares: list[list[Indices]] = [[] for _ in train]
    for c in range(pool.classes):
        there = rng.permutation(np.flatnonzero(test_y == c))
        owned = int(counts[:, c].sum())
        if owned == 0:
            continue
        ends = np.floor(np.cumsum(counts[:, c]) / owned * len(there) + 0.5).astype(np.int64)
        for k, piece in enumerate(np.split(there, ends[:-1])):
            shares[k].append(piece)
    tests = [np.concatenate(share) for share in shares]
    for k, index in enumerate(tests):
        if len(index) == 0:  # too few samples for a share: one of its most frequent class, shared with the owner
            there = np.flatnonzero(test_y == int(counts[k].argmax()))
            tests[k] = rng.choice(there, size=min(1, len(there)), replace=False) if len(there) else there
    return tuple(len(pool) + np.sort(index) for index in tests)
