"""What holds for all tests."""

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import Settings, digest, table_of
from fedkin.report import charts

CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

# the same examples in every run: a change is to blame for a failure, not a draw
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests over real sockets are not even imported where their marker excludes all of them."""
    return True if collection_path.name == "hosts" and "not hosts" in str(config.option.markexpr) else None


def pytest_collection_finish() -> None:
    """Leaves packages and collected tests out of every later search for garbage, of which they are nearly all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """One thread of torch: the tests' networks are so small that more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """No file is forced to the disk, which takes milliseconds each time: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written with an empty file in the place of overview.png, which takes longer than a small run."""
    monkeypatch.setattr(charts, "png", lambda *args, **more: b"")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, once for all tests of a file."""
    sync_api = pytest.importorskip("playwright.sync_api", reason='clicks need Playwright: pip install "fedkin[dev]"')
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium, or name one in the variable CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings], Path]:
    """Runs settings in memory and without interruption, once for all tests that ask for the same."""
    made: dict[str, Path] = {}

    def make(settings: Settings) -> Path:
        key = digest(table_of(settings))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("whole") / "run"
            memory = settings.but(state="memory")
            run_settings(memory, out=made[key])
        return made[key]

    return make
