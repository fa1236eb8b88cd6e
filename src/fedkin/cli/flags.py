"""Flags of commands, from the fields of classes and the texts below them.

Flags are read before torch is imported: a typo is answered at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from fedkin.core.errors import ConfigError
from fedkin.core.grammar import value_of
from fedkin.core.settings import GROUPS, DataSettings, Settings, checked, read_settings
from fedkin.storage.toml import read_toml

if TYPE_CHECKING:
    from fedkin.data import Federation
    from fedkin.experiment.compare import Comparison
    from fedkin.experiment.sweep import Sweep

T = TypeVar("T")
Tracker = Literal["tensorboard", "mlflow", "wandb"]
HELP_FLAGS = ("-h", "--help")
FLAG_GROUPS = tuple(name for name in GROUPS if name != "hosts")
"""Groups of settings whose leaves are flags; those for real hosts are read from files alone."""


@dataclass(frozen=True)
class FigureFlags:
    """The rounds of the figures."""

    round: Literal["last", "best"] = "last"
    """Figures in tables and pages: means over the last rounds, or those of each run's best round on validation data."""

    @property
    def at_best(self) -> bool:
        """Whether figures are of the best round."""
        return self.round == "best"

    def require_data(self, federation: Federation) -> None:
        """Raise `ConfigError` if the best round cannot be chosen, since no client has validation data."""
        from fedkin.experiment.prepare import require_validation

        if self.at_best:
            require_validation(federation, "--round best")


@dataclass(frozen=True)
class Shown:
    """Output."""

    quiet: bool = False
    """No progress bar and no table."""
    json: bool = False
    """Write the summary as JSON, and nothing else, to standard output."""


@dataclass(frozen=True)
class TargetFlags:
    """What it takes to reach an accuracy."""

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
    track: tuple[Tracker, ...] = ()
    """Log the run to experiment trackers, one or several: tensorboard, mlflow, wandb."""


@dataclass(frozen=True)
class ShowRun(ShowSweep, TargetFlags, FigureFlags):
    """Output."""

    per_client: bool = False
    """Show a line per client, in the table and in the JSON."""


@dataclass(frozen=True)
class ShowCompare(Show, TargetFlags, FigureFlags):
    """Output."""

    track: tuple[Tracker, ...] = ()
    """Log every run to experiment trackers, one or several: tensorboard, mlflow, wandb."""


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(Shown):
    """Resume an interrupted run, comparison or sweep, with the same result as without the interruption."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The folder that holds it."""
    rounds: int | None = None
    """Of a run, finished or interrupted: give it this number of rounds, as if it had had them from the start."""


@dataclass(frozen=True)
class RunsSettings:
    """The runs themselves."""

    seeds: tuple[int, ...] = (0,)
    """One run of every method for each seed."""
    set: tuple[str, ...] = ()
    """Fields of single methods: METHOD.FIELD=VALUE, several after one --set. M@FIELD=VALUE as a method is a further
    row with other settings."""
    baseline: str | None = None
    """The method that all others are compared with, in differences and verdicts. Default: training alone."""
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
    combinations are run, or --trials of them, which also takes ranges: training.lr=log:1e-3..1e-1,
    training.momentum=0..0.9, training.epochs=int:1..5."""
    trials: int = 0
    """Number of settings that are drawn, instead of trying all combinations."""
    seeds: tuple[int, ...] = (0,)
    """Every setting is run with each seed and judged by the mean."""


def run_flags(args: list[str]) -> tuple[Settings, ShowRun]:
    """Return the settings of ``fedkin run METHOD|FILE.toml [flags]``.

    Raises:
        ConfigError: no method, or a value is out of range.
    """
    what = _first(args, "run", Settings().method["name"])
    base = read_settings(read_toml(what), what) if what.endswith(".toml") else Settings().but(method=what)
    got, settings = _parsed(base, {"show": ShowRun()}, args, f"fedkin run {what}", "Train a federation by one method.")
    return settings, got["show"]


def compare_flags(args: list[str]) -> tuple[Comparison, ShowCompare]:
    """Return the plan of ``fedkin compare M1 M2 ...|FILE.toml [flags]``.

    Raises:
        ConfigError: no method, or a setting that does not fit.
    """
    names: list[str] = []
    while args and not args[0].startswith("-"):
        names.append(args.pop(0))
    given: dict[str, Any] = {"methods": tuple(names)}
    if len(names) == 1 and names[0].endswith(".toml"):
        from fedkin.experiment.compare import comparison_parts

        given = comparison_parts(read_toml(names[0]), names[0])
    elif not names and not {*HELP_FLAGS} & {*args}:
        raise ConfigError("fedkin compare needs methods or a config file: fedkin compare da-pfl pfedcs")
    parts = {"runs": RunsSettings(**_entries(given, RunsSettings)), "show": ShowCompare()}
    does = "Several methods side by side: same data, same start, same clients in each round."
    got, base = _parsed(given.get("base", Settings()), parts, ["", *_one_seed(args)], "fedkin compare M1 M2 ...", does)
    from fedkin.experiment.compare import Comparison, known, label_of
    from fedkin.experiment.listing import compared
    from fedkin.methods import ALONE, get_method, place

    runs = got["runs"]
    all_names = compared(tuple(map(known, given["methods"])), runs.safe)
    own = {label_of(name, all_names): dict(values) for name, values in given.get("own", {}).items()}
    for text in runs.set:
        name, key, value = _one(text)
        name = label_of(name, all_names)
        place(own.setdefault(name, {}), get_method(name), key, value)
    baseline = runs.baseline or ALONE[0]
    return Comparison(given["methods"], runs.seeds, base, own, baseline, runs.safe, runs.tune), got["show"]


def _entries(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the entries that are fields of a dataclass."""
    return {f.name: given[f.name] for f in fields(kind) if f.name in given}


def resume_flags(args: list[str]) -> tuple[Path, int | None, Shown]:
    """Return folder, number of rounds and display options of ``fedkin resume FOLDER [flags]``.

    Raises:
        ConfigError: a value is out of range.
    """
    got = read(ResumeFlags, args, "fedkin resume", "a folder, such as runs/fedavg-20260131-120000")
    return got.folder, got.rounds, Shown(got.quiet, got.json)


def _one_seed(args: list[str]) -> list[str]:
    """Return the words of a command of several seeds, in which ``--seed 1`` of `fedkin run` means ``--seeds 1``."""
    return ["--seeds" + a.removeprefix("--seed") if a.split("=")[0] == "--seed" else a for a in args]


def sweep_flags(args: list[str]) -> tuple[Sweep, ShowSweep, DataSettings]:
    """Return the sweep of ``fedkin sweep METHOD|FILE.toml [flags]``, and the settings of its data as they were given.

    Raises:
        ConfigError: no method, nothing to try, or a setting that does not fit.
    """
    what = _first(args, "sweep", "fedprox --grid method.mu=0.01,0.1")
    table = read_toml(what) if what.endswith(".toml") else {"method": {"name": what}}
    entries = table.pop("sweep", {})
    base, own, space = read_settings(table, what), SweepSettings(), dict[str, Any]()
    sampler: Literal["tpe", "sobol"] = "tpe"
    if entries:
        from fedkin.experiment.sweep import sweep_table_of

        result = sweep_table_of(entries, what)
        space, sampler = result["space"], result["sampler"]
        own = SweepSettings((), result["trials"], result["seeds"] or (base.run.seed,))
    does = "Run a method with many settings, of which validation data choose the best."
    got, settings = _parsed(base, {"sweep": own, "show": ShowSweep()}, _one_seed(args), f"fedkin sweep {what}", does)
    asked: dict[str, Any] = {}
    for text in got["sweep"].grid:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"--grid takes PART.SETTING=VALUE,VALUE, such as training.lr=0.01,0.1, got {text!r}")
        asked[name] = value if ".." in value else [value_of(v) for v in value.split(",")]
    from fedkin.experiment.search_space import space_from
    from fedkin.experiment.settings import completed
    from fedkin.experiment.sweep import Sweep

    chosen = got["sweep"]
    space = {**space, **space_from(asked, "sweep")}
    sweep = Sweep(completed(settings), space, chosen.trials, chosen.seeds, sampler)
    return sweep, got["show"], settings.data


def _first(args: list[str], command: str, example: str) -> str:
    """Return the method or file of a command; METHOD where help is asked for in its place."""
    if args and args[0] in HELP_FLAGS:
        args.insert(0, "METHOD")
    if not args or args[0].startswith("-"):
        raise ConfigError(
            f"fedkin {command} needs a method or a config file: fedkin {command} {example}; fedkin list methods shows "
            "all"
        )
    return args[0]


def _parsed(
    base: Settings, parts: Mapping[str, Any], args: list[str], prog: str, does: str
) -> tuple[dict[str, Any], Settings]:
    """Return the parts and the settings with the flags put in, which win over a preset; the first word is skipped."""
    if {*HELP_FLAGS} & {*args} and args[0] not in ("", "METHOD"):
        does = _described(base, does)
    got = grouped({**{name: getattr(base, name) for name in FLAG_GROUPS}, **parts}, args[1:], prog, does)
    if preset := getattr(got["show"], "preset", None):
        base = _with_preset(base, preset)
        got = grouped({**{name: getattr(base, name) for name in FLAG_GROUPS}, **parts}, args[1:], prog, does)
    return got, checked(base.but(**{name: got[name] for name in FLAG_GROUPS}))


def _described(base: Settings, does: str) -> str:
    """Return what a command does, with the fields of its method."""
    from fedkin.core.grammar import plain
    from fedkin.experiment.settings import method_of

    method = method_of(base)
    own = plain(method)
    own |= own.pop("inner", {})  # by their own names, as they are given
    fields_of = ",".join(f"{name}={value}" for name, value in own.items())
    about = f"{(type(method).__doc__ or '').strip()} {method.paper}".strip()
    return f"{does} {about}" + (f" Its fields: {base.method['name']}@{fields_of}" if fields_of else "")


def _with_preset(base: Settings, preset: str) -> Settings:
    """Return the settings with a preset's."""
    from fedkin.capabilities.presets import TABLES, presets_of
    from fedkin.experiment.settings import method_of
    from fedkin.methods import METHODS

    method, name = method_of(base), base.method["name"]
    presets = presets_of(method)
    if preset not in presets:
        alike = {n: m for n, make in METHODS.items() if type(m := make()) is type(method)}
        have = "".join(f" (fedkin run {n} --preset {preset})" for n, m in alike.items() if preset in presets_of(m))
        raise ConfigError(f"{name} has no preset {preset!r}; it has {', '.join(presets) or 'none'}{have}")
    chosen = presets[preset]
    own = {field: value for field, value in chosen.items() if field not in TABLES}
    leaves = {leaf: value for table in TABLES for leaf, value in chosen.get(table, {}).items()}
    return base.but(method={**base.method, **own}, **leaves)


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


def options(
    kind: type[T], args: list[str], prog: str, description: str | None = None, config: tuple[Any, ...] = ()
) -> T:
    """Return an instance of a class whose fields are the flags, and the files, of a command.

    Args:
        prog: the command, for the help and for errors.
        description: what the command does; by default the class's docstring.
    """
    return tyro.cli(
        kind, args=args, prog=prog, description=description, config=config, console_outputs=sys.stderr is not None
    )


def grouped(parts: Mapping[str, Any], args: list[str], prog: str, description: str) -> dict[str, Any]:
    """Return groups of settings with flags put in; every field is a flag by its own name.

    Args:
        parts: name of a group -> an object with the defaults.
    """
    made = make_dataclass("flags", [(name, type(part), field(default=part)) for name, part in parts.items()])
    made.__module__ = "builtins"  # else tyro searches this file for the text of each group
    got: Any = options(made, args, prog, description, (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands))
    return {name: getattr(got, name) for name in parts}
