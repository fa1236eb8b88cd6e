"""The clients of a run by number, pinned to their keys, in a file that survives restarts of the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from torch import Tensor

from fedkin.core import RunFolderError
from fedkin.core.refusals import Reason
from fedkin.data import Card
from fedkin.storage.files import write_atomic


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A client with a number.

    Attributes:
        client: name of the client.
        key: fingerprint of the key that its node must use; "" where nodes have no keys.
        public: public key for the masks of secure aggregation; "" in a run without.
        signature: the node's signature of that key; "" where nodes have no keys.
    """

    client: str
    key: str
    public: str = ""
    signature: str = ""


class _File(msgspec.Struct, frozen=True):
    """The content of ``clients.json``."""

    run: str
    session: int
    card: Card | None
    clients: list[Member]


@dataclass
class Members:
    """The clients of one run, in the order of their numbers, and the properties that their data have in common.

    Attributes:
        path: the file.
        run: name of the run, by which clients find their memory of it.
        card: common properties of the data; None before enough clients have connected.
        listed: the members.
        session: number of the server's last start.
    """

    path: Path
    run: str
    card: Card | None = None
    listed: list[Member] = field(default_factory=list)
    session: int = 0

    def __len__(self) -> int:
        return len(self.listed)

    def groups_in(self, round: int) -> Tensor | None:
        """Return None: true groups are not known."""
        return None

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients, in the order of their numbers."""
        return tuple(m.client for m in self.listed)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes, as on the card."""
        return None if self.card is None else self.card.labels

    @classmethod
    def load(cls, folder: Path) -> Members:
        """Read the members of a run folder, none before the first round; `RunFolderError` if the file is
        damaged."""
        path = folder / "clients.json"
        if not path.exists():
            return cls(path, secrets.token_hex(12))
        try:
            result = msgspec.json.decode(path.read_bytes(), type=_File)
        except ValueError as e:
            raise RunFolderError(f"{path} is damaged ({e}); restore it, or start the run in another folder") from e
        return cls(path, result.run, result.card, result.clients, result.session)

    def save(self) -> None:
        """Write the file; when this returns, it is on the disk."""
        content = _File(self.run, self.session, self.card, self.listed)
        write_atomic(self.path, msgspec.json.format(msgspec.json.encode(content)) + b"\n", sync=True)

    def next_session(self) -> int:
        """Return the number of this start of the server, above those of all former starts, and write it to disk.

        It is the time where possible, so that it also exceeds those that an older copy of the file does not know of;
        a clock that was set back does not lower it.
        """
        self.session = max(self.session + 1, time.time_ns())
        self.save()
        return self.session

    def goes_public(self, number: int, key: str, signature: str = "") -> None:
        """Record a new public key of a member, and its node's signature of it."""
        self.listed[number] = msgspec.structs.replace(self.listed[number], public=key, signature=signature)
        self.save()

    def number_of(self) -> Mapping[str, int]:
        """Return the number of each client by its name."""
        return {m.client: i for i, m in enumerate(self.listed)}

    def pinned(self, client: str, key: str) -> Reason | None:
        """Return why a client with this name and key is not the known one; None if it may be."""
        for m in self.listed:
            if m.client == client and m.key != key:
                return Reason("other-key", value=key[:16] or "none", expected=m.key[:16] or "none")
            if m.client != client and key and m.key == key:
                return Reason("key-in-use", value=m.client)
        return None
