"""Keys: an authority for the link's certificate, and a pair of keys for each node.

A node trusts a link by the authority's certificate (X.509, RFC 5280). A link recognises a node by its public key, with
which the node's requests are signed. Files are never overwritten: a lost key is replaced under another name.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from fedkin.core.errors import ConfigError, typed
from fedkin.deploy.offline import INSTALL
from fedkin.deploy.private import private_folder

AUTHORITY_DAYS, SERVER_DAYS = 3650.0, 730.0
CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.pem", "server.key"

_ALWAYS = ("localhost", "127.0.0.1", "::1")  # added always: the gate and the operator reach the SuperLink by these
_NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,64}")
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_MAKE = "`fedkin keys node FOLDER NAME` makes one"
_WIRE = b"\0\0\0\x13ecdsa-sha2-nistp384\0\0\0\x08nistp384\0\0\0\x61\x04"  # RFC 5656; x and y follow, of 48 bytes each
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


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
        ConfigError: a file exists already, a host is neither a name nor an address, or cryptography is missing.
    """
    names = _names(hosts)
    _absent(folder / name for name in (CA, CA_KEY, SERVER, SERVER_KEY))
    made = _certificates()
    ca, ca_key = made.authority(authority_days)
    server, server_key, until = made.server(ca, ca_key, names, days)
    secret, shown = {CA_KEY: ca_key, SERVER_KEY: server_key}, {CA: ca, SERVER: server}
    _write(folder, secret, shown)
    return _authority(folder, until)


def make_server(folder: Path, hosts: Sequence[str], days: float = SERVER_DAYS) -> Authority:
    """Make a new certificate for the link from the authority in the folder: for new hosts, or when one expires.

    Nodes need nothing new, as the authority is the same. Arguments and errors are those of `make_authority`.
    """
    names = _names(hosts)
    _absent(folder / name for name in (SERVER, SERVER_KEY))
    made = _certificates()
    try:
        ca, ca_key = (folder / CA).read_bytes(), (folder / CA_KEY).read_bytes()
        server, server_key, until = made.server(ca, ca_key, names, days)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} has no authority that could sign ({error}); bring back its {CA} and {CA_KEY}, "
            f"or make a new one elsewhere: fedkin keys authority FOLDER --host ..."
        ) from error
    _write(folder, {SERVER_KEY: server_key}, {SERVER: server})
    return _authority(folder, until)


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make a new pair of keys on the curve P-384 in OpenSSH's format: ``NAME`` (private, mode 0600) and ``NAME.pub``.

    Raises:
        ConfigError: a file exists already, the name is not allowed, or cryptography is missing.
    """
    if not _NAME.fullmatch(name) or name.endswith(".pub"):
        raise ConfigError(
            "a node's name has 1 to 64 of A-Z a-z 0-9 . _ -, begins with neither . nor -, and does not end in .pub; "
            f"got {name!r}"
        )
    private, public = folder / name, folder / f"{name}.pub"
    _absent((private, public))
    secret, shown = _certificates().pair()
    _write(folder, {name: secret}, {public.name: shown + f" {name}\n".encode()})
    return NodeKey(private, public, key_fingerprint(public))


def key_fingerprint(public: Path) -> str:
    """Return the fingerprint of a public key in OpenSSH's format: ``SHA256:`` and 43 characters.

    Raises:
        ConfigError: the file is not such a key.
    """
    try:
        kind, key = public.read_text(encoding="ascii").split()[:2]
        raw = base64.b64decode(key, validate=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{public} is not a public key in OpenSSH's format ({error}); {_MAKE}") from error
    if kind != "ecdsa-sha2-nistp384":
        raise ConfigError(f"{public} is a key of kind {kind!r}, expected ecdsa-sha2-nistp384; {_MAKE}")
    if not raw.startswith(_WIRE) or len(raw) != len(_WIRE) + 96:
        raise ConfigError(f"{public} is not a whole public key in OpenSSH's format; {_MAKE}")
    return "SHA256:" + base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")


def certificate_fingerprint(path: Path) -> str:
    """Return the SHA-256 of the (first) certificate in a PEM file, bytes in hexadecimal separated by colons.

    Raises:
        ConfigError: the file holds no certificate.
    """
    try:
        text = path.read_text(encoding="ascii")
        first = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest().hex(":").upper()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a certificate in PEM format ({error})") from error


def check_server(folder: Path) -> datetime:
    """Return the expiry date of the certificate among the link's keys in a folder.

    Raises:
        ConfigError: a file is missing, or the certificate cannot be read or has expired.
    """
    for name in (CA, SERVER, SERVER_KEY):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder / name} is missing; make an authority first: fedkin keys authority "
                f"{typed(folder)} --host HOST, with the name or address by which nodes will reach this link"
            )
    certificate_fingerprint(folder / CA)
    try:
        until: datetime = _certificates().until((folder / SERVER).read_bytes())
    except ValueError as error:
        raise ConfigError(f"{folder / SERVER} is not a certificate in PEM format ({error})") from error
    if until < datetime.now(UTC):
        raise ConfigError(
            f"{folder / SERVER} ran out on {until:%Y-%m-%d}, no node would trust it; move it and {SERVER_KEY} away and "
            f"make another: fedkin keys server {typed(folder)} --host HOST"
        )
    return until


def _authority(folder: Path, until: datetime) -> Authority:
    fingerprint = certificate_fingerprint(folder / CA)
    return Authority(folder / CA, folder / CA_KEY, folder / SERVER, folder / SERVER_KEY, fingerprint, until)


def _names(hosts: Sequence[str]) -> list[str]:
    """Return the hosts as names and addresses without duplicates, including this machine's."""
    if not hosts:
        raise ConfigError("no name or address of the link was given; add --host link.example.org")
    for host in hosts:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            labels = host.lower().removeprefix("*.").split(".")
            numbers = all(label.isdigit() for label in labels)  # an address with a typing error
            if numbers or len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
                raise ConfigError(
                    f"{host!r} is neither a host's name nor its address; expected something like link.example.org or "
                    "10.0.0.5, without a port"
                ) from None
    return list(dict.fromkeys([*(h.lower() for h in hosts), *_ALWAYS]))


def _absent(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise ConfigError(
                f"{path} exists already, and keys are never overwritten; choose another folder or move it"
            )


def _write(folder: Path, secret: Mapping[str, bytes], shown: Mapping[str, bytes]) -> None:
    """Write new files, the secret ones readable by their owner only: all of them, or none."""
    files = [(name, content, 0o600) for name, content in secret.items()]
    files += [(name, content, 0o644) for name, content in shown.items()]
    written: list[Path] = []
    try:
        private_folder(folder, tighten=False)
        for name, content, mode in files:
            number = os.open(
                folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode
            )  # fails if the file was created meanwhile
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


def _certificates() -> ModuleType:
    try:
        from fedkin.deploy import certificates
    except ImportError as error:
        raise ConfigError(f"keys are made with the package cryptography, which is not installed; {INSTALL}") from error
    return certificates
