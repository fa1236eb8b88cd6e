"""Clients on hosts of their own, all in this process: the letters are real, the network between them is a list.

`Direct` is a post whose nodes are sites; a test can lose, double, delay or change what is on its way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import Bundle
from fedkin.data import SiteData, federation_of
from fedkin.engines import Loop
from fedkin.experiment.execute import execute, one_thread
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import Settings, settings_from
from fedkin.record.lines import RunLine
from fedkin.record.result import Result
from fedkin.server import Simulation
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import RunSetup, WireMessage, head_bytes, head_of
from fedkin_hosts.joining import Clock
from fedkin_hosts.messages import Clerk
from fedkin_hosts.node import Node, Watch
from fedkin_hosts.participants import Members
from fedkin_hosts.serve import serve
from fedkin_hosts.tensors import bundle, wire_message

Touch = Callable[["Direct", str, WireMessage], WireMessage | str | None]
"""``(post, client, letter) -> its answer``, a code, or None if none ever comes; ``post.ask(client, letter)`` asks."""


class Time:
    """Seconds that pass only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep, 0.05)


@dataclass
class Direct:
    """Nodes with sites behind them.

    Attributes:
        sites: by node.
        keys: the key of each node.
        named: the registered name of each node's key; None where the network has no names.
        off: nodes that are not connected.
        touch: what happens to letters on their way.
        log: every letter that was sent: client, kind, round.
        setups: every setup that was sent, by its name.
    """

    sites: dict[int, ClientService]
    keys: dict[int, str] = field(default_factory=dict)
    named: dict[int, str] | None = None
    off: set[int] = field(default_factory=set)
    touch: Touch | None = None
    time: Time = field(default_factory=Time)
    log: list[tuple[str, str, int]] = field(default_factory=list)
    setups: dict[str, dict[str, Any]] = field(default_factory=dict)
    _ready: dict[str, WireMessage | str] = field(default_factory=dict)
    _tickets: int = 0

    def nodes(self) -> Mapping[int, str]:
        return {n: self.keys.get(n, f"key of {self.sites[n].client}") for n in self.sites if n not in self.off}

    def names(self) -> Mapping[int, str] | None:
        return self.named

    def post(self, letters: Mapping[int, WireMessage], seconds: float) -> Mapping[int, str]:
        found = {}
        for node, letter in letters.items():
            self._tickets += 1
            found[node] = ticket = str(self._tickets)
            client = self.sites[node].client
            if "inline" in letter.head:
                self.setups[letter.head["setup"]] = letter.head["inline"]
            self.log.append((client, str(letter.head["kind"]), int(letter.head["round"])))
            answer = self.ask(client, letter) if self.touch is None else self.touch(self, client, letter)
            if answer is not None:
                self._ready[ticket] = answer
        return found

    def collect(self, tickets: Collection[str]) -> Mapping[str, WireMessage | str]:
        return {t: self._ready.pop(t) for t in list(tickets) if t in self._ready}

    def ask(self, client: str, letter: WireMessage) -> WireMessage:
        """The site's answer, after both have been bytes."""
        node = max(n for n, site in self.sites.items() if site.client == client and n not in self.off)
        return through_bytes(self.sites[node].answer(through_bytes(letter)))

    def altered(self, letter: WireMessage, **tables: Mapping[str, Any]) -> WireMessage:
        """A letter with other settings in some tables."""
        return altered(letter, self.setups[letter.head["setup"]], **tables)


def altered(letter: WireMessage, setup: Mapping[str, Any] | None = None, **tables: Mapping[str, Any]) -> WireMessage:
    """A letter with other settings in some tables, which brings its setup."""
    setup = letter.head["inline"] if setup is None else setup
    parts = {**setup["settings"], **tables}
    told = {part: {**setup["settings"].get(part, {}), **tables.get(part, {})} for part in parts}
    return with_setup(letter, {**setup, "settings": told})


def with_setup(letter: WireMessage, setup: Mapping[str, Any]) -> WireMessage:
    """A letter that brings another setup, under its name."""
    name = RunSetup(setup["settings"], setup.get("card"), setup.get("network", "")).name
    return WireMessage({**letter.head, "setup": name, "inline": setup}, letter.body)


def bare(of: WireMessage) -> dict[str, Any]:
    """The head of a letter without the names of its tensors."""
    return {n: v for n, v in of.head.items() if n != "tensors"}


def changing(
    kind: str,
    change: Callable[[Bundle], Bundle] | bytes | None = None,
    round: int | None = None,
    who: str = "c1",
    **head: Any,
) -> Touch:
    """One client's answers to letters of a kind (in a round) with another body, and other entries in their heads."""

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if (client, of.head["kind"]) != (who, kind) or round not in (None, of.head["round"]):
            return answer
        if callable(change):
            return wire_message({**bare(answer), **head}, change(bundle(answer)))
        return WireMessage({**answer.head, **head}, answer.body if change is None else change)

    return touch


def silent(*kinds: str, rounds: Collection[int] = (), who: str = "c1") -> Touch:
    """One client never answers letters of some kinds (in some rounds)."""

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage | None:
        lost = client == who and of.head["kind"] in kinds and (not rounds or of.head["round"] in rounds)
        return None if lost else post.ask(client, of)

    return touch


def happening(fault: str, spoilt: Callable[[Bundle], Bundle]) -> Touch:
    """What happens to the letter to c1 in round 2; a letter that comes twice has the same answer."""

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage | None:
        if (client, of.head["kind"], of.head["round"]) != ("c1", "update", 2):
            return post.ask(client, of)
        answer = None if fault == "message lost" else post.ask(client, of)
        if answer is None or fault == "answer lost":
            return None
        if fault == "message doubled":
            again = post.ask(client, of)
            assert (again.body, again.head["tensors"]) == (answer.body, answer.head["tensors"])
        return wire_message(bare(answer), spoilt(bundle(answer))) if fault == "answer refused" else answer

    return touch


class Stopped(BaseException):
    """The server is killed."""


def stopped(s: Settings, folder: Path, post: Direct, round: int, then: Callable[[int], object] = lambda _: 0) -> Direct:
    """A run whose server is killed after a round; ``then`` is called after each before. Its clients, for the next."""

    def on_round(report: Any, line: Any) -> None:
        then(report.round)
        if report.round == round:
            raise Stopped

    with pytest.raises(Stopped):
        on_hosts(s, folder, post, on_round=on_round)
    return Direct(post.sites, off=post.off)


class Heard:
    """A touch that keeps letters of some kinds and their answers: client, round, letter, answer."""

    def __init__(self, *kinds: str) -> None:
        self.kinds, self.found = kinds, list[tuple[str, int, WireMessage, WireMessage]]()

    def __call__(self, post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if of.head["kind"] in self.kinds:
            self.found.append((client, of.head["round"], of, answer))
        return answer

    def of(self, who: str) -> list[WireMessage]:
        """The answers of one client."""
        return [answer for client, _, _, answer in self.found if client == who]


def of_worker(folder: Path, of: WireMessage, **flags: Any) -> WireMessage:
    """The answer of a process that is started for one letter."""
    watch = Watch(Node(**{"client_id": "c0", "data": "digits", "folder": folder, "insecure_test": True, **flags}))
    try:
        return watch.ask(of)
    finally:
        watch.close()


def greeting(folder: Path, name: str = "fedavg", **tables: Any) -> WireMessage:
    """The first letter of a run."""
    return Clerk(settings(name, **tables), Members.load(folder)).write("hello", 0, 120.0, inline=True)


def crafted(name: str, dtype: str, shape: list[Any], data: bytes = b"", size: int | None = None) -> bytes:
    """The body of a letter with one tensor, whose list says what it is told."""
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data) if size is None else size]}
    text = json.dumps({name: entry}).encode()
    return len(text).to_bytes(8, "little") + text + data


def through_bytes(letter: WireMessage) -> WireMessage:
    return WireMessage(head_of(head_bytes(letter)), bytes(letter.body))


SMALL: dict[str, Any] = {
    "data": {"data": "digits", "clients": 3, "partition": "dirichlet@alpha=0.5", "samples_per_client": 60},
    "model": {"model": "mlp"},
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "run": {"rounds": 4, "eval_every": 2},
    "compute": {"engine": "loop"},
    "hosts": {"min_clients": 3, "reply_timeout": 20.0, "wait_timeout": 60.0},
}


def settings(name: str, **tables: Mapping[str, Any]) -> Settings:
    """Those of `SMALL` for a method, with changes by table."""
    parts = {part: {**SMALL.get(part, {}), **tables.get(part, {})} for part in {**SMALL, **tables}}
    return settings_from({**parts, "method": {"name": name, **tables.get("method", {})}})


def sites(folder: Path, clients: int = 3, **more: Any) -> dict[int, ClientService]:
    """Sites ``c0``, ``c1``, ... on nodes 100, 101, ... with one share of the digits each."""
    return {
        100 + i: ClientService(f"c{i}", SiteData("digits", share=i), folder / "disks", **more) for i in range(clients)
    }


def on_hosts(s: Settings, folder: Path, post: Direct, **more: Any) -> Result:
    """The run over hosts."""
    return serve(s, post, folder / "run", clock=post.time.clock(), **more)


def simulated(s: Settings, **more: Any) -> Result:
    """The same in the simulator."""
    return run_settings(s, **more)


def traced(s: Settings, lines: Iterable[Mapping[str, Any]]) -> Result:
    """The simulator with the participation that the lines of another run's rounds tell of."""
    federation = federation_of(s.data, s.run.seed)
    experiment = Experiment.prepare(s, federation)
    session = Loop().start(experiment.job(experiment.laid_out(federation.clients)))
    by_round = {line.round: line for line in lines}
    came = {i: round for round, line in by_round.items() for i in line.joined}
    simulation = Simulation(
        session,
        len(came),
        seed=s.run.seed,
        joins=[came[i] for i in sorted(came)],
        trace={round: line.answered for round, line in by_round.items()},
        absent={round: line.absent for round, line in by_round.items()},
    )
    with one_thread():  # as nodes compute
        about = RunLine("", experiment.title, experiment.plan.seed, len(came), "loop")
        return execute(experiment, federation, simulation, about)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / "run" / f"{name}.jsonl"
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def taken_home(folder: Path, client: str) -> Path:
    """Where a site of `sites` wrote its model."""
    (place,) = (folder / "disks" / client).glob("*/model")
    return place


def same_export(one: Path, other: Path, *but: str) -> None:
    """Two exports have the same files, and the same card but for some entries."""
    assert sorted(p.name for p in one.iterdir()) == sorted(p.name for p in other.iterdir())
    for path in one.iterdir():
        if path.name not in ("card.json", "README.md"):
            assert path.read_bytes() == (other / path.name).read_bytes(), path.name
    cards = [json.loads((place / "card.json").read_text(encoding="utf-8")) for place in (one, other)]
    assert cards[0].keys() == cards[1].keys()
    assert {n: v for n, v in cards[0].items() if n not in but} == {n: v for n, v in cards[1].items() if n not in but}


def same_server(a: Result, b: Result) -> bool:
    """Whether two servers ended with the same state, bit for bit."""
    return a.server.state.keys() == b.server.state.keys() and all(
        torch.equal(a.server.state[n], t) for n, t in b.server.state.items()
    )
