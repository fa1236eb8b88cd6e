"""The settings of a run and the card of its data are sent once; later messages name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedkin.data import SiteData
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.privacy_budget import PrivacyLimits
from hosttoys import Direct, on_hosts, same_server, settings, simulated, sites

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
    assert [line.answered for line in ours.rounds if line.round != 2] == [(0, 1, 2)] * 2
    return sent, same_server(ours, simulated(s))


def test_the_setup_is_sent_once(tmp_path: Path) -> None:
    """With the greeting, as far as it is known, and with the request for a description."""
    sent, same = played(tmp_path)
    assert {kind for kind, _, inline, _ in sent if inline} == {"hello", "describe"}
    assert same
    (kept,) = (tmp_path / "disks" / "c1").glob("*/setup.json")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_process_that_was_started_again_reads_it(tmp_path: Path) -> None:
    """Nothing is sent twice."""

    def restart(post: Direct) -> None:
        post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks")

    sent, same = played(tmp_path, restart)
    assert [line for line in sent if line[:2] == ("update", 2)] == [("update", 2, False, "")]
    assert same


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b'{"settings": {}}')])
def test_a_client_without_it_is_sent_it_again(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """In the same exchange; also if it has another one."""

    def restart(post: Direct) -> None:
        damage(next((tmp_path / "disks" / "c1").glob("*/setup.json")))
        post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks")

    sent, same = played(tmp_path, restart)
    assert [line for line in sent if line[:2] == ("update", 2)] == [
        ("update", 2, False, "setup"),
        ("update", 2, True, ""),
    ]
    assert same


def test_a_client_whose_disk_was_lost_joins_again(tmp_path: Path) -> None:
    """The setup is repeated, then the client says that it remembers nothing."""

    def restart(post: Direct) -> None:
        post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "new")

    sent, _ = played(tmp_path, restart)
    codes = [(inline, code) for kind, round, inline, code in sent if (kind, round) == ("update", 2)]
    assert codes == [(False, "setup"), (True, "out-of-step"), (True, "")]


def test_limits_are_checked_at_each_start(tmp_path: Path) -> None:
    """A setup on the disk does not stand above what the owner allows now."""

    def restart(post: Direct) -> None:
        limits = PrivacyLimits(min_noise_multiplier=1.0)
        post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks", limits)

    s, sent = settings("fedrep", run={"rounds": 2}), list[str]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if client == "c1" and of.head["kind"] == "update" and of.head["round"] == 2:
            restart(post)
            answer = post.ask(client, of)
            sent.append(str(answer.head["code"]))
            return answer
        return post.ask(client, of)

    on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert sent == ["settings"]
