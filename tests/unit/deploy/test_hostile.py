"""One registered client that means harm: it is refused and named, and the run of the others goes on as usual."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import ConfigError, EngineError
from fedkin.experiment.settings import Settings, table_of
from fedkin.methods import METHODS
from fedkin.record.result import Result
from fedkin_hosts import submitted
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.submitted import Submitted, run_submitted
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import (
    Direct,
    Touch,
    bare,
    changing,
    crafted,
    lines,
    on_hosts,
    same_server,
    settings,
    silent,
    simulated,
    sites,
    stopped,
)
from thorough import OF_EVERY_KIND, thorough_except
from toys import refused

LONG = crafted("model", "F32", [0, 2**63])


BODIES = {
    "long sides": LONG,
    "sides whose product is 0": crafted("model", "F32", [2**62, 2**62, 0]),
    "a nested shape": crafted("model", "F32", [[1]]),
}
HEADS: dict[str, dict[str, Any]] = {
    **{what: {"tensors": ["model"]} for what in BODIES},
    "nested tensors": {"tensors": [["model"]]},
    "an unknown entry": {"more": {"a": [1] * 100}},
    "a stamp of lists": {"seq": [1], "session": {}, "client": ["c1"]},
    "no answer": {"ok": None},
}
IN_TEST = ("an unknown entry", "a stamp of lists")
"""Heads that `make test` tries with every kind of message, and all of them with one kind; `make test-all` tries all."""


EVERY_KIND = ["hello", "describe", "update", "evaluate", "keep"]
PAIRS = [
    pytest.param(kind, what, marks=() if kind == "update" or what in IN_TEST else pytest.mark.thorough)
    for kind in EVERY_KIND
    for what in HEADS
]


@pytest.mark.parametrize(("kind", "what"), PAIRS)
def test_a_head_ends_no_run(kind: str, what: str, tmp_path: Path) -> None:
    """Whatever c1 answers to whichever message: it is refused for that message and named, and the others go on."""
    least = 2 if kind in ("hello", "describe") else 3
    s = settings("fedavg", run={"rounds": 2}, hosts={"min_clients": least, "wait_timeout": 5.0})
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=changing(kind, BODIES.get(what, b""), **HEADS[what])))
    if kind in ("hello", "describe"):
        assert len(ours.server.sizes) == 2
    if kind == "update":
        assert [list(line.answered) for line in ours.rounds] == [[0, 2]] * 2
        assert list(refused(ours.rounds[0], "update")) == [1]
    if kind == "evaluate":
        assert list(refused(ours.rounds[1], "evaluate")) == [1]
    told = [e for e in lines(tmp_path, "events") if "cannot be read" in e["what"] or "does not fit" in e["what"]]
    assert {e["client"] for e in told} <= {"c1", "?"}
    assert told
    assert not (tmp_path / "run" / "failed.txt").exists()


@pytest.mark.parametrize("card", [{"inputs": [1, 9, 9]}, {"labels": None}])
def test_a_card_that_contradicts_those_of_the_others_is_refused(card: dict[str, Any], tmp_path: Path) -> None:
    """Before the first round: its sender is named, and the others train."""

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if (client, of.head["kind"]) != ("c1", "hello"):
            return answer
        return WireMessage({**answer.head, "card": {**answer.head["card"], **card}}, answer.body)

    s = settings("fedavg", run={"rounds": 2}, hosts={"min_clients": 2, "wait_timeout": 5.0})
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert [list(line.answered) for line in ours.rounds] == [[0, 1]] * 2
    told = [e for e in lines(tmp_path, "events") if "refused" in e["what"]]
    assert [e["client"] for e in told] == ["c1"]
    assert "its data do not fit those of the other clients: " in told[0]["what"]


# ---- numbers that fit the form -------------------------------------------------------------------------------------
WHOLE: dict[str, int] = {"least": -(2**63), "minus one": -1, "most": 2**63 - 1, "large": 10**15}
FLOATS: dict[str, float] = {"0": 0.0, "-1e8": -1e8, "1e8": 1e8, "1e-40": 1e-40}


NAMES = [n for n in METHODS if n != "oracle"]
ALIKE = {"creff", "ditto", "fedavg-ft", "fedrod", "local", "per-fedavg"}
"""Their clients send what FedAvg's send, or, as CReFF's, what other methods' do: `make test-all` tries them."""


def spoilt(answer: WireMessage, how: str) -> tuple[WireMessage, bool]:
    """An answer with one number in all its tensors of whole numbers, or in all others; and whether it had any."""
    b, changed = bundle(answer), False
    for n, t in b.items():
        if t.is_floating_point() if how in FLOATS else t.dtype == torch.int64:
            b[n], changed = torch.full_like(t, FLOATS[how] if how in FLOATS else WHOLE[how]), True
    return wire_message(bare(answer), b), changed


def spoils(how: Mapping[int, str], changed: set[str]) -> Touch:
    """c1 sends such answers in these rounds; ``changed`` is told which it could."""

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer, now = post.ask(client, of), how.get(of.head["round"])
        if client != "c1" or of.head["kind"] not in ("survey", "update", "evaluate") or now is None:
            return answer
        answer, done = spoilt(answer, now)
        changed.update([now] if done else [])
        return answer

    return touch


def finite(ours: Result) -> bool:
    return all(bool(t.isfinite().all()) for t in ours.server.state.values() if t.is_floating_point())


@pytest.mark.parametrize("name", thorough_except(NAMES, {*OF_EVERY_KIND} - ALIKE))
def test_numbers_of_the_right_form_end_no_run(name: str, tmp_path: Path) -> None:
    """c1 sends answers of the right form, in every round another number: whole ones that cannot be, then fractions at
    the edge of what is taken. With every method the run comes to its end, and the server's numbers are finite."""
    each, changed = dict(enumerate([*WHOLE, *FLOATS], start=2)), set[str]()
    s = settings(name, run={"rounds": 9, "eval_every": 1})
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=spoils(each, changed)))
    assert changed >= set(WHOLE)
    assert len(ours.rounds) == 9
    assert all({*line.cohort} - {1} <= {*line.answered} for line in ours.rounds[:5])
    assert finite(ours)


# ---- claims --------------------------------------------------------------------------------------------------------
def claims(size: int, s: Settings, folder: Path, client: str = "c1") -> Result:
    """A run in which a client claims so many training samples."""

    touch = changing("describe", lambda b: b.but(size=torch.tensor(size)), who=client)
    return on_hosts(s, folder, Direct(sites(folder, s.hosts.min_clients), touch=touch))


@pytest.mark.parametrize("name", ["fedavg", "feddyn", "clustered-sampling", "pfedcs"])
def test_a_claim_weighs_as_much_as_all_others_at_most(name: str, tmp_path: Path) -> None:
    """c1 claims ten million samples: the server ends with the bits of a run in which it claims as many as the other two
    together, and round and events name the client, its claim and what was used."""
    s = settings(name, run={"rounds": 3, "eval_every": 3})
    honest = simulated(s).server.sizes.tolist()
    others = honest[0] + honest[2]
    far = claims(10_000_000, s, tmp_path / "far")
    near = claims(others, s, tmp_path / "near")
    assert same_server(far, near)
    assert near.rounds[0].limited == {}
    full = [line for line in far.rounds if line.answered == (0, 1, 2)]
    assert full
    assert all(line.limited == {1: (10_000_000, others)} for line in full)
    told = [e for e in lines(tmp_path / "far", "events") if "claims" in e["what"]]
    assert {e["client"] for e in told} == {"c1"}
    expected = f"claims 10000000 samples, more than 50 % of the round's ([hosts] max_share): {others} are used"
    assert told[0]["what"] == expected
    assert not [e for e in lines(tmp_path / "near", "events") if "claims" in e["what"]]


def test_the_limit_holds_among_those_who_answered(tmp_path: Path) -> None:
    """Of four clients c3 sits out round 2: there c1 weighs as much as the two others who answered."""
    s = settings("fedavg", data={"clients": 4}, hosts={"min_clients": 4}, run={"rounds": 2})

    def touch(post: Direct, who: str, of: WireMessage) -> WireMessage | None:
        answer = post.ask(who, of)
        if (who, of.head["kind"]) == ("c1", "describe"):
            b = bundle(answer).but(size=torch.tensor(10**6))
            return wire_message(bare(answer), b)
        return None if (who, of.head["kind"], of.head["round"]) == ("c3", "update", 2) else answer

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path, 4), touch=touch))
    a, _, b, c = simulated(s).server.sizes.tolist()
    assert [line.limited[1][1] for line in ours.rounds] == [a + b + c, a + b]


@pytest.mark.parametrize(
    ("name", "participation", "max_share"), [("fedavg", 0.5, 0.5), ("oracle", 1.0, 0.5), ("oracle", 1.0, 0.3)]
)
def test_the_limit_holds_in_a_secure_sum(name: str, participation: float, max_share: float, tmp_path: Path) -> None:
    """Weights of a secure sum are settled before the uploads: c1, which claims a million samples, is told half of the
    weight of its sum of three, of six clients: all that were drawn, or those of its group."""
    run, secure = {"rounds": 6, "participation": participation, "eval_every": 100}, {"secure": True}
    data = {"clients": 6, **({"plant": "labels@groups=2"} if name == "oracle" else {})}
    s = settings(name, data=data, hosts={"min_clients": 6, "max_share": max_share}, run=run, aggregation=secure)
    shares: list[float] = []

    def touch(post: Direct, who: str, of: WireMessage) -> WireMessage:
        answer = post.ask(who, of)
        if who == "c1" and of.head["kind"] == "update":
            weight = {i: w for i, _, w, *_ in of.head["pool"]["members"]}
            shares.append(weight[of.head["client"]] / sum(weight.values()))
        if (who, of.head["kind"]) != ("c1", "describe"):
            return answer
        b = bundle(answer).but(size=torch.tensor(10**6))
        return wire_message(bare(answer), b)

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path, 6), touch=touch))
    assert not any(line.abandoned for line in ours.rounds)
    assert shares
    assert 0.3 < max(shares) <= 0.5
    assert max_share < 0.5 or set(shares) == {0.5}


def test_two_clients_weigh_what_they_claim(tmp_path: Path) -> None:
    """One of two with more than half of the samples is honest for all that is known: the run is the simulator's."""
    data = {"clients": 2, "samples_per_client": None, "partition": "dirichlet@alpha=0.3"}
    s = settings("fedavg", data=data, hosts={"min_clients": 2}, run={"rounds": 2})
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path, 2))), simulated(s)
    assert max(ours.server.sizes) > 0.55 * sum(ours.server.sizes)
    assert same_server(ours, theirs)
    assert ours.rounds == theirs.rounds


def test_the_limit_can_be_moved(tmp_path: Path) -> None:
    """With max_share = 1 claims are believed, up to the absolute limit; nothing is lowered and nothing said."""
    s = settings("fedavg", hosts={"max_share": 1.0}, run={"rounds": 2})
    ours = claims(10_000_000, s, tmp_path)
    assert not any(line.limited for line in ours.rounds)


def test_claims_that_weigh_nothing_are_not_told(tmp_path: Path) -> None:
    """With uniform weights no mean is by samples, and no number of samples was used in a claim's place."""
    s = settings("fedavg", run={"rounds": 2, "weighting": "uniform"})
    ours = claims(10_000_000, s, tmp_path)
    assert not any(line.limited for line in ours.rounds)
    assert not [e for e in lines(tmp_path, "events") if "claims" in e["what"]]


def test_a_resumed_run_limits_the_same(tmp_path: Path) -> None:
    """Ended after round 2 and begun again, the server weighs claims as before."""

    touch = changing("describe", lambda b: b.but(size=torch.tensor(10**7)))

    s = settings("fedavg")
    whole = on_hosts(s, tmp_path / "whole", Direct(sites(tmp_path / "whole"), touch=touch))
    cut = tmp_path / "cut"
    again = on_hosts(s, cut, stopped(s, cut, Direct(sites(cut), touch=touch), 2))
    assert same_server(again, whole)
    assert again.rounds == whole.rounds


# ---- what is written down ------------------------------------------------------------------------------------------
def test_an_evaluation_that_does_not_come_is_in_the_rounds_record(tmp_path: Path) -> None:
    """With its reason, beside the figures of those who did evaluate; rounds without one have no such entry."""

    touch = silent("evaluate", rounds=[2])
    ours = on_hosts(settings("fedavg"), tmp_path, Direct(sites(tmp_path), touch=touch))
    assert [refused(line, "evaluate") for line in ours.rounds] == [{}, {1: "expired"}, {}, {}]
    assert ours.rounds[1].figures.clients == 2


class Ends(Direct):
    """A network that ends the run with an exception."""

    error: BaseException = ZeroDivisionError("one of these")

    def collect(self, tickets: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by\nzero"), r"unexpected error \(ZeroDivisionError: by\nzero\); its traceback is in"),
        (MemoryError(), r"unexpected error \(MemoryError"),
        (OSError(5, "Input/output error"), r"Input/output error; when that is fixed, complete rounds"),
        (
            SystemExit(0),
            r"the run was stopped \(SystemExit\); complete rounds are kept; continue with: fedkin sub",
        ),
        (KeyboardInterrupt(), r"the run was stopped \(KeyboardInterrupt\)"),
        (EngineError("too few; start others"), r"^too few; start others$"),
    ],
)
def test_whatever_ends_a_run_says_why(
    error: BaseException, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In failed.txt of its folder, which `fedkin submit` shows, with what to do."""
    monkeypatch.setattr(submitted, "_log_to", lambda stream: None)
    post = Ends(sites(tmp_path))
    post.error = error
    with pytest.raises(type(error)):
        run_submitted(post, Submitted.of(settings("fedavg"), tmp_path / "run").word)
    text = (tmp_path / "run" / "failed.txt").read_text(encoding="utf-8")
    assert re.search(words, text.strip()), text


def test_settings_that_the_server_does_not_know_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that another version submitted ends with the reason in its folder, not in silence."""
    monkeypatch.setattr(submitted, "_log_to", lambda stream: None)
    s = settings("fedavg")
    table = table_of(s)
    monkeypatch.setattr(submitted, "table_of", lambda of: {**table, "run": {**table["run"], "novelty": 1}})
    with pytest.raises(ConfigError):
        run_submitted(Direct({}), Submitted.of(s, tmp_path / "run").word)
    assert "novelty" in (tmp_path / "run" / "failed.txt").read_text(encoding="utf-8")


def test_a_run_that_works_again_has_no_failed_txt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of the former end is gone when a new submit has begun."""
    monkeypatch.setattr(submitted, "_log_to", lambda stream: None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "failed.txt").write_text("the former reason\n")
    s = settings("fedavg", run={"rounds": 1})
    run_submitted(Direct(sites(tmp_path)), Submitted.of(s, tmp_path / "run").word)
    assert not (tmp_path / "run" / "failed.txt").exists()
    assert (tmp_path / "run" / "report.html").exists()
