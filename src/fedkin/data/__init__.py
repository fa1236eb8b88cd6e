"""Data: readers (`load`), ways of sharing out (`PARTITIONS`, `federate`) and the result (`Federation`).

federation = federate(load("digits"), Dirichlet(alpha=0.5), clients=20, seed=0)
"""

from __future__ import annotations

from fedkin.data.card import Card, Column
from fedkin.data.dataset import Dataset, Pool
from fedkin.data.federate import federate, site_shard
from fedkin.data.federation import Federation, Shard
from fedkin.data.merging import merge
from fedkin.data.partition import (
    DAPFL,
    IID,
    PARTITIONS,
    Assignment,
    Classes,
    ClusterClasses,
    ClusterDirichlet,
    Dirichlet,
    DirichletTotal,
    Natural,
    Partition,
)
from fedkin.data.planting import plant
from fedkin.data.preparation import Input, Preparation, Rows
from fedkin.data.shelf import is_shelf, write
from fedkin.data.sites import Sharing, SiteData, deal
from fedkin.data.sources import SOURCES, load
from fedkin.data.synthetic import planted_dataset, planted_groups

__all__ = [
    "DAPFL",
    "IID",
    "PARTITIONS",
    "SOURCES",
    "Assignment",
    "Card",
    "Classes",
    "ClusterClasses",
    "ClusterDirichlet",
    "Column",
    "Dataset",
    "Dirichlet",
    "DirichletTotal",
    "Federation",
    "Input",
    "Natural",
    "Partition",
    "Pool",
    "Preparation",
    "Rows",
    "Shard",
    "Sharing",
    "SiteData",
    "deal",
    "federate",
    "is_shelf",
    "load",
    "merge",
    "plant",
    "planted_dataset",
    "planted_groups",
    "site_shard",
    "write",
]
