"""What holds for all tests."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import Settings

# the same examples in every run: a change is to blame for a failure, not a draw
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """One thread of torch: the tests' networks are so small that more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings], Path]:
    """Runs settings in memory and without interruption, once for all tests that ask for the same."""
    made: dict[str, Path] = {}

    def make(settings: Settings) -> Path:
        key = settings.digest()
        if key not in made:
            made[key] = tmp_path_factory.mktemp("whole") / "run"
            memory = dataclasses.replace(settings, compute=dataclasses.replace(settings.compute, state="memory"))
            run_settings(memory, out=made[key])
        return made[key]

    return make
