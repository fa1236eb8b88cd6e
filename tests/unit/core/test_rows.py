"""Algebra on stacked models against plain NumPy."""

import multiprocessing
import warnings
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch

from fedkin.core import MethodError
from fedkin.core import rows as algebra
from fedkin.core.rows import group_mean, grow, mix, put, squared_distances, weighted_mean
from refusals import refuses
from toys import close, draw, squares_apart


def test_mix_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns are mixed in blocks; the result does not depend on their width."""
    weights, rows = draw(3, 5).double(), draw(5, 23, seed=1)
    wanted = (weights.numpy() @ rows.double().numpy()).astype(np.float32)
    whole = mix(weights, rows)
    assert whole.dtype == torch.float32
    close(whole, wanted, 1e-7)
    for block in (1, 7, 40):
        monkeypatch.setattr(algebra, "_BLOCK", block)
        close(mix(weights, rows), wanted, 1e-7)
        close(squares_apart(rows), squared_distances(rows), 1e-10)


def test_results_do_not_depend_on_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are shared out over cores have the bits of those that are not: each block is one core's."""
    weights, rows = draw(3, 300).double().abs(), draw(300, 700, seed=1)
    few = rows[:100]
    found = []
    for cores, worth in ((1, 0), (3, 0), (3, 1 << 30)):
        monkeypatch.setattr(algebra, "_cores", lambda cores=cores: cores)
        monkeypatch.setattr(algebra, "_WORTH", worth)
        monkeypatch.setattr(algebra, "_BLOCK", 1 << 14)
        algebra._pool.cache_clear()
        parts = (mix(weights, rows), mix(weights[:, :100], few), algebra.gram(few), squared_distances(few))
        found.append(parts)
    algebra._pool.cache_clear()
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_forked_process_sums_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads do not come along with a fork: a child that waited for them would wait for ever."""
    monkeypatch.setattr(algebra, "_cores", lambda: 2)
    monkeypatch.setattr(algebra, "_WORTH", 0)
    rows = draw(4, 50)
    wanted = algebra.gram(rows)  # the threads are there now
    monkeypatch.undo()

    def child(pipe: Connection) -> None:
        pipe.send((algebra._cores(), algebra.gram(rows).tolist()))

    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(there,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork beside threads
        process.start()
    assert here.poll(30)
    cores, got = here.recv()
    process.join()
    assert cores == 1
    assert got == wanted.tolist()


def test_means_are_of_any_shape_in_double_precision() -> None:
    """Rows with more dimensions, integer weights; beside 2^24 a float32 sum would lose 1."""
    rows, weights = draw(4, 2, 3), torch.tensor([1, 0, 5, 2])
    wanted = np.average(rows.double().numpy(), axis=0, weights=weights.numpy())
    close(weighted_mean(rows, weights), wanted, 1e-7)
    assert weighted_mean(rows, weights).dtype == torch.float32
    rows = torch.tensor([[2.0**24], [1.0], [1.0], [-(2.0**24)]])
    close(weighted_mean(rows, torch.ones(4)), [0.5], 0)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8])
def test_means_of_whole_numbers_have_fractions(kind: torch.dtype) -> None:
    """Of masks [1, 0], [1, 1], [0, 1] with weights 1, 2, 1 the mean is [.75, .75]; it was rounded to their type."""
    rows, weights = torch.tensor([[1, 0], [1, 1], [0, 1]], dtype=kind), torch.tensor([1.0, 2.0, 1.0])
    assert torch.equal(weighted_mean(rows, weights), torch.tensor([0.75, 0.75]))
    found = group_mean(rows, weights, torch.tensor([0, 0, 0]), torch.zeros(2, 2, dtype=kind))
    assert torch.equal(found, torch.tensor([[0.75, 0.75], [0.0, 0.0]]))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.0, 0.0], "weights of 0 or more, not all 0; got [0, 0]"),
        ([2.0, -1.0], "weights of 0 or more, not all 0; got [2, -1]"),
        ([1.0, float("nan")], "got [1, nan]"),
        ([1.0, float("inf")], "got [1, inf]"),
        ([1.0], "a mean of 2 rows needs as many weights, got the shape [1]"),
    ],
)
def test_a_mean_needs_weights(weights: list[float], message: str) -> None:
    """Weights of 0 alone gave NaN, which looked like training that diverged."""
    with refuses(MethodError, message):
        weighted_mean(torch.ones(2, 3), torch.tensor(weights))
    with refuses(MethodError, "got []"):
        weighted_mean(torch.ones(0, 3), torch.ones(0))


def test_group_mean_keeps_empty_groups() -> None:
    """Groups 2 and 0 have members; 1 keeps its row of ``otherwise`` bit for bit, and so does a group whose members all
    weigh nothing."""
    rows, otherwise = draw(4, 6), draw(4, 6, seed=2)
    group, weights = torch.tensor([2, 0, 2, 3]), torch.tensor([1.0, 2.0, 3.0, 0.0])
    got = group_mean(rows, weights, group, otherwise)
    close(got[0], rows[1], 1e-7)
    close(got[2], 0.25 * rows[0] + 0.75 * rows[2], 1e-6)
    assert torch.equal(got[[1, 3]], otherwise[[1, 3]])


def test_distances_are_exact_and_symmetric() -> None:
    """For close models far from 0, to 1e-6; float64, 0 for equal rows, never negative."""
    rows = 50 * draw(1, 4000) + 1e-3 * draw(6, 4000, seed=1)
    exact, gram = squares_apart(rows), squared_distances(rows)
    assert float(((gram - exact).abs() / exact.clamp(min=1e-30)).max()) < 1e-6
    square = rows.square().sum(1)
    naive = square[:, None] + square[None] - 2 * rows @ rows.T
    assert float((naive - exact).abs().max()) > 0.5 * float(exact.max())
    rows = torch.cat([draw(3, 9), draw(3, 9)[:1]])
    d = squared_distances(rows)
    assert d.dtype == torch.float64
    close(d, d.T, 1e-12)
    assert not bool(d.diagonal().any())
    assert float(d.min()) >= 0
    close(d[0, 3], 0.0, 1e-12)


def test_banks_are_grown_and_changed_in_copies() -> None:
    """Known rows stay, new ones own their memory; rows come in the bank's own type."""
    bank = torch.zeros(4, 2)
    new = put(bank, torch.tensor([3, 1]), torch.tensor([[3.0, 3.0], [1.0, 1.0]], dtype=torch.float64))
    assert new.tolist() == [[0, 0], [1, 1], [0, 0], [3, 3]]
    assert new.dtype == torch.float32
    assert not bool(bank.any())
    assert put(torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2]), torch.tensor(5)).tolist() == [5, 0, 5]
    fill = torch.tensor([7.0, 8.0])
    bank = grow(torch.zeros(1, 2), 3, fill)
    assert bank.tolist() == [[0, 0], [7, 8], [7, 8]]
    fresh = grow(None, 2, fill)
    fresh[0] = 0
    assert fresh[1].tolist() == [7.0, 8.0]
    assert fill.tolist() == [7.0, 8.0]
    assert grow(torch.zeros(0, dtype=torch.int64), 2, torch.tensor(-1)).tolist() == [-1, -1]
    assert grow(bank, 3, fill).tolist() == bank.tolist()


# ---- many rows ----------------------------------------------------------------------------------------------------
def test_many_rows_are_mixed_in_blocks() -> None:
    """700 rows are three blocks, of which one without weight is not read."""
    weights, rows = draw(300, 700).double(), draw(700, 9, seed=1)
    weights[:, 256:512] = 0.0  # a block that nobody reads
    close(mix(weights, rows), (weights.numpy() @ rows.double().numpy()).astype(np.float32), 1e-5)
    parts = [weights[:, a : a + 256] @ rows[a : a + 256].double() for a in (0, 256, 512)]
    assert torch.equal(mix(weights, rows), sum(parts, torch.zeros(300, 9, dtype=torch.float64)).float())
    weights, rows = torch.zeros(1, 600), torch.ones(600, 3)
    weights[0, 5], rows[256:512] = 1.0, torch.nan
    assert mix(weights, rows).tolist() == [[1.0, 1.0, 1.0]]


def test_a_keeper_is_asked_first() -> None:
    """`grow` and `put` give what the keeper gives, and do it in memory where it gives None or there is none."""
    asked: list[str] = []

    class Some:
        def grow(self, bank: torch.Tensor | None, total: int, fill: torch.Tensor) -> torch.Tensor | None:
            asked.append("grow")
            return torch.full((total, 2), 7.0) if fill.dim() else None

        def put(self, bank: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
            asked.append("put")
            return None

    with algebra.kept_by(Some()):
        assert grow(None, 3, torch.zeros(2)).tolist() == [[7.0, 7.0]] * 3
        assert grow(None, 3, torch.tensor(1)).tolist() == [1, 1, 1]
        assert put(torch.zeros(2), torch.tensor([1]), torch.tensor([5.0])).tolist() == [0.0, 5.0]
        with algebra.kept_by(None):
            assert grow(None, 1, torch.zeros(2)).tolist() == [[0.0, 0.0]]
    assert asked == ["grow", "grow", "put"]
    assert grow(None, 1, torch.zeros(2)).tolist() == [[0.0, 0.0]]
    assert len(asked) == 3
