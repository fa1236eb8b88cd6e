"""What holds for all tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """One thread of torch: the tests' networks are so small that more threads only wait for each other."""
    torch.set_num_threads(1)
