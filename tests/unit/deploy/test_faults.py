"""What networks, disks and people do to a run: it goes on, and ends as the simulator does for the same participation.

Named after the plan of faults: F3 lost, doubled and late messages; F4 hosts that come back; F5 and F6 servers that come
back; F8 slow clients; F9 comers and goers; F10 bad uploads; F13 names and keys; F16 disks; F18 versions.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import Bundle, ClientError, ConfigError, PartitionError
from fedkin.core.refusals import Code
from fedkin.data import SiteData
from fedkin.privacy.secure_sum import OutOfRange
from fedkin.server.ledger import OutOfStep
from fedkin_hosts import client as site_module
from fedkin_hosts import participants
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireError, WireMessage, refusal
from fedkin_hosts.masks import Unmasked
from fedkin_hosts.messages import Clerk
from fedkin_hosts.participants import Members
from fedkin_hosts.privacy_budget import OverBudget, PrivacyLimits
from hosttoys import (
    Direct,
    changing,
    happening,
    lines,
    on_hosts,
    same_server,
    settings,
    silent,
    simulated,
    sites,
    stopped,
    traced,
)
from kills import Killed
from refusals import refuses
from thorough import thorough_except
from toys import refused

FEDREP = {"method": {"name": "fedrep"}}


def update(of: WireMessage, client: str, who: str, round: int | None = None) -> bool:
    """Whether this message asks this client to train (in this round)."""
    return client == who and of.head["kind"] == "update" and round in (None, of.head["round"])


@pytest.mark.parametrize("name", thorough_except(["fedrep", "da-pfl", "feddyn", "ditto"], ["fedrep", "da-pfl"]))
@pytest.mark.parametrize("fault", ["message lost", "answer lost", "answer refused", "message doubled"])
def test_what_happens_to_a_message(name: str, fault: str, tmp_path: Path) -> None:
    """F3, F10: in round 2 a message of c1 is lost, or its answer, or its answer holds a NaN: the client goes on from
    what the server used last. A message that comes twice is worked on once."""
    s = settings(name)

    def spoilt(b: Bundle) -> Bundle:
        first = next(n for n, t in b.items() if t.is_floating_point())
        return changed(b, first, torch.full_like(b[first], float("nan")))

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=happening(fault, spoilt)))
    lost = [] if fault == "message doubled" else [1]
    assert [sorted({0, 1, 2} - set(line.answered)) for line in ours.rounds] == [[], lost, [], []]
    assert same_server(ours, traced(s, ours.rounds))
    assert ours.clients == traced(s, ours.rounds).clients


def test_an_echo_is_not_worked_on(tmp_path: Path) -> None:
    """F3, F13: the message of round 1 comes again in round 3: it is not answered with work, and changes nothing."""
    s, kept, answers = settings("fedrep"), dict[str, WireMessage](), list[WireMessage]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if update(of, client, "c1", 1):
            kept["old"] = of
        answer = post.ask(client, of)
        if update(of, client, "c1", 3):
            answers.append(post.ask("c1", kept["old"]))
        return answer

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert [a.head["code"] for a in answers] == ["late"]
    assert same_server(ours, simulated(s))


@pytest.mark.parametrize("disk", ["same", "empty"])
def test_a_host_that_comes_back(disk: str, tmp_path: Path) -> None:
    """F4: after round 2 the host of c1 is made anew. On the same disk it goes on where it was; with an empty one it
    starts as a newcomer in the same round, and the log says so."""
    s, post = settings("fedrep"), Direct(sites(tmp_path))

    again: list[bool] = []

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if update(of, client, "c1", 3) and not again:
            again.append(True)
            if disk == "empty":
                shutil.rmtree(tmp_path / "disks" / "c1")
            post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks")
        return post.ask(client, of)

    post.touch = touch
    ours = on_hosts(s, tmp_path, post)
    assert all(list(line.answered) == [0, 1, 2] for line in ours.rounds)
    told = [e for e in lines(tmp_path, "events") if "joins again" in e["what"]]
    if disk == "same":
        assert same_server(ours, simulated(s))
        assert told == []
    else:
        assert [(e["round"], e["client"]) for e in told] == [(3, "c1")]
        assert not same_server(ours, simulated(s))


def test_a_host_that_comes_back_on_another_node(tmp_path: Path) -> None:
    """F4, F9: c1 leaves in round 2 and is back, with its disk and key, on a node of another number in round 3."""
    s, post = settings("fedrep"), Direct(sites(tmp_path))

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage | str:
        if update(of, client, "c1", 2):
            post.off.add(101)
            post.sites[777] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks")
            return "gone"
        return post.ask(client, of)

    post.touch = touch
    ours = on_hosts(s, tmp_path, post)
    assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert same_server(ours, traced(s, ours.rounds))


@pytest.mark.parametrize("when", ["before the answers are used", "after the checkpoint"])
@pytest.mark.parametrize("name", ["fedrep", "fedrep secure", "da-pfl", "ifca-cam", "pfedcs"])
def test_a_server_that_comes_back(name: str, when: str, tmp_path: Path) -> None:
    """F5: killed in round 3 and begun again in the same folder, it ends as if nothing had happened; the same request
    gets the same answer, with the same masks."""
    s, before = settings(name.split()[0], aggregation={"secure": "secure" in name}), when.startswith("before")
    post, answers = Direct(sites(tmp_path)), defaultdict[tuple[str, int], list[bytes]](list)

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if of.head["kind"] == "update":
            answers[client, of.head["round"]].append(answer.body)
            if before and update(of, client, "c2", 3) and len(answers["c2", 3]) == 1:
                raise Killed
        return answer

    def on_round(report: Any, line: Any) -> None:
        if not before and report.round == 3:
            raise Killed

    post.touch = touch
    with pytest.raises(Killed):
        on_hosts(s, tmp_path, post, on_round=on_round)
    ours, theirs = on_hosts(s, tmp_path, Direct(post.sites, touch=touch)), simulated(s)
    assert [len(answers["c0", round]) for round in (1, 2, 3, 4)] == [1, 1, 2 if before else 1, 1]
    assert all(len(set(bodies)) == 1 for bodies in answers.values())
    assert same_server(ours, theirs)
    assert ours.rounds == theirs.rounds


def test_a_checkpoint_does_not_reach_the_disk_before_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of power leaves any mixture of what was not forced to the disk: each checkpoint is written after the lines
    that it has the sizes of, and before the next round begins; the config is there from the start."""
    forced, checked, replace = set[tuple[int, int]](), list[str](), os.replace

    def at(path: Path) -> tuple[int, int]:
        found = path.stat()
        return found.st_ino, found.st_size

    def fsync(number: int) -> None:
        found = os.fstat(number)
        forced.add((found.st_ino, found.st_size))

    def renamed(old: Any, new: Any) -> None:
        if Path(new).name == "commit.json":
            there = [
                Path(old),
                *(Path(new).parent / "objects").iterdir(),
                *Path(new).parent.glob("*.jsonl"),
                Path(new).parent / "config.toml",
            ]
            checked.extend(path.name for path in there if path.name != "events.jsonl")
            assert [p.name for p in there if at(p) not in forced and p.name != "events.jsonl"] == []
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", renamed)
    s = settings("fedavg", run={"rounds": 2, "eval_every": 1})
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path)))
    assert checked.count("rounds.jsonl") == checked.count("clients.jsonl") == checked.count("config.toml") == 2
    assert same_server(ours, simulated(s))


def test_an_older_checkpoint(tmp_path: Path) -> None:
    """F6: the server is put back to round 1 while clients have gone on: they say so, go on from their own states, and
    the run ends with finite models; the log names them."""
    s, old = settings("fedrep"), tmp_path / "old"
    post = stopped(
        s, tmp_path, Direct(sites(tmp_path)), 3, lambda round: round == 1 and shutil.copytree(tmp_path / "run", old)
    )
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(old, tmp_path / "run")
    ours = on_hosts(s, tmp_path, post)
    told = {(e["client"], e["round"]) for e in lines(tmp_path, "events") if "goes on from upload" in e["what"]}
    assert {client for client, _ in told} == {"c0", "c1", "c2"}
    assert list(ours.rounds[-1].answered) == [0, 1, 2]
    assert all(bool(t.isfinite().all()) for t in ours.server.state.values())


def test_slow_clients_are_not_waited_for_twice(tmp_path: Path) -> None:
    """F8: c1 never answers. The first round waits its whole deadline, the later ones only for the others."""
    s, spent = settings("fedavg", run={"eval_every": 4}), list[float]()
    post = Direct(sites(tmp_path), touch=silent("update", "evaluate", "keep"))
    s = s.but(rounds=20, eval_every=20)
    ours = on_hosts(s, tmp_path, post, on_round=lambda report, line: spent.append(post.time.now))
    assert list(ours.rounds[0].answered) == list(ours.rounds[9].answered) == [0, 2]
    assert refused(ours.rounds[0], "update") == {1: "expired"}
    assert spent[0] >= 20
    assert spent[9] - spent[0] < 5
    assert same_server(ours, traced(s, ours.rounds))


def test_a_suspect_that_works_again_is_waited_for(tmp_path: Path) -> None:
    """F8: c1 hangs in round 1 and is slower than the others from then on, but in time: it takes part again."""
    s, post = settings("fedavg", run={"rounds": 6, "eval_every": 6}), Direct(sites(tmp_path))
    ready: dict[str, float] = {}

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage | None:
        return None if update(of, client, "c1", 1) else post.ask(client, of)

    collect = post.collect

    def slowly(tickets: Any) -> Any:
        """Answers of c1 are there three seconds after the message, those of the others two."""
        for ticket in list(post._ready):
            ready.setdefault(ticket, post.time.now + (3 if post._ready[ticket].head["client"] == "c1" else 2))
        return collect([t for t in tickets if ready.get(t, 0) <= post.time.now])

    post.touch, post.collect = touch, slowly  # type: ignore[method-assign]
    ours = on_hosts(s, tmp_path, post)
    assert [list(line.answered) for line in ours.rounds] == [[0, 2], *[[0, 1, 2]] * 5]
    assert ours.rounds[0].figures.clients == 2  # evaluated without it: its answer came when the others' were there
    assert ours.rounds[1].figures.clients == 3
    assert same_server(ours, traced(s, ours.rounds))


def test_when_all_are_slow_the_round_is_abandoned(tmp_path: Path) -> None:
    """F8: in round 2 nobody answers: the state is that of round 1, the line says so, and round 3 goes on from it."""
    s = settings("fedavg", run={"min_replies": 2})

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage | None:
        return None if of.head["kind"] == "update" and of.head["round"] == 2 else post.ask(client, of)

    post = Direct(sites(tmp_path), touch=touch)
    ours = on_hosts(s, tmp_path, post)
    assert [line.abandoned for line in ours.rounds] == [False, True, False, False]
    assert same_server(ours, traced(s, ours.rounds))


def test_late_joiners_and_leavers(tmp_path: Path) -> None:
    """F9: c2 comes in round 3, c0 leaves after it. Numbers follow the order of coming; the run equals the simulator's
    with the same joiners and participation."""
    s, post = settings("da-pfl", hosts={"min_clients": 2}), Direct(sites(tmp_path), off={102})

    def on_round(report: Any, line: Any) -> None:
        if report.round == 2:
            post.off.discard(102)
        if report.round == 3:
            post.off.add(100)

    ours = on_hosts(s, tmp_path, post, on_round=on_round)
    assert [list(line.joined) for line in ours.rounds] == [[0, 1], [], [2], []]
    assert [list(line.answered) for line in ours.rounds] == [[0, 1], [0, 1], [0, 1, 2], [1, 2]]
    assert [list(line.absent) for line in ours.rounds] == [[], [], [], [0]]
    assert same_server(ours, traced(s, ours.rounds))


@pytest.mark.parametrize("least", [1, 3])
def test_a_restarted_server_does_not_wait_for_leavers(least: int, tmp_path: Path) -> None:
    """F5, F9: c2 left after round 2, and the server is killed after round 4. With `min_clients` = 3 it goes on with the
    two others as without a restart."""
    s, post = settings("fedrep", run={"rounds": 6}, hosts={"min_clients": 3}), Direct(sites(tmp_path))
    again = stopped(s, tmp_path, post, 4, lambda round: round == 2 and post.off.add(102))
    s = s.but(min_clients=least)
    ours = on_hosts(s, tmp_path, again)
    assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2]] * 2 + [[0, 1]] * 4
    assert same_server(ours, traced(s, ours.rounds))


class Later(Direct):
    """Nodes that connect at certain seconds."""

    come: dict[int, float]

    def nodes(self) -> Mapping[int, str]:
        return {n: key for n, key in super().nodes().items() if self.time.now >= self.come.get(n, 0)}


def test_a_restarted_server_gives_its_clients_time(tmp_path: Path) -> None:
    """F5: after the server's restart c1 connects later than the others: the next round is played with it."""
    s = settings("fedrep", hosts={"wait_timeout": 600.0})
    again = Later(stopped(s, tmp_path, Direct(sites(tmp_path)), 2).sites)
    again.come = {101: 100.0}
    assert same_server(on_hosts(s, tmp_path, again), simulated(s))


@pytest.mark.parametrize(("then", "seconds"), [("another upload", 0.0), ("another upload", 20.0), ("nothing", 0.0)])
def test_a_client_that_never_has_the_upload_does_not_stall_rounds(
    then: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8, F13: c1 answers each update, at once or after a while, with an upload that it says to go on from. It is asked
    again once in a round; if it names yet another upload, or is silent then, later rounds do not wait for it."""
    s = settings("fedavg", run={"rounds": 6, "eval_every": 6}, hosts={"reply_timeout": 60.0})
    asked, ends, ready = list[int](), list[float](), dict[str, float]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage | None:
        if client == "c1" and then == "nothing" and of.head["kind"] == "evaluate":
            return None  # an answer would clear it of the suspicion
        if not update(of, client, "c1"):
            return post.ask(client, of)
        asked.append(of.head["round"])
        if then == "nothing" and asked.count(of.head["round"]) == 2:
            return None
        return refusal(of.head, client, "out-of-step", have=100 + len(asked))

    post = Direct(sites(tmp_path), touch=touch)
    collect = post.collect

    def slowly(tickets: Any) -> Any:
        """Refusals are there after some seconds."""
        for ticket, answer in post._ready.items():
            ready.setdefault(ticket, post.time.now + (0 if answer.head["ok"] else seconds))
        return collect([t for t in tickets if ready.get(t, 0) <= post.time.now])

    monkeypatch.setattr(post, "collect", slowly)
    ours = on_hosts(s, tmp_path, post, on_round=lambda report, line: ends.append(post.time.now))
    assert [list(line.answered) for line in ours.rounds] == [[0, 2]] * 6
    assert all(1 in refused(line, "update") for line in ours.rounds)
    assert asked[:2] == [1, 1]
    assert max(asked.count(round) for round in asked) == 2
    assert max(b - a for a, b in itertools.pairwise(ends)) < 10
    assert same_server(ours, traced(s, ours.rounds))


# ---- the server's clock --------------------------------------------------------------------------------------------
def session_of(folder: Path) -> int:
    return int(json.loads((folder / "run" / "clients.json").read_text())["session"])


def test_a_restarted_server_may_have_a_wrong_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: the clock is an hour behind after the restart: its messages are still newer than those before."""
    s = settings("fedrep")
    post, before = stopped(s, tmp_path, Direct(sites(tmp_path)), 2), session_of(tmp_path)
    real = time.time_ns
    monkeypatch.setattr(participants.time, "time_ns", lambda: real() - 3600 * 10**9)
    ours = on_hosts(s, tmp_path, post)
    assert session_of(tmp_path) == before + 1
    assert same_server(ours, simulated(s))


def test_clients_that_know_a_later_start_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F6: an old copy of the run folder on a server whose clock is behind: nothing is done, and both sides say why."""
    s, old = settings("fedrep"), tmp_path / "old"
    post = stopped(
        s, tmp_path, Direct(sites(tmp_path)), 3, lambda round: round == 1 and shutil.copytree(tmp_path / "run", old)
    )
    shutil.rmtree(tmp_path / "run")
    old.rename(tmp_path / "run")
    real = time.time_ns
    monkeypatch.setattr(participants.time, "time_ns", lambda: real() - 3600 * 10**9)
    with monkeypatch.context() as m:  # as if the server had been started several times since the copy
        kept = type(post.sites[100].store).load

        def load(self: Any, run: str) -> Any:
            found = kept(self, run)
            found.session += 10
            return found

        m.setattr(type(post.sites[100].store), "load", load)
        ours = on_hosts(s, tmp_path, post)
    assert all(list(line.answered) == [] for line in ours.rounds[1:])
    told = {e["client"] for e in lines(tmp_path, "events") if "a later start of the server" in e["what"]}
    assert told == {"c0", "c1", "c2"}
    assert "a message of an earlier start of the server" in caplog.text


# ---- bad uploads ---------------------------------------------------------------------------------------------------
def changed(b: Bundle, name: str, t: torch.Tensor) -> Bundle:
    return Bundle({**b, name: t})


Change = Callable[[Bundle], Bundle] | None
UNUSED: dict[str, tuple[str, Change, dict[str, Any], Code]] = {
    "NaN": ("update", lambda b: b.but(model=b.model * float("nan")), {}, "not-finite"),
    "1e30": ("update", lambda b: b.but(model=b.model * 0 + 1e30), {}, "too-large"),
    "ten thousand times the length": ("update", lambda b: b.but(model=b.model * 1e4), {}, "outlier"),
    "another shape": ("update", lambda b: b.but(model=b.model[:-1]), {}, "shape"),
    "another name": ("update", lambda b: Bundle(modell=b.model), {}, "names"),
    "of another round": ("update", None, {"seq": 1}, "other-message"),
    "of another client": ("update", None, {"client": "c0"}, "other-message"),
    "of another run": ("update", None, {"run": "x"}, "other-message"),
    "a text for a code": ("update", None, {"ok": False, "code": "Traceback: name of a patient"}, "garbled"),
    "a refusal with an upload": ("update", None, {"ok": False, "code": "out-of-step", "have": 0}, "garbled"),
    "scores of another shape": ("evaluate", lambda b: b.but(test=torch.zeros(2, 2, dtype=torch.int64)), {}, "shape"),
    "scores of more samples than a client may have": (
        "evaluate", lambda b: b.but(test=torch.full((3, 10), 110)), {}, "out-of-range"
    ),
    "counts of more samples than at joining": ("evaluate", lambda b: b.but(counts=b.counts * 10), {}, "mismatch"),
    "a made-up cluster": ("evaluate", lambda b: b.but(cluster=torch.tensor(10**15)), {}, "out-of-range"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSED)
def test_an_answer_that_cannot_be_used_costs_its_sender_the_step(what: str, tmp_path: Path) -> None:
    """F10, F13, F15: an answer of c1 in round 2. The others are merged as if it had been lost, the reason is written
    down with its client, and no text of the answer reaches a file."""
    kind, change, head, code = UNUSED[what]
    s = settings("ifca" if "cluster" in what else "fedavg", hosts={"max_samples": 1000})
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=changing(kind, change, round=2, **head)))
    assert [list(line.answered) for line in ours.rounds] == [
        [0, 2] if kind == "update" and line.round == 2 else [0, 1, 2] for line in ours.rounds
    ]
    assert [refused(line, kind) for line in ours.rounds] == [{}, {1: code}, {}, {}]
    assert {line.client for line in ours.clients if line.round == 2} == ({0, 2} if kind == "evaluate" else {0, 1, 2})
    told = [e for e in lines(tmp_path, "events") if e["what"].startswith(f"{kind}: ")]
    assert [(e["round"], e["client"]) for e in told] == [(2, "c1")]
    assert "patient" not in (tmp_path / "run" / "rounds.jsonl").read_text() + str(lines(tmp_path, "events"))
    assert same_server(ours, traced(s, ours.rounds))


@pytest.mark.parametrize("size", [0, -5, 10**12])
def test_a_made_up_number_of_samples_is_refused_at_joining(size: int, tmp_path: Path) -> None:
    """F10: c1 claims no, fewer than no, or a million million samples: it gets no number, the others do."""
    s = settings("fedavg", hosts={"min_clients": 2})

    touch = changing("describe", lambda b: changed(b, "size", torch.tensor(size)))
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert len(ours.server.sizes) == 2
    assert any(f"size is {size}, expected 1 to" in e["what"] for e in lines(tmp_path, "events"))


# ---- who is who ----------------------------------------------------------------------------------------------------
def test_a_name_belongs_to_its_key(tmp_path: Path) -> None:
    """F13: in round 3 c1's node is gone and another one, with another key, claims its name: refused and written down;
    c1 itself comes back in round 4."""
    s, post = settings("fedrep"), Direct(sites(tmp_path))

    def on_round(report: Any, line: Any) -> None:
        if report.round == 2:
            post.off.add(101)
            post.sites[666] = ClientService("c1", SiteData("digits", share=1), tmp_path / "thief")
            post.keys[666] = "another key"
        if report.round == 3:
            post.off = {666}

    ours = on_hosts(s, tmp_path, post, on_round=on_round)
    assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 1, 2]]
    assert any("another key" in e["what"] and e["client"] == "c1" for e in lines(tmp_path, "events"))
    assert same_server(ours, traced(s, ours.rounds))


def test_a_name_cannot_be_taken_while_its_owner_is_here(tmp_path: Path) -> None:
    """F13: without keys, a second node of the same name has to wait; the first goes on."""
    s, post = settings("fedrep"), Direct(sites(tmp_path), keys=dict.fromkeys([100, 101, 102, 666], ""))

    def on_round(report: Any, line: Any) -> None:
        post.sites[666] = ClientService("c1", SiteData("digits", share=1), tmp_path / "thief")

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        node = {"c0": 100, "c1": 101, "c2": 102}[client]
        return post.sites[666 if of.head["kind"] == "hello" and 666 in post.sites else node].answer(of)

    post.touch = touch
    ours = on_hosts(s, tmp_path, post, on_round=on_round)
    assert any("connected already" in e["what"] for e in lines(tmp_path, "events"))
    assert same_server(ours, simulated(s))


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "..", "x" * 65, "ä"])
def test_names_cannot_leave_their_folder(name: str, tmp_path: Path) -> None:
    """F15: such a client-id is refused on the client itself, and by the server if a node sends it nevertheless."""
    with refuses(ConfigError, "client-id", repr(name)):
        ClientService(name, SiteData("digits", share=0), tmp_path)

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        return WireMessage({**answer.head, "client": name}, answer.body) if client == "c2" else answer

    s = settings("fedavg", hosts={"min_clients": 2})
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert len(ours.server.sizes) == 2
    assert any("client-id must be" in e["what"] for e in lines(tmp_path, "events"))


@pytest.mark.parametrize("what", ["fedkin", "flwr", "torch", "method", "engine"])
def test_another_version_is_refused_at_joining(what: str, tmp_path: Path) -> None:
    """F18: both versions are in the text."""
    s = settings("fedavg", hosts={"min_clients": 2})

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if client == "c2" and of.head["kind"] == "hello":
            return WireMessage({**answer.head, "versions": {**answer.head["versions"], what: "0.0.9"}}, answer.body)
        return answer

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert len(ours.server.sizes) == 2
    (told,) = [e["what"] for e in lines(tmp_path, "events") if e["client"] == "c2"]
    assert "is 0.0.9 there and" in told
    assert "install the same on both" in told


# ---- the client's own troubles -------------------------------------------------------------------------------------
def test_an_exception_stays_on_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F2: client code fails after its work in round 2. The server learns a code, not the text; the state on the disk
    is the last acknowledged one."""
    s, seen = settings("fedrep"), list[bytes]()
    real = site_module.perform

    def perform(job: Any, task: Any, train: Any) -> Any:
        answer = real(job, task, train)
        if task.step == "update" and (task.client, task.round) == (1, 2):
            raise RuntimeError("patient 4711 is ill")
        return answer

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        seen.append(repr(answer).encode())
        return answer

    monkeypatch.setattr(site_module, "perform", perform)
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    monkeypatch.undo()
    assert refused(ours.rounds[1], "update") == {1: "failed"}
    assert not any(b"4711" in text for text in seen)
    assert same_server(ours, traced(s, ours.rounds))


TROUBLES: dict[str, tuple[Exception, dict[str, Any], bool]] = {
    "another upload": (OutOfStep(4, 5), {"code": "out-of-step", "have": 4}, False),
    "another key": (Unmasked("new-key", public="ab"), {"code": "new-key", "public": "ab"}, False),
    "a huge number": (OutOfRange("patient 4711"), {"code": "not-summable"}, False),
    "a spent budget": (OverBudget("patient 4711"), {"code": "budget"}, False),
    "a missing entry": (KeyError("patient 4711"), {"code": "unreadable"}, True),
    "a bad list of tensors": (WireError("patient 4711"), {"code": "unreadable"}, False),
    "other columns": (PartitionError("patient 4711"), {"code": "data"}, False),
    "a full disk": (PermissionError("patient 4711"), {"code": "disk"}, False),
    "a client program": (ClientError("update", 0, 1, "patient 4711"), {"code": "failed"}, False),
    "a run's settings": (ConfigError("patient 4711"), {"code": "settings"}, False),
    "anything else": (ZeroDivisionError("patient 4711"), {"code": "failed"}, True),
}


@pytest.mark.parametrize("what", TROUBLES)
def test_what_is_told_of_an_exception(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A code that the server has words for; the text is in the site's own log, with a traceback where nobody expected
    it."""
    error, told, traced_back = TROUBLES[what]

    def fail(self: ClientService, head: Any) -> Any:
        raise error

    monkeypatch.setattr(ClientService, "_kept", fail)
    head = Clerk(settings("fedavg"), Members.load(tmp_path)).write("update", 1, 5.0, client=0, seq=5, inline=True).head
    answer = sites(tmp_path, 1)[100].answer(WireMessage(head))
    assert answer == refusal(head, "c0", **told)
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) == traced_back


def test_a_full_disk_costs_the_round_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F16: writing fails on c1 in round 2; what was there stays, the error is told by its code."""
    s, post = settings("fedrep"), Direct(sites(tmp_path))
    real = type(post.sites[101].store).save

    def save(self: Any, run: str, kept: Any) -> None:
        if self.folder.name == "c1" and kept.ledger.seq == 2:
            raise OSError(28, "No space left on device")
        real(self, run, kept)

    monkeypatch.setattr(type(post.sites[101].store), "save", save)
    ours = on_hosts(s, tmp_path, post)
    assert refused(ours.rounds[1], "update") == {1: "disk"}
    monkeypatch.undo()
    assert same_server(ours, traced(s, ours.rounds))


def test_a_damaged_memory_is_not_used(tmp_path: Path) -> None:
    """F16: c1's file is cut short before round 3: it sits out, its own log says what to do, the others go on."""
    s, post = settings("fedrep"), Direct(sites(tmp_path))

    def on_round(report: Any, line: Any) -> None:
        if report.round == 2:
            (path,) = (tmp_path / "disks" / "c1").rglob("memory.safetensors")
            path.write_bytes(path.read_bytes()[:-100])

    ours = on_hosts(s, tmp_path, post, on_round=on_round)
    assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]


Sent = list[tuple[str, int, bool, str]]
"""Of each message to c1: its kind, its round, whether it brought the setup, and the code of the answer."""


def played(folder: Path, before: Callable[[Direct], None] | None = None) -> tuple[Sent, bool]:
    """What was sent to c1 when something happened to it before round 2, and whether the run ended as simulated."""
    s, sent, done = settings("fedrep", run={"rounds": 3, "eval_every": 3}), Sent(), list[int]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if client == "c1" and of.head["round"] == 2 and before is not None and not done:
            done.append(1)
            before(post)
        answer = post.ask(client, of)
        if client == "c1":
            code = str(answer.head.get("code", ""))
            sent.append((of.head["kind"], of.head["round"], "inline" in of.head, code))
        return answer

    ours = on_hosts(s, folder, Direct(sites(folder), touch=touch))
    assert ours.rounds[0].answered == (0, 1, 2)
    return sent, same_server(ours, simulated(s))


def test_the_setup_is_sent_once(tmp_path: Path) -> None:
    """With the greeting, as far as it is known, and with the request for a description."""
    sent, same = played(tmp_path)
    assert {kind for kind, _, inline, _ in sent if inline} == {"hello", "describe"}
    assert same
    (kept,) = (tmp_path / "disks" / "c1").glob("*/setup.json")
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("damage", "disk", "limits", "codes"),
    [
        (lambda path: None, "disks", {}, [(False, "")]),
        (lambda path: path.unlink(), "disks", {}, [(False, "setup"), (True, "")]),
        (lambda path: path.write_bytes(b'{"settings": {}}'), "disks", {}, [(False, "setup"), (True, "")]),
        (lambda path: None, "new", {}, [(False, "setup"), (True, "out-of-step"), (True, "")]),
        (lambda path: None, "disks", {"min_noise_multiplier": 1.0}, [(False, "settings")]),
    ],
    ids=["kept", "lost", "another one", "all of the disk lost", "beyond a limit of the owner"],
)
def test_a_client_that_was_started_again(
    damage: Callable[[Path], None], disk: str, limits: dict[str, Any], codes: list[tuple[bool, str]], tmp_path: Path
) -> None:
    """It reads the setup, within what its owner allows now, or is sent it again in the same exchange; one whose disk
    was lost says that it remembers nothing."""

    def restart(post: Direct) -> None:
        damage(next((tmp_path / "disks" / "c1").glob("*/setup.json")))
        share = SiteData("digits", share=1)
        post.sites[101] = ClientService("c1", share, tmp_path / disk, PrivacyLimits(**limits))

    sent, same = played(tmp_path, restart)
    assert [(inline, code) for kind, round, inline, code in sent if (kind, round) == ("update", 2)] == codes
    assert same is (disk == "disks" and not limits)
