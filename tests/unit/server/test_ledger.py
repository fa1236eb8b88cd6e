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


def test_used_uploads_commit_their_state() -> None:
    """Round 1 is acknowledged by round 2; a restored client goes on from its committed state."""
    ledger = Ledger()
    assert answered(ledger, seq=1, ack=0) == 10
    assert answered(ledger, seq=2, ack=1) == 20
    assert ledger.committed == state(1.0)
    assert ledger.pending == state(2.0)
    ledger = Ledger(committed=state(5.0), at=8)
    assert answered(ledger, seq=9, ack=8) == 60
    assert ledger.state(9) == state(6.0)


def test_an_unused_upload_is_rolled_back() -> None:
    """What round 1 left is dropped and the client starts again; a later refusal keeps what was used before."""
    ledger = Ledger()
    answered(ledger, seq=1, ack=0)
    assert answered(ledger, seq=2, ack=0) == 10
    assert ledger.committed == {}
    assert ledger.pending == state(1.0)
    ledger = Ledger()
    answered(ledger, seq=1, ack=0)
    answered(ledger, seq=2, ack=1)
    assert answered(ledger, seq=3, ack=1) == 20
    assert answered(ledger, seq=4, ack=3) == 30


def test_the_same_message_again_gives_the_same_answer() -> None:
    """It is worked on once; looking at the state settles nothing."""
    ledger = Ledger()
    answered(ledger, seq=1, ack=0)
    first = answered(ledger, seq=2, ack=1)
    assert answered(ledger, seq=2, ack=1) == first == 20
    assert ledger.pending == state(2.0)
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


def test_messages_are_known_again() -> None:
    """The same number with another content is another message; those older than the last one are late."""
    ledger = Ledger()
    assert ledger.begin(1, 0, "a") is None
    ledger.propose(1, state(1.0), state(10.0), "a")
    assert ledger.begin(1, 0, "a") == state(10.0)
    assert ledger.begin(1, 0, "b") is None
    assert ledger.pending is None
    ledger = Ledger()
    answered(ledger, seq=3, ack=0)
    assert [ledger.late(seq) for seq in (2, 3, 4)] == [True, False, False]
    ledger.settle(3)
    assert [ledger.late(seq) for seq in (2, 3, 4)] == [True, False, False]
