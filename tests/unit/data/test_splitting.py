"""One client's samples in three parts."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.core.errors import ConfigError
from fedkin.data.splitting import check_fractions, part_sizes, three_parts


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (4, (2, 1, 1)), (10, (7, 1, 2)), (100, (70, 10, 20))],
)
def test_sizes(n: int, expected: tuple[int, int, int]) -> None:
    """Training always has a sample; three samples give one to each part; large clients get the fractions."""
    assert part_sizes(n, test=0.2, validation=0.1) == expected


def test_stratified() -> None:
    """Every part holds the classes in the client's proportions, up to one sample."""
    y = np.repeat([0, 1, 2], [100, 50, 10])
    train, validation, test = three_parts(y, test=0.2, validation=0.1, rng=np.random.default_rng(0))
    for part, fraction in ((train, 0.7), (validation, 0.1), (test, 0.2)):
        assert np.all(np.abs(np.bincount(y[part], minlength=3) - fraction * np.array([100, 50, 10])) <= 2)
    assert sorted(np.concatenate([train, validation, test])) == list(range(160))


def test_every_class_is_trained_on() -> None:
    """A class of a single sample goes to training when there is room."""
    y = np.array([0] * 30 + [1, 2, 3])
    for seed in range(20):
        train, _, _ = three_parts(y, test=0.2, validation=0.1, rng=np.random.default_rng(seed))
        assert set(y[train]) == {0, 1, 2, 3}


def test_units_stay_together() -> None:
    """Samples of one unit are on one side of the split, and the parts have about their sizes."""
    unit = np.repeat(np.arange(40), 5)
    y = np.repeat(np.arange(40) % 2, 5)
    parts = three_parts(y, test=0.2, validation=0.1, rng=np.random.default_rng(1), unit=unit)
    assert [len(p) for p in parts] == [140, 20, 40]
    assert sum(len(set(unit[p])) for p in parts) == 40


@pytest.mark.parametrize("sizes", [[500, 100, 100, 100], [900, *[10] * 10], [400, 200, 100, 50, 50], [300, *[50] * 5]])
@pytest.mark.parametrize("labels", ["by unit", "by sample", "one"])
def test_large_units_are_trained_on(sizes: list[int], labels: str) -> None:
    """The largest recording is never the validation or the test part, and no class is moved out of training for it."""
    unit = np.repeat(np.arange(len(sizes)), sizes)
    y = {"by unit": unit % 2, "by sample": np.arange(len(unit)) % 2, "one": 0 * unit}[labels]
    for seed in range(30):
        parts = three_parts(y, test=0.2, validation=0.1, rng=np.random.default_rng(seed), unit=unit)
        train, validation, test = parts
        assert sum(map(len, parts)) == len(y)
        assert all(len(part) for part in parts)
        assert 0 in unit[train], (seed, [len(part) for part in parts])
        assert set(y[train]) == set(y)
        assert len(validation) <= 0.25 * len(y)
        assert len(test) <= 0.4 * len(y)
        assert len(set(unit[train])) + len(set(unit[validation])) + len(set(unit[test])) == len(sizes)


def test_two_units_and_one_of_each_class() -> None:
    """With two units the second is tested on; with three of three classes all parts have one."""
    two = three_parts(
        np.zeros(12, dtype=int), test=0.1, validation=0.3, rng=np.random.default_rng(0), unit=np.repeat([0, 1], [8, 4])
    )
    assert sorted(map(len, two)) == [0, 4, 8]
    assert len(two[1]) == 0
    unit = np.repeat([0, 1, 2], [6, 2, 3])
    three = three_parts(unit, test=0.2, validation=0.1, rng=np.random.default_rng(0), unit=unit)
    assert [len(part) for part in three] == [6, 3, 2] or [len(part) for part in three] == [6, 2, 3]


@pytest.mark.parametrize(("test", "validation"), [(-0.1, 0.1), (0.1, 1.0), (0.5, 0.5)])
def test_fractions_out_of_range(test: float, validation: float) -> None:
    """Fractions below 0, from 1 on, or that sum to 1, are refused."""
    with pytest.raises(ConfigError):
        check_fractions(test, validation)
