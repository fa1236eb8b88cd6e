"""Partitions of a data set over clients.

iid, dirichlet, dirichlet-total, classes,
extended-dirichlet, quantity                 by label or quantity     label.py
cluster-dirichlet, cluster-classes           with true groups         clustered.py
natural                                      as the data came         natural.py
dapfl                                        one paper's protocol     dapfl.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from fedkin.data.partition.base import Assignment, Partition
from fedkin.data.partition.clustered import ClusterClasses, ClusterDirichlet
from fedkin.data.partition.dapfl import DAPFLPartition
from fedkin.data.partition.label import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletTotal,
    ExtendedDirichlet,
    QuantitySkew,
)  # fmt: skip
from fedkin.data.partition.natural import Natural

__all__ = [
    "IID",
    "PARTITIONS",
    "PROTOCOLS",
    "Assignment",
    "ClassesPerClient",
    "ClusterClasses",
    "ClusterDirichlet",
    "DAPFLPartition",
    "Dirichlet",
    "DirichletTotal",
    "ExtendedDirichlet",
    "Natural",
    "Partition",
    "QuantitySkew",
    "settings_of",
]

_KINDS = (
    IID, Dirichlet, DirichletTotal, ClassesPerClient, ExtendedDirichlet, QuantitySkew, ClusterDirichlet, ClusterClasses,
    Natural, DAPFLPartition,
)  # fmt: skip
PARTITIONS: dict[str, type[Partition]] = {kind.name: kind for kind in _KINDS}
"""Partition classes by the name used on the command line."""

PROTOCOLS: Mapping[str, Mapping[str, str | float]] = {
    "dapfl-paper": {"partition": "dapfl", "protocol": "cifar", "split": "official", "validation": 0.0},
    "dapfl-paper-femnist": {"partition": "dapfl", "protocol": "femnist", "split": "pooled", "validation": 0.0},
}
"""Names on the command line for a partition and all other settings of the data that a paper's protocol fixes."""


def settings_of(partition: str) -> frozenset[str]:
    """Return the names of a partition's settings."""
    return frozenset(f.name for f in fields(PARTITIONS[partition]))
