"""Whole runs over real programs: SuperLink, gate, TLS, keys, and a node for every client, all on loopback.

Named after the plan of faults: F1 parity; F2 a worker that fails; F4 hosts and F5 servers that come back; F8 slow
clients; F9 comers and goers; F10 bad uploads; F18 versions. F14 and F17 are in `test_link_sockets`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin.experiment.settings import Settings
from fedkin.exporting import export_all
from folders import records
from hostprograms import Fleet, events, rounds, server_equals
from hosttoys import same_export, settings, simulated, traced

pytestmark = pytest.mark.hosts
HOSTS = {"min_clients": 3, "min_connected": 1, "reply_timeout": 30.0, "wait_timeout": 120.0}
PARITY = ["fedavg", "fedrep", "da-pfl", "pfedcs", "ifca-cam", "clustered-sampling"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A link and three nodes that stay up for all tests that leave them alone."""
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        yield made.up(0, 1, 2)
    finally:
        made.down()


def same_as_simulated(folder: Path, s: Settings) -> None:
    """The server's state is bit for bit that of the simulator with the same participation."""
    lines = rounds(folder)
    theirs = traced(s, lines)
    assert server_equals(folder, theirs)
    assert lines[-1].accuracy == theirs.rounds[-1].accuracy


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.short) if n == "fedrep" else n for n in PARITY])
def test_a_run_equals_the_simulator(fleet: Fleet, name: str, tmp_path: Path) -> None:
    """F1: server state, every line of rounds and clients; and every client has its own model on its own disk, in the
    folder that `fedkin export` writes in a simulation."""
    s = settings(name, run={"rounds": 3}, hosts=HOSTS)
    folder = fleet.submit(s, f"parity-{name}")
    lines = fleet.finish(folder)
    theirs = simulated(s)
    assert server_equals(folder, theirs), fleet.words()
    assert lines == theirs.rounds
    assert records(folder, "clients") == theirs.clients
    assert (folder / "report.html").exists()
    run = json.loads((folder / "clients.json").read_text())["run"]
    for i, ours in enumerate(export_all(theirs, tmp_path / "simulated")):
        same_export(fleet.disk(i) / "clients" / f"c{i}" / run / "model", ours, "client_name", "fingerprints")


def test_workers_that_fail(fleet: Fleet) -> None:
    """F2, F8: c1's worker raises, dies or hangs, before or after its work; once all hang. Each costs its round and no
    more, an abandoned round leaves everything as it was, and no text of an exception reaches the server."""
    s = settings("fedrep", run={"rounds": 10, "eval_every": 10}, hosts={**HOSTS, "reply_timeout": 30.0})
    bad = {2: "raise", 3: "raise after work", 4: "die", 5: "die after work", 6: "hang", 7: "hang"}
    fleet.fail(0, {7: "hang"})
    fleet.fail(1, bad)
    fleet.fail(2, {7: "hang", 8: "slow"})
    folder = fleet.submit(s, "failing")
    lines = fleet.finish(folder)
    answered = [list(line.answered) for line in lines]
    assert answered[:7] == [[0, 1, 2], *[[0, 2]] * 5, []], events(folder)
    assert answered[-1] == [0, 1, 2], events(folder)
    same_as_simulated(folder, s)
    said = [path for place in (folder, fleet.place) for path in place.rglob("*") if path.is_file()]
    assert not [path for path in said if b"patient 4711" in path.read_bytes()]
    assert "patient 4711" in (fleet.folder / "node-c1.log").read_text()


def test_bad_uploads(fleet: Fleet) -> None:
    """F10: NaN, infinity, a huge number, wrong shapes, types, names, too much or nothing: refused with a reason, for
    that client and round only."""
    bad = dict(enumerate(["nan", "inf", "large", "shape", "name", "more", "empty", "double", "many bytes"], start=1))
    s = settings("fedrep", run={"rounds": 10, "eval_every": 10}, hosts=HOSTS)
    fleet.fail(0, {})
    fleet.fail(1, bad)
    fleet.fail(2, {})
    folder = fleet.submit(s, "bad-uploads")
    lines = fleet.finish(folder)
    assert [list(line.answered) for line in lines] == [*[[0, 2]] * 9, [0, 1, 2]], events(folder)
    said = [line["what"] for line in map(json.loads, events(folder).splitlines()) if line["client"] == "c1"]
    assert sum("refused" in line or "update:" in line for line in said) >= 1
    same_as_simulated(folder, s)


def test_another_version_is_refused(own: Fleet) -> None:
    """F18: a node with another fedkin is refused at joining, with both versions in the text; the others run."""
    own.up(0, 1)
    own.start(2, env={"FAULT_VERSION": "0.0.7"})
    s = settings("fedavg", run={"rounds": 1, "eval_every": 1}, hosts={**HOSTS, "min_clients": 2})
    folder = own.submit(s, "versions")
    own.until(lambda: "0.0.7" in events(folder))
    own.finish(folder)
    line = next(line for line in events(folder).splitlines() if "0.0.7" in line)
    from fedkin import __version__

    assert f"fedkin is 0.0.7 there and {__version__} here" in line
    assert rounds(folder)[-1].answered == (0, 1)


def test_late_joiners_and_leavers(own: Fleet) -> None:
    """F9: c2's node starts when round 1 is over, c0's stops some rounds later."""
    own.up(0, 1)
    s = settings("da-pfl", run={"rounds": 12, "eval_every": 12}, hosts={**HOSTS, "min_clients": 2, "min_connected": 2})
    folder = own.submit(s, "joining")
    own.until(lambda: len(rounds(folder)) >= 1)
    own.start(2)
    own.until(lambda: any(2 in line.answered for line in rounds(folder)))
    own.nodes.pop(0).stop()
    lines = own.finish(folder)
    joined = next(line.round for line in lines if 2 in line.joined)
    assert joined > 1
    assert list(lines[-1].answered) == [1, 2]
    same_as_simulated(folder, s)


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_a_host_that_comes_back(own: Fleet, disk: str) -> None:
    """F4: c1's power fails. With its disk it goes on as if messages had been lost; with an empty one it is a newcomer,
    and the events say so."""
    own.up(0, 1, 2)
    s = settings(
        "fedrep", run={"rounds": 8, "eval_every": 8}, hosts={**HOSTS, "min_connected": 3, "reply_timeout": 15.0}
    )
    folder = own.submit(s, "power")
    own.until(lambda: len(rounds(folder)) >= 1)
    own.kill(1)
    if disk == "lost":
        shutil.rmtree(own.disk(1))
    own.until(lambda: any(1 not in line.answered for line in rounds(folder)))
    own.start(1)
    lines = own.finish(folder, 600)
    assert list(lines[-1].answered) == [0, 1, 2], own.words()
    assert ("joins again: its disk was lost" in events(folder)) == (disk == "lost")
    assert server_equals(folder, traced(s, lines)) == (disk == "kept")  # a simulated client does not lose its head


@pytest.mark.parametrize("name", ["fedrep", "da-pfl"])
def test_a_server_that_comes_back(own: Fleet, name: str) -> None:
    """F5: power fails on the server during round 3; the link is started again, the run submitted again, and it ends
    as if nothing had happened."""
    own.up(0, 1, 2)
    s = settings(name, run={"rounds": 5, "eval_every": 5}, hosts=HOSTS)
    folder = own.submit(s, "server")
    own.until(lambda: len(rounds(folder)) >= 2)
    own.kill_server()
    done = len(rounds(folder))
    assert done < 5
    own.up()
    own.submit(s, "server")
    lines = own.finish(folder)
    assert [list(line.answered) for line in lines] == [[0, 1, 2]] * 5, events(folder)
    assert server_equals(folder, simulated(s))
