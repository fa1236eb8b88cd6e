"""A node's programs: a late SuperNode is started again, tokens are not on command lines, files are private."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="cryptography comes with fedkin[flower]")

from fedkin.core import ConfigError
from fedkin.deploy import node as nodes
from fedkin.deploy import superexec
from fedkin.deploy.lateness import EXPIRED, Lateness
from fedkin.deploy.messages import Clerk
from fedkin.deploy.node import Node, run_node
from fedkin.deploy.participants import Members
from fedkin.deploy.supernode import _write_runtime
from hosttoys import settings

# a SuperNode whose answers never reach the server: the first one brings hellos that say so, the next one ends
LATE = """
import json, pathlib, re, socket, sys
from fedkin.deploy.wire_format import WireMessage, receive, send
here = pathlib.Path(sys.argv[1])
starts = here / "starts"
starts.write_text(starts.read_text() + "1" if starts.exists() else "1")
if len(starts.read_text()) > 1:
    sys.exit("the second SuperNode")
place = re.search('socket="(.*?)"', " ".join(sys.argv)).group(1)
for _ in range(5000):  # a node that does nothing about it sees this program end
    with socket.socket(socket.AF_UNIX) as to:
        to.connect(place)
        send(to, WireMessage(json.loads((here / "hello.json").read_text())))
        assert receive(to, seconds=600).head["ok"] is True
"""


class Ended(Exception):
    """The test has seen enough."""


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_late_supernode_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hellos with the number of those that expired reach a client that answers at once: the node says so, ends its
    SuperNode and starts another."""
    head = Clerk(settings("fedavg"), Members.load(tmp_path)).write("hello", 0, 60.0, seq=EXPIRED).head
    (tmp_path / "hello.json").write_text(json.dumps(dict(head)))
    (tmp_path / "late.py").write_text(LATE)
    fake = tmp_path / "flower-supernode"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/late.py {tmp_path} "$@"\n')
    fake.chmod(0o700)
    monkeypatch.setattr(nodes, "program", lambda name: str(fake))
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "the SuperNode ended" in line:
            raise Ended

    with pytest.raises(Ended):
        run_node(Node("digits", "c0", folder=tmp_path / "node", share=0, insecure_test=True), say)
    assert len((tmp_path / "starts").read_text()) == 2
    assert said[-2].startswith(f"the server got no answer to its last {EXPIRED} hellos in time, though this client")
    assert "look at the load of this machine" in said[-2]
    assert "the second SuperNode" in said[-1]


@pytest.mark.parametrize("other", ["a", "b"])
def test_a_folder_is_for_one_node(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second node, of the same client or of another, is refused at once with the first one's process and the remedy;
    the first one's socket and keys stay as they are, and its end frees the folder."""
    monkeypatch.setattr(nodes, "program", lambda name: "false")
    monkeypatch.setattr(nodes._Attentive, "start", lambda self: None)
    folder = tmp_path / "node"
    (folder / "runtime").mkdir(parents=True)
    (folder / "runtime" / "ca.crt").write_text("the first one's")
    seen: list[int] = []

    def second(line: str) -> None:
        if "the SuperNode ended" in line:
            raise Ended

    def first(line: str) -> None:
        if " is at work for " in line:
            sockets = sorted(folder.glob("*.sock"))  # none where the path is too long for one
            already = re.escape(f"a node runs in {folder} already (process {os.getpid()} on ")
            with pytest.raises(ConfigError, match=rf"^{already}.*\); .* choose another folder with --folder$"):
                run_node(Node("digits", other, folder=folder, share=1, insecure_test=True), second)
            assert sorted(folder.glob("*.sock")) == sockets
            assert (folder / "runtime" / "ca.crt").read_text() == "the first one's"
            assert (folder / ".lock").stat().st_mode & 0o777 == 0o600
            seen.append(1)
        if "the SuperNode ended" in line:
            raise Ended

    for _ in range(2):
        with pytest.raises(Ended):
            run_node(Node("digits", "a", folder=folder, share=0, insecure_test=True), first)
        (folder / "runtime" / "ca.crt").write_text("the first one's")
    assert len(seen) == 2


def test_restarts_for_lateness_become_rarer() -> None:
    """One at once, the next not before 300 s, then 600 s, at most an hour; another message resets this."""
    time = Time()
    late = Lateness(time)
    hello = {"kind": "hello", "seq": EXPIRED}
    restarts = []
    while time.now < 20000.0:
        late.record(hello, 0.01)
        if late.due():
            restarts.append(time.now)
        time.now += 60.0
    assert restarts == [0.0, 300.0, 900.0, 2100.0, 4500.0, 8100.0, 11700.0, 15300.0, 18900.0]  # an hour at the most
    late.record({"kind": "update", "seq": 7}, 0.01)
    assert late.due() is None
    late.record(hello, 0.01)
    assert late.due() is not None


def test_one_late_hello_restarts_once() -> None:
    """However long it is until the next message."""
    time = Time()
    late = Lateness(time)
    late.record({"kind": "hello", "seq": EXPIRED}, 0.01)
    assert late.due() is not None
    time.now = 10_000.0
    assert late.due() is None


@pytest.mark.parametrize("seq", [0, EXPIRED - 1, None, "9", True])
def test_hellos_in_time_restart_nothing(seq: Any) -> None:
    """Nor does what is no number of hellos."""
    late = Lateness(Time())
    late.record({"kind": "hello", "seq": seq}, 0.01)
    assert late.due() is None


def test_a_slow_client_is_not_helped_by_a_restart() -> None:
    """A client that needs most of a hello's time by itself keeps its SuperNode."""
    late = Lateness(Time())
    late.record({"kind": "hello", "seq": 9}, 45.0)
    assert late.due() is None


def test_a_token_goes_into_a_private_file(tmp_path: Path) -> None:
    """The client app's command has the file's name in the token's place, the file of the former command is gone, and
    other commands stay as they are."""
    command = ["flwr-clientapp", "--runtime-api-address", "a", "--token", "secret", "--parent-pid", "1"]
    for _ in range(2):
        words = superexec.without_token(command, tmp_path)
    assert [*words[:3], *words[5:]] == [*command[:3], *command[5:]]
    assert words[3] == "--token-file"
    (file,) = tmp_path.iterdir()
    assert (str(file), file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (words[4], "secret", 0o600)
    assert superexec.without_token(["uv", "sync"], tmp_path) == ["uv", "sync"]


@pytest.mark.thorough
def test_flowers_client_app_takes_a_token_from_a_file(tmp_path: Path) -> None:
    """The installed flwr knows the flags that are given to it; `make test-hosts-short` runs its programs with them."""
    pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")
    from fedkin.deploy.offline import environment, program

    for name, flags in {
        "flwr-clientapp": ["--token-file", "--root-certificates"],
        "flower-superexec": ["--superexec-auth-secret-file", "--root-certificates", "--parent-pid"],
        "flower-supernode": ["--superexec-auth-secret-file", "--isolation", "--ssl-ca-certfile", "--ssl-certfile"],
    }.items():
        words = [program(name), "--help"]
        done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, check=True)
        assert all(flag in done.stdout for flag in flags), name


def test_each_start_has_a_new_secret(tmp_path: Path) -> None:
    """Secret and certificate are made anew, in files of this user's alone."""
    _write_runtime(tmp_path / "runtime")
    first = {path.name: path.read_bytes() for path in (tmp_path / "runtime").iterdir()}
    _write_runtime(tmp_path / "runtime")
    for path in (tmp_path / "runtime").iterdir():
        assert first[path.name] != path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(first) == {"ca.crt", "server.pem", "server.key", "secret"}


def test_a_key_that_others_can_read_is_told_of(tmp_path: Path) -> None:
    """The advice has the file, its mode and the command as it is typed; a private key needs none."""
    from fedkin.storage.files import open_to_others

    key = tmp_path / "my key"
    key.write_text("x")
    key.chmod(0o644)
    assert open_to_others(key) == (
        f"{key} can be read by other users of this machine (mode 0644); run: chmod 600 '{key}'"
    )
    key.chmod(0o600)
    assert open_to_others(key) is None
