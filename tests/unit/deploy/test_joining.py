"""Clients that join: under which name, after which answers, and how long the first round waits for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedkin.core import EngineError
from fedkin.core.refusals import Reason
from fedkin.experiment.settings import digest, settings_from, table_of
from fedkin_hosts.heads import WireMessage, refusal
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import Direct, bare, lines, on_hosts, same_server, settings, simulated, sites, traced
from refusals import refuses

Fault = Callable[[WireMessage, str], WireMessage | str | None]
PASSING: dict[str, Fault] = {
    "no answer": lambda of, client: None,
    "expired": lambda of, client: "expired",
    "gone": lambda of, client: "gone",
    "died": lambda of, client: "died",
    "undelivered": lambda of, client: "undelivered",
    "deadline": lambda of, client: refusal(of.head, client, "deadline"),
    "disk": lambda of, client: refusal(of.head, client, "disk"),
}
"""What becomes of an answer to ``describe``, for reasons that may pass."""


class Fails:
    """A touch by which the first answers of a client to ``describe`` do not arrive.

    Attributes:
        at: when it was asked.
    """

    def __init__(self, client: str, fault: Fault, times: int = 1) -> None:
        self.client, self.fault, self.times, self.at = client, fault, times, list[float]()

    def __call__(self, post: Direct, client: str, of: WireMessage) -> WireMessage | str | None:
        if (client, of.head["kind"]) != (self.client, "describe"):
            return post.ask(client, of)
        self.at.append(post.time.now)
        return self.fault(of, client) if len(self.at) <= self.times else post.ask(client, of)


def told(folder: Path, client: str) -> list[str]:
    return [event["what"] for event in lines(folder, "events") if event["client"] == client]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("fault", PASSING)
def test_a_description_that_does_not_arrive_is_asked_for_again(fault: str, secure: bool, tmp_path: Path) -> None:
    """c1's first one: no round is played without it, and the numbers follow the names as if nothing had happened."""
    s = settings("fedavg", run={"rounds": 2}, aggregation={"secure": secure})
    touch = Fails("c1", PASSING[fault])
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch)), simulated(s)
    assert ours.rounds == theirs.rounds
    assert ours.clients == theirs.clients
    assert same_server(ours, theirs)
    first, second = told(tmp_path, "c1")
    assert first.startswith("does not join yet: ")
    assert second == "joins as client 1"
    assert touch.at[1] - touch.at[0] >= 15 + (20 if fault == "no answer" else 0)


def test_a_late_joiner_is_asked_again_in_a_later_round(tmp_path: Path) -> None:
    """c2 comes in round 2 and its disk fails then: rounds go on, and it joins in the next after the pause."""
    s = settings("fedrep", run={"rounds": 5}, hosts={"min_clients": 2})
    post = Direct(sites(tmp_path), off={102}, touch=Fails("c2", PASSING["disk"]))

    def on_round(report: Any, line: Any) -> None:
        post.off.discard(102)
        post.time.now += 10

    ours = on_hosts(s, tmp_path, post, on_round=on_round)
    assert [list(line.joined) for line in ours.rounds] == [[0, 1], [], [], [2], []]
    assert [list(line.answered) for line in ours.rounds] == [[0, 1]] * 3 + [[0, 1, 2]] * 2
    assert same_server(ours, traced(s, ours.rounds))


@pytest.mark.parametrize("keys", [True, False])
def test_a_client_is_not_asked_for_ever(keys: bool, tmp_path: Path) -> None:
    """After five tries c2 is refused, also when it comes on another node, with a key or without."""
    s = settings("fedavg", run={"rounds": 10, "eval_every": 10}, hosts={"min_clients": 2})
    touch = Fails("c2", PASSING["disk"], times=6)
    post = Direct(sites(tmp_path), keys={} if keys else dict.fromkeys(range(100, 120), ""), touch=touch)

    def on_round(report: Any, line: Any) -> None:
        post.time.now += 20
        post.sites[103 + report.round] = post.sites.pop(max(post.sites))

    ours = on_hosts(s, tmp_path, post, on_round=on_round)
    assert [list(line.joined) for line in ours.rounds] == [[0, 1], *[[]] * 9]
    assert len(touch.at) == 5
    assert told(tmp_path, "c2")[4] == f"does not join yet: {Reason('disk')}"
    assert {what[:36] for what in told(tmp_path, "c2")[5:]} == {"refused: it gave no description in 5"}


@pytest.mark.parametrize("anew", [False, True], ids=["one node", "ever new nodes"])
@pytest.mark.parametrize("silent", ["hello", "describe", "describe until it has left"])
def test_no_round_waits_for_a_client_that_does_not_join(silent: str, anew: bool, tmp_path: Path) -> None:
    """From the second round on: c2 is registered and never says hello, or never describes itself, and connects anew
    before each round or in the middle of it. Rounds take no time, and c3, which comes later, joins."""
    s = settings("fedavg", data={"clients": 4}, run={"rounds": 12, "eval_every": 12}, hosts={"min_clients": 2})
    taken: list[float] = []
    fourth = sites(tmp_path, 4)

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage | None:
        if client == "c2" and of.head["kind"] == silent.split()[0]:
            if "left" in silent:
                post.off.add(max(n for n, site in post.sites.items() if site.client == "c2"))
            return None
        return post.ask(client, of)

    post = Direct({n: fourth[n] for n in (100, 101, 102)}, touch=touch)

    def on_round(report: Any, line: Any) -> None:
        taken.append(post.time.now)
        if anew:
            node = max(n for n, site in post.sites.items() if site.client == "c2")
            post.sites[1000 + report.round] = post.sites.pop(node)
        if report.round == 3:
            post.sites[103] = fourth[103]

    ours = on_hosts(s, tmp_path, post, on_round=on_round)
    assert len(set(taken)) == 1
    assert [list(line.joined) for line in ours.rounds] == [[0, 1], [], [], [2], *[[]] * 8]
    assert list(ours.rounds[-1].answered) == [0, 1, 2]


def test_the_first_round_waits_for_the_number_of_clients(tmp_path: Path) -> None:
    """Three are wanted, and c2 never describes itself: no round is played with two, and the error says who is here."""
    s = settings("fedavg")
    post = Direct(sites(tmp_path), touch=Fails("c2", PASSING["no answer"], times=100))
    with refuses(EngineError, "60 s", "3 clients", "2: c0, c1.", "events.jsonl"):
        on_hosts(s, tmp_path, post)
    assert {kind for _, kind, _ in post.log} == {"hello", "describe"}
    assert told(tmp_path, "c0") == []  # no client has a number yet


class Blinks(Direct):
    """Nodes of which one is not connected at the second look, when c0, c1 and c2 have said hello."""

    looks = 0

    def nodes(self) -> Mapping[int, str]:
        self.looks += 1
        return {n: key for n, key in super().nodes().items() if (n, self.looks) != (102, 2)}


def test_a_client_that_leaves_before_its_description_is_greeted_again(tmp_path: Path) -> None:
    """c2 is away for a moment between hello and description: the first round waits until it has said hello again."""
    s = settings("fedavg", run={"rounds": 2})
    post = Blinks(sites(tmp_path))
    assert same_server(on_hosts(s, tmp_path, post), simulated(s))
    assert [kind for client, kind, _ in post.log if client == "c2"][:3] == ["hello", "hello", "describe"]


def test_another_client_takes_the_place_of_a_refused_one(tmp_path: Path) -> None:
    """Two are wanted; the description of c1 cannot be used, which is final. The run waits until c2 comes."""
    s = settings("fedavg", run={"rounds": 2}, hosts={"min_clients": 2})

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if (client, of.head["kind"]) != ("c1", "describe"):
            return answer
        post.off.discard(102)
        b = bundle(answer).but(size=torch.tensor(0))
        return wire_message(bare(answer), b)

    post = Direct(sites(tmp_path), off={102}, touch=touch)
    ours = on_hosts(s, tmp_path, post)
    assert [list(line.answered) for line in ours.rounds] == [[0, 1]] * 2
    assert told(tmp_path, "c2") == ["joins as client 1"]
    assert told(tmp_path, "c1") == ["refused: size is 0, expected 1 to 10000000"]
    assert [kind for client, kind, _ in post.log if client == "c1"] == ["hello", "describe"]


class Slow(Direct):
    """Answers of c0 take 25 seconds and all others 3; an answer that is not fetched in time, or was, is gone: as in
    Flower."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.times: dict[str, tuple[float, float]] = {}

    def post(self, letters: Mapping[int, WireMessage], seconds: float) -> Mapping[int, str]:
        tickets = super().post(letters, seconds)
        for node, ticket in tickets.items():
            self.times[ticket] = self.time.now + (25 if node == 100 else 3), self.time.now + seconds
        return tickets

    def collect(self, tickets: Collection[str]) -> Mapping[str, WireMessage | str]:
        due = [t for t in tickets if self.times[t][0] <= self.time.now]
        gone = dict.fromkeys((t for t in due if self.times[t][1] <= self.time.now), "expired")
        return {**dict.fromkeys(due, "expired"), **super().collect(due), **gone}


def test_a_client_joins_although_rounds_are_longer_than_its_answer_is_kept(tmp_path: Path) -> None:
    """Nobody waits for its description, which is fetched while the round waits for others."""
    run = {"rounds": 6, "eval_every": 1}
    s = settings("fedavg", run=run, hosts={"min_clients": 2, "reply_timeout": 30.0})
    post = Slow(sites=sites(tmp_path), off={102})
    ours = on_hosts(s, tmp_path, post, on_round=lambda *_: post.off.clear())
    assert [list(line.joined) for line in ours.rounds[:4]] == [[0, 1], [], [], [2]]
    assert list(ours.rounds[-1].answered) == [0, 1, 2]


NAMED = {100: "c0", 101: "c1", 102: "c2"}


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
    assert told(tmp_path, "c7") == ([] if free else [why])
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
    (why,) = told(tmp_path, "?")
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
    assert len([why for why in told(tmp_path, "c1") if "within 60 s" in why]) == 2
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
