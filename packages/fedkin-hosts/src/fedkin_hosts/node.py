"""A client's host: the connection to the link, and the process that holds the data and does the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from fedkin.core import ConfigError
from fedkin.data import SOURCES
from fedkin.storage.files import for_this_user, open_to_others
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client_memory import checked_name
from fedkin_hosts.machine import locked, private_folder
from fedkin_hosts.masks import Signing
from fedkin_hosts.privacy_budget import PrivacyLimits
from fedkin_hosts.worker import Duty, Watch

Printer = Callable[[str], None]


@dataclass(frozen=True)
class Node:
    """A client and its connection to the link; the fields are the flags of ``fedkin node``."""

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
    max_metadata_epsilon: float | None = None
    """Report class counts with noise only, as long as the epsilon of all reports with noise, over all runs of this
    client, stays within it."""
    min_noise_multiplier: float | None = None
    """Take part only in runs with private training and at least this noise_multiplier."""
    max_epsilon: float | None = None
    """Train no more once a sample's epsilon over all runs of this client would exceed this (delta 1e-5 or less)."""
    target: str | None = None
    """Column of a table that holds the class; a run that uses another column is refused. The server receives its
    distinct values. Default: any column with at most 50."""
    only_masked: bool = False
    """Take part only in runs with secure aggregation: no upload leaves without masks. A server still chooses the
    settings of all, so a sum may be of gradients of one sample of each client."""
    peers: Path | None = None
    """Folder with the public keys (NAME.pub) of the other clients, received from them and not from the link's operator:
    an upload is masked only for a sum with these. Without it, a server may invent all other clients of a sum."""
    keep_scores: bool = False
    """Send no results of evaluations: they are exact numbers, of models that the server chooses."""
    allow_code: tuple[str, ...] = ()
    """Code that runs may name in addition to the built-in methods and networks: installed packages (team), modules
    (team.nets) or files (./nets.py, named nets:build). A run that names other code is refused."""
    insecure_test: bool = False
    """No certificates and no keys: for trials on one machine."""

    def __post_init__(self) -> None:
        checked_name(self.client_id, "client-id")
        _limits(self)
        if self.peers is not None and not self.only_masked:
            raise ConfigError(
                "--peers restricts the clients whose masked uploads are added up, and without --only-masked a run may "
                "ask for uploads without masks; add --only-masked"
            )
        Allowed.of(self.allow_code)
        if self.data not in SOURCES and not Path(self.data).exists():
            raise ConfigError(f"no data at {self.data}; set --data to this client's file or folder")
        if self.insecure_test == (self.ca is not None or self.key is not None):
            raise ConfigError(
                "a node needs --ca (the link's authority) and --key (its own private key), see fedkin keys; "
                "or --insecure-test alone, for trials on one machine"
            )
        if not self.insecure_test and (self.ca is None or self.key is None):
            raise ConfigError("a node needs both --ca and --key, see fedkin keys")
        for path in (self.ca, self.key):
            if path is not None and not path.is_file():
                raise ConfigError(f"no file {path}")
        Signing(self.key, self.peers).check(self.client_id)


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
        watch = Watch(_duty(node, folder / "clients"))
        try:
            watch.start()
            say(f"{node.client_id} is at work for {node.link}; its state is in {folder}. Stop it with Ctrl-C.")
            FleetNode(node.link, node.ca, node.key, watch.ask, say).serve()
        finally:
            watch.close()


def _limits(node: Node) -> PrivacyLimits:
    return PrivacyLimits(**{f.name: getattr(node, f.name) for f in fields(PrivacyLimits)})


def _duty(node: Node, folder: Path) -> Duty:
    data = node.data if node.data in SOURCES else str(Path(node.data).resolve())
    key, peers = (None if path is None else str(path.resolve()) for path in (node.key, node.peers))
    code = tuple(str(Path(word).expanduser().resolve()) if word.endswith(".py") else word for word in node.allow_code)
    limits, place = vars(_limits(node)), str(folder)
    return Duty(node.client_id, data, place, node.share, node.text, **limits, allow_code=code, key=key, peers=peers)
