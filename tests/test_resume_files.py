"""Runs that keep states and banks in files: the same bits as in memory, and after a kill at any moment.

Uninterrupted runs in memory are what all is compared with.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import RunFolderError
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Settings
from fedkin.methods import METHODS
from fedkin.record.files import read_commit
from fedkin.record.lines import Commit
from folders import assert_same_run, assert_same_tensors, content, lines_in, small
from grouped import tables as run_tables
from kills import Killed, Stop, assert_goes_on, begin_and_kill, die_before_committing, records_until_torn
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
        die_before_committing(patch, killed)
        with pytest.raises(Killed):
            run_settings(settings, out=tmp_path / "a")
    config = tmp_path / "a" / "config.toml"
    config.write_text(config.read_text().replace(f'state = "{first}"', f'state = "{then}"'))

    assert_goes_on(tmp_path / "a", whole(settings))
    assert bool(read_commit(tmp_path / "a").last.banks) == (then == "file")


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    """Banks and states are opened and left as they are."""
    first = run_settings(settings_of("da-pfl", state="file"), out=tmp_path / "a")
    before = content(tmp_path / "a")
    again = resume(tmp_path / "a")

    assert content(tmp_path / "a") == before
    assert torch.equal(again.server.state.bank, first.server.state.bank)
    assert list(again.clients) == list(first.clients)


def test_a_round_writes_what_it_changed(tmp_path: Path) -> None:
    """Most states and rows of two rounds are the same objects; equal rows are one."""
    commits: list[Commit] = []
    settings = settings_of("da-pfl", state="file", participation=0.3, eval_every=1)
    run_settings(settings, out=tmp_path / "a", on_round=lambda *_: commits.append(read_commit(tmp_path / "a")))
    first, *_, before, last = (commit.last for commit in commits)
    assert len(set(first.banks["bank"])) < len(first.banks["bank"])
    assert len(last.names() - before.names()) <= 1 + 2 * 2  # the server, states and rows of two clients


@pytest.mark.parametrize("damage", ["a bit", "gone", "another"])
@pytest.mark.parametrize("kind", ["clients", "banks", "server"])
def test_a_damaged_object_is_named(kind: str, damage: str, tmp_path: Path) -> None:
    """A flipped bit, a file gone, the content of another: resume says which, and changes nothing."""
    settings = settings_of("da-pfl", state="file")
    with pytest.raises(Stop):
        run_settings(settings, out=tmp_path / "a", on_round=stop)
    last = read_commit(tmp_path / "a").last
    name = {"clients": [*last.clients.values()], "banks": last.banks["bank"], "server": [last.server]}[kind][0]
    path = tmp_path / "a" / "objects" / name
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(raw if damage == "a bit" else next(iter(path.parent.iterdir())).read_bytes() + b"x")
    before = content(tmp_path / "a")
    with pytest.raises(RunFolderError, match=name):
        resume(tmp_path / "a")
    assert kind == "clients" or content(tmp_path / "a") == before


def stop(report: Any, line: Any) -> None:
    """After a round in which everybody has a state."""
    if report.round == 5:
        raise Stop


def test_states_are_gone_when_they_were_to_be_kept_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run without a folder leaves no file behind once its result is gone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run_settings(settings_of("da-pfl", state="file"))

    assert len(result.server.state.bank) == 6
    assert bool((result.server.state.bank != 0).any())
    del result
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_auto_means_files_for_large_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Six linear models of 650 numbers take 15,600 bytes: more than 15,599 and not more than 15,600."""
    for limit, in_files in ((15_600, False), (15_599, True)):
        monkeypatch.setattr("fedkin.experiment.run.IN_MEMORY", limit)
        run_settings(settings_of("da-pfl"), out=tmp_path / str(limit))
        assert bool(read_commit(tmp_path / str(limit)).last.banks) == in_files
    assert lines_in(tmp_path / "15600") == lines_in(tmp_path / "15599")
    assert_same_tensors(tmp_path / "15600", tmp_path / "15599")
