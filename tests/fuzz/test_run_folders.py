"""A short part of what `make fuzz` does with run folders."""

from __future__ import annotations

import random

import pytest

from fuzz import folders  # isort: skip
import handed_on  # isort: skip - found where `folders` has searched

pytestmark = pytest.mark.usefixtures("undrawn")


def test_damaged_folders_work_or_are_refused() -> None:
    """Each command works, or ends with code 2 and one line; nothing of others is touched, and no code runs unasked."""
    assert handed_on.tries(folders.made, 0, count=30) == 30


def test_what_goes_wrong_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails otherwise is an AssertionError with seed and step, by which it is found again."""
    monkeypatch.setattr(handed_on, "main", lambda args: 1 // 0)
    with pytest.raises(AssertionError, match=r"seed 7, step 0: .*ZeroDivisionError"):
        folders.run(7, 60.0)


@pytest.mark.parametrize("harm", dict.fromkeys(handed_on.HARMS), ids=lambda harm: harm.__name__)
def test_each_kind_of_damage_changes_a_file(harm: object) -> None:
    """Nothing passes because nothing was damaged: of thirty draws most differ from what was there."""
    raw = b'{"round": 1, "a": [1, 2]}\n{"round": 2, "a": {"b": null}}\n{"round": 3}\n'
    assert sum(harm(raw, random.Random(i), ["../x"]) != raw for i in range(30)) >= 15  # type: ignore[operator]
