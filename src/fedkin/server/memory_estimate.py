"""Estimates of what a method keeps with many clients, found by trying it on one, two and three synthetic ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkin.core import Bundle, Method, Net, Roster, Round, Training, stack
from fedkin.core.rows import kept_by
from fedkin.server.upload_checks import described, keeps


@dataclass(frozen=True)
class Footprint:
    """Memory and disk that a method needs, in bytes.

    Attributes:
        once: what the server keeps for any number of clients.
        row: what it keeps of each client: a bank takes that much for each.
        pair: what it keeps of each pair of clients (i, j), both ways and i = j included.
        state: what each client keeps, its first round over.
    """

    once: int
    row: int
    pair: int
    state: int

    def server(self, clients: int) -> int:
        """Return the bytes that the server keeps."""
        return self.once + self.row * clients + self.pair * clients**2

    def states(self, clients: int) -> int:
        """Return the bytes that all clients keep."""
        return self.state * clients

    def memory(self, clients: int, *, in_files: bool) -> int:
        """Return the memory that grows with the clients.

        A bank is copied when it changes; a state is kept next to its successor.
        """
        if in_files:
            return self.once + self.pair * clients**2
        return 2 * (self.server(clients) + self.states(clients))

    def disk(self, clients: int) -> int:
        """Return the room for files: banks, and two states for each client."""
        return self.row * clients + 2 * self.states(clients)

    def shortage(self, clients: int, *, in_files: bool, memory: int, disk: int) -> str | None:
        """Return what does not fit into memory and disk, both in bytes, with advice; None if everything fits."""
        wanted, room = self.memory(clients, in_files=in_files), self.disk(clients) if in_files else 0
        parts = f"{_size(self.row)} on the server and {_size(self.state)} on the client for each of {clients} clients"
        if self.pair:
            parts += f", and {self.pair} bytes on the server for each pair of them"
        if wanted > memory:
            advice = "take fewer clients or another method" if in_files else 'set state = "file", or take fewer clients'
            return f"it keeps {parts}: that takes {_size(wanted)} of memory, there are {_size(memory)}; {advice}"
        if room > disk:
            result = f"it keeps {parts}: that takes {_size(room)} on disk, {_size(disk)} are free"
            return f"{result}; name a folder on another disk by --out"
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB" if count >= 1e4 else f"{count} bytes"


def needs(method: Method, net: Net, training: Training) -> Footprint | None:
    """Return what a method keeps: the server when clients have joined, a client after its first round.

    The clients have one blank sample per class and train nothing. A bank that is made of uploads only, not for joining
    clients, is not noticed. None if the method cannot work with synthetic clients.
    """
    try:
        one, two, three = (_kept(method, net, training, k) for k in (1, 2, 3))
    except Exception:  # an estimate must not end a run
        return None
    pair = max(0, (three[0] - 2 * two[0] + one[0]) // 2)
    row = max(0, two[0] - one[0] - 3 * pair)
    return Footprint(max(0, one[0] - row - pair), row, pair, three[1])


def _kept(method: Method, net: Net, training: Training, clients: int) -> tuple[int, int]:
    """Return the bytes of the server's state with a number of clients, and of one client's."""
    said = described(method, net, training)
    everyone = stack(dict.fromkeys(range(clients), said))
    roster = Roster(everyone.size, Bundle({name: rows for name, rows in everyone.items() if name != "size"}))
    r = Round(1, 100, net, roster, torch.arange(clients), cohort=clients, step="admit")
    with kept_by(None), torch.random.fork_rng(devices=[]):
        before = r.but(index=0, roster=Roster(everyone.size[:0]), ids=r.ids[:0], step="init")
        s = method.admit(method.init(before), r)
        state = keeps(method, net, training, method.distribute(s, r.but(step="distribute")).row(0))
    return s.nbytes, state.nbytes
