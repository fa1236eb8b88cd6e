"""Inspection of data before anything is trained: what was understood, and what looks wrong.

found = fedkin.inspect("hospitals/", target="outcome")
print([f.what for f in found.of("warning")])

``finding``     Finding and Inspection: the results
``columns``     columns as values, and what gives clients or classes away
``shares``      clients and classes, and advice; ``duplicates`` samples that occur more than once
``look``        all of it, in order; and what can be found in passing, before a run
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedkin.core.settings import DataSettings
from fedkin.data.dataset import Dataset
from fedkin.data.federation import Federation
from fedkin.data.partition import Partition
from fedkin.inspection.finding import ClientSummary, ColumnSummary, Finding, Inspection
from fedkin.inspection.look import glance, look
from fedkin.inspection.shares import require_two_classes

__all__ = [
    "ClientSummary", "ColumnSummary", "Finding", "Inspection", "glance", "inspect", "look", "require_two_classes",
]  # fmt: skip


def inspect(
    data: str | Path | Dataset | Federation,
    partition: Partition | None = None,
    *,
    clients: int | None = None,
    seed: int = 0,
    test: float = 0.2,
    validation: float = 0.1,
    split: Literal["pooled", "official"] = "pooled",
    samples_per_client: int | None = None,
    target: str | None = None,
    client: str | None = None,
    binary: bool = False,
    encoding: str | None = None,
) -> Inspection:
    """Return what is understood of data, and what looks wrong with them. Nothing is trained or written.

    Data that cannot be read are not an exception but a finding of severity ``error``.

    Args:
        data: a name or path as for `load`, or a data set or federation in memory.
        partition: how samples are shared out. Default: the clients that the data bring, else Dirichlet(0.5).
        clients, seed, test, validation, split, samples_per_client: as for `federate`; a federation takes no notice.
        target, client, binary, encoding: as for `load`.
    """
    how = DataSettings(
        clients=clients, data_seed=seed, test=test, validation=validation, split=split,
        samples_per_client=samples_per_client, target=target, client_column=client, binary=binary, encoding=encoding,
    )  # fmt: skip
    return look(data, how, partition=partition)
