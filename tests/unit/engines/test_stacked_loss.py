"""Mean cross-entropy of a stack: torch's own results, to the last bit, by fewer operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value, vmap

from counted import Counted
from fedkin.core.seeds import generator
from fedkin.engines.stacked_train import MeanEntropy

Loss = Callable[[Tensor, Tensor], Tensor]


def made(clients: int, batch: int, classes: int) -> tuple[Tensor, Tensor]:
    rng = generator(0, clients, batch, classes)
    logits = 3 * torch.randn(clients, batch, classes, generator=rng)
    return logits, torch.randint(0, classes, (clients, batch), generator=rng)


def in_mode(loss: Loss) -> Loss:
    def with_mode(logits: Tensor, y: Tensor) -> Tensor:
        with MeanEntropy(y):
            return loss(logits, y)

    return with_mode


def both(loss: Loss, logits: Tensor, y: Tensor) -> tuple[Any, Any, Counter[str]]:
    """Gradients and values of a stack, without the mode and in it, and the operations in it."""
    with Counted() as counted:
        found = vmap(grad_and_value(in_mode(loss)))(logits, y)
    return vmap(grad_and_value(loss))(logits, y), found, counted.calls


@pytest.mark.parametrize(("batch", "classes"), [(10, 10), (7, 62), (1, 2), (32, 1000)])
def test_values_and_gradients_are_torchs_to_the_bit(batch: int, classes: int) -> None:
    wanted, found, calls = both(F.cross_entropy, *made(5, batch, classes))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert "where" not in calls  # of labels to leave out


OTHER: dict[str, Loss] = {
    "weights of classes": lambda x, y: F.cross_entropy(x, y, torch.arange(5.0)),
    "a class is left out": lambda x, y: F.cross_entropy(x, y, ignore_index=0),
    "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "each sample": lambda x, y: F.cross_entropy(x, y, reduction="none").square().sum(),
    "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "the older word for sum": lambda x, y: F.cross_entropy(x, y, size_average=False),
    "other labels, some left out": lambda x, y: F.cross_entropy(x, torch.where(y == 1, -100, y)),
    "pixels": lambda x, y: F.cross_entropy(x.reshape(2, 2, 5).permute(0, 2, 1), y.view(2, 2)),
    "probabilities": lambda x, y: F.cross_entropy(x, torch.eye(5)[y]),
}


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.filterwarnings("ignore:size_average and reduce args")
def test_other_losses_are_left_to_torch(name: str) -> None:
    logits, y = made(3, 4, 5)
    y[:, :2] = torch.tensor([0, 1])
    wanted, found, _ = both(OTHER[name], logits, y)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_labels_of_pixels_have_the_mean_of_all() -> None:
    logits, y = made(3, 4, 5)
    wanted, found, calls = both(F.cross_entropy, logits.view(3, 2, 2, 5).transpose(2, 3), y.view(3, 2, 2))
    assert "where" not in calls
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
