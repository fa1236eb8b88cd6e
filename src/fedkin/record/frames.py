"""The lines of a run as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedkin.core.errors import ConfigError
from fedkin.record.figures import GROUPED, METRICS
from fedkin.record.lines import STAGES, ClientLine, RoundLine, RunLine

if TYPE_CHECKING:
    from pandas import DataFrame

FRAMES = ("clients", "rounds")
_FRACTIONS = ("accuracy", "balanced", "macro_f1", "validation")
_NUMBERS = ("correct", "n_test", "n_validation", "majority")
_SIZES = ("few", "medium", "many", "unseen")
_COUNTED = ("cohort", "answered", "joined", "absent")
_BYTES = ("bytes_up", "bytes_down", "bytes_evaluation")


def frame(kind: str, run: RunLine, rounds: Iterable[RoundLine], clients: Iterable[ClientLine]) -> DataFrame:
    """Return one of the `FRAMES` of a run: see `fedkin.Result.to_frame`.

    Args:
        kind: "clients" or "rounds".
        run, rounds, clients: the run's lines.

    Raises:
        ConfigError: another kind.
    """
    if kind not in FRAMES:
        raise ConfigError(f"to_frame takes {' or '.join(map(repr, FRAMES))}, got {kind!r}")
    return _frame(run.title, run.seed, *(_rounds(list(rounds)) if kind == "rounds" else _clients(clients, run)))


Row = dict[str, int | float | str | None]
Columns = dict[str, list[Any]]


def _clients(lines: Iterable[ClientLine], run: RunLine) -> tuple[Columns, Columns, Columns]:
    """Return texts, integers and floats by column; a column that no line has is left out."""
    texts, numbers, fractions, trained = list[Row](), list[Row](), list[Row](), dict[int, int]()
    for line in lines:
        i = line.client
        if line.labels:  # in a client's first line only
            trained[i] = sum(line.labels)
        texts.append({"client_name": run.names[i]} if i < len(run.names) else {})
        whole: Row = {"round": line.round, "client": i, **{name: getattr(line, name) for name in _NUMBERS}}
        for name in _SIZES:
            whole |= dict(zip((f"{name}_correct", f"{name}_total"), getattr(line, name), strict=True))
        whole |= {"n_train": trained[i]} if i in trained else {}
        whole |= {"group": run.groups[i]} if i < len(run.groups) else {}
        whole |= {} if line.cluster is None else {"cluster": line.cluster}
        numbers.append(whole)
        more = {f"accuracy_{view}": value for view, value in line.views.items()}
        more |= {f"note_{name}": value for name, value in line.notes.items()}
        fractions.append({**{name: line.of(name) for name in _FRACTIONS}, **more})
    sizes = [f"{name}_{what}" for name in _SIZES for what in ("correct", "total")]
    return _columns(texts), _columns(numbers, ("round", "client", *_NUMBERS, *sizes)), _columns(fractions, _FRACTIONS)


def _rounds(lines: Sequence[RoundLine]) -> tuple[Columns, Columns, Columns]:
    """No texts; whole numbers and fractions, by column."""
    numbers, fractions = list[Row](), list[Row]()
    for line in lines:
        f = line.figures
        whole: Row = {"round": line.round, "evaluated": f is not None, "abandoned": line.abandoned}
        whole |= {name: len(getattr(line, name)) for name in _COUNTED} | {name: getattr(line, name) for name in _BYTES}
        whole |= {"refused": len(line.unused(*STAGES)), "missing": len(line.missing("update"))}
        whole |= {"clients": None, "untested": None} if f is None else {"clients": f.clients, "untested": f.untested}
        whole |= {"clusters": len(line.cluster_sizes)} if line.cluster_sizes else {}
        numbers.append(whole)
        shown = {} if f is None else {f"accuracy_{view}": value for view, value in f.views.items()}
        shown |= {} if f is None else {name: value for name in GROUPED if (value := f.of(name)) is not None}
        fractions.append({**{name: None if f is None else f.of(name) for name in METRICS}, **shown})
    always = ("round", "evaluated", "abandoned", *_COUNTED, "refused", "missing", *_BYTES, "clients", "untested")
    return {}, _columns(numbers, always), _columns(fractions, METRICS)


def _columns(rows: Sequence[Row], always: Sequence[str] = ()) -> Columns:
    """Return the rows by column: those of ``always``, and all others that a row has; None where a row lacks one."""
    names = dict.fromkeys([*always, *(name for row in rows for name in row)])
    return {name: [row.get(name) for row in rows] for name in names}


def _frame(title: str, seed: int, texts: Columns, numbers: Columns, fractions: Columns) -> DataFrame:
    import pandas  # here: it takes half a second to import

    lead = [name for name in ("round", "client", "evaluated", "abandoned") if name in numbers]
    count = len(numbers["round"])
    result: dict[str, Any] = {
        "method": pandas.Series([title] * count, dtype="str"),
        "seed": pandas.Series([seed] * count, dtype="int64"),
        **{name: _whole(numbers[name], pandas) for name in lead},
        **{name: pandas.Series(values, dtype="str") for name, values in texts.items()},
        **{name: pandas.Series(values, dtype="float64") for name, values in fractions.items()},
        **{name: _whole(values, pandas) for name, values in numbers.items() if name not in lead},
    }
    return pandas.DataFrame(result)


def _whole(values: Sequence[int | None], pandas: Any) -> Any:
    """Whole numbers or truth values; with gaps, pandas' own integers, which a gap does not make floats."""
    if any(value is None for value in values):
        return pandas.Series(values, dtype="Int64")
    return pandas.Series(values, dtype="bool" if values and isinstance(values[0], bool) else "int64")
