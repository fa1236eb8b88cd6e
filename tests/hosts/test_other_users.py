"""What another user of a client's machine, and another registered client, can do: real programs on loopback."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fedkin.deploy.programs import descendants
from hostprograms import Fleet, events, rounds
from hosttoys import settings
from linkprograms import until

pytestmark = pytest.mark.hosts


def words_of(pid: int) -> list[str]:
    """The command line of a process, as any user of the machine can read it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:  # it has ended
        return []


class Thief:
    """Asks a SuperNode for the next message all the time, as its SuperExec does, and reads all command lines.

    Attributes:
        got: how often each answer came.
        tokens: command lines with a token on them.
    """

    def __init__(self, node: int, ca: Path) -> None:
        self.got, self.tokens = Counter[str](), list[str]()
        self._node, self._ca, self._ended = node, ca, threading.Event()
        self._thread = threading.Thread(target=self._steal)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _steal(self) -> None:
        asking: RuntimeHttpClient | None = None
        port = ""
        while not self._ended.wait(0.02):
            lines = [words_of(pid) for pid in descendants(self._node)]
            self.tokens += [" ".join(words) for words in lines if "--token" in words]
            now = next((w[w.index("--port") + 1] for w in lines if "--port" in w and "--isolation" in w), "")
            if now and now != port:
                if asking is not None:
                    asking.close()
                port = now
                asking = RuntimeHttpClient.from_server_address(
                    server_address=f"127.0.0.1:{port}",
                    insecure=False,
                    root_certificates=self._ca.read_bytes(),
                    interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
                )
            if asking is not None:
                try:
                    answer = asking.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))
                    self.got["a task" if answer.token else "no task"] += 1
                except httpx.HTTPStatusError as error:
                    self.got[str(error.response.status_code)] += 1
                except httpx.TransportError:
                    self.got["nobody there"] += 1
        if asking is not None:
            asking.close()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="command lines are read in /proc")
def test_messages_are_for_the_client_alone(own: Fleet) -> None:
    """Another user asks the SuperNode's port for messages during a whole run: each time it is refused, no command line
    has a token on it, and the client answers in every round."""
    own.up(0)
    own.until(lambda: (own.disk(0) / "runtime" / "secret").exists())
    thief = Thief(own.nodes[0].pid, own.disk(0) / "runtime" / "ca.crt")
    try:
        s = settings("fedavg", run={"rounds": 2, "eval_every": 2}, hosts={"min_clients": 1, "reply_timeout": 300.0})
        lines = own.finish(own.submit(s, "run"), 900)
    finally:
        thief.stop()
    assert [list(line.answered) for line in lines] == [[0], [0]]
    assert thief.got["401"] > 10, thief.got
    assert not thief.got["a task"], thief.got
    assert not thief.got["no task"], thief.got
    assert thief.tokens == []
    logged = (own.disk(0) / "superexec.log").read_text()
    assert "Start `flwr-clientapp` process" in logged, "the thief looked while client apps were started"


def test_another_clients_name_is_refused(own: Fleet) -> None:
    """The holder of the key of c1 comes as c0, before c0 does: it is refused by its name, and c0 makes the run with c2
    although c1 is there all the time."""
    own.up()
    own.start(1, name="c0")
    s = settings(
        "fedavg",
        run={"rounds": 2, "eval_every": 2},
        hosts={"min_clients": 2, "min_connected": 2, "wait_timeout": 900.0},
    )
    folder = own.submit(s, "names")
    own.until(lambda: "its key is registered as c1, and it came as c0" in events(folder))
    own.start(0)
    own.start(2)
    lines = own.finish(folder, 900)
    assert [list(line.answered) for line in lines] == [[0, 1], [0, 1]]
    assert [c["client"] for c in json.loads((folder / "clients.json").read_text())["clients"]] == ["c0", "c2"]
    (refused,) = [line for line in map(json.loads, events(folder).splitlines()) if "registered as" in line["what"]]
    assert refused["client"] == "c1"


def open_to_others(folder: Path) -> list[str]:
    """Files and folders in a folder that any other user could read or write, with their modes."""
    found = [folder, *folder.rglob("*")]
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in found if not path.is_symlink()}
    return [f"{path} {mode:04o}" for path, mode in modes.items() if mode & 0o077]


def test_private_files_are_private_whatever_the_umask(own: Fleet) -> None:
    """Keys, a link and a node made and run with umask 000, the node in a folder that was open to all: no file of
    theirs can be read by other users, but for the public keys and certificates, whose folder is closed."""
    masked = [sys.executable, "-c", "import os, sys; os.umask(0); os.execv(sys.argv[1], sys.argv[1:])"]
    keys = own.folder / "made" / "keys"
    for words in (["authority", str(keys), "--host", "127.0.0.1"], ["node", str(keys), "c9"]):
        subprocess.run([*masked, sys.executable, "-m", "fedkin", "keys", *words], check=True, capture_output=True)
    shown = {str(keys / name) for name in ("ca.crt", "server.pem", "c9.pub")}
    assert {line.split()[0] for line in open_to_others(own.folder / "made")} == shown
    link = own.folder / "made" / "link"
    ports = ["--host", "127.0.0.1", "--port", str(own.settings.port), "--inner-port", str(own.settings.inner_port)]
    words = [*masked, sys.executable, "-m", "fedkin", "link", str(link), "--keys", str(own.place / "keys"), *ports]
    with (own.folder / "link.log").open("wb") as log:
        up = subprocess.Popen([*words, "--nodes", str(own.place / "nodes")], stdout=log, stderr=log)
    try:
        own.disk(0).mkdir()
        own.disk(0).chmod(0o777)
        own.until(lambda: "stop:" in (own.folder / "link.log").read_text())
        own.start(0, *masked)
        s = settings("fedavg", run={"rounds": 1, "eval_every": 1}, hosts={"min_clients": 1, "reply_timeout": 300.0})
        own.place = link
        folder = own.submit(s, "run")
        own.finish(folder, 900)
        for made in (link, own.disk(0), folder):
            assert open_to_others(made) == []
        assert "was open to other users" in (own.folder / "node-c0.log").read_text()
    finally:
        up.terminate()
        assert until(lambda: up.poll() is not None)


def test_a_link_and_its_nodes_need_no_ca_key(own: Fleet) -> None:
    """With the authority's key on another machine the link starts, a node comes online and a run is made; a new
    certificate that was signed elsewhere is taken at the next start, and nodes need nothing new."""
    offline = own.folder / "offline"
    offline.mkdir()
    for name in ("ca.key", "ca.crt"):
        (offline / name).write_bytes((own.place / "keys" / name).read_bytes())
    (own.place / "keys" / "ca.key").unlink()
    s = settings("fedavg", run={"rounds": 1, "eval_every": 1}, hosts={"min_clients": 1, "reply_timeout": 300.0})
    own.up(0)
    assert len(rounds_of(own, s, "first")) == 1
    assert own.link is not None
    own.link.stop()
    again = [sys.executable, "-m", "fedkin", "keys", "server", str(offline), "--host", "127.0.0.1"]
    subprocess.run(again, check=True, capture_output=True)
    for name in ("server.pem", "server.key"):
        os.replace(offline / name, own.place / "keys" / name)
    own.up()
    assert len(rounds_of(own, s, "second")) == 1


def rounds_of(fleet: Fleet, s: object, name: str) -> list[object]:
    folder = fleet.submit(s, name)  # type: ignore[arg-type]
    fleet.finish(folder, 900)
    return list(rounds(folder))
