"""Adam and AdamW: numbers by hand, torch's optimizers, and the same on every engine and by every way to a gradient."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.capabilities.needs import needs_of
from fedkin.core import Batch, Bundle, ConfigError, Net, Samples, Train, Training
from fedkin.core.method import Method
from fedkin.core.seeds import generator
from fedkin.core.settings import Optimizer, Settings
from fedkin.engines import Stacked, Workers
from fedkin.engines.loop import batches, sgd
from fedkin.experiment.compare import Comparison
from fedkin.experiment.prepare import Experiment
from fedkin.functional.step_size import accumulated_step
from fedkin.methods import METHODS, FedFa, Safe, get_method
from fedkin.server.requirements import require
from fedkin.testing.toys import CLASSES, WIDTH, network, samples
from fedkin.testing.trial import Setting, difference, play, tensors
from folders import small
from refusals import refuses
from toys import Averaging

SCALAR = Net(lambda: nn.Sequential(nn.Linear(1, 1, bias=False)), (1,), 1)
NET = network("mlp")
ENDS = torch.zeros(NET.size, dtype=torch.bool)
ENDS[NET.head_weight], ENDS[-3:] = True, True


def quadratic(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """1/2 (w - 3)^2: from w = 1 the gradient is -2."""
    return 0.5 * (w - 3).square().sum()


@pytest.mark.parametrize(
    ("training", "request_", "path"),
    [
        # m = -.2, v = .004, and -.37, .007606: ratios 1 and (.37 / .19) / (.007606 / .001999)^.5 = .998335
        ({"optimizer": "adam"}, {}, [1.1, 1.1998335]),
        # gradients -2 + .5 and -1.9 + .55 = -1.35: ratios 1 and (.27 / .19) / (.00407025 / .001999)^.5 = .995878
        ({"optimizer": "adam", "weight_decay": 0.5}, {}, [1.1, 1.1995878]),
        # 1 * .95 + .1, then a gradient of -1.95: 1.05 * .95 + .1 (.375 / .19) / (.0077985 / .001999)^.5
        ({"optimizer": "adamw", "weight_decay": 0.5}, {}, [1.05, 1.0974260]),
        # PyTorch's decay of .01: 1 * .999 + .1, then a gradient of -1.901: 1.099 * .999 + .1 (.3701 / .19) / (...)^.5
        ({"optimizer": "adamw"}, {}, [1.099, 1.1977365]),
        ({"optimizer": "adamw", "weight_decay": 0.0}, {}, [1.1, 1.1998335]),
        # a request for another optimizer has the default of that one
        ({"optimizer": "adam"}, {"optimizer": "adamw"}, [1.099, 1.1977365]),
        ({"optimizer": "adamw"}, {"optimizer": "adam"}, [1.1, 1.1998335]),
        # a proximal term of weight 1 around 0 is in the gradient, -1 and -.8: (.17 / .19) / (.001639 / .001999)^.5
        ({"optimizer": "adam"}, {"center": torch.zeros(1), "mu": 1.0}, [1.1, 1.1988126]),
        # or a step of its own: + .1 - .1
        ({"optimizer": "adam"}, {"center": torch.zeros(1), "mu": 1.0, "prox_after": True}, [1.0, 1.0]),
        # the linear term turns the gradient round: -2 + 6 and 4 - .1
        ({"optimizer": "adam"}, {"linear": torch.tensor([6.0])}, [0.9, 0.8000740]),
        # of the first step only the sign counts, so the clip shows in the second: -.5 twice
        ({"optimizer": "adam", "clip": 0.5}, {}, [1.1, 1.2]),
        # a step size that halves after each epoch of one batch
        ({"optimizer": "adam", "epoch_decay": 0.5}, {}, [1.1, 1.14991675]),
    ],
)
def test_two_steps_by_hand(training: dict[str, Any], request_: dict[str, Any], path: list[float]) -> None:
    """From 1 on 1/2 (w - 3)^2 with step size .1: w -= .1 (m / (1 - .9^t)) / (v / (1 - .999^t))^.5."""
    data = Samples(torch.zeros(1, 1), torch.tensor([0]))
    for epochs, wanted in enumerate(path, start=1):
        run = Training(lr=0.1, epochs=epochs, **training)
        w = sgd(Train(torch.ones(1), loss=quadratic, **request_), data, SCALAR, run, generator(0))
        torch.testing.assert_close(w, torch.tensor([wanted]), rtol=0, atol=5e-7)


@pytest.mark.parametrize("gradient", ["autograd", "auto"])
@pytest.mark.parametrize("decay_biases", [True, False])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_torch_s_optimizers_give_the_same(optimizer: Optimizer, decay_biases: bool, gradient: Any) -> None:
    """Thirty steps on a network in float32; auto is passes written out, as only SGD is compiled."""
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    training = Training(
        steps=30, batch_size=5, lr=0.01, optimizer=optimizer, weight_decay=0.1, decay_biases=decay_biases
    )
    data, module = samples(0, 0, "train", 12), nn.Sequential(nn.Linear(WIDTH, 7), nn.ReLU(), nn.Linear(7, CLASSES))
    module.load_state_dict(NET.unflatten(NET.w0))
    biases = [p for p in module.parameters() if p.dim() == 1]
    matrices = [p for p in module.parameters() if p.dim() > 1]
    groups = [{"params": matrices}, {"params": biases, "weight_decay": 0.1 if decay_biases else 0.0}]
    by_torch = kind(groups, lr=0.01, weight_decay=0.1)
    for _, index in batches(12, training, generator(0), skip_single=False):
        by_torch.zero_grad()
        nn.functional.cross_entropy(module(data.x[index]), data.y[index]).backward()
        by_torch.step()
    w = sgd(Train(NET.w0), data, NET, training, generator(0), gradient=gradient)
    torch.testing.assert_close(w, NET.flatten(module), rtol=0, atol=1e-6)


# ---- engines ------------------------------------------------------------------------------------------------------
ADAPTIVE = Training(
    epochs=2, batch_size=4, lr=0.01, optimizer="adamw", weight_decay=0.1, decay_biases=False, clip=1, schedule="cosine"
)


@pytest.mark.parametrize("name", ["fedavg", pytest.param("fedrep", marks=pytest.mark.thorough)])
def test_engines_agree(name: str) -> None:
    """Processes bit for bit, stacks to float tolerance, of clients whose batches and numbers of steps differ."""
    method, setting = get_method(name), Setting(training=ADAPTIVE, dropout=0.2)
    loop = tensors(play(method, setting))
    assert difference(loop, tensors(play(method, setting, Workers(2)))) is None
    stacked = Stacked(device="cpu")
    assert difference(loop, tensors(play(method, setting, stacked)), stacked.tolerance) is None


# ---- settings -----------------------------------------------------------------------------------------------------
def test_momentum_and_the_proximal_term() -> None:
    """Momentum belongs to SGD; at its center the pull is exactly 0."""
    with refuses(ConfigError, "momentum = 0.9", "'adam'"):
        Training(optimizer="adam", momentum=0.9)
    w = torch.zeros(1)
    with refuses(ConfigError, "momentum = 0.5"):
        Train(w, momentum=0.5).training(Training(optimizer="adamw"))
    assert Train(w, momentum=0.5, optimizer="sgd").training(Training(optimizer="adamw")).momentum == 0.5
    own = Train(w, optimizer="adam").training(Training(momentum=0.9))
    assert (own.optimizer, own.momentum) == ("adam", 0.0)
    request = Train(NET.w0, loss=lambda net, w, batch, aux: 0.0 * w.sum(), center=NET.w0, mu=0.3)
    training = Training(steps=3, optimizer="adam")
    assert torch.equal(sgd(request, samples(0, 0, "train", 4), NET, training, generator(0)), NET.w0)


@dataclass(frozen=True)
class Around(Averaging, Method):
    """FedAvg that names another method and states nothing of it."""

    inner: Method = field(default_factory=lambda: get_method("scaffold"))


def test_methods_with_formulas_for_sgd_are_refused() -> None:
    """Those that divide by the length of SGD's steps, or take steps of their own; inside another method as well."""

    def refused(method: Method) -> bool:
        try:
            require(Settings().but(optimizer="adam"), method)
        except ConfigError:
            return True
        return False

    assert {name for name in METHODS if refused(get_method(name))} == {
        "scaffold", "fednova", "per-fedavg", "pfedme", "fedfa",
    }  # fmt: skip
    assert refused(Safe(inner=get_method("scaffold")))
    assert refused(Around())  # which itself has no need
    assert not refused(FedFa(client_momentum=0.0))
    require(Settings(), get_method("scaffold"))
    with refuses(ConfigError, "SCAFFOLD", "'adamw'"):
        Comparison(("scaffold",), base=Settings().but(training=Training(optimizer="adamw")))
    with refuses(ConfigError, "SCAFFOLD", "'adam'"):
        Experiment.on_hosts(
            small("scaffold", training={"optimizer": "adam"}), SimpleNamespace(shape=(6,), classes=3), "run"
        )
    with refuses(ConfigError, "adam"):
        accumulated_step(Training(optimizer="adam"), 10)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in METHODS if not needs_of(get_method(name)).sgd])
def test_every_other_method_trains_by_adam(name: str) -> None:
    """Two rounds in which the optimizer makes a difference, with finite numbers."""
    training = Training(epochs=1, batch_size=4, lr=0.01)
    setting = Setting(training=training)
    plain = tensors(play(get_method(name), setting, stop=2))
    adaptive = tensors(play(get_method(name), replace(setting, training=training.but(optimizer="adam")), stop=2))
    assert difference(plain, adaptive) is not None
    assert all(bool(t.isfinite().all()) for n, t in adaptive.items() if "state" in n and t.is_floating_point())


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_what_stands_still_keeps_its_bits(optimizer: Optimizer) -> None:
    training = Training(steps=4, batch_size=4, lr=0.1, optimizer=optimizer, weight_decay=0.1)
    request = Train(NET.fresh(1), only=ENDS, center=torch.ones(NET.size), mu=1.0, linear=torch.ones(NET.size))
    w = sgd(request, samples(0, 0, "train", 9), NET, training, generator(0))
    assert torch.equal(w[~ENDS], request.start[~ENDS])
    assert not bool((w[ENDS] == request.start[ENDS]).any())
    norm = network("norm without dropout")
    one, data = Training(steps=1, batch_size=8, lr=0.1), samples(0, 0, "train", 8)
    plain = sgd(Train(norm.w0), data, norm, one, generator(0))
    pulled = sgd(Train(norm.w0, optimizer=optimizer, weight_decay=0.5), data, norm, one, generator(0))
    assert torch.equal(plain[norm.buffers], pulled[norm.buffers])


def test_the_proximal_term_is_exactly_0_at_its_center() -> None:
    """A loss without slope leaves the start as it is, bit for bit; of rounding of .3 w - .3 w Adam would make steps."""
    request = Train(NET.w0, loss=lambda net, w, batch, aux: 0.0 * w.sum(), center=NET.w0, mu=0.3)
    training = Training(steps=3, optimizer="adam")
    assert torch.equal(sgd(request, samples(0, 0, "train", 4), NET, training, generator(0)), NET.w0)
