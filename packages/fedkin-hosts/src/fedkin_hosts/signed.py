"""Verification of requests of Flower's nodes by their signed headers alone.

A node signs the time with its private key and sends its public key, the time and the signature as headers of
every request (``flwr-public-key``, ``flwr-timestamp``, ``flwr-signature``; flwr 1.40 to 1.42). A SuperLink checks them
after it has read the whole body into memory; a `Keyring` needs the head of the request only.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from fedkin_hosts.keys import PublicKey, pem

PUBLIC_KEY, TIMESTAMP, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
AGE_SECONDS = 305.0  # Flower's limit: 300 s, and 5 s for clocks that differ
SKEW_SECONDS = 5.0

Headers = Iterable[tuple[bytes, bytes]]


class Unsigned(Exception):
    """A request that no registered node has signed; the text gives the reason.

    Attributes:
        honest: whether a node of Flower may have sent it, so that its operator needs the reason.
    """

    def __init__(self, why: str, *, honest: bool = False) -> None:
        super().__init__(why)
        self.honest = honest

    @classmethod
    def check(cls, refused: bool, why: str, *, honest: bool = False) -> None:
        """Raise it if a request is refused."""
        if refused:
            raise cls(why, honest=honest)


class Keyring:
    """The public keys of the nodes that may send requests, by the names of their files."""

    def __init__(self, keys: Mapping[str, PublicKey] | None = None) -> None:
        self._keys: dict[bytes, tuple[str, PublicKey]] = {}
        self.load(keys or {})

    def __len__(self) -> int:
        return len(self._keys)

    def load(self, keys: Mapping[str, PublicKey]) -> None:
        """Replace all keys."""
        self._keys = {pem(key): (name, key) for name, key in keys.items()}

    def keep(self, keys: Mapping[str, PublicKey]) -> None:
        """Drop the keys that are not among these; none is added."""
        result = {pem(key) for key in keys.values()}
        self._keys = {form: entry for form, entry in self._keys.items() if form in result}

    def holder(self, headers: Headers, now: datetime | None = None) -> str:
        """Return the name of the node that signed a request.

        Args:
            headers: headers of the request, with names in lower case.
            now: time of this machine. Default: the current time.

        Raises:
            Unsigned: a header is missing or there twice, the key is not registered, the time is too far from this
                machine's, or the signature is not the key's.
        """
        public, stamp, signature = (_only(headers, name) for name in (PUBLIC_KEY, TIMESTAMP, SIGNATURE))
        try:
            result = self._keys.get(b64decode(public, validate=True))
            signed = b64decode(signature, validate=True)
            age = ((now or datetime.now(UTC)) - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        except (binascii.Error, ValueError, TypeError) as error:  # a time without a zone raises TypeError
            raise Unsigned(f"its signed headers cannot be read ({error})") from error
        remedy = "put NAME.pub into the link's folder nodes/"
        Unsigned.check(result is None, f"its key is not registered at this link: {remedy}", honest=True)
        assert result is not None
        name, key = result
        ahead = f"the clock of {name} is {-age:.1f} s ahead of this machine's (Flower allows {SKEW_SECONDS:g} s)"
        why = ahead if age < 0 else f"{name} signed it {age:.0f} s ago by this machine's clock"
        wrong = not -SKEW_SECONDS < age < AGE_SECONDS
        Unsigned.check(wrong, f"{why}; set the clocks of both machines", honest=True)
        try:
            key.verify(signed, stamp, ec.ECDSA(SHA256()))
        except InvalidSignature as error:
            raise Unsigned(f"the signature was not made with the key of {name}") from error
        return name


def _only(headers: Headers, name: bytes) -> bytes:
    values = [value for given, value in headers if given == name]
    why = f"{len(values)} headers {name.decode()}, expected 1: it is not a request of a Flower node"
    Unsigned.check(len(values) != 1, why)
    return values[0]
