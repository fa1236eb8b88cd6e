"""Several methods on the same federation, from the same start, over several seeds, with reference rows."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from fedkin.core import ConfigError, Method, Net, RunFolderError
from fedkin.core.errors import typed
from fedkin.data import Federation
from fedkin.engines.stacked_together import Starter
from fedkin.experiment.listing import TRIALS
from fedkin.experiment.planned import ALWAYS, compared
from fedkin.experiment.prepare import require_validation
from fedkin.experiment.result import Result
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import OnData, Settings, Setup, setup_from
from fedkin.experiment.sweep import Sweep
from fedkin.experiment.together import at_once, execute_all
from fedkin.experiment.tuning import OnTuning, tune_all, tuning_sweep
from fedkin.inspection import require_two_classes
from fedkin.methods import canonical, get_method, get_title, settings_in
from fedkin.privacy.budget import Privacy, reports
from fedkin.report.folder import Run
from fedkin.server import RoundReport
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import room, taken
from fedkin.storage.lock import NAME as LOCK
from fedkin.storage.lock import remove, writing
from fedkin.storage.toml import fill
from fedkin.user_code.loading import plain_name
from fedkin.user_code.reference import CodeRef, copies

OnRound = Callable[[str, int, RoundReport, dict[str, Any]], None]


@dataclass(frozen=True)
class Comparison(Setup):
    """Settings of a comparison.

    Attributes:
        methods: names, in the order of the table; the references (`fedkin.experiment.planned.ALWAYS`) are put in front
            if they are missing. User-defined methods are named ``./file.py:Class`` or ``package.module:Class``. A
            method may be compared with several settings: ``fedprox@mu=0.01``, ``fedprox@mu=1``.
        seeds: one run of every method for each.
        own: fields of single methods, by name.
        baseline: the method that all others are set against in tables and verdicts.
        safe: whether the safe form of every method but the local references is compared as well (``NAME-safe``, see
            `fedkin.methods.Safe`); it has the fields that ``own`` gives its method.
        tune: number of settings that are tried for each method, its own among them, on validation data of the first
            seed; the best is used for all seeds. 0: none.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baseline: str = "local"
    safe: bool = False
    tune: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "methods", _listed(self.methods, str, "methods", "names, such as ('ditto', 'fedprox')")
        )
        object.__setattr__(self, "seeds", _listed(self.seeds, int, "seeds", "whole numbers, such as (0, 1, 2)"))
        if not self.seeds:
            raise ConfigError("a comparison needs at least one seed")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds must differ, got {list(self.seeds)}")
        object.__setattr__(self, "methods", tuple(map(known, self.methods)))
        if twice := [name for name in dict.fromkeys(self.methods) if self.methods.count(name) > 1]:
            raise ConfigError(
                f"{CodeRef(twice[0]).attribute} is named {self.methods.count(twice[0])} times; a comparison runs each "
                "method once for every seed: name it once, and more seeds for more runs; with other settings it has "
                "another name, such as fedprox@mu=0.1"
            )
        object.__setattr__(self, "own", {meant(name, self.names): values for name, values in self.own.items()})
        object.__setattr__(self, "baseline", meant(self.baseline, self.names))
        titles = [get_title(name) for name in self.names]
        if twice := [name for name in self.names if titles.count(get_title(name)) > 1]:
            raise ConfigError(f"{' and '.join(twice)} would both be called {get_title(twice[0])}; rename one class")
        labels = [CodeRef(name).attribute.lower() for name in self.names]  # some file systems know no capitals
        if twice := [name for name in self.names if labels.count(CodeRef(name).attribute.lower()) > 1]:
            raise ConfigError(f"runs of {' and '.join(twice)} would lie in one folder; rename one class")
        self._require_different()
        for name in self.own:
            if name not in self.names:
                raise ConfigError(f"settings for {name!r}, which is not compared; there are {', '.join(self.names)}")
        if self.baseline not in self.names:
            raise ConfigError(
                f"baseline must be a method that is compared: {', '.join(self.names)}; got {self.baseline!r}"
            )
        made = self._checked_privacy()
        if self.privacy.metadata_epsilon is not None and all(p.metadata_epsilon is None for p in made):
            raise ConfigError(
                "metadata_epsilon protects what clients say of themselves, but those of "
                f"{', '.join(self.names)} say nothing; leave it out"
            )
        if self.tune < 0:
            raise ConfigError(f"tune must be a number of trials, or 0, got {self.tune}")
        if self.tune and not self.data.resolved().validation > 0:
            raise ConfigError("tuning chooses on validation data: --validation must be above 0, such as 0.1")
        for name in self.names if self.tune else ():
            self.sweep(name)  # what is wrong with one is found before anything runs

    def _checked_privacy(self) -> list[Privacy]:
        """Return the privacy settings of each method.

        Raises:
            ConfigError: settings do not fit; what stands against several methods is said of all of them at once.
        """
        made, wrong = [], list[str]()
        for name in self.names:
            try:
                made.append(self.settings(name, self.seeds[0]).privacy)
            except ConfigError as error:
                wrong.append(str(error))
        if wrong:
            raise ConfigError("\n".join(wrong))
        return made

    def _require_different(self) -> None:
        """Raise `ConfigError` if two names are those of one method with equal settings, such as mu=1 and mu=1.0."""
        if self.tune:  # what a name says is kept, and what it does not say is tuned
            return
        found = [(name, get_method(name)) for name in self.names if name not in self.own]
        for i, (name, method) in enumerate(found):
            for other, same in found[:i]:
                if method == same:
                    raise ConfigError(f"{other} and {name} are one method with equal settings; leave one out")

    @property
    def names(self) -> tuple[str, ...]:
        """All that is run, in order, each once."""
        return compared(self.methods, self.safe)

    def runs(self) -> list[tuple[str, int]]:
        """Name and seed of every run, in the order of the table."""
        return [(name, seed) for seed in self.seeds for name in self.names]

    def order(self) -> list[tuple[str, int]]:
        """Name and seed of every run, in the order in which they are made: what may fail comes before references."""
        return sorted(self.runs(), key=lambda run: (self.seeds.index(run[1]), run[0] in ALWAYS))

    def settings(self, name: str, seed: int) -> Settings:
        """Return the settings of one run."""
        method = fill(get_method(name), self.given(name), f"[method.{name}]")
        if self.aggregation.secure:
            method.require_secure()
        method.require_optimizer(self.training.optimizer)
        groups = self.groups() | {
            "run": dataclasses.replace(self.run, seed=seed),
            "privacy": _privacy_for(self.privacy, method),
        }
        return Settings(name, method, **groups)

    def sweep(self, name: str) -> Sweep:
        """Return the trials of a method, with the first seed.

        Raises:
            ConfigError: there are no validation data, or no trials.
        """
        return tuning_sweep(self.settings(name, self.seeds[0]), self.given(name), self.tune)

    def given(self, name: str) -> dict[str, Any]:
        """Return the fields that are set of a method, in its name too; of a safe form, those of its method and its own.

        Where the run hides what single clients send, safe forms send nothing about single clients.
        """
        own, plain = dict(self.own.get(name, {})), plain_name(name)
        if plain == name:
            return _both(settings_in(name), own)
        inner = _both(self.given(plain), own.pop("inner", {}))
        hides = self.aggregation.secure or self.privacy.noise_multiplier is not None
        if self.privacy.metadata_epsilon is not None:  # covers a choice, by which mode "sure" cannot decide
            hides |= own.get("mode") == "sure"
        hidden = {"send_numbers": False} if hides else {}
        return {**hidden, **own, **({"inner": inner} if inner else {})}

    def toml(self) -> str:
        """As a file that ``fedkin compare`` takes."""
        names = [CodeRef(name).portable for name in self.methods or ALWAYS]
        table: dict[str, Any] = {"methods": names, "seeds": list(self.seeds)}
        table |= {"safe": True} if self.safe else {}
        table |= {"tune": self.tune} if self.tune else {}
        table |= {"baseline": CodeRef(self.baseline).portable} if self.baseline != "local" else {}
        table |= self.tables()
        del table["run"]["seed"]
        own = {}
        for code in map(CodeRef, self.names):
            if code.name in self.own or code.is_user_code:
                own[code.portable] = {**code.entry(), **self.own.get(code.name, {})}
        if own:
            table["method"] = own
        return tomli_w.dumps(table)

    def sources(self) -> dict[str, bytes]:
        """Return the files of user-defined code, which are stored next to the plan.

        Raises:
            ConfigError: two different ones have the same name.
        """
        return copies([*map(CodeRef, self.names), self.model.code])


def _listed(found: object, kind: type, name: str, of: str) -> tuple[Any, ...]:
    """Return the values of a field that a program has given.

    Raises:
        ConfigError: it is not a sequence of values of this kind; a method object, for example, has no name to be given.
    """
    values = tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else None
    if values is None or not all(type(value) is kind for value in values):
        advice = next(filter(None, map(_by_name, (found,) if values is None else values)), "")
        raise ConfigError(f"{name} must be a list or tuple of {of}, got {found!r}{advice}")
    return values


def _by_name(found: object) -> str:
    """Return how a method is named that a program has as class or object, as the end of a message."""
    made = found if isinstance(found, type) else type(found)
    if not issubclass(made, Method):
        return ""
    if made.__module__.startswith("fedkin."):
        return "; a method of the catalogue goes by its name in: fedkin list methods"
    return f"; a method of your own goes by its file, such as './mine.py:{made.__name__}', from which it is loaded"


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables of a method's fields as one; the second has precedence, also in a wrapped method's table."""
    inner = {**first.get("inner", {}), **second.get("inner", {})}
    return {**first, **second, **({"inner": inner} if inner else {})}


def known(name: str) -> str:
    """Return a method's name as the catalogue has it, or that of user-defined code with its file."""
    return canonical(CodeRef.read(name).name)


def meant(name: str, names: Iterable[str]) -> str:
    """Return the name of the compared method that a name stands for; user-defined ones go by their class as well."""
    return next((n for n in names if name == CodeRef(n).attribute), known(name))


def _privacy_for(privacy: Privacy, method: Method) -> Privacy:
    """Return the options, without noise on class counts where clients report none (the references, for example).

    Raises:
        ConfigError: the method tells more than the privacy options cover.
    """
    if not privacy.asked:
        return privacy
    net = Net(lambda: nn.Sequential(nn.Linear(1, 2)), (1,), 2)  # any will do: this is before the data are read
    if privacy.metadata_epsilon is not None and not reports(method, net):
        privacy = dataclasses.replace(privacy, metadata_epsilon=None)
    privacy.require(method, net)
    return privacy


def comparison_from(table: Mapping[str, Any], where: str) -> Comparison:
    """Read a plan from the tables of a TOML file.

    Raises:
        ConfigError: see `comparison_parts`, or the settings contradict each other.
    """
    return Comparison(**comparison_parts(table, where))


def comparison_parts(table: Mapping[str, Any], where: str, *, checked: bool = True) -> dict[str, Any]:
    """Read the fields of a `Comparison` from the tables of a TOML file.

    Args:
        table: the tables.
        where: the file, for messages.
        checked: as of `fedkin.storage.toml.fill`.

    Raises:
        ConfigError: an unknown key, or a value of the wrong kind.
    """
    known = {f.name for f in dataclasses.fields(Comparison)} - {"own"} | {"method"}
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: unknown entry {name!r}; there are {', '.join(sorted(known))}")
    methods, seeds = table.get("methods"), table.get("seeds", [0])
    if not isinstance(methods, list) or not methods or not all(isinstance(m, str) for m in methods):
        raise ConfigError(f'{where}: methods must be a list of names such as ["da-pfl"], got {methods!r}')
    if not isinstance(seeds, list) or not all(type(s) is int for s in seeds):
        raise ConfigError(f"{where}: seeds must be a list of whole numbers such as [0, 1], got {seeds!r}")
    if isinstance(how := table.get("run", {}), Mapping) and "seed" in how:
        raise ConfigError(f"{where}: a comparison has seeds = [0, 1], not a seed in [run]")
    if type(tune := table.get("tune", 0)) is not int:
        raise ConfigError(f"{where}: tune must be a whole number, got {tune!r}")
    if not isinstance(safe := table.get("safe", False), bool):
        raise ConfigError(f"{where}: safe must be true or false, got {safe!r}")
    own = table.get("method", {})
    if not isinstance(own, Mapping) or not all(isinstance(v, Mapping) for v in own.values()):
        raise ConfigError(f"{where}: settings of a method stand in a table such as [method.da-pfl]")
    for name, values in own.items():
        if "code" in values:
            get_title(name)
            CodeRef(name).require_same(values["code"], f"{where}: [method.{CodeRef(name).attribute}]")
    own = {name: fields for name, v in own.items() if (fields := {k: x for k, x in v.items() if k != "code"})}
    groups = {
        name: part
        for name, part in table.items()
        if name not in ("methods", "seeds", "method", "baseline", "safe", "tune")
    }
    return {
        "methods": tuple(methods),
        "seeds": tuple(seeds),
        "own": own,
        "baseline": str(table.get("baseline", "local")),
        "safe": safe,
        "tune": tune,
        **setup_from(groups, where, checked=checked).groups(),
    }


def compare(
    plan: Comparison,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_data: OnData | None = None,
    on_trial: OnTuning | None = None,
    together: int = 0,
) -> list[Run]:
    """Execute all runs of a plan.

    Args:
        plan: what is compared.
        out: folder for the plan and one run folder per method and seed; None keeps everything in memory.
        resume: go on in ``out``: finished runs are kept, an interrupted one is continued.
        on_round: called after each round with the method's name, the seed, the report and its line.
        on_data: called with the first seed's data, once they are read.
        on_trial: called after each round of a trial, if the plan tunes its methods.
        together: maximum number of runs that train in common stacks, see `fedkin.experiment.together.at_once`.

    Raises:
        RunFolderError: ``out`` exists already, or another process is writing into it.
        DataError: the data cannot be used.
        ConfigError: a setting is out of range.
    """
    _require_plan(plan)
    folder, runs_at_once = None if out is None else Path(out), at_once(together, plan.compute)
    extra = plan.sources()
    federation = plan.data.federation(plan.seeds[0], on_data)  # bad data before anything is written
    require_two_classes(federation)
    if plan.tune:
        require_validation(federation, f"tune = {plan.tune}")
    with contextlib.ExitStack() as to_the_end:
        if folder is not None:
            to_the_end.enter_context(writing(folder))
            to_the_end.enter_context(room(folder))
        if folder is not None and not resume:
            _begin(folder, {**extra, "compare.toml": plan.toml().encode()})
        try:
            chosen = _chosen(plan, folder, federation, on_trial, runs_at_once)
            return _runs(plan, folder, federation, on_round, chosen, runs_at_once, resume=resume)
        except Exception:
            if folder is not None and not resume:
                _withdraw(folder, {"compare.toml", *extra})
            raise


def _require_plan(found: object) -> None:
    """Raise `ConfigError` unless it is a plan: programs pass names of methods, or a federation."""
    if not isinstance(found, Comparison):
        raise ConfigError(
            f"plan must be a fedkin.Comparison, such as fedkin.Comparison(methods=('ditto',), "
            f"data=fedkin.DataSettings(data='digits')), got an object of type {type(found).__name__}; a federation is "
            "saved first (federation.save('folder')) and named there, data='folder'"
        )


def _begin(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a new comparison, its plan last.

    Raises:
        RunFolderError: there is something at this place already, or it cannot be written to.
    """
    if taken(folder):
        raise RunFolderError(f"{folder} exists already; name another with --out, or: fedkin resume {typed(folder)}")
    try:
        for file, content in files.items():
            write_atomic(folder / file, content)
    except OSError as e:
        raise RunFolderError(f"no folder can be made at {folder} ({e}); name another with --out") from e


def _chosen(
    plan: Comparison, folder: Path | None, federation: Federation, on_trial: OnTuning | None, runs_at_once: int
) -> Mapping[str, Callable[[int], Settings]]:
    """Return for each method a function that gives its settings for a seed, after the trials of all if it is tuned."""
    if not plan.tune:
        return {name: partial(plan.settings, name) for name in plan.names}
    sweeps = {name: plan.sweep(name) for name in plan.names}
    values = tune_all(sweeps, folder, federation, on_trial, runs_at_once)
    return {name: partial(sweep.settings, values[name]) for name, sweep in sweeps.items()}


class _Federations:
    """Data of a comparison by seed: those of the runs under way and of the last one, as they may be large."""

    def __init__(self, plan: Comparison, first: Federation) -> None:
        self._plan, self._last = plan, first
        self._known = weakref.WeakValueDictionary({plan.seeds[0]: first})

    def of(self, seed: int) -> Federation:
        """Return the data of a seed."""
        if (found := self._known.get(seed)) is None:
            found = self._known[seed] = self._plan.data.federation(seed)
        self._last = found
        return found


def _runs(
    plan: Comparison,
    folder: Path | None,
    federation: Federation,
    on_round: OnRound | None,
    chosen: Mapping[str, Callable[[int], Settings]],
    runs_at_once: int,
    *,
    resume: bool,
) -> list[Run]:
    """Execute the runs.

    Args:
        federation: the data of the first seed.
        chosen: method -> a function that gives its settings for a seed.
    """
    data = _Federations(plan, federation)

    def run(name: str, seed: int, start: Starter | None) -> Run:
        place = None if folder is None else folder / run_name(name, seed)
        begun = resume and place is not None and (place / "config.toml").is_file()
        callback = None if on_round is None else partial(on_round, name, seed)
        settings, found = chosen[name](seed), data.of(seed)
        return as_run(run_settings(settings, found, out=place, resume=begun, on_round=callback, start=start))

    made = execute_all([partial(run, name, seed) for name, seed in plan.order()], runs_at_once)
    by_run = dict(zip(plan.order(), made, strict=True))
    return [by_run[one] for one in plan.runs()]


def _withdraw(folder: Path, files: set[str]) -> None:
    """Remove the folder of a comparison in which no run and no trial could begin; it holds these files alone."""
    begun = any((folder / TRIALS).glob("*/*/config.toml"))
    if not begun and {p.name for p in folder.iterdir()} - {LOCK, TRIALS} == files:
        remove(folder)


def run_name(name: str, seed: int) -> str:
    """Return the name of a run's folder within that of its comparison."""
    return f"{CodeRef(name).attribute}-seed{seed}"


def as_run(result: Result) -> Run:
    """Return a result in the form that reports take."""
    return Run(
        title=result.title,
        seed=result.seed,
        rounds=result.rounds,
        clients=result.clients,
        relations=result.relations,
        summary=result.summary,
        folder=result.folder,
    )
