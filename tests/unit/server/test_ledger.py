"""A client's durable memory under every fault: a state counts only once the server has used its upload."""

from __future__ import annotations

import pytest
import torch

from fedkin.core import Bundle
from fedkin.server.ledger import Ledger, OutOfStep


def state(x: float) -> Bundle:
    return Bundle(x=torch.tensor(x))


def answered(ledger: Ledger, seq: int, ack: int) -> float:
    """One message worked on: the new state is the old one plus 1, the answer ten times that."""
    former = ledger.begin(seq, ack)
    if former is not None:
        return float(former.x)
    x = float(ledger.committed.get("x", torch.tensor(0.0))) + 1
    ledger.propose(seq, state(x), state(10 * x))
    return 10 * x


def test_a_used_upload_commits_its_state() -> None:
    """Round 1 is acknowledged by the message of round 2, which goes on from its state."""
    ledger = Ledger()
    assert answered(ledger, seq=1, ack=0) == 10
    assert answered(ledger, seq=2, ack=1) == 20
    assert ledger.committed == state(1.0)
    assert ledger.pending == state(2.0)


def test_a_lost_or_refused_upload_is_rolled_back() -> None:
    """The message of round 2 still acknowledges round 0: what round 1 left is dropped and the client starts again."""
    ledger = Ledger()
    answered(ledger, seq=1, ack=0)
    assert answered(ledger, seq=2, ack=0) == 10
    assert ledger.committed == {}
    assert ledger.pending == state(1.0)


def test_a_refusal_later_on_keeps_what_was_used_before() -> None:
    """Used, refused, used: two steps count."""
    ledger = Ledger()
    answered(ledger, seq=1, ack=0)
    answered(ledger, seq=2, ack=1)
    assert answered(ledger, seq=3, ack=1) == 20
    assert answered(ledger, seq=4, ack=3) == 30


def test_the_same_message_again_gives_the_same_answer() -> None:
    """A message that comes twice is worked on once, and its state is the same after it."""
    ledger = Ledger()
    answered(ledger, seq=1, ack=0)
    first = answered(ledger, seq=2, ack=1)
    assert answered(ledger, seq=2, ack=1) == first == 20
    assert ledger.pending == state(2.0)


def test_looking_at_the_state_changes_nothing() -> None:
    """`state` says what the server believes, before and after the acknowledgement, without settling."""
    ledger = Ledger()
    answered(ledger, seq=1, ack=0)
    assert ledger.state(0) == {}
    assert ledger.state(1) == state(1.0)
    assert ledger.committed == {}
    assert ledger.pending == state(1.0)


@pytest.mark.parametrize("ack", [2, 4])
def test_an_unknown_acknowledgement_is_said_and_changes_nothing(ack: int) -> None:
    """Message 3 is pending after upload 0: a server that goes on from upload 2 or 4 was put back, or this disk was."""
    ledger = Ledger()
    answered(ledger, seq=3, ack=0)
    for look in (ledger.settle, ledger.state, lambda a: ledger.begin(5, a)):
        with pytest.raises(OutOfStep) as e:
            look(ack)
        assert e.value.at == 0
    assert ledger.pending == state(1.0)
    assert answered(ledger, seq=4, ack=3) == 20


def test_the_same_number_with_another_content_is_another_message() -> None:
    """A server that died before its checkpoint plays the round again, perhaps with other participants: the client
    works on the new message instead of repeating what it said to the old one."""
    ledger = Ledger()
    assert ledger.begin(1, 0, "a") is None
    ledger.propose(1, state(1.0), state(10.0), "a")
    assert ledger.begin(1, 0, "a") == state(10.0)
    assert ledger.begin(1, 0, "b") is None
    assert ledger.pending is None


def test_an_echo_is_known_as_such() -> None:
    """Messages older than the last one worked on, or than the state, are late; the same or a newer one is not."""
    ledger = Ledger()
    answered(ledger, seq=3, ack=0)
    assert [ledger.late(seq) for seq in (2, 3, 4)] == [True, False, False]
    ledger.settle(3)
    assert [ledger.late(seq) for seq in (2, 3, 4)] == [True, False, False]


def test_a_restored_client_goes_on_from_its_committed_state() -> None:
    """After a restart there is a committed state only; the server's acknowledgement of it changes nothing."""
    ledger = Ledger(committed=state(5.0), at=8)
    assert answered(ledger, seq=9, ack=8) == 60
    assert ledger.state(9) == state(6.0)
