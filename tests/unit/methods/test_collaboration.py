"""Who collaborates and with what weight; the paper's own cases are among the golden tests of PFedCS."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

import rowwise
from fedkin.core import Bundle
from fedkin.functional.grouping import two_gaussians, two_means
from fedkin.functional.linkage import cosines
from fedkin.methods import PFedCS
from fedkin.methods.fedamp import attention as attention_of
from fedkin.methods.fedamp import cosine_attention as cosine_attention_of
from fedkin.methods.fedamp import largest_step
from fedkin.methods.pfedcs import candidates, customised_weights, row_distances, threshold
from toys import ByHand, close, copies, plane_net, squares_apart

READINGS = ("union", "others", "literal-norm")
# rows with many ties, with values of all sizes, in two heaps, and nearly equal; distances are relative to the largest,
# so that below 1e-15 there is only rounding (a subnormal number would not survive the division by another)
shares = st.floats(0, 1).map(lambda v: round(v, 15))
heaps = st.one_of(st.floats(0, 0.1), st.floats(0.8, 1)).map(lambda v: round(v, 15))
rows_of_numbers = st.integers(1, 12).flatmap(
    lambda n: st.lists(
        st.one_of(
            st.lists(st.integers(0, 3).map(lambda v: v / 3), min_size=n, max_size=n),
            st.lists(shares, min_size=n, max_size=n),
            st.lists(heaps, min_size=n, max_size=n),
            st.lists(st.integers(0, 9).map(lambda v: 0.3 + v * 1e-5), min_size=n, max_size=n),
        ),
        min_size=1,
        max_size=6,
    )
)


# ---- all rows at once, against one row at a time -------------------------------------------------------------------
@settings(max_examples=300, deadline=None)
@given(rows=rows_of_numbers, rule=st.sampled_from(["gmm", "kmeans", "fixed"]))
def test_candidates_of_all_rows_at_once(rows: list[list[float]], rule: str) -> None:
    """The same as row by row, whatever the other rows are: ties, equal distances and one other included."""
    d = torch.tensor(rows, dtype=torch.float64)
    wanted = torch.stack([rowwise.candidates(row, rule) for row in d])
    assert candidates(d, rule).tolist() == wanted.tolist()
    close(threshold(d, 3, 10), [rowwise.threshold(row, 3, 10) for row in d], 1e-14)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**20), n=st.integers(1, 14), power=st.sampled_from([1, 3, 9]))
def test_candidates_by_ward_of_all_rows_at_once(seed: int, n: int, power: int) -> None:
    """The same as by looking at all pairs of groups before every join, and as scipy's cut at two."""
    d = torch.rand(4, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).pow(power)
    got = candidates(d, "hier")
    assert got.tolist() == torch.stack([rowwise.candidates(row, "hier") for row in d]).tolist()
    for row, lower in zip(d, got, strict=True):
        if n > 1:
            theirs = torch.from_numpy(fcluster(linkage(row.numpy()[:, None], "ward"), 2, "maxclust"))
            assert lower.tolist() == (theirs == theirs[row.argmin()]).tolist()


@settings(max_examples=300, deadline=None)
@given(rows=rows_of_numbers)
def test_every_row_stops_by_itself(rows: list[list[float]]) -> None:
    """The mixture of a row is that of the row alone: rows need between two and a hundred steps."""
    d = torch.tensor(rows, dtype=torch.float64)
    assert two_gaussians(d).tolist() == torch.stack([rowwise.two_gaussians(row) for row in d]).tolist()
    assert two_means(d).tolist() == torch.stack([rowwise.two_means(row) for row in d]).tolist()


@settings(max_examples=300, deadline=None)
@given(rows=rows_of_numbers, seed=st.integers(0, 2**20), lam=st.floats(0, 0.95), reading=st.sampled_from(READINGS))
def test_customised_weights_of_all_rows_at_once(rows: list[list[float]], seed: int, lam: float, reading: str) -> None:
    """The same as row by row: nobody chosen, one chosen, all equally far included."""
    rng = torch.Generator().manual_seed(seed)
    d = torch.tensor(rows, dtype=torch.float64)
    me = torch.randint(d.shape[1], (len(d),), generator=rng)
    d.scatter_(1, me[:, None], 0.0)
    chosen = (torch.rand(d.shape, generator=rng) < 0.5).scatter_(1, me[:, None], False)
    sizes = torch.randint(1, 50, (d.shape[1],), generator=rng)
    wanted = [
        rowwise.customised_weights(row, who, int(k), sizes, lam, reading)
        for row, who, k in zip(d, chosen, me, strict=True)
    ]
    close(customised_weights(d, chosen, me, sizes, lam, reading), torch.stack(wanted), 1e-10)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    a=st.integers(2, 9),
    select=st.sampled_from(["gmm", "kmeans", "fixed", "all", "random"]),
    t=st.integers(2, 9),
)
def test_teachers_of_a_cohort(seed: int, a: int, select: str, t: int) -> None:
    """What `distribute` sends is, for each participant with a classifier in the pool, its mixture by itself."""
    rng = torch.Generator().manual_seed(seed)
    method = PFedCS(select=select, beta=10)
    sizes = torch.randint(1, 9, (a,), generator=rng).tolist()
    hand = ByHand(method, plane_net(), [copies([1.0, 0.0], n) for n in sizes])
    uploaded = torch.randint(0, t, (a,), generator=rng)
    hand.server = hand.server.but(heads=torch.randn(a, 4, generator=rng), uploaded=uploaded)
    pool, ids = (uploaded > 0).nonzero().flatten(), [i for i in range(a) if (seed >> i) % 2] or [0]
    r = hand.at("distribute", ids, t)
    sent = method.distribute(hand.server, r)
    for row, k in enumerate(ids):
        assert ("teacher" in sent.row(row)) == (int(uploaded[k]) > 0 and len(pool) > 1)
        if "teacher" in sent.row(row):
            p = _mixture(hand.server, pool, k, r.roster.size[pool], t, method, r.client_rng(k))
            close(sent.row(row).teacher, p @ hand.server.heads[pool].double(), 1e-6)


def _mixture(s: Bundle, pool: Tensor, k: int, sizes: Tensor, t: int, method: PFedCS, rng: torch.Generator) -> Tensor:
    me = pool.tolist().index(k)
    d, others = rowwise.row_distances(s.heads[pool], me), torch.arange(len(pool)) != me
    chosen = others.clone()
    if method.select == "random":
        order = torch.randperm(len(pool) - 1, generator=rng)
        chosen[others.nonzero().flatten()[order[method.random_size :]]] = False
    elif method.select != "all":
        chosen[others] = rowwise.candidates(d[others], method.select)
        chosen &= d <= rowwise.threshold(d[others], t, 10) * (1 + 1e-12)
    return rowwise.customised_weights(d, chosen, me, sizes, method.lam, method.weights)


# ---- by hand -------------------------------------------------------------------------------------------------------
def test_distances_of_rows() -> None:
    """Relative to the largest, exactly 0 for equals; nearly equal ones leave somebody."""
    heads = torch.tensor([[0.0], [1.0], [2.0]]) + 4096
    close(row_distances(heads, torch.tensor([0]))[0], [0, 0.25, 1])
    same = torch.randn(1, 50).expand(3, -1) * 1e4
    assert row_distances(same, torch.tensor([1]))[0].tolist() == [0, 0, 0]
    d = torch.tensor([0.9999, 1.0, 1.0], dtype=torch.float64)
    assert not bool(two_gaussians(d).any())
    assert candidates(d, "gmm").tolist() == [True, True, True]


# ---- attention ------------------------------------------------------------------------------------------------------
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
