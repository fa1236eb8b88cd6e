"""Meta-gradients against automatic differentiation through the inner step."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkin.core import Batch, Bundle, Net, cross_entropy
from fedkin.methods.per_fedavg import meta_gradient, meta_loss, split
from toys import blobs, close, mlp, mlp_with_batchnorm


def doubles(seed: int, n: int = 12) -> Batch:
    data = blobs(n, [1.0, 1, 1], seed)
    return Batch(data.x.double(), data.y)


def exact(net: Net, w: Tensor, parts: list[Batch], alpha: float) -> tuple[Tensor, Tensor]:
    """First-order gradient and the whole one, through the inner step, with the loss written out."""
    w = w.clone().requires_grad_()
    inner = F.cross_entropy(net(w, parts[0].x), parts[0].y)
    adapted = w - alpha * torch.autograd.grad(inner, w, create_graph=True)[0]
    outer = F.cross_entropy(net(adapted, parts[1].x), parts[1].y)
    first = torch.autograd.grad(outer, adapted, retain_graph=True)[0]
    return first, torch.autograd.grad(outer, w)[0]


@given(seed=st.integers(0, 50), alpha=st.floats(0.0, 1.0))
@settings(max_examples=15, deadline=None)
def test_both_orders_on_a_network(seed: int, alpha: float) -> None:
    """With D'' = D the Hessian-free gradient is the whole one up to delta^2; first order leaves the curvature out."""
    net, w = mlp(), mlp().w0.double()
    d, other = split(doubles(seed), 2)
    a, delta = torch.tensor(alpha, dtype=torch.float64), torch.tensor(1e-4, dtype=torch.float64)
    first, whole = exact(net, w, [d, other], alpha)
    close(meta_gradient(cross_entropy, net, w, [d, other], a), first, 1e-10)
    close(meta_gradient(cross_entropy, net, w, [d, other, d], a, delta), whole, 1e-6)


@pytest.mark.parametrize("names", [["inner_lr"], ["inner_lr", "delta"]])
def test_gradient_of_the_meta_loss(names: list[str]) -> None:
    """Differentiated by an engine it gives the direction bit for bit; w and the batch stay as they are."""
    net, data = mlp(), blobs(12, [1.0, 1, 1], 0)
    aux = Bundle(inner_lr=torch.tensor(0.3), delta=torch.tensor(1e-3)).only(names)
    w, batch = net.w0.requires_grad_(), Batch(data.x, data.y)
    (got,) = torch.autograd.grad(meta_loss(net, w, batch, aux), w)
    parts = split(batch, len(names) + 1)
    assert torch.equal(got, meta_gradient(cross_entropy, net, net.w0, parts, aux.inner_lr, aux.get("delta")))
    assert torch.equal(w.detach(), net.w0)


def test_what_a_meta_gradient_leaves_behind() -> None:
    """Running statistics of the outer pass alone; both sides of the difference drop the same units."""
    layers = lambda: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Dropout(0.5), nn.Linear(64, 3))  # noqa: E731
    net, data = Net(layers, (4,), 3), blobs(12, [1.0, 1, 1], 0)
    parts = split(Batch(data.x, data.y), 3)
    torch.manual_seed(0)
    first = meta_gradient(cross_entropy, net.training(), net.w0, parts, torch.tensor(0.1))
    torch.manual_seed(0)
    free = meta_gradient(cross_entropy, net.training(), net.w0, parts, torch.tensor(0.1), torch.tensor(1e-3))
    assert 0 < float((free - first).norm()) < 0.5 * float(first.norm())
    net, data = mlp_with_batchnorm(), blobs(12, [1.0, 1, 1], 0)
    w = net.w0
    g = meta_gradient(cross_entropy, net.training(), w, split(Batch(data.x, data.y), 2), torch.tensor(0.1))
    assert torch.equal(w[net.params], net.w0[net.params])
    assert not torch.equal(w[net.buffers], net.w0[net.buffers])
    assert not bool(g[net.buffers].any())


@given(n=st.integers(1, 40), parts=st.integers(2, 3), least=st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_split(n: int, parts: int, least: int) -> None:
    """Disjoint parts that make up the batch, as even as can be, each large enough; else the whole batch each time."""
    batch = Batch(torch.arange(float(n))[:, None], torch.arange(n))
    found = split(batch, parts, at_least=least)
    assert len(found) == parts
    assert all(torch.equal(b.x[:, 0].long(), b.y) for b in found)
    if n < parts * least:
        assert all(b is batch for b in found)
    else:
        sizes = [len(b.y) for b in found]
        assert min(sizes) >= least
        assert max(sizes) - min(sizes) <= 1
        assert torch.equal(torch.cat([b.y for b in found]), batch.y)
