"""True groups planted into any federation, to see whether a method finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, PartitionError
from fedkin.core.samples import Samples
from fedkin.data.federation import Federation

Kind = Literal["labels", "rotations"]


def plant(federation: Federation, kind: Kind, groups: int = 4) -> Federation:
    """Return the same clients, client k in group ``k mod groups``, each group with its own view of the data.

    ``labels``: group g calls class c by the number ``(c + g) mod classes``; no model can serve two groups.
    ``rotations``: group g sees the images turned by ``g`` quarters (Ghosh et al., IFCA, Section 6; at most 4 groups).

    Raises:
        PartitionError: the federation has true groups already, or its inputs are not square images.
        ConfigError: an unknown kind, or a number of groups that does not fit.
    """
    if kind not in ("labels", "rotations"):
        raise ConfigError(f"plant must be 'labels' or 'rotations', got {kind!r}")
    most = min(len(federation), 4 if kind == "rotations" else federation.classes)
    if not 1 <= groups <= most:
        what = f"{kind} in {federation.name}, {len(federation)} clients with {federation.classes} classes"
        raise ConfigError(f"groups must lie in 1..{most} to plant {what}; got {groups}")
    if federation.groups is not None:
        raise PartitionError(f"{federation.name} has true groups already; plant into a partition without")
    square = len(federation.shape) >= 2 and federation.shape[-1] == federation.shape[-2]
    if kind == "rotations" and not square:
        raise PartitionError(f"only square images can be turned; inputs of {federation.name} are {federation.shape}")
    which = torch.arange(len(federation)) % groups
    clients = []
    for shard, g in zip(federation.clients, which.tolist(), strict=True):
        train, held, tested = (
            _seen(d, kind, g, federation.classes) for d in (shard.train, shard.validation, shard.test)
        )
        clients.append(replace(shard, train=train, validation=held, test=tested))
    name = f"{federation.name}, {groups} groups by {kind}"
    return replace(federation, clients=tuple(clients), groups=which, name=name)


def _seen(data: Samples, kind: Kind, group: int, classes: int) -> Samples:
    if kind == "labels":
        return Samples(data.x, (data.y + group) % classes)
    turned: Tensor = torch.rot90(data.x, group, (-2, -1)).contiguous()
    return Samples(turned, data.y)
