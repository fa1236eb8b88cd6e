"""What is not trained of a network, ``requires_grad = False``: constants outside the vector, the same everywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core import ModelError, Net
from refusals import refuses
from toys import close


def backbone(*, fixed: bool = True) -> nn.Module:
    """Batch normalisation, with and without parameters, and dropout in a part that may be fixed; then two layers."""
    first = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6, affine=False), nn.Dropout(0.5))
    made = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    for p in first.parameters():
        p.requires_grad = not fixed
    return made


class Adapted(nn.Module):
    """A fixed linear layer and a trained change of low rank, as a LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.a = nn.Linear(4, 6).requires_grad_(False), nn.Parameter(torch.randn(2, 4))
        self.b, self.fc = nn.Parameter(torch.ones(6, 2)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.base(x) + x @ self.a.T @ self.b.T).relu())


class Tied(nn.Module):
    """A fixed weight in two places, and a bias of one of them that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight
        self.one.weight.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.two(self.one(x).relu()))


@pytest.mark.parametrize(
    ("make", "fixed"),
    [
        (
            backbone,
            "0.0.weight 0.0.bias 0.1.weight 0.1.bias 0.1.running_mean 0.1.running_var 0.2.running_mean 0.2.running_var",
        ),
        (Adapted, "base.weight base.bias"),
        (Tied, "one.weight"),
    ],
)
def test_the_vector_is_what_is_trained(make: Callable[[], nn.Module], fixed: str) -> None:
    """Its logits and gradient are the module's; what is fixed is in no vector, and does not change."""
    net, x, y = Net(make, (4,), 3, seed=5), torch.randn(7, 4), torch.arange(7) % 3
    assert list(net.fixed) == fixed.split()
    assert not set(net.names) & set(net.fixed)
    before = {n: t.clone() for n, t in net.fixed.items()}
    module = make().eval()
    w = net.fresh(3)
    module.load_state_dict({**net.unflatten(w), **net.fixed}, strict=False)
    close(net(w, x), module(x))
    moved = w.clone().requires_grad_(True)
    F.cross_entropy(net(moved, x), y).backward()
    F.cross_entropy(module(x), y).backward()
    assert moved.grad is not None
    for name, g in net.unflatten(moved.grad).items():
        if name in dict(module.named_parameters()):
            close(g, module.get_parameter(name).grad)
    train = net.training()
    F.cross_entropy(train(w.clone().requires_grad_(True), x), y).backward()
    assert all(torch.equal(t, before[n]) for n, t in net.fixed.items())


def test_a_fixed_part_is_in_evaluation_mode() -> None:
    """Its dropout and batch normalisation as in evaluation, those after it as in training; one sample trains where all
    batch normalisation is fixed."""
    net = Net(backbone, (4,), 3)
    net.training()(net.w0, torch.randn(5, 4))
    (first, _, _, norm, _) = net.module.children()
    assert [m.training for m in first.children()] == [False] * 4
    assert norm.training
    alone = Net(lambda: nn.Sequential(nn.BatchNorm1d(4).requires_grad_(False), nn.Linear(4, 3)), (4,), 3)
    assert (net.batchnorm, alone.batchnorm) == (True, False)
    assert not alone.statistics


def test_what_is_fixed_is_in_no_start_and_no_part() -> None:
    """Random starts share constants, the second network has its own; layers are counted without fixed ones."""
    net = Net(Adapted, (4,), 3, seed=2)
    assert len(net.fresh(1)) == net.size == 2 * 4 + 6 * 2 + 6 * 3 + 3
    assert not torch.equal(net.second.fixed["base.weight"], net.fixed["base.weight"])
    again = Net(Adapted, (4,), 3, seed=2)
    assert torch.equal(again.fixed["base.weight"], net.fixed["base.weight"])
    net = Net(backbone, (4,), 3)
    assert int(net.top(1).sum()) == 5 * 3 + 3
    with refuses(ModelError, "the network has ['2', '3', '4']"):
        net.part("0")
    assert not net.norms[net.head].any()


def test_a_fixed_head_is_refused_and_a_frozen_module_is_trained() -> None:
    """A head that is fixed leaves nothing to send; of a module without any gradient all is trained."""
    with refuses(ModelError, "the head's '1.weight' is not trained"):
        Net(lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3).requires_grad_(False)), (4,), 3)
    net = Net(lambda: backbone(fixed=True).requires_grad_(False), (4,), 3)
    assert not net.fixed
    assert torch.equal(net.w0, Net(lambda: backbone(fixed=False), (4,), 3).w0)
