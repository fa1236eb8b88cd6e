"""The commands for real hosts: ``fedkin keys | link | status``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import Positional, UseAppendAction

from fedkin.cli import screen
from fedkin.cli.options import options
from fedkin.core.errors import ConfigError, EngineError, nearest, typed
from fedkin.deploy import keys
from fedkin.deploy.control import SHUT_OUT
from fedkin.deploy.offline import check_version
from fedkin.report.tables import DASH, Grid
from fedkin.storage.files import for_this_user

Flags = TypeVar("Flags")


@dataclass(frozen=True)
class AuthorityFlags:
    """Make a new authority, and a certificate for the link signed by it. ca.crt goes to every node; ca.key is only
    needed for the next certificate and is best kept offline."""

    folder: Positional[Path]
    """Folder for ca.crt, ca.key, server.pem and server.key; `fedkin link FOLDER` reads FOLDER/keys."""
    host: UseAppendAction[tuple[str, ...]] = ()
    """A name or an address by which nodes reach the link; once for each."""
    days: float = keys.SERVER_DAYS
    """Validity of the link's certificate in days."""

    def __post_init__(self) -> None:
        if not 0 < self.days <= keys.AUTHORITY_DAYS:
            raise ConfigError(f"days must be above 0, and {keys.AUTHORITY_DAYS:g} at most, got {self.days:g}")


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
    port: int = 8443
    """The port that nodes reach; 0 takes a free one."""
    inner_port: int = 8000
    """The SuperLink's port, on this machine only; 0 takes a free one."""
    max_body: Annotated[int, tyro.conf.arg(metavar="MB")] = 8
    """Maximum request of a registered node in MB. Flower sends large models in pieces of 5 MB."""
    insecure_test: bool = False
    """For trials on one machine: no TLS, no keys, nothing on disk. Refuses any other host."""
    revoke: str | None = None
    """Shut the node of this name out of the running link in FOLDER permanently, and exit."""

    def __post_init__(self) -> None:
        if not 8 <= self.max_body <= 2048:
            raise ConfigError(f"max-body must be 8 to 2048 MB, got {self.max_body}: Flower's pieces have 5 MB")


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
    check_version()
    from fedkin.deploy import link as links  # after the check: the gate needs packages that are installed with Flower
    from fedkin.deploy.gate import Limits

    if flags.revoke is not None:
        fingerprint = links.find_link(flags.folder).revoke(flags.revoke)
        screen.say(f"{flags.revoke} ({fingerprint}) is shut out; it needs a new key to connect again")
        return 0
    folders, limits = (flags.folder, flags.keys, flags.nodes), Limits(body=flags.max_body << 20)
    settings = links.LinkSettings(
        *folders, flags.host, flags.port, flags.inner_port, insecure_test=flags.insecure_test, limits=limits
    )
    screen.say("starting the SuperLink ...")
    with for_this_user():
        link = links.start_link(settings)
        try:
            for line in _told(link):
                screen.say(line)
            link.wait(screen.say)
        finally:
            link.stop()
    return 0


def status_command(args: list[str]) -> int:
    """Run ``fedkin status [FOLDER]``."""
    flags = _parse(StatusFlags, args, "fedkin status")
    check_version()
    from fedkin.deploy.link import find_link

    control = find_link(flags.folder)
    try:
        runs, nodes = control.runs(), control.nodes()
    except EngineError as error:
        raise EngineError(
            f"the link in {flags.folder} does not answer: {error} Is it up? fedkin link {typed(flags.folder)}"
        ) from error
    screen.table(runs_table(runs))
    screen.table(nodes_table(nodes))
    return 0


def runs_table(runs: Sequence[dict[str, Any]]) -> Grid:
    """Return the runs of a link, the newest first."""
    columns = ("run", "status", "started (UTC)", "seconds", "MB in", "MB out")
    rows = []
    for run in runs:
        traffic = run.get("network-traffic", {})
        sent = [_megabytes(traffic.get(f"{way}-bytes")) for way in ("inbound", "outbound")]
        elapsed = run.get("elapsed")
        seconds = f"{elapsed:.0f}" if isinstance(elapsed, int | float) else _shown(elapsed)
        started = _time(run.get("running-at"))
        rows.append((_shown(run.get("run-id")), _shown(run.get("status")), started, seconds, *sent))
    note = "" if rows else "No run has been submitted yet: fedkin submit FILE.toml"
    return Grid("Runs", columns, tuple(rows), note=note, words=3)


def nodes_table(nodes: Sequence[dict[str, Any]]) -> Grid:
    """Return the nodes of a link by name; those that were shut out last."""
    when = {"online": "online-at", "offline": "offline-at", SHUT_OUT: "deleted-at"}
    rows = []
    for node in sorted(nodes, key=lambda n: (n.get("status") == SHUT_OUT, str(n.get("name")))):
        status = str(node.get("status"))
        since = _time(node.get(when.get(status, "created-at")))
        said = "shut out" if status == SHUT_OUT else status
        rows.append((_shown(node.get("name")), said, since, _shown(node.get("node-id"))))
    note = "" if rows else "No node is registered: put its NAME.pub into the link's folder nodes/"
    return Grid("Nodes", ("node", "status", "since (UTC)", "number"), tuple(rows), note=note, words=4)


def _told(link: Any) -> list[str]:
    """Return the lines that a link's operator needs once it is up."""
    from fedkin.deploy.link import change_lines

    settings = link.settings
    logs = f"logs:        {link.logs}"
    stop = "stop:        Ctrl-C"
    if settings.insecure_test:
        warning = "FOR TESTS ON THIS MACHINE ONLY: no TLS, no keys, nothing is kept"
        return [warning, f"nodes reach: {link.address} (plain HTTP)", logs, stop]
    folder = settings.key_folder
    lines = change_lines(link.changes, settings)
    lines.append(f"nodes reach: {link.address} (TLS; only POST /v1/fleet/... with a registered key passes)")
    lines.append(
        f"operator:    {link.inner}, on this machine only: any user of this machine can run code on every node"
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
    try:
        return options(flags, args, prog, config=(tyro.conf.FlagCreatePairsOff,))
    except ConfigError as error:
        raise ConfigError(f"{prog}: {error}") from error


def _shown(value: Any) -> str:
    return DASH if value in (None, "", "N/A") else str(value)


def _time(value: Any) -> str:
    """Return Flower's ``2026-11-21 12:39:08Z`` without the seconds."""
    text = _shown(value)
    return text[:16] if len(text) > 16 else text


def _megabytes(value: Any) -> str:
    return f"{value / 1e6:.1f}" if isinstance(value, int | float) else DASH
