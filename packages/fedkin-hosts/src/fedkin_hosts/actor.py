"""A client in Flower's own simulator: the site answers messages in the process that Ray provides.

Such a client has no SuperNode, no worker process and no disk: its memory is a folder in the run folder, and its data
are one share of the run's data. One process does the work of many clients, one message at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedkin.core import ConfigError
from fedkin.data import SiteData, deal
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client import ClientService
from fedkin_hosts.maskkeys import Signing
from fedkin_hosts.submitted import Virtual, virtual
from fedkin_hosts.wire_format import WireMessage

_SITES: OrderedDict[tuple[Path, int], ClientService] = OrderedDict()
_MOST_SITES = 64  # clients whose network and data a process keeps in memory at most
_dealt = lru_cache(maxsize=1)(deal)  # once for all clients of this process


def answer(message: WireMessage, node: Mapping[str, Any], word: object) -> WireMessage:
    """Return the answer of the client that a virtual node stands for.

    Args:
        message: the server's message.
        node: Flower's configuration of the node: its number and the number of nodes.
        word: the submitted run, as returned by `packed`.

    Raises:
        ConfigError: the run was not submitted as a simulation. A real node without a site answers nothing.
    """
    run = virtual(word)
    if run is None:
        raise ConfigError("this node has no site, and the run is for real nodes; start nodes with fedkin node")
    return _site(run, int(node["partition-id"]), int(node["num-partitions"])).answer(message)


def name_of(number: int, clients: int) -> str:
    """Return the name of client ``number``; clients sorted by name are in the order of their shares."""
    return f"c{number:0{len(str(clients - 1))}d}"


def _site(run: Virtual, number: int, clients: int) -> ClientService:
    torch.set_num_threads(1)  # the same order of summation as in fedkin's simulator
    key = run.folder, number
    if key not in _SITES:
        data = SiteData(run.data, share=number, dealer=_dealt)
        # the simulator's processes belong to the user who submitted the run
        mine, keys = Allowed(everything=True), Signing(simulated=True)
        folder = run.folder / "clients"
        _SITES[key] = ClientService(name_of(number, clients), data, folder, allowed=mine, signing=keys)
        while len(_SITES) > _MOST_SITES:
            _SITES.popitem(last=False)
    _SITES.move_to_end(key)
    return _SITES[key]
