"""Objects by their content, and states of clients in them."""

from __future__ import annotations

import gc
import stat
from pathlib import Path

import pytest
import torch

from fedkin.core import Bundle, RunFolderError
from fedkin.storage.objects import Objects, States


def test_objects_come_back_and_are_written_once(tmp_path: Path) -> None:
    """Equal tensors are one file, for its owner alone."""
    objects, base = Objects(tmp_path / "objects"), torch.arange(12.0).view(3, 4)
    tensors = {"column": base[:, 1], "half": torch.tensor([1.5], dtype=torch.bfloat16)}
    name = objects.put(tensors)
    assert objects.put({n: t.clone() for n, t in reversed(tensors.items())}) == name
    found = objects.get(name)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[n], t) and found[n].dtype == t.dtype for n, t in tensors.items())
    assert [p.name for p in objects.folder.iterdir()] == [name]
    assert stat.S_IMODE((objects.folder / name).stat().st_mode) == 0o600


def test_what_is_not_kept_is_deleted(tmp_path: Path) -> None:
    """Also what a kill has left, whole or not; then it can be written again."""
    objects = Objects(tmp_path / "objects")
    one, two = (objects.put({"t": torch.tensor(x)}) for x in (1.0, 2.0))
    (objects.folder / f".{'0' * 40}.new").write_bytes(b"half")
    again = Objects(objects.folder)
    again.look()
    again.keep({one})
    assert [p.name for p in objects.folder.iterdir()] == [one]
    assert again.put({"t": torch.tensor(2.0)}) == two
    assert again.get(two).t == 2.0


@pytest.mark.parametrize("raw", [b"", b"no tensors", None])
def test_a_damaged_object_is_named(raw: bytes | None, tmp_path: Path) -> None:
    """Also one that is missing."""
    objects = Objects(tmp_path / "objects")
    name = objects.put({"t": torch.tensor(1.0)})
    (objects.folder / name).unlink() if raw is None else (objects.folder / name).write_bytes(raw)
    with pytest.raises(RunFolderError, match=name):
        objects.get(name)


def test_states_of_clients() -> None:
    """The committed one stays while another is proposed; without a folder, former ones go, and all with the object."""
    objects = Objects()
    place, states = objects.folder, States(objects)
    acks = torch.tensor([1, 1])
    held = {i: states.put(i, 1, Bundle(w=torch.full((3,), float(i))), Bundle()) for i in (0, 1)}
    named = states.all(held, acks, [0, 1])
    new = states.put(0, 2, Bundle(w=torch.ones(3)), held[0])  # as that of client 1
    assert states.get(0, held[0]).w.tolist() == [0.0] * 3
    assert states.all({**held, 0: new}, acks, [0]).names[0] == named.names[1]
    assert len(list(place.iterdir())) == 1
    assert states.get(1, held[1]).w.tolist() == states.get(0, new).w.tolist()
    del objects, states, named
    gc.collect()
    assert not place.exists()
