"""Data: readers (`load`), partitions over clients (`PARTITIONS`, `federate`) and the result (`Federation`).

federation = federate(load("digits"), Dirichlet(alpha=0.5), clients=20, seed=0)
"""

from __future__ import annotations

from fedkin.core.samples import ClientData
from fedkin.data.card import Card, Column, merge
from fedkin.data.columns import Input
from fedkin.data.dataset import Dataset, Pool
from fedkin.data.federate import federate, site_client
from fedkin.data.federation import Federation
from fedkin.data.partition import (
    IID,
    PARTITIONS,
    Assignment,
    ClassesPerClient,
    ClusterClasses,
    ClusterDirichlet,
    DAPFLPartition,
    Dirichlet,
    DirichletTotal,
    ExtendedDirichlet,
    Natural,
    Partition,
    QuantitySkew,
)
from fedkin.data.preparation import Preparation, Rows
from fedkin.data.shelf import is_shelf, write
from fedkin.data.sites import OnData, SiteData, deal, federation_of, fetched, resolved, seeded, share_out
from fedkin.data.sources import KNOWN, SOURCES, absolute, brings_clients, load
from fedkin.data.synthetic import Drift, add_feature_noise, plant, planted_dataset, planted_groups

__all__ = [
    "IID", "KNOWN", "PARTITIONS", "SOURCES", "Assignment", "Card", "ClassesPerClient", "ClientData",
    "ClusterClasses", "ClusterDirichlet", "Column", "DAPFLPartition", "Dataset", "Dirichlet", "DirichletTotal",
    "Drift", "ExtendedDirichlet", "Federation", "Input", "Natural", "OnData", "Partition", "Pool", "Preparation",
    "QuantitySkew", "Rows", "SiteData", "absolute", "add_feature_noise", "brings_clients", "deal", "federate",
    "federation_of", "fetched", "is_shelf", "load", "merge", "plant", "planted_dataset", "planted_groups",
    "resolved", "seeded", "share_out", "site_client", "write",
]  # fmt: skip
