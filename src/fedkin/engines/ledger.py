"""A client's durable memory: a state is committed only when the server says that the upload it belongs to was used."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedkin.core import Bundle


@dataclass
class Ledger:
    """What one client keeps between messages.

    A message carries its own number ``seq`` and ``ack``, the number of this client's last upload that was aggregated.
    So lost, doubled, late and refused answers leave exactly the state that the server believes the client to have.

    Attributes:
        committed: the state that the server's own state goes with.
        seq: number of the message whose answer is pending, 0 for none.
        pending: the state after that answer, not yet acknowledged.
        answer: that answer, to be given again if the same message comes again.
    """

    committed: Bundle = field(default_factory=Bundle)
    seq: int = 0
    pending: Bundle | None = None
    answer: Bundle | None = None

    def settle(self, ack: int) -> Bundle:
        """The state to go on from: the pending one is promoted if it was acknowledged, else dropped."""
        if self.pending is not None and ack == self.seq:
            self.committed = self.pending
        self.seq, self.pending, self.answer = 0, None, None
        return self.committed

    def begin(self, seq: int, ack: int) -> Bundle | None:
        """Opens message ``seq``; gives the former answer if this very message was answered before, else None."""
        if self.pending is not None and seq == self.seq:
            return self.answer
        self.settle(ack)
        return None

    def propose(self, seq: int, state: Bundle, answer: Bundle) -> None:
        """Keeps a new state and its answer until the server acknowledges or passes over it."""
        self.seq, self.pending, self.answer = seq, state, answer

    def state(self, ack: int) -> Bundle:
        """What `settle` would give, without changing anything."""
        return self.pending if self.pending is not None and ack == self.seq else self.committed
