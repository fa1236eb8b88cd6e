"""Masks that cancel in a sum: for each two members of a pool, one adds and the other subtracts numbers that only these
two can generate.

The pairwise masks of Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure
Aggregation for Privacy-Preserving Machine Learning, CCS 2017, without their recovery of drop-outs. Two members agree on
a secret by X25519 (RFC 7748) with keys that one process of each makes for one run; HKDF-SHA-256 (RFC 5869) derives a
key for this upload, and ChaCha20 (RFC 8439) a stream of 64-bit numbers, added modulo 2^64. Without the masks of all
its partners an upload is indistinguishable from random numbers. `docs/security.md` has test vectors.

A stream must never be used twice. It depends on everything that a server could vary: the run, the round, the members
with their keys and weights, what they are asked, and the form of the upload; and a site masks for one such table in a
round. Therefore the masks of members that were asked different things do not cancel. Keys are never on a disk
(`fedkin_hosts.maskkeys`), so no older state of a disk brings a stream back.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedkin.core import Bundle
from fedkin_hosts.keys import PrivateKey, PublicKey
from fedkin_hosts.table import MemberTable
from fedkin_hosts.wire_format import WireError

_BLOCK = 1 << 20  # bytes of a stream made at a time


def new_secret() -> bytes:
    """Return a private key, 32 bytes, from the operating system's generator."""
    return X25519PrivateKey.generate().private_bytes_raw()


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
    """Return one member's addend with its masks.

    Args:
        addend: int64 tensors, see `fedkin.privacy.secure_sum.fixed`.
        table: the members of the sum.
        number: number of the member in the table.
        secret: private key of the member.

    Raises:
        WireError: the public key of another member is invalid.
    """
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
    found = {n: torch.from_numpy(p.copy()).reshape(addend[n].shape) for n, p in zip(names, parts, strict=True)}
    return Bundle({n: found[n] for n in addend})


def _stream(key: bytes, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint64]]]:
    """Yield ``count`` 64-bit numbers generated from a key, in blocks."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    left = 8 * count
    while left:
        size = min(left, _BLOCK)
        yield np.frombuffer(cipher.update(bytes(size)), dtype="<u8").astype(np.uint64, copy=False)
        left -= size
