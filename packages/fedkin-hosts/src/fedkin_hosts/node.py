"""A client's host: the connection to the link, and the process that holds the data and does the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedkin.core import ConfigError
from fedkin.data import SOURCES
from fedkin.storage.files import for_this_user, open_to_others
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client_memory import checked_name
from fedkin_hosts.machine import locked, private_folder
from fedkin_hosts.masks import Signing
from fedkin_hosts.privacy_budget import PrivacyLimits
from fedkin_hosts.worker import Watch

Printer = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A client's data and its way to the link."""

    data: str
    """Data of this client: a csv or npz file, a folder of idx files or images; with --share, anything."""
    client_id: str
    """Name of this client: 1 to 64 of the characters A-Z a-z 0-9 . _ -"""
    link: str = "127.0.0.1:8000"
    """HOST:PORT of the link."""
    folder: Path = Path("fedkin-node")
    """Folder for this client's state and its models: one for each node; keep it between starts."""
    ca: Path | None = None
    """Certificate of the authority that signed the link's (ca.crt)."""
    key: Path | None = None
    """This node's private key, as made by fedkin keys node."""
    share: int | None = None
    """For trials: use this share of a data set that is split by the run's settings."""
    text: tuple[str, ...] = ()
    """Columns of a table to read as texts although they contain numbers at this client."""


@dataclass(frozen=True, kw_only=True)
class Node(PrivacyLimits, Place):
    """A client and its connection to the link; the fields are the flags of ``fedkin node``."""

    peers: Path | None = None
    """Folder with the public keys (NAME.pub) of the other clients, received from them and not from the link's operator:
    an upload is masked only for a sum with these. Without it, a server may invent all other clients of a sum."""
    allow_code: tuple[str, ...] = ()
    """Code that runs may name in addition to the built-in methods and networks: installed packages (team), modules
    (team.nets) or files (./nets.py, named nets:build). A run that names other code is refused."""
    insecure_test: bool = False
    """No certificates and no keys: for trials on one machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_name(self.client_id, "client-id")
        Allowed.of(self.allow_code)
        trial, missing = self.insecure_test, [path for path in (self.ca, self.key) if path and not path.is_file()]
        for wrong, why in (
            (
                self.peers and not self.only_masked,
                "--peers restricts the clients whose masked uploads are added up, and without --only-masked a run may "
                "ask for uploads without masks; add --only-masked",
            ),
            (
                self.data not in SOURCES and not Path(self.data).exists(),
                f"no data at {self.data}; set --data to this client's file or folder",
            ),
            (
                (self.ca or self.key) if trial else not (self.ca and self.key),
                "a node needs --ca (the link's authority) and --key (its own private key), see fedkin keys; "
                "or --insecure-test alone, for trials on one machine",
            ),
            (missing, f"no file {', '.join(map(str, missing))}"),
        ):
            if wrong:
                raise ConfigError(why)
        self.signing.check(self.client_id)

    @property
    def signing(self) -> Signing:
        """The keys with which its uploads are masked."""
        return Signing(self.key, self.peers)

    def resolved(self) -> Node:
        """Return it with absolute paths."""
        data = self.data if self.data in SOURCES else str(Path(self.data).resolve())
        code = (str(Path(word).expanduser().resolve()) if word.endswith(".py") else word for word in self.allow_code)
        ca, key, peers = (path and path.resolve() for path in (self.ca, self.key, self.peers))
        folder = self.folder.resolve()
        return replace(self, data=data, folder=folder, ca=ca, key=key, peers=peers, allow_code=tuple(code))


def run_node(node: Node, say: Printer) -> None:
    """Run until the user stops it.

    Raises:
        ConfigError: a node runs in the folder.
        EngineError: the link refuses this node.
    """
    from fedkin_hosts.fleet import FleetNode  # imported here: --help needs no Flower

    folder = node.folder.resolve()
    if private_folder(folder):
        say(f"{folder} was open to other users of this machine; it is this user's alone now (mode 0700)")
    if node.key is not None and (advice := open_to_others(node.key)):
        say(advice)
    with for_this_user(), locked(folder, "a node", "choose another folder with --folder"):
        watch = Watch(node.resolved())
        try:
            watch.start()
            say(f"{node.client_id} is at work for {node.link}; its state is in {folder}. Stop it with Ctrl-C.")
            FleetNode(node.link, node.ca, node.key, watch.ask, say).serve()
        finally:
            watch.close()
