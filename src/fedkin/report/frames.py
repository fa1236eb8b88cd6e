"""The lines of a run as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedkin.core.errors import ConfigError
from fedkin.evaluate import GROUPED, METRICS

if TYPE_CHECKING:
    from pandas import DataFrame

FRAMES = ("clients", "rounds")
_FRACTIONS = ("accuracy", "balanced", "macro_f1", "validation_accuracy")
_NUMBERS = ("correct", "n_test", "n_validation", "majority")
_SIZES = ("few", "medium", "many", "unseen")
_COUNTED = ("cohort", "answered", "joined", "absent", "refused", "missing")
_BYTES = ("bytes_up", "bytes_down", "bytes_evaluation")

Line = Mapping[str, Any]


def frame(
    kind: str, title: str, seed: int, rounds: Iterable[Line], clients: Iterable[Line], summary: Line
) -> DataFrame:
    """Return one of the `FRAMES` of a run: see `fedkin.Result.to_frame`.

    Args:
        kind: "clients" or "rounds".
        title, seed: the first two columns.
        rounds, clients: the lines of the files of the same names.
        summary: ``summary.json``, for names and true groups of the clients.

    Raises:
        ConfigError: another kind, or pandas is not installed.
    """
    if kind not in FRAMES:
        raise ConfigError(f"to_frame takes {' or '.join(map(repr, FRAMES))}, got {kind!r}")
    if kind == "rounds":
        return _frame(title, seed, *_rounds(list(rounds)))
    return _frame(title, seed, *_clients(clients, summary.get("clients") or {}))


Columns = dict[str, list[Any]]


def _clients(lines: Iterable[Line], about: Line) -> tuple[Columns, Columns, Columns]:
    """Return texts, integers and floats by column; a column that no line has is left out."""
    names, groups = about.get("names"), about.get("groups")
    texts: list[Line] = []
    numbers: list[Line] = []
    fractions: list[Line] = []
    trained: dict[int, int] = {}
    for line in lines:
        i = int(line["client"])
        if "labels" in line:  # in a client's first line only
            trained[i] = sum(line["labels"])
        texts.append({} if names is None else {"client_name": names[i]})
        whole = {"round": line["round"], "client": i, **{name: line[name] for name in _NUMBERS}}
        for name in _SIZES:
            whole |= dict(zip((f"{name}_correct", f"{name}_total"), line[name], strict=True))
        whole |= {"n_train": trained[i]} if i in trained else {}
        whole |= {} if groups is None else {"group": groups[i]}
        whole |= {"cluster": line["cluster"]} if "cluster" in line else {}
        numbers.append(whole)
        fractions.append({name: line[name] for name in (*_FRACTIONS, *_views(line))})
    sizes = [f"{name}_{what}" for name in _SIZES for what in ("correct", "total")]
    return _columns(texts), _columns(numbers, ("round", "client", *_NUMBERS, *sizes)), _columns(fractions, _FRACTIONS)


def _rounds(lines: Sequence[Line]) -> tuple[Columns, Columns, Columns]:
    """No texts; whole numbers and fractions, by column."""
    numbers, fractions = [], []
    for line in lines:
        whole = {"round": line["round"], "evaluated": line["evaluated"], "abandoned": line["abandoned"]}
        whole |= {name: len(line[name]) for name in _COUNTED} | {name: line[name] for name in _BYTES}
        whole |= {name: line.get(name) for name in ("clients", "clients_without_test")}
        whole |= {"clusters": len(line["cluster_sizes"])} if "cluster_sizes" in line else {}
        numbers.append(whole)
        shown = [name for name in (*_views(line), *GROUPED) if name in line]
        fractions.append({name: line.get(name) for name in (*METRICS, *shown)})
    whole_names = ("round", "evaluated", "abandoned", *_COUNTED, *_BYTES, "clients", "clients_without_test")
    return {}, _columns(numbers, whole_names), _columns(fractions, METRICS)


def _views(line: Line) -> list[str]:
    """Return the accuracies of further models that the method has, and its notes on a client."""
    return [name for name in line if name.startswith(("accuracy_", "note_"))]


def _columns(rows: Sequence[Line], always: Sequence[str] = ()) -> Columns:
    """Return the rows by column: those of ``always``, and all others that a row has; None where a row lacks one."""
    names = dict.fromkeys([*always, *(name for row in rows for name in row)])
    return {name: [row.get(name) for row in rows] for name in names}


def require_pandas() -> Any:
    """Return pandas, or raise `ConfigError` if it is not installed."""
    try:
        import pandas
    except ImportError as e:
        raise ConfigError('a DataFrame needs pandas, which is not installed: pip install "fedkin[pandas]"') from e
    return pandas


def _frame(title: str, seed: int, texts: Columns, numbers: Columns, fractions: Columns) -> DataFrame:
    pandas = require_pandas()
    lead = [name for name in ("round", "client", "evaluated", "abandoned") if name in numbers]
    count = len(numbers["round"])
    found: dict[str, Any] = {
        "method": pandas.Series([title] * count, dtype="str"),
        "seed": pandas.Series([seed] * count, dtype="int64"),
        **{name: _whole(numbers[name], pandas) for name in lead},
        **{name: pandas.Series(values, dtype="str") for name, values in texts.items()},
        **{name: pandas.Series(values, dtype="float64") for name, values in fractions.items()},
        **{name: _whole(values, pandas) for name, values in numbers.items() if name not in lead},
    }
    return pandas.DataFrame(found)


def _whole(values: Sequence[int | None], pandas: Any) -> Any:
    """Whole numbers or truth values; with gaps, pandas' own integers, which a gap does not make floats."""
    if any(value is None for value in values):
        return pandas.Series(values, dtype="Int64")
    return pandas.Series(values, dtype="bool" if values and isinstance(values[0], bool) else "int64")
