"""Refusals as data: what is written is read again, and every code has a sentence."""

from typing import get_args

import msgspec
import pytest

from fedkin.core.refusals import DIVERGING, UNUSED, Code, Reason, Refused, outside


@pytest.mark.parametrize("code", get_args(Code))
def test_every_code_has_a_sentence_and_is_read_as_it_was_written(code: Code) -> None:
    """A value without a place in the text stands at its end."""
    refused = Reason(code, "model", 7, "0 to 3").at("update", 2)
    assert "7" in str(refused)
    assert "{" not in str(refused)
    assert msgspec.json.decode(msgspec.json.encode(refused), type=Refused) == refused


def test_numbers_outside_a_range_are_a_reason() -> None:
    """NaN as well, in a form that JSON has; a host that fails says nothing of the training."""
    assert outside("cluster", 3, 0, 3) is None
    assert outside("cluster", 4, 0, 3) == Reason("out-of-range", "cluster", 4, "0 to 3")
    nan = outside("accuracy", float("nan"), 0, 1)
    assert nan == msgspec.json.decode(msgspec.json.encode(nan), type=Reason)
    assert "nan" in str(nan)
    assert DIVERGING < UNUSED
