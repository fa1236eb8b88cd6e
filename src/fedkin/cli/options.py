"""Flags of commands that have them in one class, and their help: one screen, no boxes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from fedkin.cli import screen
from fedkin.cli.parts import texts_of

T = TypeVar("T")
_POSITIONAL = get_args(tyro.conf.Positional[int])[1]
_WIDTH, _LONGEST = 80, 24  # columns of the help, and of the names in it at most
_PLACEHOLDERS = {Path: "PATH", str: "TEXT", int: "N", float: "X"}


def options(
    kind: type[T], args: list[str], prog: str, description: str | None = None, config: tuple[Any, ...] = ()
) -> T:
    """Return an instance of a dataclass whose fields are the flags, and the files, of a command.

    ``--help`` and ``-h`` print `options_help` and end the command.

    Args:
        prog: the command, for the help and for errors.
        description: what the command does; by default the class's docstring.
        config: of tyro.
    """
    if {"-h", "--help"} & set(args):
        screen.write(options_help(kind, prog, description))
        raise SystemExit(0)
    return tyro.cli(kind, args=args, prog=prog, config=config, console_outputs=sys.stderr is not None)


def options_help(kind: type, prog: str, description: str | None = None) -> str:
    """Return the usage of a command, what it does, and a line or a few for each file and flag."""
    texts, hints = texts_of(kind), get_type_hints(kind, include_extras=True)
    named = [_Option(f, hints[f.name], texts.get(f.name, "")) for f in fields(kind)]
    files, flags = [o for o in named if o.positional], [o for o in named if not o.positional]
    usage = " ".join([prog, *(o.label if o.required else f"[{o.label}]" for o in files)])
    usage += "".join(f" {o.label}" for o in flags if o.required) + (" [flags]" if flags else "")
    what = " ".join((description or kind.__doc__ or "").split())
    width = min(_LONGEST, 2 + max(len(o.label) for o in named))
    blocks = ["\n".join(line for o in some for line in o.lines(width)) for some in (files, flags) if some]
    return "\n\n".join([f"usage: {usage}", textwrap.fill(what, _WIDTH), *blocks])


class _Option:
    """One file or flag of a command.

    Attributes:
        label: how it is written: ``--out PATH``, ``FOLDER``, ``--no-quiet``.
        required: whether the command needs it.
    """

    def __init__(self, f: Field[Any], hint: Any, text: str) -> None:
        extra = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        own = [m for m in extra if hasattr(m, "metavar")]
        self._of = get_args(hint)[0] if extra else hint
        self.positional, self.required = _POSITIONAL in extra, f.default is MISSING
        self._default, self._text = None if self.required else f.default, text
        name = next((m.name for m in own if m.name), f.name).replace("_", "-")
        value = next((m.metavar for m in own if m.metavar), None) or _placeholder(self._of)
        if self.positional:
            self.label = value if own else name.upper()
        elif self._of is bool:
            self.label = f"--{'no-' if self._default else ''}{name}"
        else:
            self.label = f"--{name} {value}"

    def lines(self, width: int) -> Iterator[str]:
        """Yield the label and the text to its right; the text begins below a label that is too long."""
        default = self._default
        shown = "" if default is None or default == () or isinstance(default, bool) else f" [{default}]"
        rows = textwrap.wrap(self._text + shown, _WIDTH - width, break_on_hyphens=False) or [""]
        if len(self.label) + 2 > width:
            yield self.label
        else:
            yield f"{self.label:<{width}}{rows.pop(0)}"
        yield from (" " * width + row for row in rows)


def _placeholder(of: Any) -> str:
    """Return what stands for a value of a type in the help."""
    if get_origin(of) is Literal:
        return "{" + ",".join(map(str, get_args(of))) + "}"
    if get_origin(of) is tuple:
        return f"{_placeholder(get_args(of)[0])} ..."
    inner = [arg for arg in get_args(of) if arg is not type(None)]
    return _placeholder(inner[0]) if inner else _PLACEHOLDERS.get(of, "VALUE")
