"""Splitting of one client's samples into train, validation and test parts, and the generators of all draws of data."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from fedkin.data.checks import Indices, check_range

Parts = tuple[Indices, Indices, Indices]
"""Numbers of a client's samples for training, validation and testing."""


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """Return a generator keyed by the run's seed and the purpose of the draw, with a number where there are several."""
    text = repr((int(seed), *key)).encode()
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little"))


def check_fractions(test: float, validation: float, samples_per_client: int | None = None) -> None:
    """Raise ConfigError unless both are in [0, 1) and some samples, and some of each client, are left to train on."""
    if samples_per_client is not None:
        check_range("samples_per_client", samples_per_client, least=1)
    check_range("test", test, least=0, below=1)
    check_range("validation", validation, least=0, below=1)
    check_range("the fractions test + validation, which are not trained on, together", test + validation, below=1)


def three_parts(
    y: Indices, *, test: float, validation: float, rng: np.random.Generator, unit: Indices | None = None
) -> Parts:
    """Return the positions of the train, validation and test samples of one client: sorted, disjoint, together all.

    Stratified as far as the numbers allow: the first sample of every class is for training, the others are laid out
    so that every stretch of them holds the classes in the client's proportions, and each part takes one stretch.
    A client with three samples or more has at least one in each part that was asked for. Samples with equal numbers
    of ``unit [n]`` stay together; parts then have about the sizes asked for, as far as units allow: one of more than
    twice as many samples is for training.
    """
    label, size, member = _units(y, unit)
    order = _order(label, rng)
    train, *held = part_sizes(len(y), test, validation)
    middle = np.cumsum(size[order]) - size[order] / 2
    part = (middle >= train).astype(np.int64) + (middle >= train + held[0])
    _fit_units(part, size[order], label[order], *held)
    of_unit = np.empty(len(label), dtype=np.int64)
    of_unit[order] = part
    of_sample = of_unit[member]
    return np.flatnonzero(of_sample == 0), np.flatnonzero(of_sample == 1), np.flatnonzero(of_sample == 2)


def part_sizes(n: int, test: float, validation: float) -> tuple[int, int, int]:
    """Return how many of ``n`` samples are for training, validation and test."""
    held = {"test": math.floor(test * n + 0.5), "validation": math.floor(validation * n + 0.5)}
    if n >= 2 and test > 0:
        held["test"] = max(held["test"], 1)
    if n >= 3 and validation > 0:
        held["validation"] = max(held["validation"], 1)
    while sum(held.values()) > n - 1:  # one sample is always left to train on
        held[max(held, key=lambda part: held[part])] -= 1
    return n - sum(held.values()), held["validation"], held["test"]


def _units(y: Indices, unit: Indices | None) -> tuple[Indices, Indices, Indices]:
    """Return the label and size of each unit, and the unit that each sample belongs to."""
    if unit is None:
        return y, np.ones(len(y), dtype=np.int64), np.arange(len(y))
    _, first, member, size = np.unique(unit, return_index=True, return_inverse=True, return_counts=True)
    return y[first], size.astype(np.int64), member.astype(np.int64)


def _order(label: Indices, rng: np.random.Generator) -> Indices:
    key: npt.NDArray[np.float64] = np.empty(len(label))
    for c in np.unique(label):
        member = rng.permutation(np.flatnonzero(label == c))
        key[member[0]] = rng.random() - 1  # before everything else: trained on
        rest = len(member) - 1
        key[member[1:]] = (np.arange(rest) + rng.random()) / max(rest, 1)
    return np.argsort(key, kind="stable")


def _fit_units(part: Indices, size: Indices, label: Indices, validation: int, test: int) -> None:
    """Move units of different sizes, in place: large ones out of small parts, and one each into empty parts.

    ``part``, ``size`` and ``label`` are of each unit, in the order of `_order`; the others are the samples asked for.
    A unit of more than twice as many is moved to training, and so is the first of a class that would not be
    trained on; into an empty part comes the unit that is nearest to it in size, the last of several. As far as
    possible no class loses its last training unit. Parts of single samples have their sizes already.
    """
    if size.max(initial=1) == 1:
        return
    part[0] = 0
    first = np.unique(label, return_index=True)[1]
    part[first[~np.isin(label[first], label[part == 0])]] = 0
    part[(part == 1) & (size > 2 * validation)] = 0  # the middle of a larger unit than twice the test part is not in it
    for number, wanted, least in ((2, test, 2), (1, validation, 3)):
        if not wanted or len(part) < least or (part == number).any():
            continue
        trained = np.flatnonzero(part == 0)
        often = trained[np.bincount(label[trained])[label[trained]] > 1]
        other = np.flatnonzero(part == 3 - number)
        able = next((units for units in (often, other, trained) if len(units) > 1), other)[::-1]
        part[able[np.argmin(np.abs(size[able] - wanted))]] = number
