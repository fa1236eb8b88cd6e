"""The commands that make runs: run, resume, compare, demo."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedkin.cli import DIVERGED, INTERRUPTED, OK, screen
from fedkin.cli.flags import ShowCompare, Shown, ShowRun, options
from fedkin.cli.outcome import (
    Outcome,
    base_of,
    chosen_folder,
    new_folder,
    tell_clients,
    tell_findings,
    tell_verdicts,
    tell_warnings,
    write_outcome,
)
from fedkin.cli.sweep import resume_sweep
from fedkin.core import ConfigError, RunFolderError
from fedkin.core.errors import FolderBusyError, counted, typed
from fedkin.data import Dataset, Federation, federation_of
from fedkin.experiment.compare import Comparison, as_made, comparison_from, run_name
from fedkin.experiment.compare import compare as run_comparison
from fedkin.experiment.execute import OnRound
from fedkin.experiment.listing import whole_of
from fedkin.experiment.run import resume as resume_run
from fedkin.experiment.run import run_settings
from fedkin.experiment.search_space import Values
from fedkin.experiment.settings import RunSettings, Settings, code_of, completed, settings_from, table_of, title_of
from fedkin.experiment.trackers import TrackedRuns, Tracking, read_ids, require
from fedkin.experiment.tuning import trial_place
from fedkin.methods import REFERENCES, SHOWN, get_title
from fedkin.privacy.budget import sentence
from fedkin.record.divergence import advice
from fedkin.record.divergence import sentence as diverged_sentence
from fedkin.record.figures import to_target, without_test
from fedkin.record.files import read_commit
from fedkin.record.lines import RoundLine
from fedkin.record.result import Result
from fedkin.report import tables
from fedkin.report.content import content_of
from fedkin.report.page import write_page
from fedkin.report.tuning import setting_text, tuning_table
from fedkin.report.wording import listed
from fedkin.storage.folders import reading, require_folder, taken
from fedkin.storage.lock import remove, writing
from fedkin.storage.toml import read_toml
from fedkin.user_code.reference import CodeRef

DEMO_ROUNDS = 100  # enough for every method to converge
OnLine = Callable[[RoundLine], None]


def run(asked: Settings, show: ShowRun) -> int:
    """Make a run of ``fedkin run``."""
    if asked.made_by:
        raise ConfigError(f"these settings were made by a program with {asked.made_by}, which only that program has")
    settings = completed(asked)
    folder = chosen_folder(show.out, code_of(settings).attribute)
    title, new = title_of(settings), not taken(folder)
    if not (show.quiet or show.json):
        tell_clients(asked.data)
    require(show.track)
    tracking, quiet = Tracking(show.track, folder, title, table_of(settings)), show.quiet or show.json
    notice, log = None if quiet else tell_findings(asked.data, asked.run.seed), screen.RunLog(quiet=quiet)
    try:
        with screen.bar(settings.run.rounds, title, quiet=quiet) as bar:
            federation = federation_of(settings.data, settings.run.seed, notice)
            show.require_data(federation)
            result = run_settings(settings, federation, out=folder, on_round=_both(bar.at, tracking.round))
    except KeyboardInterrupt:
        return _stopped(folder, new)
    log.finished(f"{title}, seed {result.seed}", result)
    return _finish(result, show, tracking, code_of(settings))


def resume(folder: Path, rounds: int | None, show: Shown) -> int:
    """Go on with a run, a comparison or a sweep of ``fedkin resume``."""
    require_folder(folder)
    for file, what in (("sweep.toml", "a sweep"), ("compare.toml", "a comparison")):
        if rounds is not None and (folder / file).is_file():
            raise ConfigError(f"{folder} is {what}, and --rounds {rounds} is for a single run; omit it")
    with reading(folder):
        return _resume(folder, rounds, show)


def _resume(folder: Path, rounds: int | None, show: Shown) -> int:
    if (folder / "sweep.toml").is_file():
        return resume_sweep(folder, show)
    try:
        if (folder / "compare.toml").is_file():
            plan = comparison_from(read_toml(folder / "compare.toml"), str(folder / "compare.toml"))
            return _compare(plan, folder, ShowCompare(quiet=show.quiet, json=show.json), again=True)
        if not (folder / "config.toml").is_file():
            raise RunFolderError(f"{folder} is not a run folder: it has no config.toml, compare.toml, sweep.toml")
        return _resume_run(folder, rounds, ShowRun(quiet=show.quiet, json=show.json))
    except KeyboardInterrupt:
        return _stopped(folder)


def _resume_run(folder: Path, rounds: int | None, show: ShowRun) -> int:
    table = read_toml(folder / "config.toml")
    settings = settings_from(table, str(folder / "config.toml")) if "made_by" not in table else None
    before = settings.run if settings else RunSettings()
    names, quiet = tuple(read_ids(folder)), show.quiet or show.json
    require(names)
    ended = rounds is None and bool(read_commit(folder).ended)
    tracking, log = Tracking(names, folder, str(folder), table), screen.RunLog(quiet=quiet)
    with screen.bar(rounds or before.rounds, str(folder), quiet=quiet) as bar:
        result = resume_run(folder, on_round=_both(bar.at, tracking.round), rounds=rounds)
    if ended and not quiet:
        screen.note(f"{folder} was finished already, nothing was trained; --rounds N gives a run more rounds")
    log.finished(f"{result.title}, seed {result.seed}", result)
    every = result.table("run").get("eval_every")
    if every != before.eval_every and not quiet:
        screen.note(
            f"evaluated every {every} rounds, as before: {counted(result.total, 'round')} alone would "
            "mean another "
            f"interval, so this equals a run with --eval-every {every}"
        )
    return _finish(result, show, tracking)


def compare(plan: Comparison, show: ShowCompare) -> int:
    """Make a comparison of ``fedkin compare``."""
    folder = chosen_folder(show.out, "compare")
    if not (show.quiet or show.json):
        tell_clients(plan.base.data)
    return follow_comparison(plan, folder, show)


def follow_comparison(plan: Comparison, folder: Path, show: ShowCompare) -> int:
    """Run a new comparison."""
    try:
        return _compare(plan, folder, show)
    except KeyboardInterrupt:
        return _stopped(folder)


def _compare(plan: Comparison, folder: Path, show: ShowCompare, *, again: bool = False) -> int:
    quiet = show.quiet or show.json
    names: tuple[str, ...] = show.track or tuple(read_ids(folder))
    require(names)
    tracked = TrackedRuns(names, folder)
    order, trials, rounds = as_made(plan.runs()), len(plan.names) * plan.tune, plan.base.run.rounds
    log = screen.RunLog(quiet=quiet, runs=trials + len(order))
    with screen.bar((trials + len(order)) * rounds, "comparison", quiet=quiet) as bar:

        def on_round(name: str, seed: int, report: Any, line: RoundLine) -> None:
            settings, place = plan.settings(name, seed), folder / run_name(name, seed)
            title, number = title_of(settings), trials + order.index((name, seed))
            which = f"{title}, seed {seed}" if len(plan.seeds) > 1 else title
            bar.at(line, f"{which:<20}", number * rounds)
            if names:
                tracked.round(place, title, read_toml(place / "config.toml") if plan.tune else table_of(settings), line)
            if (made := Result.open(place)).ended:
                log.finished(f"{title}, seed {seed}", made, number + 1)

        sweep_of = cache(plan.sweep)

        def on_trial(name: str, number: int, count: int, values: Values, seed: int, line: RoundLine) -> None:
            sweep, at = sweep_of(name), plan.names.index(name) * count + number
            what, place = f"{title_of(sweep.base)}, trial {number + 1} of {count}", trial_place(folder, sweep, number)
            bar.at(without_test(line), f"{what:<20}", at * rounds)
            what += f": {setting_text(values)}"
            if names:
                tracked.round(place, what, table_of(sweep.settings(values, seed)), line)
            if (made := Result.open(place)).ended:
                log.finished(what, made, at + 1, "validation")

        notice = None if quiet or again else tell_findings(plan.base.data, plan.seeds[0])

        def on_data(data: Dataset | Federation, federation: Federation) -> None:
            show.require_data(federation)
            if notice is not None:
                notice(data, federation)

        made = run_comparison(
            plan, out=folder, resume=again, on_round=on_round, progress=False, on_data=on_data, on_trial=on_trial
        )
        runs = [replace(run, at_best=show.at_best) for run in made]
        tracked.end()
    data = write_outcome(plan.baseline, folder, runs)
    if show.json:
        screen.write(json.dumps([_summary(run, show.target_accuracy) | _tuning(run, data) for run in runs], indent=2))
    elif not show.quiet:
        _show_comparison(plan, data, runs, show)
    lost: dict[str, list[str]] = {}
    for run in runs:
        if run.diverged is not None:
            of_run = f"{run.title}, seed {run.seed} (round {run.diverged})"
            lost.setdefault(advice(run.diverged, run.rounds), []).append(of_run)
    for remedy, those in lost.items():
        screen.note(f"fedkin: training diverged in {len(those)} of {len(runs)} runs: {'; '.join(those)}; {remedy}")
    return DIVERGED if lost else OK


def _show_comparison(plan: Comparison, outcome: Outcome, runs: Sequence[Result], show: ShowCompare) -> None:
    screen.table(outcome.report.table)
    if outcome.report.tuned:
        screen.table(tuning_table(outcome.report.tuned))
    tell_verdicts(outcome)
    tell_warnings(outcome.report)
    for run in runs:
        if run.privacy is not None:
            screen.paragraph(f"{run.title}, seed {run.seed}: privacy of {sentence(run.privacy)}")
    if show.target_accuracy is not None:
        for run in runs:
            which = f"{run.title}, seed {run.seed}" if len(plan.seeds) > 1 else run.title
            screen.say(f"{which}: {_reached(run, show.target_accuracy)}")
    screen.paragraph(f"\nPictures and tables: {outcome.page}; table.md, table.tex and table.csv are next to it")


def _tuning(run: Result, outcome: Outcome) -> dict[str, Any]:
    """Return the entry of a run on how its method was tuned; empty if it was not."""
    return next(({"tuning": asdict(one)} for one in outcome.report.tuned if one.title == run.title), {})


def _both(shown: OnLine, tracked: OnLine) -> OnRound:
    """Return a callback that shows a round and reports it to trackers."""

    def on_round(report: Any, line: RoundLine) -> None:
        shown(line)
        tracked(line)

    return on_round


def _finish(result: Result, show: ShowRun, tracking: Tracking, code: CodeRef | None = None) -> int:
    """Write the page and print the results; ``code``: the method as it was named, by default as the folder has it."""
    assert result.folder is not None
    run = replace(Result.finished_in(result.folder), at_best=show.at_best)
    report = content_of([run], base=base_of(run))
    page = write_page(result.folder, report)
    tracking.end()
    if show.json:
        screen.write(json.dumps(_summary(run, show.target_accuracy, by_client=show.per_client), indent=2))
    elif not show.quiet:
        screen.table(report.table)
        screen.say(f"computed by {run.run.engine}")
        if run.privacy is not None:
            screen.say(f"privacy of {sentence(run.privacy)}")
        if show.target_accuracy is not None:
            screen.say(_reached(run, show.target_accuracy))
        if show.per_client:
            screen.table(tables.client_table(run))
        tell_warnings(report)
        screen.say(f"\n{_advice(result, code)}")
        screen.say(f"Everything is in {result.folder}; pictures and tables: {page}")
    if run.diverged is not None:
        screen.note(f"fedkin: {diverged_sentence(run.diverged, run.rounds)}")
        return DIVERGED
    return OK


def _advice(result: Result, code: CodeRef | None) -> str:
    """Return how to compare a run with the references; of a run of a comparison or a sweep, how to see it among the
    others."""
    assert result.folder is not None
    if (whole := whole_of(result.folder)) is not None:
        return f"Next to the other runs of {whole}: fedkin resume {typed(whole)}"
    code = code or CodeRef.read(str(result.table("method")["name"]), result.folder)
    others = listed([get_title(one) for one in REFERENCES if one != code.name])
    return f"Is it worth it? fedkin compare {code.typed} with the same flags adds {others}."


def _summary(run: Result, target: float | None, *, by_client: bool = False) -> dict[str, Any]:
    summary = {**run.summary, "folder": str(run.folder)}
    if target is not None:
        result = to_target(run.rounds, target)
        summary["reached"] = None if result is None else {"rounds": result.rounds, "bytes": result.bytes}
    return {**summary, "accuracy_by_client": run.by_client} if by_client else summary


def _reached(run: Result, target: float) -> str:
    result = to_target(run.rounds, target)
    if result is None:
        return f"did not reach {100 * target:g} % accuracy"
    return (
        f"reached {100 * target:g} % accuracy after {counted(result.rounds, 'round')} and {result.bytes / 1e6:,.1f} MB"
    )


def _stopped(folder: Path, new: bool = False) -> int:
    """Print how to continue; ``new``: the folder did not exist before this command."""
    if new and folder.is_dir() and not read_commit(folder).round:
        # another command may have started a run there; what cannot be removed stays
        with contextlib.suppress(FolderBusyError, OSError), writing(folder):
            remove(folder)  # no round is done: there is nothing to continue
    if (folder / "config.toml").exists() or (folder / "compare.toml").exists():
        screen.note("stopped; continue with:", f"fedkin resume {typed(folder)}")
    else:
        screen.note("stopped before the first round was done")
    return INTERRUPTED


# ---- demo
@dataclass(frozen=True)
class DemoFlags:
    """Compare ten methods on handwritten digits, in about a minute. Other data and settings: fedkin compare."""

    quiet: bool = False
    """No progress bar and no table."""


def demo_command(args: list[str]) -> int:
    """Run ``fedkin demo [flags]``: the four systems, the safe form of one, and their references."""
    flags = options(DemoFlags, args, "fedkin demo")
    base = Settings().but(
        data="digits", clients=20, partition="dirichlet@alpha=0.5",
        validation=0.2,  # on which clients of the safe form choose their shares
        model="mlp", epochs=2, batch_size=10, lr=0.05, rounds=DEMO_ROUNDS, participation=0.5,
    )  # fmt: skip
    plan = Comparison(SHOWN, base=base)
    if not flags.quiet:
        screen.say(
            "1,797 handwritten digits on 20 clients whose shares of the ten digits differ (Dirichlet 0.5), "
            "half of them in each of 100 rounds.\nWhich clients should learn from whom, and did it pay?"
        )
    return follow_comparison(plan, new_folder("demo"), ShowCompare(quiet=flags.quiet))
