"""Data of a joining client: read as those of a run, split as the run splits, and compared with its training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.core import ConfigError, DataError
from fedkin.core.samples import ClientData
from fedkin.data import Card, Federation, load
from fedkin.data.arrays import array_of
from fedkin.data.columns import raw_rows
from fedkin.data.preparation import Preparation
from fedkin.data.sources import csv_files
from fedkin.data.sources.csvfile import Table, read_csv
from fedkin.data.sources.tables import numbered_classes
from fedkin.data.standalone import unusual_inputs, unusual_rows
from fedkin.experiment.finished import FinishedRun
from fedkin.exporting.finished import name_of
from fedkin.exporting.ranges import of_all
from fedkin.inspection.duplicates import FEW_INPUTS, MOST_VALUES, hash_rows

Source = Path | str | tuple[Any, Any]
"""A file or folder, or arrays ``(x [n, *shape], y [n])`` as the run's inputs."""
FEW = 30
"""Minimum of test samples without a note on their number: 50 % accuracy then has a 95 % interval of 34 points."""
_SHOWN = 5  # maximum number of clients that are named


@dataclass(frozen=True)
class JoiningData:
    """A joining client's data.

    Attributes:
        shard: its samples in their parts.
        where: their source.
        rows: the table that they were read from, if they are rows of one.
    """

    shard: ClientData
    where: str
    rows: Table | None = None


def newcomer(p: FinishedRun, data: Source, encoding: str | None = None) -> JoiningData:
    """Return the joining client's samples, prepared and split as the run's.

    Raises:
        DataError, ConfigError: as `fedkin.exporting.cold_start.join`.
    """
    federation, how = p.federation, p.experiment.table.get("data", {})
    rows = None
    if isinstance(data, tuple):
        where = "the joining client's data"
        x, y = torch.tensor(array_of(data[0], where, "inputs")), data[1]
    else:
        where = str(data)
        x, y, rows = _read(where, federation, encoding or how.get("encoding"))
    x = x.to(federation.clients[0].train.x.dtype)
    if tuple(x.shape[1:]) != federation.shape:
        raise DataError(f"{where}: inputs of shape {list(x.shape[1:])}, the run's are {list(federation.shape)}")
    labels = federation.labels or tuple(map(str, range(federation.classes)))
    parts = {name: how[name] for name in ("test", "validation") if isinstance(how.get(name), float)}
    made = Federation.from_arrays(
        [(x, y)], classes=federation.classes, name=where, seed=p.job.seed, labels=labels, **parts
    ).clients[0]  # fmt: skip
    return JoiningData(made, where, rows)


def notes_on(p: FinishedRun, new: JoiningData) -> tuple[str, ...]:
    """Return caveats to read before a joining client's figures: few test samples, copies, data unlike the run's."""
    n = len(new.shard.test)
    few = [f"only {n} test samples: accuracies are uncertain, see their intervals"] if n < FEW else []
    return (*few, *_several(p, new), *_copies(p, new.shard), *_unusual(p, new))


def _several(p: FinishedRun, new: JoiningData) -> list[str]:
    """Return a note on a table whose rows name more than one client."""
    client = _client_column(p)
    if new.rows is None or client not in new.rows.columns:
        return []
    names = sorted(set(new.rows.column(client, "client")))
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return [f"the column {client} names {len(names)} clients ({shown}): their rows join as one"] if names[1:] else []


def _client_column(p: FinishedRun) -> Any:
    """Return the column that named the client of the run's rows; None if there was none."""
    made = p.federation.preparation
    taken = {} if made is None else dict(made.taken)
    return p.experiment.table.get("data", {}).get("client_column") or taken.get("client")


def _unusual(p: FinishedRun, new: JoiningData) -> list[str]:
    """Return notes on values unlike those of all clients' training samples."""
    seen, made = of_all(p.federation, exact=True), p.federation.preparation
    if new.rows is None or made is None:
        x = torch.cat([new.shard.train.x, new.shard.validation.x, new.shard.test.x]).numpy()
        warned = unusual_inputs(x, seen["inputs"])
        return [] if warned is None else [warned]
    records, data = new.rows.records(), p.experiment.table.get("data", {})
    unused = (made.target, _client_column(p), *str(data.get("drop") or "").split(","))
    raw = raw_rows(records, made.columns, new.rows.places)
    return unusual_rows(records, raw, made.columns, seen["columns"], unused)


def _copies(p: FinishedRun, shard: ClientData) -> list[str]:
    """Return notes on samples that others train on, and on test samples that are also training samples."""
    train, held, test = (hash_rows(part.x) for part in (shard.train, shard.validation, shard.test))
    own, everything = set(train.tolist()), np.concatenate([train, held, test])
    found = []
    inside = sum(h in own for h in test.tolist())
    if inside:
        found.append(f"{inside} of {len(test)} test samples equal training samples of the joining client")
    of, hit, skipped = _owners(p, everything.tolist())
    total = sum(h in hit for h in everything.tolist())
    if total:
        names = ", ".join(f"{name_of(p, i) or i}: {n}" for i, n in of.most_common(_SHOWN))
        rest = f" and {len(of) - _SHOWN} more clients" if len(of) > _SHOWN else ""
        tested = sum(h in hit for h in test.tolist())
        found.append(
            f"{total} of {len(everything)} samples, {tested} of {len(test)} test samples among them, equal training "
            f"samples of other clients ({names}{rest}): their figures say nothing of new data"
        )
    if found and len(set(everything.tolist())) < FEW_INPUTS * len(everything):
        found.append("the inputs have so few distinct values that samples may be equal by chance")
    if skipped:
        found.append(f"{skipped} clients hold too many values to be searched for copies")
    return found


def _owners(p: FinishedRun, hashes: Sequence[int]) -> tuple[Counter[int], set[int], int]:
    """Return how many of these inputs each client trains on, the inputs concerned, and the clients not searched."""
    of, hit, budget = Counter[int](), set[int](), MOST_VALUES
    for i, shard in enumerate(p.federation.clients):
        if budget <= 0:
            return of, hit, len(p.federation) - i
        trained = set(hash_rows(shard.train.x).tolist())
        there = [h for h in hashes if h in trained]
        of[i], hit = len(there), hit | set(there)
        budget -= shard.train.x.numel()
    return +of, hit, 0


def _read(data: str, federation: Federation, encoding: str | None) -> tuple[Any, Any, Table | None]:
    """Return inputs and classes of a joining client, prepared as the run's, and the table if they are its rows."""
    made, labels = federation.preparation, federation.labels
    files = csv_files([Path(data)]) if Path(data).exists() else []
    if made is not None and made.kind == "table" and files:
        table = read_csv(files, Path(data).name, encoding)
        return *_rows(table, made, federation), table
    side = made.size[0] if made is not None and made.size is not None and made.resized else None
    found = load(data, image_size=side, site=True)
    whole = found.rows(np.arange(len(found) + (0 if found.official_test is None else len(found.official_test))))
    x = whole.x
    if x.ndim == 4 and len(federation.shape) == 3 and (x.shape[1], federation.shape[0]) == (1, 3):
        x = x.expand(-1, 3, -1, -1)  # grey images for a run on coloured ones
    if labels is None and found.labels is not None:  # the run's classes are numbers: places of names say nothing
        odd = [label for label in found.labels if not label.isdecimal()]
        if odd:
            raise DataError(
                f"{data}: class {odd[0]!r} has a name, and the run's are the numbers 0 to {federation.classes - 1}; "
                "give labels as numbers, without names"
            )
        labels = tuple(map(str, range(federation.classes)))
    if labels is None or found.labels is None:
        if found.classes > federation.classes:
            raise DataError(f"{data}: has class {found.classes - 1}, the run knows 0 to {federation.classes - 1}")
        return x, whole.y, None
    unknown = [label for label in found.labels if label not in labels]
    if unknown:
        raise DataError(f"{data}: class {unknown[0]!r} is not one of the run's, {', '.join(labels)}")
    return x, torch.tensor([labels.index(label) for label in found.labels])[whole.y], None


def _rows(table: Table, made: Preparation, federation: Federation) -> tuple[Any, Any]:
    """Return inputs and classes of a table."""
    if made.per_client:
        raise ConfigError("the run scales each client's columns by its own values (scaling = 'client'), and a "
                          "joining client has none yet; run with scaling = 'pooled' to use join")  # fmt: skip
    labels = federation.labels or tuple(map(str, range(federation.classes)))
    whole = not made.binary and all(label.lstrip("-").isdecimal() for label in labels)
    card = Card("table", federation.classes, labels, whole, target=made.target, binary=made.binary)
    x = made.scaled(raw_rows(table.records(), made.columns, table.places))
    return x, numbered_classes(table, card, "the run knows", "correct it, or leave these rows out")
