"""Runs that keep states and banks in files: the same bits as in memory, and after a kill at any moment.

Uninterrupted runs in memory are what all is compared with.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkin.storage.client_states
import fedkin.storage.row_store
from fedkin.core import RunFolderError
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import Settings
from fedkin.methods import METHODS
from folders import assert_same_run, assert_same_tensors, content, lines_in, small
from grouped import tables as run_tables
from kills import PLACES, Killed, assert_goes_on, begin_and_kill, die_before_saving, records_until_torn
from thorough import thorough_except

HARD = {"dropout": 0.2, "late_joiners": "1@4"}
KEEPING = {  # a state and a bank; a state; neither
    "da-pfl": {},
    "fedrep": {},
    "ifca": {"clusters": 2},
}
KEEPERS = ("fedavg", "da-pfl", "fedrep", "pfedcs", "fedfomo", "feddyn", "ifca-cam")
"""The server's state alone; banks of models, of heads, of what clients sent; states of one tensor and of several."""
GROUPS = {"oracle": {"partition": "cluster-dirichlet@groups=2"}}


def settings_of(name: str, rounds: int = 6, **run: Any) -> Settings:
    """A run of a method with drop-outs and a late joiner."""
    tables = {"data": GROUPS[name]} if name in GROUPS else {}
    return small(name, KEEPING.get(name), **run_tables({**HARD, "rounds": rounds, **run}), **tables)


@pytest.mark.parametrize("name", thorough_except(METHODS, KEEPERS))
def test_the_same_bits_as_in_memory(name: str, tmp_path: Path) -> None:
    """With and without a folder: lines, server, banks and states are equal. How every method treats a bank that changes
    in place is looked at by the rule "banks" of the contract."""
    memory, file = (settings_of(name, rounds=5, state=state) for state in ("memory", "file"))
    one = run_settings(memory, out=tmp_path / "memory")
    other = run_settings(file, out=tmp_path / "file")
    nowhere = run_settings(file)

    assert_same_run(tmp_path / "file", tmp_path / "memory")
    for result in (other, nowhere):
        assert result.rounds == one.rounds
        assert list(result.clients) == one.clients
        assert result.clients[-1] == one.clients[-1]
        assert result.server.state.keys() == one.server.state.keys()
        assert all(torch.equal(t, one.server.state[n]) for n, t in result.server.state.items())


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_killed_at_one_place(
    place: Callable[..., None], name: str, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in round 4 (the round in which a client joins), the run goes on to the same lines and tensors."""
    settings = settings_of(name, state="file")
    with monkeypatch.context() as patch:
        place(patch, 4)
        with pytest.raises(Killed):
            run_settings(settings, out=tmp_path / "a")

    assert_goes_on(tmp_path / "a", whole(settings))


def dying_writes(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[int]:
    """Kills the run in its ``at``-th write of a row, an undo note or a state, when half of it is written."""
    count, write, save = iter(range(10**6)), fedkin.storage.row_store._write, Path.write_bytes

    def dying(file: Any, raw: bytes, where: int) -> None:
        if next(count) == at:
            write(file, raw[: len(raw) // 2], where)
            raise Killed
        write(file, raw, where)

    def dying_too(self: Path, raw: bytes) -> int:
        if self.parents[1].name == "states" and next(count) == at:
            save(self, raw[: len(raw) // 2])
            raise Killed
        return save(self, raw)

    monkeypatch.setattr(fedkin.storage.row_store, "_write", dying)
    monkeypatch.setattr(Path, "write_bytes", dying_too)
    return count


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["da-pfl", "fedrep"])
def test_killed_in_every_single_write(
    name: str, every: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far a round has come with writing states, undo notes and rows, the run goes on to the same end.
    Every third write is one of each of these kinds, in every round; `make test-all` kills in all of them."""
    settings = settings_of(name, rounds=5, state="file", dropout=0.0)
    with monkeypatch.context() as patch:
        count = dying_writes(patch, -1)
        run_settings(settings, out=tmp_path / "whole")
        writes = next(count)
    assert writes > 15
    for at in range(0, writes, every):
        with monkeypatch.context() as patch:
            dying_writes(patch, at)
            with pytest.raises(Killed):
                run_settings(settings, out=tmp_path / "a")
        assert_goes_on(tmp_path / "a", whole(settings))
        shutil.rmtree(tmp_path / "a")


def test_killed_after_the_checkpoint_and_before_the_tidying(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undo notes of a round whose checkpoint is there are not followed."""
    settings = settings_of("da-pfl", state="file")
    saved = fedkin.storage.row_store.Banks.saved

    def dying(self: Any, round: int, state: Any) -> None:
        if round == 4:
            raise Killed
        saved(self, round, state)

    with monkeypatch.context() as patch:
        patch.setattr(fedkin.storage.row_store.Banks, "saved", dying)
        with pytest.raises(Killed):
            run_settings(settings, out=tmp_path / "a")
    assert (tmp_path / "a" / "banks" / "undo").exists()

    assert_goes_on(tmp_path / "a", whole(settings))
    assert not (tmp_path / "a" / "banks" / "undo").exists()


@pytest.mark.parametrize("after", [0.007, *(pytest.param(s, marks=pytest.mark.thorough) for s in (0.0, 0.029))])
@pytest.mark.parametrize("name", KEEPING)
def test_sigkill(name: str, after: float, whole: Any, tmp_path: Path) -> None:
    """A run on two workers, killed with SIGKILL somewhere in a round, goes on to the same lines and tensors."""
    settings = settings_of(name, rounds=24, engine="workers@n=2", state="file")
    begin_and_kill(settings, tmp_path / "a", after, os.killpg)

    assert 3 <= len(records_until_torn(tmp_path / "a")) <= 20
    assert_goes_on(tmp_path / "a", whole(settings))


@pytest.mark.parametrize("killed", [4, 6])  # before the last client joins and the bank grows, and after it
@pytest.mark.parametrize(("first", "then"), [("memory", "file"), ("file", "memory")])
def test_another_place_may_go_on(
    first: str, then: str, killed: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where states are kept is no part of what a run is: it goes on from memory to files and back."""
    settings = settings_of("da-pfl", state=first)
    with monkeypatch.context() as patch:
        die_before_saving(patch, killed)
        with pytest.raises(Killed):
            run_settings(settings, out=tmp_path / "a")
    config = tmp_path / "a" / "config.toml"
    config.write_text(config.read_text().replace(f'state = "{first}"', f'state = "{then}"'))

    assert_goes_on(tmp_path / "a", whole(settings), best=False)  # from rounds in files none is kept
    assert (tmp_path / "a" / "states").exists() == (then == "file")
    assert bool(list((tmp_path / "a").glob("banks/*.bank"))) == (then == "file")


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    """Banks and states are opened and left as they are."""
    first = run_settings(settings_of("da-pfl", state="file"), out=tmp_path / "a")
    before = content(tmp_path / "a")
    again = resume(tmp_path / "a")

    assert content(tmp_path / "a") == before
    assert torch.equal(again.server.state.bank, first.server.state.bank)
    assert list(again.clients) == list(first.clients)


def test_a_checkpoint_holds_what_a_round_changed(tmp_path: Path) -> None:
    """In memory its size goes with the models of all clients; in files it does not, and no model is written twice."""
    sizes = {}
    for state in ("memory", "file"):
        run_settings(settings_of("da-pfl", state=state), out=tmp_path / state)
        sizes[state] = (tmp_path / state / "checkpoint.safetensors").stat().st_size
    model = 4 * 650
    assert sizes["memory"] > 11 * model
    assert sizes["file"] < 2 * model
    assert (tmp_path / "file" / "banks" / "0.bank").stat().st_size == 6 * model


@pytest.mark.parametrize("damage", ["a row", "a bank cut short", "a bank gone"])
def test_a_damaged_bank_is_named(damage: str, tmp_path: Path) -> None:
    """A flipped bit, a file cut short, a file gone: resume says which, and where."""
    run_settings(settings_of("da-pfl", state="file"), out=tmp_path / "a")
    path = tmp_path / "a" / "banks" / "0.bank"
    raw = bytearray(path.read_bytes())
    if damage == "a row":
        raw[4 * 650 * 3 + 100] ^= 1
        path.write_bytes(raw)
    elif damage == "a bank cut short":
        path.write_bytes(raw[:-4])
    else:
        path.unlink()

    with pytest.raises(RunFolderError, match=r"0\.bank.*(row 3|missing)"):
        resume(tmp_path / "a")


@pytest.mark.parametrize("damage", ["a bit", "gone", "another client's"])
def test_a_damaged_state_is_named(damage: str, tmp_path: Path) -> None:
    """What a client keeps is checked when it is read."""
    run_settings(settings_of("fedrep", state="file"), out=tmp_path / "a")
    loaded = RunFolder(tmp_path / "a").load({})
    assert loaded is not None
    states = loaded[1]
    assert isinstance(states, fedkin.storage.client_states.Stored)
    path, other = (fedkin.storage.client_states.place(states.folder, i, int(states.files[i])) for i in (0, 1))
    if damage == "a bit":
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 1
        path.write_bytes(raw)
    elif damage == "gone":
        path.unlink()
    else:
        shutil.copy(other, path)

    assert states[1]
    with pytest.raises(RunFolderError, match=rf"{path.name} (is damaged|was written by another run)"):
        states[0]


def test_states_are_gone_when_they_were_to_be_kept_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run without a folder leaves no file behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run_settings(settings_of("da-pfl", state="file"))

    assert list(tmp_path.iterdir()) == []
    assert len(result.server.state.bank) == 6
    assert bool((result.server.state.bank != 0).any())


def test_auto_means_files_for_large_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Six linear models of 650 numbers take 15,600 bytes: more than 15,599 and not more than 15,600."""
    for limit, in_files in ((15_600, False), (15_599, True)):
        monkeypatch.setattr("fedkin.experiment.run.IN_MEMORY", limit)
        run_settings(settings_of("da-pfl"), out=tmp_path / str(limit))
        assert (tmp_path / str(limit) / "banks").exists() == in_files
    assert lines_in(tmp_path / "15600") == lines_in(tmp_path / "15599")
    assert_same_tensors(tmp_path / "15600", tmp_path / "15599")
