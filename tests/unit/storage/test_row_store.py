"""Banks in files against banks in memory; what a checkpoint and a kill make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedkin.storage.row_store
from fedkin.core import Bundle, RunFolderError
from fedkin.core.rows import grow, kept_by, put
from fedkin.storage.row_store import Banks


def row(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def steps(banks: Banks | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """A bank that grows from nothing, is written to, and grows again."""
    with kept_by(banks):
        bank = grow(torch.empty(0, 3, 2, dtype=dtype), 4, row(0, 3, 2).to(dtype))
        bank = put(bank, torch.tensor([1, 3]), row(1, 2, 3, 2))
        bank = grow(bank, 7, torch.zeros(3, 2))
        bank = put(bank, torch.tensor([0, 6]), row(2, 3, 2))  # one row for both
        return put(bank, torch.empty(0, dtype=torch.int64), torch.empty(0, 3, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("named", [True, False])
def test_a_bank_in_a_file_is_the_one_in_memory(named: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """Any shape of row and type, with and without a folder."""
    found = steps(Banks(tmp_path) if named else None, dtype)
    kept = steps(Banks(tmp_path / "b" if named else None), dtype)

    assert kept.dtype == dtype
    assert torch.equal(kept, steps(None, dtype))
    assert torch.equal(found, kept)


def test_put_changes_the_bank_itself_and_a_copy_in_memory() -> None:
    """That is the difference, and the reason for the rule that the old bank is not used any more."""
    banks = Banks(None)
    with kept_by(banks):
        old = grow(None, 2, torch.ones(3))
        new = put(old, torch.tensor([0]), torch.zeros(3))
    assert new.data_ptr() == old.data_ptr()
    with kept_by(None):
        old = grow(None, 2, torch.ones(3))
        assert put(old, torch.tensor([0]), torch.zeros(3)).data_ptr() != old.data_ptr()


def test_numbers_and_tensors_of_others_stay_in_memory() -> None:
    """A number for each client, a bank of nobody, a part of a bank, a bank that was made in memory."""
    banks = Banks(None)
    bank = torch.zeros(3, 2)
    with kept_by(banks):
        mine = grow(None, 3, torch.ones(2))
        assert banks.grow(None, 3, torch.tensor(1.0)) is None
        assert banks.grow(None, 0, torch.ones(2)) is None
        assert banks.grow(mine, 3, torch.ones(2)) is mine
        assert banks.put(bank, torch.tensor([1]), torch.ones(1, 2)) is None
        assert banks.put(mine[:2], torch.tensor([1]), torch.ones(1, 2)) is None
        assert torch.equal(put(bank, torch.tensor([1]), torch.ones(1, 2))[1], torch.ones(2))
        assert not bool(bank.any())


def test_zeros_take_no_room(tmp_path: Path) -> None:
    """4 MB of zeros for clients that have sent nothing are a hole in the file."""
    with kept_by(Banks(tmp_path)):
        bank = grow(None, 1000, torch.zeros(1000))
        put(bank, torch.tensor([7]), torch.ones(1, 1000))
    file = (tmp_path / "0.bank").stat()
    assert file.st_size == 4_000_000
    assert file.st_blocks * 512 < 100_000


def saved(folder: Path) -> tuple[Banks, Bundle, dict[str, str], Bundle]:
    """Banks after the checkpoint of round 1, the state, and what the checkpoint says."""
    banks = Banks(folder)
    with kept_by(banks):
        state = Bundle(bank=grow(None, 4, row(0, 5)), model=row(9, 5))
        state["bank"] = put(state.bank, torch.tensor([2]), row(1, 1, 5))
    rest, sums, told = banks.split(state)
    assert list(rest) == ["model"]
    assert (sums.bank.shape, list(told)) == ((4,), ["bank"])
    sums = sums.owned()
    banks.saved(1, state)
    return banks, state, told, sums


def test_rows_of_an_unfinished_round_are_taken_back(tmp_path: Path) -> None:
    """Rows written twice, new clients, another bank: after a kill in round 2 all is as round 1 left it."""
    banks, state, told, sums = saved(tmp_path)
    before = state.bank.clone()
    with kept_by(banks):
        bank = put(state.bank, torch.tensor([0, 2]), row(2, 2, 5))
        bank = put(bank, torch.tensor([2, 3]), row(3, 2, 5))
        put(grow(bank, 6, row(4, 5)), torch.tensor([5, 1]), row(5, 2, 5))
        grow(None, 6, row(4, 5))
    again = Banks(tmp_path)
    found = again.open(1, told, sums)

    assert torch.equal(found.bank, before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.bank"]
    with kept_by(again):  # and it can go on
        assert torch.equal(put(found.bank, torch.tensor([0]), row(2, 1, 5))[0], row(2, 5))


def test_rows_of_a_finished_round_stay(tmp_path: Path) -> None:
    """A kill between the checkpoint of round 2 and the end of the tidying up: its rows are not undone."""
    banks, state, _, _ = saved(tmp_path)
    with kept_by(banks):
        state["bank"] = put(state.bank, torch.tensor([0, 2]), row(2, 2, 5))
    _, sums, told = banks.split(state)
    assert (tmp_path / "undo").exists()
    found = Banks(tmp_path).open(2, told, sums)

    assert torch.equal(found.bank, state.bank)
    assert not (tmp_path / "undo").exists()


@pytest.mark.parametrize("cut", [0, 1, 7, 40])
def test_a_torn_note_is_of_a_row_that_still_stands(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle of ``undo``: the note is not followed, and need not be."""
    banks, state, told, sums = saved(tmp_path)
    before, write = state.bank.clone(), fedkin.storage.row_store._write

    def torn(file: object, raw: bytes, at: int) -> None:
        write(file, raw[:cut], at)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with kept_by(banks):
        bank = put(state.bank, torch.tensor([1]), row(2, 1, 5))
        monkeypatch.setattr(fedkin.storage.row_store, "_write", torn)
        with pytest.raises(KeyboardInterrupt):
            put(bank, torch.tensor([0]), row(3, 1, 5))
    monkeypatch.undo()

    assert torch.equal(Banks(tmp_path).open(1, told, sums).bank, before)


def test_banks_that_are_not_in_the_state_any_more_are_deleted(tmp_path: Path) -> None:
    """After the checkpoint that does without them, not before."""
    banks, state, _, _ = saved(tmp_path)
    left = state.bank
    del state["bank"]
    assert (tmp_path / "0.bank").exists()
    banks.saved(2, state)
    assert not (tmp_path / "0.bank").exists()
    assert torch.equal(left[2], row(1, 5))  # whoever still has it can read it


def test_a_disk_without_room_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a signal that ends the process."""

    def full(number: int, raw: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    with kept_by(Banks(tmp_path)):
        bank = grow(None, 3, torch.zeros(2))
        monkeypatch.setattr("os.pwrite", full)
        with pytest.raises(RunFolderError, match=r"No space left.*--out"):
            put(bank, torch.tensor([0]), torch.ones(1, 2))
        with pytest.raises(RunFolderError, match=r"No space left.*--out"):
            grow(bank, 5, torch.ones(2))
