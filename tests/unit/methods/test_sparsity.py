"""The share of zeros behind a network's ReLU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkin.core import Net
from fedkin.methods.pfa import channel_shares, sparsity
from toys import close, mlp


class Calls(nn.Module):
    """Two linear maps with a function between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.head, self.between = nn.Linear(4, 5), nn.Linear(5, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.first(x)))


def net_of(module: nn.Module, shape: tuple[int, ...] = (4,), classes: int = 3) -> Net:
    return Net(lambda: module, shape, classes)


def inputs(*shape: int, n: int = 7) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(3))


def overwritten(x: Tensor) -> Tensor:
    """A ReLU whose output is then written over, as an in-place residual sum would."""
    return F.relu(x).add_(5.0)


RELUS = {
    "module": nn.ReLU(),
    "module in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "method": Tensor.relu,
    "method in place": Tensor.relu_,
    "relu6": nn.ReLU6(),
    "F.relu6": F.relu6,
    "written over": overwritten,
}


@pytest.mark.parametrize("between", RELUS.values(), ids=RELUS.keys())
def test_every_way_to_write_a_relu_is_seen(between: Callable[[Tensor], Tensor]) -> None:
    """A unit's sparsity is the share of samples at which its input to the ReLU is 0 or less."""
    module = Calls(between)
    x = inputs(4)
    with torch.no_grad():
        wanted = (module.first(x) <= 0).float().mean(0)
    net = net_of(module)
    assert 0 < float(wanted.mean()) < 1
    close(sparsity(net, net.w0, x), wanted, 1e-7)


def test_the_last_map_or_the_heads_inputs() -> None:
    """Of three ReLUs the last with maps counts; without one the head's inputs do."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip
    x = inputs(1, 8, 8)
    with torch.no_grad():
        maps = module[:4](x)
    net = net_of(module, (1, 8, 8))
    close(channel_shares(net, net.w0, x), (maps == 0).float().mean((2, 3)), 1e-7)
    close(sparsity(net, net.w0, x), (maps == 0).double().mean((0, 2, 3)), 1e-7)
    net, x = mlp(), inputs(4)
    z, _ = net.features_and_logits(net.w0, x)
    close(sparsity(net, net.w0, x), (z <= 0).double().mean(0), 1e-7)
    linear = net_of(nn.Sequential(nn.Linear(4, 3)))
    close(sparsity(linear, linear.w0, x), (x <= 0).double().mean(0), 1e-7)


def test_eval_mode() -> None:
    """Running statistics are used and stay; dropout in front does not act; the same vector twice."""
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    net, x = net_of(module), inputs(4)
    w = net.w0
    w[net.buffers] += 0.3
    before = w.clone()
    with torch.no_grad():
        pre = module[1](x)
        pre = F.batch_norm(pre, torch.full((5,), 0.3), torch.full((5,), 1.3))
    first = sparsity(net, w, x)
    close(first, (pre <= 0).double().mean(0), 1e-7)
    assert torch.equal(sparsity(net, w, x), first)
    assert torch.equal(w, before)
