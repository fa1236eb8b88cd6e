"""Masks that cancel in a sum: of each two members of a pool one adds, and the other takes away, numbers that only they
can make.

The pairwise masks of Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure
Aggregation for Privacy-Preserving Machine Learning, CCS 2017, without their recovery of drop-outs. Two members agree on
a secret by X25519 (RFC 7748) of keys that are made for one run; HKDF-SHA-256 (RFC 5869) makes a key for this upload of
it, and ChaCha20 (RFC 8439) a stream of 64-bit numbers, added modulo 2^64. Without all its partners' masks an upload is
as good as random.

A stream must never be used twice. It depends on all that a server could ask for anew: the run, the round, the members
with their keys, what they weigh together and the form of the upload; and a site masks for one such table in a round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedkin.core import Bundle
from fedkin.hosts.table import Table
from fedkin.hosts.wire import LetterError

_BLOCK = 1 << 20  # bytes of a stream made at a time


def new_secret() -> bytes:
    """A private key, 32 bytes, from the operating system's generator."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(secret: bytes) -> str:
    """The public key of a private one, in hexadecimal digits."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex()


def masked(addend: Bundle, table: Table, number: int, secret: bytes) -> Bundle:
    """One member's addend with its masks.

    Args:
        addend: int64 tensors, see `fedkin.engines.secure.fixed`.
        number: of the member in the table.
        secret: its private key.

    Raises:
        LetterError: another member's public key is none.
    """
    names = sorted(addend)
    flat = np.concatenate([np.zeros(0, np.uint64), *(addend[n].reshape(-1).numpy().view(np.uint64) for n in names)])
    form = [[n, list(addend[n].shape)] for n in names]
    context = json.dumps(["fedkin masks 1", table.run, table.round, table.members, table.total, form])
    info = hashlib.sha256(context.encode()).digest()
    own = X25519PrivateKey.from_private_bytes(secret)
    for other, key in table.members:
        if other == number:
            continue
        try:
            shared = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
        except ValueError as e:
            raise LetterError(f"the public key of member {other} is none") from e
        at = 0
        for numbers in _stream(HKDF(SHA256(), 32, None, info).derive(shared), len(flat)):
            part = flat[at : at + len(numbers)]  # a view; unsigned numbers wrap at 2^64
            np.add(part, numbers, out=part) if number < other else np.subtract(part, numbers, out=part)
            at += len(numbers)
    parts = np.split(flat.view(np.int64), np.cumsum([addend[n].numel() for n in names])[:-1]) if names else []
    found = {n: torch.from_numpy(p.copy()).reshape(addend[n].shape) for n, p in zip(names, parts, strict=True)}
    return Bundle({n: found[n] for n in addend})


def _stream(key: bytes, count: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint64]]]:
    """So many 64-bit numbers of a key, in blocks."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    left = 8 * count
    while left:
        size = min(left, _BLOCK)
        yield np.frombuffer(cipher.update(bytes(size)), dtype="<u8").astype(np.uint64, copy=False)
        left -= size
