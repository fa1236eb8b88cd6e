"""Operator's access to a SuperLink through Flower's own client, on the machine that the SuperLink runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto import control_pb2
from flwr.proto.federation_config_pb2 import SimulationConfig
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab

from fedkin.core.errors import ConfigError, EngineError, nearest, typed
from fedkin.storage.files import write_atomic
from fedkin_hosts.keys import PublicKey, fingerprint, pem

_ADDRESS = "superlink.json"  # in a link's folder, as long as it is there


@dataclass(frozen=True)
class RegisteredNode:
    """A registered key of a node.

    Attributes:
        number: the link's number of the node.
        name: name of the key's file when it was registered, without ``.pub``.
        key: the public key in PEM.
        status: "registered", "online", "offline" or "unregistered".
        since: time of its last change in ISO form, UTC.
    """

    number: int
    name: str
    key: bytes
    status: str
    since: str

    @property
    def is_shut_out(self) -> bool:
        """Whether its key is refused for good."""
        return self.status == "unregistered"

    @property
    def fingerprint(self) -> str:
        """Fingerprint as ``ssh-keygen -l`` prints it."""
        key = load_pem_public_key(self.key)
        return fingerprint(key) if isinstance(key, PublicKey) else ""


@dataclass(frozen=True)
class SubmittedRun:
    """A submitted run.

    Attributes:
        number: the link's number of the run.
        status: "pending", "starting", "running", "finished:completed", "finished:failed" or "finished:stopped".
        started: time in ISO form, UTC; "" before it.
        seconds: time since then, until the end; None before it.
        received, sent: bytes from and to nodes.
    """

    number: str
    status: str
    started: str
    seconds: float | None
    received: int
    sent: int


class _Address(msgspec.Struct, frozen=True):
    """Where a link's SuperLink listens, and the authority of its certificate; None for plain HTTP."""

    address: str
    authority: str | None = None


class Control:
    """The operator's side of a SuperLink.

    Args:
        folder: the link's folder.
        address: ``HOST:PORT`` of the SuperLink.
        authority: certificate of the authority that signed the SuperLink's; None for plain HTTP.
    """

    def __init__(self, folder: Path, address: str, authority: Path | None) -> None:
        self.folder = folder
        self._address = _Address(address, None if authority is None else str(authority.resolve()))
        self._trust = None if authority is None else authority.read_bytes()

    @classmethod
    def at(cls, folder: Path) -> Control:
        """Return the operator's access to the link in a folder; `ConfigError` if the folder does not hold a link."""
        try:
            result = msgspec.json.decode((folder / _ADDRESS).read_bytes(), type=_Address)
            return cls(folder, result.address, None if result.authority is None else Path(result.authority))
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{folder} is not a link's folder; start one there: fedkin link {typed(folder)}"
            ) from error

    def publish(self) -> None:
        """Write the address into the link's folder, for `at`."""
        write_atomic(self.folder / _ADDRESS, msgspec.json.encode(self._address))

    def nodes(self) -> list[RegisteredNode]:
        """Return every registered node."""
        result = self._ask("ListNodes", control_pb2.ListNodesRequest()).nodes_info
        return [
            RegisteredNode(
                node.node_id,
                node.name or "?",
                node.public_key,
                node.status,
                max(node.registered_at, node.last_activated_at, node.last_deactivated_at, node.unregistered_at),
            )
            for node in result
        ]

    def runs(self) -> list[SubmittedRun]:
        """Return every submitted run, the newest first."""
        result = self._ask("ListRuns", control_pb2.ListRunsRequest())
        return [
            SubmittedRun(
                str(run.run_id),
                ":".join(filter(None, [run.status.status, run.status.sub_status])),
                run.running_at,
                _seconds(run.running_at, run.finished_at or result.now),
                run.bytes_recv,
                run.bytes_sent,
            )
            for run in sorted(result.run_dict.values(), key=lambda run: run.pending_at, reverse=True)
        ]

    def start(self, app: bytes, config: Mapping[str, str], nodes: int | None = None) -> int:
        """Start a run and return its number.

        Args:
            app: the app as Flower packs it.
            config: its configuration.
            nodes: number of nodes that Flower simulates; None at a link with real ones.
        """
        simulation = SimulationConfig(num_supernodes=nodes, client_resources_num_cpus=1) if nodes else None
        request = control_pb2.StartRunRequest(
            fab=fab_to_proto(Fab(sha256(app).hexdigest(), app, {})),
            override_config=user_config_to_proto(dict(config)),
            override_federation_config=simulation,
        )
        return int(self._ask("StartRun", request).run_id)

    def register(self, name: str, key: PublicKey) -> None:
        """Register a node's key."""
        self._ask("RegisterNode", control_pb2.RegisterNodeRequest(public_key=pem(key), name=name))

    def revoke(self, name: str) -> str:
        """Shut a node out permanently and return its key's fingerprint: the key cannot be registered again.

        A node whose file was replaced by another key has several; all of them are shut out and returned.

        Raises:
            ConfigError: no node with this name is registered.
            EngineError: the link does not answer, or refuses.
        """
        inside = [node for node in self.nodes() if not node.is_shut_out]
        named = [node for node in inside if node.name == name]
        if not named:
            names = {node.name for node in inside}
            raise ConfigError(f"no node {name!r} is registered at this link{nearest(name, names) if names else ''}")
        for node in named:
            self._ask("UnregisterNode", control_pb2.UnregisterNodeRequest(node_id=node.number))
        return ", ".join(node.fingerprint for node in named)

    def _ask(self, call: str, request: Any) -> Any:
        """Return the answer to a call; `EngineError` if the SuperLink refuses or does not answer."""
        address, trust = self._address.address, self._trust
        try:
            with ControlHttpClient.from_server_address(address, trust is None, trust, interceptors=[]) as client:
                return getattr(client, call)(request)
        except httpx.HTTPError as error:
            said = f"does not answer: {error}. Is the link up? fedkin link {typed(self.folder)}"
            if isinstance(error, httpx.HTTPStatusError):
                why = FlowerError.from_json(error.response.text)
                words = error.response.text if why is None else f"{why.message} {why.public_details or ''}"
                said = f"refuses: {words.strip()}"
            raise EngineError(f"the SuperLink at {address} {said}") from error


def _seconds(begin: str, end: str) -> float | None:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() if begin else None
