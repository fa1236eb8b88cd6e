"""The inspection itself: look at the files, read them, share them out, and report the findings of each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from fedkin.core.errors import DataError, FedkinError, counted
from fedkin.core.settings import DataSettings
from fedkin.data.checks import PARTS, Indices
from fedkin.data.dataset import Dataset
from fedkin.data.federation import Federation
from fedkin.data.image_files import listening
from fedkin.data.partition import Natural, Partition
from fedkin.data.shelf import Shelf, is_shelf
from fedkin.data.sites import fetched, partition_of, share_out
from fedkin.data.sources import WORDS, csv_files, kind_of
from fedkin.data.sources.hub import open_hub
from fedkin.data.sources.npz import likely_clients_of, read_arrays
from fedkin.inspection.columns import fields_of, of_columns
from fedkin.inspection.duplicates import alike, duplicates, read_rows
from fedkin.inspection.finding import EXAMPLES, ClientSummary, Finding, Inspection, first, ordered
from fedkin.inspection.shares import (
    advice_of,
    classes_of,
    clients_of,
    one_sided_of,
    partition_advice,
    parts_of,
    summary_of,
    units_of,
)

Step = Callable[[str], None]
_LINE, _LINES = 160, 4  # characters of a line, and lines, that are shown
QUICK = 300_000
"""Numbers in all inputs together up to which columns and copies are checked in passing: a tenth of a second."""


def look(
    data: str | Path | Dataset | Federation,
    how: DataSettings,
    *,
    partition: Partition | None = None,
    on_step: Step = lambda text: None,
) -> Inspection:
    """Return what is understood of the data, and what looks wrong; bad data are findings, not exceptions.

    ``data`` is a name or path as for `load`, or what was read already; a program may have a partition of its own, in
    place of that of ``how``; ``on_step`` is called with what is being done now.
    """
    with listening(on_step):
        return _look(data, how, partition, on_step)


def _look(
    data: str | Path | Dataset | Federation, how: DataSettings, partition: Partition | None, tell: Step
) -> Inspection:
    if isinstance(data, Federation):
        return _shared(Inspection(data.name, "a federation"), data, [], tell)
    if isinstance(data, Dataset):
        return _read(Inspection(data.name, "a data set"), data, how, partition, tell)
    tell("looking at the files")
    kind = "federation" if is_shelf(data) else kind_of(data)
    seen = Inspection(str(data), WORDS[kind], seen=first_look(data, kind))
    tell("reading")
    try:
        if kind == "federation":
            return _shared(seen, Federation.open(data), [], tell)
        if kind == "hub":
            seen = replace(seen, seen=open_hub(str(data), how).description())
        result = fetched(data, how.but(scaling="pooled"))  # copies are found at a scale that all clients share
    except FedkinError as error:
        return replace(seen, findings=(refused("refused", error),))
    if isinstance(result, Federation):
        return _shared(seen, result, [], tell)
    seen = _read(seen, result, how, partition, tell)
    if kind == "npz" and result.client is None and (ids := likely_clients_of(npz_of(Path(data)))):
        unused = Finding(
            "ids-not-used",
            "note",
            f"{counted(len(ids), 'array')} with a value for each sample, not used: {first(ids)}",
            "if it names the client of each sample, clients need not be made up",
            f"--client-column {ids[0]}, if it does",
            columns=ids,
        )
        seen = replace(seen, findings=ordered([*seen.findings, unused]))
    return seen


def _read(seen: Inspection, dataset: Dataset, how: DataSettings, partition: Partition | None, tell: Step) -> Inspection:
    """Go on with the data that were read."""
    partition = partition or partition_of(how, dataset)
    test = dataset.official_test
    tell("looking at the inputs")
    inputs = fields_of(dataset)
    seen = replace(
        seen, read=len(dataset) + (0 if test is None else len(test)), inputs=_inputs(dataset),
        classes=dataset.labels or tuple(map(str, range(dataset.classes))),
        columns=tuple(f.summary() for f in inputs.inputs) if inputs is not None and dataset.table is not None else (),
    )  # fmt: skip
    result = [*units_of(dataset, partition, how.split), *of_columns(inputs)]
    tell("sharing out")
    try:
        federation = share_out(dataset, how, partition)
    except FedkinError as error:
        counts = tuple(np.bincount(dataset.y.numpy(), minlength=dataset.classes).tolist())
        faults = ordered([*map(as_read, dataset.notes), *result, refused("cannot-be-shared-out", error)])
        return replace(seen, samples=seen.read, class_samples=counts, findings=faults)
    notes = federation.notes if isinstance(partition, Natural) else dataset.notes
    apart = "kept apart" if how.split == "official" else "shared out with the rest"
    kept = "" if test is None else f"; the official test part ({counted(len(test), 'sample')}) is {apart}"
    more = federation.name.removeprefix(f"{dataset.name}, {partition.name}")  # noise, planted groups
    sharing_text = f"{partition.name} ({_settings(partition)}){more}, {counted(len(federation), 'client')}{kept}"
    chance = None if inputs is None else alike(inputs)
    result = [*map(as_read, notes), *result]
    seen = _shared(replace(seen, sharing=sharing_text), federation, result, tell, chance, how, partition)
    return replace(seen, advice=(partition_advice(seen, dataset, partition), *seen.advice))


def _shared(
    seen: Inspection,
    federation: Federation,
    before: list[Finding],
    tell: Step,
    by_chance: float | None = None,
    how: DataSettings | None = None,
    partition: Partition | None = None,
) -> Inspection:
    """Go on with the data that were shared out; ``by_chance`` is for `duplicates`, ``how`` for advice."""
    tell("counting labels")
    classes, clients, labels = labels_of(federation, how, partition)
    counts: Indices = np.array([c.counts for c in clients])
    names = tuple(c.name for c in clients)
    tell("looking for copies")
    result = [*before, *labels, *duplicates(read_rows(federation, names), by_chance)]
    kind = str(federation.clients[0].train.x.dtype).removeprefix("torch.")
    return replace(
        seen, samples=int(counts.sum()),
        inputs=seen.inputs or f"{' x '.join(map(str, federation.shape))} numbers, {kind}",
        sharing=seen.sharing or f"{federation.name}, {counted(len(clients), 'client')}", classes=classes,
        class_samples=tuple(counts.sum(axis=0).tolist()), clients=clients, findings=ordered(result),
        advice=(advice_of(clients, classes, counts.sum(axis=0).tolist()),),
    )  # fmt: skip


def labels_of(
    federation: Federation, how: DataSettings | None = None, partition: Partition | None = None
) -> tuple[tuple[str, ...], tuple[ClientSummary, ...], list[Finding]]:
    """Return the names of the classes, all clients in numbers, and findings on their labels; inputs are not read."""
    classes = federation.labels or tuple(map(str, range(federation.classes)))
    names = federation.client_names or tuple(f"client {k}" for k in range(len(federation)))
    counts: Indices = np.array(
        [[getattr(s, part).counts(len(classes)).numpy() for part in PARTS] for s in federation.clients]
    )
    clients = tuple(summary_of(name, list(parts), classes) for name, parts in zip(names, counts, strict=True))
    findings = [
        *classes_of(counts, classes, names),
        *clients_of(clients, len(classes), partition, how.split if how else "pooled"),
        *parts_of(counts, classes, names),
        *one_sided_of(clients),
    ]
    return classes, clients, findings


def glance(data: Dataset | Federation, federation: Federation) -> tuple[Finding, ...]:
    """Return the findings of an inspection in data that a run has read anyway, errors first: no file is read for it.

    Labels and clients; of data of up to `QUICK` numbers columns and copies as well. A federation on disk is not looked
    at. ``found`` are the data as they were read, and ``federation`` the same, shared out.
    """
    if isinstance(federation.clients, Shelf):
        return ()
    _, clients, labels = labels_of(federation)
    if int(federation.sizes().sum()) * math.prod(federation.shape) > QUICK:
        return ordered(labels)
    inputs = fields_of(data) if isinstance(data, Dataset) else None
    rows = read_rows(federation, tuple(c.name for c in clients))
    copies = duplicates(rows, None if inputs is None else alike(inputs))
    return ordered([*of_columns(inputs), *labels, *copies])


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
    kind = "float32" if scale == 255 else str(dataset.x.dtype).removeprefix("torch.")
    return f"{what}, {kind}, {low:.3g} to {high:.3g}"


# ---- what lies at a source -------------------------------------------------------------------------------------------
def first_look(data: str | Path, kind: str) -> tuple[str, ...]:
    """Return the first lines of a table, the arrays of an npz file, or the names in a folder."""
    path = Path(data)
    if kind == "table":
        paths = csv_files([path])
        if len(paths) == 1:
            return _lines(paths[0])
        others = first([p.name for p in paths[1:]], 3 * EXAMPLES)
        return (f"{paths[0].name}, the first of {len(paths)} files:", *_lines(paths[0]), f"the others: {others}")
    if kind == "npz":
        try:
            arrays = read_arrays(npz_of(path))
        except DataError:  # the reader will report it
            return ()
        shapes = {name: " x ".join(map(str, a.shape)) or "one value" for name, a in arrays.items()}
        return tuple(f"{name}: {a.dtype}, shape {shapes[name]}" for name, a in arrays.items())
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in path.iterdir()) if path.is_dir() else []
    return tuple(names[:20]) + ((f"and {len(names) - 20} more",) if len(names) > 20 else ())


def npz_of(path: Path) -> Path:
    """Return an npz file, or the first one of a folder."""
    return path if path.is_file() else min(path.glob("*.npz"))


def refused(code: str, error: FedkinError) -> Finding:
    """Return a reader's message as a finding.

    After its last semicolon stands its advice, or what there is instead.
    """
    what, _, advice = str(error).rpartition("; ")
    if not what or advice.startswith(("it ", "got ", "the columns", "there are", "did you mean")):
        what, advice = str(error), "correct it and look again"
    return Finding(code, "error", what, "a run stops here", advice)


def as_read(note: str) -> Finding:
    """Return a reader's note as a finding; after its semicolon stands its advice."""
    what, _, todo = note.partition("; ")
    return Finding("as-read", "note", what, "the data were read this way", todo or "correct the data if it is wrong")


def _lines(path: Path) -> tuple[str, ...]:
    """Return the header and first rows as they stand in the file; none of a file that is not text."""
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return ()
    try:
        with path.open("rb") as file:
            lines = [file.readline(4 * _LINE) for _ in range(_LINES)]
    except OSError:
        return ()
    texts = [line.decode("utf-8-sig", errors="backslashreplace").rstrip("\r\n") for line in lines if line]
    return tuple(t[:_LINE] for t in texts)
