"""The settings of a run and the card of its data are sent once; later messages name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
