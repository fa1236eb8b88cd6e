"""Run folders that grow, and the server of their page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedkin.live.server import LiveServer, address, listening
from liveruns import TOKEN


@pytest.fixture
def begun(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run folder without a round, of four planned."""

    def make(name: str, method: str = "fedavg", seed: int = 0, lr: float = 0.1, data: str = "digits") -> Path:
        place = tmp_path / name
        place.mkdir(parents=True)
        (place / "config.toml").write_text(
            f'[method]\nname = "{method}"\n[data]\ndata = "{data}"\n[training]\nlr = {lr}\n'
            f"[run]\nseed = {seed}\nrounds = 4\n"
        )
        return place

    return make


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """The address of the page of all runs in ``tmp_path``."""
    listener = listening()
    with LiveServer(listener, TOKEN, tmp_path) as server:
        # a short pause between looks at the request to end, which each test would wait for
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield address(listener, TOKEN)
        server.shutdown()
        thread.join()
