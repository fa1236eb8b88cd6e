"""Several methods on the same federation, from the same start, over several seeds, with reference rows."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from fedkin.core import ConfigError, Method
from fedkin.core.grammar import Fields, Table, converted, filled, plain, subtable
from fedkin.core.settings import Natural, RunSettings, Settings, checked, read_settings
from fedkin.data import Dataset, Federation, OnData, federate, federation_of, is_shelf, resolved
from fedkin.experiment.comparison import ComparisonResult
from fedkin.experiment.listing import compared
from fedkin.experiment.prepare import require_method, require_validation
from fedkin.experiment.progress import bar
from fedkin.experiment.run import run, run_settings
from fedkin.experiment.settings import completed, table_of
from fedkin.experiment.study import Study, seeds_of, study
from fedkin.experiment.sweep import Sweep
from fedkin.experiment.tuning import OnTuning, tune_all, tuning_sweep
from fedkin.inspection import require_two_classes
from fedkin.methods import ALONE, REFERENCES, canonical, get_method, get_title, settings_in
from fedkin.record.lines import RoundLine
from fedkin.record.result import Result
from fedkin.report.tuning import read_tuned
from fedkin.server import RoundReport
from fedkin.server.requirements import Facts, require
from fedkin.user_code.loading import plain_name
from fedkin.user_code.reference import CodeRef, copies

OnRound = Callable[[str, int, RoundReport, RoundLine], None]
Make = Callable[..., Result]
"""Makes the run of a method's name and a seed; keywords as of `fedkin.experiment.run.run_settings`."""


@dataclass(frozen=True)
class Comparison:
    """Settings of a comparison.

    Attributes:
        methods: names, in the order of the table; the references (`fedkin.methods.REFERENCES`) are put in front
            if they are missing. User-defined methods are named ``./file.py:Class`` or ``package.module:Class``. A
            method may be compared with several settings: ``fedprox@mu=0.01``, ``fedprox@mu=1``.
        seeds: one run of every method for each.
        base: all settings but the method and the seed.
        own: fields of single methods, by name.
        baseline: the method that all others are set against in tables and verdicts.
        safe: whether the safe form of every method but the local references is compared as well (``NAME-safe``, see
            `fedkin.methods.Safe`); it has the fields that ``own`` gives its method.
        tune: number of settings that are tried for each method, its own among them, on validation data of the first
            seed; the best is used for all seeds. 0: none. The data are then those of the first seed in all seeds: else
            test samples of the others would be among the samples that the choice is made on.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    base: Settings = field(default_factory=Settings)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baseline: str = ALONE[0]
    safe: bool = False
    tune: int = 0

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)
        put("methods", tuple(map(known, converted(self.methods, tuple[str, ...], "methods"))))
        put("seeds", seeds_of(self.seeds))
        put("own", {label_of(name, self.names): values for name, values in self.own.items()})
        put("baseline", label_of(self.baseline, self.names))
        put("base", checked(self.base))
        for name in (*self.own, self.baseline):
            if name not in self.names:
                raise ConfigError(f"{name} is not compared; there are {', '.join(self.names)}")
        self._require_different()
        self._require_privacy()
        if converted(self.tune, Natural, "tune"):
            if not self.base.data.validation > 0:
                raise ConfigError("tuning chooses on validation data: --validation must be above 0, such as 0.1")
            if self.base.data.data_seed is None and not is_shelf(self.base.data.data):
                put("base", self.base.but(data_seed=self.seeds[0]))
            for name in self.names:
                self.sweep(name)  # what is wrong with one is found before anything runs

    def _require_different(self) -> None:
        """Raise `ConfigError` if two methods have one title or one folder, or are one with equal settings, such as
        mu=1 and mu=1.0."""
        rows = [*(name for name in self.names if name not in self.methods), *self.methods]
        # some file systems know no capitals
        called = {name: (get_title(name), CodeRef(name).attribute.lower(), get_method(name)) for name in rows}
        for one, other in itertools.combinations(rows, 2):
            (title, label, method), (second_title, second_label, second) = called[one], called[other]
            if one != other and (title == second_title or label == second_label):
                raise ConfigError(f"{one} and {other} would have one title or one folder; rename one class")
            # where methods are tuned, what a name says is kept, and what it does not say is tuned
            if one == other or (method == second and not self.tune and not {one, other} & {*self.own}):
                raise ConfigError(f"{one} and {other} are one method with equal settings; leave one out")

    def _require_privacy(self) -> None:
        """Raise `ConfigError` if settings do not fit methods; what stands against several is said at once."""
        wrong = dict[str, None]()
        reporting = False
        for name in self.names:
            try:
                reporting |= self.settings(name, self.seeds[0]).privacy.metadata_epsilon is not None
            except ConfigError as error:
                wrong[str(error)] = None
        if wrong:
            raise ConfigError("\n".join(wrong))
        if self.base.privacy.metadata_epsilon is not None and not reporting:
            raise ConfigError(
                "metadata_epsilon protects what clients say of themselves, but those of "
                f"{', '.join(self.names)} say nothing; leave it out"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All that is run, in order, each once."""
        return compared(self.methods, self.safe)

    def runs(self) -> list[tuple[str, int]]:
        """Name and seed of every run, in the order of the table."""
        return [(name, seed) for seed in self.seeds for name in self.names]

    def settings(self, name: str, seed: int) -> Settings:
        """Return the settings of one run."""
        method = filled(get_method(name), self.given(name), f"[method.{name}]")
        settings = self.base.but(method={"name": name, **plain(method)}, seed=seed)
        if settings.privacy.metadata_epsilon is not None and not Facts(settings, method).reports:
            settings = settings.but(metadata_epsilon=None)  # the references, for example, report nothing
        require(settings, method)
        return completed(settings)

    def sweep(self, name: str) -> Sweep:
        """Return the trials of a method, with the first seed.

        Raises:
            ConfigError: there are no validation data, or no trials.
        """
        return tuning_sweep(self.settings(name, self.seeds[0]), self.given(name), self.tune)

    def given(self, name: str) -> Fields:
        """Return the fields that are set of a method, in its name too; of a safe form, those of its method and its own.

        Where the run hides what single clients send, safe forms send nothing about single clients.
        """
        own, plain = dict(self.own.get(name, {})), plain_name(name)
        if plain == name:
            return _both(settings_in(name), own)
        inner = _both(self.given(plain), own.pop("inner", {}))
        hides = self.base.aggregation.secure or self.base.privacy.noise_multiplier is not None
        if self.base.privacy.metadata_epsilon is not None:  # covers a choice, by which mode "sure" cannot decide
            hides |= own.get("mode") == "sure"
        hidden = {"send_numbers": False} if hides else {}
        return {**hidden, **own, **({"inner": inner} if inner else {})}

    def toml(self) -> str:
        """As a file that ``fedkin compare`` takes."""
        names = [CodeRef(name).portable for name in self.methods or REFERENCES]
        table: Fields = {"methods": names, "seeds": list(self.seeds)}
        table |= {"safe": True} if self.safe else {}
        table |= {"tune": self.tune} if self.tune else {}
        table |= {"baseline": CodeRef(self.baseline).portable} if self.baseline != ALONE[0] else {}
        groups = table_of(self.base.but(data=resolved(self.base.data), code=_code_of(self.base)))
        del groups["run"]["seed"], groups["method"]
        table |= groups
        own = dict[str, Table]()
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
        return copies([*map(CodeRef, self.names), CodeRef.read(self.base.model.model)])


def _both(first: Table, second: Table) -> Fields:
    """Return two tables of a method's fields as one; the second has precedence, also in a wrapped method's table."""
    inner = {**subtable(first, "inner"), **subtable(second, "inner")}
    return {**first, **second, **({"inner": inner} if inner else {})}


def known(name: str) -> str:
    """Return a method's name as the catalogue has it, or that of user-defined code with its file."""
    return canonical(CodeRef.read(name).name)


def label_of(name: str, names: Iterable[str]) -> str:
    """Return the name of the compared method that a name stands for; user-defined ones go by their class as well."""
    return next((n for n in names if name == CodeRef(n).attribute), known(name))


def comparison_from(table: Table, where: str) -> Comparison:
    """Read a plan from the tables of a TOML file.

    Raises:
        ConfigError: see `comparison_parts`, or the settings contradict each other.
    """
    return Comparison(**comparison_parts(table, where))


def _code_of(base: Settings) -> dict[str, str]:
    model = CodeRef.read(base.model.model)
    return {"model": model.fingerprint()} if model.file is not None else {}


class _Entries(msgspec.Struct):
    """The entries of a comparison's file next to those of `Settings`."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    baseline: str = ALONE[0]
    safe: bool = False
    tune: int = 0
    method: dict[str, dict[str, Any]] = {}


def comparison_parts(table: Table, where: str) -> dict[str, Any]:
    """Read the fields of a `Comparison` from the tables of a TOML file.

    Args:
        table: the tables.
        where: the file, for messages.

    Raises:
        ConfigError: an unknown key, or a value of the wrong kind.
    """
    if "made_by" in table:
        raise ConfigError(
            f"{where} was made by a program with {table['made_by']}, which only that program has; go on there: "
            "fedkin.compare(..., out=FOLDER, resume=True)"
        )
    if not table.get("methods"):
        raise ConfigError(f'{where}: a comparison needs a list of names, methods = ["da-pfl"]')
    entries = {name: value for name, value in table.items() if name in _Entries.__struct_fields__}
    plan: _Entries = converted(entries, _Entries, where)
    base = read_settings({name: part for name, part in table.items() if name not in entries}, where)
    if "seed" in subtable(table, "run"):
        raise ConfigError(f"{where}: a comparison has seeds = [0, 1], not a seed in [run]")
    CodeRef.read(base.model.model).require_same(base.code.get("model"), f"{where}: [model]")
    for name, values in plan.method.items():
        if (code := values.pop("code", None)) is not None:
            get_title(name)
            CodeRef(name).require_same(code, f"{where}: [method.{CodeRef(name).attribute}]")
    return {
        "methods": plan.methods,
        "seeds": plan.seeds,
        "own": {name: values for name, values in plan.method.items() if values},
        "baseline": plan.baseline,
        "safe": plan.safe,
        "tune": plan.tune,
        "base": base.but(code={}),
    }


def compare(
    federation: Comparison | Federation | Dataset | Callable[[int], Federation],
    methods: Sequence[str | Method] | str | Method | None = None,
    *,
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    progress: bool = True,
    **settings: Any,
) -> ComparisonResult:
    """Train a federation by several methods with every seed, Local, Local (full) and FedAvg always among them.

    All runs of a seed have the same data, the same start and, in each round, the same clients.

    Args:
        federation: the clients' data. A federation is the same in every seed: seeds differ in the initial model, the
            batches and the sampled clients, not in clients and their test samples. A data set is shared out anew for
            each seed (`fedkin.federate`), as is ``lambda seed: fedkin.federate(data, fedkin.Dirichlet(0.5), clients=20,
            seed=seed)``. A `Comparison` describes data, methods and settings as a file of ``fedkin compare`` does.
        methods: names or objects, as for `fedkin.run`. Where objects have one title, their settings are added to it.
        seeds: a run of every method for each. Default: (0,), or those of the `Comparison`.
        out: folder for a run folder per method and seed; None keeps everything in memory.
        resume: go on in ``out``: finished runs are kept, an interrupted one is continued.
        on_round: called after each round with the method's name, of an object its title, the seed, the report and its
            line.
        progress: as of `fedkin.run`.
        settings: further arguments of `fedkin.run`, such as ``rounds=20``, ``model="small-cnn"``,
            ``training=fedkin.Training(lr=0.1)``. With a `Comparison`: ``on_data``, called with the data of the first
            seed, and ``on_trial``, called after each round of a trial.

    Raises:
        RunFolderError: ``out`` exists already, or another process is writing into it.
        DataError: the data cannot be used.
        ConfigError: a method is unknown or there twice, or a setting is out of range.
    """
    if isinstance(federation, Comparison):
        changes: Any = {"methods": methods or federation.methods, "seeds": federation.seeds if seeds is None else seeds}
        plan = dataclasses.replace(federation, **changes)
        order, rounds, execute = plan.runs(), plan.base.run.rounds, partial(_compare_described, plan)
    else:
        named, seeds = _titled(methods or ()), seeds_of((0,) if seeds is None else seeds)
        order, rounds = [(name, seed) for seed in seeds for name in named], settings.get("rounds", RunSettings().rounds)
        execute = partial(_compare_given, named, order, _by_seed(federation))
    done = 0
    with bar(rounds * len(order), "comparison", quiet=not progress) as shown:

        def each_round(name: str, seed: int, report: RoundReport, line: RoundLine) -> None:
            nonlocal done
            done += 1
            shown.at(line, f"{name}, seed {seed}", done - line.round)
            if on_round is not None:
                on_round(name, seed, report, line)

        return execute(None if out is None else Path(out), resume, each_round, **settings)


def _compare_described(
    plan: Comparison,
    folder: Path | None,
    resume: bool,
    on_round: OnRound,
    *,
    on_data: OnData | None = None,
    on_trial: OnTuning | None = None,
) -> ComparisonResult:
    data = _by_seed(lambda seed: federation_of(plan.base.data, seed, on_data if seed == plan.seeds[0] else None))
    require_two_classes(data(plan.seeds[0]))  # bad data before anything is written
    if plan.tune:
        require_validation(data(plan.seeds[0]), f"tune = {plan.tune}")
    with study(folder, {**plan.sources(), "compare.toml": plan.toml().encode()}, resume=resume) as held:
        chosen = _chosen(plan, folder, data(plan.seeds[0]), on_trial)

        def make(name: str, seed: int, **how: Any) -> Result:
            return run_settings(chosen[name](seed), data(seed), **how)

        runs = _runs(held, plan.runs(), make, on_round)
    return result_of(plan.baseline, runs, folder)


def _compare_given(
    methods: Mapping[str, tuple[str, str | Method]],
    order: Sequence[tuple[str, int]],
    data: Callable[[int], Federation],
    folder: Path | None,
    resume: bool,
    on_round: OnRound,
    **settings: Any,
) -> ComparisonResult:
    def make(name: str, seed: int, **how: Any) -> Result:
        title, method = methods[name]
        return run(method, data(seed), seed=seed, title=title, progress=False, **how, **settings)

    seeds = [*dict.fromkeys(seed for _, seed in order)]
    plan = {"made_by": "data and methods of its own", "methods": list(methods), "seeds": seeds}
    with study(folder, {"compare.toml": tomli_w.dumps(plan).encode()}, resume=resume) as held:
        return ComparisonResult(_runs(held, order, make, on_round))


def _runs(held: Study, order: Sequence[tuple[str, int]], make: Make, on_round: OnRound) -> list[Result]:
    """Return runs, name and seed of each in order."""
    made: dict[tuple[str, int], Result] = {}
    for name, seed in as_made(order):
        callback = partial(on_round, name, seed)
        result = held.run(run_name(name, seed), partial(make, name, seed), on_round=callback)
        made[name, seed] = dataclasses.replace(result, server=None, finished=None)  # whose models take memory
    return [made[run] for run in order]


def _titled(methods: Sequence[str | Method] | str | Method) -> dict[str, tuple[str, str | Method]]:
    """Return the methods of a comparison, the references in front if they are missing: name -> title and method.

    Raises:
        ConfigError: a method is unknown or neither a name nor an object, or two have one title.
    """
    several = [methods] if isinstance(methods, (str, Method)) else methods
    asked = [known(method) if isinstance(method, str) else method for method in several]
    asked = [*(name for name in REFERENCES if name not in asked and get_method(name) not in asked), *asked]
    plain = [get_title(m) if isinstance(m, str) else require_method(m).title for m in asked]
    result: dict[str, tuple[str, str | Method]] = {}
    for method, title in zip(asked, plain, strict=True):
        if not isinstance(method, str) and plain.count(title) > 1:
            fields: Any = dataclasses.fields(method)  # type: ignore[arg-type]  # a method is a dataclass
            own = [f"{f.name}={v}" for f in fields if (v := getattr(method, f.name)) != f.default]
            title += f" ({', '.join(own)})" if own else ""
        name = method if isinstance(method, str) else re.sub(r"[^\w.+=@-]+", "-", title)
        if name in result or title in [there for there, _ in result.values()]:
            raise ConfigError(f"{title} is there twice; a comparison runs each method once for every seed")
        result[name] = (title, method)
    return result


def _by_seed(data: Federation | Dataset | Callable[[int], Federation]) -> Callable[[int], Federation]:
    """Return a function from the seed to its federation; it keeps the last one alone, as they may be large."""
    if isinstance(data, Dataset):
        return lru_cache(maxsize=1)(lambda seed: federate(data, seed=seed))
    return lru_cache(maxsize=1)(data) if callable(data) else lambda seed: data


def as_made(order: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return runs, name and seed of each, in the order in which they are made: what may fail before references."""
    seeds = [seed for _, seed in order]
    return sorted(order, key=lambda run: (seeds.index(run[1]), run[0] in REFERENCES))


def _chosen(
    plan: Comparison, folder: Path | None, federation: Federation, on_trial: OnTuning | None
) -> Mapping[str, Callable[[int], Settings]]:
    """Return for each method a function that gives its settings for a seed, after the trials of all if it is tuned."""
    if not plan.tune:
        return {name: partial(plan.settings, name) for name in plan.names}
    sweeps = {name: plan.sweep(name) for name in plan.names}
    values = tune_all(sweeps, folder, federation, on_trial)
    return {name: partial(sweep.settings, values[name]) for name, sweep in sweeps.items()}


def result_of(baseline: str, runs: Sequence[Result], folder: Path | None) -> ComparisonResult:
    """Return the result of runs against those of a method; how methods were tuned is read from the folder."""
    name, private = CodeRef(baseline).portable, any(run.privacy is not None for run in runs)
    reference = next((run.title for run in runs if run.table("method").get("name") == name), get_title(baseline))
    return ComparisonResult(runs, reference, () if folder is None else read_tuned(folder), private)


def run_name(name: str, seed: int) -> str:
    """Return the name of a run's folder within that of its comparison."""
    return f"{CodeRef(name).attribute}-seed{seed}"
