"""Measured cells: one line of JSON per cell and seed, appended whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.record.figures import GROUPED, METRICS, OTHER_MOMENT, evaluated, span
from fedkin.record.files import RUN, read_json
from fedkin.record.lines import Figures, RunLine
from fedkin.record.result import Result
from fedkin.user_code.reference import CodeRef
from fedkin.version import __version__
from reproduce.cells import Cell
from reproduce.tables import HERE, Table

RESULTS = HERE / "results"
Line = dict[str, Any]
BY_CLIENT = ("accuracy", "accuracy_trained", "accuracy_delivered", "macro_f1", "few", "medium", "many")
"""Figures that are kept for every client where a table of the paper shows them; accuracies always."""
_DIGITS = 5


def file_of(table: Table, folder: Path = RESULTS) -> Path:
    """Return the path of the lines of a table."""
    return folder / f"{table.paper}-{table.name}.jsonl"


def load(folder: Path = RESULTS) -> dict[str, Line]:
    """Return all lines by digest; of two with the same digest the later one counts."""
    found: dict[str, Line] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_bytes().split(b"\n")[:-1]:  # a line without a line break was cut short by a kill
            try:
                line = json.loads(text)
            except ValueError as e:
                raise ValueError(f"{path}: a line is not JSON ({e}); restore the file or remove the line") from e
            found[line["digest"]] = line
    return found


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line; a half-written line at the end, left by a kill, is removed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also by a process that is killed
        file.seek(0)
        there = file.read()
        if not there.endswith(b"\n") and there:
            file.truncate(there.rfind(b"\n") + 1)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def line_of(cell: Cell, folder: Path, wanted: Iterable[str]) -> Line:
    """Return the line of a finished run.

    Args:
        cell: the cell.
        folder: folder of the run.
        wanted: figures that tables of the paper show.
    """
    run = Result.finished_in(folder)
    line: Line = {
        "cell": cell.place,
        "scale": cell.scale.name,
        "seed": cell.seed,
        "digest": cell.digest,
        "config": told_config(cell),
        "fedkin": __version__,
        "computed": run.run.engine,
        "data": _data_mark(folder),
        "seconds": round(sum(one.whole + one.evaluation for one in run.timing), 1),
        "final": {**_rounded(run.final), **_averaged(run.final.rounds)},
        "last": {} if run.last is None else {"round": run.last[0], **_rounded(run.last[1])},
        "best": {} if run.best is None else {"round": run.best.round, **_rounded(run.best.figures)},
        "megabytes": round(run.bytes / 1e6, 3),
    }
    if run.diverged is not None:
        line["diverged"] = run.diverged
    if sizes := [list(one.cluster_sizes) for one in run.rounds if one.cluster_sizes]:
        line["cluster_sizes"] = sizes[-1]
    line["curve"] = _curve(run)
    line["clients"] = _clients(run, {"accuracy", "accuracy_trained", "accuracy_delivered", *wanted})
    return line


def told_config(cell: Cell) -> dict[str, Any]:
    """Return the settings of a cell, without defaults and without paths of this machine."""
    return {**cell.config, "method": {**cell.config["method"], "name": CodeRef(cell.row.method).portable}}


def adoptable(cells: Iterable[Cell], done: Mapping[str, Line]) -> list[tuple[Cell, Line]]:
    """Return missing cells that were measured with the same written settings under other defaults of the library.

    A version with a new setting gives every cell another digest, whether or not its figures change. A person has to
    check this; then the old lines can be taken over under the new digests.
    """
    known = {json.dumps(line["config"], sort_keys=True): line for line in done.values()}
    missing = {cell.digest: cell for cell in cells if cell.digest not in done}
    found = [(cell, known.get(json.dumps(told_config(cell), sort_keys=True))) for cell in missing.values()]
    return [(cell, line) for cell, line in found if line is not None]


def _data_mark(folder: Path) -> str:
    """Return the fingerprint of the federation of the run."""
    return read_json(folder / RUN, RunLine).marks["data"]


def _rounded(figures: Figures | None) -> dict[str, float]:
    """Return the figures that there are, rounded to six places."""
    names = (*METRICS, *GROUPED, *OTHER_MOMENT)
    return {} if figures is None else {n: round(v, 6) for n in names if (v := figures.of(n)) is not None}


def _averaged(rounds: Sequence[int]) -> dict[str, Any]:
    ends = {"first_round": rounds[0], "last_round": rounds[-1]} if rounds else {}
    return {"rounds": span(rounds), "rounds_averaged": len(rounds), **ends}


def _curve(run: Result) -> dict[str, list[Any]]:
    """Return the accuracy in every evaluated round."""
    lines = evaluated(run.rounds)
    accuracy = [None if f.accuracy is None else round(f.accuracy, _DIGITS) for _, f in lines]
    return {"rounds": [t for t, _ in lines], "accuracy": accuracy}


def _clients(run: Result, wanted: set[str]) -> Line:
    """Return every client's final figures."""
    found: Line = {}
    for metric in BY_CLIENT:
        if metric in wanted and (values := run.averaged(metric)):
            found.setdefault("ids", sorted({line.client for line in run.clients}))
            found[metric] = [round(values[i], _DIGITS) if i in values else None for i in found["ids"]]
    return found
