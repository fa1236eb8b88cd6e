"""What holds between pairs of clients: computed for the clients that have changed, as if for all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedkin.core.rows import squared_distances
from fedkin.functional.linkage import cosines
from fedkin.functional.pairs import cosines_from, differences_from, distances_from, renewed, widened
from toys import close

MANY = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**20)


def drawn(seed: int, k: int, width: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Rows around a common one, some of them equal, and some of their numbers, in any order."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(width, generator=rng) + scale * torch.randn(k, width, generator=rng)
    rows[torch.randint(k, (), generator=rng)] = rows[0]
    return rows, torch.randperm(k, generator=rng)[: 1 + seed % k]


def exactly(rows: Tensor, ids: Tensor, order: int = 2) -> Tensor:
    return (rows[ids].double()[:, None] - rows.double()).abs().pow(order).sum(2)


@MANY
@given(seed=seeds, k=st.integers(1, 30), width=st.integers(1, 40), scale=st.sampled_from([1.0, 1e-3, 1e-6]))
def test_distances_of_some_to_all(seed: int, k: int, width: int, scale: float) -> None:
    """Within 1e-9 of themselves, however close the models lie to one another; 0 to equals, and to nobody else."""
    rows, ids = drawn(seed, k, width, scale)
    got, wanted = distances_from(rows, ids), exactly(rows, ids)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12 * float(wanted.max()))
    assert torch.equal(got == 0, wanted == 0)


@MANY
@given(seed=seeds, k=st.integers(1, 30), width=st.integers(1, 40))
def test_cosines_of_some_with_all(seed: int, k: int, width: int) -> None:
    """Inner products of unit rows; exactly 1 for parallel ones, 0 with zeros but for the row itself."""
    rows, ids = drawn(seed, k, width)
    rows[seed % k] = 0
    rows[(seed + 1) % k] = 4 * rows[0]
    unit = rows.double() / rows.double().norm(dim=1, keepdim=True).clamp(min=1e-300)
    wanted = (unit @ unit.T).fill_diagonal_(1.0)
    got = cosines_from(rows, ids)
    close(got, wanted[ids], 1e-12)
    close(cosines(rows), wanted, 1e-12)
    assert bool((got[wanted[ids] > 1 - 1e-13] == 1).all())


@MANY
@given(seed=seeds, k=st.integers(1, 30), width=st.integers(1, 40), order=st.sampled_from([1, 2]))
def test_differences_of_some_to_all(seed: int, k: int, width: int, order: int) -> None:
    """Sums of absolute or squared differences; 0 to equals, and to nobody else."""
    rows, ids = drawn(seed, k, width, 1e-6)
    got, wanted = differences_from(rows, ids, order), exactly(rows, ids, order)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)
    assert torch.equal(got == 0, wanted == 0)


@pytest.mark.parametrize("of", [distances_from, cosines_from, lambda rows, ids: differences_from(rows, ids, 1)])
def test_blocks_change_nothing(of, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of seven columns and two rows give the same as all at once."""
    rows, ids = drawn(4, 9, 31)
    whole = of(rows, ids)
    monkeypatch.setattr("fedkin.functional.pairs._BLOCK", 14)
    monkeypatch.setattr("fedkin.functional.pairs._WIDTH", 7)
    close(of(rows, ids), whole, 1e-12)


@MANY
@given(seed=seeds, k=st.integers(1, 12), new=st.integers(0, 4))
def test_pairs_that_are_kept_are_those_of_all(seed: int, k: int, new: int) -> None:
    """Newcomers at one point, then other rows for some clients: as computed from all rows, and symmetric."""
    rows, _ = drawn(seed, k, 6)
    start = torch.ones(6)
    after = torch.cat([rows, start.expand(new, -1)])
    known = distances_from(torch.cat([rows, start[None]]), torch.tensor([k]))[0, :k]
    pairs = widened(squared_distances(rows), k + new, known)
    close(pairs, exactly(after, torch.arange(k + new)), 1e-9)
    _, ids = drawn(seed + 1, k + new, 6)
    before = pairs.clone()
    after[ids] += torch.randn(len(ids), 6, generator=torch.Generator().manual_seed(seed))
    got = renewed(pairs, ids, distances_from(after, ids))
    close(got, exactly(after, torch.arange(k + new)), 1e-9)
    assert torch.equal(got[ids], got[:, ids].T)
    assert torch.equal(pairs, before)
