"""Certificates of a link and keys of its nodes, all on the curve P-384.

A link has an authority, whose certificate goes to every node, and a server's certificate signed by it. A node has a
pair of keys in OpenSSH's format, which Flower requires: the public half is registered at the link, with the private
half the node's requests are signed. Files are never overwritten: a lost key is replaced under another name.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedkin.core.errors import ConfigError, typed
from fedkin_hosts.machine import private_folder

AUTHORITY_DAYS, SERVER_DAYS = 3650.0, 730.0
CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.pem", "server.key"
PublicKey: TypeAlias = ec.EllipticCurvePublicKey
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey
Key = TypeVar("Key", PublicKey, PrivateKey)

_ALWAYS = ("localhost", "127.0.0.1", "::1")  # added always: the gate and the operator reach the SuperLink by these
_NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,64}")
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_MAKE = "; `fedkin keys node FOLDER NAME` makes one"
_SKEW = timedelta(days=1)  # the clocks of two hosts may differ


@dataclass(frozen=True)
class Authority:
    """The files of a link: ``ca`` goes to every node, ``ca_key`` is best kept offline, the others stay at the link.

    Attributes:
        fingerprint: SHA-256 of the authority's certificate, as ``openssl x509 -fingerprint -sha256`` prints it.
        until: expiry date of the server's certificate.
    """

    ca: Path
    ca_key: Path
    server: Path
    server_key: Path
    fingerprint: str
    until: datetime


@dataclass(frozen=True)
class NodeKey:
    """A node's pair of keys: ``private`` stays on the node, ``public`` goes to the link's operator.

    Attributes:
        fingerprint: fingerprint of the public key, as ``ssh-keygen -l`` prints it.
    """

    private: Path
    public: Path
    fingerprint: str


def make_authority(
    folder: Path, hosts: Sequence[str], days: float = SERVER_DAYS, authority_days: float = AUTHORITY_DAYS
) -> Authority:
    """Make a new authority, and a certificate for the link signed by it.

    Args:
        folder: receives ``ca.crt``, ``ca.key``, ``server.pem`` and ``server.key``.
        hosts: names and addresses by which nodes reach the link; those of this machine are added.
        days: validity of the link's certificate in days.
        authority_days: validity of the authority's certificate in days.

    Raises:
        ConfigError: a file exists already, a host is neither a name nor an address.
    """
    names = _names(hosts)
    _absent(folder / name for name in (CA, CA_KEY, SERVER, SERVER_KEY))
    signer, name = ec.generate_private_key(ec.SECP384R1()), _subject("fedkin authority")
    usage, span = x509.BasicConstraints(ca=True, path_length=0), timedelta(days=authority_days)
    ca = _certificate(name, name, signer, signer, span, usage)
    server, key = _server(ca, signer, names, days)
    shown = {CA: ca.public_bytes(Encoding.PEM), SERVER: server.public_bytes(Encoding.PEM)}
    _write(folder, {CA_KEY: _secret(signer), SERVER_KEY: key}, shown)
    return _authority(folder)


def make_server(folder: Path, hosts: Sequence[str], days: float = SERVER_DAYS) -> Authority:
    """Make a new certificate for the link from the authority in the folder: for new hosts, or when one expires.

    Nodes need nothing new, as the authority is the same. Arguments and errors are those of `make_authority`.
    """
    names = _names(hosts)
    _absent(folder / name for name in (SERVER, SERVER_KEY))
    again = f"; bring back its {CA} and {CA_KEY}, or make a new one elsewhere: fedkin keys authority FOLDER --host ..."
    with _readable(f"{folder} has no authority that could sign", again):
        signer = load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
        ca = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        if not isinstance(signer, PrivateKey) or signer.public_key() != ca.public_key():
            raise ValueError("the authority's key does not belong to its certificate")
    server, key = _server(ca, signer, names, days)
    _write(folder, {SERVER_KEY: key}, {SERVER: server.public_bytes(Encoding.PEM)})
    return _authority(folder)


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make a new pair of keys on the curve P-384 in OpenSSH's format: ``NAME`` (private, mode 0600) and ``NAME.pub``;
    `ConfigError` if a file exists already, the name is not allowed."""
    if not _NAME.fullmatch(name) or name.endswith(".pub"):
        raise ConfigError(
            "a node's name has 1 to 64 of A-Z a-z 0-9 . _ -, begins with neither . nor -, and does not end in .pub; "
            f"got {name!r}"
        )
    private, public = folder / name, folder / f"{name}.pub"
    _absent((private, public))
    key = ec.generate_private_key(ec.SECP384R1())
    shown = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    _write(folder, {name: secret}, {public.name: shown + f" {name}\n".encode()})
    return NodeKey(private, public, fingerprint(key.public_key()))


def public_key(path: Path) -> PublicKey:
    """Return the key in a ``NAME.pub`` file; `ConfigError` if the file holds no key on the curve P-384 in OpenSSH's
    format."""
    with _readable(f"{path} is not a node's public key", _MAKE):
        return _on_p384(load_ssh_public_key(path.read_bytes()), PublicKey)  # type: ignore[type-abstract]


def private_key(path: Path) -> PrivateKey:
    """Return a node's private key; `ConfigError` if the file holds no key on the curve P-384 in OpenSSH's format, or it
    has a passphrase."""
    with _readable(f"{path} is not a node's private key", _MAKE):
        return _on_p384(load_ssh_private_key(path.read_bytes(), None), PrivateKey)  # type: ignore[type-abstract]


def pem(key: PublicKey) -> bytes:
    """Return a public key in the form that Flower stores and sends."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: PublicKey) -> str:
    """Return the fingerprint of a public key as ``ssh-keygen -l`` prints it: ``SHA256:`` and 43 characters."""
    blob = base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return "SHA256:" + base64.b64encode(sha256(blob).digest()).decode().rstrip("=")


def certificate(path: Path) -> x509.Certificate:
    """Return the (first) certificate in a PEM file; `ConfigError` if the file holds no certificate."""
    with _readable(f"{path} is not a certificate in PEM format"):
        return x509.load_pem_x509_certificate(path.read_bytes())


def certificate_fingerprint(path: Path) -> str:
    """Return the SHA-256 of a certificate, bytes in hexadecimal separated by colons."""
    return certificate(path).fingerprint(hashes.SHA256()).hex(":").upper()


def check_server(folder: Path) -> datetime:
    """Return the expiry date of the certificate among the link's keys in a folder; `ConfigError` if a file is missing,
    or the certificate cannot be read or has expired."""
    for name in (CA, SERVER, SERVER_KEY):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder / name} is missing; make an authority first: fedkin keys authority "
                f"{typed(folder)} --host HOST, with the name or address by which nodes will reach this link"
            )
    certificate(folder / CA)
    until = certificate(folder / SERVER).not_valid_after_utc
    if until < datetime.now(UTC):
        raise ConfigError(
            f"{folder / SERVER} ran out on {until:%Y-%m-%d}, no node would trust it; move it and {SERVER_KEY} away and "
            f"make another: fedkin keys server {typed(folder)} --host HOST"
        )
    return until


@contextmanager
def _readable(problem: str, remedy: str = "") -> Iterator[None]:
    """Raise `ConfigError` if a key or a certificate cannot be read."""
    try:
        yield
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{problem} ({error}){remedy}") from error


def _on_p384(key: object, kind: type[Key]) -> Key:
    if not isinstance(key, kind) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"{type(key).__name__}, expected ecdsa-sha2-nistp384")
    return key


def _authority(folder: Path) -> Authority:
    ca, ca_key, server, server_key = (folder / name for name in (CA, CA_KEY, SERVER, SERVER_KEY))
    until = certificate(server).not_valid_after_utc
    return Authority(ca, ca_key, server, server_key, certificate_fingerprint(ca), until)


def _server(
    ca: x509.Certificate, signer: PrivateKey, hosts: Sequence[str], days: float
) -> tuple[x509.Certificate, bytes]:
    """Return a server's certificate, which does not outlive the authority's, and its key in PEM."""
    key = ec.generate_private_key(ec.SECP384R1())
    span = min(timedelta(days=days), ca.not_valid_after_utc - datetime.now(UTC))
    more = [
        x509.SubjectAlternativeName(
            [x509.IPAddress(a) if (a := _address(host)) else x509.DNSName(host) for host in hosts]
        ),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ]
    usage = x509.BasicConstraints(ca=False, path_length=None)
    return _certificate(_subject(hosts[0][:64]), ca.subject, key, signer, span, usage, more), _secret(key)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    signer: PrivateKey,
    span: timedelta,
    constraints: x509.BasicConstraints,
    more: Sequence[x509.ExtensionType] = (),
) -> x509.Certificate:
    now, signs = datetime.now(UTC).replace(microsecond=0), constraints.ca
    usage = x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(min(now, now + span) - _SKEW).not_valid_after(now + span)
    builder = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    for extension in (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), *more):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer, hashes.SHA384())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _secret(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _names(hosts: Sequence[str]) -> list[str]:
    """Return the hosts as names and addresses without duplicates, including this machine's."""
    for host in hosts or [""]:
        labels = host.lower().removeprefix("*.").split(".")
        numbers = all(label.isdigit() for label in labels)  # an address with a typing error
        name = len(host) <= 253 and not numbers and all(_LABEL.fullmatch(label) for label in labels)
        if not name and _address(host) is None:
            raise ConfigError(
                f"--host {host!r} is neither a host's name nor its address; expected a name like link.example.org or "
                "10.0.0.5, without a port"
            )
    return list(dict.fromkeys([*(h.lower() for h in hosts), *_ALWAYS]))


def _absent(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise ConfigError(
                f"{path} exists already, and keys are never overwritten; choose another folder or move it"
            )


def _write(folder: Path, secret: Mapping[str, bytes], shown: Mapping[str, bytes]) -> None:
    """Write new files, the secret ones readable by their owner only: all of them, or none."""
    written: list[Path] = []
    try:
        private_folder(folder, tighten=False)
        for name, content in (*secret.items(), *shown.items()):
            mode = 0o600 if name in secret else 0o644
            number = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(folder / name)
            with os.fdopen(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"no keys can be written to {folder} ({error}); choose another folder") from error
        raise
