"""A simulation in Flower's own simulator, which distributes clients with Ray over processes and machines.

The apps are those of real hosts; only the nodes are simulated. A SuperLink for this run alone is started on this
machine and ended with it.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedkin.core import ConfigError
from fedkin.deploy.control import Control
from fedkin.deploy.offline import check_version, environment, program, write_connection
from fedkin.deploy.ports import answers, free_port
from fedkin.deploy.programs import Program, wait_until
from fedkin.experiment.settings import Settings

_DAY = 86400.0  # deadline in seconds: no client is late in a simulation
_READY_SECONDS = 60.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Scale:
    """A run for Flower's simulator.

    Attributes:
        settings: settings of the run, which waits for all clients.
        clients: number of nodes to simulate.
    """

    settings: Settings
    clients: int


def scaled(settings: Settings) -> Scale:
    """Return a run of ``fedkin run`` for Flower's simulator.

    Raises:
        ConfigError: Ray is not installed.
        DataError, ConfigError: the data cannot be read or split.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("Flower's simulator works with Ray, and ray is not installed; pip install 'fedkin[ray]'")
    _check_cluster(os.environ.get("RAY_ADDRESS", ""))
    clients = len(settings.data.federation(settings.run.seed))
    hosts = replace(settings.hosts, min_clients=clients, min_connected=clients, wait_timeout=_DAY, reply_timeout=_DAY)
    return Scale(replace(settings, hosts=hosts), clients)


def _check_cluster(address: str) -> None:
    """Raise `ConfigError` if no program listens there: Ray would try for minutes and only log it."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host and not answers(host, int(port)):
        raise ConfigError(f"no Ray cluster at RAY_ADDRESS={address}; start its head, or unset RAY_ADDRESS")


@contextmanager
def simulating_link() -> Iterator[Control]:
    """Run a SuperLink that simulates its nodes while the context is open; runs still in progress end with it.

    It listens on this machine only and asks for no password: other users of this machine could submit code to it.

    Raises:
        ConfigError: flwr is missing or of another version.
        EngineError: the SuperLink did not come up.
    """
    check_version()
    with tempfile.TemporaryDirectory(prefix="fedkin-") as place:
        folder, port = Path(place), free_port()
        address = f"{_LOOPBACK}:{port}"
        write_connection(folder / "flwr", address, None)
        command = [program("flower-superlink"), "--host", _LOOPBACK, "--port", str(port), "--insecure", "--simulation"]
        superlink = Program("Flower's simulator", command, environment(folder / "flwr"), folder / "superlink.log")
        try:
            wait_until(lambda: answers(_LOOPBACK, port), superlink, _READY_SECONDS)
            yield Control(folder, folder / "flwr")
        finally:
            superlink.stop()
