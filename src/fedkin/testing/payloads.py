"""Tensors that leave a client, reach it and stay on it, recorded from a small run and not from a description."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fedkin.core import Bundle, ClientData, Method, Net, Samples, Training
from fedkin.core.seeds import generator
from fedkin.engines import Job, Loop
from fedkin.server import Message, Outcome, Plan, Simulation, begin, rounds
from fedkin.testing.trial import calm

CLIENTS, ROUNDS = 8, 12
_CLASSES, _INPUTS, _FEATURES, _SAMPLES = 7, 11, 13, 40
_HEAD, _BODY = (_FEATURES + 1) * _CLASSES, (_INPUTS + 1) * _FEATURES
_SIZES = {
    _HEAD + _BODY: "P",
    _HEAD: "H",
    _BODY: "B",
    _FEATURES * _CLASSES: "C*d",
    _FEATURES + 1: "d+1",
    _FEATURES: "d",
    _CLASSES: "C",
    CLIENTS: "K",
    _SAMPLES: "n",
}
"""Lengths in the run and their meaning: all different, so that a shape identifies its sides."""

Way = Literal["says", "asked", "answers", "sent", "sends", "shown", "keeps"]


@dataclass
class Payloads:
    """Tensors exchanged between the server and clients in a run of one method.

    Attributes:
        seen: tensors by name for each way: said at joining, asked and answered in a survey, sent to train, sent back,
            shown to predict with, kept on the client between rounds. A value is the shape in letters.
        times: number of messages of its way that contained a tensor, out of ``messages``.
        elements: tensor elements that must travel in all messages of a way.
    """

    seen: dict[Way, dict[str, str]] = field(default_factory=dict)
    times: dict[tuple[Way, str], int] = field(default_factory=dict)
    messages: dict[Way, int] = field(default_factory=dict)
    elements: dict[Way, int] = field(default_factory=dict)

    def add(self, way: Way, b: Bundle, letters: Mapping[int, str]) -> None:
        """Record a message of a way."""
        self.messages[way] = self.messages.get(way, 0) + 1
        sent = sum(Bundle(t=t).travelling() // t.element_size() for t in b.values())
        self.elements[way] = self.elements.get(way, 0) + sent
        for name, t in b.items():
            self.seen.setdefault(way, {})[name] = _shape(t, letters)
            self.times[way, name] = self.times.get((way, name), 0) + 1

    def cell(self, way: Way) -> str:
        """Return the tensors of a way in words; those that not every message contains are in brackets."""
        seen = self.seen.get(way, {})
        always = {n for n in seen if self.times[way, n] == self.messages[way]}
        words = [f"`{n}` {seen[n]}".strip() if n in always else f"(`{n}` {seen[n]})" for n in seen]
        return ", ".join(words)

    def models(self, way: Way) -> float:
        """Return the average number of values in a message of a way, as a multiple of one model."""
        return self.elements.get(way, 0) / max(1, self.messages.get(way, 0)) / (_HEAD + _BODY)


def payloads(method: Method) -> Payloads:
    """Run a method for twelve rounds with six of eight clients and record the exchanged tensors."""
    net = Net(
        lambda: nn.Sequential(nn.Linear(_INPUTS, _FEATURES), nn.ReLU(), nn.Linear(_FEATURES, _CLASSES)),
        (_INPUTS,),
        _CLASSES,
    )
    letters = {**_own_lengths(method), **_SIZES}
    seen, plan = Payloads(), Plan(ROUNDS, participation=0.75)
    with calm(0):
        shards, training = [_shard(i) for i in range(CLIENTS)], Training(epochs=1, batch_size=10, lr=0.1)
        session = Loop().start(Job(method, net, training, shards, plan.seed))
        wire = _Wire(Simulation(session, CLIENTS), seen, letters)
        server = begin(method, net, plan)
        for _ in rounds(method, net, training, wire, plan, server):
            pass
        for state in wire.simulation.states(server.acks).values():
            seen.add("keeps", state, letters)
        session.close()
    return seen


class _Wire:
    """The simulator's transport with a record of the exchanged tensors."""

    def __init__(self, simulation: Simulation, payloads: Payloads, letters: Mapping[int, str]) -> None:
        self.simulation, self._payloads, self._letters = simulation, payloads, letters

    def available(self, round: int) -> list[int]:
        return self.simulation.available(round)

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        said = self.simulation.joiners(known, round)
        for b in said.values():
            self._payloads.add("says", Bundle({n: t for n, t in b.items() if n != "size"}), self._letters)
        return said

    def exchange(self, messages: Mapping[int, Message], enough: int | None = None) -> Outcome:
        answers, missing = self.simulation.exchange(messages, enough)
        ways: dict[str, tuple[Way, Way | None]] = {
            "survey": ("asked", "answers"),
            "consult": ("asked", "answers"),
            "update": ("sent", "sends"),
            "evaluate": ("shown", None),
        }
        for i, m in messages.items():
            down, up = ways[m.step]
            self._payloads.add(down, m.body, self._letters)
            if up is not None and i in answers:
                self._payloads.add(up, answers[i], self._letters)
        return answers, missing


def _shard(i: int) -> ClientData:
    """Return a client's data: two classes each, so that methods with groups find some."""

    def part(what: str, n: int) -> Samples:
        rng = generator(0, "payloads", i, what)
        y = (torch.randint(0, 2, (n,), generator=rng) + i) % _CLASSES
        return Samples(torch.randn(n, _INPUTS, generator=rng) + y[:, None], y)

    return ClientData(part("train", _SAMPLES), part("validation", 5), part("test", 5), group=i % 2)


def _own_lengths(method: Method) -> dict[int, str]:
    """Return the method's own small integers by the names of their fields."""
    lengths: dict[int, str] = {}
    for f in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if isinstance(value, Method):
            lengths |= _own_lengths(value)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            lengths[value] = f.name
    return lengths


def _shape(t: Tensor, letters: Mapping[int, str]) -> str:
    kind = "" if t.is_floating_point() else " int" if t.dtype == torch.int64 else " yes/no"
    if t.dim() == 0:
        return "number" if t.is_floating_point() else kind.strip()
    return "[" + ", ".join(letters.get(n, str(n)) for n in t.shape) + "]" + kind
