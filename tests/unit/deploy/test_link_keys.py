"""A running link's look at its folder of keys: what is admitted while single files are bad or Flower is slow."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin.core.errors import ConfigError, EngineError
from fedkin.deploy import keys
from fedkin.deploy import link as links
from fedkin.deploy.control import Control
from fedkin.deploy.link import Link, LinkSettings, find_link, start_link
from fedkin.deploy.ports import listening


class Flower:
    """What ``flwr supernode`` answers; with `slow`, nothing, and with `picky`, nothing to that key."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, str]] = {}  # number -> the key's text, status
        self.slow, self.picky, self.asked = False, "", 0
        self.then: Callable[[], object] | None = None  # called when it is asked to register a key, once

    def ask(self, *words: str, seconds: float = 60.0) -> dict[str, Any]:
        self.asked += 1
        if self.slow or (self.picky and words[-1] == self.picky):
            raise EngineError(f"`flwr {words[1]}` did not answer within 60 s")
        if words[1] == "register":
            then, self.then = self.then, None
            if then is not None:
                then()
            text = Path(words[2]).read_text()
            if any(text == known for known, _ in self.nodes.values()):
                raise EngineError("public key already in use")
            self.nodes[str(len(self.nodes) + 1)] = text, "created"
            return {"node-id": str(len(self.nodes))}
        if words[1] == "unregister":
            self.nodes[words[2]] = self.nodes[words[2]][0], "unregistered"
        return {"nodes": [{"node-id": number, "status": status} for number, (_, status) in self.nodes.items()]}


class Site:
    """A link whose SuperLink is not there, with the keys n1, n2 and n3 to choose from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes = folder, folder / "nodes"
        for name in ("n1", "n2", "n3"):
            keys.make_node_key(folder / "private", name)
        self.nodes.mkdir()
        self.link = Link(LinkSettings(folder), contextlib.ExitStack())
        self.said: list[str] = []

    def put(self, *names: str) -> None:
        for name in names:
            shutil.copy(self.folder / "private" / f"{name}.pub", self.nodes)

    def look(self) -> list[str]:
        """What the link says after a look, and the names that it admits, in order."""
        self.said.clear()
        self.link._look(self.said.append)
        return sorted(name for name, _ in self.link.keyring._keys.values())


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Flower:
    made = Flower()
    monkeypatch.setattr(Control, "ask", lambda self, *words, **options: made.ask(*words, **options))
    return made


@pytest.fixture
def site(tmp_path: Path, flower: Flower, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(links, "Program", lambda *args: None)
    return Site(tmp_path / "link")


def test_a_bad_file_keeps_no_removed_key_admitted(site: Site) -> None:
    """What is not a key is said and skipped; a key whose file is gone is dropped in the same look."""
    site.put("n1", "n2")
    assert site.look() == ["n1", "n2"]
    (site.nodes / "bad.pub").write_text("garbage\n")
    (site.nodes / "n1.pub").unlink()
    assert site.look() == ["n2"]
    assert any(str(site.nodes / "bad.pub") in line for line in site.said)
    assert any(line.startswith("n1 is refused at the gate") for line in site.said)
    site.look()
    assert site.said == []


@pytest.mark.parametrize("part", [20, 40, 100, 150])
def test_a_mended_file_is_looked_at_again(site: Site, part: int) -> None:
    """A copy that was looked at before it was whole is registered when it is; others do not wait for it."""
    whole = (site.folder / "private" / "n2.pub").read_text()
    (site.nodes / "n2.pub").write_text(whole[:part])
    site.put("n3")
    assert site.look() == ["n3"]
    assert any("n2.pub is" in line for line in site.said)
    (site.nodes / "n2.pub").write_text(whole)
    assert site.look() == ["n2", "n3"]
    assert site.said[0].startswith("registered n2 (SHA256:")


def test_a_file_of_the_same_size_is_looked_at_again(site: Site) -> None:
    """Another key under a known name is registered; the former one does not pass, and is not said to be gone."""
    site.put("n1")
    site.look()
    text = (site.folder / "private" / "n2.pub").read_text().removesuffix("n2\n") + "n1\n"
    assert len(text) == (site.nodes / "n1.pub").stat().st_size
    (site.nodes / "n1.pub").write_text(text)
    assert site.look() == ["n1"]
    (key,) = site.link.keyring._keys
    site.link.keyring.load([site.folder / "private" / "n2.pub"])
    assert list(site.link.keyring._keys) == [key]
    assert any(line.startswith("the former key of n1 is refused at the gate") for line in site.said)


def test_a_revoked_name_is_shut_out_with_all_its_keys(site: Site, flower: Flower) -> None:
    """A name whose file was replaced has two keys at Flower; neither comes in afterwards."""
    site.put("n1")
    site.look()
    shutil.copy(site.folder / "private" / "n2.pub", site.nodes / "n1.pub")
    site.look()
    assert site.link.control.revoke("n1").count("SHA256:") == 2
    assert {status for _, status in flower.nodes.values()} == {"unregistered"}
    assert site.look() == []


def test_writes_within_one_tick_of_the_clock_are_seen(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still, the times of a file that is written again do not differ; its text does."""
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **options: os.stat_result([*stat(self, **options)[:7], 0, 0, 0]))
    site.put("n1", "n2")
    seen = links._files(site.nodes)
    (site.nodes / "n1.pub").write_bytes((site.nodes / "n2.pub").read_bytes())
    assert links._files(site.nodes) != seen


def test_a_key_that_is_shut_out_during_a_look_is_dropped_in_the_next(site: Site, flower: Flower) -> None:
    """Another process revokes it after Flower has listed it and before the other keys are registered."""
    site.put("n1")
    site.look()
    site.put("n2")
    flower.then = lambda: site.link.control.revoke("n1")
    site.look()
    assert site.look() == ["n2"]
    assert {key.name for key in site.link.control.book().values()} == {"n1", "n2"}
    asked = flower.asked
    site.look()
    assert flower.asked == asked


def test_a_file_with_a_kept_time_is_looked_at_again(site: Site) -> None:
    """Neither its time of writing nor its size differs, as with a copy that keeps times or a change of its mode."""
    file = site.nodes / "n1.pub"
    whole = (site.folder / "private" / "n1.pub").read_text()
    for text, admitted in (("x" * len(whole), []), (whole, ["n1"])):
        file.write_text(text)
        os.utime(file, (10**9, 10**9))
        assert site.look() == admitted


def test_a_slow_flower_is_asked_again(site: Site, flower: Flower) -> None:
    """Said once; a removed key is dropped without it; what is new comes in as soon as it answers."""
    site.put("n1", "n2")
    site.look()
    flower.slow = True
    (site.nodes / "n1.pub").unlink()
    site.put("n3")
    assert site.look() == ["n2"]
    assert ["did not answer within 60 s" in line for line in site.said] == [True]
    for _ in range(3):
        before = flower.asked
        assert site.look() == ["n2"]
        assert site.said == []
        assert flower.asked > before
    flower.slow = False
    assert site.look() == ["n2", "n3"]
    assert site.said[0].startswith("registered n3")
    site.look()  # keys may have been shut out while it was registered
    assert site.said == []
    before = flower.asked
    site.look()
    assert flower.asked == before


def test_a_key_that_flower_does_not_take_harms_no_other(site: Site, flower: Flower) -> None:
    """The others get their names and come in; that one is tried again, and said once."""
    flower.picky = "n2"
    site.put("n1", "n2", "n3")
    assert site.look() == ["n1", "n3"]
    assert ["n2.pub was not registered" in line for line in site.said] == [False, False, True]
    assert {key.name for key in site.link.control.book().values()} == {"n1", "n3"}
    site.look()
    assert site.said == []
    flower.picky = ""
    assert site.look() == ["n1", "n2", "n3"]
    assert [line.partition(" (")[0] for line in site.said] == ["registered n2"]


def test_commands_in_texts_are_quoted(tmp_path: Path, flower: Flower, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder whose name has a blank, they can be copied into a shell."""
    monkeypatch.setattr(links, "Program", lambda *args: None)
    site = Site(tmp_path / "my link")
    site.put("n1")
    site.look()
    (site.nodes / "n1.pub").unlink()
    site.look()
    words = ["fedkin", "link", str(site.folder), "--revoke", "n1"]
    assert shlex.split(site.said[-1].partition("for good: ")[2]) == words
    with pytest.raises(ConfigError) as none:
        find_link(tmp_path / "no link")
    assert shlex.split(str(none.value).partition("start one there: ")[2]) == [
        "fedkin",
        "link",
        str(tmp_path / "no link"),
    ]
    with pytest.raises(ConfigError, match=re.escape(f"fedkin keys authority '{tmp_path}/no link' --host")):
        keys.check_server(tmp_path / "no link")


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
            with pytest.raises(
                ConfigError, match=rf"cannot listen on 127\.0\.0\.1 port {port} .*; choose another {flag}$"
            ):
                start_link(settings)
