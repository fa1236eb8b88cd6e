"""``fedkin export`` and ``fedkin predict``: export of a client's model, and its predictions for a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.text import Text

from fedkin.cli import screen
from fedkin.cli.flags import read
from fedkin.cli.outcome import require_folder_name
from fedkin.core import ConfigError, RunFolderError
from fedkin.core.errors import counted, typed
from fedkin.data.progress import heard
from fedkin.exporting import export, export_all, export_global, load_export
from fedkin.exporting.available import AvailableRun, available
from fedkin.exporting.inputs import Predicted, write_csv
from fedkin.exporting.programs import Format
from fedkin.exporting.writing import Round
from fedkin.report.tables import DASH, Grid
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import reading, require_folder

_SHOWN = 20  # maximum number of rows on the screen


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Export the model of a client to a folder that needs no fedkin: weights, a card, a small loader.
    Of a comparison or a sweep, list the runs whose models can be exported."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """A run folder; or that of a comparison or a sweep, whose runs are listed."""
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
    format: tuple[Format, ...] = ()
    """Programs to write next to it: model.pt2 (torch.export), model.onnx."""
    force: bool = False
    """Replace an older export."""
    json: bool = False
    """Write the card as JSON, and nothing else, to standard output; with --all a list of cards; of a comparison or a
    sweep a list of its runs."""


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """Print labels and probabilities for the rows of a file: csv, parquet, npz, npy, an image or a folder of images."""

    export: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="EXPORT")]
    """A folder that fedkin export wrote."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The file or folder to predict."""
    network: str | None = None
    """The network's code where the folder does not describe the network: ./file.py:function or
    package.module:function. This code is run; a model folder itself never is."""
    encoding: str | None = None
    """Encoding of the text of a csv file, such as cp1252 (Windows), latin1 or utf-16. Default: UTF-8."""
    array: str | None = None
    """Name of the array with the inputs in an npz file, such as test_images. Default: x, or the only array."""
    out: Path | None = None
    """Write all rows to this csv file."""
    json: bool = False
    """Write a JSON object per row, a line each, and nothing else, to standard output."""
    force: bool = False
    """Replace the csv file."""


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
    if runs := available(run):
        if asked:
            raise ConfigError(
                f"{run} holds {len(runs)} {'run' if len(runs) == 1 else 'runs'}; name one of them, such as "
                f"{runs[0].folder}; fedkin export {typed(run)} lists them"
            )
        _list(runs, run, as_json=flags.json)
        return 0
    if asked != 1:
        raise ConfigError("choose the model: one of --client 7, --all, --global")
    more: dict[str, Any] = {"round": flags.round, "formats": flags.format, "force": flags.force}
    found: list[Path] = []
    if flags.all:
        for place in export_all(run, flags.out, **more):
            found.append(place)
            if not flags.json:
                screen.say(_line(place))
        if not found:
            raise ConfigError(
                f"the models of all clients of {run} predict NaN: training diverged; nothing was exported"
            )
    elif flags.common:
        found = [export_global(run, flags.out, **more)]
    elif flags.client is not None:
        found = [export(run, flags.client, flags.out, **more)]
    cards = [_card(place) for place in found]
    if flags.json:
        screen.write(json.dumps(cards if flags.all else cards[0], indent=2))
    elif flags.all:
        screen.say(f"\n{counted(len(found), 'model')} in {found[0].parent}")
    else:
        screen.say(_line(found[0]))
        screen.say(f"in {found[0]}: {', '.join(sorted(f.name for f in found[0].iterdir()))}")
        screen.say(f"Predict with it: fedkin predict {typed(found[0])} FILE (or see README.md there)")
    return 0


def _list(runs: Sequence[AvailableRun], folder: Path, *, as_json: bool) -> None:
    """Print the runs of a comparison or a sweep, and the export command of each."""
    if as_json:
        lines = [{**asdict(run), "folder": str(run.folder), "command": run.command} for run in runs]
        screen.write(json.dumps(lines, indent=2))
        return
    names = list(dict.fromkeys(name for run in runs for name in run.values))
    swept, waiting = (folder / "sweep.toml").is_file(), any(not run.state.startswith("finished") for run in runs)
    rows = []
    for run in runs:
        figure = run.validation if swept else run.accuracy
        shown = DASH if figure is None else f"{100 * figure:.1f}"
        tried = [str(run.values.get(name, DASH)) for name in names]
        seed = DASH if run.seed is None else str(run.seed)
        state = [run.state] if waiting else []
        rows.append((str(run.folder), run.method, *tried, *state, seed, str(run.rounds), shown))
    words = ("folder", "method", *names, *(["state"] if waiting else []))
    columns = (*words, "seed", "rounds", "validation %" if swept else "accuracy %")
    bold = frozenset((i, len(columns) - 1) for i, run in enumerate(runs) if run.chosen)
    note = "bold: the chosen settings" if bold else ""
    screen.table(Grid(f"Runs in {folder}", columns, tuple(rows), bold, note, words=len(words)))
    screen.say("\nTo export a client's model (--client takes a number or a name; or use --all or --global):")
    for run in runs:
        screen.say(f"  {run.command}")


def predict_command(args: list[str]) -> int:
    """Run ``fedkin predict EXPORT FILE``."""
    flags = read(PredictFlags, args, "fedkin predict", "an exported folder and a file: fedkin predict EXPORT FILE")
    if flags.out is not None and flags.out.exists() and not flags.force:
        raise ConfigError(f"{flags.out} exists already; choose another file with --out, or replace it with --force")
    if (flags.export / "config.toml").is_file() and not (flags.export / "card.json").is_file():
        raise RunFolderError(
            f"{flags.export} is a run, not an exported model; export a client's model first: "
            f"fedkin export {typed(flags.export)} --client 0"
        )
    model = load_export(flags.export, flags.network)
    with screen.err.status("reading") as status, heard(lambda text: status.update(Text(text or "predicting"))):
        found = model.predict_file(flags.file, flags.encoding, flags.array)
    if flags.out is not None:
        write_atomic(flags.out, write_csv(found))
    for line in found.notes:
        screen.note(f"warning: {line}")
    if flags.json:
        for row, name, p in zip(found.rows, found.names, found.probabilities.tolist(), strict=True):
            prediction = {"row": row, "label": name, "probabilities": dict(zip(found.labels, p, strict=True))}
            screen.write(json.dumps(prediction))
        return 0
    screen.table(_table(found))
    left = len(found.rows) - _SHOWN
    if left > 0:
        screen.say(f"and {counted(left, 'more row')}" + ("" if flags.out else "; --out FILE.csv writes all"))
    if flags.out is not None:
        many = f"all {len(found.rows)} rows are" if len(found.rows) > 1 else "the row is"
        screen.say(f"{many} in {flags.out}")
    return 0


def _table(found: Predicted) -> Grid:
    """Return the first rows: label, its probability, and the second most probable class."""
    second = len(found.labels) > 1
    rows = []
    for row, p in list(zip(found.rows, found.probabilities, strict=True))[:_SHOWN]:
        top = p.topk(1 + second)
        words = [found.labels[i] for i in top.indices.tolist()]
        shares = [f"{100 * v:.1f} %" for v in top.values.tolist()]
        rows.append((row, words[0], shares[0], *([f"{words[1]} ({shares[1]})"] if second else [])))
    return Grid("", ("row", "label", "probability", *(["next"] if second else [])), tuple(rows), words=2)


def _line(place: Path) -> str:
    card = _card(place)
    who = "all clients" if card["client"] is None else f"client {card['client_name'] or card['client']}"
    test = card["test"]
    good = f"{100 * test['accuracy']:.1f} % of its {test['n']} test samples" if test and test["n"] else "not tested"
    chosen = " (highest validation accuracy)" if card["chosen"] else ""
    return f"{card['title']}, model of {who}, round {card['round']}{chosen}: {good}"


def _card(place: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((place / "card.json").read_text(encoding="utf-8"))
    return card
