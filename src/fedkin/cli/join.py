"""``fedkin join``: placement and accuracy of a client that joins after the end of training."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedkin.cli import screen
from fedkin.cli.flags import read
from fedkin.core.errors import counted
from fedkin.exporting.joining import Drill, join
from fedkin.report.tables import DASH, Grid
from fedkin.storage.folders import reading


@dataclass(frozen=True, kw_only=True)
class JoinFlags:
    """Show how a method places a client that joins after the last round, and how good its model is.

    In its rounds it is the only client that answers; the run is not changed.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    data: Path
    """Data of the joining client, of the same kind as the run's: csv, npz, a folder of images or idx files."""
    encoding: str | None = None
    """Text encoding of a csv file. Default: that of the run's data."""
    after: tuple[int, ...] = (0, 1, 5)
    """Evaluate after these numbers of rounds of the joining client."""
    json: bool = False
    """Write the figures as JSON, and nothing else, to standard output."""


def join_command(args: list[str]) -> int:
    """Run ``fedkin join RUN --data NEWCLIENT``."""
    flags = read(
        JoinFlags, args, "fedkin join", "a run folder and data of a joining client: fedkin join RUN --data PATH"
    )
    with reading(flags.run):
        drill = join(flags.run, flags.data, flags.after, encoding=flags.encoding)
    for line in drill.notes:
        screen.note(f"warning: {line}")
    if flags.json:
        screen.write(json.dumps(asdict(drill), indent=2))
        return 0
    screen.say(f"{drill.data}: {drill.train} training, {drill.validation} validation, {drill.test} test samples")
    screen.say(placed(drill))
    screen.table(_table(drill))
    note = f"Its data alone, {counted(drill.round, 'round')} as the run had: {100 * drill.local[drill.round]:.1f} %"
    if drill.global_model is not None:
        note += f"; global model as it is: {100 * drill.global_model:.1f} %"
    if drill.constant is not None:
        note += f"; always predicting its most frequent class: {100 * drill.constant:.1f} %"
    screen.say(note)
    return 0


def placed(drill: Drill) -> str:
    """Return a sentence on where the method puts the joining client."""
    if drill.cluster is not None:
        mates = f"with client {', '.join(drill.mates)}" if drill.mates else "which has no other clients"
        return f"{drill.title} puts it into cluster {drill.cluster}, {mates}."
    if drill.weights:
        parts = ", ".join(f"{100 * w:.1f} % {name}" for name, w in drill.weights.items())
        return f"{drill.title} mixes its first model from: {parts}."
    return f"{drill.title} keeps no groups or weights that show which clients it learns from."


def _table(drill: Drill) -> Grid:
    rows = []
    for a, accuracy in drill.accuracy.items():
        where = drill.clusters[a]
        cluster = () if drill.cluster is None else (DASH if where is None else str(where),)
        low, high = (100 * end for end in drill.interval[a])
        rows.append((str(a), f"{100 * accuracy:.1f}", f"{low:.0f} to {high:.0f}", f"{100 * drill.macro_f1[a]:.1f}",
                     f"{100 * drill.local[a]:.1f}", *cluster))  # fmt: skip
    heads: tuple[str, ...] = ("its rounds", "accuracy %", "95 % interval", "macro-F1 %", "its data alone %")
    heads += () if drill.cluster is None else ("cluster",)
    return Grid("", heads, tuple(rows))
