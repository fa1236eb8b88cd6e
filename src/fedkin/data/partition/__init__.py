"""Partitions of a data set over clients.

iid, dirichlet, dirichlet-total, classes,
extended-dirichlet, quantity                 by label or quantity     label.py
cluster-dirichlet, cluster-classes           with true groups         label.py
natural                                      as the data came         natural.py
dapfl                                        one paper's protocol     dapfl.py
"""

from __future__ import annotations

from fedkin.data.partition.base import Assignment, Partition
from fedkin.data.partition.dapfl import DAPFLPartition
from fedkin.data.partition.label import (
    IID,
    ClassesPerClient,
    ClusterClasses,
    ClusterDirichlet,
    Dirichlet,
    DirichletTotal,
    ExtendedDirichlet,
    QuantitySkew,
)  # fmt: skip
from fedkin.data.partition.natural import Natural

__all__ = [
    "IID", "PARTITIONS", "Assignment", "ClassesPerClient", "ClusterClasses", "ClusterDirichlet", "DAPFLPartition",
    "Dirichlet", "DirichletTotal", "ExtendedDirichlet", "Natural", "Partition", "QuantitySkew",
]  # fmt: skip

_KINDS = (
    IID, Dirichlet, DirichletTotal, ClassesPerClient, ExtendedDirichlet, QuantitySkew, ClusterDirichlet, ClusterClasses,
    Natural, DAPFLPartition,
)  # fmt: skip
PARTITIONS: dict[str, type[Partition]] = {kind.name: kind for kind in _KINDS}
"""Partition classes by the name used on the command line."""
