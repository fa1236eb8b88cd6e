"""Flower's simulator without Ray: a simulated node answers where it is called, in runs that have such nodes only."""

from __future__ import annotations

import html
import json
import shlex
import socket
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tyro

from fedkin.core import ConfigError, EngineError
from fedkin.core.refusals import Code
from fedkin.experiment.settings import toml_of
from fedkin.record.result import Result
from fedkin_hosts import scaleout, submitted
from fedkin_hosts.commands import nodes
from fedkin_hosts.commands.nodes import Submission
from fedkin_hosts.control import Control
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.machine import free_port
from fedkin_hosts.serve import serve
from fedkin_hosts.submitted import Submitted, run_submitted
from hosttoys import Direct, Time, same_server, settings, simulated, sites, through_bytes
from madeup import about, round_line, written
from refusals import refuses


class Actors:
    """A post whose nodes are simulated: all are called in this process, as Ray's processes are."""

    def __init__(self, word: str, clients: int) -> None:
        self._word, self._clients, self._ready = word, clients, dict[str, WireMessage | str]()

    def nodes(self) -> Mapping[int, str]:
        return {1000 - i: "" for i in range(self._clients)}

    def names(self) -> None:
        return None

    def post(self, letters: Mapping[int, WireMessage], seconds: float) -> Mapping[int, str]:
        tickets = {node: f"{node}.{len(self._ready)}" for node in letters}
        for node, letter in letters.items():
            place = {"partition-id": 1000 - node, "num-partitions": self._clients}
            self._ready[tickets[node]] = through_bytes(scaleout.answer(through_bytes(letter), place, self._word))
        return tickets

    def collect(self, tickets: Collection[str]) -> Mapping[str, WireMessage | str]:
        return {t: self._ready.pop(t) for t in list(tickets) if t in self._ready}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that keeps fewer clients at hand than it works for, and none of another test."""
    monkeypatch.setattr(scaleout, "_site", lru_cache(2)(scaleout._site.__wrapped__))


@pytest.mark.parametrize("name", ["fedrep", "da-pfl"])
def test_one_process_for_all_clients_equals_the_simulator(name: str, tmp_path: Path, few: None) -> None:
    """Also when it forgets clients and reads their state from the run's folder again; data are dealt out once."""
    scaleout._dealt.cache_clear()
    s = settings(name, data={"clients": 4}, hosts={"min_clients": 4})
    folder = tmp_path / "run"
    ours = serve(s, Actors(Submitted.of(s, folder, data="digits").word, 4), folder, clock=Time().clock())
    theirs = simulated(s)
    assert same_server(ours, theirs)
    assert (ours.rounds, ours.clients, ours.relations) == (theirs.rounds, theirs.clients, theirs.relations)
    assert scaleout._site.cache_info().currsize == 2
    assert scaleout._dealt.cache_info().misses == 1
    assert sorted(p.name for p in (folder / "clients").iterdir()) == [f"c{i}" for i in range(4)]


@pytest.mark.parametrize(("clients", "first", "last"), [(1, "c0", "c0"), (10, "c0", "c9"), (101, "c000", "c100")])
def test_names_sort_as_numbers(clients: int, first: str, last: str) -> None:
    """Clients get their numbers in the order of their names; those must be the numbers of their shares."""
    names = [scaleout.name_of(i, clients) for i in range(clients)]
    assert names == sorted(names)
    assert (names[0], names[-1]) == (first, last)


def test_a_run_on_real_hosts_is_not_for_simulated_nodes(tmp_path: Path) -> None:
    """A node of Flower's that somebody started with a partition does not read data that a server names."""
    word = Submitted.of(settings("fedavg"), tmp_path).word
    with refuses(ConfigError, "fedkin node"):
        scaleout.answer(WireMessage({}), {"partition-id": 0, "num-partitions": 1}, word)


def test_the_report_says_how_to_submit_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fedkin run` would simulate what was computed on hosts: summary and report name `fedkin submit`, and its link."""
    s, folder = settings("local", run={"rounds": 1}), tmp_path / "run"
    run = Submitted.of(s, folder, tmp_path / "my link")
    assert run.command == f"fedkin submit {folder}/config.toml --link '{tmp_path}/my link'"
    monkeypatch.setattr(submitted, "_log_to", lambda stream: None)  # it takes the log away from other tests
    run_submitted(Direct(sites(tmp_path)), run.word)
    assert json.loads((folder / "summary.json").read_text())["command"] == run.command
    assert run.command in html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    assert "fedkin run" not in (folder / "report.html").read_text(encoding="utf-8")
    asked = tyro.cli(Submission, args=shlex.split(run.command)[2:])
    assert (asked.file, asked.link) == (folder / "config.toml", tmp_path / "my link")
    assert Submitted.of(s, folder, data="digits").command == f"fedkin submit {folder}/config.toml --ray"


@pytest.mark.parametrize("words", [[], ["--link", "my-link"], ["--link", "my link"], ["--ray"]])
@pytest.mark.parametrize("folder", ["runs/a", "my runs/a"])
def test_the_command_says_how_to_go_on(
    words: list[str], folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the link that the run was submitted to, in words that a shell takes as they are."""
    asked = tyro.cli(Submission, args=["run.toml", "--detach", *words])
    monkeypatch.setattr(nodes, "submit", lambda *args: "7")
    nodes._submitted(settings("fedavg"), Path(folder), Control(asked.link, "127.0.0.1:1", None), asked)
    again = capsys.readouterr().out.split("after a failure: ")[1]
    assert shlex.split(again) == ["fedkin", "submit", folder, *words]


def test_a_link_that_is_not_there_leaves_the_reason_of_the_last_failure(tmp_path: Path) -> None:
    """`failed.txt` goes when the run is submitted."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(toml_of(settings("fedavg")))
    (folder / "failed.txt").write_text("no space left")
    with refuses(ConfigError, tmp_path / "nowhere"):
        nodes.submit_command([str(folder), "--link", str(tmp_path / "nowhere")])
    assert (folder / "failed.txt").read_text() == "no space left"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--link", "my link"], ["fedkin", "status", "my link"]),
        (["--ray"], ["fedkin", "submit", "my runs/a", "--ray"]),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(
    words: list[str], told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words that a shell takes as they are."""

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    asked = tyro.cli(Submission, args=["run.toml", "--quiet", *words])
    monkeypatch.setattr(nodes, "submit", lambda *args: "7")
    monkeypatch.setattr(nodes, "_follow", interrupted)
    assert (
        nodes._submitted(settings("fedavg"), Path("my runs/a"), Control(asked.link, "127.0.0.1:1", None), asked) == 130
    )
    assert shlex.split(capsys.readouterr().err)[-len(told) :] == told


def test_a_run_that_ended_without_a_report_is_named_for_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is quoted."""
    monkeypatch.setattr(nodes, "_LOOK", 0.0)
    folder = tmp_path / "my run"
    with refuses(EngineError, f"submit '{folder}'", "over"):
        nodes._follow(folder, None, 0.0, lambda: "over")


@pytest.mark.parametrize(("reason", "code"), [("not-finite", 3), ("shape", 0)])
def test_a_submitted_run_that_diverged_ends_with_its_own_code(
    reason: Code, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As fedkin run does; the lines of the rounds are all that the command reads."""
    line = round_line(1, evaluated=False, refused={0: reason})
    asked = tyro.cli(Submission, args=["run.toml", "--quiet"])

    def submitted(*args: object) -> str:
        written(tmp_path, Result(run=about(), config={}, rounds=[line]))
        (tmp_path / "report.html").write_text("")
        return "7"

    monkeypatch.setattr(nodes, "submit", submitted)
    assert nodes._submitted(settings("fedavg"), tmp_path, Control(asked.link, "127.0.0.1:1", None), asked) == code
    assert ("training diverged from round 1 on" in capsys.readouterr().err) is (code == 3)


def test_all_clients_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation has as many clients as its data are shared out to, and nobody is late in it."""
    _with_ray(monkeypatch)
    waiting, clients = scaleout.scaled(settings("fedavg", data={"clients": 5}, hosts={"max_samples": 7}))
    hosts = waiting.hosts
    assert (clients, hosts.min_clients, hosts.min_connected, hosts.max_samples) == (5, 5, 5, 7)
    assert hosts.reply_timeout >= 86400


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once, with what to install; Flower would say it in a log of its own."""
    monkeypatch.setattr(scaleout.importlib.util, "find_spec", lambda name: None)
    with refuses(ConfigError, "fedkin[ray]"):
        scaleout.scaled(settings("fedavg"))


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try for minutes; a cluster that listens, and addresses of another kind, are left to Ray."""
    _with_ray(monkeypatch)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with refuses(ConfigError, "RAY_ADDRESS=127"):
        scaleout.scaled(settings("fedavg"))
    with socket.create_server(("127.0.0.1", 0)) as there:
        for address in (f"127.0.0.1:{there.getsockname()[1]}", "auto", "local", "ray://127.0.0.1:1"):
            monkeypatch.setenv("RAY_ADDRESS", address)
            assert scaleout.scaled(settings("fedavg"))[1] == 3


def _with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[[str], Any] = scaleout.importlib.util.find_spec
    monkeypatch.setattr(scaleout.importlib.util, "find_spec", lambda name: name == "ray" or find(name))
