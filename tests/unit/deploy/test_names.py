"""Who may join under which name, and what becomes of nodes that answer hellos too late."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedkin.core import ConfigError, EngineError
from fedkin.deploy import keys
from fedkin.deploy.control import BOOK, Control, read_book
from fedkin.deploy.wire_format import WireMessage
from fedkin.experiment.settings import settings_from
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


def test_a_client_under_another_name_than_its_keys_is_refused(tmp_path: Path) -> None:
    """The node with the key of c7 comes as c1: it is refused by the name of its key, and c0 and c2 make the run."""
    s = settings("fedavg", hosts={"min_clients": 2})
    on_hosts(s, tmp_path, Direct(sites(tmp_path), named={**NAMED, 101: "c7"}))
    assert joined(tmp_path) == ["c0", "c2"]
    ((_, why),) = [line for line in told(tmp_path) if line[0] == "c7"]
    assert why == (
        "refused: its key is registered as c7, and it came as c1; start it with --client-id c7, or set "
        "free_names = true in [hosts]"
    )


def test_free_names_is_a_switch(tmp_path: Path) -> None:
    """With it the same client takes part, and the settings of the run keep their digest."""
    s = settings("fedavg", hosts={"free_names": True})
    on_hosts(s, tmp_path, Direct(sites(tmp_path), named={**NAMED, 101: "c7"}))
    assert joined(tmp_path) == ["c0", "c1", "c2"]
    assert s.digest() == settings("fedavg").digest()
    assert settings_from(s.table()).hosts.free_names


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


def test_late_hellos_are_counted_and_said(tmp_path: Path) -> None:
    """Two hellos of c1 expire: the events name it and say what to do, each hello holds the number of those that
    expired before, a later one has more time, and the one that is answered in time lets it join."""
    s, heard = settings("fedavg", hosts={"wait_timeout": 3600.0}), list[tuple[int, float]]()

    def touch(post: Direct, client: str, of: WireMessage) -> Any:
        if client == "c1" and of.head["kind"] == "hello":
            heard.append((of.head["seq"], of.head["deadline"]))
            if len(heard) < 5:
                return "expired" if len(heard) == 2 else None  # as Flower says it, or not at all
        return post.ask(client, of)

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), named=NAMED, touch=touch))
    assert joined(tmp_path) == ["c0", "c1", "c2"]
    assert heard == [(0, 60.0), (1, 60.0), (2, 60.0), (3, 240.0), (4, 240.0)]
    ((name, why),) = [line for line in told(tmp_path) if "hellos" in line[1]]
    assert name == "c1"
    assert why.startswith("is connected, but has not answered 2 hellos within 60 s each")
    assert same_server(ours, simulated(s))


class Book(Control):
    """The operator's side of a link whose only node was registered as number 7."""

    def ask(self, *words: str, seconds: float = 60.0) -> dict[str, Any]:
        return {"nodes": [{"node-id": "7", "status": "online"}]} if words[1] == "list" else {"node-id": "7"}


def test_the_name_of_a_key_is_that_of_its_file(tmp_path: Path) -> None:
    """A key that is registered gets the name of its file, and the new one when the file is renamed; the link notices
    that the book was written."""
    pytest.importorskip("cryptography", reason="cryptography comes with fedkin[flower]")
    made = keys.make_node_key(tmp_path / "nodes", "c0")
    link = Book(tmp_path, tmp_path / "flwr")
    assert (link.changed(), read_book(tmp_path)) == (0, {})
    assert link.register(tmp_path / "nodes").new == ("c0",)
    assert {number: key.name for number, key in read_book(tmp_path).items()} == {"7": "c0"}
    made.public.rename(made.public.with_name("c1.pub"))
    assert link.register(tmp_path / "nodes").new == ()
    assert {number: key.name for number, key in read_book(tmp_path).items()} == {"7": "c1"}
    written = link.changed()
    assert written > 0
    link.register(tmp_path / "nodes")
    assert link.changed() == written  # or a link that runs would ask Flower again and again


def test_a_revocation_is_told_with_and_without_a_book(tmp_path: Path) -> None:
    """By the time of the book, whose names stay; a book that was taken away is an empty one then."""
    pytest.importorskip("cryptography", reason="cryptography comes with fedkin[flower]")
    keys.make_node_key(tmp_path / "nodes", "c0")
    link = Book(tmp_path, tmp_path / "flwr")
    link.register(tmp_path / "nodes")
    os.utime(tmp_path / BOOK, (10**9, 10**9))
    before = link.changed()
    link.revoke("c0")
    assert link.changed() > before
    assert {number: key.name for number, key in read_book(tmp_path).items()} == {"7": "c0"}
    (tmp_path / BOOK).unlink()
    link.revoke("?")
    assert link.changed() > 0
    assert read_book(tmp_path) == {}


def test_a_book_that_was_taken_away_names_no_key(tmp_path: Path) -> None:
    """The link writes an empty one, as Flower has the keys: then no key has a name, where any name was taken. Without a
    book, at a link without keys, there are no names to be compared."""

    class Taken(Book):
        def ask(self, *words: str, seconds: float = 60.0) -> dict[str, Any]:
            if words[1] == "register":
                raise EngineError("public key already in use")
            return super().ask(*words, seconds=seconds)

    flower = pytest.importorskip("fedkin.deploy.flower", reason="flwr is not installed: pip install 'fedkin[flower]'")
    post = flower.FlowerPost(None, True, tmp_path)
    assert post.names() is None
    keys.make_node_key(tmp_path / "nodes", "c0")
    Taken(tmp_path, tmp_path / "flwr").register(tmp_path / "nodes")
    assert post.names() == {}
    s = settings("fedavg", hosts={"min_clients": 1, "wait_timeout": 1.0})
    with pytest.raises(EngineError, match="client"):
        on_hosts(s, tmp_path, Direct(sites(tmp_path), named=dict(post.names() or {})))
    assert {why for _, why in told(tmp_path) if "no name at this link" not in why} == set()


def test_a_damaged_book_is_named(tmp_path: Path) -> None:
    """The file and the ways out are in the text."""
    (tmp_path / "nodes.json").write_text('{"7": {"name": 1}}')
    with pytest.raises(ConfigError, match=r"nodes\.json is damaged .* restore it, .* free_names = true"):
        read_book(tmp_path)
