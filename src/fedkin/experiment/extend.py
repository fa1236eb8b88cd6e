"""More rounds for a run that has ended or was interrupted: its folder becomes that of a longer run.

The rounds that are done must be the first rounds of the longer run, bit for bit. Training gives them unless the method
depends on the number of rounds (`fedkin.capabilities.Needs.total`) or its step sizes do (the schedule "cosine").
Evaluations do not: a run is evaluated in each of its last ten rounds, and by default about 25 times in all. Lines of
evaluations that the longer run would not make are taken out again; where it would make one that was not made, the
interval of the shorter run is kept.

What is changed is written down in ``extending.json`` first, so that a kill in between leaves a folder that
`fedkin.experiment.run.resume` can complete.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from fedkin.capabilities.asks import sends_scores
from fedkin.capabilities.needs import needs_of
from fedkin.core import ConfigError, Method, RunFolderError
from fedkin.core.errors import counted
from fedkin.evaluate import stop_round
from fedkin.experiment.prepare import Experiment, plan_of
from fedkin.experiment.records import unevaluated
from fedkin.experiment.run_folder import EXTENDING, RunFolder
from fedkin.experiment.settings import RunSettings, Settings, Setup, decisive, digest
from fedkin.server import Plan
from fedkin.server.upload_checks import OUTCOMES
from fedkin.storage.checkpoint import about_texts
from fedkin.storage.files import naming, write_atomic
from fedkin.storage.json_lines import KEYS, Record, lines_of
from fedkin.storage.line_files import size_texts
from fedkin.storage.lock import writing
from fedkin.storage.row_store import require_supported
from fedkin.storage.toml import plain, read_toml


@dataclass(frozen=True, kw_only=True)
class ProgramSettings(Setup):
    """Settings of a run that a program made.

    Attributes:
        made: tables of its config (`fedkin.experiment.fingerprints.table_of`); those of the run are replaced.
    """

    method: Method
    made: Mapping[str, Any]

    def table(self) -> dict[str, Any]:
        """Return all tables of the config."""
        return {**self.made, "run": plain(self.run)}

    def toml(self) -> str:
        """Return the config."""
        return tomli_w.dumps(self.table())


_S = TypeVar("_S", Settings, ProgramSettings)


def continued(path: Path | str, e: Experiment) -> RunSettings:
    """Return the settings with which a program's run goes on in its folder, after giving it the rounds asked for.

    An interval of evaluations that is not asked for is that of the folder. Where anything but the number of rounds
    differs, the settings are returned as they are, and `fedkin.experiment.execute.opened` says what differs.

    Args:
        path: the folder.
        e: the run that is asked for.

    Raises:
        ConfigError, RunFolderError: as of `extend`; or data or network are others than those of the folder.
    """
    folder, asked = RunFolder.open(path), e.setup.run
    with writing(folder.path):
        complete(folder)
        there = read_toml(folder.path / "config.toml")
        run = there.get("run", {})
        if "made_by" not in there or not isinstance(rounds := run.get("rounds"), int):
            return asked
        every = run.get("eval_every") if asked.eval_every is None else asked.eval_every
        before = replace(asked, rounds=rounds, eval_every=every)
        former = ProgramSettings(**{**e.setup.groups(), "run": before}, method=e.method, made=e.table)
        if decisive(former.table()) != decisive(there):
            return asked
        if rounds == asked.rounds:
            return before
        if folder.checkpoint.path.exists():  # before anything is changed
            folder.checkpoint.read({name: mark for name, mark in e.marks.items() if name != "config"}, e.about)
        return extend(folder, former, asked.rounds).run


def extend(folder: RunFolder, there: _S, rounds: int) -> _S:
    """Change the number of rounds of a run in its folder; return the new settings.

    Args:
        there: the run's settings.

    Raises:
        ConfigError: the rounds that are done are not the first ones of such a run, or are more.
        RunFolderError: a file is damaged, or the run's models are in files that this system cannot use.
    """
    if rounds == there.run.rounds:
        return there
    if folder.bank_files.exists():
        require_supported(folder.bank_files)
    done = folder.settle(*_marked(there))
    if rounds < done:
        raise ConfigError(
            f"{folder.path} has {counted(done, 'round')}, more than the {rounds} asked for; give more than {done}"
        )
    if rounds == done:
        raise ConfigError(
            f"{folder.path} has {counted(done, 'round')} of {there.run.rounds}: right and wrong for every test sample "
            f"are recorded in the last round of a run alone, so it cannot end with round {done}; give more than {done}"
        )
    refused = f"{folder.path} cannot become a run of {rounds} rounds: "
    if done and (why := _why_not(there)):
        raise ConfigError(
            f"{refused}{why}, so the first {done} rounds "
            f"of {there.run.rounds} are not the first {done} of {rounds}; begin a run of {rounds} rounds in another "
            "folder"
        )
    former, lines = plan_of(there), folder.lines.read("rounds")
    for every in (there.run.eval_every, former.interval):
        run = replace(there.run, rounds=rounds, eval_every=every)
        plan = plan_of(replace(there, run=run))
        lacking = [line["round"] for line in lines if plan.evaluates(line["round"]) and not line["evaluated"]]
        if not lacking and not _loses_counts(there, lines, plan):
            _require_going_on(refused, [line for line in lines if plan.evaluates(line["round"])], run.stop_after)
            longer = replace(there, run=run)
            _prepare(folder, longer, plan)
            complete(folder)
            return longer
    if not lacking:
        raise ConfigError(
            f"{refused}its first evaluation would come after the data drift, and the former first one, with the class "
            "counts before it, would go; begin a run of that many rounds in another folder"
        )
    raise ConfigError(
        f"{refused}it would have been evaluated in its last ten rounds, and round {lacking[0]} is done and was not; "
        f"give {done + 10} rounds or more"
    )


def _loses_counts(there: Settings | ProgramSettings, lines: Sequence[Record], plan: Plan) -> bool:
    """Return whether the data drift between the first evaluation so far and the first that a plan makes.

    A client's class counts are recorded with its first evaluation, and there are none from after the drift.
    """
    drift = there.data.drift_round if isinstance(there, Settings) else None
    first = next((line["round"] for line in lines if line["evaluated"]), None)
    kept = next((line["round"] for line in lines if line["evaluated"] and plan.evaluates(line["round"])), math.inf)
    return drift is not None and first is not None and first < drift <= kept


def _require_going_on(refused: str, evaluated: list[Record], stop_after: int | None) -> None:
    """Raise `ConfigError` if a run with these evaluations ends early before further rounds."""
    if (last := stop_round(evaluated, stop_after)) is not None:
        raise ConfigError(
            f"{refused}with stop_after = {stop_after} it would end early as well, after round {last}; begin a run with "
            "another --stop-after in another folder"
        )


def _why_not(there: Settings | ProgramSettings) -> str:
    """Return what of a run depends on its number of rounds; "" if nothing does."""
    if there.training.schedule == "cosine":
        return "its step sizes depend on their number (the schedule 'cosine')"
    if there.privacy.metadata_epsilon is not None and sends_scores(there.method) == "noisy":
        return "clients report a choice with noise in the last of them alone (metadata_epsilon)"
    why = needs_of(there.method).total
    return f"{type(there.method).__name__} depends on their number ({why})" if why else ""


def _prepare(folder: RunFolder, longer: Settings | ProgramSettings, plan: Plan) -> None:
    """Write the new lines next to the old ones, and then the record of what is to be done."""

    def rounds(line: Record) -> Record:
        return line if plan.evaluates(line["round"]) or not line["evaluated"] else unevaluated(line)

    changes: dict[str, Callable[[Record], Record | None]] = {"rounds": rounds, "clients": _Clients(plan)}
    files, at_best, best = dict[str, int](), dict[str, int](), folder.best.round()
    for name in ("rounds", "clients", "relations"):
        path = folder.path / f"{name}.jsonl"
        if path.exists():
            change = changes.get(name, lambda line: line)
            files[path.name], at_best[path.name] = _rewritten(path, change, best or 0)
    marks, about = _marked(longer)
    record = {
        "config": longer.toml(),
        "mark": marks["config"],
        "about": about["config"],
        "files": files,
        "best": at_best,
    }
    write_atomic(folder.path / EXTENDING, json.dumps(record).encode())


def _marked(settings: Settings | ProgramSettings) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fingerprint of settings in a checkpoint, and what it is of."""
    table = settings.table()
    return {"config": digest(table)}, {"config": json.dumps(decisive(table), sort_keys=True)}


class _Clients:
    """Client lines of a longer run.

    Lines of evaluations that it does not make go. A client's training samples by class stand in its first line; single
    test samples stand in the lines of the last round.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._labels: dict[int, tuple[int, Any]] = {}

    def __call__(self, line: Record) -> Record | None:
        client, round = line["client"], line["round"]
        if not self._plan.evaluates(round):
            if "labels" in line:
                self._labels[client] = (list(line).index("labels"), line["labels"])
            return None
        if round != self._plan.rounds:
            line = {name: value for name, value in line.items() if name not in OUTCOMES}
        if client in self._labels and "labels" not in line:
            at, labels = self._labels.pop(client)
            entries = list(line.items())
            line = dict([*entries[:at], ("labels", labels), *entries[at:]])
        return line


def _rewritten(path: Path, change: Callable[[Record], Record | None], until: int) -> tuple[int, int]:
    """Write the changed lines next to a file; return their bytes, and those of the lines up to a round."""
    whole = part = 0
    with naming(path), _sibling(path).open("wb") as file:
        for line, _ in lines_of(path):
            if (after := change(line)) is not None:
                whole += file.write(json.dumps(after).encode() + b"\n")
                part = whole if after["round"] <= until else part
    return whole, part


def _sibling(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")  # as half-written files are called, which are removed when runs go on


def complete(folder: RunFolder) -> None:
    """Carry out what `extend` has recorded and what is not done yet.

    Raises:
        RunFolderError: a file is damaged.
    """
    try:
        record = json.loads((folder.path / EXTENDING).read_bytes())
        config, files = str(record["config"]), {name: int(record["files"].get(name, 0)) for name in KEYS}
        texts = {"config": str(record["mark"]), **about_texts({"config": str(record["about"])})}
        best = {name: int(size) for name, size in record["best"].items()}
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise RunFolderError(f"{folder.path / EXTENDING} is damaged ({e}); restore the folder from a copy") from e
    (folder.path / "summary.json").unlink(missing_ok=True)  # until the longer run has its own
    for path in (folder.path / name for name in KEYS):
        with suppress(FileNotFoundError):  # there is none to replace, or a kill came after this step
            os.replace(_sibling(path), path)
    write_atomic(folder.path / "config.toml", config.encode())
    folder.checkpoint.relabel({**texts, **size_texts(files)})
    folder.best.relabel({**texts, **size_texts(best)})
    (folder.path / EXTENDING).unlink()
