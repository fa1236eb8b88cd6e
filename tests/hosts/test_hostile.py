"""One registered client that means harm, among honest ones, over real programs; and runs that end say why."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin.core.refusals import Reason
from hostprograms import FAULTY, Fleet, events, rounds, server_equals
from hosttoys import settings, simulated, traced
from toys import refused

pytestmark = pytest.mark.hosts
HOSTS = {"min_clients": 3, "min_connected": 1, "reply_timeout": 120.0, "wait_timeout": 300.0}


def told(folder: Path, client: str) -> dict[int, list[str]]:
    """What the events say of a client, by round."""
    found: dict[int, list[str]] = {}
    for event in map(json.loads, events(folder).splitlines()):
        if event["client"] == client and "joins as" not in event["what"]:
            found.setdefault(event["round"], []).append(event["what"])
    return found


@pytest.mark.short
def test_a_hostile_client_costs_itself_the_round_and_nobody_else(own: Fleet) -> None:
    """c1 answers with a shape that no tensor has, an unknown entry in the head, an object that Flower cannot read, and
    a NaN: each is refused and named, the run of the others goes on, and so does the next run with the same clients."""
    own.up(0, 1, 2)
    own.fail(1, {1: "long side", 2: "unknown entry", "flower 3": "garbled", 4: "nan"})
    s = settings("fedavg", run={"rounds": 5, "eval_every": 100}, hosts=HOSTS)
    folder = own.submit(s, "hostile")
    lines = own.finish(folder, 1800)
    assert [list(line.answered) for line in lines] == [*[[0, 2]] * 4, [0, 1, 2]], events(folder) + own.words()
    said = told(folder, "c1")
    assert said[1] == said[2] == [f"update: {Reason('garbled')}"]
    assert said[3] == [f"{step}: {Reason('garbled')}" for step in ("update", "evaluate")]
    assert list(refused(lines[2], "evaluate")) == [1]
    assert str(Reason("not-finite", "model")) in said[4][0]
    assert not told(folder, "c0")
    assert not told(folder, "c2")
    assert server_equals(folder, traced(s, lines))
    own.fail(1, {1: "long side"})
    again = own.submit(s, "next")
    lines = own.finish(again, 1800)
    assert [list(line.answered) for line in lines] == [[0, 2], *[[0, 1, 2]] * 4], events(again)
    assert server_equals(again, traced(s, lines))


def test_a_hostile_newcomer_is_left_out(own: Fleet) -> None:
    """c1's first words cannot be read: it gets no number, the run waits for another client in its place, and is that of
    the other two."""
    own.fail(1, {"describe": "long side"})
    own.up(0, 1)
    s = settings("fedavg", run={"rounds": 2}, hosts={**HOSTS, "min_clients": 2})
    folder = own.submit(s, "newcomer")
    own.until(lambda: "refused" in events(folder), 1800)
    own.start(2)
    lines = own.finish(folder, 1800)
    assert [list(line.answered) for line in lines] == [[0, 1]] * 2
    assert [c["client"] for c in json.loads((folder / "clients.json").read_text())["clients"]] == ["c0", "c2"]
    assert "refused: its answer cannot be read" in told(folder, "c1")[1][0]


def test_a_client_that_claims_ten_million_samples(own: Fleet) -> None:
    """It weighs as much as the two others together; the round's record and the events say what it claimed."""
    own.up(0, 1, 2)
    own.fail(1, {"describe": "claim"})
    s = settings("fedavg", run={"rounds": 2, "eval_every": 100}, hosts=HOSTS)
    folder = own.submit(s, "claims")
    lines = own.finish(folder, 1800)
    sizes = simulated(s).server.sizes.tolist()
    others = sizes[0] + sizes[2]
    assert [line.limited for line in lines] == [{1: (10_000_000, others)}] * 2
    evaluation, claim = told(folder, "c1")[2]
    assert evaluation.endswith("training samples, the client joined with 10000000")
    assert claim.endswith(f"{others} are used")


def test_a_run_that_ends_says_why_and_goes_on(own: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program on the server fails in round 3 by an unexpected error: failed.txt has it, with what to do. Submitted
    again without the fault, the run ends as if nothing had happened."""
    monkeypatch.setenv("FAULT_SERVER", "3")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAULTY), *filter(None, [os.environ.get("PYTHONPATH")])]))
    own.up(0, 1, 2)
    s = settings("fedrep", run={"rounds": 4, "eval_every": 100}, hosts=HOSTS)
    folder = own.submit(s, "ends")
    own.until(lambda: (folder / "failed.txt").exists(), 1800)
    text = (folder / "failed.txt").read_text(encoding="utf-8")
    assert "ZeroDivisionError: nobody thought of this" in text
    assert f"continue with: fedkin submit {folder}" in text
    assert len(rounds(folder)) == 2
    assert own.link is not None
    own.link.stop()
    own.link = None
    monkeypatch.delenv("FAULT_SERVER")
    own.up()
    own.submit(s, "ends")
    lines = own.finish(folder, 1800)
    assert server_equals(folder, traced(s, lines))
    assert not (folder / "failed.txt").exists()
