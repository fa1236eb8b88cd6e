"""``fedkin list``: methods, papers, partitions, models and data, each kind as a table of names and texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from fedkin.capabilities import Uploads, has
from fedkin.capabilities.presets import presets_of
from fedkin.capabilities.sums import sums_suffice
from fedkin.cli import screen
from fedkin.cli.flags import HELP_FLAGS
from fedkin.core import ConfigError, Method
from fedkin.core.method import FAMILIES
from fedkin.data import KNOWN, PARTITIONS, SOURCES, Partition
from fedkin.methods import METHODS
from fedkin.models import MODELS
from fedkin.report.tables import Grid

Rows = tuple[tuple[str, str], ...]


def list_command(args: list[str]) -> int:
    """Run ``fedkin list [methods|papers|partitions|models|data]``."""
    if {*HELP_FLAGS} & {*args}:
        screen.write(f"usage: fedkin list [{'|'.join(KINDS)}]\n\nShow what there is of these kinds; without one, all.")
        return 0
    for kind in args:
        if kind not in KINDS:
            raise ConfigError(f"fedkin list shows {', '.join(KINDS)}; got {kind!r}")
    for kind in args or KINDS:
        KINDS[kind]()
    return 0


def _methods() -> None:
    """Print the methods by family; "sums suffice": secure aggregation could hide single uploads from the server."""
    methods = {name: make() for name, make in METHODS.items()}
    rows: list[tuple[str, str, str]] = []
    families: list[int] = []
    for family in FAMILIES:
        there = [(name, _sentence(m.summary), _learns(m)) for name, m in methods.items() if m.family == family]
        if there:
            rows += [("", "", "")] if rows else []
            families.append(len(rows))
            rows += [(_sentence(family), "", ""), *there]
    note = "sums suffice: secure aggregation can hide single uploads from the server"
    bold = frozenset((row, 0) for row in families)
    columns = ("method", "description", "what the server learns of each client")
    screen.table(Grid("Methods", columns, tuple(rows), bold, note, words=3))


def _learns(method: Method) -> str:
    shown = has(method, Uploads) or Uploads()
    return shown.reveals + (" (sums suffice)" if sums_suffice(method) else "")


def _papers() -> None:
    rows = []
    for name, make in METHODS.items():
        method = make()
        presets = ", ".join(presets_of(method))
        rows.append((name, f"{method.title}. {_sentence(method.paper)}" + (f"\nPresets: {presets}" if presets else "")))
    _show("Papers", "method", tuple(rows))


def _partitions() -> None:
    rows = tuple((name, f"{_line(kind)}\n{_own_settings(kind)}".strip()) for name, kind in PARTITIONS.items())
    _show("Partitions: --partition NAME@FIELD=VALUE,FIELD=VALUE", "partition", rows)


def _own_settings(kind: type[Partition]) -> str:
    return "  ".join(f"{f.name}={f.default}" for f in fields(kind) if f.default is not None)


def _models() -> None:
    _show("Models", "model", tuple((name, _line(make)) for name, make in MODELS.items()))


def _data() -> None:
    rows = tuple((name, _line(source).removeprefix("Return ").replace("``", "")) for name, source in SOURCES.items())
    rows += tuple((name, known.what) for name, known in KNOWN.items())
    rows += (
        ("PATH", "a folder of idx files (MNIST family), tables or images; an npz, csv or parquet file"),
        ("FILE.py:F, MODULE:F", "data or a federation returned by your function F"),
        ("hf:NAME, hf:FOLDER", "a Hugging Face data set, from the hub or from a folder"),
    )
    _show("Data", "data", rows)


def _show(title: str, name: str, rows: Rows) -> None:
    screen.table(Grid(title, (name, "description"), tuple((n, _sentence(text)) for n, text in rows), words=2))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].removesuffix(".")


def _line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0] if thing.__doc__ else ""


KINDS: Mapping[str, Callable[[], None]] = {
    "methods": _methods, "papers": _papers, "partitions": _partitions, "models": _models, "data": _data,
}  # fmt: skip
"""What ``fedkin list`` shows, and the function that prints it."""
