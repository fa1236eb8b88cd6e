"""The runs that a comparison or a sweep plans, counted from the file in its folder: no user-defined code is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.core import ConfigError
from fedkin.methods import canonical
from fedkin.storage.toml import read_toml
from fedkin.user_code.loading import plain_name
from fedkin.user_code.reference import CodeRef

ALWAYS = ("local", "local-full", "fedavg")
"""Reference rows that every comparison has."""


@dataclass(frozen=True)
class Planned:
    """What a comparison runs, as its file has it.

    Attributes:
        names: of all methods, in the order of the table.
        seeds: of the runs of each.
        baseline: the method that the others are compared with.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]
    baseline: str

    def runs(self) -> list[tuple[str, int]]:
        """Name and seed of every run, in the order of the table."""
        return [(name, seed) for seed in self.seeds for name in self.names]


def planned(table: Mapping[str, Any], where: str) -> Planned:
    """Read what a comparison runs from the tables of a TOML file.

    Args:
        table: the tables.
        where: the file, for messages.

    Raises:
        ConfigError: a value of the wrong kind, or a comparison that a program made.
    """
    if "made_by" in table:
        raise ConfigError(
            f"{where} was made by a program with {table['made_by']}, which only that program has; go on there: "
            "fedkin.compare(..., out=FOLDER, resume=True)"
        )
    methods, seeds, safe = table.get("methods"), table.get("seeds", [0]), table.get("safe", False)
    if not isinstance(methods, list) or not methods or not all(isinstance(m, str) for m in methods):
        raise ConfigError(f'{where}: methods must be a list of names such as ["da-pfl"], got {methods!r}')
    if not isinstance(seeds, list) or not all(type(s) is int for s in seeds):
        raise ConfigError(f"{where}: seeds must be a list of whole numbers such as [0, 1], got {seeds!r}")
    if not isinstance(safe, bool):
        raise ConfigError(f"{where}: safe must be true or false, got {safe!r}")
    names = compared(tuple(map(known, methods)), safe)
    return Planned(names, tuple(seeds), meant(str(table.get("baseline", "local")), names))


def known(name: str) -> str:
    """Return a method's name as the catalogue has it, or that of user-defined code with its file."""
    return canonical(CodeRef.read(name).name)


def meant(name: str, names: Iterable[str]) -> str:
    """Return the name of the compared method that a name stands for; user-defined ones go by their class as well."""
    return next((n for n in names if name == CodeRef(n).attribute), known(name))


def run_name(name: str, seed: int) -> str:
    """Return the name of a run's folder within that of its comparison."""
    return f"{CodeRef(name).attribute}-seed{seed}"


def compared(methods: Sequence[str], safe: bool) -> tuple[str, ...]:
    """Return the names of all that a comparison runs for each seed, in order, each once.

    Args:
        methods: names that were given; those of `ALWAYS` are put in front if they are missing.
        safe: whether each is followed by its safe form, which the local references do not have.

    Raises:
        ConfigError: no folder can be named after a method, since its name is a path.
    """
    for label in (CodeRef(name).attribute for name in methods):
        if Path(label).name != label:
            raise ConfigError(f"a run's folder is named after its method, and {label!r} is no name of a folder")
    named = [*(n for n in ALWAYS if n not in methods), *methods]
    if safe:
        named = [form for name in named for form in (name, *_safe_forms(name))]
    return tuple(dict.fromkeys(named))


def _safe_forms(name: str) -> tuple[str, ...]:
    """Return the name of a method's safe form; nothing for a safe form and for the local references."""
    return () if name in ("local", "local-full") or plain_name(name) != name else (f"{name}-safe",)


def planned_runs(folder: Path) -> int | None:
    """Return the number of runs in the folder of a comparison or a sweep when it has ended; None if it is neither."""
    for name, count in (("compare.toml", _of_comparison), ("sweep.toml", _of_sweep)):
        try:
            if (folder / name).is_file():
                return count(read_toml(folder / name))
        except (ConfigError, TypeError, ValueError, KeyError, AttributeError):  # `fedkin resume` says what is wrong
            return None
    return None


def _of_comparison(table: Mapping[str, Any]) -> int:
    return len(compared(table["methods"], bool(table.get("safe"))) * len(table["seeds"]))


def _of_sweep(table: Mapping[str, Any]) -> int:
    entries = dict(table["sweep"])
    seeds, trials = len(entries.pop("seeds")), int(entries.pop("trials", 0))
    entries.pop("sampler", None)
    return seeds * (trials or math.prod(map(len, entries.values())))
