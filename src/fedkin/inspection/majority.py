"""The most frequent class of each client, the headline metric, and advice on both and on the partition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedkin.core.errors import counted
from fedkin.data.checks import Indices
from fedkin.data.dataset import Dataset
from fedkin.data.partition import Dirichlet, Natural, Partition
from fedkin.data.sources import WORDS
from fedkin.evaluate.choice import ONE_SIDED, Choice, Constant, choose, majority_class
from fedkin.inspection.finding import ClientSummary, Finding, Inspection, first, percent


def summary_of(name: str, parts: Sequence[Indices], classes: Sequence[str]) -> ClientSummary:
    """Return the summary of one client.

    Args:
        name: the client's name.
        parts: samples by class ``[C]`` of its training, validation and test part.
        classes: names of the classes.
    """
    train, validation, test = (int(part.sum()) for part in parts)
    counts = tuple(np.sum(parts, axis=0).tolist())
    most = majority_class(parts[0].tolist())
    if most is None:
        return ClientSummary(name, train, validation, test, counts)
    share = float(parts[2][most] / test) if test else None
    return ClientSummary(name, train, validation, test, counts, classes[most], float(parts[0][most] / train), share)


def choice_of(clients: Sequence[ClientSummary]) -> Choice:
    """Return which figure a report on these clients shows first, and the clients that decide it."""
    return choose(
        Constant(c.name, c.majority, round(c.majority_test * c.test), c.test)
        for c in clients
        if c.majority_test is not None
    )


def one_sided_of(clients: Sequence[ClientSummary]) -> list[Finding]:
    """Return findings on clients where nearly all test samples are of one class."""
    chosen = choice_of(clients)
    if not chosen.one_sided:
        return []
    named = first([f"{c.client} ({c.answer}: {percent(c.accuracy)})" for c in chosen.one_sided])
    return [
        Finding(
            "one-sided-client",
            "note" if chosen.fair else "warning",
            f"{counted(len(chosen.one_sided), 'client')} with {percent(ONE_SIDED)} of the test samples or more, but "
            f"not all, of one class: {named}",
            "a model that always predicts this class has a high accuracy there, though it learned nothing",
            "read balanced accuracy of these clients" if chosen.fair else "read balanced accuracy before accuracy",
            clients=tuple(c.client for c in chosen.one_sided[:100]),
        )
    ]


def advice_of(clients: Sequence[ClientSummary], classes: Sequence[str], samples: Sequence[int]) -> str:
    """Return a sentence that names the figure to read, and why.

    Args:
        clients: the clients.
        classes: names of the classes.
        samples: samples of each class, all clients together.
    """
    chosen, total = choice_of(clients), np.array(samples)
    if not chosen.fair:
        return f"{chosen.sentence} Balanced accuracy comes first in tables and reports."
    most = int(total.max()) / max(1, int(total.sum()))
    guess = f"always predicting {classes[int(total.argmax())]} is right in {percent(most)}"
    if most > 1.5 / max(1, int((total > 0).sum())):
        return (
            f"Classes are uneven ({guess}): read balanced accuracy and the worst tenth of clients next to accuracy, "
            "mean over clients."
        )
    exceptions = f", but for {counted(len(chosen.one_sided), 'client')}" if chosen.one_sided else ""
    return f"Classes are about even ({guess}): accuracy, mean over clients, is a fair headline{exceptions}."


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
        WORDS["table"]: "; --client-column COLUMN, or one file for each client, names them",
        WORDS["hub"]: "; --client-column COLUMN names them",
        WORDS["npz"]: "; --client-column ARRAY, an array with the client of each sample, names them",
        WORDS["images"]: "; one folder for each client names them",
    }
    flags, effect = f"--partition {partition.name}", "makes up clients"
    if isinstance(partition, Dirichlet):
        flags += f"@alpha={partition.alpha:g}"
        effect += " whose classes differ, a smaller alpha makes them differ more"
    return f"The data name no clients{ways.get(seen.kind, '')}. To try things out, {flags} {effect}."
