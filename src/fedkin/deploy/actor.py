"""A client of a simulation by Flower's own simulator: the site answers in the process that Ray gives it.

Such a client has no SuperNode, no worker beside it and no disk of its own: its memory is a folder in the run's, and its
data are one share of the run's data. One process does the work of many clients, one letter at a time.
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
from fedkin.deploy.maskkeys import Signing
from fedkin.deploy.own import Allowed
from fedkin.deploy.site import Site
from fedkin.deploy.submitted import Virtual, virtual
from fedkin.deploy.wire import Letter

_SITES: OrderedDict[tuple[Path, int], Site] = OrderedDict()
_MOST_SITES = 64  # clients whose network and data a process keeps at hand: bounds its memory
_dealt = lru_cache(maxsize=1)(deal)  # once for all clients of this process


def answer(letter: Letter, node: Mapping[str, Any], word: object) -> Letter:
    """The answer of the client that a virtual node stands for.

    Args:
        letter: from the server.
        node: Flower's configuration of the node: its number and how many there are.
        word: the submitted run, as `packed`.

    Raises:
        ConfigError: the run was not submitted as a simulation. A real node without a site beside it answers nothing.
    """
    run = virtual(word)
    if run is None:
        raise ConfigError("no site is beside this node, and the run has real ones; start nodes with fedkin node")
    return _site(run, int(node["partition-id"]), int(node["num-partitions"])).answer(letter)


def name_of(number: int, clients: int) -> str:
    """What client ``number`` is called: such that clients are numbered by their shares in the order of their names."""
    return f"c{number:0{len(str(clients - 1))}d}"


def _site(run: Virtual, number: int, clients: int) -> Site:
    torch.set_num_threads(1)  # the same sums as in our simulator
    key = run.folder, number
    if key not in _SITES:
        data = SiteData(run.data, share=number, dealer=_dealt)
        # the simulator's processes belong to the user who submitted the run
        mine, keys = Allowed(everything=True), Signing(simulated=True)
        folder = run.folder / "clients"
        _SITES[key] = Site(name_of(number, clients), data, folder, allowed=mine, signing=keys)
        while len(_SITES) > _MOST_SITES:
            _SITES.popitem(last=False)
    _SITES.move_to_end(key)
    return _SITES[key]
