"""The shortest combination with weights on a simplex, each in a box of its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedkin.core.rows import gram
from fedkin.functional.simplex import shortest
from toys import close

RIDGE = 1e-9


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Inner products and boxes around weights that sum to 1: vectors of any length, equal, opposed, zero, more than
    their dimensions; boxes of no width, of some, and none at all."""
    m, d = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    entries = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
    rows = torch.tensor(draw(st.lists(entries, min_size=m, max_size=m)), dtype=torch.float64)
    rows = rows * draw(st.sampled_from([1e-6, 1.0, 0.37, 1e6]))
    shares = torch.tensor(draw(st.lists(st.integers(1, 20), min_size=m, max_size=m)), dtype=torch.float64)
    near = shares / shares.sum()
    eps = draw(st.sampled_from([0.0, 0.03, 0.1, 0.5, 1.0]))
    return gram(rows), (near - eps).clamp(min=0), (near + eps).clamp(max=1)


def scaled(products: Tensor) -> Tensor:
    """What is minimised: the largest squared length is 1, the ridge on the diagonal."""
    top = float(products.diagonal().max())
    return products / (top or 1.0) + RIDGE * torch.eye(len(products), dtype=torch.float64)


@pytest.mark.parametrize("few", [128, 0], ids=["from the middle", "by an interior point"])
@settings(max_examples=200, deadline=None)
@given(problem=problems())
def test_optimal(few: int, problem: tuple[Tensor, Tensor, Tensor]) -> None:
    """Karush, Kuhn, Tucker: feasible, and a level exists with slope >= level where a weight could grow and <= level
    where it could shrink. The problem is convex, so that is the minimum. The same wherever the weights start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkin.functional.simplex._FEW", few)
        optimal(*problem)


def optimal(products: Tensor, low: Tensor, high: Tensor) -> None:
    x = shortest(products, low, high)
    assert x.dtype == torch.float64
    assert abs(float(x.sum()) - 1) < 1e-9
    assert bool(((x >= low) & (x <= high)).all())
    slope = scaled(products) @ x
    grows, shrinks = slope[x < high], slope[x > low]
    if len(grows) and len(shrinks):
        assert float(shrinks.max() - grows.min()) < 1e-9
    assert torch.equal(x, shortest(products, low, high))


@pytest.mark.parametrize("width", [30, 5000])
@pytest.mark.parametrize("common", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("eps", [0.004, 1.0])
def test_optimal_for_many(width: int, common: float, eps: float) -> None:
    """200 unit vectors with a common part, more than their dimensions or fewer, in narrow boxes or none; without the
    interior point the active set takes a linear system for each of the up to 190 weights that meet their bounds."""
    rng = torch.Generator().manual_seed(width)
    rows = common * torch.randn(width, generator=rng) + torch.randn(200, width, generator=rng)
    rows = rows / rows.norm(dim=1, keepdim=True)
    near = torch.full((200,), 1 / 200, dtype=torch.float64)
    problem = gram(rows), (near - eps).clamp(min=0), (near + eps).clamp(max=1)
    solve, systems = torch.linalg.solve, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.linalg, "solve", lambda *system: systems.append(1) or solve(*system))
        optimal(*problem)
    assert len(systems) <= 20


def test_least_norm_among_the_shortest() -> None:
    """e1, e1, e2: every (a, 1/2 - a, 1/2) is shortest; a = 1/4 has the least sum of squares. Three equal ones and a
    fourth: (1/6, 1/6, 1/6, 1/2)."""
    close(shortest(gram(torch.tensor([[1.0, 0], [1, 0], [0, 1]])), torch.zeros(3), torch.ones(3)), [0.25, 0.25, 0.5])
    rows = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    close(shortest(gram(rows), torch.zeros(4), torch.ones(4)), [1 / 6, 1 / 6, 1 / 6, 1 / 2])


@pytest.mark.parametrize(
    ("rows", "low", "high", "wanted"),
    [
        # d = (-.6, 1.8), slopes 7.2 | 5.4, 0: the one at its lower bound is steepest, those at their upper ones flatter
        ([[-3, 3], [-3, 2], [3, 1]], [0.2, 0.1, 0.0], [1.0, 0.4, 0.4], [0.2, 0.4, 0.4]),
        # d = (-1.1, -1.1), slopes 1.1 at the upper bound and 3.3, 3.3 between: level
        ([[1, -2], [-2, -1], [-3, 0]], [0.1, 0.2, 0.2], [0.4, 0.4, 0.4], [0.4, 0.3, 0.3]),
    ],
    ids=["one", "a pair"],
)
def test_released_from_a_bound(
    rows: list[list[float]], low: list[float], high: list[float], wanted: list[float]
) -> None:
    """On the way a weight meets a bound that the minimum is not at: it must be let go, alone or, where all weights are
    at bounds, and then another with it."""
    close(shortest(gram(torch.tensor(rows)), torch.tensor(low), torch.tensor(high)), wanted)


@pytest.mark.parametrize(
    ("low", "high"),
    [([0.6, 0.6], [1, 1]), ([0, 0], [0.4, 0.4]), ([0.5, 0.7], [0.5, 0.4])],
    ids=["much", "little", "no"],
)
def test_no_weights_between_the_bounds(low: list[float], high: list[float]) -> None:
    """A box without a point that sums to 1 is an error, not a wrong answer."""
    with pytest.raises(ValueError):
        shortest(torch.eye(2), torch.tensor(low), torch.tensor(high))
