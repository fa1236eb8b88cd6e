"""Limits of a data owner against a server that asks for more than an honest one: nothing leaves beside the account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkin.capabilities import Uploads, has
from fedkin.capabilities.uploads import also_sent
from fedkin.core import ConfigError
from fedkin.core.refusals import Code, Reason
from fedkin.data import SiteData
from fedkin.methods import METHODS, get_method
from fedkin.privacy.budget import total
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.privacy_budget import PrivacyLimits
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import Direct, Heard, bare, lines, on_hosts, settings, simulated, sites
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
