"""The cells of tables: an ordinary run each, with settings that ``fedkin run`` takes as a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.core import ConfigError
from fedkin.core.method import PRESET_TABLES
from fedkin.data.sources.papers import KNOWN, data_root
from fedkin.experiment.settings import Settings, settings_from
from fedkin.methods import get_method
from fedkin.storage.toml import fill
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
        """Its name on the command line, without scale."""
        return f"{self.table.path}/{self.row.key}/{self.column.key}/{self.seed}"

    @property
    def place(self) -> str:
        """Its name in results: that of the path, without seed."""
        return f"{self.table.path}/{self.row.key}/{self.column.key}"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its settings as the tables of a config file."""
        return config_of(self)

    @cached_property
    def settings(self) -> Settings:
        """Its settings; the data by name, wherever they lie."""
        run = {k: v for k, v in self.config["run"].items() if k != "seed"}
        made = _settings(json.dumps({**self.config, "run": run}), f"{self.table.path}, row {self.row.key}")
        return dataclasses.replace(made, run=dataclasses.replace(made.run, seed=self.seed))

    @cached_property
    def digest(self) -> str:
        """The fingerprint of all that decides its figures: two cells with the same one are one run."""
        return self.settings.digest()

    @property
    def priority(self) -> int:
        """Cells with a smaller one are measured first."""
        return self.table.priority + self.row.later + self.column.later + self.scale.later

    def toml(self, root: Path | None = None) -> str:
        """The file that ``fedkin run`` takes."""
        config = dict(self.config)
        if root is not None:
            config["data"] = {**config["data"], "data": located(self.settings.data.data, root)}
        return tomli_w.dumps(config)


@cache
def _settings(config: str, where: str) -> Settings:
    """The settings of a config: the seeds of a cell, and cells that several tables share, are read once."""
    return settings_from(json.loads(config), where)


def config_of(cell: Cell) -> dict[str, Any]:
    """The sections of all layers, put over one another."""
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
    """What a preset of the row's method sets."""
    if row.preset is None:
        return {}
    fields = row.sections["method"][row.method]
    method = fill(get_method(row.method), fields, f"row {row.key}")
    presets = method.presets_for(vars(method))
    if row.preset not in presets:
        raise ConfigError(f"row {row.key}: {row.method} has no preset {row.preset!r}; it has {', '.join(presets)}")
    chosen = presets[row.preset]
    own = {key: value for key, value in chosen.items() if key not in PRESET_TABLES}
    return {**{name: chosen[name] for name in PRESET_TABLES if name in chosen}, "method": {row.method: own}}


def cells_of(table: Table, scale: str | None = None) -> Iterator[Cell]:
    """The cells of a table at one scale (None: the one that is shown), seed by seed.

    Columns that are only other figures of the same runs give cells of equal digests.
    """
    if table.left_out is not None:
        return
    name = table.shown if scale is None else scale
    if name not in table.scales:
        return
    how = table.scales[name]
    for seed in how.seeds:
        for column in table.columns.values():  # those that share their data follow one another
            for row in table.rows.values():
                if (how.rows is None or row.key in how.rows) and (how.columns is None or column.key in how.columns):
                    yield Cell(table, row, column, how, seed)


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """By priority, then seed; each digest once."""
    known: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda c: (c.priority, c.seed)):  # stable: tables stay in their order
        known.setdefault(cell.digest, cell)
    return list(known.values())


def chosen(cells: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
    """The cells whose path begins with one of the names; all without names.

    Raises:
        ConfigError: a name fits no cell.
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
    """Where named data lie below a folder; the name itself where nothing of this name lies there.

    ``ROOT/NAME`` may be a folder as the library expects it, or hold one ``.npz`` file with the arrays.
    """
    if data not in KNOWN:
        return data
    folder = root / (KNOWN[data].folder or data)
    for place in (root / data, root / f"{data}.npz"):
        if place.is_file() or (place.is_dir() and any(place.glob("*.npz")) and not _idx(place)):
            return str(place.resolve())
    return f"{data}:{folder.resolve()}" if folder.is_dir() else data


def _idx(folder: Path) -> bool:
    """Whether these are files of the MNIST family, beside which an npz with their writers may lie."""
    return any(folder.glob("*-ubyte*"))


def to_run(settings: Settings, root: Path | None, engine: str, workers: int) -> Settings:
    """The settings with the place of the data, engine and processes, none of which decide the figures."""
    where = located(settings.data.data, data_root() if root is None else root)
    changed: Mapping[str, Any] = {"engine": engine, "workers": workers}
    return dataclasses.replace(
        settings,
        data=dataclasses.replace(settings.data, data=where),
        compute=dataclasses.replace(settings.compute, **changed),
    )
