"""Banks in files against banks in memory, and as objects of a commit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.core.rows import grow, kept_by, put
from fedkin.storage.banks import Banks, stacked
from fedkin.storage.objects import Objects


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
    kept = steps(Banks(tmp_path if named else None), dtype)
    assert kept.dtype == dtype
    assert torch.equal(kept, steps(None, dtype))
    assert not list(tmp_path.iterdir())


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


def test_a_commit_names_rows(tmp_path: Path) -> None:
    """Equal rows are one object, only changed ones are written, and they come back in a file and in memory."""
    banks, objects = Banks(tmp_path), Objects(tmp_path / "objects")
    with kept_by(banks):
        state = Bundle(bank=grow(None, 40, row(0, 5)), model=row(9, 5), gone=grow(None, 40, torch.zeros(2, 3)))
        state["bank"] = put(state.bank, torch.tensor([2, 3]), row(1, 2, 5))
    rest, first = banks.split(state, objects)
    assert list(rest) == ["model"]
    assert [len(set(first[name])) for name in ("bank", "gone")] == [3, 1]
    gone = state.pop("gone")
    with kept_by(banks):
        state["bank"] = grow(put(state.bank, torch.tensor([3, 7]), row(2, 2, 5)), 42, torch.zeros(5))
    _, second = banks.split(state, objects)
    assert len(set(second["bank"]) - set(first["bank"])) == 3
    assert second["bank"][2] == first["bank"][2]
    assert not gone.any()  # whoever still has it can read it
    assert {p.name for p in objects.folder.iterdir()} == {*first["bank"], *first["gone"], *second["bank"]}
    for names, whole in ((second["bank"], state.bank), (first["gone"], gone)):
        again = Banks()
        loaded = again.load(objects, names)
        assert torch.equal(loaded, whole)
        assert torch.equal(stacked(objects, names), whole)
        assert again.split(Bundle(bank=loaded), objects)[1] == {"bank": names}


def test_a_row_of_another_bank_is_refused(tmp_path: Path) -> None:
    """Rows of a bank have one shape and type."""
    objects = Objects(tmp_path / "objects")
    names = [objects.put({"row": t}) for t in (torch.zeros(3), torch.zeros(4), torch.zeros(3, dtype=torch.int64))]
    for wrong in names[1:]:
        for load in (stacked, Banks().load):
            with pytest.raises(RunFolderError, match=wrong):
                load(objects, (names[0], wrong))


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
