"""Flags from dataclass fields: the common settings and a method's own, under their own names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from fedkin.capabilities.presets import TABLES, presets_of
from fedkin.cli.figures import FigureFlags
from fedkin.cli.options import options
from fedkin.cli.parts import HELP_FLAGS, parse, summary
from fedkin.core import ConfigError, Training
from fedkin.data import absolute
from fedkin.experiment.compare import Comparison, comparison_parts, known, meant
from fedkin.experiment.planned import compared
from fedkin.experiment.search_space import space_from
from fedkin.experiment.settings import DataSettings, Settings, Setup, settings_from
from fedkin.experiment.sweep import Sampler, Sweep, sweep_table_of
from fedkin.experiment.trackers import TrackerName
from fedkin.methods import METHODS, get_method, place
from fedkin.report.publication_tables import require_decimals
from fedkin.storage.toml import fill, read_toml, value_of

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """Output."""

    quiet: bool = False
    """No progress bar and no table."""
    json: bool = False
    """Write the summary as JSON, and nothing else, to standard output."""


@dataclass(frozen=True)
class DetailFlags:
    """More about single runs."""

    per_client: bool = False
    """Show a line per client, in the table and in the JSON."""
    target_accuracy: float | None = None
    """Target accuracy, such as 0.9: report the rounds and bytes needed to reach it."""

    def __post_init__(self) -> None:
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise ConfigError(f"target_accuracy must be an accuracy in (0, 1], such as 0.9, got {self.target_accuracy}")


@dataclass(frozen=True)
class Show(Shown):
    """Output."""

    out: Path | None = None
    """Run folder. Default: runs/METHOD-TIME."""


@dataclass(frozen=True)
class ShowSweep(Show):
    """Output."""

    preset: str | None = None
    """Named settings of the method, such as da-pfl's "code"; other flags win over them."""
    track: tuple[TrackerName, ...] = ()
    """Log the run to experiment trackers, one or several: tensorboard, mlflow, wandb."""


@dataclass(frozen=True)
class ShowRun(ShowSweep, DetailFlags, FigureFlags):
    """Output."""


@dataclass(frozen=True)
class ShowCompare(Show, DetailFlags, FigureFlags):
    """Output."""

    decimals: int = 1
    """Decimal places in table.md and table.tex."""
    track: tuple[TrackerName, ...] = ()
    """Log every run to experiment trackers, one or several: tensorboard, mlflow, wandb."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_decimals(self.decimals)


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(Shown, DetailFlags, FigureFlags):
    """Resume an interrupted run, comparison or sweep, with the same result as without the interruption."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The folder that holds it."""
    rounds: int | None = None
    """Of a run, finished or interrupted: give it this number of rounds, as if it had had them from the start."""
    decimals: int = 1
    """Of a comparison: decimal places in table.md and table.tex."""


@dataclass(frozen=True)
class RunsSettings:
    """The runs themselves."""

    seeds: tuple[int, ...] = (0,)
    """One run of every method for each seed."""
    set: tuple[str, ...] = ()
    """Fields of single methods: METHOD.FIELD=VALUE, several after one --set. M@FIELD=VALUE as a method is a further
    row with other settings."""
    baseline: str = "local"
    """The method that all others are compared with, in differences and verdicts."""
    safe: bool = False
    """Also compare the safe form of every method (NAME-safe): each client mixes it with a model trained alone."""
    tune: int = 0
    """Trials per method on validation data, of its step size and own fields; the best setting is used, and the data are
    the same in all seeds. 0: none."""


@dataclass(frozen=True)
class SweepSettings:
    """The search space; the setting with the highest validation accuracy is chosen."""

    grid: tuple[str, ...] = ()
    """PART.SETTING=VALUE,VALUE..., several after one --grid, such as training.lr=0.01,0.1 method.mu=0.1,1. All
    combinations are run, or --trials of them."""
    space: tuple[str, ...] = ()
    """Ranges for --trials: training.lr=log:1e-3..1e-1, training.momentum=0..0.9, training.epochs=int:1..5."""
    trials: int = 0
    """Number of settings that are drawn, instead of trying all combinations."""
    seeds: tuple[int, ...] = (0,)
    """Every setting is run with each seed and judged by the mean."""
    sampler: Sampler = "tpe"
    """What draws them: Optuna (tpe), which follows what was found, or a Sobol sequence, which covers the space evenly
    after the setting itself."""


def run_flags(args: list[str]) -> tuple[Settings, ShowRun]:
    """Return the settings of ``fedkin run METHOD|FILE.toml [flags]``.

    Raises:
        ConfigError: no method, or a setting that does not fit.
    """
    parts: dict[str, Any] = {"show": ShowRun()}
    what = _first(args, "run", "fedavg", "Train a federation by one method.", parts)
    base = _from_file(what) if what.endswith(".toml") else Settings(what, get_method(what))
    base = _with_preset(base, args)
    parts = {"method": base.method, **parts_of(base), **parts}
    got = parse(parts, args[1:], f"fedkin run {what}", summary(base.method))
    return Settings(base.name, got["method"], **_groups(got, base, args)), got["show"]


def compare_flags(args: list[str]) -> tuple[Comparison, ShowCompare]:
    """Return the plan of ``fedkin compare M1 M2 ...|FILE.toml [flags]``.

    Raises:
        ConfigError: no method, or a setting that does not fit.
    """
    names: list[str] = []
    while args and not args[0].startswith("-"):
        names.append(args.pop(0))
    if len(names) == 1 and names[0].endswith(".toml"):
        given = comparison_parts(read_toml(names[0]), names[0], checked=False)
    else:
        if not names and not {"-h", "--help", "--help-all"} & set(args):
            raise ConfigError("fedkin compare needs methods or a config file: fedkin compare da-pfl pfedcs")
        given = {"methods": tuple(names)}
    base, args = Setup(**_entries(given, Setup)), _one_seed(args)
    got = parse(
        {
            **parts_of(base),
            "runs": RunsSettings(**_entries(given, RunsSettings)),
            "show": ShowCompare(),
        },
        args,
        "fedkin compare M1 M2 ...",
        "Several methods side by side: same data, same start, same clients in each round.",
    )
    runs, groups = got["runs"], _groups(got, base, args)
    all_names = compared(tuple(map(known, given["methods"])), runs.safe)
    own = {meant(name, all_names): dict(values) for name, values in given.get("own", {}).items()}
    for text in runs.set:
        name, key, value = _one(text)
        name = meant(name, all_names)
        place(own.setdefault(name, {}), get_method(name), key, value)
    return Comparison(given["methods"], runs.seeds, own, runs.baseline, runs.safe, runs.tune, **groups), got["show"]


def _entries(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the entries that are fields of a dataclass."""
    return {f.name: given[f.name] for f in dataclasses.fields(kind) if f.name in given}


def resume_flags(args: list[str]) -> tuple[Path, int | None, ShowCompare]:
    """Return folder, number of rounds and display options of ``fedkin resume FOLDER [flags]``.

    Raises:
        ConfigError: a value is out of range.
    """
    got = read(ResumeFlags, args, "fedkin resume", "a folder, such as runs/fedavg-20260131-120000")
    shown = {f.name: getattr(got, f.name) for kind in (Shown, DetailFlags) for f in dataclasses.fields(kind)}
    return got.folder, got.rounds, ShowCompare(**shown, round=got.round, decimals=got.decimals)


def _one_seed(args: list[str]) -> list[str]:
    """Return the words of a command of several seeds, in which ``--seed 1`` of `fedkin run` means ``--seeds 1``."""
    return ["--seeds" + a.removeprefix("--seed") if a.split("=")[0] == "--seed" else a for a in args]


def sweep_flags(args: list[str]) -> tuple[Sweep, ShowSweep]:
    """Return the sweep of ``fedkin sweep METHOD|FILE.toml [flags]``.

    Raises:
        ConfigError: no method, nothing to try, or a setting that does not fit.
    """
    parts: dict[str, Any] = {"sweep": SweepSettings(), "show": ShowSweep()}
    does = "Run a method with many settings, of which validation data choose the best."
    what = _first(args, "sweep", "fedprox --grid method.mu=0.01,0.1", does, parts)
    table = read_toml(what) if what.endswith(".toml") else {"method": {"name": what}}
    entries = table.pop("sweep", {})
    base = _with_preset(settings_from(table, what, checked=False), args)
    args = _one_seed(args)
    found = sweep_table_of(entries, what)
    space = found.pop("space")
    own = SweepSettings(**{**found, "seeds": found["seeds"] or (base.run.seed,)})
    parts = {"method": base.method, **parts_of(base), **parts, "sweep": own}
    got = parse(parts, args[1:], f"fedkin sweep {what}", summary(base.method))
    settings = Settings(base.name, got["method"], **_groups(got, base, args))
    asked: dict[str, Any] = {}
    for text in (*got["sweep"].grid, *got["sweep"].space):
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"--grid takes PART.SETTING=VALUE,VALUE, such as training.lr=0.01,0.1, got {text!r}")
        asked[name] = value if ".." in value else [value_of(v) for v in value.split(",")]
    chosen = got["sweep"]
    space = {**space, **space_from(asked, "sweep")}
    return Sweep(settings, space, chosen.trials, chosen.seeds, chosen.sampler), got["show"]


def parts_of(setup: Setup) -> dict[str, Any]:
    """Return the groups whose fields are flags: all but the settings for real hosts."""
    return {name: group for name, group in setup.groups().items() if name != "hosts"}


def _groups(got: Mapping[str, Any], base: Setup, args: list[str]) -> dict[str, Any]:
    """Return all groups of settings with the flags put in."""
    groups = {name: got[name] for name in parts_of(base)}
    changed = {"data": _found(got["data"]), "training": _epochs_win(got["training"], args)}
    return {**groups, **changed, "hosts": base.hosts}


def _found(data: DataSettings) -> DataSettings:
    """Return the data by absolute path, so that a run can be resumed from any folder."""
    return dataclasses.replace(data, data=absolute(data.data))


def _first(args: list[str], command: str, example: str, does: str, parts: Mapping[str, Any]) -> str:
    """Return the method or file of a command; for ``--help`` in its place, show the flags that all methods have."""
    if args and args[0] in HELP_FLAGS:
        does += f" METHOD may be FILE.toml; fedkin {command} METHOD --help shows the method's own flags as well."
        parse({**parts_of(Setup()), **parts}, args, f"fedkin {command} METHOD", does)
    if not args or args[0].startswith("-"):
        raise ConfigError(
            f"fedkin {command} needs a method or a config file: fedkin {command} {example}; fedkin list methods shows "
            "all"
        )
    return args[0]


def _from_file(path: str) -> Settings:
    return settings_from(read_toml(path), path, checked=False)


def _with_preset(base: Settings, args: list[str]) -> Settings:
    """Return the settings with a preset's fields as defaults: flags take precedence over them."""
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        name = arg.partition("=")[2] if arg.startswith("--preset=") else following if arg == "--preset" else ""
        if name:
            presets = presets_of(base.method)
            if name not in presets:
                raise ConfigError(
                    f"{base.name} has no preset {name!r}; it has {', '.join(presets) or 'none'}{_whose(name, base)}"
                )
            own = {k: v for k, v in presets[name].items() if k not in TABLES}
            method = fill(base.method, own, f"preset {name}", checked=False)
            tables = {
                t: fill(getattr(base, t), presets[name].get(t, {}), f"preset {name}", checked=False) for t in TABLES
            }
            return dataclasses.replace(base, method=method, **tables)
    return base


def _whose(preset: str, base: Settings) -> str:
    """Return a hint that names the other methods of the same class which have the preset."""
    alike = {n: m for n, make in METHODS.items() if type(m := make()) is type(base.method)}
    have = [n for n, m in alike.items() if preset in presets_of(m)]
    return "".join(f" (fedkin run {n} --preset {preset})" for n in have)


def _epochs_win(training: Training, args: list[str]) -> Training:
    """``--epochs`` on the command line beats steps from a file."""
    asked = any(a.split("=")[0] == "--epochs" for a in args)
    stepped = any(a.split("=")[0] == "--steps" for a in args)
    if asked and stepped:
        raise ConfigError("give --epochs or --steps, not both")
    return dataclasses.replace(training, steps=None) if asked else training


def read(form: type[T], args: list[str], prog: str, needs: str) -> T:
    """Parse the flags and files of a command that requires at least one.

    Raises:
        ConfigError: there is nothing at all.
    """
    if not args:
        raise ConfigError(f"{prog} needs {needs}; {prog} --help shows all")
    return options(form, args, prog)


def _one(text: str) -> tuple[str, str, Any]:
    before, equals, value = text.rpartition("=")  # names may have settings
    name, dot, key = before.rpartition(".")  # one's own methods have dots in their names
    if not (dot and equals and key and name):
        raise ConfigError(f"--set takes METHOD.FIELD=VALUE, for example da-pfl.lam=0.5, got {text!r}")
    return name, key.replace("-", "_"), value_of(value)
