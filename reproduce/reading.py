"""Reading of the tables from their files, one TOML file per table.

A file contains the sections of a config file (``[data]``, ``[model]``, ``[training]``, ``[run]``, ``[method.NAME]``)
for all of its cells. A column, a row and a scale may contain the same sections; later ones in this order override
earlier ones: table, column, the row's preset, row, scale, the column at this scale.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.core import ConfigError
from fedkin.methods import get_title
from fedkin.user_code.reference import CodeRef
from reproduce.tables import HERE, SECTIONS, Claim, Column, Number, Paper, Row, Scale, Sections, Table

PAPERS = ("dapfl", "cfic", "cam", "pfedcs", "pflib")


def papers(names: Sequence[str] = PAPERS) -> list[Paper]:
    """Return all papers, or the named ones."""
    return [read_paper(HERE / name) for name in names if (HERE / name / "paper.toml").is_file()]


def read_paper(folder: Path) -> Paper:
    """Return the tables of one folder; ``paper.toml`` describes the paper and the order of its tables.

    Raises:
        ConfigError: an entry of a file is missing or unknown.
    """
    about = tomllib.loads((folder / "paper.toml").read_text(encoding="utf-8"))
    tables = tuple(read_table(folder / f"{name}.toml") for name in about["tables"])
    there = {p.stem for p in folder.glob("*.toml")} - {"paper", *about["tables"]}
    if there:
        raise ConfigError(f"{folder}/paper.toml does not name the tables {', '.join(sorted(there))}")
    return Paper(
        name=folder.name,
        title=about["title"],
        cite=about["cite"],
        text=about.get("text", ""),
        tables=tables,
        remarks=tuple(about.get("remarks", ())),
        summary=about.get("summary", ""),
    )


def read_table(path: Path) -> Table:
    """Return the table of one file.

    Raises:
        ConfigError: an entry is missing or unknown.
    """
    raw = _whole(path)
    known = {"title", "text", "priority", "metrics", "shown", "seeds", "rows", "columns", "scales", "numbers"}
    _known(raw, known | {"claims", "left_out", "unmeasured", "decimals", "baselines", *SECTIONS}, str(path))
    seeds = tuple(raw.get("seeds", (0, 1, 2)))
    rows = {key: _row(key, value, path) for key, value in raw.get("rows", {}).items()}
    columns = {key: _column(key, value, path) for key, value in raw.get("columns", {}).items()}
    scales = {key: _scale(key, value, seeds, path) for key, value in raw.get("scales", {}).items()}
    metrics = tuple(raw.get("metrics", ("accuracy",)))
    found = Table(
        paper=path.parent.name,
        name=path.stem,
        title=raw["title"],
        text=raw.get("text", ""),
        priority=raw["priority"],
        metrics=metrics,
        shown=raw.get("shown", next(iter(scales), "")),
        sections=_sections(raw, path.parent),
        rows=rows,
        columns=columns,
        scales=scales,
        numbers=_numbers(raw.get("numbers", {}), metrics, columns, rows, str(path)),
        claims=tuple(_claim(one, raw, str(path)) for one in raw.get("claims", ())),
        left_out=raw.get("left_out"),
        unmeasured=raw.get("unmeasured"),
        decimals=raw.get("decimals", 2),
    )
    _check(found, str(path))
    return found


def _check(table: Table, where: str) -> None:
    """Check that titles differ, and that the rows and columns named in scales and claims are those of the table."""
    if not table.scales and table.left_out is None:
        raise ConfigError(f"{where}: a table without scales needs left_out, the reason")
    for parts in (table.rows, table.columns):
        titles = [part.title for part in parts.values()]
        for key, part in parts.items():
            if titles.count(part.title) > 1:
                raise ConfigError(
                    f"{where}: {key} has the title {part.title!r} of another one; give each its own title"
                )
    named = [(claim.columns or (), claim.rows, f"the claim {claim.text!r}") for claim in table.claims]
    for scale in table.scales.values():
        named.append(((*(scale.columns or ()), *scale.by_column), scale.rows or (), f"scale {scale.name}"))
    for columns, rows, what in named:
        for name, there in [(c, table.columns) for c in columns] + [(r, table.rows) for r in rows]:
            if name not in there:
                raise ConfigError(f"{where}: {what} names {name}; there are {', '.join(there)}")


def _whole(path: Path) -> dict[str, Any]:
    """Return the content of a file; with ``like``, missing entries are those of another table of the folder."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    if "like" not in raw:
        return raw
    base = _whole(path.parent / f"{raw.pop('like')}.toml")
    only = raw.pop("only", None)
    if "columns" in raw:  # the column settings of the other table's scales do not apply to these
        base["scales"] = {name: _without_columns(scale) for name, scale in base.get("scales", {}).items()}
    rows = {**base.get("rows", {}), **raw.get("rows", {})}
    sections = {name: merged(base.get(name, {}), raw.get(name, {})) for name in SECTIONS if name in base or name in raw}
    whole = {
        name: value
        for name, value in base.items()
        if name not in ("numbers", "claims", "text", "left_out", "unmeasured")
    }
    return {**whole, **raw, **sections, "rows": rows if only is None else {key: rows[key] for key in only}}


def _without_columns(scale: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in scale.items() if name not in ("columns", "only_columns")}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with others merged over them."""
    found = dict(base)
    for key, value in over.items():
        old = found.get(key)
        found[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found


def _known(raw: Mapping[str, Any], names: set[str], where: str) -> None:
    for name in raw:
        if name not in names:
            raise ConfigError(f"{where}: unknown entry {name!r}; there are {', '.join(sorted(names))}")


def _sections(raw: Mapping[str, Any], folder: Path) -> Sections:
    """Return the sections of a config; paths of user methods, ``file.py:Class``, are relative to the table's folder."""
    found = {name: raw[name] for name in SECTIONS if name in raw}
    if "method" in found:
        found["method"] = {CodeRef.read(name, folder).name: fields for name, fields in found["method"].items()}
    return found


def _row(key: str, raw: Mapping[str, Any], path: Path) -> Row:
    """Return one row; its ``[method]`` has the fields of its own method, and the name if it differs from the row's."""
    _known(raw, {"title", "preset", "later", *SECTIONS}, f"{path}: row {key}")
    fields = dict(raw.get("method", {}))
    method = CodeRef.read(str(fields.pop("name", key)), path.parent).name
    others = {name: section for name, section in raw.items() if name != "method"}
    sections = {**_sections(others, path.parent), "method": {method: fields}}
    return Row(key, raw.get("title", get_title(method)), method, raw.get("preset"), sections, raw.get("later", 0))


def _column(key: str, raw: Mapping[str, Any], path: Path) -> Column:
    _known(raw, {"title", "metric", "later", *SECTIONS}, f"{path}: column {key}")
    return Column(key, raw.get("title", key), raw.get("metric"), _sections(raw, path.parent), raw.get("later", 0))


def _scale(key: str, raw: Mapping[str, Any], seeds: tuple[int, ...], path: Path) -> Scale:
    where = f"{path}: scale {key}"
    _known(raw, {"text", "guess", "seeds", "columns", "only_columns", "only_rows", "later", *SECTIONS}, where)
    if key not in ("paper", "small"):
        raise ConfigError(f"{where}: a scale is 'paper' or 'small'")
    columns, rows = raw.get("only_columns"), raw.get("only_rows")
    return Scale(
        name=key,
        text=raw["text"],
        guess=float(raw["guess"]),
        seeds=tuple(raw.get("seeds", seeds)),
        sections=_sections(raw, path.parent),
        by_column={name: _sections(one, path.parent) for name, one in raw.get("columns", {}).items()},
        columns=None if columns is None else tuple(columns),
        rows=None if rows is None else tuple(rows),
        later=raw.get("later", 0),
    )


def _numbers(
    raw: Mapping[str, Any], metrics: Sequence[str], columns: Mapping[str, Column], rows: Mapping[str, Row], where: str
) -> dict[str, dict[str, dict[str, Number]]]:
    """Return the paper's numbers: under ``[numbers]`` a row has a list with one entry per column: a number,
    ``[mean, std]``, or "-" for none.

    Where several figures are shown of each cell, the numbers apply to all of them, unless each has its own under
    ``[numbers.METRIC]``; in a table whose columns are figures each column has its own.
    """
    nested = raw if any(isinstance(v, Mapping) for v in raw.values()) else dict.fromkeys(metrics, raw)
    found: dict[str, dict[str, dict[str, Number]]] = {}
    for metric, lines in nested.items():
        for key, values in lines.items():
            if key not in rows:
                raise ConfigError(f"{where}: [numbers] names the row {key!r}; there are {', '.join(rows)}")
            if len(values) != len(columns):
                raise ConfigError(f"{where}: {key} has {len(values)} numbers, there are {len(columns)} columns")
            for column, value in zip(columns.values(), values, strict=True):
                if value != "-":
                    pair = (float(value[0]), float(value[1])) if isinstance(value, list) else (float(value), None)
                    found.setdefault(column.metric or metric, {}).setdefault(key, {})[column.key] = pair
    return found


def _claim(raw: Mapping[str, Any], table: Mapping[str, Any], where: str) -> Claim:
    """Return a claim; ``than`` is a list of rows, or "baselines", which is the table's list."""
    own = {"text", "row", "than", "columns", "by", "within", "pooled", "metric", "question", "reason"}
    _known(raw, own, where)
    than = table["baselines"] if raw["than"] == "baselines" else raw["than"]
    pairs = tuple((raw["row"], other) for other in than)
    columns = raw.get("columns")
    return Claim(
        raw["text"],
        pairs,
        None if columns is None else tuple(columns),
        float(raw.get("by", 0.0)),
        raw.get("within"),
        raw.get("pooled", False),
        raw.get("metric"),
        raw.get("question", False),
        raw.get("reason"),
    )
