"""The one format of tensors on disk: every bit and every text comes back, or an error says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedkin.core import RunFolderError
from fedkin.storage.tensors import checksum, own_memory, pack, unpack


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Types and layouts that runs have, an empty one and views among them."""
    base = torch.arange(12.0).view(3, 4)
    return {
        "plain": base,
        "column": base[:, 1],
        "transposed": base.t(),
        "empty": torch.empty(0, 3),
        "whole": torch.tensor(2**62),
        "flags": torch.tensor([True, False]),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
    }


def test_what_is_packed_is_unpacked(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Bit for bit, with types, shapes and texts."""
    file = tmp_path / "file"
    file.write_bytes(pack(tensors, {"round": "3", "é": "\n"}))
    texts, found = unpack(file, "start anew")
    assert texts == {"round": "3", "é": "\n"}
    assert sorted(found) == sorted(tensors)
    assert all(torch.equal(found[n], t) and found[n].dtype == t.dtype for n, t in tensors.items())


@pytest.mark.parametrize("at", [-1, 40, 0])
def test_damage_is_found(at: int, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """A bit of a tensor, of the header, of its length; the message ends with what to do."""
    file = tmp_path / "file"
    raw = bytearray(pack(tensors, {"round": "3"}))
    raw[at] ^= 4
    file.write_bytes(raw)
    with pytest.raises(RunFolderError, match=r"file is damaged \(.*\); start anew$"):
        unpack(file, "start anew")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """As a damaged one is."""
    with pytest.raises(RunFolderError, match=r"gone is damaged"):
        unpack(tmp_path / "gone", "start anew")


def test_a_checksum_is_of_names_types_shapes_values_and_texts() -> None:
    """Each of them changes it; the order of entries does not."""
    a, b = torch.tensor([1, 2]), torch.tensor([[1, 2]])
    all_of = [
        checksum({"a": a}, {}),
        checksum({"b": a}, {}),
        checksum({"a": b}, {}),
        checksum({"a": a.int()}, {}),
        checksum({"a": a + 1}, {}),
        checksum({"a": a}, {"x": "1"}),
        checksum({"a": a}, {"x": "2"}),
    ]
    assert len(set(all_of)) == len(all_of)
    assert checksum({"a": a, "b": b}, {"x": "1", "y": "2"}) == checksum({"b": b, "a": a}, {"y": "2", "x": "1"})


def test_memory_of_its_own() -> None:
    """A tensor that has it is not copied; a view is, so that a file does not hold what it is a part of."""
    whole = torch.arange(4.0)
    assert own_memory(whole).data_ptr() == whole.data_ptr()
    part = own_memory(whole[1:])
    assert part.untyped_storage().nbytes() == 12
    assert torch.equal(part, whole[1:])
