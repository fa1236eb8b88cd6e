"""What a server that lies can make a client do with its messages: less than it would like."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import Bundle
from fedkin.data import SiteData
from fedkin.display import OneLine
from fedkin.experiment.settings import table_of
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.privacy_budget import PrivacyLimits
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import Direct, altered, bare, greeting, of_worker, on_hosts, settings, sites, with_setup


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
