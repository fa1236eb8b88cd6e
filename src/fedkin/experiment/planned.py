"""The runs that a comparison or a sweep plans, counted from the file in its folder: no user-defined code is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.core import ConfigError
from fedkin.methods import ALONE, REFERENCES
from fedkin.storage.toml import read_toml
from fedkin.user_code.loading import plain_name
from fedkin.user_code.reference import CodeRef


def compared(methods: Sequence[str], safe: bool) -> tuple[str, ...]:
    """Return the names of all that a comparison runs for each seed, in order, each once.

    Args:
        methods: names that were given; those of `REFERENCES` are put in front if they are missing.
        safe: whether each is followed by its safe form, which the local references do not have.

    Raises:
        ConfigError: no folder can be named after a method, since its name is a path.
    """
    for label in (CodeRef(name).attribute for name in methods):
        if Path(label).name != label:
            raise ConfigError(f"{label!r} cannot name the folder of a run; give the method's name without a path")
    named = [*(n for n in REFERENCES if n not in methods), *methods]
    if safe:
        named = [form for name in named for form in (name, *_safe_forms(name))]
    return tuple(dict.fromkeys(named))


def _safe_forms(name: str) -> tuple[str, ...]:
    """Return the name of a method's safe form; nothing for a safe form and for the local references."""
    return () if name in ALONE or plain_name(name) != name else (f"{name}-safe",)


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
