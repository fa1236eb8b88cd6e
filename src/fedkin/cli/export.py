"""``fedkin export`` and ``fedkin predict``: export of a client's model, and its predictions for a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from fedkin.cli import screen
from fedkin.cli.flags import read
from fedkin.cli.outcome import require_folder_name
from fedkin.core import ConfigError, RunFolderError
from fedkin.core.errors import counted, typed
from fedkin.data.image_files import listening
from fedkin.experiment.listing import run_folders
from fedkin.exporting import export, export_all, export_global, load_export
from fedkin.exporting.model import Predicted, read_card, write_csv
from fedkin.exporting.writing import Round
from fedkin.report.tables import Grid
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import reading, require_folder

_SHOWN = 20  # maximum number of rows on the screen


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Export the model of a client to a folder: an ONNX program, weights, a card."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    client: str | None = None
    """The client whose model is exported: its number or name."""
    all: bool = False
    """Export every client's model, each to its own folder."""
    common: Annotated[bool, tyro.conf.arg(name="global")] = False
    """Export the one model that the server sends to all clients, where the method has one."""
    round: Round = "last"
    """Round of the exported model: the last, or the one with the highest validation accuracy."""
    out: Path | None = None
    """The new folder. Default: exports/client-NAME in the run's folder; exports/best/client-NAME with --round best."""
    force: bool = False
    """Replace an older export."""


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """Print labels and probabilities for the rows of a file: csv, parquet, npz, npy, an image or a folder of images."""

    export: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="EXPORT")]
    """A folder that fedkin export wrote."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The file or folder to predict."""
    encoding: str | None = None
    """Encoding of the text of a csv file, such as cp1252 (Windows), latin1 or utf-16. Default: UTF-8."""
    array: str | None = None
    """Name of the array with the inputs in an npz file, such as test_images. Default: x, or the only array."""
    out: Path | None = None
    """Write all rows to this csv file."""
    json: bool = False
    """Write a JSON object per row, a line each, and nothing else, to standard output."""


def export_command(args: list[str]) -> int:
    """Run ``fedkin export RUN --client 7``."""
    flags = read(ExportFlags, args, "fedkin export", "a run folder and a client: fedkin export RUN --client 7")
    run, asked = flags.run, sum([flags.client is not None, flags.all, flags.common])
    require_folder(run)
    if flags.out is not None:
        require_folder_name(flags.out)
    with reading(run):
        return _export(run, flags, asked)


def _export(run: Path, flags: ExportFlags, asked: int) -> int:
    if not (run / "config.toml").is_file() and (runs := list(run_folders(run))):
        raise ConfigError(f"{run} holds {counted(len(runs), 'run')}; name one of them, such as {typed(runs[0])}")
    if asked != 1:
        raise ConfigError("choose the model: one of --client 7, --all, --global")
    result: list[Path] = []
    if flags.all:
        for place in export_all(run, flags.out, round=flags.round, force=flags.force):
            result.append(place)
            screen.say(_line(place))
        if not result:
            raise ConfigError(
                f"the models of all clients of {run} predict NaN: training diverged; nothing was exported"
            )
    elif flags.common:
        result = [export_global(run, flags.out, round=flags.round, force=flags.force)]
    elif flags.client is not None:
        result = [export(run, flags.client, flags.out, round=flags.round, force=flags.force)]
    if flags.all:
        screen.say(f"\n{counted(len(result), 'model')} in {result[0].parent}")
    else:
        screen.say(_line(result[0]))
        screen.say(f"in {result[0]}: {', '.join(sorted(f.name for f in result[0].iterdir()))}")
        screen.say(f"Predict with it: fedkin predict {typed(result[0])} FILE (or see README.md there)")
    return 0


def predict_command(args: list[str]) -> int:
    """Run ``fedkin predict EXPORT FILE``."""
    flags = read(PredictFlags, args, "fedkin predict", "an exported folder and a file: fedkin predict EXPORT FILE")
    if flags.out is not None and flags.out.exists():
        raise ConfigError(f"{flags.out} exists already; choose another file with --out, or remove it first")
    if (flags.export / "config.toml").is_file() and not (flags.export / "card.json").is_file():
        raise RunFolderError(
            f"{flags.export} is a run, not an exported model; export a client's model first: "
            f"fedkin export {typed(flags.export)} --client 0"
        )
    model = load_export(flags.export)
    with screen.err.status("reading") as status, listening(lambda text: status.update(Text(text or "predicting"))):
        result = model.predict_file(flags.file, flags.encoding, flags.array)
    if flags.out is not None:
        write_atomic(flags.out, write_csv(result))
    for line in result.notes:
        screen.note(f"warning: {line}")
    if flags.json:
        for row, name, p in zip(result.rows, result.names, result.probabilities.tolist(), strict=True):
            prediction = {"row": row, "label": name, "probabilities": dict(zip(result.labels, p, strict=True))}
            screen.write(json.dumps(prediction))
        return 0
    screen.table(_table(result))
    left = len(result.rows) - _SHOWN
    if left > 0:
        screen.say(f"and {counted(left, 'more row')}" + ("" if flags.out else "; --out FILE.csv writes all"))
    if flags.out is not None:
        many = f"all {len(result.rows)} rows are" if len(result.rows) > 1 else "the row is"
        screen.say(f"{many} in {flags.out}")
    return 0


def _table(predictions: Predicted) -> Grid:
    """Return the first rows: label, its probability, and the second most probable class."""
    second = len(predictions.labels) > 1
    rows = []
    for row, p in list(zip(predictions.rows, predictions.probabilities, strict=True))[:_SHOWN]:
        top = (-p).argsort(kind="stable")[: 1 + second].tolist()
        words = [predictions.labels[i] for i in top]
        shares = [f"{100 * p[i]:.1f} %" for i in top]
        rows.append((row, words[0], shares[0], *([f"{words[1]} ({shares[1]})"] if second else [])))
    return Grid("", ("row", "label", "probability", *(["next"] if second else [])), tuple(rows), words=2)


def _line(place: Path) -> str:
    card = read_card(place)
    who = "all clients" if card.client is None else f"client {card.client_name or card.client}"
    test, good = card.test, "not tested"
    if test is not None and test.accuracy is not None:
        good = f"{100 * test.accuracy:.1f} % of its {test.n} test samples"
    chosen = " (highest validation accuracy)" if card.chosen else ""
    return f"{card.title}, model of {who}, round {card.round}{chosen}: {good}"
