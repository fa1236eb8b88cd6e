"""The keys with which a client masks its uploads: made by each process, signed by its node, checked by other clients.

A private key for masks exists in the memory of one process and never on a disk. So a disk that is restored to an older
state, as from a snapshot, cannot bring back a key together with a record of fewer masked uploads: a stream of masks
would be used a second time, and the difference of two uploads could be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedkin.core import ConfigError
from fedkin.privacy.secure_sum import LEAST
from fedkin_hosts import masks
from fedkin_hosts.keys import PrivateKey, PublicKey, private_key, public_key
from fedkin_hosts.table import MemberTable, Unmasked


@dataclass(frozen=True)
class Signing:
    """A node's key for signing its keys for masks, and the keys by which it checks the signatures of other nodes.

    Attributes:
        key: file of the node's private key; None: keys are not signed.
        peers: folder with the public keys (``NAME.pub``) of the clients that this client adds its uploads up with;
            None: any members that the server names are accepted.
        simulated: the client is one of many in the processes of one user, where masks hide nothing: its keys follow
            from its name, so that each of these processes has the same.

    Raises:
        ConfigError: the folder has too few keys, or one is not a public key.
    """

    key: Path | None = None
    peers: Path | None = None
    simulated: bool = False

    def check(self, client: str) -> None:
        """Read the files once, so that a mistake is noticed when the node starts.

        Raises:
            ConfigError: a key cannot be read, or there are too few for any sum.
        """
        if self.key is not None:
            private_key(self.key)
        if self.peers is not None:
            others = sorted(set(_known(self.peers)) - {client})
            if len(others) < LEAST - 1:
                raise ConfigError(
                    f"--peers {self.peers} has the public keys of {len(others)} other clients "
                    f"({', '.join(others) or 'none'}); a sum needs at least {LEAST - 1}: put their NAME.pub there"
                )


class MaskKeys:
    """The keys of one client in one process, one per run.

    Args:
        client: name of the client.
        signing: key that signs its keys.
    """

    def __init__(self, client: str, signing: Signing) -> None:
        self._client, self._signing = client, signing
        self._secrets: dict[str, bytes] = {}
        self._last: dict[str, int] = {}

    def secret(self, run: str) -> bytes:
        """Return the private key for a run, made at the first call."""
        if run not in self._secrets:
            made_up = hashlib.sha256(f"{run} {self._client}".encode()).digest()
            self._secrets[run] = made_up if self._signing.simulated else masks.new_secret()
        return self._secrets[run]

    def public_of(self, run: str) -> dict[str, str]:
        """Return the part that other clients receive: the public key and, where the node has a key, its signature."""
        public = masks.public_of(self.secret(run))
        if self._own_key is None:
            return {"public": public}
        return {"public": public, "signature": masks.sign(self._own_key, run, self._client, public)}

    def last(self, run: str) -> int:
        """Return the last round that an upload was masked for in this process."""
        return self._last.get(run, 0)

    def used(self, run: str, round: int) -> None:
        """Record that an upload of a round is being masked: a second one is refused, whatever the disk states later."""
        self._last[run] = max(round, self.last(run))

    def require_peers(self, table: MemberTable, number: int) -> None:
        """Check that every other member of a sum has a key that a known client has signed for this run.

        Raises:
            Unmasked: a member has not. Nothing is required without a folder of known keys.
        """
        if self._signing.peers is None:
            return
        seen = {self._client}
        for i, public, _ in table.members:
            if i == number:
                continue
            client, signature = table.signed.get(i, ("", ""))
            known = self._known.get(client)
            if known is None or client in seen or not masks.signed(known, signature, table.run, client, public):
                name, folder = client or "without a name", self._signing.peers
                raise Unmasked(
                    "strangers",
                    f"the key of member {i} ({name}) is not signed by a client whose key is in {folder}, or one client "
                    "is listed twice. If that client is to be trusted, get its NAME.pub from it and put it there; else "
                    "inform the link's operator",
                )
            seen.add(client)

    @cached_property
    def _own_key(self) -> PrivateKey | None:
        return None if self._signing.key is None else private_key(self._signing.key)

    @cached_property
    def _known(self) -> Mapping[str, PublicKey]:
        return {} if self._signing.peers is None else _known(self._signing.peers)


def _known(folder: Path) -> dict[str, PublicKey]:
    if not folder.is_dir():
        raise ConfigError(f"--peers {folder}: there is no such folder; put the NAME.pub of the other clients into one")
    return {path.stem: public_key(path) for path in sorted(folder.glob("*.pub"))}
