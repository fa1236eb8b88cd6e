"""Who collaborates and with what weight; the paper's own cases are among the golden tests of PFedCS."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

import rowwise
from fedkin.core import Bundle
from fedkin.functional.grouping import two_gaussians, two_means
from fedkin.methods import PFedCS
from fedkin.methods.pfedcs import candidates, customised_weights, row_distances, threshold
from toys import ByHand, close, copies, plane_net

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
