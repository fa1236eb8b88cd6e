"""Limits of a data owner against a server that asks for more than an honest one, or lies in its messages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.capabilities import Uploads, has
from fedkin.capabilities.uploads import also_sent
from fedkin.core import Bundle, ConfigError
from fedkin.core.refusals import Code, Reason
from fedkin.data import SiteData
from fedkin.display import OneLine
from fedkin.experiment.settings import table_of
from fedkin.methods import METHODS, get_method
from fedkin.privacy.budget import total
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.privacy_budget import PrivacyLimits
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import (
    Direct,
    Heard,
    altered,
    bare,
    greeting,
    lines,
    of_worker,
    on_hosts,
    settings,
    simulated,
    sites,
    with_setup,
)
from refusals import refuses

NETWORK = """
from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
PRIVATE = {"privacy": {"noise_multiplier": 1.0}}


def site(folder: Path, **limits: Any) -> ClientService:
    """Client c1, with limits."""
    return ClientService("c1", SiteData("digits", share=1), folder / "disks", PrivacyLimits(**limits))


def test_training_in_a_survey_is_accounted_for(tmp_path: Path) -> None:
    """As in the simulator, in the rounds and in the total, and in the client's own account."""
    s = settings("training_survey:Twice", run={"rounds": 2, "eval_every": 2}, **PRIVATE)
    here = sites(tmp_path, allowed=Allowed(everything=True))
    ours, there = on_hosts(s, tmp_path, Direct(here)), simulated(s)
    assert [line.private for line in ours.rounds] == [line.private for line in there.rounds]
    assert ours.privacy == there.privacy
    assert here[101].account.total(1e-5) == pytest.approx(there.privacy["epsilon"], rel=1e-6)


def test_a_run_without_numbers_answers_no_question_before_an_evaluation(tmp_path: Path) -> None:
    """Safe forms with send_numbers = false: a server that asks all the same gets a code, and no step is trained."""
    s = settings(
        "fedavg-ft-safe", run={"rounds": 1}, method={"send_numbers": False}, data={"validation": 0.2}, **PRIVATE
    )
    own, codes = site(tmp_path, max_epsilon=20.0), list[Any]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if client == "c1" and of.head["kind"] == "update":
            before = own.account.total(1e-5)
            head = {**bare(of), "kind": "consult", "ack": of.head["seq"]}
            asked = post.ask(client, wire_message(head, bundle(of)))
            codes.extend([asked.head["ok"], asked.head["code"], own.account.total(1e-5) - before])
        return answer

    on_hosts(s, tmp_path, Direct({**sites(tmp_path), 101: own}, touch=touch))
    assert codes == [False, "settings", 0.0]


@pytest.mark.parametrize(
    ("name", "limits", "refused"),
    [
        ("fedfomo", {"keep_scores": True}, True),
        ("fedfomo-safe", {"keep_scores": True}, True),
        ("fedfa", {"keep_scores": True}, True),
        ("fedpac", {"keep_scores": True}, False),
        ("fedpac", {"max_metadata_epsilon": 0.1}, True),
        ("cfic@register=lazy", {"max_metadata_epsilon": 0.1}, True),
        ("cfic@register=lazy-safe", {"max_epsilon": 0.1}, True),
        ("cfic", {"max_metadata_epsilon": 0.1}, False),
        ("fedfomo", {"max_metadata_epsilon": 0.1}, False),
    ],
)
def test_methods_whose_uploads_hold_what_an_owner_keeps(name: str, limits: dict[str, Any], refused: bool) -> None:
    """Accuracies and losses where the owner keeps scores, class counts where it allows those with noise only."""
    own, method = PrivacyLimits(**limits), get_method(name)
    flag = "--keep-scores" if "keep_scores" in limits else "--max-metadata-epsilon or --max-epsilon"
    if not refused:
        own.check_method(method)
    else:
        with refuses(ConfigError, flag):
            own.check_method(method)


@pytest.mark.parametrize(
    ("name", "tables", "limits", "kind", "code"),
    [
        ("da-pfl", {"privacy": {"metadata_epsilon": 1.0}}, {"max_metadata_epsilon": 0.5}, "hello", "settings"),
        ("da-pfl", {}, {"max_metadata_epsilon": 0.5}, "describe", "settings"),
        ("fedavg", {}, {"min_noise_multiplier": 1.0}, "hello", "settings"),
        ("fedavg", {}, {"only_masked": True}, "hello", "settings"),
        ("fedfomo", {}, {"keep_scores": True}, "hello", "settings"),
        ("fedavg", {"model": {"model": "team_nets:build"}}, {}, "hello", "code"),
    ],
)
def test_a_client_whose_owner_does_not_allow_a_run_stays_out(
    name: str, tables: Any, limits: Any, kind: str, code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first message that asks for more on, with nothing in its account; the others make the run, and the
    events have its name and a code, not its limits."""
    (tmp_path / "team_nets.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    s, heard = (
        settings(name, run={"rounds": 1}, hosts={"min_clients": 2}, **tables),
        Heard("hello", "describe", "update"),
    )
    own = site(tmp_path, **limits)
    post = Direct({**sites(tmp_path, allowed=Allowed(("team_nets",))), 101: own}, touch=heard)
    ours = on_hosts(s, tmp_path, post)
    assert len(ours.server.sizes) == 2
    answers = [(of.head["kind"], answer.head.get("code")) for client, _, of, answer in heard.found if client == "c1"]
    assert answers == [*([("hello", None)] if kind == "describe" else []), (kind, code)]
    told = [e["what"] for e in lines(tmp_path, "events") if e["client"] == "c1"]
    assert told[-1].endswith(str(Reason(code)))
    assert own.account.load() == {}


def test_what_methods_send_exactly_is_a_part_of_what_they_send() -> None:
    """Where private training is possible nothing is; the names of figures are those that limits know."""
    for name in METHODS:
        method = get_method(name)
        assert has(method, Uploads).exact <= {"counts", "scores"}
        assert not has(method, Uploads).exact or also_sent(method), name
    assert {n for n in METHODS if has(get_method(n), Uploads).exact} == {"fedfomo", "fedfa", "fedpac"}


def test_a_client_reports_a_bounded_number_of_rates(tmp_path: Path) -> None:
    """Each takes the server a tenth of a second; more of one client are not counted, and the others' are."""

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if client != "c1" or "spent" not in answer.head:
            return answer
        rates = [0.45 + 1e-6 * (64 * of.head["round"] + k) for k in range(40)]
        return WireMessage({**answer.head, "spent": [[rate, 1] for rate in rates]}, answer.body)

    s = settings("fedavg", run={"rounds": 3, "eval_every": 3}, **PRIVATE)
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert len(total(line.private for line in ours.rounds)[1]) == 40
    assert [sorted(line.private) for line in ours.rounds] == [[0, 1, 2], [0, 2], [0, 2]]


# ---- what stays under one method -------------------------------------------------------------------------------------
def test_no_other_method_reads_what_a_client_keeps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under Ditto a client's own model stays with it. A server that goes on with the same run as FedAMP, whose
    clients send a model of that name after a step of length almost 0, gets nothing."""
    stolen: list[WireMessage] = []

    def steal(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if client == "c1" and of.head["kind"] == "update" and of.head["round"] == 2:
            told = table_of(settings("fedamp", training={"lr": 1e-30, "epochs": 1, "batch_size": 16}))
            other = with_setup(of, {**post.setups[of.head["setup"]], "settings": told})
            head = bare(other)
            head |= {"ack": of.head["seq"], "seq": of.head["seq"] + 1, "round": 3}
            stolen.append(post.ask(client, wire_message(head, Bundle(model=bundle(of).model, pull=torch.tensor(0.0)))))
        return answer

    on_hosts(settings("ditto", run={"rounds": 2}), tmp_path, Direct(sites(tmp_path), touch=steal))
    assert [(a.head.get("code"), a.body) for a in stolen] == [("settings", b"")]
    assert "was begun here with other settings" in caplog.text


def test_a_run_may_become_longer(tmp_path: Path) -> None:
    """More rounds and other evaluations are the same run to a client."""
    s, longer = settings("fedavg", run={"rounds": 2}), settings("fedavg", run={"rounds": 9, "eval_every": 1})
    heard: list[WireMessage] = []

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if of.head["kind"] == "evaluate":
            heard.append(
                post.ask(client, with_setup(of, {**post.setups[of.head["setup"]], "settings": table_of(longer)}))
            )
        return post.ask(client, of)

    on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert heard
    assert all(a.head["ok"] for a in heard)


# ---- columns as classes ----------------------------------------------------------------------------------------------
@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table whose rows have a number that nobody else should read."""
    rows = [f"{i % 7},{4711 + i},{i % 2}" for i in range(80)]
    path = tmp_path / "hospital.csv"
    path.write_text("\n".join(["pressure,insured,disease", *rows]) + "\n")
    return path


OWN = {"data": "hospital", "clients": None, "partition": "natural", "samples_per_client": None}


def with_data(of: WireMessage, data: Mapping[str, Any]) -> WireMessage:
    inline = of.head["inline"]
    return with_setup(of, {**inline, "settings": {**inline["settings"], "data": data}})


def greeted(site: ClientService, folder: Path, target: str) -> WireMessage:
    of = greeting(folder)
    data = {"data": "hospital", "partition": "natural", "scaling": "client", "target": target}
    return site.answer(with_data(of, data))


def test_a_server_does_not_choose_which_column_is_told(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The values of the class are on a site's card. A run that takes another column than the owner's for the class is
    refused, and without the owner's word one with more than 50 values; nothing of the column leaves."""
    free = ClientService("c0", SiteData(table), tmp_path / "a")
    strict = ClientService("c1", SiteData(table), tmp_path / "b", PrivacyLimits(target="disease"))
    willing = ClientService("c2", SiteData(table), tmp_path / "c", PrivacyLimits(target="insured"))
    assert [greeted(free, tmp_path, t).head.get("code") for t in ("disease", "pressure", "insured")] == [
        None,
        None,
        "settings",
    ]
    assert "'insured' for the class, which has 80 different values here" in caplog.text
    assert "--target insured" in caplog.text
    assert [greeted(strict, tmp_path, t).head.get("code") for t in ("disease", "pressure")] == [None, "settings"]
    assert "this node was started with --target disease" in caplog.text
    assert greeted(willing, tmp_path, "insured").head["ok"] is True
    assert "4711" not in str(greeted(free, tmp_path, "insured"))


# ---- numbers that break the accountant -------------------------------------------------------------------------------
@pytest.mark.parametrize("noise", [1e-160, 0.009, 2e6, 1e200])
def test_noise_that_cannot_be_accounted_for_is_refused(
    noise: float, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A noise so small that the accountant never ends, or so large that it fails, would be in the account for ever."""
    of = altered(greeting(tmp_path), privacy={"noise_multiplier": noise})
    assert of_worker(tmp_path, of, share=0).head["code"] == "settings"
    assert "noise_multiplier" in capfd.readouterr().err


# ---- lines of the log ------------------------------------------------------------------------------------------------
def test_a_message_writes_no_lines_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A text of a message appears in a worker's log on one line, without a terminal's control characters."""
    bad = altered(greeting(tmp_path), training={"\x1b]0;mine\x07\n2026 INFO all is well": 1})
    assert of_worker(tmp_path, bad, share=0).head["code"] == "settings"
    said = capfd.readouterr().err
    assert r"\x1b]0;mine\x07\n2026 INFO all is well" in said
    assert "\x1b" not in said
    assert "\n2026 INFO" not in said


def test_a_traceback_keeps_its_lines() -> None:
    """The text of an unexpected error can be read as ever; a terminal reads nothing else in it."""
    try:
        raise ValueError("one\ntwo\x1b[2J")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "a\tb\r\u2028c", (), sys.exc_info())
    lines = OneLine("%(message)s").format(record).splitlines()
    assert lines[0] == r"a\tb\r\u2028c"
    assert lines[1].startswith("Traceback")
    assert lines[-1] == r"two\x1b[2J"
