"""True groups planted into any federation, to see whether a method finds them, and notices when they change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, PartitionError, counted
from fedkin.core.samples import ClientData, Samples
from fedkin.data.draws import generator
from fedkin.data.federation import Federation


@dataclass(frozen=True)
class Drift:
    """Change of planted groups during a run: from a round on some clients see the data as the next group does.

    Raises:
        ConfigError: a round before the second, or a fraction out of range.
    """

    start: int
    """First round with the new groups."""
    fraction: float = 0.5
    """Fraction of the clients that change their group, drawn at random; at least one does."""

    def __post_init__(self) -> None:
        if self.start < 2:
            raise ConfigError(f"drift_round must be at least 2, the first round with other data, got {self.start}")
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"drift_fraction must be above 0 and at most 1, got {self.fraction}")


def plant(
    federation: Federation, kind: str, groups: int = 4, *, drift: Drift | None = None, seed: int = 0
) -> Federation:
    """Return the same clients, client k in group ``k mod groups``, each group with its own view of the data.

    ``labels``: group g calls class c by the number ``(c + g) mod classes``; no model can serve two groups.
    ``rotations``: group g sees the images turned by ``g`` quarters (Ghosh et al., IFCA, Section 6; at most 4 groups).

    With a drift, some clients of group g are in group ``(g + 1) mod groups`` from its round on, with the same samples.

    Args:
        federation: the clients.
        kind: how groups differ.
        groups: how many there are.
        drift: when groups change, and how many clients change theirs; None: they stay.
        seed: fixes which clients drift.

    Raises:
        PartitionError: the federation has true groups already, its data drift already, or its inputs are not square
            images.
        ConfigError: an unknown kind, or a number of groups that does not fit.
    """
    if kind not in ("labels", "rotations"):
        raise ConfigError(f"plant must be 'labels' or 'rotations', got {kind!r}")
    least, most = 1 if drift is None else 2, min(len(federation), 4 if kind == "rotations" else federation.classes)
    if not least <= groups <= most:
        what = f"{kind} in {federation.name}, {len(federation)} clients with {federation.classes} classes"
        raise ConfigError(f"groups must lie in {least}..{most} to plant {what}; got {groups}")
    if federation.groups is not None:
        raise PartitionError(f"{federation.name} has true groups already; plant into a partition without")
    if any(shard.drift is not None for shard in federation.clients):
        raise PartitionError(f"the data of {federation.name} drift already; plant into data that do not")
    square = len(federation.shape) >= 2 and federation.shape[-1] == federation.shape[-2]
    if kind == "rotations" and not square:
        raise PartitionError(f"only square images can be turned; inputs of {federation.name} are {federation.shape}")
    count, name = len(federation), f"{federation.name}, {groups} groups by {kind}"
    which = torch.arange(count) % groups
    clients = [_seen(d, kind, g, federation.classes) for d, g in zip(federation.clients, which.tolist(), strict=True)]
    if drift is not None:
        moved = max(1, math.floor(drift.fraction * count + 0.5))
        for k in generator(seed, "drift").choice(count, size=moved, replace=False).tolist():
            then = _seen(federation.clients[k], kind, (k + 1) % groups, federation.classes)
            clients[k] = replace(clients[k], drift=(drift.start, then))
        name += f", {counted(moved, 'client')} in another from round {drift.start} on"
    return replace(federation, clients=tuple(clients), groups=which, name=name)


def _seen(shard: ClientData, kind: str, group: int, classes: int) -> ClientData:
    """Return a client's data as a group sees them."""
    train, held, tested = (_view(d, kind, group, classes) for d in (shard.train, shard.validation, shard.test))
    return replace(shard, train=train, validation=held, test=tested, group=group)


def _view(data: Samples, kind: str, group: int, classes: int) -> Samples:
    if kind == "labels":
        return Samples(data.x, (data.y + group) % classes)
    turned: Tensor = torch.rot90(data.x, group, (-2, -1)).contiguous()
    return Samples(turned, data.y)
