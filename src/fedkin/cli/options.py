"""Flags of commands, from the fields of a class and the texts below them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import Any, TypeVar

import tyro

T = TypeVar("T")
HELP_FLAGS = ("-h", "--help")


def options(
    kind: type[T], args: list[str], prog: str, description: str | None = None, config: tuple[Any, ...] = ()
) -> T:
    """Return an instance of a class whose fields are the flags, and the files, of a command.

    Args:
        prog: the command, for the help and for errors.
        description: what the command does; by default the class's docstring.
        config: of tyro.
    """
    return tyro.cli(
        kind, args=args, prog=prog, description=description, config=config, console_outputs=sys.stderr is not None
    )


def grouped(parts: Mapping[str, Any], args: list[str], prog: str, description: str) -> dict[str, Any]:
    """Return groups of settings with flags put in; every field is a flag by its own name.

    Args:
        parts: name of a group -> an object with the defaults.
        args: the words of the command line.
        prog, description: as of `options`.
    """
    made = make_dataclass("flags", [(name, type(part), field(default=part)) for name, part in parts.items()])
    made.__module__ = "builtins"  # else tyro searches this file for the text of each group
    got: Any = options(made, args, prog, description, (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands))
    return {name: getattr(got, name) for name in parts}
