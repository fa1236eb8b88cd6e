"""Errors by their class and the facts that they name, whatever the sentence around them is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refuses(kind: type[Exception], *facts: object) -> Iterator[None]:
    """Expect an error of this class whose message names the facts: values, places, columns, files, flags."""
    with pytest.raises(kind) as caught:
        yield
    assert not [fact for fact in facts if str(fact) not in str(caught.value)], str(caught.value)
