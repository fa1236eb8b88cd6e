"""A link's look at its folder of keys: what is admitted while single files are bad or the SuperLink is slow."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin.core.errors import ConfigError, EngineError
from fedkin_hosts import keys
from fedkin_hosts.control import Control, RegisteredNode
from fedkin_hosts.link import Link, LinkSettings
from fedkin_hosts.machine import listening
from refusals import refuses


class Operator(Control):
    """The operator's side of a SuperLink in memory; `slow`: it does not answer, `picky`: a name that it refuses."""

    def __init__(self) -> None:
        self.known, self.slow, self.picky = list[RegisteredNode](), False, ""

    def nodes(self) -> list[RegisteredNode]:
        if self.slow:
            raise EngineError("no answer")
        return list(self.known)

    def register(self, name: str, key: keys.PublicKey) -> None:
        if name == self.picky:
            raise EngineError("not this one")
        self.known.append(RegisteredNode(len(self.known), name, keys.pem(key), "registered", ""))

    def _ask(self, call: object, request: object) -> None:
        i = request.node_id  # type: ignore[attr-defined]
        one = self.known[i]
        self.known[i] = RegisteredNode(i, one.name, one.key, "unregistered", "")


class Site:
    """A link whose SuperLink is not there, with the keys n1, n2 and n3 to choose from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes, self.operator = folder, folder / "nodes", Operator()
        keys.make_authority(folder / "keys", ["127.0.0.1"])
        for name in ("n1", "n2", "n3"):
            keys.make_node_key(folder / "private", name)
        self.link = Link(LinkSettings(folder, host="127.0.0.1", port=0, inner_port=0))
        self.link.control = self.operator
        self.said: list[str] = []

    def put(self, *names: str) -> None:
        for name in names:
            shutil.copy(self.folder / "private" / f"{name}.pub", self.nodes)

    def look(self) -> list[str]:
        """The names that the link admits after a look, in order."""
        self.said = self.link.look()
        return sorted(name for name, _ in self.link.keyring._keys.values())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "my link")


@pytest.fixture(autouse=True)
def close(site: Site) -> object:
    yield
    site.link.close()


def test_a_bad_file_keeps_no_removed_key_admitted(site: Site) -> None:
    """What is not a key is said and skipped; a key whose file is gone is dropped in the same look."""
    site.put("n1", "n2")
    assert site.look() == ["n1", "n2"]
    (site.nodes / "bad.pub").write_text("garbage\n")
    (site.nodes / "n1.pub").unlink()
    assert site.look() == ["n2"]
    bad, gone = site.said
    assert str(site.nodes / "bad.pub") in bad
    assert gone.startswith("n1 (SHA256:")
    words = ["fedkin", "link", str(site.folder), "--revoke", "n1"]
    assert shlex.split(gone.partition("for good: ")[2]) == words


@pytest.mark.parametrize("part", [20, 40, 100, 150])
def test_a_mended_file_is_looked_at_again(site: Site, part: int) -> None:
    """A copy that was looked at before it was whole is registered when it is; others do not wait for it."""
    whole = (site.folder / "private" / "n2.pub").read_text()
    (site.nodes / "n2.pub").write_text(whole[:part])
    site.put("n3")
    assert site.look() == ["n3"]
    (site.nodes / "n2.pub").write_text(whole)
    assert site.look() == ["n2", "n3"]
    assert site.said[0].startswith("registered n2 (SHA256:")


def test_a_replaced_key(site: Site) -> None:
    """Another key under a known name is registered, and the former one does not pass; revoked, neither comes in."""
    site.put("n1")
    site.look()
    (former,) = site.link.keyring._keys
    shutil.copy(site.folder / "private" / "n2.pub", site.nodes / "n1.pub")
    assert site.look() == ["n1"]
    assert former not in site.link.keyring._keys
    assert site.operator.revoke("n1").count("SHA256:") == 2
    assert site.look() == []
    assert "stays shut out" in site.said[0]
    with refuses(ConfigError, "'n1'"):
        site.operator.revoke("n1")


def test_a_slow_superlink_is_asked_again(site: Site) -> None:
    """A removed key is dropped without it; what is new comes in as soon as it answers."""
    site.put("n1", "n2")
    site.look()
    site.operator.slow = True
    (site.nodes / "n1.pub").unlink()
    site.put("n3")
    assert site.look() == ["n2"]
    assert len(site.said) == 1
    site.operator.slow = False
    assert site.look() == ["n2", "n3"]


def test_a_key_that_is_refused_harms_no_other(site: Site) -> None:
    """The others come in; that one is tried again."""
    site.operator.picky = "n2"
    site.put("n1", "n2", "n3")
    assert site.look() == ["n1", "n3"]
    site.operator.picky = ""
    assert site.look() == ["n1", "n2", "n3"]
    assert [line.partition(" (")[0] for line in site.said] == ["registered n2"]


def test_what_is_no_link(tmp_path: Path) -> None:
    """The commands in the texts can be copied into a shell."""
    folder = tmp_path / "no link"
    with pytest.raises(ConfigError) as none:
        Control.at(folder)
    assert shlex.split(str(none.value).partition("start one there: ")[2]) == ["fedkin", "link", str(folder)]
    with refuses(ConfigError, f"fedkin keys authority '{folder}' --host"):
        keys.check_server(folder)


def test_a_taken_port_names_its_flag(tmp_path: Path) -> None:
    """Each of a link's ports has its own."""
    keys.make_authority(tmp_path / "keys", ["127.0.0.1"])
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for flag, settings in {
            "--inner-port": LinkSettings(tmp_path, host="127.0.0.1", port=0, inner_port=port),
            "--host or --port": LinkSettings(tmp_path, host="127.0.0.1", port=port, inner_port=0),
            "--port": LinkSettings(tmp_path, port=port, insecure_test=True),
        }.items():
            with refuses(ConfigError, f"port {port}", f"another {flag}"):
                Link(settings)
