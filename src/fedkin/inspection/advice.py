"""Advice on the partition: clients that the data bring, or ways to name them."""

from __future__ import annotations

from fedkin.data.dataset import Dataset
from fedkin.data.partition import Dirichlet, Natural, Partition
from fedkin.data.sources import WORDS
from fedkin.inspection.finding import Inspection


def partition_advice(seen: Inspection, dataset: Dataset, partition: Partition) -> str:
    """Return a suggestion of the partition to use.

    Args:
        seen: the inspection so far, with the kind of the source and the clients.
        dataset: the data.
        partition: the partition that was given, or the default.
    """
    if isinstance(partition, Natural):
        return f"The clients are those of the data ({len(seen.clients):,}): --partition natural is right."
    if dataset.client is not None:
        return "The data bring clients of their own: --partition natural keeps them."
    ways = {
        WORDS["table"]: "--client-column COLUMN, or one file for each client, names them",
        WORDS["hub"]: "--client-column COLUMN names them",
        WORDS["npz"]: "--client-column ARRAY, an array with the client of each sample, names them",
        WORDS["images"]: "one folder for each client names them",
    }
    naming = f"; {ways[seen.kind]}" if seen.kind in ways else ""
    return f"The data name no clients{naming}. To try things out, {_made_up(partition)}."


def _made_up(partition: Partition) -> str:
    """Return the flags of a partition, as they were given, and what they do."""
    flags = f"--partition {partition.name}"
    if not isinstance(partition, Dirichlet):
        return f"{flags} makes up clients"
    return (
        f"{flags} --alpha {partition.alpha:g} makes up clients whose classes differ, a smaller alpha makes them differ "
        "more"
    )
