"""Keys and certificates: what OpenSSL and OpenSSH make of them, and that none is ever overwritten."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="cryptography comes with fedkin[flower]")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedkin.core.errors import ConfigError
from fedkin_hosts import keys
from refusals import refuses


def handshake(authority: keys.Authority, name: str, trusted: Path | None = None) -> str | None:
    """What a client that trusts ``trusted`` says to the server's certificate under this name; None if it is content."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(authority.server, authority.server_key)
    asking = ssl.create_default_context(cafile=str(trusted or authority.ca))
    asking.verify_flags |= ssl.VERIFY_X509_STRICT  # newer Pythons ask for it by themselves
    pipes = [ssl.MemoryBIO() for _ in range(4)]
    server = serving.wrap_bio(pipes[0], pipes[1], server_side=True)
    client = asking.wrap_bio(pipes[2], pipes[3], server_hostname=name)
    for _ in range(8):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return str(error)
            pipes[0].write(pipes[3].read())
            pipes[2].write(pipes[1].read())
    return None


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> keys.Authority:
    return keys.make_authority(tmp_path_factory.mktemp("keys") / "made", ["Link.example.org", "10.0.0.5", "fd00::7"])


@pytest.mark.parametrize("name", ["link.example.org", "10.0.0.5", "fd00::7", "localhost", "127.0.0.1", "::1"])
def test_a_certificate_holds_for_its_hosts_and_for_this_machine(authority: keys.Authority, name: str) -> None:
    """TLS with strict checks accepts the link's certificate under each name and address it was made for."""
    assert handshake(authority, name) is None


@pytest.mark.parametrize("name", ["example.org", "other.example.org", "10.0.0.6"])
def test_a_certificate_holds_for_nothing_else(authority: keys.Authority, name: str) -> None:
    """A host that was not named is refused."""
    assert "mismatch" in (handshake(authority, name) or "")


def test_another_authority_is_not_trusted(authority: keys.Authority, tmp_path: Path) -> None:
    """A node that has another authority's certificate does not take the link's."""
    other = keys.make_authority(tmp_path, ["link.example.org"])
    assert "verify failed" in (handshake(authority, "link.example.org", other.ca) or "")
    assert other.fingerprint != authority.fingerprint


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    """A certificate that has run out is not trusted; a new one of the same authority is, and nodes need nothing new."""
    old = keys.make_authority(tmp_path, ["link.example.org"], days=-0.5)
    assert "expired" in (handshake(old, "link.example.org") or "")
    for path in (old.server, old.server_key):
        path.rename(path.with_suffix(".old"))
    new = keys.make_server(tmp_path, ["link.example.org"])
    assert handshake(new, "link.example.org") is None
    assert new.fingerprint == old.fingerprint
    assert new.until - datetime.now(UTC) > timedelta(days=keys.SERVER_DAYS - 1)


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    """A server's certificate ends with its authority's at the latest, as nobody would trust it after that."""
    made = keys.make_authority(tmp_path, ["a.example"], days=100, authority_days=3)
    assert made.until <= datetime.now(UTC) + timedelta(days=3)


def test_secrets_are_for_their_owner_only(authority: keys.Authority, tmp_path: Path) -> None:
    """Private keys have mode 0600; what others need can be read."""
    node = keys.make_node_key(tmp_path / "nodes", "hospital-a")
    assert [mode(p) for p in (authority.ca_key, authority.server_key, node.private)] == [0o600] * 3
    assert [mode(p) & 0o400 for p in (authority.ca, authority.server, node.public)] == [0o400] * 3
    assert mode(tmp_path / "nodes") == 0o700


def test_a_node_key_is_one_that_openssh_and_flower_read(tmp_path: Path) -> None:
    """P-384 in OpenSSH's format; the private key belongs to the public one; the fingerprint is OpenSSH's."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    node = keys.make_node_key(tmp_path, "hospital-a")
    private = serialization.load_ssh_private_key(node.private.read_bytes(), password=None)
    public = serialization.load_ssh_public_key(node.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    raw = serialization.ssh_key_fingerprint(public, hashes.SHA256())
    assert node.fingerprint == "SHA256:" + base64.b64encode(raw).decode().rstrip("=")
    assert node.public.read_text().endswith(" hospital-a\n")


def test_nothing_is_overwritten(authority: keys.Authority, tmp_path: Path) -> None:
    """A second authority, certificate or key in the same place is an error, and every file stays as it was."""
    keys.make_node_key(tmp_path, "a")
    folder = authority.ca.parent
    before = {p: p.read_bytes() for p in [*folder.iterdir(), *tmp_path.iterdir()]}
    with refuses(ConfigError, folder / keys.CA):
        keys.make_authority(folder, ["link.example.org"])
    with refuses(ConfigError, folder / keys.SERVER):
        keys.make_server(folder, ["link.example.org"])
    with refuses(ConfigError, tmp_path / "a"):
        keys.make_node_key(tmp_path, "a")
    assert {p: p.read_bytes() for p in [*folder.iterdir(), *tmp_path.iterdir()]} == before


def test_one_file_in_the_way_leaves_no_half_pair(tmp_path: Path) -> None:
    """With the public key's place taken, even by a link to nowhere, no private key is written."""
    (tmp_path / "a.pub").symlink_to(tmp_path / "nowhere")
    with refuses(ConfigError, tmp_path / "a.pub"):
        keys.make_node_key(tmp_path, "a")
    assert not (tmp_path / "a").exists()


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails at the second file takes the first with it."""
    count = []

    def fsync(number: int) -> None:
        count.append(number)
        if len(count) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", fsync)
    with refuses(ConfigError, tmp_path, "No space left"):
        keys.make_node_key(tmp_path, "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "../a", "a/b", ".a", "-a", "ä", "a.pub", "x" * 65, "a\n"])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    """A node's name is part of file names: no separators, no dots in front, nothing that looks like an option."""
    with refuses(ConfigError, repr(name)):
        keys.make_node_key(tmp_path, name)


@pytest.mark.parametrize(
    "host", ["", "a b", "link.example.org:443", "https://x", "10.0.0", "10.0.0.256", "-a.b", "a..b"]
)
def test_hosts_that_are_none(host: str, tmp_path: Path) -> None:
    """A host with a port, a scheme or a slip in its address is refused before a key is made."""
    with refuses(ConfigError, repr(host)):
        keys.make_authority(tmp_path / "k", [host])
    with refuses(ConfigError, "--host"):
        keys.make_authority(tmp_path / "k", [])
    assert not (tmp_path / "k").exists()


def test_signing_needs_the_authority(tmp_path: Path) -> None:
    """Without the authority's key, or with another's, no certificate is made and the text says what to bring."""
    one, other = keys.make_authority(tmp_path / "1", ["a.example"]), keys.make_authority(tmp_path / "2", ["a.example"])
    for made in (one.server, one.server_key):
        made.unlink()
    one.ca_key.write_bytes(other.ca_key.read_bytes())
    with refuses(ConfigError, tmp_path / "1", "does not belong"):
        keys.make_server(tmp_path / "1", ["a.example"])
    one.ca_key.unlink()
    with refuses(ConfigError, tmp_path / "1", "ca.crt and ca.key"):
        keys.make_server(tmp_path / "1", ["a.example"])


def test_what_is_not_a_key(tmp_path: Path) -> None:
    """A key of another kind, a part of one, or a file that is none: refused with its path."""
    path = tmp_path / "x.pub"
    whole = keys.make_node_key(tmp_path, "y").public.read_text().split()[1]
    parts = ("AAAA", whole[:100], whole[:-4], "AAAA" + whole, whole.replace("bmlzdHAzODQ", "bmlzdHAyNTY", 1))
    p256 = ec.generate_private_key(ec.SECP256R1())
    other = p256.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    for text in ("ssh-ed25519 AAAA x", "nonsense", other, *(f"ecdsa-sha2-nistp384 {part} x" for part in parts)):
        path.write_text(text)
        with refuses(ConfigError, path, "public key"):
            keys.public_key(path)
    with refuses(ConfigError, path, "private key"):
        keys.private_key(path)
    with refuses(ConfigError, path, "certificate"):
        keys.certificate_fingerprint(path)


def test_the_fingerprint_is_of_the_certificate_as_sent(authority: keys.Authority) -> None:
    """SHA-256 over the DER form, as every other tool shows it."""
    der = ssl.PEM_cert_to_DER_cert(authority.ca.read_text())
    assert authority.fingerprint.replace(":", "").lower() == hashlib.sha256(der).hexdigest()
    assert socket.inet_aton("10.0.0.5") in ssl.PEM_cert_to_DER_cert(authority.server.read_text())
