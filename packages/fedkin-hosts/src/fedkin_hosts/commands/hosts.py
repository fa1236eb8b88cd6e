"""The commands for real hosts: ``fedkin keys | link | status``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
import tyro
from msgspec import Meta
from tyro.conf import Positional, UseAppendAction

from fedkin.cli import screen
from fedkin.cli.flags import options
from fedkin.core.errors import ConfigError, nearest
from fedkin.core.grammar import placed
from fedkin.report.tables import DASH, Grid
from fedkin.storage.files import for_this_user

if TYPE_CHECKING:
    from fedkin_hosts.control import RegisteredNode, SubmittedRun
    from fedkin_hosts.link import Link

Flags = TypeVar("Flags")
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]


@dataclass(frozen=True)
class AuthorityFlags:
    """Make a new authority, and a certificate for the link signed by it. ca.crt goes to every node; ca.key is only
    needed for the next certificate and is best kept offline."""

    folder: Positional[Path]
    """Folder for ca.crt, ca.key, server.pem and server.key; `fedkin link FOLDER` reads FOLDER/keys."""
    host: UseAppendAction[tuple[str, ...]] = ()
    """A name or an address by which nodes reach the link; once for each."""
    days: Annotated[float, Meta(gt=0, le=3650)] = 730.0
    """Validity of the link's certificate in days."""


@dataclass(frozen=True)
class ServerFlags(AuthorityFlags):
    """Make a new certificate for the link from the authority in the folder: for other hosts, or before it expires. Move
    the old server.pem and server.key away first; nodes need nothing new."""


@dataclass(frozen=True)
class NodeKeyFlags:
    """Make a node's pair of keys, on the node: NAME stays there, NAME.pub goes to the operator of the link."""

    folder: Positional[Path]
    """Folder for NAME and NAME.pub."""
    name: Positional[str]
    """The node's name, such as hospital-a."""


@dataclass(frozen=True)
class LinkFlags:
    """Run the link that nodes connect to: Flower's SuperLink on this machine, and a gate in front of it that admits
    nodes by their keys. Runs until Ctrl-C."""

    folder: Positional[Path] = Path("fedkin-link")
    """Folder for its database, logs and Flower's own files."""
    keys: Path | None = None
    """Folder with ca.crt, server.pem and server.key, from `fedkin keys authority`. Default: FOLDER/keys."""
    nodes: Path | None = None
    """Folder with a NAME.pub for each admitted node; new keys are accepted while the link runs.
    Default: FOLDER/nodes."""
    host: str | None = None
    """The address that the gate listens on. Default: 0.0.0.0, all IPv4 addresses of this machine; ::
    takes all IPv6 addresses instead."""
    port: Port = 8443
    """The port that nodes reach; 0 takes a free one."""
    inner_port: Port = 8000
    """The SuperLink's port, on this machine only; 0 takes a free one."""
    max_body: Annotated[int, Meta(ge=8, le=2048), tyro.conf.arg(metavar="MB")] = 8
    """Maximum request of a registered node in MB. Flower sends large models in pieces of 5 MB."""
    insecure_test: bool = False
    """For trials on one machine: no TLS, no keys, nothing on disk. Refuses any other host."""
    revoke: str | None = None
    """Shut the node of this name out of the running link in FOLDER permanently, and exit."""


@dataclass(frozen=True)
class StatusFlags:
    """Show the runs and nodes of the link in a folder."""

    folder: Positional[Path] = Path("fedkin-link")
    """The link's folder."""


def keys_command(args: list[str]) -> int:
    """Run ``fedkin keys authority|server|node FOLDER ...``."""
    kinds: dict[str, Any] = {"authority": AuthorityFlags, "server": ServerFlags, "node": NodeKeyFlags}
    if not args or args[0] in ("-h", "--help"):
        lines = [f"  fedkin keys {kind} FOLDER{' NAME' if kind == 'node' else ' --host HOST'}\n" for kind in kinds]
        notes = [" ".join((flags.__doc__ or "").split()) for flags in kinds.values()]
        screen.write("\n".join(f"{line}      {note}" for line, note in zip(lines, notes, strict=True)))
        return 0
    if args[0] not in kinds:
        raise ConfigError(
            f"fedkin keys makes an authority, a server's certificate or a node's key, not {args[0]!r}"
            f"{nearest(args[0], kinds)}"
        )
    from fedkin_hosts import keys  # imported here, as below: --help does not wait for them

    flags = _parse(kinds[args[0]], args[1:], f"fedkin keys {args[0]}")
    if isinstance(flags, NodeKeyFlags):
        node = keys.make_node_key(flags.folder, flags.name)
        screen.say(f"private key: {node.private} (stays on this node)")
        screen.say(f"public key:  {node.public} (send it to the link's operator)")
        screen.say(f"fingerprint: {node.fingerprint} (send it to the operator by another channel, to compare)")
        return 0
    make = keys.make_server if isinstance(flags, ServerFlags) else keys.make_authority
    made = make(flags.folder, flags.host, days=flags.days)
    screen.say(f"authority:   {made.ca} (send it to every node)")
    screen.say(f"its key:     {made.ca_key} (secret; only needed for the next certificate, so keep it off the link)")
    screen.say(f"certificate: {made.server}, until {made.until:%Y-%m-%d}")
    screen.say(f"its key:     {made.server_key} (secret; stays with the link)")
    screen.say(f"fingerprint: {made.fingerprint} (of the authority, SHA-256; for nodes to compare)")
    return 0


def link_command(args: list[str]) -> int:
    """Run ``fedkin link [FOLDER]``."""
    flags = _parse(LinkFlags, args, "fedkin link")
    from fedkin_hosts.control import Control
    from fedkin_hosts.gate import Limits
    from fedkin_hosts.link import Link, LinkSettings

    if flags.revoke is not None:
        fingerprint = Control.at(flags.folder).revoke(flags.revoke)
        screen.say(f"{flags.revoke} ({fingerprint}) is shut out; it needs a new key to connect again")
        return 0
    limits, insecure = Limits(body=flags.max_body << 20), flags.insecure_test
    places = (flags.folder, flags.keys, flags.nodes, flags.host, flags.port, flags.inner_port)
    screen.say("starting the SuperLink ...")
    with for_this_user():
        link = Link(LinkSettings(*places, insecure_test=insecure, limits=limits))

        def ready(lines: Sequence[str]) -> None:
            for line in (*lines, *_description(link)):
                screen.say(line)

        try:
            asyncio.run(link.run(screen.say, ready))
        finally:
            link.close()
    return 0


def status_command(args: list[str]) -> int:
    """Run ``fedkin status [FOLDER]``."""
    flags = _parse(StatusFlags, args, "fedkin status")
    from fedkin_hosts.control import Control

    control = Control.at(flags.folder)
    screen.table(runs_table(control.runs()))
    screen.table(nodes_table(control.nodes()))
    return 0


def runs_table(runs: Sequence[SubmittedRun]) -> Grid:
    """Return the runs of a link, the newest first."""
    columns = ("run", "status", "started (UTC)", "seconds", "MB in", "MB out")
    rows = [
        (
            run.number,
            run.status,
            _minute(run.started),
            DASH if run.seconds is None else f"{run.seconds:.0f}",
            f"{run.received / 1e6:.1f}",
            f"{run.sent / 1e6:.1f}",
        )
        for run in runs
    ]
    note = "" if rows else "No run has been submitted yet: fedkin submit FILE.toml"
    return Grid("Runs", columns, tuple(rows), note=note, words=3)


def nodes_table(nodes: Sequence[RegisteredNode]) -> Grid:
    """Return the nodes of a link by name; those that were shut out last."""
    rows = [
        (node.name, "shut out" if node.is_shut_out else node.status, _minute(node.since), str(node.number))
        for node in sorted(nodes, key=lambda node: (node.is_shut_out, node.name))
    ]
    note = "" if rows else "No node is registered: put its NAME.pub into the link's folder nodes/"
    return Grid("Nodes", ("node", "status", "since (UTC)", "number"), tuple(rows), note=note, words=4)


def _description(link: Link) -> list[str]:
    """Return the lines that a link's operator needs once it is up."""
    from fedkin_hosts import keys

    settings, stop = link.settings, "stop:        Ctrl-C"
    logs = f"logs:        {settings.logs}"
    if settings.insecure_test:
        warning = "FOR TESTS ON THIS MACHINE ONLY: no TLS, no keys, nothing is kept"
        return [warning, f"nodes reach: {link.address} (plain HTTP)", logs, stop]
    folder = settings.key_folder
    lines = [f"nodes reach: {link.address} (TLS; only POST /v1/fleet/... with a registered key passes)"]
    lines.append(
        f"operator:    {link.inner}, on this machine only: any user of it can submit runs and run code as this user"
    )
    lines.append(f"authority:   {folder / keys.CA}, SHA-256 {keys.certificate_fingerprint(folder / keys.CA)}")
    lines.append(f"certificate: {folder / keys.SERVER}, until {keys.check_server(folder):%Y-%m-%d}")
    if (folder / keys.CA_KEY).exists():
        lines.append(
            f"             {folder / keys.CA_KEY} is not needed here, and whoever has it can pose as this link: keep "
            "it on another machine (docs/deploy.md, The authority's key)"
        )
    lines.append(f"nodes' keys: {settings.node_folder}/NAME.pub; new ones are accepted while this runs")
    return [*lines, logs, stop]


def _parse(flags: type[Flags], args: list[str], prog: str) -> Flags:
    asked = options(flags, args, prog, config=(tyro.conf.FlagCreatePairsOff,))
    try:
        msgspec.convert(vars(asked), flags, dec_hook=lambda _, value: value)
    except msgspec.ValidationError as error:
        what, (name, *_) = placed(str(error))
        raise ConfigError(f"{prog}: --{name.replace('_', '-')} {getattr(asked, name)}: {what}") from error
    return asked


def _minute(time: str) -> str:
    """Return a time in ISO form to the minute."""
    return time[:16].replace("T", " ") or DASH
