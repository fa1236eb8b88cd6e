"""Every method over messages between hosts ends as in the simulator, bit for bit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fedkin.core import ConfigError
from fedkin.exporting import load_export
from fedkin.methods import METHODS
from fedkin.record.files import read_commit
from hosttoys import Direct, on_hosts, same_server, settings, simulated, sites, taken_home
from madeup import changed
from refusals import refuses
from thorough import OF_EVERY_KIND, thorough_except


@pytest.mark.parametrize("name", thorough_except([*METHODS, "ifca-cam", "fesem-cam"], (*OF_EVERY_KIND, "oracle")))
def test_hosts_equal_the_simulator(name: str, tmp_path: Path) -> None:
    """State of the server, every line of every round and client, and what each client keeps."""
    grouped = {"data": {"plant": "labels@groups=2"}} if name == "oracle" else {}
    s = settings(name, **grouped)
    post = Direct(sites(tmp_path))
    ours, theirs = on_hosts(s, tmp_path, post), simulated(s)
    assert same_server(ours, theirs)
    assert ours.rounds == [changed(line, ari=None) if line.figures else line for line in theirs.rounds]
    assert ours.clients == theirs.clients
    assert ours.final == msgspec.structs.replace(theirs.final, ari=None)
    last = {line.client: line for line in ours.clients}
    assert all(len(line.test_part) == 32 for line in last.values())
    for i in range(3):
        card = load_export(taken_home(tmp_path, f"c{i}")).card
        assert card.test.as_evaluated is True
        assert (card.client, card.test.correct) == (i, last[i].correct)


@pytest.mark.thorough
def test_hosts_with_shares_drift_as_the_simulator(tmp_path: Path) -> None:
    """Noise and data that change in the second round: the same lines, and models that are checked on the last data."""
    drift = {"plant": "labels@groups=2,drift=2,fraction=1", "feature_noise": 0.05}
    s = settings("fedper", data=drift)
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path))), simulated(s)
    assert same_server(ours, theirs)
    assert ours.clients == theirs.clients
    for i in range(3):
        assert load_export(taken_home(tmp_path, f"c{i}")).card.test.as_evaluated is True


@pytest.mark.parametrize("name", ["pfedcs", "fedrod", "fedproto", "fedgh", "fedfomo", "fedavg"])
def test_hosts_at_the_other_moment(name: str, tmp_path: Path) -> None:
    """evaluate = "trained": figures, and the model that a client keeps, are of the moment after local training, the
    delivered one's beside them; FedAvg has none of it, and the summary says so. Clients train by Adam with clipped
    gradients and step sizes on a cosine over the run."""
    own = {"optimizer": "adam", "lr": 0.01, "clip": 1.0, "schedule": "cosine"}
    s = settings(name, run={"evaluate": "trained"}, training=own)
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path))), simulated(s)
    now = simulated(settings(name, training=own))
    assert (ours.rounds, ours.clients) == (theirs.rounds, theirs.clients)
    for i in range(3):
        assert load_export(taken_home(tmp_path, f"c{i}")).card.test.as_evaluated is True
    noted = tuple(note for note in ours.run.notes if 'evaluate = "trained" changes nothing' in note)
    assert len(noted) == (name == "fedavg")
    assert (noted, now.run.notes) == (theirs.run.notes, ())
    for then, line in zip(ours.clients, now.clients, strict=True):
        assert then.views.get("delivered", then.accuracy) == line.accuracy
        assert then.accuracy == line.views.get("trained", line.accuracy)


def test_hosts_end_early_in_the_round_of_the_simulator(tmp_path: Path) -> None:
    """Steps so small that only the first evaluation is a gain: the third round of eight is the last. It alone has the
    outcomes of single test samples, and each client keeps its model. Without validation data the server refuses."""
    still = {"training": {"lr": 1e-12}, "run": {"rounds": 8, "stop_after": 2}}
    s = settings("da-pfl", **still)
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path))), simulated(s)
    assert (len(ours.rounds), ours.rounds, ours.clients) == (3, theirs.rounds, theirs.clients)
    assert ours.stopped == theirs.stopped != ""
    assert {line.round for line in ours.clients if line.right} == {3}
    assert load_export(taken_home(tmp_path, "c0")).card.round == 3
    with refuses(ConfigError, "stop_after = 2", "validation"):
        on_hosts(settings("da-pfl", data={"validation": 0.0}, **still), tmp_path / "b", Direct(sites(tmp_path / "b")))


def test_hosts_with_banks_in_files_equal_the_simulator(tmp_path: Path) -> None:
    """The server's models of its clients lie in a file; everything else is as in memory."""
    ours = on_hosts(settings("da-pfl", compute={"state": "file"}), tmp_path, Direct(sites(tmp_path)))
    theirs = simulated(settings("da-pfl"))
    assert len(read_commit(tmp_path / "run").last.banks["bank"]) == len(theirs.server.state.bank)
    assert same_server(ours, theirs)
    assert ours.rounds == theirs.rounds
    assert list(ours.clients) == theirs.clients
