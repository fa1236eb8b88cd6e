"""Every method of the catalogue on the stacked engine gives what the loop gives, to float tolerance.

Batches, steps and their order are the same; sums are taken in another order. After three or four rounds no number may
be further from the loop's than 1e-5 (`Stacked.tolerance`), relative to its size where that is above 1; what is counted
or chosen (cohorts, clusters, counts per class) must be equal. The largest distance that was seen is 1.7e-6 (FedFomo,
which divides by small distances), for most methods it is below 2e-7.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn

from contract.test_methods import ON_ENGINES, VARIANTS
from fedkin.core import Method, Net, Samples, Training
from fedkin.core.seeds import generator
from fedkin.engines import Stacked
from fedkin.engines.stacked import StackedSession
from fedkin.methods import METHODS
from fedkin.server import Plan
from fedkin.testing import check_method
from fedkin.testing.toys import CLASSES, ClientData
from fedkin.testing.trial import Setting, difference, play, tensors
from thorough import thorough_except

CPU = Stacked(device="cpu")
ENGINES = [CPU, *([Stacked(device="cuda")] if torch.cuda.is_available() else [])]
ALONE = {"per-fedavg"} | {name for name in VARIANTS if name.startswith("per-fedavg")}  # a gradient inside the loss
ALL: dict[str, Method] = {**{name: METHODS[name]() for name in METHODS}, **VARIANTS}
EVERY_KIND = ("fedavg", "ditto", "feddyn", "fedrep", "fedrod", "fedproto", "pfedcs", "per-fedavg", "ifca-cam")
"""A method for each kind of request: plain; a proximal pull; a linear term with clipping; parts of the network with a
row for each sample; more parameters than the network has; prototypes and teachers in the loss; a gradient in it; two
requests of one client."""
OTHER_REQUESTS = [
    "fedprox@straggler_fraction=0.5",
    "ditto@coupled_steps=true",
    "apfl@adapt=round",
    "fedala@layers=2,share=0.5,mix_lr=10.0,first_epochs=2",
    "da-pfl@distance=l2,include_self=true,equal=one,prox=after",
    "fedavg-ft@part=head,tune_lr=0.05",
    "fedgh@clip=0.1",
    "fedrod@personal=hyper",
    "pfedcs@beta=4,teacher_lr=0.05,temperature=2.0",
    "per-fedavg@outer_lr=0.1,adapt_steps=0",
    "ifca-cam-eq6@warmup=0,order=cluster-first",
]
"""Settings at which clients ask for training of a kind that their method as it comes does not ask for."""

EPOCHS = Training(
    epochs=2,
    batch_size=4,
    lr=0.1,
    momentum=0.5,
    weight_decay=0.01,
    decay_biases=False,
    schedule="step@factor=0.9",
    epoch_decay=0.8,
)
STEPS = Training(steps=5, batch_size=3, lr=0.1, weight_decay=0.01)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the stacked engine said."""
    found: list[str] = []
    say = StackedSession.say

    def heard(self: StackedSession, note: str) -> None:
        found.append(note)
        say(self, note)

    monkeypatch.setattr(StackedSession, "say", heard)
    return found


def agree(method: Method, setting: Setting) -> None:
    """Asserts that a run on stacks leaves behind what it leaves on the loop; on a GPU, too, where there is one."""
    loop = tensors(play(method, setting))
    for engine in ENGINES:
        apart = difference(loop, tensors(play(method, setting, engine)), engine.tolerance)
        assert apart is None, f"{engine}: {apart}"


@pytest.mark.parametrize("name", thorough_except(ALL, [*EVERY_KIND, *OTHER_REQUESTS]))
def test_a_method_gives_the_same_on_stacks(name: str, notes: list[str]) -> None:
    """Four rounds with drop-outs, momentum, decay of weights and of step sizes."""
    agree(ALL[name], Setting(training=EPOCHS, dropout=0.2))
    assert bool(notes) == (name in ALONE)


@pytest.mark.parametrize("name", thorough_except(METHODS, EVERY_KIND))
def test_a_method_gives_the_same_on_stacks_by_steps(name: str, notes: list[str]) -> None:
    """Training counted in steps, everybody in every round, a late joiner."""
    plan = Plan(rounds=3, participation=1.0, seed=2)
    agree(METHODS[name](), Setting(training=STEPS, plan=plan, joins=[1, 1, 1, 1, 1, 2]))
    assert bool(notes) == (name in ALONE)


@pytest.mark.parametrize(
    "name", thorough_except(["fedavg", "ditto", "fedrep", "pfedcs", "fedproto", "ifca-cam"], ["ditto", "fedproto"])
)
def test_the_rules_on_engines_hold_for_stacks(name: str) -> None:
    """The contract's own runs: batch normalisation, resume, odd federations."""
    check_method(METHODS[name](), engines=[CPU], rules=ON_ENGINES)


@dataclass(frozen=True)
class Images(Setting):
    """Three rounds on small images, with a network of convolution, group norm, pooling and two linear layers."""

    training: Training = field(default_factory=lambda: Training(epochs=2, batch_size=4, lr=0.1, momentum=0.5))
    plan: Plan = field(default_factory=lambda: Plan(rounds=3, participation=0.8, seed=1))

    def network(self) -> Net:
        return Net(_convolutional, (2, 6, 6), CLASSES)


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.ReLU(),
        nn.Linear(8, CLASSES),
    )


def images(net: Net, client: int, n: int) -> Samples:
    rng = generator(7, client, n)
    return Samples(net.layout(torch.randn(n, 2, 6, 6, generator=rng)), torch.randint(0, CLASSES, (n,), generator=rng))


@pytest.mark.parametrize("name", thorough_except(METHODS, EVERY_KIND))
def test_a_method_gives_the_same_on_stacks_of_convolutions(name: str, notes: list[str]) -> None:
    """Images of clients of 13, 8, 4 and 8 samples."""
    setting = Images()
    net = setting.network()
    shards: Any = [
        ClientData(images(net, i, n), images(net, i, 3), images(net, i, 5), group=i % 2)
        for i, n in enumerate((13, 8, 4, 8))
    ]
    agree(METHODS[name](), replace(setting, shards=tuple(shards)))
    assert bool(notes) == (name in ALONE)
