"""A client's durable memory: a state is committed only when the server acknowledges that its upload was used."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedkin.core import Bundle


class OutOfStep(Exception):
    """Raised if server and client remember different uploads: one of them lost its disk or has an older state.

    Attributes:
        at: number of the upload that the client's state belongs to.
    """

    def __init__(self, at: int, ack: int) -> None:
        super().__init__(f"the server goes on from upload {ack}, this client from upload {at}")
        self.at = at


@dataclass
class Ledger:
    """Memory of one client between messages.

    A message carries its own number ``seq`` and ``ack``, the number of this client's last upload that was aggregated.
    So lost, doubled, late and refused answers leave exactly the state that the server assumes.

    Attributes:
        committed: the state that matches the server's state.
        at: number of the upload it belongs to, 0 for none.
        seq: number of the message whose answer is pending, 0 for none.
        mark: identifies that message among others of the same number; "" if numbers suffice.
        pending: the state after that answer, not yet acknowledged.
        answer: that answer, to be given again if the same message comes again.
    """

    committed: Bundle = field(default_factory=Bundle)
    at: int = 0
    seq: int = 0
    mark: str = ""
    pending: Bundle | None = None
    answer: Bundle | None = None

    def settle(self, ack: int) -> Bundle:
        """Return the state to go on from: the pending one is promoted if it was acknowledged, else dropped.

        Raises:
            OutOfStep: ``ack`` is neither the pending upload nor the committed one; nothing was changed.
        """
        self.committed, self.at = self.state(ack), ack
        self.seq, self.mark, self.pending, self.answer = 0, "", None, None
        return self.committed

    def begin(self, seq: int, ack: int, mark: str = "") -> Bundle | None:
        """Open message ``seq``; return the former answer if this very message was answered before, else None.

        Raises:
            OutOfStep: see `settle`.
        """
        if self.pending is not None and (seq, mark) == (self.seq, self.mark):
            return self.answer
        self.settle(ack)
        return None

    def propose(self, seq: int, state: Bundle, answer: Bundle, mark: str = "") -> None:
        """Keep a new state and its answer until the server acknowledges or passes over it."""
        self.seq, self.mark, self.pending, self.answer = seq, mark, state, answer

    def late(self, seq: int) -> bool:
        """Return whether a message is older than the client's last one: an echo; no answer is expected."""
        return seq < max(self.seq, self.at)

    def state(self, ack: int) -> Bundle:
        """Return the result that `settle` would have, without changing anything.

        Raises:
            OutOfStep: see `settle`.
        """
        if self.pending is not None and ack == self.seq:
            return self.pending
        if ack != self.at:
            raise OutOfStep(self.at, ack)
        return self.committed
