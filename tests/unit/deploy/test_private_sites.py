"""What real hosts promise single samples: noise that is drawn once and cannot be repeated, steps that are counted by
those who take them, and limits that the owner of the data sets."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import ConfigError, EngineError, RunFolderError
from fedkin.data import Card, SiteData, federation_of
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.settings import Settings, table_of
from fedkin.exporting import load_export
from fedkin.methods import CFIC, DAPFL, FedAvg
from fedkin.privacy.budget import Privacy, composed, epsilon, total
from fedkin_hosts import privacy_budget as account_module
from fedkin_hosts import serve as serve_module
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.node import Node
from fedkin_hosts.privacy_budget import Account, OverBudget, PrivacyLimits, Used
from fedkin_hosts.tensors import bundle
from grouped import tables
from hosttoys import Direct, Heard, changing, on_hosts, settings, simulated, sites, taken_home
from kills import Killed
from refusals import refuses
from toys import mlp, refused

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedkin[dp]'")


PRIVATE = {"noise_multiplier": 1.0}


def private(name: str, **run: Any) -> Settings:
    """Four short rounds of private training, three steps each."""
    method = {"tune_epochs": 1} if name == "fedavg-ft" else {}
    small = {"samples_per_client": 30}
    return settings(name, method=method, data=small, training={"batch_size": 8}, **tables({**PRIVATE, **run}))


def counts_in(heard: Heard) -> dict[str, torch.Tensor]:
    """By client, of its last answer."""
    return {client: bundle(answer).counts for client, _, _, answer in heard.found}


def counts_of(client: int) -> torch.Tensor:
    """The true counts of one site of `sites`."""
    federation = federation_of(settings("fedavg").data, 0)
    return federation.clients[client].train.counts(federation.classes)


# ---- class counts --------------------------------------------------------------------------------------------------
def test_noise_on_counts_is_the_hosts_own(tmp_path: Path) -> None:
    """The same run with the same seed on other disks tells other counts, neither the true ones nor the simulator's: no
    seed gives them away. Evaluations tell the same ones again, not the true ones."""
    s = settings("da-pfl", run={"rounds": 2}, privacy={"metadata_epsilon": 0.3})
    told = []
    for name in ("a", "b"):
        said, shown = Heard("describe"), Heard("evaluate")
        post = Direct(sites(tmp_path / name), touch=said)
        on_hosts(s, tmp_path / name, post, on_round=lambda *_, p=post, h=shown: setattr(p, "touch", h))
        told.append(counts_in(said))
        assert shown.found
        assert all(torch.equal(n, told[-1][client]) for client, n in counts_in(shown).items())
    assert all(not torch.equal(told[0][f"c{i}"], told[1][f"c{i}"]) for i in range(3))
    seeded = simulated(s).server.described.counts
    assert all(not torch.equal(told[0][f"c{i}"], seeded[i]) for i in range(3))
    assert all(not torch.equal(told[0][f"c{i}"], counts_of(i)) for i in range(3))
    assert all(bool((n >= 0).all()) and n.dtype == torch.int64 for n in told[0].values())


@pytest.mark.parametrize("lost", ["nothing", "process", "memory"])
def test_counts_are_drawn_once(lost: str, tmp_path: Path) -> None:
    """Asked again under another number, by a new process, or after its memory of the run was deleted: the same counts,
    since the mean of many draws would have no noise."""
    s = settings("da-pfl", run={"rounds": 1}, privacy={"metadata_epsilon": 0.3})
    said = Heard("describe")
    post = Direct(sites(tmp_path), touch=said)
    on_hosts(s, tmp_path, post)
    client, _, of, first = said.found[1]
    if lost != "nothing":
        post.sites[101] = ClientService(client, SiteData("digits", share=1), tmp_path / "disks")
    if lost == "memory":
        post.sites[101].store.path(of.head["run"]).unlink()
    again = post.ask(client, WireMessage({**of.head, "client": 7, "session": of.head["session"] + 1}, of.body))
    assert {n: t.tolist() for n, t in bundle(again).items()} == {n: t.tolist() for n, t in bundle(first).items()}


def test_counts_are_on_the_disk_before_they_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails when they are written down: nothing is told. One that fails right after: nothing is told
    either, and later those that were written."""
    s = settings("da-pfl", run={"rounds": 1}, privacy={"metadata_epsilon": 0.3})
    said = Heard("describe")
    post = Direct(sites(tmp_path), touch=said)
    on_hosts(s, tmp_path, post)
    of, site = said.found[0][2], ClientService("c0", SiteData("digits", share=0), tmp_path / "new")

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as m:
        m.setattr(account_module, "write_private", full)
        assert site.answer(of).head["code"] == "disk"
    assert site.account.load() == {}
    with monkeypatch.context() as m:
        m.setattr(site.store, "save", full)
        assert site.answer(of).head["code"] == "disk"
    written = site.account.load()[of.head["run"]].counts
    assert written is not None
    assert bundle(site.answer(of)).counts.tolist() == list(written)


@pytest.mark.parametrize(
    ("name", "run", "limits", "told"),
    [
        ("fedavg", {}, PrivacyLimits(), "exact"),
        ("fedavg", PRIVATE, PrivacyLimits(), "none"),
        ("fedavg", {}, PrivacyLimits(max_metadata_epsilon=1.0), "none"),
        ("da-pfl", {"metadata_epsilon": 0.3}, PrivacyLimits(), "noisy"),
    ],
    ids=["plain", "private training", "a limit", "noise at joining"],
)
def test_what_evaluations_tell_of_the_training_samples(
    name: str, run: dict[str, Any], limits: PrivacyLimits, told: str, tmp_path: Path
) -> None:
    """Exact class counts, and in the last round the outcome of every test sample, only where neither the run nor the
    owner asks for privacy."""
    s, shown = settings(name, **tables({"rounds": 1, **run})), Heard("evaluate")
    post = Direct(sites(tmp_path), touch=shown)
    post.sites = {n: ClientService(p.client, p.data, p.folder, limits) for n, p in post.sites.items()}
    ours = on_hosts(s, tmp_path, post)
    sent = [name in bundle(answer) for *_, answer in shown.found for name in ("right", "test_digest", "logits_digest")]
    written = [bool(value) for line in ours.clients for value in (line.right, line.test_part, line.logits)]
    assert sent == written == [told == "exact"] * 9
    exact = [torch.equal(n, counts_of(int(client[1:]))) for client, n in counts_in(shown).items()]
    zero = [not n.any() for n in counts_in(shown).values()]
    assert (all(exact), any(exact), all(zero)) == (told == "exact", told == "exact", told == "none")


# ---- steps ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedavg-ft"])
def test_steps_are_the_simulators(name: str, tmp_path: Path) -> None:
    """The lines of rounds and the summary say of private training what the simulator's do, evaluations that train
    included; the models are others, as batches and noise come from nobody's seed."""
    s = private(name)
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path))), simulated(s)
    assert [line.private for line in ours.rounds] == [line.private for line in theirs.rounds]
    assert ours.privacy == theirs.privacy
    assert ours.privacy["epsilon"] > 0
    assert not torch.equal(ours.server.state.model, theirs.server.state.model)
    told = {line.client: line.correct for line in ours.clients}
    for i in range(3):  # a model that is trained for the evaluation is trained again to be kept, by other noise
        kept = load_export(taken_home(tmp_path, f"c{i}")).card.test
        assert kept.correct_as_evaluated == told[i]
        assert kept.as_evaluated or name == "fedavg-ft"


def test_a_server_that_comes_back_counts_once(tmp_path: Path) -> None:
    """It is killed in round 3 when two clients have answered. They give the same answers again; no step is counted
    twice or forgotten, by the server or by themselves."""
    s = private("fedavg")

    def kill(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if (client, of.head["kind"], of.head["round"]) == ("c2", "update", 3):
            raise Killed
        return post.ask(client, of)

    post = Direct(sites(tmp_path), touch=kill)
    with pytest.raises(Killed):
        on_hosts(s, tmp_path, post)
    ours, theirs = on_hosts(s, tmp_path, Direct(post.sites)), simulated(s)
    assert [line.private for line in ours.rounds] == [line.private for line in theirs.rounds]
    assert ours.privacy == theirs.privacy
    (used,) = post.sites[100].account.load().values()
    assert used.spent(1.0) == total(line.private for line in ours.rounds)[0]


def test_lost_answers_and_abandoned_rounds_are_counted(tmp_path: Path) -> None:
    """In round 2 the answers of c1 are lost after it has trained, so the round is abandoned. What the others took is in
    its line; what c1 took comes with its next answer."""
    s = private("fedavg", min_replies=3)

    def lose(post: Direct, client: str, of: WireMessage) -> WireMessage | None:
        answer = post.ask(client, of)
        return None if client == "c1" and of.head["round"] == 2 and of.head["kind"] != "hello" else answer

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=lose))
    steps = [{i: n for i, ((_, n),) in line.private.items()} for line in ours.rounds]
    each = steps[0]
    assert [line.abandoned for line in ours.rounds] == [False, True, False, False]
    assert steps == [each, {i: n for i, n in each.items() if i != 1}, {**each, 1: 2 * each[1]}, each]


def test_a_client_that_lost_its_disk_is_counted_from_its_record_on(tmp_path: Path) -> None:
    """The server's figure does not shrink, and goes on when the client's new record exceeds it."""
    s = private("fedavg")
    post = Direct(sites(tmp_path))

    def swap(report: Any, line: Any) -> None:
        if report.round == 1:
            post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "new")

    ours = on_hosts(s, tmp_path, post, on_round=swap)
    steps = [[n for _, n in line.private.get(1, ())] for line in ours.rounds]
    assert steps == [steps[0], [], steps[0], steps[0]]


def test_an_answer_with_steps_that_cannot_be_is_not_used(tmp_path: Path) -> None:
    """Its client misses the round; the others go on, and the epsilon is that of honest words."""
    s = private("fedavg")

    lie = changing("update", round=2, spent=[[0.5, -100]])
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=lie))
    assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert refused(ours.rounds[1], "update") == {1: "garbled"}
    spent = [total(line.private for line in run.rounds) for run in (ours, simulated(s))]
    assert spent[0] == spent[1]  # round 2's came with the evaluation after it


# ---- what is refused -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "run", "fact"),
    [
        ("ifca", PRIVATE, "cluster"),
        ("da-pfl", PRIVATE, "metadata_epsilon"),
        ("fedavg", {"metadata_epsilon": 1.0}, "classes at joining"),
        ("fedavg", {"noise_multiplier": -1.0}, "noise_multiplier = -1"),
    ],
)
def test_the_server_refuses_before_it_begins(name: str, run: dict[str, Any], fact: str, tmp_path: Path) -> None:
    """With the simulator's words; nobody was asked to train or to say anything."""
    post = Direct(sites(tmp_path))
    with refuses(ConfigError, fact):
        on_hosts(settings(name, **tables(run)), tmp_path, post)
    assert {kind for _, kind, _ in post.log} <= {"hello"}


class Careless:
    """What a server makes of settings if it does not check what they promise."""

    @staticmethod
    def on_hosts(settings: Settings, card: Card, run: str) -> Experiment:
        made = Experiment.on_hosts(settings.but(privacy=Privacy()), card, run)
        return replace(made, table=table_of(settings), settings=settings)


@pytest.mark.parametrize("name", ["ifca", "da-pfl"])
def test_a_site_refuses_for_itself(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that does not check what it promises gets no answer; the site's log says why."""
    monkeypatch.setattr(serve_module, "_require_possible", lambda _: None)
    monkeypatch.setattr(serve_module, "Experiment", Careless)
    heard = Heard("hello", "describe", "update")
    s = settings(
        name, **tables({**PRIVATE, "rounds": 1}), hosts={"min_clients": 1, "wait_timeout": 1.0, "reply_timeout": 1.0}
    )
    with contextlib.suppress(EngineError):  # nobody came
        on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=heard))
    assert {of.head["kind"] for _, _, of, _ in heard.found} == {"hello"}
    last = {client: answer.head["code"] for client, _, _, answer in heard.found if not answer.head["ok"]}
    assert last == dict.fromkeys(("c0", "c1", "c2"), "settings")
    why = {"ifca": "IFCA also send the cluster", "da-pfl": "private training does not cover"}
    assert why[name] in caplog.text


# ---- limits --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limits", "run", "facts"),
    [
        (PrivacyLimits(max_metadata_epsilon=0.5), {"metadata_epsilon": 1.0},
         ["epsilon = 1;", "--max-metadata-epsilon 0.5"]),
        (PrivacyLimits(min_noise_multiplier=1.0), {"noise_multiplier": 0.5},
         ["noise_multiplier = 0.5;", "--min-noise-multiplier 1"]),
        (PrivacyLimits(min_noise_multiplier=1.0), {}, ["plain training;", "--min-noise-multiplier 1"]),
        (PrivacyLimits(max_epsilon=3.0), {}, ["plain training", "--max-epsilon 3"]),
        (PrivacyLimits(max_epsilon=3.0), {"noise_multiplier": 0.0}, ["noise_multiplier = 0", "no epsilon"]),
        (PrivacyLimits(max_metadata_epsilon=0.5), {"metadata_epsilon": 0.5}, None),
        (PrivacyLimits(max_metadata_epsilon=0.5), {}, None),
        (PrivacyLimits(min_noise_multiplier=1.0, max_epsilon=3.0), {"noise_multiplier": 1.0}, None),
        (PrivacyLimits(), {}, None),
    ],
)  # fmt: skip
def test_limits_by_settings(limits: PrivacyLimits, run: dict[str, Any], facts: list[str] | None) -> None:
    """What the owner allows is taken, also at its very edge; the rest is refused with both numbers."""
    if facts is None:
        return limits.check(Settings().but(**run))
    with refuses(ConfigError, *facts):
        limits.check(Settings().but(**run))
    return None


def test_limits_by_what_is_said() -> None:
    """Exact words are refused where a limit is set, whatever they are; who says nothing may join."""
    for limits in (PrivacyLimits(max_metadata_epsilon=1.0), PrivacyLimits(max_epsilon=1.0)):
        for method in (DAPFL(), CFIC()):
            with refuses(ConfigError, type(method).__name__, "--max-metadata-epsilon or --max-epsilon"):
                limits.check_reports(Privacy(), method, mlp())
            limits.check_reports(Privacy(metadata_epsilon=1.0), method, mlp())
        limits.check_reports(Privacy(), FedAvg(), mlp())
    PrivacyLimits().check_reports(Privacy(), DAPFL(), mlp())


def budget(rounds: float, s: Settings) -> float:
    """Epsilon of so many rounds at c1."""
    ((rate, steps),) = simulated(s).rounds[0].private[1]
    return epsilon({rate: int(steps * rounds)}, 1.0, 1e-5)


def test_a_budget_ends_over_all_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With an allowance for two rounds and a half c1 answers two, and then no more: not in this run, not after a
    restart, not in another run. The others are not disturbed, and its log says how far it is."""
    s, post = private("fedavg"), Direct(sites(tmp_path))
    limits = PrivacyLimits(max_epsilon=budget(2.5, s))
    post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks", limits)
    with caplog.at_level(logging.INFO, "fedkin.site"):
        ours = on_hosts(s, tmp_path, post)
    assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2]] * 2 + [[0, 2]] * 2
    assert [refused(line, "update") for line in ours.rounds[2:]] == [{1: "budget"}] * 2
    assert post.sites[101].account.total(1e-5) == budget(2, s)
    assert f"epsilon {budget(1, s):.3g} in run" in caplog.text
    assert f"--max-epsilon {limits.max_epsilon:g}, so it is not sent" in caplog.text

    post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks", limits)
    (tmp_path / "second").mkdir()
    again = on_hosts(s, tmp_path / "second", Direct(post.sites))
    assert all(list(line.answered) == [0, 2] for line in again.rounds)
    assert post.sites[101].account.total(1e-5) == budget(2, s)
    assert post.sites[100].account.total(1e-5) > budget(4, s) / 2


def test_counts_and_training_share_the_budget(tmp_path: Path) -> None:
    """Epsilons of told counts are added; what would be too much is not even drawn, and leaves no trace."""
    mine = Account(tmp_path, "c0", limit=6.0)
    used = mine.spend("a", 1.0, {0.1: 30}, 1e-5)
    training = epsilon({0.1: 30}, 1.0, 1e-5)
    assert used.spent(1.0) == {0.1: 30}
    assert 4 < training < 5
    told = mine.release("b", torch.arange(10), 1.0, 1e-5)
    assert mine.total(1e-5) == training + 1
    before = mine.path.read_bytes()
    with refuses(OverBudget, "--max-epsilon 6"):
        mine.release("c", torch.arange(10), 0.5, 1e-5)
    with pytest.raises(OverBudget):
        mine.spend("c", 0.3, {0.1: 30}, 1e-5)
    assert mine.path.read_bytes() == before
    assert torch.equal(mine.release("b", torch.zeros(10), 1.0, 1e-5), told)  # once told, for nothing
    with refuses(ConfigError, 10, 3):
        mine.release("b", torch.zeros(3), 1.0, 1e-5)


def test_a_limit_holds_at_a_delta_of_its_own(tmp_path: Path) -> None:
    """A run with a large delta states a small epsilon; the limit is not fooled by it."""
    steps, mine = {0.1: 30}, Account(tmp_path, "c0", limit=epsilon({0.1: 30}, 1.0, 0.5) + 0.1)
    with refuses(OverBudget, "delta 1e-05"):
        mine.spend("a", 1.0, steps, 0.5)
    Account(tmp_path, "c0").spend("a", 1.0, steps, 0.5)


def test_steps_are_on_the_disk_before_the_answer_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they cannot be written down the client says nothing in that round."""
    s, whole = private("fedavg"), account_module.write_private
    broken = [False]

    def write(path: Path, content: bytes, **how: Any) -> None:
        if broken[0]:
            raise OSError("no space left")
        whole(path, content, **how)

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        broken[0] = (client, of.head["kind"], of.head["round"]) == ("c1", "update", 2)
        return post.ask(client, of)

    monkeypatch.setattr(account_module, "write_private", write)
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert refused(ours.rounds[1], "update") == {1: "disk"}
    assert [sorted(line.private) for line in ours.rounds] == [[0, 1, 2], [0, 2], *[[0, 1, 2]] * 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: "{",
        lambda whole: "[]",
        lambda whole: "",
        lambda whole: "[" * 100_000,
        lambda whole: json.dumps({**whole, "format": 2}),
        lambda whole: json.dumps(whole).replace("[[1.0, 0.1, 3]]", "[[1.0, 0.1, 1]]"),
        lambda whole: json.dumps(whole).replace("[[1.0, 0.1, 3]]", "[[1.0, 2.0, 3]]"),
        lambda whole: json.dumps({n: v for n, v in whole.items() if n != "digest"}),
    ],
    ids=["cut", "a list", "empty", "deep", "format", "another digit", "a rate above 1", "no digest"],
)
def test_a_damaged_account_is_not_begun_anew(change: Any, tmp_path: Path) -> None:
    """Nobody would know what was spent: the client says no until the file is restored."""
    mine = Account(tmp_path, "c0")
    mine.spend("a", 1.0, {0.1: 3}, 1e-5)
    mine.path.write_text(change(json.loads(mine.path.read_text())))
    with refuses(RunFolderError, mine.path):
        mine.spend("a", 1.0, {0.1: 3}, 1e-5)


def test_an_account_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every field, through the file; several noises compose as one history."""
    mine = Account(tmp_path, "c0")
    mine.spend("a", 1.0, {1 / 3: 3, 0.1: 2}, 1e-5)
    mine.spend("b", 2.0, {1 / 3: 4}, 1e-5)
    mine.release("b", torch.arange(4), 0.5, 1e-5)
    runs = Account(tmp_path, "c0").load()
    assert runs["a"] == Used(steps=((1.0, 0.1, 2), (1.0, 1 / 3, 3)), answers=1)
    assert (runs["b"].released, runs["b"].spent(2.0), runs["b"].spent(1.0)) == (0.5, {1 / 3: 4}, {})
    whole = composed([(1.0, 0.1, 2), (1.0, 1 / 3, 3), (2.0, 1 / 3, 4)], 1e-5)
    assert mine.total(1e-5) == whole + 0.5
    assert "all private runs of this client (2), 0.5 of it for reports with noise" in mine.words("a", 1e-5)


# ---- the way of the limits -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["max_metadata_epsilon", "min_noise_multiplier", "max_epsilon"])
def test_a_limit_is_a_number_above_zero(name: str, value: float) -> None:
    """Else the node does not start."""
    with refuses(ConfigError, f"--{name.replace('_', '-')} "):
        Node(data="digits", client_id="c0", insecure_test=True, **{name: value})


@pytest.fixture
def describe(tmp_path: Path) -> WireMessage:
    """A message that asks a client for class counts with an epsilon of 0.1."""
    s, heard = settings("da-pfl", run={"rounds": 1}, privacy={"metadata_epsilon": 0.1}), Heard("describe")
    on_hosts(s, tmp_path / "seen", Direct(sites(tmp_path / "seen"), touch=heard))
    return heard.found[0][2]


# ---- counts over all runs ------------------------------------------------------------------------------------------
def test_three_hundred_runs_do_not_tell_the_true_counts(describe: WireMessage, tmp_path: Path) -> None:
    """A server that invents a run's name for each request gets counts until the owner's total is spent, across a
    restart of the node and without its folders of runs, and then no more."""
    limits, answers = PrivacyLimits(max_metadata_epsilon=0.5), list[WireMessage]()
    for i in range(300):
        if i % 100 == 0:
            site = ClientService("c0", SiteData("digits", share=0), tmp_path / "disk", limits)
        answers.append(site.answer(WireMessage({**describe.head, "run": f"run-{i}"}, describe.body)))
        shutil.rmtree(tmp_path / "disk" / "c0" / f"run-{i}", ignore_errors=True)
    assert [a.head["ok"] for a in answers] == [True] * 5 + [False] * 295
    assert {a.head["code"] for a in answers[5:]} == {"budget"}
    assert not any(a.body for a in answers[5:])
    mean = torch.stack([bundle(a).counts for a in answers[:5]]).double().mean(0)
    true = federation_of(settings("fedavg").data, 0).clients[0].train.counts(10)
    assert float((mean - true).abs().sum()) > 10


def test_the_total_of_counts_is_exact_and_says_both_numbers(tmp_path: Path) -> None:
    """Three times 0.1 is not more than 0.3, and a fourth time is; a run that was told is told again for nothing."""
    mine = Account(tmp_path, "c0", counts_limit=0.3)
    first = mine.release("a", torch.arange(10), 0.1, 1e-5)
    for run in ("b", "c"):
        mine.release(run, torch.arange(10), 0.1, 1e-5)
    before = mine.path.read_bytes()
    with refuses(OverBudget, "0.4", "--max-metadata-epsilon 0.3"):
        mine.release("d", torch.arange(10), 0.1, 1e-5)
    assert mine.path.read_bytes() == before
    assert torch.equal(mine.release("a", torch.arange(10), 0.1, 1e-5), first)


# ---- whole at any moment -------------------------------------------------------------------------------------------


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """Starts a process that does some work and writes to a pipe; its number, and where to read."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            work(write)
        finally:
            os._exit(7)
    os.close(write)
    return pid, read


def steps(account: Account) -> int:
    return sum(n for used in account.load().values() for *_, n in used.steps)


def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it spends leaves an account that can be read and holds all that was sent."""
    monkeypatch.setattr(Account, "words", lambda *_: "")
    mine, draw, sent = Account(tmp_path, "c0"), random.Random(0), 0

    def spend_on(pipe: int) -> None:
        while True:
            Account(tmp_path, "c0").spend(f"run-{draw.random()}", 1.0, {0.1: 1}, 1e-5)
            os.write(pipe, b".")

    for _ in range(15):
        pid, pipe = in_child(spend_on)
        sent += sum(len(os.read(pipe, 1)) for _ in range(draw.randrange(6)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        sent += len(os.read(pipe, 1000))
        os.close(pipe)
        assert steps(mine) >= sent
    assert steps(mine) > 15


@pytest.mark.parametrize("moment", ["open", "fsync", "replace", "after"])
def test_ended_at_each_step_of_writing(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step of writing is the last one of a process, the account is the former one or the new one, and
    nothing is sent that is not in it."""
    monkeypatch.setattr(Account, "words", lambda *_: "")
    Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)

    def spend_and_die(pipe: int) -> None:
        replace, opened = os.replace, Path.open
        deaths: dict[str, tuple[Any, str, Callable[..., Any]]] = {
            "open": (Path, "open", lambda p, *a, **k: os._exit(9) if p.suffix == ".new" else opened(p, *a, **k)),
            "fsync": (os, "fsync", lambda _: os._exit(9)),
            "replace": (os, "replace", lambda *_: os._exit(9)),
            "after": (os, "replace", lambda *names: (replace(*names), os._exit(9))),
        }
        monkeypatch.setattr(*deaths[moment])
        Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)
        os.write(pipe, b".")

    pid, pipe = in_child(spend_and_die)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert os.read(pipe, 1) == b""
    os.close(pipe)
    assert steps(Account(tmp_path, "c0")) == (2 if moment == "after" else 1)
    Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)  # nothing that was left behind is in the way


def test_two_processes_lose_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that were started in one folder by mistake wait for each other's entries."""
    monkeypatch.setattr(Account, "words", lambda *_: "")

    def spend_on(pipe: int) -> None:
        for _ in range(40):
            Account(tmp_path, "c0").spend("a", 1.0, {0.1: 1}, 1e-5)
        os.write(pipe, b".")

    children = [in_child(spend_on) for _ in range(2)]
    assert [os.read(pipe, 1) for _, pipe in children] == [b".", b"."]
    for pid, pipe in children:
        os.waitpid(pid, 0)
        os.close(pipe)
    assert steps(Account(tmp_path, "c0")) == 80


# ---- the file ------------------------------------------------------------------------------------------------------
def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """The account, its lock and a client's memory are 0600, in folders of 0700, whatever the process masks."""
    mask = os.umask(0)
    try:
        on_hosts(
            settings("da-pfl", run={"rounds": 1}, privacy={"metadata_epsilon": 0.1}), tmp_path, Direct(sites(tmp_path))
        )
    finally:
        os.umask(mask)
    place = tmp_path / "disks" / "c0"
    (memory,) = place.glob("*/memory.safetensors")
    modes = {p.name: p.stat().st_mode & 0o777 for p in (*place.iterdir(), memory) if p.is_file()}
    assert modes == dict.fromkeys(("account (all runs).json", "account (all runs).lock", "memory.safetensors"), 0o600)
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "disks", place, memory.parent)} == {0o700}


def test_a_damaged_account_stops_private_answers(describe: WireMessage, tmp_path: Path, caplog: Any) -> None:
    """A changed digit is noticed: the site tells nothing, leaves the file as it is, and its log names the file and
    what to do."""
    site = ClientService("c0", SiteData("digits", share=0), tmp_path)
    assert site.answer(describe).head["ok"] is True
    text = site.account.path.read_text()
    site.account.path.write_text(text.replace('"released": 0.1', '"released": 0.0'))
    other = site.answer(WireMessage({**describe.head, "run": "another"}, describe.body))
    assert (other.head["code"], other.body) == ("settings", b"")
    assert f"{site.account.path} is damaged (its digest does not fit)" in caplog.text
    assert "restored from a backup" in caplog.text
    assert '"released": 0.0' in site.account.path.read_text()


def test_a_link_to_a_missing_disk_is_not_an_empty_account(tmp_path: Path) -> None:
    """An account on a disk that is not mounted is not begun anew."""
    mine = Account(tmp_path, "c0")
    mine.path.parent.mkdir()
    mine.path.symlink_to(tmp_path / "not mounted" / "account.json")
    with pytest.raises(FileNotFoundError):
        mine.release("a", torch.arange(10), 0.1, 1e-5)
