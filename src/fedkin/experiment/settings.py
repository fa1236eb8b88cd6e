"""Settings of a run as a file, a record and a method: what `fedkin.core.settings` declares, next to the catalogue."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from fedkin.core import ConfigError, Method
from fedkin.core.grammar import Fields, Table, filled, plain
from fedkin.core.settings import (
    Compute,
    DataSettings,
    HostSettings,
    ModelSettings,
    RunSettings,
    Settings,
    checked,
    read_settings,
)
from fedkin.data import absolute, resolved
from fedkin.methods import Safe, canonical, get_method, get_title, settings_in
from fedkin.user_code.reference import CodeRef, copies

__all__ = [
    "Compute",
    "DataSettings",
    "HostSettings",
    "ModelSettings",
    "RunSettings",
    "Settings",
    "code_of",
    "completed",
    "decisive",
    "digest",
    "method_of",
    "settings_from",
    "sources_of",
    "table_of",
    "title_of",
    "toml_of",
]


def settings_from(table: Table, where: str = "config") -> Settings:
    """Read settings from the tables of a TOML file.

    Raises:
        ConfigError: an unknown table or key, or a value of the wrong kind; it names them.
    """
    if "made_by" in table:
        raise ConfigError(
            f"{where} was made by a program with {table['made_by']}, which only that program has; run it there"
        )
    return completed(read_settings(table, where), where)


def completed(settings: Settings, where: str = "settings") -> Settings:
    """Return checked settings, complete: all fields of the method, the partition, fingerprints of user-defined code.

    Raises:
        ConfigError: a value is out of range or does not fit another, or user-defined code has changed.
    """
    s = checked(settings)
    if s.made_by:
        return s
    name = s.method.get("name")
    if not isinstance(name, str):
        raise ConfigError(f'{where}: [method] needs a name, for example name = "fedavg"')
    name = canonical(CodeRef.read(name).name)
    method = filled(get_method(name), {k: v for k, v in s.method.items() if k != "name"}, f"{where}: [method]")
    inside = method.inner if isinstance(method, Safe) else method
    if filled(inside, settings_in(name), name) != inside:
        raise ConfigError(f"{where}: [method] has other values than its name, {name}; set them in one of the two")
    model = CodeRef.read(s.model.model)
    code = {"method": CodeRef(name).fingerprint()} if CodeRef(name).is_user_code else {}
    code |= {"model": model.fingerprint()} if model.file is not None else {}
    for part, before in s.code.items():
        if code.get(part) != before:
            raise ConfigError(
                f"{where}: [{part}] has changed since this was written; restore the former text, or start a new run "
                f"from a config without the line {part} = ... in [code]"
            )
    weights = s.model.init_weights
    weights = None if weights is None else str(Path(weights).expanduser().resolve())
    return s.but(
        method={"name": name, **plain(method)},
        data=resolved(s.data.but(data=absolute(s.data.data))),
        model=s.model.but(model=model.name, init_weights=weights),
        code=code,
    )


def method_of(settings: Settings) -> Method:
    """Return the method with its hyperparameters."""
    name = str(settings.method["name"])
    return filled(get_method(name), {k: v for k, v in settings.method.items() if k != "name"}, name)


def code_of(settings: Settings) -> CodeRef:
    """Return what the method's name stands for."""
    return CodeRef.read(settings.method["name"])


def title_of(settings: Settings) -> str:
    """Return the name of the run in tables: that of the method's name and, of a safe form, the mode if its title shows
    it."""
    title, method = get_title(settings.method["name"]), method_of(settings)
    return title + method.title.removeprefix(f"{method.inner.title}-safe") if isinstance(method, Safe) else title


def table_of(settings: Settings) -> dict[str, Any]:
    """Return settings as nested tables of plain values, without those that are not set; hosts only if any is."""
    table: dict[str, Any] = _without_none(msgspec.to_builtins(settings))
    for name, usual in (("made_by", ""), ("code", {}), ("hosts", _without_none(msgspec.to_builtins(HostSettings())))):
        if table[name] == usual:
            del table[name]
    table["method"]["name"] = CodeRef(table["method"]["name"]).portable
    table["model"]["model"] = CodeRef(table["model"]["model"]).portable
    if settings.made_by:
        table["data"] = {"data": settings.data.data}
    return table


def toml_of(settings: Settings) -> str:
    """Return a TOML file that ``fedkin run`` takes, next to its `sources_of`."""
    return tomli_w.dumps(table_of(settings))


def sources_of(settings: Settings) -> dict[str, bytes]:
    """Return the files of user-defined code that the table names, to be stored next to it: file name -> content.

    Raises:
        ConfigError: one cannot be read, or two different ones have the same name.
    """
    return copies([code_of(settings), CodeRef.read(settings.model.model)])


def decisive(table: Table) -> Fields:
    """Return the settings that decide the results, of a run's table, in plain values.

    The engine is left out: loop and workers agree bit for bit, the stacked engine to the tolerance of float32 (its last
    digits may differ from theirs).
    """
    result = table_of(read_settings(table, "config"))
    result.pop("hosts", None)
    return result | {"compute": {"gradient": result["compute"]["gradient"]}}


def digest(table: Table) -> str:
    """Return a fingerprint of the settings in a run's table that decide the results."""
    return hashlib.blake2b(json.dumps(decisive(table), sort_keys=True).encode(), digest_size=16).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value
