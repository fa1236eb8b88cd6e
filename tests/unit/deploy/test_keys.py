"""Keys and certificates: what OpenSSL and OpenSSH make of them, and what a link admits."""

from __future__ import annotations

import base64
import hashlib
import shlex
import shutil
import socket
import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedkin.core.errors import ConfigError, EngineError
from fedkin_hosts import keys
from fedkin_hosts.control import Control, RegisteredNode
from fedkin_hosts.link import Link, LinkSettings
from fedkin_hosts.machine import listening
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


class Operator(Control):
    """The operator's side of a SuperLink in memory; `slow`: it does not answer, `picky`: a name that it refuses."""

    def __init__(self) -> None:
        self.known, self.slow, self.picky = list[RegisteredNode](), False, ""

    def nodes(self) -> list[RegisteredNode]:
        if self.slow:
            raise EngineError("no answer")
        return list(self.known)

    def register(self, name: str, key: keys.PublicKey) -> None:
        if name == self.picky:
            raise EngineError("not this one")
        self.known.append(RegisteredNode(len(self.known), name, keys.pem(key), "registered", ""))

    def _ask(self, call: object, request: object) -> None:
        i = request.node_id  # type: ignore[attr-defined]
        one = self.known[i]
        self.known[i] = RegisteredNode(i, one.name, one.key, "unregistered", "")


class Site:
    """A link whose SuperLink is not there, with the keys n1, n2 and n3 to choose from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes, self.operator = folder, folder / "nodes", Operator()
        keys.make_authority(folder / "keys", ["127.0.0.1"])
        for name in ("n1", "n2", "n3"):
            keys.make_node_key(folder / "private", name)
        self.link = Link(LinkSettings(folder, host="127.0.0.1", port=0, inner_port=0))
        self.link.control = self.operator
        self.said: list[str] = []

    def put(self, *names: str) -> None:
        for name in names:
            shutil.copy(self.folder / "private" / f"{name}.pub", self.nodes)

    def look(self) -> list[str]:
        """The names that the link admits after a look, in order."""
        self.said = self.link.look()
        return sorted(name for name, _ in self.link.keyring._keys.values())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "my link")
    yield made
    made.link.close()


def test_a_bad_file_keeps_no_removed_key_admitted(site: Site) -> None:
    """What is not a key is said and skipped; a key whose file is gone is dropped in the same look."""
    site.put("n1", "n2")
    assert site.look() == ["n1", "n2"]
    (site.nodes / "bad.pub").write_text("garbage\n")
    (site.nodes / "n1.pub").unlink()
    assert site.look() == ["n2"]
    bad, gone = site.said
    assert str(site.nodes / "bad.pub") in bad
    assert gone.startswith("n1 (SHA256:")
    words = ["fedkin", "link", str(site.folder), "--revoke", "n1"]
    assert shlex.split(gone.partition("for good: ")[2]) == words


@pytest.mark.parametrize("part", [20, 40, 100, 150])
def test_a_mended_file_is_looked_at_again(site: Site, part: int) -> None:
    """A copy that was looked at before it was whole is registered when it is; others do not wait for it."""
    whole = (site.folder / "private" / "n2.pub").read_text()
    (site.nodes / "n2.pub").write_text(whole[:part])
    site.put("n3")
    assert site.look() == ["n3"]
    (site.nodes / "n2.pub").write_text(whole)
    assert site.look() == ["n2", "n3"]
    assert site.said[0].startswith("registered n2 (SHA256:")


def test_a_replaced_key(site: Site) -> None:
    """Another key under a known name is registered, and the former one does not pass; revoked, neither comes in."""
    site.put("n1")
    site.look()
    (former,) = site.link.keyring._keys
    shutil.copy(site.folder / "private" / "n2.pub", site.nodes / "n1.pub")
    assert site.look() == ["n1"]
    assert former not in site.link.keyring._keys
    assert site.operator.revoke("n1").count("SHA256:") == 2
    assert site.look() == []
    assert "stays shut out" in site.said[0]
    with refuses(ConfigError, "'n1'"):
        site.operator.revoke("n1")


def test_a_slow_superlink_is_asked_again(site: Site) -> None:
    """A removed key is dropped without it; what is new comes in as soon as it answers."""
    site.put("n1", "n2")
    site.look()
    site.operator.slow = True
    (site.nodes / "n1.pub").unlink()
    site.put("n3")
    assert site.look() == ["n2"]
    assert len(site.said) == 1
    site.operator.slow = False
    assert site.look() == ["n2", "n3"]


def test_a_key_that_is_refused_harms_no_other(site: Site) -> None:
    """The others come in; that one is tried again."""
    site.operator.picky = "n2"
    site.put("n1", "n2", "n3")
    assert site.look() == ["n1", "n3"]
    site.operator.picky = ""
    assert site.look() == ["n1", "n2", "n3"]
    assert [line.partition(" (")[0] for line in site.said] == ["registered n2"]


def test_what_is_no_link(tmp_path: Path) -> None:
    """The commands in the texts can be copied into a shell."""
    folder = tmp_path / "no link"
    with pytest.raises(ConfigError) as none:
        Control.at(folder)
    assert shlex.split(str(none.value).partition("start one there: ")[2]) == ["fedkin", "link", str(folder)]
    with refuses(ConfigError, f"fedkin keys authority '{folder}' --host"):
        keys.check_server(folder)


def test_a_taken_port_names_its_flag(tmp_path: Path) -> None:
    """Each of a link's ports has its own."""
    keys.make_authority(tmp_path / "keys", ["127.0.0.1"])
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for flag, settings in {
            "--inner-port": LinkSettings(tmp_path, host="127.0.0.1", port=0, inner_port=port),
            "--host or --port": LinkSettings(tmp_path, host="127.0.0.1", port=port, inner_port=0),
            "--port": LinkSettings(tmp_path, port=port, insecure_test=True),
        }.items():
            with refuses(ConfigError, f"port {port}", f"another {flag}"):
                Link(settings)
