"""What another user of a client's machine, and another registered client, can do: real programs on loopback."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from hostprograms import Fleet, events, rounds
from hosttoys import settings
from linkprograms import until
from programs import descendants

pytestmark = pytest.mark.hosts


def listening(pids: Iterable[int]) -> list[str]:
    """The sockets on which processes wait for others: of the network, and those with a name in the file system."""
    links = [os.readlink(link) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    own = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    net = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    named = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [w[1] for w in net if w[3] == "0A" and w[9] in own] + [w[7] for w in named if len(w) > 7 and w[6] in own]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are listed in /proc")
def test_messages_are_for_the_client_alone(own: Fleet) -> None:
    """During a run a node has no socket that another user of its machine could reach, and nothing secret on a command
    line."""
    own.up(0)
    s = settings("fedavg", run={"rounds": 2, "eval_every": 2}, hosts={"min_clients": 1, "reply_timeout": 300.0})
    folder, family = own.submit(s, "run"), list[int]()
    own.until(lambda: len(rounds(folder)) >= 1)
    family = [own.nodes[0].pid, *descendants(own.nodes[0].pid)]
    assert len(family) == 2
    assert listening(family) == []
    words = " ".join(Path(f"/proc/{pid}/cmdline").read_text(errors="replace") for pid in family)
    assert "token" not in words
    assert [list(line.answered) for line in own.finish(folder, 900)] == [[0], [0]]


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
