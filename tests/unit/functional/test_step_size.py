"""The accumulated step size is what the library's SGD moves against a constant gradient."""

from __future__ import annotations

import pytest
from torch import Tensor

from fedkin.core import Batch, Bundle, Net, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import sgd
from fedkin.functional.step_size import accumulated_step
from toys import blobs, mlp, mlp_with_batchnorm

SETTINGS = {
    "epochs": Training(epochs=3, batch_size=5, lr=0.1),
    "steps": Training(steps=7, batch_size=5, lr=0.1),
    "momentum": Training(epochs=2, batch_size=5, lr=0.1, momentum=0.9),
    "falling": Training(epochs=3, batch_size=5, lr=0.1, epoch_decay=0.5),
    "falling by steps": Training(steps=9, batch_size=5, lr=0.1, epoch_decay=0.5, momentum=0.5),
}


def uphill(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """A loss whose gradient is 1 in every parameter."""
    return w.sum()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("samples", [1, 4, 5, 6, 11, 23])
def test_it_is_what_training_moves(name: str, samples: int) -> None:
    """With full, short and single last batches, with and without batch normalisation, which leaves single samples
    out."""
    for net in (mlp(), mlp_with_batchnorm()):
        moved = sgd(Train(net.w0, loss=uphill), blobs(samples, [1.0, 1, 1], 0), net, SETTINGS[name], generator(0))
        wanted = accumulated_step(SETTINGS[name], samples, skip_single=net.batchnorm)
        assert float((net.w0 - moved)[net.params].double().mean()) == pytest.approx(wanted, abs=1e-5)


def test_by_hand() -> None:
    """Three steps of 1/2: 3/2. Momentum 1/2: 1/2 (1 + 3/2 + 7/4) = 17/8. No samples: 0."""
    assert accumulated_step(Training(steps=3, lr=0.5), 10) == 1.5
    assert accumulated_step(Training(steps=3, lr=0.5, momentum=0.5), 10) == 17 / 8
    assert accumulated_step(Training(), 0) == 0.0
