"""A server that asks the members of a secure sum different things reads nothing of a single upload.

c0 is asked what the run asks. The others are asked something whose result the server knows, or that hardly weighs; so
the sum of all, if the masks cancelled, would be the upload of c0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.core import Bundle
from fedkin.experiment.settings import Settings
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import Direct, altered, bare, lines, on_hosts, settings, sites

Lie = Callable[[WireMessage], WireMessage]


def secure(secure: bool = True) -> Settings:
    return settings("fedavg", run={"rounds": 1}, aggregation={"secure": secure})


def setting(group: str, name: str, value: Any) -> Lie:
    """Every message of the run with another setting, from the first one on."""
    other: dict[str, str] = {}  # the name of the changed setup, by that of the true one

    def told(of: WireMessage) -> WireMessage:
        if "inline" in of.head:
            changed = altered(of, **{group: {name: value}})
            other[of.head["setup"]] = changed.head["setup"]
            return changed
        return WireMessage({**of.head, "setup": other[of.head["setup"]]}, of.body)

    return told


def body(change: Callable[[Tensor], Tensor]) -> Lie:
    """A request to train with another model."""

    def told(of: WireMessage) -> WireMessage:
        if of.head["kind"] != "update":
            return of
        head = bare(of)
        return wire_message(head, Bundle(model=change(bundle(of).model)))

    return told


def weights(change: Callable[[int], float]) -> Lie:
    """A request to train with other weights of the members."""

    def told(of: WireMessage) -> WireMessage:
        if of.head["kind"] != "update":
            return of
        members = [[i, key, change(i), *rest] for i, key, _, *rest in of.head["pool"]["members"]]
        return WireMessage({**of.head, "pool": {"members": members}}, of.body)

    return told


ASKED: dict[str, Lie] = {
    "a step of no length": setting("training", "lr", 1e-30),
    "another batch size": setting("training", "batch_size", 1),
    "another number of steps": setting("training", "steps", 1),
    "momentum": setting("training", "momentum", 0.9),
    "another number of rounds": setting("run", "rounds", 9),
    "other samples": setting("data", "validation", 0.3),
    "zeros": body(torch.zeros_like),
    "another model": body(lambda w: w + 1e-3),
    "one number": body(lambda w: torch.cat([w[:-1], w[-1:] + 1])),
    "another type": body(lambda w: w.double()),
    "weights of almost nothing": weights(lambda i: 1.0 if i else 2.0),
}
"""What the partners of c0 are asked instead."""


def uploads(folder: Path, s: Settings, lie: Lie | None = None, to: tuple[str, ...] = ("c1", "c2")) -> dict[str, Any]:
    """The answers of the clients to the request to train, and the model that c0 was sent."""
    found: dict[str, Any] = {}

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, lie(of) if lie is not None and client in to else of)
        if of.head["kind"] == "update":
            found[client] = answer
            found["sent"] = bundle(of).model if client == "c0" else found["sent"]
        return answer

    on_hosts(s, folder, Direct(sites(folder), touch=touch))
    return found


@pytest.fixture(scope="module")
def true(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """What the training of c0 changes."""
    found = uploads(tmp_path_factory.mktemp("plain"), secure(False))
    return bundle(found["c0"]).model - found["sent"]


def likeness(found: dict[str, Any], true: Tensor) -> float:
    """Correlation of the true change with the one that follows from the sum of all uploads that the server has."""
    parts = [bundle(found[c]).model for c in ("c0", "c1", "c2") if found[c].head["ok"]]
    total = torch.stack(parts).sum(0).double() / 2.0**34 - found["sent"]
    return float(torch.corrcoef(torch.stack([total, true.double()]))[0, 1])


def test_an_honest_sum_is_like_each_upload(true: Tensor, tmp_path: Path) -> None:
    """Without a deviation the sum is the mean of three, which each is like: so the measure of these tests can see."""
    assert likeness(uploads(tmp_path, secure()), true) > 0.2


@pytest.mark.parametrize("what", ASKED)
def test_members_that_are_asked_something_else_do_not_cancel(what: str, true: Tensor, tmp_path: Path) -> None:
    """The sum is noise, or a member does not answer, without which nothing can be read."""
    found = uploads(tmp_path, secure(), ASKED[what])
    assert found["c0"].head["ok"]
    assert abs(likeness(found, true)) < 0.05


def test_a_member_has_half_of_the_weight_at_most(
    true: Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All are sent the same weights, and c0 has nearly all of them: it sends nothing and says why in its own log; with
    half of them it answers."""
    everyone = ("c0", "c1", "c2")
    found = uploads(tmp_path / "most", secure(), weights(lambda i: 1.0 if i else 1e6), everyone)
    assert (found["c0"].head["code"], found["c0"].body) == ("settings", b"")
    assert abs(likeness(found, true)) < 0.05
    assert "this client's weight is 1e+06 of 1e+06" in caplog.text
    found = uploads(tmp_path / "half", secure(), weights(lambda i: 1.0 if i else 2.0), everyone)
    assert all(found[c].head["ok"] for c in everyone)


def test_an_operator_that_lifts_the_limit_is_told(tmp_path: Path) -> None:
    """With [hosts] max_share = 1 a client with most of the samples has most of the weight: rounds are abandoned, and
    the events name it. The default lowers its weight, and rounds go on."""
    for share, abandoned in ((1, True), (0.5, False)):
        s = settings("fedavg", run={"rounds": 2}, aggregation={"secure": True}, hosts={"max_share": share})
        folder = tmp_path / str(share)

        def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
            answer = post.ask(client, of)
            if client == "c1" and of.head["kind"] == "describe":
                head = bare(answer)
                return wire_message(head, bundle(answer).but(size=torch.tensor(1000)))
            return answer

        ours = on_hosts(s, folder, Direct(sites(folder), touch=touch))
        assert [line.abandoned for line in ours.rounds] == [abandoned] * 2
        named = [e for e in lines(folder, "events") if "it cannot use the run's settings" in e["what"]]
        assert {e["client"] for e in named} == ({"c1"} if abandoned else set())
