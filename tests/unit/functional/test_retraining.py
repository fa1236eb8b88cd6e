"""Closed forms against autograd and torch's own optimiser; the papers' own numbers are among the golden tests."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedkin
from fedkin.core import ModelError, Net
from fedkin.data import Federation
from fedkin.functional.retraining import (
    as_head,
    as_matrix,
    class_gradients,
    drawn_shares,
    feature_size,
    fit,
    gradient_distance,
    matched_features,
    with_bias,
)
from refusals import refuses
from toys import close, mlp, plane_net, seeded


def problem(n: int, classes: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = seeded(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return torch.randn(classes, columns, generator=g), torch.randn(n, columns, generator=g), y


# ---- heads as matrices ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("net", [mlp(), plane_net(bias=True), plane_net(bias=False)], ids=["mlp", "bias", "no bias"])
def test_a_head_is_its_matrix(net: Net) -> None:
    """There and back bit for bit; the matrix gives the head's logits; d is the head's input."""
    head = net.w0[net.head]
    assert torch.equal(as_head(net, as_matrix(net, head)), head)
    z = torch.randn(5, feature_size(net), generator=seeded())
    close(with_bias(net, z) @ as_matrix(net, head).T, net.classify(head, z))


# ---- training ---------------------------------------------------------------------------------------------------
@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 9), batch=st.integers(1, 10), epochs=st.integers(1, 3), seed=st.integers(0, 99))
def test_fit_is_sgd(n: int, batch: int, epochs: int, seed: int) -> None:
    """The same as torch's SGD with autograd, in order, a last short batch included."""
    v, x, y = problem(n, 3, 4, seed)
    start = v.clone()
    w = nn.Parameter(v.clone())
    sgd = torch.optim.SGD([w], lr=0.3)
    for _ in range(epochs):
        for a, t in zip(x.split(batch), y.split(batch), strict=True):
            sgd.zero_grad()
            F.cross_entropy(a @ w.T, t).backward()
            sgd.step()
    close(fit(v, x, y, lr=0.3, batch=batch, epochs=epochs), w.detach(), 1e-5)
    assert torch.equal(v, start)


# ---- gradients --------------------------------------------------------------------------------------------------
@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 9), classes=st.integers(1, 4), seed=st.integers(0, 99))
def test_class_gradients_are_autograd_s(n: int, classes: int, seed: int) -> None:
    """Of the weighted sum of cross-entropies of each class; zero for a class without samples."""
    v, x, y = problem(n, classes, 3, seed)
    share = torch.rand(n, dtype=torch.float64, generator=seeded(seed))
    found = class_gradients(v, x, y, share)
    for c in range(classes):
        w = v.double().requires_grad_(True)
        losses = F.cross_entropy(x.double() @ w.T, y, reduction="none")
        close(found[c], torch.autograd.grad((share * losses * (y == c)).sum(), w)[0], 1e-5)


@settings(max_examples=30, deadline=None)
@given(y=st.lists(st.integers(0, 3), min_size=1, max_size=30), repeats=st.integers(1, 5), most=st.integers(1, 9))
def test_shares_of_draws(y: list[int], repeats: int, most: int) -> None:
    """They sum to 1 over each class; with a draw as large as the class all weigh the same; else whole draws do."""
    labels = torch.tensor(y)
    share = drawn_shares(labels, repeats, most, seeded())
    for c in set(y):
        n, mine = y.count(c), share[labels == c]
        close(mine.sum(), 1.0, 1e-12)
        if n <= most:
            close(mine, [1 / n] * n, 1e-12)
        else:
            times = mine * repeats * most
            close(times, times.round(), 1e-9)
            assert float(times.round().max()) <= repeats


# ---- matching ---------------------------------------------------------------------------------------------------
def by_autograd(v: Tensor, z: Tensor, labels: Tensor, wanted: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    """D, written down row by row, and its gradient with respect to the features."""
    z = z.clone().requires_grad_(True)
    total = torch.zeros((), dtype=z.dtype)
    d = z.shape[2]
    for f, c, g in zip(z, labels, wanted, strict=True):
        w = v.clone().requires_grad_(True)
        x = F.pad(f, (0, 1), value=1.0) if bias else f
        (got,) = torch.autograd.grad(F.cross_entropy(x @ w.T, c.expand(len(f))), w, create_graph=True)
        parts = [(got[k, :d], g[k, :d]) for k in range(len(v))] + ([(got[:, d], g[:, d])] if bias else [])
        total = total + sum(1 - (a @ b) / (a.norm() * b.norm() + 1e-6) for a, b in parts)
    return total.detach(), torch.autograd.grad(total, z)[0]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), bias=st.booleans(), classes=st.integers(2, 4), m=st.integers(1, 4))
def test_matching_follows_the_gradient_of_the_distance(seed: int, bias: bool, classes: int, m: int) -> None:
    """Two steps equal two of plain gradient descent with second-order autograd, class by class; D is what it says."""
    g, d = seeded(seed), 3
    labels = torch.arange(0, classes, 2)
    v = torch.randn(classes, d + bias, generator=g, dtype=torch.float64)
    z = torch.randn(len(labels), m, d, generator=g, dtype=torch.float64)
    wanted = torch.randn(len(labels), classes, d + bias, generator=g, dtype=torch.float64)
    value, slope = by_autograd(v, z, labels, wanted, bias)
    x = F.pad(z, (0, int(bias)), value=1.0)
    error = (x @ v.T).softmax(2) - F.one_hot(labels, classes)[:, None]
    close(gradient_distance(error.mT @ x / m, wanted, d).sum(), value, 1e-9)
    once = z - 0.1 * slope
    close(matched_features(v, z, labels, wanted, steps=1, lr=0.1), once, 1e-9)
    twice = once - 0.1 * by_autograd(v, once, labels, wanted, bias)[1]
    close(matched_features(v, z, labels, wanted, steps=2, lr=0.1), twice, 1e-9)


def test_matching_at_zero_gradients_is_finite() -> None:
    """A classifier that is sure of itself (gradient 0 in float32), a wanted gradient of 0, equal features: no NaN, and
    nothing moves."""
    v = torch.tensor([[1e4, 0.0], [-1e4, 0.0]])
    z, labels = torch.ones(1, 3, 1), torch.tensor([0])
    for wanted in (torch.zeros(1, 2, 2), torch.ones(1, 2, 2)):
        assert torch.equal(matched_features(v, z, labels, wanted, steps=5, lr=0.1), z)
    still = matched_features(torch.zeros(2, 2), z, labels, torch.zeros(1, 2, 2), steps=5, lr=0.1)
    assert torch.equal(still, z)


class Warm(nn.Module):
    """A network whose logits are a multiple of its head's outputs."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.body, self.head, self.times = nn.Linear(4, 8), nn.Linear(8, 3), times

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.times * self.head(self.body(x).relu())
        return out


@pytest.mark.parametrize("name", ["fedrep", "fedpac", "pfedcs", "fedrod", "creff", "fedgh", "feddbe"])
def test_methods_that_apply_the_head_alone_need_it_last(name: str) -> None:
    """Behind the head a factor, or another layer as the head: either way the head alone is another function."""
    federation = Federation.from_arrays([(torch.randn(12, 4), torch.arange(12) % 3)] * 2)

    def play(net: nn.Module, **how: Any) -> None:
        fedkin.run(fedkin.get_method(name), federation, net, rounds=1, compute=fedkin.Compute(engine="loop"), **how)

    with refuses(ModelError, "'head'"):
        play(Warm(2.0))
    with refuses(ModelError, "'body'"):
        play(Warm(1.0), head="body")
    play(Warm(1.0))
