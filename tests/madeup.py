"""Made-up lines of runs, from the few fields that a test is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from msgspec.structs import fields, replace

from fedkin.core.refusals import Code, Refused, Stage
from fedkin.record.files import COMMIT, RUN, LineFiles, write_json
from fedkin.record.lines import ClientLine, Commit, Figures, RoundLine, RunLine, Snapshot, TimingLine
from fedkin.record.result import Result

_FIGURES = {f.name for f in fields(Figures)} - {"notes"}


def round_line(
    round: int,
    *,
    evaluated: bool = True,
    refused: Mapping[int, Code] | None = None,
    stage: Stage = "update",
    **flat: Any,
) -> RoundLine:
    """A line of a round: names of figures are those of its evaluation, and the codes of refusals are of one stage."""
    views = {name.removeprefix("accuracy_"): flat.pop(name) for name in list(flat) if name.startswith("accuracy_")}
    found = {name: flat.pop(name) for name in list(flat) if name in _FIGURES}
    why = tuple(Refused(code, "model", stage=stage, client=i) for i, code in (refused or {}).items())
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in flat.items()}
    return RoundLine(round, refused=why, figures=Figures(views=views, **found) if evaluated else None, **lists)


def rounds(*accuracies: float | None, validation: list[float | None] | None = None, **more: Any) -> list[RoundLine]:
    """Evaluated rounds 1, 2, ... of 10 bytes up and 5 down each."""
    each = validation or [None] * len(accuracies)
    return [
        round_line(t, accuracy=a, validation=v, **{"bytes_up": 10, "bytes_down": 5, **more})
        for t, (a, v) in enumerate(zip(accuracies, each, strict=True), start=1)
    ]


def changed(line: RoundLine, **figures: Any) -> RoundLine:
    """A line with other figures."""
    assert line.figures is not None
    views = {name.removeprefix("accuracy_"): figures.pop(name) for name in list(figures) if "accuracy_" in name}
    return replace(line, figures=replace(line.figures, views={**line.figures.views, **views}, **figures))


def client_line(round: int, client: int, accuracy: float | None = None, n_test: int = 10, **flat: Any) -> ClientLine:
    """A line of a client; the number of correct samples need not be whole."""
    correct = 0 if accuracy is None else accuracy * n_test
    views = {name.removeprefix("accuracy_"): flat.pop(name) for name in list(flat) if name.startswith("accuracy_")}
    notes = {name.removeprefix("note_"): flat.pop(name) for name in list(flat) if name.startswith("note_")}
    if (held := flat.pop("validation", None)) is not None:
        flat |= {"n_validation": 10, "correct_validation": held * 10}
    size = 0 if accuracy is None else n_test
    return ClientLine(round, client, **{"n_test": size, "correct": correct, "views": views, "notes": notes, **flat})


def answers(right: bytes, n: int, part: str, logits: str = "") -> ClientLine:
    """A client's line with right and wrong for each of its test samples."""
    return ClientLine(1, 0, n_test=n, right=right, test_part=part, logits=logits)


def written(folder: Path, run: Result, *, without: tuple[str, ...] = ()) -> Path:
    """The folder of a finished run with these lines; counts of clients become whole."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = [replace(line, correct=round(line.correct)) for line in run.clients]
    lines = {"rounds": run.rounds, "clients": whole, "relations": list(run.relations)}
    files = LineFiles(folder)
    files.append({name: found for name, found in lines.items() if name not in without})
    files.append({"timing": [TimingLine(line.round, 0.0) for line in run.rounds]})
    (folder / "config.toml").write_text(tomli_w.dumps(run.config))
    write_json(folder / RUN, run.run)
    write_json(folder / COMMIT, Commit(Snapshot(run.total, "0" * 40), files=files.marks(), ended="rounds"))
    return folder


def about(title: str = "M", seed: int = 0, clients: int = 4, **more: Any) -> RunLine:
    """What a made-up run is."""
    return RunLine("0", title, seed, clients, **more)


def edit(
    run: Result,
    rounds: Callable[[RoundLine], Mapping[str, Any] | None] | None = None,
    clients: Callable[[ClientLine], Mapping[str, Any] | None] | None = None,
    config: Mapping[str, Any] | None = None,
    **about: Any,
) -> Result:
    """Change a run in memory in place: fields of its lines, named as in `round_line` and `client_line`, and of its
    `RunLine`."""
    for lines, change, one in ((run.rounds, rounds, _round), (run.clients, clients, _client)):
        if change is not None:
            assert isinstance(lines, list)
            lines[:] = [one(line, dict(change(line) or {})) for line in lines]
    object.__setattr__(run, "run", replace(run.run, **about))
    object.__setattr__(run, "config", run.config if config is None else config)
    return run


def _round(line: RoundLine, given: dict[str, Any]) -> RoundLine:
    figures = {name: given.pop(name) for name in list(given) if name in _FIGURES or name.startswith("accuracy_")}
    if (codes := given.pop("refused", None)) is not None:
        given["refused"] = tuple(Refused(c, "model", stage="update", client=i) for i, c in codes.items())
    line = replace(line, **given)
    return changed(line, **figures) if figures else line


def _client(line: ClientLine, given: dict[str, Any]) -> ClientLine:
    line = replace(line, **{name: value for name, value in given.items() if name != "accuracy"})
    return replace(line, correct=given["accuracy"] * line.n_test) if "accuracy" in given else line
