"""``fedkin inspect``: how data are understood before training, and problems with them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich import table as grids
from rich.styled import Styled
from rich.text import Text

from fedkin.cli import BAD_INPUT, OK, screen
from fedkin.cli.flags import grouped
from fedkin.cli.outcome import require_folder_name
from fedkin.core import ConfigError
from fedkin.core.errors import command_line
from fedkin.core.grammar import Table, filled, subtable
from fedkin.core.settings import DataSettings, Settings, checked, read_settings
from fedkin.data import seeded
from fedkin.inspection import Finding, Inspection, look
from fedkin.report import inspection as report
from fedkin.storage.toml import read_toml

_SEEN = 12  # maximum lines for the files found
_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


@dataclass(frozen=True)
class Looking:
    """Output of the inspection."""

    seed: int = 0
    """The seed of the run that is inspected: it determines which client gets which samples."""
    out: Path | None = None
    """Folder for inspect.html, labels.svg and inspect.json. Default: nothing is written."""
    json: bool = False
    """Write the inspection as JSON, and nothing else, to standard output."""
    strict: bool = False
    """Warnings count as errors: exit code 2."""


@dataclass(frozen=True)
class _Flags:
    data: DataSettings = field(default_factory=DataSettings)
    show: Looking = field(default_factory=Looking)


def inspect_command(args: list[str]) -> int:
    """Run ``fedkin inspect [PATH|FILE.toml] [flags]``."""
    again = "fedkin inspect " + command_line(args)
    asked = inspect_flags(args)
    if asked.show.out is not None:
        require_folder_name(asked.show.out)
    how = seeded(asked.data, asked.show.seed)
    with _unlogged(), screen.err.status("looking at the files") as status:
        result = look(asked.data.data, how, on_step=lambda text: status.update(Text(text or "looking")))
    table = result.to_json()
    page = None if asked.show.out is None else report.write_inspection(asked.show.out, table, again)
    if asked.show.json:
        screen.write(json.dumps({"usable": result.usable(strict=asked.show.strict), **table}))
    else:
        _show(result)
        if page is not None:
            screen.say(f"\n{page}")
    return OK if result.usable(strict=asked.show.strict) else BAD_INPUT


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep warnings on the data out of the log: each of them is a finding, which is printed."""
    log = logging.getLogger("fedkin.data")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def inspect_flags(args: list[str]) -> _Flags:
    """Return the settings of ``fedkin inspect``; a first word without dashes is the data or a config file."""
    base, rest = _Flags(), list(args)
    if rest and not rest[0].startswith("-"):
        first = rest.pop(0)
        if first.endswith(".toml"):
            base = _of_file(read_toml(first), first)
        else:
            base = _Flags(DataSettings(data=first))
    parts = grouped(
        {"data": base.data, "show": base.show},
        rest,
        "fedkin inspect [PATH|FILE.toml]",
        "Show how data are understood before training, and problems with them: of a file, a folder, a data set by its "
        "name, or of the data of a run's config file. Exit codes: 0 nothing worse than warnings, 2 the data cannot be "
        "trained on (with --strict: or there are warnings).",
    )
    checked(Settings(data=parts["data"]))
    return _Flags(**parts)


def _of_file(table: Table, where: str) -> _Flags:
    """Return data and seed of a file for ``fedkin run``, ``compare`` or ``sweep``; other settings are not read."""
    if "made_by" in table:
        raise ConfigError(f"{where} was made by a program with {table['made_by']}; inspect its data in that program")
    if "data" not in table:
        raise ConfigError(f"{where} has no table [data]; for the default: fedkin inspect {DataSettings().data}")
    data = read_settings({"data": table["data"]}, where).data
    run, seeds = subtable(table, "run"), table.get("seeds")
    one = {"seed": run["seed"]} if "seed" in run else {}
    if isinstance(seeds, list) and seeds:
        one = {"seed": seeds[0]}
    return _Flags(data, filled(Looking(), one, where))


def _show(inspection: Inspection) -> None:
    """Print what matters first: the number of findings, errors, warnings; then what was read, notes and advice."""
    table = inspection.to_json()
    screen.out.print(report.headline(table), style="bold")
    for finding in (*inspection.of("error"), *inspection.of("warning")):
        _finding(finding)
    screen.out.print()
    facts = grids.Table.grid(padding=(0, 1))
    for name, value in report.facts(table):
        facts.add_row(Text(f"{name:<11}", style="dim"), value)
    screen.out.print(facts)
    broken = not inspection.usable()
    if inspection.seen and (inspection.columns or broken or len(inspection.seen) <= _SEEN):
        screen.out.print("\n" + "\n".join(inspection.seen[:_SEEN]), style="dim", overflow="ellipsis", no_wrap=True)
    if inspection.columns:
        screen.table(report.columns_grid(table))
    if inspection.clients:
        screen.table(report.clients_grid(table))
    for finding in inspection.of("note"):
        _finding(finding)
    for line in inspection.advice:
        screen.out.print(f"\n{line}")


def _finding(f: Finding) -> None:
    screen.out.print()
    screen.out.print(Text(f.severity, style=_COLOURS[f.severity]), f": {f.what}", sep="")
    lines = grids.Table.grid(padding=(0, 1))
    for name, text in (("why", f.why), ("do", f.todo), ("see", "; ".join(f.rows))):
        if text:
            lines.add_row(Text(f"  {name:<3}", style="dim"), Styled(text, "" if name == "do" else "dim"))
    screen.out.print(lines)
