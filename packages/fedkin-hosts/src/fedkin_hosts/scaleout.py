"""A simulation in Flower's own simulator, which distributes clients with Ray over processes and machines.

The apps are those of real hosts; only the nodes are simulated. A SuperLink for this run alone is started on this
machine and ended with it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedkin.core import ConfigError, EngineError
from fedkin.data import SiteData, deal, federation_of
from fedkin.experiment.settings import Settings
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client import ClientService
from fedkin_hosts.control import Control
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.machine import answers, environment, free_port, program
from fedkin_hosts.masks import Signing
from fedkin_hosts.submitted import Submitted

_DAY = 86400.0  # deadline in seconds: no client is late in a simulation
_READY_SECONDS = 60.0
_LOOPBACK = "127.0.0.1"
_dealt = lru_cache(maxsize=1)(deal)  # once for all clients of this process


def answer(message: WireMessage, node: Mapping[str, Any], word: object) -> WireMessage:
    """Return the answer of the client that a node of Flower's simulator stands for.

    Args:
        node: Flower's configuration of the node: its number and the number of nodes.
        word: the submitted run, see `Submitted.word`.

    Raises:
        ConfigError: the run was not submitted as a simulation. A real node without a site answers nothing.
    """
    run = Submitted.read(word)
    if run.data is None:
        raise ConfigError("this node has no site, and the run is for real nodes; start nodes with fedkin node")
    return _site(Path(run.folder), run.data, int(node["partition-id"]), int(node["num-partitions"])).answer(message)


def name_of(number: int, clients: int) -> str:
    """Return the name of client ``number``; clients sorted by name are in the order of their shares."""
    return f"c{number:0{len(str(clients - 1))}d}"


@lru_cache(maxsize=64)  # clients whose network and data a process keeps in memory
def _site(run: Path, data: str, number: int, clients: int) -> ClientService:
    torch.set_num_threads(1)  # the same order of summation as in fedkin's simulator
    share = SiteData(data, share=number, dealer=_dealt)
    # the simulator's processes belong to the user who submitted the run
    mine, keys = Allowed(everything=True), Signing(simulated=True)
    return ClientService(name_of(number, clients), share, run / "clients", allowed=mine, signing=keys)


def scaled(settings: Settings) -> tuple[Settings, int]:
    """Return a run of ``fedkin run`` for Flower's simulator, which waits for all clients, and their number.

    Raises:
        ConfigError: Ray is not installed.
        DataError, ConfigError: the data cannot be read or split.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    is_port = host and port.isdigit() and "/" not in host
    for wrong, why in (
        (
            importlib.util.find_spec("ray") is None,
            "Flower's simulator works with Ray, and ray is not installed; pip install 'fedkin[ray]'",
        ),
        (  # Ray would try for minutes
            is_port and not answers(host, int(port)),
            f"no Ray cluster at RAY_ADDRESS={address}; start its head, or unset RAY_ADDRESS",
        ),
    ):
        if wrong:
            raise ConfigError(why)
    clients = len(federation_of(settings.data, settings.run.seed))
    return settings.but(min_clients=clients, min_connected=clients, wait_timeout=_DAY, reply_timeout=_DAY), clients


@contextmanager
def simulating_link() -> Iterator[Control]:
    """Run a SuperLink that simulates its nodes while the context is open; runs still in progress end with it.

    It listens on this machine only and asks for no password: other users of this machine could submit code to it.

    Raises:
        EngineError: the SuperLink did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="fedkin-") as place:
        folder, port, end = Path(place), free_port(), time.monotonic() + _READY_SECONDS
        command = [program("flower-superlink"), "--host", _LOOPBACK, "--port", str(port), "--insecure", "--simulation"]
        log = folder / "superlink.log"
        with log.open("wb") as output:
            superlink = subprocess.Popen(
                command, env=environment(folder), stdout=output, stderr=output, start_new_session=True
            )
        try:
            while not answers(_LOOPBACK, port):
                if superlink.poll() is not None or time.monotonic() > end:
                    raise EngineError(f"Flower's simulator did not start:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
            yield Control(folder, f"{_LOOPBACK}:{port}", None)
        finally:
            os.killpg(superlink.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                superlink.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(superlink.pid, signal.SIGKILL)
            superlink.wait()
