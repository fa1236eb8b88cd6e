"""Masks that cancel in a sum: for each two members of a pool, one adds and the other subtracts numbers that only these
two can generate.

The pairwise masks of Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure
Aggregation for Privacy-Preserving Machine Learning, CCS 2017, without their recovery of drop-outs. Two members agree on
a secret by X25519 (RFC 7748) with keys that one process of each makes for one run; HKDF-SHA-256 (RFC 5869) derives a
key for this upload, and ChaCha20 (RFC 8439) a stream of 64-bit numbers, added modulo 2^64. Without the masks of all
its partners an upload is indistinguishable from random numbers. `docs/security.md` has test vectors.

A stream must never be used twice. It depends on everything that a server could vary: the run, the round, the members
with their keys and weights, what they are asked, and the form of the upload; and a site masks for one such table in a
round. Therefore the masks of members that were asked different things do not cancel.

A private key for masks exists in the memory of one process and never on a disk. So a disk that is restored to an older
state, as from a snapshot, cannot bring back a key together with a record of fewer masked uploads: the difference of two
uploads under one stream could be read.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedkin.core import Bundle, ConfigError
from fedkin.core.refusals import OfHost
from fedkin.privacy.secure_sum import LEAST, MOST
from fedkin_hosts.heads import PoolHead, WireError, WireMessage, convert, require
from fedkin_hosts.keys import PrivateKey, PublicKey, private_key, public_key

_BLOCK = 1 << 20  # bytes of a stream made at a time


class Unmasked(Exception):
    """An upload was not masked and therefore is not sent; ``words`` are for this client's own log.

    Attributes:
        code: reason that is sent to the server.
        more: further entries that are sent.
    """

    def __init__(self, code: OfHost, words: str = "", **more: str) -> None:
        super().__init__(f"no masks: {words or code}")
        self.code, self.more = code, more


@dataclass(frozen=True)
class MemberTable:
    """The members of a secure sum of one round and what they are asked, as the server described it to one of them.

    Attributes:
        run, round: identify the sum.
        members: number, public key and weight of each member, ascending by number.
        asked: fingerprint of all that steers the members' step and is the same for all of them: the name of the run's
            setup, and the tensors that were sent.
        signed: by number, the name of a member and its node's signature of its key; members without one are missing.
    """

    run: str
    round: int
    members: tuple[tuple[int, str, float], ...]
    asked: str
    signed: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, of: WireMessage) -> MemberTable:
        """Read the table from a message; `WireError` if it does not fit, has too few members, or lists one twice."""
        head = of.head
        listed = convert(head.get("pool"), PoolHead, "the table of those whose uploads are added up").members
        require(len(listed) >= LEAST, f"a sum of {len(listed)} uploads; at least {LEAST} are needed")
        members = tuple(sorted((m.number, m.key, m.weight) for m in listed))
        different = min(len({m.number for m in listed}), len({m.key for m in listed}))
        require(different == len(members), "a member is listed twice, or two have one key")
        steers = json.dumps([head["setup"], head.get("tensors")])
        asked = hashlib.sha256(steers.encode() + of.body).hexdigest()
        signed = {m.number: (m.name, m.signature) for m in listed if m.signature}
        return cls(str(head["run"]), int(head["round"]), members, asked, signed)

    @property
    def total(self) -> float:
        """Total weight of all members."""
        return sum(weight for *_, weight in self.members)

    def weight(self, number: int) -> float:
        """Return the weight of a member."""
        return next(weight for i, _, weight in self.members if i == number)

    def require(self, number: int, key: str, last: int, signature: str = "") -> None:
        """Check that this member, with this public key and its signature, may mask an upload after round ``last``.

        Raises:
            Unmasked: it has masked for this round before, other members received another key, or its weight is more
                than `MOST` of all.
        """
        weight = next((weight for i, _, weight in self.members if i == number), 0.0)
        for refused, why in (
            (self.round <= last, Unmasked("masked")),
            (
                (number, key) not in [(i, public) for i, public, _ in self.members],
                Unmasked("new-key", public=key, **({"signature": signature} if signature else {})),
            ),
            (
                weight > MOST * self.total,
                Unmasked(
                    "settings",
                    f"this client's weight is {weight:g} of {self.total:g}, and with more than {MOST:g} of all its "
                    "upload could be read from the sum; ask the link's operator for "
                    f"[hosts] max_share = {MOST:g} or less",
                ),
            ),
        ):
            if refused:
                raise why


def public_of(secret: bytes) -> str:
    """Return the public key of a private one, in hexadecimal digits."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex()


def sign(key: PrivateKey, run: str, client: str, public: str) -> str:
    """Return a node's signature of a client's public key for the masks of a run, in base64."""
    return base64.b64encode(key.sign(_statement(run, client, public), ec.ECDSA(SHA384()))).decode()


def signed(key: PublicKey, signature: str, run: str, client: str, public: str) -> bool:
    """Return whether a signature was made by this node for this client's key for the masks of this run."""
    try:
        key.verify(base64.b64decode(signature, validate=True), _statement(run, client, public), ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(run: str, client: str, public: str) -> bytes:
    """Return the signed bytes; their beginning distinguishes them from everything else that a node signs."""
    return json.dumps(["fedkin key for masks 1", run, client, public]).encode()


def masked(addend: Bundle, table: MemberTable, number: int, secret: bytes) -> Bundle:
    """Return the addend of one member, its int64 tensors (`fedkin.privacy.secure_sum.fixed`), with its masks;
    `WireError` if the public key of another member is invalid."""
    names = sorted(addend)
    flat = np.concatenate([np.zeros(0, np.uint64), *(addend[n].reshape(-1).numpy().view(np.uint64) for n in names)])
    form = [[n, list(addend[n].shape)] for n in names]
    context = json.dumps(["fedkin masks 2", table.run, table.round, table.members, table.asked, form])
    info = hashlib.sha256(context.encode()).digest()
    own = X25519PrivateKey.from_private_bytes(secret)
    for other, key, _ in table.members:
        if other == number:
            continue
        try:
            shared = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
        except ValueError as e:
            raise WireError(f"the public key of member {other} is not valid") from e
        at = 0
        for numbers in _stream(HKDF(SHA256(), 32, None, info).derive(shared), len(flat)):
            part = flat[at : at + len(numbers)]  # a view; unsigned numbers wrap at 2^64
            np.add(part, numbers, out=part) if number < other else np.subtract(part, numbers, out=part)
            at += len(numbers)
    parts = np.split(flat.view(np.int64), np.cumsum([addend[n].numel() for n in names])[:-1]) if names else []
    result = {n: torch.from_numpy(p.copy()).reshape(addend[n].shape) for n, p in zip(names, parts, strict=True)}
    return Bundle({n: result[n] for n in addend})


def _stream(key: bytes, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint64]]]:
    """Yield ``count`` 64-bit numbers generated from a key, in blocks."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    left = 8 * count
    while left:
        size = min(left, _BLOCK)
        yield np.frombuffer(cipher.update(bytes(size)), dtype="<u8").astype(np.uint64, copy=False)
        left -= size


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
        """Read the files once, so that a mistake is noticed when the node starts; `ConfigError` if a key cannot be
        read, or there are too few for any sum."""
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
    """The keys of one client in one process, one per run."""

    def __init__(self, client: str, signing: Signing) -> None:
        self._client, self._signing = client, signing
        self._secrets: dict[str, bytes] = {}
        self._last: dict[str, int] = {}

    def secret(self, run: str) -> bytes:
        """Return the private key for a run, made at the first call."""
        if run not in self._secrets:
            made_up = hashlib.sha256(f"{run} {self._client}".encode()).digest()
            self._secrets[run] = made_up if self._signing.simulated else X25519PrivateKey.generate().private_bytes_raw()
        return self._secrets[run]

    def public_of(self, run: str) -> dict[str, str]:
        """Return the part that other clients receive: the public key and, where the node has a key, its signature."""
        public = public_of(self.secret(run))
        if self._own_key is None:
            return {"public": public}
        return {"public": public, "signature": sign(self._own_key, run, self._client, public)}

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
            if known is None or client in seen or not signed(known, signature, table.run, client, public):
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
    return {path.stem: public_key(path) for path in sorted(folder.glob("*.pub"))}
