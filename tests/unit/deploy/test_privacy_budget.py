"""What a node writes down of its spending: for ever, before anything leaves, whole, and for its owner's eyes only."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.data import SiteData, federation_of
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.privacy_budget import Account, OverBudget, PrivacyLimits
from fedkin_hosts.tensors import bundle
from hosttoys import Direct, Heard, on_hosts, settings, sites
from refusals import refuses


@pytest.fixture
def describe(tmp_path: Path) -> WireMessage:
    """A message that asks a client for class counts with an epsilon of 0.1."""
    s, heard = settings("da-pfl", run={"rounds": 1}, privacy={"metadata_epsilon": 0.1}), Heard("describe")
    on_hosts(s, tmp_path / "seen", Direct(sites(tmp_path / "seen"), touch=heard))
    return heard.found[0][2]


# ---- counts over all runs ------------------------------------------------------------------------------------------
def test_three_hundred_runs_do_not_tell_the_true_counts(describe: WireMessage, tmp_path: Path) -> None:
    """A server that invents a run's name for each request gets counts until the owner's total is spent, across a
    restart of the node and without its folders of runs, and then no more."""
    limits, answers = PrivacyLimits(max_metadata_epsilon=0.5), list[WireMessage]()
    for i in range(300):
        if i % 100 == 0:
            site = ClientService("c0", SiteData("digits", share=0), tmp_path / "disk", limits)
        answers.append(site.answer(WireMessage({**describe.head, "run": f"run-{i}"}, describe.body)))
        shutil.rmtree(tmp_path / "disk" / "c0" / f"run-{i}", ignore_errors=True)
    assert [a.head["ok"] for a in answers] == [True] * 5 + [False] * 295
    assert {a.head["code"] for a in answers[5:]} == {"budget"}
    assert not any(a.body for a in answers[5:])
    mean = torch.stack([bundle(a).counts for a in answers[:5]]).double().mean(0)
    true = federation_of(settings("fedavg").data, 0).clients[0].train.counts(10)
    assert float((mean - true).abs().sum()) > 10


def test_the_total_of_counts_is_exact_and_says_both_numbers(tmp_path: Path) -> None:
    """Three times 0.1 is not more than 0.3, and a fourth time is; a run that was told is told again for nothing."""
    mine = Account(tmp_path, "c0", counts_limit=0.3)
    first = mine.release("a", torch.arange(10), 0.1, 1e-5)
    for run in ("b", "c"):
        mine.release(run, torch.arange(10), 0.1, 1e-5)
    before = mine.path.read_bytes()
    with refuses(OverBudget, "0.4", "--max-metadata-epsilon 0.3"):
        mine.release("d", torch.arange(10), 0.1, 1e-5)
    assert mine.path.read_bytes() == before
    assert torch.equal(mine.release("a", torch.arange(10), 0.1, 1e-5), first)


# ---- whole at any moment -------------------------------------------------------------------------------------------


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """Starts a process that does some work and writes to a pipe; its number, and where to read."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            work(write)
        finally:
            os._exit(7)
    os.close(write)
    return pid, read


def steps(account: Account) -> int:
    return sum(n for used in account.load().values() for *_, n in used.steps)


def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it spends leaves an account that can be read and holds all that was sent."""
    monkeypatch.setattr(Account, "words", lambda *_: "")
    mine, draw, sent = Account(tmp_path, "c0"), random.Random(0), 0

    def spend_on(pipe: int) -> None:
        while True:
            Account(tmp_path, "c0").spend(f"run-{draw.random()}", 1.0, {0.1: 1}, 1e-5)
            os.write(pipe, b".")

    for _ in range(15):
        pid, pipe = in_child(spend_on)
        sent += sum(len(os.read(pipe, 1)) for _ in range(draw.randrange(6)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        sent += len(os.read(pipe, 1000))
        os.close(pipe)
        assert steps(mine) >= sent
    assert steps(mine) > 15


@pytest.mark.parametrize("moment", ["open", "fsync", "replace", "after"])
def test_ended_at_each_step_of_writing(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step of writing is the last one of a process, the account is the former one or the new one, and
    nothing is sent that is not in it."""
    monkeypatch.setattr(Account, "words", lambda *_: "")
    Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)

    def spend_and_die(pipe: int) -> None:
        replace, opened = os.replace, Path.open
        deaths: dict[str, tuple[Any, str, Callable[..., Any]]] = {
            "open": (Path, "open", lambda p, *a, **k: os._exit(9) if p.suffix == ".new" else opened(p, *a, **k)),
            "fsync": (os, "fsync", lambda _: os._exit(9)),
            "replace": (os, "replace", lambda *_: os._exit(9)),
            "after": (os, "replace", lambda *names: (replace(*names), os._exit(9))),
        }
        monkeypatch.setattr(*deaths[moment])
        Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)
        os.write(pipe, b".")

    pid, pipe = in_child(spend_and_die)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert os.read(pipe, 1) == b""
    os.close(pipe)
    assert steps(Account(tmp_path, "c0")) == (2 if moment == "after" else 1)
    Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)  # nothing that was left behind is in the way


def test_two_processes_lose_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that were started in one folder by mistake wait for each other's entries."""
    monkeypatch.setattr(Account, "words", lambda *_: "")

    def spend_on(pipe: int) -> None:
        for _ in range(40):
            Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)
        os.write(pipe, b".")

    children = [in_child(spend_on) for _ in range(2)]
    assert [os.read(pipe, 1) for _, pipe in children] == [b".", b"."]
    for pid, pipe in children:
        os.waitpid(pid, 0)
        os.close(pipe)
    assert steps(Account(tmp_path, "c0")) == 80


# ---- the file ------------------------------------------------------------------------------------------------------
def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """The account, its lock and a client's memory are 0600, in folders of 0700, whatever the process masks."""
    mask = os.umask(0)
    try:
        on_hosts(
            settings("da-pfl", run={"rounds": 1}, privacy={"metadata_epsilon": 0.1}), tmp_path, Direct(sites(tmp_path))
        )
    finally:
        os.umask(mask)
    place = tmp_path / "disks" / "c0"
    (memory,) = place.glob("*/memory.safetensors")
    modes = {p.name: p.stat().st_mode & 0o777 for p in (*place.iterdir(), memory) if p.is_file()}
    assert modes == dict.fromkeys(("account (all runs).json", "account (all runs).lock", "memory.safetensors"), 0o600)
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "disks", place, memory.parent)} == {0o700}


def test_a_damaged_account_stops_private_answers(describe: WireMessage, tmp_path: Path, caplog: Any) -> None:
    """A changed digit is noticed: the site tells nothing, leaves the file as it is, and its log names the file and
    what to do."""
    site = ClientService("c0", SiteData("digits", share=0), tmp_path)
    assert site.answer(describe).head["ok"] is True
    text = site.account.path.read_text()
    site.account.path.write_text(text.replace('"released": 0.1', '"released": 0.0'))
    other = site.answer(WireMessage({**describe.head, "run": "another"}, describe.body))
    assert (other.head["code"], other.body) == ("settings", b"")
    assert f"{site.account.path} is damaged (its digest does not fit)" in caplog.text
    assert "restored from a backup" in caplog.text
    assert '"released": 0.0' in site.account.path.read_text()


def test_a_link_to_a_missing_disk_is_not_an_empty_account(tmp_path: Path) -> None:
    """An account on a disk that is not mounted is not begun anew."""
    mine = Account(tmp_path, "c0")
    mine.path.parent.mkdir()
    mine.path.symlink_to(tmp_path / "not mounted" / "account.json")
    with pytest.raises(FileNotFoundError):
        mine.release("a", torch.arange(10), 0.1, 1e-5)
