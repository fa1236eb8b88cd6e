"""Who takes part: clients by number, pinned to their keys, in a file that survives the server."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkin.core import RunFolderError
from fedkin.data import Card
from fedkin.storage.files import write_atomic

KEY = re.compile("[0-9a-f]{64}")
"""A public key for masks, as it is written down and sent."""
SIGNATURE = re.compile("[A-Za-z0-9+/=]{0,200}")
"""A node's signature of that key; empty where nodes have no keys."""


@dataclass(frozen=True)
class Member:
    """A client with a number.

    Attributes:
        client: what it is called.
        key: fingerprint of the key that its node must show; "" where nodes have none.
        public: its public key for the masks of secure aggregation; "" in a run without.
        signature: of that key by its node; "" where nodes have none.
    """

    client: str
    key: str
    public: str = ""
    signature: str = ""


@dataclass
class Members:
    """The clients of one run, in the order of their numbers, and what their data have in common.

    Attributes:
        path: the file.
        run: the run's own name, by which clients know their memory of it.
        card: what all data look like; None before enough clients have come.
        listed: the members.
    """

    path: Path
    run: str
    card: Card | None = None
    listed: list[Member] = field(default_factory=list)

    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.listed)

    @property
    def client_names(self) -> tuple[str, ...]:
        """Their names, in the order of their numbers."""
        return tuple(m.client for m in self.listed)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes, as the card has them."""
        return None if self.card is None else self.card.labels

    @classmethod
    def load(cls, folder: Path) -> Members:
        """Those of a run folder, or none yet.

        Raises:
            RunFolderError: the file is damaged.
        """
        path = folder / "clients.json"
        if not path.exists():
            return cls(path, secrets.token_hex(12))
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            card = None if found["card"] is None else Card.from_json(found["card"])
            listed = [
                Member(str(m["client"]), str(m["key"]), str(m.get("public", "")), str(m.get("signature", "")))
                for m in found["clients"]
            ]
            return cls(path, str(found["run"]), card, listed)
        except (ValueError, KeyError, TypeError) as e:
            raise RunFolderError(f"{path} is damaged ({e}); restore it, or begin the run in another folder") from e

    def save(self) -> None:
        """Writes the file; when this returns it is on the disk."""
        write_atomic(self.path, (json.dumps(self.to_json(), indent=2) + "\n").encode(), sync=True)

    def to_json(self) -> dict[str, Any]:
        card = None if self.card is None else self.card.to_json()
        clients = [{n: v for n, v in vars(m).items() if v or n in ("client", "key")} for m in self.listed]
        return {"run": self.run, "card": card, "clients": clients}

    def goes_public(self, number: int, key: str, signature: str = "") -> None:
        """Write down another public key of a member, and its node's signature of it."""
        self.listed[number] = replace(self.listed[number], public=key, signature=signature)
        self.save()

    def number_of(self) -> Mapping[str, int]:
        return {m.client: i for i, m in enumerate(self.listed)}

    def pinned(self, client: str, key: str) -> str | None:
        """Why a client with this name and key is not the one that is known; None if it may be."""
        for m in self.listed:
            if m.client == client and m.key != key:
                keys = f"({key[:16] or 'none'}) than at first ({m.key[:16] or 'none'})"
                return f"client {client} came with another key {keys}"
            if m.client != client and key and m.key == key:
                return f"client {client} came with the key of {m.client}"
        return None
