"""More rounds for a run that has ended or was interrupted: its folder becomes that of a longer run.

The rounds that are done must be the first rounds of the longer run, bit for bit. Training gives them unless the method
depends on the number of rounds (`fedkin.capabilities.Needs.total`) or its step sizes do (the schedule "cosine").
Evaluations do not: a run is evaluated in each of its last ten rounds, and by default about 25 times in all. Lines of
evaluations that the longer run would not make are taken out again; where it would make one that was not made, the
interval of the shorter run is kept.

All files that change are replaced together (`fedkin.experiment.run_folder.RunFolder.replace`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fedkin.capabilities.asks import sends_scores
from fedkin.capabilities.needs import needs_of
from fedkin.core import ConfigError, Method
from fedkin.core.errors import counted
from fedkin.experiment.prepare import Experiment, plan_of
from fedkin.experiment.records import unevaluated, without_outcomes
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import RunSettings, Settings, decisive, digest, method_of, table_of, toml_of
from fedkin.record.figures import best, evaluated, stop_round
from fedkin.record.files import RUN, read_json
from fedkin.record.lines import ClientLine, RoundLine, RunLine
from fedkin.server import Plan
from fedkin.storage.lock import writing
from fedkin.storage.toml import read_toml


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
    folder, asked = RunFolder.open(path), e.settings.run
    with writing(folder.path):
        folder.recover()
        there = read_toml(folder.path / "config.toml")
        run = there.get("run", {})
        if "made_by" not in there or not isinstance(rounds := run.get("rounds"), int):
            return asked
        every = run.get("eval_every") if asked.eval_every is None else asked.eval_every
        before = asked.but(rounds=rounds, eval_every=every)
        former = e.settings.but(run=before)
        if decisive(table_of(former)) != decisive(there):
            return asked
        if rounds == asked.rounds:
            return before
        folder.require({name: mark for name, mark in e.marks.items() if name != "config"}, e.about)
        return extend(folder, former, asked.rounds, e.method).run


def extend(folder: RunFolder, there: Settings, rounds: int, method: Method | None = None) -> Settings:
    """Change the number of rounds of a run in its folder; return the new settings.

    Args:
        there: the run's settings.
        method: its method, of a run made by a program.

    Raises:
        ConfigError: the rounds that are done are not the first ones of such a run, or are more.
        RunFolderError: a file is damaged, or the run is another one.
    """
    if rounds == there.run.rounds:
        return there
    folder.recover()
    folder.require(*_marked(there))
    done = folder.commit.round
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
    if done and (why := _why_not(there, method or method_of(there))):
        raise ConfigError(
            f"{refused}{why}, so the first {done} rounds "
            f"of {there.run.rounds} are not the first {done} of {rounds}; begin a run of {rounds} rounds in another "
            "folder"
        )
    former, lines = plan_of(there), list(folder.rounds())
    for every in (there.run.eval_every, former.interval):
        run = there.run.but(rounds=rounds, eval_every=every)
        plan = plan_of(there.but(run=run))
        lacking = [line.round for line in lines if plan.evaluates(line.round) and line.figures is None]
        if not lacking and not _loses_counts(there, lines, plan):
            kept = [line if plan.evaluates(line.round) else unevaluated(line) for line in lines]
            _require_going_on(refused, kept, run.stop_after)
            longer = there.but(run=run)
            _replace(folder, longer, kept, _Clients(plan))
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


def _loses_counts(there: Settings, lines: Sequence[RoundLine], plan: Plan) -> bool:
    """Return whether the data drift between the first evaluation so far and the first that a plan makes.

    A client's class counts are recorded with its first evaluation, and there are none from after the drift.
    """
    drift = there.data.planted[1].drift if there.data.planted is not None else None
    made = [round for round, _ in evaluated(lines)]
    kept = next((round for round in made if plan.evaluates(round)), math.inf)
    return drift is not None and bool(made) and made[0] < drift <= kept


def _require_going_on(refused: str, lines: Sequence[RoundLine], stop_after: int | None) -> None:
    """Raise `ConfigError` if a run with these rounds ends early before further ones."""
    if (last := stop_round(lines, stop_after)) is not None:
        raise ConfigError(
            f"{refused}with stop_after = {stop_after} it would end early as well, after round {last}; begin a run with "
            "another --stop-after in another folder"
        )


def _why_not(there: Settings, method: Method) -> str:
    """Return what of a run depends on its number of rounds; "" if nothing does."""
    if there.training.schedule == "cosine":
        return "its step sizes depend on their number (the schedule 'cosine')"
    if there.privacy.metadata_epsilon is not None and sends_scores(method) == "noisy":
        return "clients report a choice with noise in the last of them alone (metadata_epsilon)"
    why = needs_of(method).total
    return f"{type(method).__name__} depends on their number ({why})" if why else ""


def _replace(folder: RunFolder, longer: Settings, rounds: Sequence[RoundLine], change: _Clients) -> None:
    """Give a folder the files of a longer run."""
    encoder = msgspec.json.Encoder()
    clients = [after for line in folder.clients() if (after := change(line)) is not None]
    files = {
        "rounds.jsonl": encoder.encode_lines(rounds),
        "clients.jsonl": encoder.encode_lines(clients),
        "config.toml": toml_of(longer).encode(),
    }
    if (folder.path / RUN).exists():
        run, (marks, about) = read_json(folder.path / RUN, RunLine), _marked(longer)
        run = msgspec.structs.replace(run, marks={**run.marks, **marks}, about={**run.about, **about})
        files[RUN] = encoder.encode(run) + b"\n"
    held = best(rounds)
    folder.replace(files, None if held is None else held.round)


def _marked(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fingerprint of settings, and what it is of."""
    table = table_of(settings)
    return {"config": digest(table)}, {"config": json.dumps(decisive(table), sort_keys=True)}


class _Clients:
    """Client lines of a longer run.

    Lines of evaluations that it does not make go. A client's training samples by class stand in its first line; single
    test samples stand in the lines of the last round.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._labels = plan, dict[int, tuple[int, ...]]()

    def __call__(self, line: ClientLine) -> ClientLine | None:
        if not self._plan.evaluates(line.round):
            if line.labels:
                self._labels[line.client] = line.labels
            return None
        if line.round != self._plan.rounds:
            line = without_outcomes(line)
        return line if line.labels else msgspec.structs.replace(line, labels=self._labels.pop(line.client, ()))
