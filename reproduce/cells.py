"""The cells of tables: each is an ordinary run, with settings that ``fedkin run`` accepts as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.capabilities.presets import TABLES, presets_of
from fedkin.core import ConfigError
from fedkin.core.grammar import filled
from fedkin.data.sources.papers import KNOWN, data_root
from fedkin.experiment.settings import Settings, digest, settings_from, table_of
from fedkin.methods import get_method
from reproduce.reading import merged
from reproduce.tables import Column, Row, Scale, Sections, Table


@dataclass(frozen=True)
class Cell:
    """One row at one column, scale and seed."""

    table: Table
    row: Row
    column: Column
    scale: Scale
    seed: int

    @property
    def path(self) -> str:
        """Name of the cell on the command line, without scale."""
        return f"{self.table.path}/{self.row.key}/{self.column.key}/{self.seed}"

    @property
    def place(self) -> str:
        """Name of the cell in results: its path without seed."""
        return f"{self.table.path}/{self.row.key}/{self.column.key}"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the settings as the tables of a config file."""
        return config_of(self)

    @cached_property
    def settings(self) -> Settings:
        """Settings of the cell; the data by name, wherever they are stored."""
        run = {k: v for k, v in self.config["run"].items() if k != "seed"}
        made = _settings(json.dumps({**self.config, "run": run}), f"{self.table.path}, row {self.row.key}")
        return made.but(seed=self.seed)

    @cached_property
    def digest(self) -> str:
        """Fingerprint of everything that determines its figures: two cells with the same one are one run."""
        return digest(table_of(self.settings))

    @property
    def priority(self) -> int:
        """Priority of the cell; cells with a smaller one are measured first."""
        return self.table.priority + self.row.later + self.column.later + self.scale.later

    def toml(self, root: Path | None = None) -> str:
        """Return a file for ``fedkin run``."""
        config = dict(self.config)
        if root is not None:
            config["data"] = {**config["data"], "data": located(self.settings.data.data, root)}
        return tomli_w.dumps(config)


@cache
def _settings(config: str, where: str) -> Settings:
    """Return the settings of a config, read once for all seeds of a cell and for cells that several tables share."""
    return settings_from(json.loads(config), where)


def config_of(cell: Cell) -> dict[str, Any]:
    """Return the sections of all layers, merged in order."""
    name = cell.row.method
    layers: list[Sections] = [cell.table.sections, cell.column.sections, _preset(cell.row)]
    layers += [cell.row.sections, cell.scale.sections, cell.scale.by_column.get(cell.column.key, {})]
    found: dict[str, Any] = {}
    for layer in layers:
        own = dict(layer.get("method", {}).get(name, {}))
        found = merged(found, {**{k: v for k, v in layer.items() if k != "method"}, "method": own})
    found["method"] = {"name": name, **found["method"]}
    found["run"] = {**found.get("run", {}), "seed": cell.seed}
    return found


def _preset(row: Row) -> Sections:
    """Return the settings of a preset of the row's method."""
    if row.preset is None:
        return {}
    fields = row.sections["method"][row.method]
    method = filled(get_method(row.method), fields, f"row {row.key}")
    presets = presets_of(method)
    if row.preset not in presets:
        raise ConfigError(f"row {row.key}: {row.method} has no preset {row.preset!r}; it has {', '.join(presets)}")
    chosen = presets[row.preset]
    own = {key: value for key, value in chosen.items() if key not in TABLES}
    return {**{name: chosen[name] for name in TABLES if name in chosen}, "method": {row.method: own}}


@cache
def cells_of(table: Table, scale: str | None = None) -> tuple[Cell, ...]:
    """Return the cells of a table at one scale (None: the one that is shown), seed by seed.

    Columns that are only other figures of the same runs give cells with equal digests.
    """
    how = table.scales.get(table.shown if scale is None else scale)
    if table.left_out is not None or how is None:
        return ()
    return tuple(
        Cell(table, row, column, how, seed)
        for seed in how.seeds
        for column in table.columns.values()  # those with the same data follow one another
        for row in table.rows.values()
        if (how.rows is None or row.key in how.rows) and (how.columns is None or column.key in how.columns)
    )


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells by priority, then seed; each digest once."""
    known: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda c: (c.priority, c.seed)):  # stable: tables stay in their order
        known.setdefault(cell.digest, cell)
    return list(known.values())


def chosen(cells: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
    """Return the cells whose path begins with one of the names; all without names.

    Raises:
        ConfigError: a name matches no cell.
    """
    found = set()
    for name in names:
        parts = name.strip("/").split("/")
        fitting = [i for i, cell in enumerate(cells) if cell.path.split("/")[: len(parts)] == parts]
        if not fitting:
            raise ConfigError(
                f"unknown table or cell {name!r} at this scale; expected PAPER/TABLE/ROW/COLUMN/SEED or the "
                "beginning of one: `python -m reproduce` lists all tables"
            )
        found.update(fitting)
    return [cell for i, cell in enumerate(cells) if not names or i in found]


def located(data: str, root: Path) -> str:
    """Return the path of named data below a folder; the name itself where no such data exist there.

    ``ROOT/NAME`` may be a folder as the library expects it, or contain one ``.npz`` file with the arrays.
    """
    if data not in KNOWN:
        return data
    folder = root / (KNOWN[data].folder or data)
    for place in (root / data, root / f"{data}.npz"):
        if place.is_file() or (place.is_dir() and any(place.glob("*.npz")) and not _idx(place)):
            return str(place.resolve())
    return f"{data}:{folder.resolve()}" if folder.is_dir() else data


def _idx(folder: Path) -> bool:
    """Return whether these are files of the MNIST family, next to which an npz with their writers may lie."""
    return any(folder.glob("*-ubyte*"))


def to_run(settings: Settings, root: Path | None, engine: str) -> Settings:
    """Return the settings with place of the data and engine, neither of which affects the figures."""
    where = located(settings.data.data, data_root() if root is None else root)
    return settings.but(data=where, engine=engine)
