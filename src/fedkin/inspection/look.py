"""The inspection itself: look at the files, read them, share them out, and report the findings of each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from fedkin.core.errors import FedkinError, counted
from fedkin.data.card import MAX_CLASSES
from fedkin.data.checks import Indices
from fedkin.data.dataset import Dataset
from fedkin.data.federation import Federation
from fedkin.data.partition import Natural, Partition
from fedkin.data.progress import heard
from fedkin.data.shard import PARTS
from fedkin.data.shelf import Shelf
from fedkin.data.sites import Sharing, fetched, share_out
from fedkin.inspection import columns, gaps
from fedkin.inspection.advice import partition_advice
from fedkin.inspection.duplicates import alike, duplicates, read_rows, with_lines
from fedkin.inspection.fields import Field, Fields
from fedkin.inspection.finding import ClientSummary, Finding, Inspection, ordered
from fedkin.inspection.majority import advice_of, one_sided_of, summary_of
from fedkin.inspection.pictures import narrow
from fedkin.inspection.raw import WORDS, Raw, look_at, refused
from fedkin.inspection.shares import classes_of, clients_of, nameless_of, naturals_of, parts_of, units_of

Step = Callable[[str], None]
QUICK = 300_000
"""Numbers in all inputs together up to which columns and copies are checked in passing: a tenth of a second."""
_MOST_VALUES = 20_000_000  # of rows of numbers whose columns are looked at one by one


def look(
    data: str | Path | Dataset | Federation, how: Sharing, *, own_clients: bool = False, on_step: Step | None = None
) -> Inspection:
    """Return what is understood of the data, and what looks wrong; bad data are findings, not exceptions.

    Args:
        data: a name or path as for `load`, or what was read already.
        how: how they are read and shared out.
        own_clients: share out by the clients that the data bring, if they do, regardless of ``how``.
        on_step: called with what is being done now.
    """
    tell = on_step or (lambda text: None)
    with heard(tell):
        return _look(data, how, own_clients, tell)


def _look(data: str | Path | Dataset | Federation, how: Sharing, own_clients: bool, tell: Step) -> Inspection:
    if isinstance(data, Federation):
        return _shared(Inspection(data.name, "a federation"), data, [], tell)
    if isinstance(data, Dataset):
        return _read(Inspection(data.name, "a data set"), data, Raw("unknown"), how, own_clients, tell)
    tell("looking at the files")
    raw = look_at(data, how.reading())
    seen = Inspection(str(data), WORDS[raw.kind], seen=raw.seen, columns=raw.columns)
    tell("reading")
    try:
        if raw.kind == "federation":
            return _shared(seen, Federation.open(data), [], tell)
        # copies are found at any scale, if it is the same for all clients
        found = fetched(data, replace(how, scaling="pooled"))
        if how.scaling != "pooled":
            fetched(data, how)  # would a run be refused?
    except FedkinError as error:
        return _failed(
            seen, raw, [] if any(f.severity == "error" for f in raw.findings) else [refused("refused", error)]
        )
    if isinstance(found, Federation):
        return _shared(seen, found, list(raw.findings), tell)
    return _read(seen, found, raw, how, own_clients, tell)


def _failed(seen: Inspection, raw: Raw, more: list[Finding]) -> Inspection:
    """Return an inspection of a table or of images that the reader refuses."""
    found = ordered([*raw.findings, *more])
    rows = raw.fields
    if rows is None or rows.label is None or len(raw.class_names) > MAX_CLASSES:
        samples = len(rows.places) if rows is not None else None
        return replace(seen, samples=samples, read=samples, findings=found)
    client = rows.client if rows.client is not None else np.zeros(len(rows.label), dtype=np.int64)
    names = rows.client_names or ("all rows",)
    counts = np.zeros((len(names), len(raw.class_names)), dtype=np.int64)
    np.add.at(counts, (client, rows.label), 1)
    return replace(
        seen,
        samples=len(rows.label),
        read=len(rows.label),
        classes=raw.class_names,
        class_samples=tuple(counts.sum(axis=0).tolist()),
        sharing="not shared out, since the data cannot be read",
        clients=tuple(
            ClientSummary(n, int(c.sum()), 0, 0, tuple(c.tolist())) for n, c in zip(names, counts, strict=True)
        ),
        findings=found,
    )


def _read(seen: Inspection, dataset: Dataset, raw: Raw, how: Sharing, own_clients: bool, tell: Step) -> Inspection:
    """Go on with the data that were read."""
    if own_clients and dataset.client is not None:
        how = replace(how, partition=None)
    partition = how.partition_of(dataset)
    how = replace(how, partition=partition, min_samples=None)
    test = dataset.official_test
    seen = replace(
        seen,
        kind="a data set" if raw.kind == "unknown" else seen.kind,
        read=len(dataset) + (0 if test is None else len(test)),
        inputs=_inputs(dataset),
        classes=dataset.labels or tuple(map(str, range(dataset.classes))),
    )
    found = [*raw.findings, *naturals_of(dataset, partition, how.split), *units_of(dataset, partition, how.split)]
    inputs = raw.fields if raw.columns else _columns(dataset)
    if not raw.columns:
        tell("looking at the inputs")
        found += _of_numbers(dataset, inputs)
    tell("sharing out")
    try:
        federation = share_out(dataset, how)
    except FedkinError as error:
        counts = tuple(np.bincount(dataset.y.numpy(), minlength=dataset.classes).tolist())
        return replace(
            seen,
            samples=seen.read,
            class_samples=counts,
            findings=ordered([*found, refused("cannot-be-shared-out", error)]),
        )
    kept = (
        ""
        if test is None
        else f"; the official test part ({counted(len(test), 'sample')}) is "
        + ("kept apart" if how.split == "official" else "shared out with the rest")
    )
    more = federation.name.removeprefix(f"{dataset.name}, {partition.name}")  # noise, planted groups
    sharing_text = f"{partition.name} ({_settings(partition)}){more}, {counted(len(federation), 'client')}{kept}"
    chance = None if inputs is None else alike(inputs)
    seen = _shared(replace(seen, sharing=sharing_text), federation, found, tell, chance, how)
    if raw.fields is not None:
        seen = replace(seen, findings=with_lines(seen.findings, raw.fields))
    return replace(seen, advice=(partition_advice(seen, dataset, partition), *seen.advice))


def _shared(
    seen: Inspection,
    federation: Federation,
    before: list[Finding],
    tell: Step,
    by_chance: float | None = None,
    how: Sharing | None = None,
) -> Inspection:
    """Go on with the data that were shared out; ``by_chance`` is for `duplicates`, ``how`` for advice."""
    tell("counting labels")
    classes, clients, labels = labels_of(federation, how)
    counts: Indices = np.array([c.counts for c in clients])
    names = tuple(c.name for c in clients)
    tell("looking for copies")
    known = {f.code for f in before} & {"missing-client"}  # with the rows of the table
    found = [
        *before,
        *(f for f in labels if f.code not in known),
        *duplicates(read_rows(federation, names), by_chance),
    ]
    kind = _type(federation.clients[0].train.x)
    return replace(
        seen,
        samples=int(counts.sum()),
        inputs=seen.inputs or f"{' x '.join(map(str, federation.shape))} numbers, {kind}",
        sharing=seen.sharing or f"{federation.name}, {counted(len(clients), 'client')}",
        classes=classes,
        class_samples=tuple(counts.sum(axis=0).tolist()),
        clients=clients,
        findings=ordered(found),
        advice=(advice_of(clients, classes, counts.sum(axis=0).tolist()),),
    )


def labels_of(
    federation: Federation, how: Sharing | None = None
) -> tuple[tuple[str, ...], tuple[ClientSummary, ...], list[Finding]]:
    """Return the names of the classes, all clients in numbers, and findings on their labels; inputs are not read."""
    classes = federation.labels or tuple(map(str, range(federation.classes)))
    names = federation.client_names or tuple(f"client {k}" for k in range(len(federation)))
    counts: Indices = np.array(
        [[getattr(s, part).counts(len(classes)).numpy() for part in PARTS] for s in federation.clients]
    )
    clients = tuple(summary_of(name, list(parts), classes) for name, parts in zip(names, counts, strict=True))
    train, _, test = counts.sum(axis=0)
    return (
        classes,
        clients,
        [
            *classes_of(counts.sum(axis=1), train, test, classes, names),
            *clients_of(clients, len(classes), None if how is None else how.partition, how.split if how else "pooled"),
            *nameless_of(clients),
            *parts_of(counts, classes, names),
            *one_sided_of(clients),
        ],
    )


def glance(found: Dataset | Federation, federation: Federation) -> tuple[Finding, ...]:
    """Return the findings of an inspection in data that a run has read anyway, errors first: no file is read for it.

    Labels and clients; of data of up to `QUICK` numbers columns and copies as well. Findings that need the files (texts
    in columns of numbers, images of several sizes) are left out. A federation on disk is not looked at.

    Args:
        found: the data as they were read; a federation if they were shared out already.
        federation: the same, shared out.
    """
    if isinstance(federation.clients, Shelf):
        return ()
    _, clients, labels = labels_of(federation)
    if int(federation.sizes().sum()) * math.prod(federation.shape) > QUICK:
        return ordered(labels)
    inputs = _columns(found) if isinstance(found, Dataset) else None
    rows = read_rows(federation, tuple(c.name for c in clients))
    return ordered(
        [
            *(_of_numbers(found, inputs) if isinstance(found, Dataset) else ()),
            *labels,
            *duplicates(rows, None if inputs is None else alike(inputs)),
        ]
    )


def _settings(partition: Partition) -> str:
    if isinstance(partition, Natural):
        return "clients as they come with the data"
    own = {f.name: getattr(partition, f.name) for f in fields(partition)}
    shown = [f"{name.replace('_', ' ')}{'' if value is True else f' {value}'}" for name, value in own.items() if value]
    return ", ".join(shown) or "all alike"


def _inputs(dataset: Dataset) -> str:
    shape = " x ".join(map(str, dataset.shape))
    what = f"images of {shape} (channels x height x width)" if len(dataset.shape) == 3 else f"{shape} numbers"
    scale = 255 if dataset.x.dtype == torch.uint8 else 1  # bytes become 0..1 when they are shared out
    low, high = (float(end) / scale for end in dataset.x.aminmax())
    return f"{what}, {_type(dataset.x)}, {low:.3g} to {high:.3g}"


def _type(x: torch.Tensor) -> str:
    return "int64" if x.dtype == torch.int64 else "float32"


def _columns(dataset: Dataset) -> Fields | None:
    """Return the columns of a table in memory, or of inputs that are plain rows of numbers.

    None for other inputs: pixels have no meaning one by one.
    """
    client = None if dataset.client is None else dataset.client.numpy()
    names = dataset.client_names or tuple(f"client {k}" for k in range(0 if client is None else int(client.max()) + 1))
    if len(dataset.shape) != 1 or dataset.x.numel() > _MOST_VALUES:
        return None
    if dataset.table is not None:  # texts are numbered there
        raw = dataset.table.raw[: len(dataset)]
        made = [Field(c.name, raw[:, j], np.isnan(raw[:, j])) for j, c in enumerate(dataset.table.columns)]
        return Fields(tuple(made), dataset.y.numpy(), client, names)
    x = dataset.x.numpy().astype(np.float64)
    nothing = np.zeros(len(x), dtype=np.bool_)
    return Fields(tuple(Field(f"input {j}", x[:, j], nothing) for j in range(x.shape[1])), dataset.y.numpy())


def _of_clients(found: Fields) -> list[Finding]:
    """Return findings on columns of a table that give the client away, and on missing values."""
    given_away = [*columns.constant_at_client(found), *columns.client_numbers(found)]
    return [*given_away, *gaps.missing(found), *gaps.stand_ins(found)]


def _of_numbers(dataset: Dataset, found: Fields | None) -> list[Finding]:
    """Return findings on inputs that were not read from a file of text."""
    if not bool((dataset.x != dataset.x.flatten()[0]).any()) and len(dataset) > 1:
        return [
            Finding(
                "constant-inputs",
                "error",
                f"all {len(dataset):,} inputs are the same",
                "there is nothing to learn from",
                "check that the right array or folder was given",
            )
        ]
    if found is None:
        return narrow(dataset)
    numbers = found
    if dataset.table is not None:
        kinds = [c.kind for c in dataset.table.columns]
        numbers = replace(found, inputs=tuple(f for f, k in zip(found.inputs, kinds, strict=True) if k == "number"))
    return [
        *columns.constant(found),
        *((*_of_clients(numbers), *columns.codes_of_clients(found)) if dataset.table is not None else ()),
        *columns.ids(numbers),
        *columns.leaks(found),
        *columns.scales(numbers, standardised=dataset.table is not None),
    ]
