"""Attention of models on models: rows that sum to 1, nobody below 0, the nearer the more."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.functional.linkage import cosines
from fedkin.methods.fedamp import attention as attention_of
from fedkin.methods.fedamp import cosine_attention as cosine_attention_of
from fedkin.methods.fedamp import largest_step
from toys import squares_apart

POINTS = st.lists(st.tuples(st.integers(-30, 30), st.integers(-30, 30)), min_size=1, max_size=7)
POSITIVE = st.floats(0.01, 100.0)


def everybody(m: int) -> torch.Tensor:
    return ~torch.eye(m, dtype=torch.bool)


def attention(d: torch.Tensor, others: torch.Tensor, sigma: float, step: float) -> torch.Tensor:
    return attention_of(d, others, torch.arange(len(d)), sigma, step)


def cosine_attention(cos: torch.Tensor, others: torch.Tensor, scale: float, own: torch.Tensor) -> torch.Tensor:
    return cosine_attention_of(cos, others, torch.arange(len(cos)), scale, own)


def spread(points: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.tensor(points, dtype=torch.float32) / 10
    return rows, squares_apart(rows)


@settings(deadline=None, max_examples=60)
@given(POINTS, POSITIVE, POSITIVE)
def test_guarded_rows_are_mixtures(points: list[tuple[int, int]], sigma: float, step: float) -> None:
    """With the step shortened to the largest one, weights are not negative and rows sum to 1; the step is the largest:
    somebody keeps nothing."""
    _, d = spread(points)
    others = everybody(len(d))
    most = largest_step(d, others, sigma)
    xi = attention(d, others, sigma, min(step, most))
    assert float(xi.min()) >= -1e-12
    torch.testing.assert_close(xi.sum(1), torch.ones(len(d), dtype=torch.float64))
    if math.isfinite(most):
        assert abs(float(attention(d, others, sigma, most).diagonal().min())) < 1e-9


@settings(deadline=None, max_examples=60)
@given(POINTS, POSITIVE)
def test_the_weights_are_the_gradient(points: list[tuple[int, int]], sigma: float) -> None:
    """xi w = w - step/2 times the gradient of sum_{i<j} 1 - exp(-|w_i - w_j|^2/sigma): the factor 2 is in the step."""
    rows, d = spread(points)
    w = rows.double().requires_grad_()
    pairs = (w[:, None] - w[None]).square().sum(2)
    (grad,) = torch.autograd.grad((1 - torch.exp(-pairs / sigma)).sum() / 2, w)
    mixed = attention(d, everybody(len(d)), sigma, 0.3) @ w.detach()
    torch.testing.assert_close(mixed, w.detach() - 0.3 / 2 * grad, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(POINTS, st.floats(0.0, 30.0), st.floats(0.0, 1.0), st.randoms())
def test_cosine_rows_are_mixtures_and_follow_a_permutation(
    points: list[tuple[int, int]], scale: float, own: float, chance: Random
) -> None:
    """Rows sum to 1, the own weight is the given one; clients in another order have the same weights."""
    rows, d = spread(points)
    m = len(d)
    kept = torch.full((m,), own, dtype=torch.float64)
    xi = cosine_attention(cosines(rows), everybody(m), scale, kept)
    assert float(xi.min()) >= 0
    torch.testing.assert_close(xi.sum(1), torch.ones(m, dtype=torch.float64))
    torch.testing.assert_close(xi.diagonal(), kept if m > 1 else torch.ones(1, dtype=torch.float64))
    order = torch.tensor(chance.sample(range(m), m))
    again = cosine_attention(cosines(rows[order]), everybody(m), scale, kept)
    torch.testing.assert_close(again, xi[order][:, order])


@pytest.mark.parametrize("m", [0, 1, 3])
def test_nobody_to_learn_from(m: int) -> None:
    """Everybody keeps its own model; no step is too large."""
    d, nobody = torch.zeros(m, m), torch.zeros(m, m, dtype=torch.bool)
    eye = torch.eye(m, dtype=torch.float64)
    assert largest_step(d, nobody, 1.0) == math.inf
    assert torch.equal(attention(d, nobody, 1.0, 5.0), eye)
    assert torch.equal(cosine_attention(d, nobody, 1.0, torch.full((m,), 0.25)), eye)


@settings(deadline=None, max_examples=60)
@given(POINTS, st.randoms())
def test_some_rows_are_as_all_rows(points: list[tuple[int, int]], chance: Random) -> None:
    """The weights of some clients alone, with their own models anywhere in the bank, are their rows of all."""
    rows, d = spread(points)
    me = torch.tensor(chance.sample(range(len(d)), chance.randint(1, len(d))))
    others, own = everybody(len(d)), torch.rand(len(d))
    for kept in (others, others & (torch.arange(len(d)) != 0)):
        all_ = attention(d, kept, 2.0, 0.1)
        torch.testing.assert_close(attention_of(d[me], kept[me], me, 2.0, 0.1), all_[me])
        heur = cosine_attention(cosines(rows), kept, 5.0, own)
        torch.testing.assert_close(cosine_attention_of(cosines(rows)[me], kept[me], me, 5.0, own[me]), heur[me])
