"""Clients' states in files: two for each client, in turn."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from fedkin.core import Bundle, RunFolderError
from fedkin.storage.client_states import NOTHING, States, Stored, file_of, place, read


def state(seed: int) -> Bundle:
    """Names, shapes and types that change from one to the next; one is a view of a larger tensor."""
    rng = torch.Generator().manual_seed(seed)
    whole = torch.randn(4, 6, generator=rng)
    return Bundle(model=whole[seed % 3], count=torch.tensor(seed), **{f"more{seed}": whole.double().T[: seed + 1]})


def same(a: Bundle, b: Bundle) -> bool:
    return a.keys() == b.keys() and all(t.dtype == b[n].dtype and torch.equal(t, b[n]) for n, t in a.items())


def test_what_is_put_is_got(tmp_path: Path) -> None:
    """Whatever the layout; a new state leaves the committed one, and takes the place of one that was never used."""
    states = States(tmp_path)
    first = states.put(7, 1, state(1), Bundle())
    lost = states.put(7, 2, state(2), first)
    second = states.put(7, 3, state(0), first)

    assert same(states.get(7, first), state(1))
    assert same(states.get(7, second), state(0))
    assert (file_of(first), file_of(lost), file_of(second)) == (0, 1, 1)
    with pytest.raises(RunFolderError, match="written by another run or for another upload"):
        states.get(7, lost)
    third = states.put(7, 4, state(2), second)
    assert file_of(third) == 0
    assert same(states.get(7, second), state(0))
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["7.0", "7.1"]


def test_nothing_takes_no_file(tmp_path: Path) -> None:
    """A client without a state, and one that gave its state up."""
    states = States(tmp_path / "states")
    assert states.put(0, 1, Bundle(), Bundle()) == {}
    assert states.get(0, Bundle()) == {}
    assert not (tmp_path / "states").exists()
    held = states.put(0, 2, state(1), Bundle())
    assert states.put(0, 3, Bundle(), held) == {}
    assert same(states.get(0, held), state(1))


def test_a_checkpoint_names_files(tmp_path: Path) -> None:
    """Only what has changed is looked at again; the states are read when they are asked for."""
    states = States(tmp_path)
    held = {i: states.put(i, 1, state(i), Bundle()) for i in range(3)} | {3: Bundle()}
    acks = torch.tensor([1, 1, 1, 0])
    stored = states.all(held, acks, range(4))
    assert stored.files.tolist() == [0, 0, 0, NOTHING]
    assert (list(stored), len(stored)) == ([0, 1, 2], 3)
    assert same(stored[2], state(2))
    with pytest.raises(KeyError):
        stored[3]
    held[1], acks = states.put(1, 2, state(0), held[1]), torch.tensor([1, 2, 1, 0])
    held[0] = Bundle()  # not told as changed
    assert states.all(held, acks, [1]).files.tolist() == [0, 1, 0, NOTHING]
    assert stored.files.tolist() == [0, 0, 0, NOTHING]


def test_a_run_goes_on_with_its_files_and_copies_those_of_others(tmp_path: Path) -> None:
    """The same folder: nothing is written. Another one, or memory: everything is."""
    states = States(tmp_path / "a")
    held = {i: states.put(i, 1, state(i), Bundle()) for i in range(2)}
    acks = torch.tensor([1, 1, 0])
    stored = states.all({**held, 2: Bundle()}, acks, range(3))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    again = States(tmp_path / "a")
    assert {i: b.at.tolist() for i, b in again.adopt(stored, acks).items()} == {0: [0, 1], 1: [0, 1]}
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before

    for source in (stored, {i: stored[i] for i in stored}):
        other = States(tmp_path / "b")
        for i, b in other.adopt(source, acks).items():
            assert same(other.get(i, b), state(i))


def test_temporary_files_go_with_their_owner() -> None:
    """Without a folder."""
    states = States(None)
    folder = states.folder
    assert same(states.get(0, states.put(0, 1, state(1), Bundle())), state(1))
    del states
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("cut", [0, 5, 60, -1])
def test_a_file_that_is_not_whole_is_named(cut: int, tmp_path: Path) -> None:
    """As a loss of power may leave it."""
    states = States(tmp_path)
    states.put(3, 1, state(1), Bundle())
    path = place(tmp_path, 3, 0)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(RunFolderError, match=r"3\.0 is damaged"):
        read(path, 3, 1)


def test_a_disk_without_room_is_an_error_with_advice(tmp_path: Path) -> None:
    """Here: a file where the folder would be."""
    (tmp_path / "0").write_text("in the way")
    with pytest.raises(RunFolderError, match=r"the state of client 5 cannot be written.*--out"):
        States(tmp_path).put(5, 1, state(1), Bundle())


def test_stored_states_are_a_mapping() -> None:
    """Ids beyond the last client and below 0 are nobody's."""
    stored = Stored(Path("nowhere"), torch.tensor([NOTHING, 0], dtype=torch.int8), torch.tensor([0, 1]))
    assert 0 not in stored
    assert stored.get(5) is None
    assert stored.get(-1) is None


def test_files_of_the_checkpoint_before_are_deleted_when_it_is_replaced(tmp_path: Path) -> None:
    """Not before, not those of a state that was not used, and also in a run that goes on from a checkpoint."""

    def names() -> list[str]:
        return sorted(p.name for p in tmp_path.rglob("*") if p.is_file())

    states = States(tmp_path)
    first = {i: states.put(i, 1, state(i), Bundle()) for i in range(3)}
    states.all(first, torch.tensor([1, 1, 1]), range(3)).saved()
    second = first | {0: states.put(0, 2, state(4), first[0])}
    states.put(1, 2, state(4), first[1])
    assert names() == ["0.0", "0.1", "1.0", "1.1", "2.0"]
    stored = states.all(second, torch.tensor([2, 1, 1]), [0, 1])
    assert names() == ["0.0", "0.1", "1.0", "1.1", "2.0"]
    stored.saved()
    assert names() == ["0.1", "1.0", "1.1", "2.0"]
    assert same(stored[0], state(4))

    again = States(tmp_path)
    held = dict(again.adopt(stored, stored.acks))
    held[0] = again.put(0, 3, state(5), held[0])
    again.all(held, torch.tensor([3, 1, 1]), range(3)).saved()
    assert names() == ["0.0", "1.0", "1.1", "2.0"]
