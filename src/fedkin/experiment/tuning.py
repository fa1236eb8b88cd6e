"""Tuning of a comparison's methods: an equal number of trials each, one choice by validation data of the first seed.

The folder ``tuning`` of a comparison holds a sweep for each method. What was chosen is in ``tuning.json`` next to it.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import mean, stdev

from fedkin.core import Method, RunFolderError
from fedkin.core.errors import counted
from fedkin.core.grammar import Fields, Table, subtable
from fedkin.core.settings import Optimizer
from fedkin.data import Federation
from fedkin.experiment.listing import TRIALS
from fedkin.experiment.search_space import Space, Values, space_from
from fedkin.experiment.settings import Settings, code_of, method_of, title_of
from fedkin.experiment.sweep import OnTrial, Sweep, Trial, at_ends, chosen, run_sweep, trial_name
from fedkin.record.lines import RoundLine
from fedkin.record.result import Result
from fedkin.report.tuning import Tuned, read_tuned, write_tuned

OnTuning = Callable[[str, int, int, Values, int, RoundLine], None]
"""Called after each round of a trial with the method's name and what `fedkin.experiment.sweep.OnTrial` gets."""
_LR: dict[Optimizer, str] = {"sgd": "log:1e-3..1", "adam": "log:1e-4..1e-1", "adamw": "log:1e-4..1e-1"}
"""Optimizer -> the range of the step size, one for all methods. A step of Adam has about this length in each weight,
however small the gradient is; common values are a tenth of SGD's."""


def space_of(method: Method, given: Table, optimizer: Optimizer = "sgd") -> Space:
    """Return what is varied of a method: the step size, the fields that it and those it wraps state (`tuned`), and the
    momentum of SGD.

    Args:
        method: the method.
        given: fields that the user has set, which stay; those of a wrapped method under ``inner``.
        optimizer: the clients' optimizer, which decides the range of the step size.
    """
    momentum = {"training.momentum": [0.0, 0.5, 0.9]} if optimizer == "sgd" else {}
    result = {"training.lr": _LR[optimizer], **_fields(method, given, "method."), **momentum}
    return space_from(result, type(method).__name__)


def _fields(method: Method, given: Table, prefix: str) -> Fields:
    own = {name: values for name, values in method.tuned.items() if name not in given}
    result = {prefix + name: values if isinstance(values, str) else list(values) for name, values in own.items()}
    inner = getattr(method, "inner", None)
    return result | (_fields(inner, subtable(given, "inner"), f"{prefix}inner.") if isinstance(inner, Method) else {})


def tuning_sweep(settings: Settings, given: Table, trials: int) -> Sweep:
    """Return the sweep that tunes a method; its first trial has the settings themselves.

    Args:
        settings: of a run of the method; its seed is that of all trials.
        given: as in `space_of`.
        trials: number of trials.

    Raises:
        ConfigError: there are no validation data, or the method states values that it does not take.
    """
    space = space_of(method_of(settings), given, settings.training.optimizer)
    return Sweep(settings, space, trials, (settings.run.seed,), sampler="sobol")


def tune_all(
    sweeps: Mapping[str, Sweep],
    folder: Path | None,
    federation: Federation,
    on_trial: OnTuning | None = None,
) -> dict[str, Values]:
    """Tune methods, one after another, and return what was chosen for each.

    Args:
        sweeps: method -> its trials, as from `tuning_sweep`.
        folder: that of the comparison, in which what was begun is continued, and methods that were tuned already are
            not tuned again; None: a temporary one.
        federation: data of the sweeps' seed.
        on_trial: called after each round of a trial.

    Raises:
        RunFolderError: the folder's file ``tuning.json`` is damaged or was made with another number of trials or seed,
            or another process is writing into the folder.
        ConfigError: no client has validation data.
    """
    before = [] if folder is None else read_tuned(folder)
    known = {one.method: one for one in before}
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder / TRIALS) as place:
        for name, sweep in sweeps.items():
            own = code_of(sweep.base).attribute
            if own in known:
                _require_same(known[own], sweep, folder)
                continue
            observer = None if on_trial is None else partial(on_trial, name)
            known[own] = _tuned(sweep, Path(place) / own, federation, observer)
    result = {name: known[code_of(sweep.base).attribute] for name, sweep in sweeps.items()}
    if folder is not None and list(result.values()) != before:
        write_tuned(folder, list(result.values()))
    return {name: dict(one.chosen) for name, one in result.items()}


def _require_same(one: Tuned, sweep: Sweep, folder: Path | None) -> None:
    """Raise `RunFolderError` if a choice was made by other trials than those of the sweep."""
    if (one.trials, one.seed) != (sweep.trials, sweep.seeds[0]):
        raise RunFolderError(
            f"{one.title} was tuned with {counted(one.trials, 'trial')} on seed {one.seed} in {folder}, and now it "
            f"would be {sweep.trials} on seed {sweep.seeds[0]}; continue it as it was begun, or make another comparison"
        )


def trial_place(folder: Path, sweep: Sweep, number: int) -> Path:
    """Return the run folder of a trial, whose number counts from 0, in that of its comparison."""
    return folder / TRIALS / code_of(sweep.base).attribute / trial_name(number, sweep.seeds[0])


def _tuned(sweep: Sweep, out: Path, federation: Federation, on_trial: OnTrial | None) -> Tuned:
    """Run the trials of a method, or continue them, and return what was chosen by validation accuracy."""
    begun = (out / "sweep.toml").is_file()
    if not begun:  # what a kill has left before the first trial
        shutil.rmtree(out, ignore_errors=True)
    trials = run_sweep(sweep, out, resume=begun, on_trial=on_trial, federation=federation)
    best = chosen(trials)
    if best is not None and not _beats(best.by_client, trials[0].by_client):
        best = trials[0]
    values = sweep.start() if best is None else best.values
    return Tuned(
        code_of(sweep.base).attribute,
        title_of(sweep.base),
        sweep.seeds[0],
        len(trials),
        sum(t.validation is None for t in trials),
        0 if best is None else best.number + 1,
        values,
        None if best is None else _validation(best),
        _validation(trials[0]),
        sum(_seconds(out / trial_name(t.number, sweep.seeds[0])) for t in trials),
        [] if best is None else at_ends(sweep, values),
        None if best is None else best.megabytes,
    )


def _beats(after: Mapping[int, float], before: Mapping[int, float]) -> bool:
    """Return whether validation accuracies of clients are above others by more than one standard error."""
    gains = [after[i] - before[i] for i in after if i in before]
    return len(gains) < 2 or mean(gains) > stdev(gains) / math.sqrt(len(gains))


def _validation(trial: Trial) -> float | None:
    return None if trial.validation is None else trial.validation.mean


def _seconds(run: Path) -> float:
    return sum(line.whole + line.evaluation for line in Result.open(run).timing)
