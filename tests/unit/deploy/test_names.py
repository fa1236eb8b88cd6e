"""Who may join under which name, and what becomes of nodes that answer hellos too late."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedkin.core.refusals import Reason
from fedkin.experiment.settings import digest, settings_from, table_of
from fedkin_hosts.heads import WireMessage
from hosttoys import Direct, lines, on_hosts, same_server, settings, simulated, sites

NAMED = {100: "c0", 101: "c1", 102: "c2"}


def told(folder: Path) -> list[tuple[str, str]]:
    return [(event["client"], event["what"]) for event in lines(folder, "events")]


def joined(folder: Path) -> list[str]:
    """Names of those who took part, in the order of their numbers."""
    return [client["client"] for client in json.loads((folder / "run" / "clients.json").read_text())["clients"]]


def test_clients_under_the_names_of_their_keys_join(tmp_path: Path) -> None:
    """With every key registered under its client's name the run is the simulator's."""
    s = settings("fedavg")
    assert same_server(on_hosts(s, tmp_path, Direct(sites(tmp_path), named=NAMED)), simulated(s))


@pytest.mark.parametrize("free", [False, True])
def test_a_client_under_another_name_than_its_keys(free: bool, tmp_path: Path) -> None:
    """The node with the key of c7 comes as c1: it is refused by the name of its key, unless names are free, which does
    not change the digest of the settings."""
    s = settings("fedavg", hosts={"min_clients": 2, "free_names": free})
    on_hosts(s, tmp_path, Direct(sites(tmp_path), named={**NAMED, 101: "c7"}))
    assert joined(tmp_path) == (["c0", "c1", "c2"] if free else ["c0", "c2"])
    why = f"refused: {Reason('other-name', value='c1', expected='c7')}"
    assert [line for line in told(tmp_path) if line[0] == "c7"] == ([] if free else [("c7", why)])
    assert digest(table_of(s)) == digest(table_of(settings("fedavg", hosts={"min_clients": 2})))
    assert settings_from(table_of(s)).hosts.free_names is free


def test_a_key_without_a_name_is_asked_again(tmp_path: Path) -> None:
    """A node whose key is registered while the server greets it is told of once, and joins when the name is there."""
    s, asked = settings("fedavg"), list[int]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if client == "c1" and of.head["kind"] == "hello":
            asked.append(1)
            if len(asked) == 4:
                post.named = NAMED
        return post.ask(client, of)

    post = Direct(sites(tmp_path), named={100: "c0", 102: "c2"}, touch=touch)
    on_hosts(s, tmp_path, post)
    assert joined(tmp_path) == ["c0", "c1", "c2"]
    assert len(asked) == 4
    ((_, why),) = [line for line in told(tmp_path) if "no name at this link" in line[1]]
    assert "came as c1" in why


def test_late_hellos_are_said(tmp_path: Path) -> None:
    """Two hellos of c1 expire: the events name it and say what to look at, and the third one lets it join."""
    s, heard = settings("fedavg", hosts={"wait_timeout": 3600.0}), list[float]()

    def touch(post: Direct, client: str, of: WireMessage) -> Any:
        if client == "c1" and of.head["kind"] == "hello":
            heard.append(of.head["deadline"])
            if len(heard) < 3:
                return "expired" if len(heard) == 2 else None  # as Flower says it, or not at all
        return post.ask(client, of)

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), named=NAMED, touch=touch))
    assert joined(tmp_path) == ["c0", "c1", "c2"]
    assert heard == [60.0] * 3
    assert [name for name, why in told(tmp_path) if "has not answered a hello within 60 s" in why] == ["c1", "c1"]
    assert same_server(ours, simulated(s))


def test_names_are_those_that_the_link_registered(tmp_path: Path) -> None:
    """Flower lists a node with the name under which the link registered its key; a link without keys has no names."""
    flower = pytest.importorskip("fedkin_hosts.flower", reason="flwr is not installed: pip install 'fedkin[flower]'")

    class Grid:
        def get_nodes(self) -> list[Any]:
            return [SimpleNamespace(node_id=7, name="c0"), SimpleNamespace(node_id=8, name="")]

    post = flower.FlowerPost(Grid(), True, tmp_path)
    assert post.names() is None
    (tmp_path / "link.db").touch()
    assert post.names() == {7: "c0"}
