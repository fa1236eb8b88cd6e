"""What the tests over sockets share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from hostprograms import Fleet


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet that a test has to itself and may harm, not yet up."""
    made = Fleet(tmp_path)
    try:
        yield made
    finally:
        made.down()
