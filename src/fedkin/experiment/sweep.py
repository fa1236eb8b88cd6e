"""Many settings of one method; the one that is best on validation data is chosen, and only then is it tested.

A sweep's folder holds ``sweep.toml`` (all that it takes), copies of files with one's own method or network, a run
folder for every setting and seed, and at the end ``sweep.csv``, ``sweep.md`` and ``chosen.toml``, which ``fedkin run``
takes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from fedkin.core import ConfigError, MethodError, ModelError, RunFolderError
from fedkin.core.errors import nearest, typed
from fedkin.core.grammar import NONE, Fields, Table, converted, filled, plain, subtable
from fedkin.core.settings import Natural, Settings, leaf_groups
from fedkin.data import Federation, federation_of
from fedkin.evaluate import Spread, spread
from fedkin.experiment.prepare import require_validation
from fedkin.experiment.run import run_settings
from fedkin.experiment.search_space import (
    Range,
    Space,
    Value,
    Values,
    corners,
    end_at,
    grid_of,
    proposal,
    quasi_random,
    space_from,
)
from fedkin.experiment.settings import code_of, completed, decisive, method_of, settings_from, table_of, toml_of
from fedkin.experiment.study import Study, seeds_of, study
from fedkin.inspection import require_two_classes
from fedkin.record.divergence import sentence
from fedkin.record.figures import RULE, over, span, spans
from fedkin.record.lines import FinalFigures, RoundLine
from fedkin.report.tables import DASH, Grid, cells, percent, to_markdown
from fedkin.report.tuning import plain_setting
from fedkin.storage.files import write_atomic
from fedkin.storage.toml import NETWORK, differences, named, read_toml
from fedkin.user_code.reference import CodeRef, copies

PARTS = ("method", "model", "training", "run", "aggregation", "privacy")
Sampler = Literal["tpe", "sobol"]
OnTrial = Callable[[int, int, Values, int, RoundLine], None]
"""Called after each round with the trial's number, how many there are, its values, the seed and the round's line."""


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep.

    Attributes:
        base: all settings that stay.
        space: names such as ``"training.lr"`` -> the values to try, or a range.
        trials: number of settings that are drawn from the space; 0: all combinations of its values.
        seeds: every setting is run with each of them, on the same data, and judged by the mean.
        sampler: what draws them: Optuna ("tpe"), which follows what was found, or a Sobol sequence, which begins with
            the values of the base and covers the space evenly.
    """

    base: Settings
    space: Space
    trials: int = 0
    seeds: tuple[int, ...] = (0,)
    sampler: Sampler = "tpe"

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigError(
                'a sweep needs settings to try, such as --grid training.lr=0.01,0.1 or [sweep] "training.lr"'
            )
        object.__setattr__(self, "seeds", seeds_of(self.seeds))
        if not converted(self.trials, Natural, "trials") and self.sampler != "tpe":
            raise ConfigError(
                f"sampler = {self.sampler!r} draws trials, and a grid has none; give --trials N, or omit it"
            )
        paths: dict[tuple[str, ...], str] = {}
        for name in self.space:
            if (first := paths.setdefault(self._path(name), name)) != name:
                raise ConfigError(f"{first} and {name} are the same setting; give its values once")
        if {("training", "epochs"), ("training", "steps")} <= paths.keys():
            raise ConfigError("a sweep varies training.epochs or training.steps, not both: steps would win over epochs")
        if not self.base.data.validation > 0:
            raise ConfigError("a sweep chooses on validation data: --validation must be above 0, such as 0.1")
        for values in corners(self.space) if self.trials else grid_of(self.space):
            self.settings(values, self.seeds[0])
        if self.trials and self.sampler == "sobol":
            self.start()

    @property
    def size(self) -> int:
        """How many settings are tried."""
        return self.trials or len(grid_of(self.space))

    def settings(self, values: Values, seed: int) -> Settings:
        """Return the settings of one run.

        Raises:
            ConfigError: a name is unknown or a value does not fit.
        """
        fields: dict[str, Any] = {}
        leaves: dict[str, Any] = {"seed": seed}
        for name, value in values.items():
            part, *inner, leaf = self._path(name)
            place = fields if part == "method" else leaves
            for step in inner:
                place = place.setdefault(step, {})
            place[leaf] = value
        if "epochs" in leaves:
            leaves["steps"] = None  # which would win over them
        if "model" in leaves:
            leaves["code"] = {k: v for k, v in self.base.code.items() if k != "model"}  # that of the base's network
        method = plain(filled(method_of(self.base), fields, "sweep: [method]"))
        return completed(self.base.but(method={"name": self.base.method["name"], **method}, **leaves), "sweep")

    def sources(self) -> dict[str, bytes]:
        """Return the files of user-defined code that the sweep's tables name: file name -> content.

        Raises:
            ConfigError: one cannot be read, or two different ones have the same name.
        """
        networks = self.space.get(NETWORK, ())
        own = [CodeRef.read(str(name)) for name in (() if isinstance(networks, Range) else networks)]
        return copies([code_of(self.base), CodeRef.read(self.base.model.model), *own])

    def start(self) -> Values:
        """Return the values of the base.

        Raises:
            ConfigError: a setting that is varied has none.
        """
        base, result = msgspec.to_builtins(self.base), Values()
        for name in self.space:
            value = reduce(lambda table, key: table.get(key), self._path(name), base)
            if value in (None, NONE):
                raise ConfigError(
                    f"the sampler sobol begins with the values of the base, and {name} is not set there; set it, or "
                    "choose another sampler"
                )
            result[name] = value
        return result

    def _path(self, name: str) -> tuple[str, ...]:
        """Return the keys that lead to a setting; a wrapped method's fields go by their own names too."""
        part, *inner, leaf = name.replace("-", "_").split(".") if "." in name else (name, "")
        if part not in PARTS or name == "run.seed":
            raise ConfigError(
                f"a sweep varies {', '.join(p + '.SETTING' for p in PARTS)} but not the data and the seed, got {name!r}"
            )
        if part != "method":
            known = [each for each, group in leaf_groups().items() if group == part]
            if leaf not in known or inner:
                raise ConfigError(f"unknown setting {name}{nearest(leaf, known)}")
            return part, leaf
        method: object = None if inner else method_of(self.base)
        while not hasattr(method, leaf) and hasattr(method, "inner"):
            inner, method = [*inner, "inner"], method.inner
        return part, *inner, leaf

    def table(self) -> Fields:
        """As nested tables, from which `sweep_from` reads it."""
        entries: Fields = {"seeds": list(self.seeds), **({"trials": self.trials} if self.trials else {})}
        entries |= {"sampler": self.sampler} if self.sampler != "tpe" else {}
        entries |= {name: list(v) if isinstance(v, tuple) else str(v) for name, v in self.space.items()}
        return named({**table_of(self.base), "sweep": entries}, lambda name: CodeRef(name).portable)


@dataclass(frozen=True)
class Trial:
    """One setting: its validation accuracy over seeds (the headline: mean over clients and the rounds of
    `fedkin.record.figures.window`), a fraction, or why it failed; over which rounds, and what it is in the last one;
    and its test accuracy, which is not used for the choice; of its first seed, validation accuracy by client and the
    megabytes sent up and down."""

    number: int
    values: Values
    validation: Spread | None
    failed: str = ""
    test: Spread | None = None
    rounds: str = RULE
    last: Spread | None = None
    by_client: Mapping[int, float] = field(default_factory=dict)
    megabytes: float | None = None


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    resume: bool = False,
    on_trial: OnTrial | None = None,
    federation: Federation | None = None,
) -> list[Trial]:
    """Run every setting; all are judged by validation data alone.

    A setting whose run fails (by an error of the method; after the first one also because it contradicts itself or the
    network does not fit the data) or diverges is recorded and skipped.

    Args:
        sweep: what is tried.
        out: its folder.
        resume: continue in ``out``.
        on_trial: called after each round.
        federation: data of the first seed, if they are read already.

    Raises:
        RunFolderError: ``out`` exists already, holds another sweep, or is being written by another process.
        ConfigError: a setting is out of range, or no client has validation data.
        DataError: the data cannot be used.
    """
    first = sweep.seeds[0]
    federations = {first: federation_of(sweep.base.data, first) if federation is None else federation}
    require_two_classes(federations[first])
    require_validation(federations[first], "a sweep")
    if resume:
        _require_same(sweep, out)
    files = {**sweep.sources(), "sweep.toml": tomli_w.dumps(sweep.table()).encode()}
    done: list[Trial] = []
    with study(out, files, resume=resume) as held:
        for number in range(sweep.size):
            values = _values(sweep, done)
            observer = None if on_trial is None else partial(on_trial, number, sweep.size, values)
            done.append(_trial(sweep, held, number, values, federations, observer))
        _finish(sweep, out, done)
    return done


def _values(sweep: Sweep, done: Sequence[Trial]) -> Values:
    """Return the values of the next trial: those of the grid, or drawn ones, which earlier trials determine."""
    if not sweep.trials:
        return grid_of(sweep.space)[len(done)]
    if sweep.sampler == "sobol":
        return quasi_random(sweep.space, len(done) - 1, sweep.seeds[0]) if done else sweep.start()
    before = [(t.values, None if t.validation is None else t.validation.mean) for t in done]
    return proposal(sweep.space, before, sweep.seeds[0])


def _require_same(sweep: Sweep, out: Path) -> None:
    """Raise `RunFolderError` if a folder holds another sweep."""
    if _deciding(before := read_toml(out / "sweep.toml")) != _deciding(sweep.table()):
        raise RunFolderError(
            f"{out} holds another sweep: {differences(before, sweep.table())}; resume it as it was begun: "
            f"fedkin resume {typed(out)}"
        )


def _deciding(table: Table) -> Fields:
    portable = named(table, lambda name: CodeRef(name).portable)
    return {**decisive({k: v for k, v in portable.items() if k != "sweep"}), "sweep": subtable(portable, "sweep")}


def _trial(
    sweep: Sweep,
    held: Study,
    number: int,
    values: Values,
    federations: dict[int, Federation],
    on_line: Callable[[int, RoundLine], None] | None,
) -> Trial:
    """Run one setting with every seed, or continue it; after a seed that fails no further one begins."""
    finals, last, sent = list[FinalFigures](), list[float | None](), list[float]()
    by_client: list[Mapping[int, float]] = []
    for seed in sweep.seeds:
        if seed not in federations:
            federations[seed] = federation_of(sweep.base.data, seed)
        observer = None if on_line is None else (lambda _, line, seed=seed: on_line(seed, line))
        try:
            make = partial(run_settings, sweep.settings(values, seed), federation=federations[seed])
            result = held.run(trial_name(number, seed), make, on_round=observer)
        except (MethodError, ConfigError, ModelError) as e:
            if number == 0 and not isinstance(e, MethodError):  # more likely a mistake in what all trials share
                raise
            return Trial(number, values, None, f"seed {seed}: {e}")
        if (lost := result.diverged) is not None:
            return Trial(number, values, None, f"seed {seed}: {sentence(lost, result.rounds)}")
        if result.final.validation is None:  # data of a further seed
            raise ConfigError("a sweep chooses on validation data, and no client has any; raise --validation")
        finals.append(result.final)
        last.append(None if result.last is None else result.last[1].validation)
        by_client.append(result.averaged("validation"))
        sent.append(result.bytes / 1e6)
    return Trial(
        number,
        values,
        spread([one.validation for one in finals]),
        test=spread([one.accuracy for one in finals]),
        rounds=spans([span(one.rounds) for one in finals]),
        last=spread(last),
        by_client=by_client[0],
        megabytes=sent[0],
    )


def trial_name(number: int, seed: int) -> str:
    """Return the name of a run's folder within that of its sweep."""
    return f"{number:03d}-seed{seed}"


def chosen(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the highest validation accuracy, the earliest of equals; test data are not used."""
    judged = [(t.validation.mean, t) for t in trials if t.validation is not None]
    return max(judged, key=lambda pair: pair[0])[1] if judged else None


def at_ends(sweep: Sweep, values: Values) -> list[str]:
    """Return a clause for each chosen number at an end of its values or range, unless no value beyond is possible."""
    result = []
    for name, value in values.items():
        if (end := end_at(sweep.space[name], value)) is None:
            continue
        try:
            sweep.settings({**values, name: end[1]}, sweep.seeds[0])
        except ConfigError:
            continue
        tried = sweep.space[name]
        text = ", ".join(map(str, tried)) if isinstance(tried, tuple) else str(tried).rpartition(":")[2]
        result.append(f"{plain_setting(name)} {value} is at the {end[0]} end of what was tried ({text})")
    return result


def sweep_table(sweep: Sweep, trials: Sequence[Trial]) -> Grid:
    """Return a table of all settings by validation accuracy, with test figures of the chosen one alone."""
    best = chosen(trials)
    names = list(trials[0].values) if trials else []
    order = sorted(trials, key=lambda t: (-t.validation.mean if t.validation else 1, t.number))
    columns = [_texts([t.values[n] for t in order]) for n in names]
    columns.append([percent(t.validation) if t.validation else "failed" for t in order])
    columns.append([DASH if t.last is None else f"{100 * t.last.mean:.1f}" for t in order])
    note = f"validation: accuracy, mean over clients {over(spans(t.rounds for t in trials if t.validation))}"
    note += "; last: accuracy in the last round alone"
    note += "; ± is the standard deviation over seeds" if any(t.validation and t.validation.std for t in trials) else ""
    if best is not None:
        note += "; ".join(
            ["", f"bold: chosen by it, test accuracy {percent(best.test)} %", *at_ends(sweep, best.values)]
        )
    bold = frozenset((i, len(names)) for i, t in enumerate(order) if t is best)
    rows = tuple(zip(*columns, strict=True))
    return Grid("Sweep", (*names, "validation %", "last"), rows, bold, note, words=len(names))


def _texts(values: Sequence[Value]) -> list[str]:
    """Return a setting's values as texts: numbers to four digits, or as many as keep different ones apart."""
    texts = [str(v) for v in values]
    for digits in (4, 8):
        short = [f"{v:.{digits}g}" if isinstance(v, float) else str(v) for v in values]
        if len(set(short)) == len(set(texts)):
            return short
    return texts


def _finish(sweep: Sweep, out: Path, trials: list[Trial]) -> None:
    best = chosen(trials)
    write_atomic(out / "sweep.csv", _csv(trials, best).encode())
    write_atomic(out / "sweep.md", to_markdown(sweep_table(sweep, trials)).encode())
    if best is not None:
        write_atomic(out / "chosen.toml", toml_of(sweep.settings(best.values, sweep.seeds[0])).encode())


def _csv(trials: list[Trial], best: Trial | None) -> str:
    """One line per setting; test figures in that of the chosen one alone, lest somebody choose by them."""
    text = io.StringIO()
    names = list(trials[0].values) if trials else []
    writer = csv.writer(text, lineterminator="\n")
    kinds = ("validation", "last_validation", "test")
    measures = ("rounds", *(f"{kind}_{part}" for kind in kinds for part in ("mean", "std")))
    writer.writerow(["trial", *names, *measures, "chosen", "failed"])
    for t in trials:
        shown = (t.validation, t.last, t.test if t is best else None)
        numbers = [v for s in shown for v in ((None, None) if s is None else (s.mean, s.std))]
        rounds = t.rounds if t.validation else None
        tried = (t.values[n] for n in names)
        writer.writerow(cells([t.number, *tried, rounds, *numbers, str(t is best).lower(), t.failed]))
    return text.getvalue()


def sweep_from(table: Table, where: str) -> Sweep:
    """Read a sweep from the tables of a TOML file: a run's config with a table ``[sweep]``.

    Raises:
        ConfigError: an unknown key, or a value of the wrong kind.
    """
    base = settings_from({name: part for name, part in table.items() if name != "sweep"}, where)
    own = sweep_table_of(table.get("sweep", {}), where)
    return Sweep(base, **{**own, "seeds": own["seeds"] or (base.run.seed,)})


class _Entries(msgspec.Struct):
    """The entries of a ``[sweep]`` table next to the search space."""

    seeds: tuple[int, ...] = ()
    trials: Natural = 0
    sampler: Sampler = "tpe"


def sweep_table_of(entries: object, where: str) -> dict[str, Any]:
    """Read the fields of a sweep but its base from a ``[sweep]`` table; ``seeds`` is empty where it has none."""
    table = converted(entries, dict[str, Any], f"{where}: [sweep]")
    own = msgspec.structs.asdict(converted(table, _Entries, f"{where}: [sweep]"))
    return {**own, "space": space_from({n: v for n, v in table.items() if n not in own}, f"{where}: [sweep]")}
