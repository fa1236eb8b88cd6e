"""Clients and classes of a federation: findings on them, the headline metric, and advice on both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedkin.core.errors import DataError, counted
from fedkin.data.checks import Indices
from fedkin.data.dataset import Dataset
from fedkin.data.federation import Federation
from fedkin.data.partition import PARTITIONS, Dirichlet, Natural, Partition
from fedkin.data.sources import WORDS
from fedkin.evaluate.choice import ONE_SIDED, Choice, Constant, choose, majority_class
from fedkin.inspection.finding import EXAMPLES, ClientSummary, Finding, Inspection, Severity, first, percent

FEW_TRAIN = 10  # training samples below which a client is small
FEW_CLIENTS = 0.1  # up to this share of the clients it is a note: means over all clients hardly change
EXPECTED = 5.0  # samples of a class that a part should have; drawn at random, it has none in less than 1 % of cases


def clients_of(
    summaries: tuple[ClientSummary, ...], classes: int, partition: Partition | None = None, split: str = "pooled"
) -> Iterator[Finding]:
    """Yield findings on clients that are too small, lack test samples or classes; ``split`` as of `Dataset.pool`."""
    larger = _larger(partition)
    if small := [c for c in summaries if c.train < FEW_TRAIN]:
        shown = [f"{c.name} ({c.train})" for c in sorted(small, key=lambda c: c.train)]
        yield Finding(
            "small-client",
            _severity(len(small), len(summaries)),
            f"{counted(len(small), 'client')} with fewer than {FEW_TRAIN} training samples: {first(shown)}",
            "so few samples are memorised in one round, and a figure from a handful of test samples means nothing",
            larger,
            clients=tuple(c.name for c in small[:100]),
        )
    if untested := [c.name for c in summaries if not c.test]:
        yield Finding(
            "no-test-sample",
            "warning",
            f"{counted(len(untested), 'client')} without a test sample: {first(untested)}",
            "no accuracy can be reported for them; they are missing from every mean over clients",
            f"raise --test, or {larger}" if split == "pooled" else "deal out both parts together: --split pooled",
            clients=tuple(untested[:100]),
        )
    single = [c.name for c in summaries if np.count_nonzero(c.counts) == 1]
    able = [name for name in ("alpha", "classes_per_client") if hasattr(partition, name)]
    more = [f"; a larger {name} of the partition gives clients more classes" for name in able]
    if single and classes > 1:
        yield Finding(
            "one-class-client",
            _severity(len(single), len(summaries)),
            f"{counted(len(single), 'client')} with samples of one class only: {first(single)}",
            "a model that always predicts this class is perfect there; such clients lift the mean of every "
            "method that adapts to a client",
            "read the worst tenth of clients next to the mean" + "".join(more),
            clients=tuple(single[:100]),
        )


def parts_of(counts: Indices, names: tuple[str, ...], clients: tuple[str, ...]) -> Iterator[Finding]:
    """Yield findings on clients whose validation or test part lacks a class that their training part is rich in.

    Parts drawn at random are stratified and lack none; whole recordings, days or given splits can. ``counts`` are
    samples per client, part (training, validation, test) and class, ``[K, 3, classes]``.
    """
    size = counts.sum(axis=2, keepdims=True)  # of each part
    for part, name in ((1, "validation"), (2, "test")):
        lacks = (counts[:, part] == 0) & (counts[:, 0] * size[:, part] >= EXPECTED * size[:, 0])
        some = np.flatnonzero(lacks.any(axis=1))
        if not len(some):
            continue
        shown = [f"{clients[k]} (class {names[int(lacks[k].argmax())]})" for k in some]
        judged = "accuracies" if part == 2 else "what is decided by it, such as the shares of safe forms,"
        yield Finding(
            "parts-differ",
            _severity(len(some), len(clients)),
            f"{counted(len(some), 'client')} without a {name} sample of a class of which {EXPECTED:g} or more are "
            f"expected by its share of the training part: {first(shown)}",
            f"{judged} may not hold for the client's later samples",
            "draw every part as later samples will come; samples with the same unit or segment stay in one part, "
            "so shorter units help",
            clients=tuple(clients[k] for k in some[:100]),
        )


def _larger(partition: Partition | None) -> str:
    """Return how to avoid small clients, with the partition that there is or with those that can."""
    if isinstance(partition, Natural):
        return "leave small clients out: --partition natural@min_samples=N with a larger N"
    if partition is not None and hasattr(partition, "min_samples"):
        return f"use a larger min_samples (--partition {partition.name}@min_samples=N), or ask for fewer clients"
    able = [name for name, kind in PARTITIONS.items() if hasattr(kind, "min_samples")]
    return f"use a partition with min_samples ({', '.join(able)}), or ask for fewer clients"


def _severity(some: int, all_of_them: int) -> Severity:
    return "note" if some <= FEW_CLIENTS * all_of_them else "warning"


def classes_of(samples: Indices, names: tuple[str, ...], clients: tuple[str, ...]) -> Iterator[Finding]:
    """Yield findings on classes: without samples, without training samples, of one client alone, or one class only.

    ``samples`` are those per client, part (training, validation, test) and class, ``[K, 3, classes]``.
    """
    counts, (trained, _, tested) = samples.sum(axis=1), samples.sum(axis=0)
    total = counts.sum(axis=0)
    if absent := [names[c] for c in np.flatnonzero(total == 0)]:
        yield Finding(
            "empty-class",
            "warning",
            f"{counted(len(absent), 'class')} without any sample: {first(absent)}",
            "the network gets an output that nothing is ever taught to; labels may be numbered with a gap",
            "number the classes 0, 1, 2, ... without gaps, or bring samples of them",
        )
    unseen = np.flatnonzero((trained == 0) & (tested > 0))
    if len(unseen):
        shown = [f"{names[c]} ({tested[c]:,} test samples)" for c in unseen]
        yield Finding(
            "class-not-trained",
            "warning",
            f"no client has training samples of {first(shown)}",
            "every one of these test samples will be wrong, whatever the method",
            "bring training samples of it, or split the pooled samples anew: --split pooled",
            clients=tuple(clients[k] for k in np.flatnonzero(counts[:, unseen].sum(axis=1))[:100]),
        )
    owners = (counts > 0).sum(axis=0)
    alone = np.flatnonzero((owners == 1) & (total > 0))
    if len(alone) and len(clients) > 2:
        shown = [f"{names[c]} ({clients[int(counts[:, c].argmax())]})" for c in alone]
        yield Finding(
            "one-client-class",
            "note",
            f"classes that one client alone has: {first(shown)}",
            "they cannot be learned from others; the shared model forgets them while that client is not sampled",
            "read the accuracy of that client next to the mean",
            clients=tuple(dict.fromkeys(clients[int(counts[:, c].argmax())] for c in alone[: 4 * EXAMPLES])),
        )
    if len(there := np.flatnonzero(total)) == 1:
        yield one_class(int(total.sum()), names[there[0]])


def one_class(samples: int, name: str) -> Finding:
    """Return the finding that all samples of a federation are of the class ``name``."""
    return Finding(
        "one-class",
        "error",
        f"all {samples:,} samples are of the class {name}",
        "there is nothing to tell apart",
        "check that the right column or folder was given",
    )


def require_two_classes(federation: Federation) -> None:
    """Raise `DataError` if all samples of all clients are of one class: there is nothing to learn.

    Labels are read until two different ones are found, as a rule those of the first client.
    """
    result: set[int] = set()
    for shard in federation.clients:
        for part in (shard.train, shard.validation, shard.test):
            result |= set(part.y.unique().tolist())
            if len(result) > 1:
                return
    (label,) = result
    name = str(label) if federation.labels is None else federation.labels[label]
    finding = one_class(int(federation.sizes().sum()), name)
    raise DataError(f"{federation.name}: {finding.what}: {finding.why}; {finding.todo}")


def units_of(dataset: Dataset, partition: Partition, split: str) -> Iterator[Finding]:
    """Yield findings on samples of one unit that may be trained on and tested on; ``split`` as of `Dataset.pool`."""
    if dataset.unit is None:
        return
    if not isinstance(partition, Natural):
        yield Finding(
            "units-dealt",
            "warning",
            f"the partition {partition.name} deals single samples, also those of one unit or segment: "
            f"{counted(len(dataset.unit.unique()), 'unit')} of {counted(len(dataset), 'sample')}",
            "a unit is kept together within a client only; one client trains on samples of it, another is tested "
            "on others, which look alike: accuracies are too high",
            "--partition natural, if the data bring clients, or --client-column with the array of the units, or "
            "one that does not vary within a unit",
        )
    if dataset.official_test is not None and dataset.test_unit is None and split == "pooled":
        yield Finding(
            "units-unknown",
            "warning",
            f"the units of the official test part ({counted(len(dataset.official_test), 'sample')}) are not given",
            "both parts are dealt out together, so samples of a unit may be trained on and tested on",
            "give them as well (unit_test), or keep that part apart: --split official",
        )


# ---- headline and advice ---------------------------------------------------------------------------------------------
def summary_of(name: str, parts: Sequence[Indices], classes: Sequence[str]) -> ClientSummary:
    """Return the summary of one client; ``parts`` are samples by class ``[C]`` in training, validation and test."""
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
    """Return a sentence that names the figure to read, and why; ``samples`` are those of each class in all."""
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
    """Return a suggestion of the partition to use, beside the one that was given or is the default."""
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
