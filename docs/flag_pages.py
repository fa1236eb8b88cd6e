"""Writes `reference/flags.md`: every flag and field of a settings file, from the declarations behind `--help`."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tyro

from fedkin.cli.check import CheckFlags
from fedkin.cli.commands import DemoFlags
from fedkin.cli.export import ExportFlags, PredictFlags
from fedkin.cli.flags import FLAG_GROUPS, ResumeFlags, RunsSettings, ShowCompare, ShowRun, ShowSweep, SweepSettings
from fedkin.cli.inspect import Looking
from fedkin.cli.join import JoinFlags
from fedkin.cli.report import ReportFlags
from fedkin.cli.runs import RunsFlags
from fedkin.core.method import Method
from fedkin.core.settings import GROUPS, Settings
from fedkin_hosts.commands.hosts import AuthorityFlags, LinkFlags, NodeKeyFlags, ServerFlags, StatusFlags
from fedkin_hosts.commands.nodes import Submission
from fedkin_hosts.node import Node

COMMANDS: Mapping[str, tuple[type, ...]] = {
    "run": (ShowRun,),
    "compare": (RunsSettings, ShowCompare),
    "sweep": (SweepSettings, ShowSweep),
    "resume": (ResumeFlags,),
    "demo": (DemoFlags,),
    "inspect": (Looking,),
    "export": (ExportFlags,),
    "predict": (PredictFlags,),
    "join": (JoinFlags,),
    "runs": (RunsFlags,),
    "report": (ReportFlags,),
    "check": (CheckFlags,),
    "keys authority": (AuthorityFlags,),
    "keys server": (ServerFlags,),
    "keys node": (NodeKeyFlags,),
    "link": (LinkFlags,),
    "node": (Node,),
    "submit": (Submission,),
    "status": (StatusFlags,),
}
"""Command -> the classes whose fields are its own flags, without groups of settings."""

ALSO = {"run": "all groups", "compare": "all groups", "sweep": "all groups", "inspect": "the group `data`"}

INTRODUCTION = """# Flags and settings

A setting has one name in three places: `--batch-size 32` on the command line, `batch_size = 32` in the table
`[training]` of a settings file, and `fedkin.run(..., batch_size=32)` in Python. Flags take precedence over a file and
over a preset. A flag with the value yes or no stands alone, `--binary`, or negated, `--no-binary`. Several values
follow one flag: `--seeds 0 1 2`. In the tables the default stands behind the values.

Choices with settings of their own are written NAME@FIELD=VALUE,FIELD=VALUE: [methods](../methods.md)
(`fedprox@mu=0.1`), partitions, planted groups, schedules, rules, attacks, engines.

## Groups of settings

These groups are tables of a settings file (`fedkin run FILE.toml`) and flags of `fedkin run`, `compare` and `sweep`.
The group `hosts` is read from files only.
"""


def page(methods: Mapping[str, Method]) -> str:
    """Return the text of `reference/flags.md`."""
    parts = [INTRODUCTION]
    for name in GROUPS:
        group = getattr(Settings(), name)
        parts.append(f"### {name}\n\n{_sentences(type(group))}\n\n" + _settings(group, flags=name in FLAG_GROUPS))
    parts.append(_COMMANDS)
    for command, kinds in COMMANDS.items():
        also = f" It also takes {ALSO[command]} of settings." if command in ALSO else ""
        title = _sentences(kinds[0]) if command not in ALSO else ""
        parts.append(f"### fedkin {command}\n\n{(title + also).strip()}\n\n" + _flags(kinds))
    return "\n".join(parts)


_COMMANDS = """## Commands

Flags of single commands. Every command also takes `--help`. `fedkin list [KIND]` has no flags of its own.
"""


def texts_of(kind: type) -> Mapping[str, str]:
    """Return the texts below the fields of a class, of its own and of its base classes: field -> text."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # made without a source
            continue
        for row, after in itertools.pairwise(getattr(body, "body", ())):
            if isinstance(row, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found[row.target.id] = " ".join(after.value.value.split())
    return found


def _settings(group: Any, *, flags: bool) -> str:
    """Return the table of a group: field and flag, type, default, text."""
    texts, hints = texts_of(type(group)), typing.get_type_hints(type(group))
    rows = [
        (
            f"`--{name.replace('_', '-')}`" if flags else f"`{name}`",
            _value(hints[name], getattr(group, name)),
            texts[name],
        )
        for name in group.__struct_fields__
    ]
    return _table(("flag" if flags else "setting", "value", "meaning"), rows)


def _flags(kinds: Iterable[type]) -> str:
    """Return the table of a command's own flags, positional arguments first."""
    rows = []
    for kind in kinds:
        texts, hints = texts_of(kind), typing.get_type_hints(kind, include_extras=True)
        for f in dataclasses.fields(kind):
            extras = getattr(hints[f.name], "__metadata__", ())
            name = next((e.name for e in extras if getattr(e, "name", None)), None) or f.name.replace("_", "-")
            flag = f.name.upper() if _is_positional(extras) else f"--{name}"
            rows.append((f"`{flag}`", _value(hints[f.name], _of(f)), texts[f.name]))
    rows.sort(key=lambda row: row[0].startswith("`--"))
    return _table(("flag", "value", "meaning"), rows)


def _is_positional(extras: Iterable[Any]) -> bool:
    marker = typing.get_args(tyro.conf.Positional[int])[1]
    return any(e is marker for e in extras)


def _of(f: dataclasses.Field[Any]) -> Any:
    if f.default_factory is not dataclasses.MISSING:
        return f.default_factory()
    return f.default


def _value(hint: Any, default: Any) -> str:
    """Return the values that a type allows, and the default where there is one."""
    values = _values(hint)
    if default is dataclasses.MISSING:
        return f"{values}, required"
    if default is None or default == ():
        return values
    if isinstance(default, bool):
        return f"{values}: {'yes' if default else 'no'}"
    text = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{values}: `{text}`"


def _values(hint: Any) -> str:
    """Return the values that a type allows, in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _values(args[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(_values(a) for a in args if a is not type(None)))
    if origin is typing.Literal:
        return " or ".join(f"`{a}`" for a in args)
    if origin in (tuple, list):
        return f"{_values(args[0])}, several"
    words = {bool: "yes or no", int: "integer", float: "number", str: "text", Path: "path"}
    return words.get(hint) or _sentences(hint)


def _sentences(kind: type) -> str:
    """Return the first paragraph of a docstring in one line, with code as Markdown writes it."""
    text = " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
    return text.replace("``", "`")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(heads), ["---" for _ in heads], *(list(row) for row in rows)]
    return "".join("| " + " | ".join(_cell(c) for c in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text.replace("``", "`"))
