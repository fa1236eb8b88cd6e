"""Groups of settings as flags, and two kinds of help: flags by group on one screen, or every flag with its text."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import tyro

from fedkin.cli import screen
from fedkin.core import Method

FLAGS: Mapping[str, Mapping[str, str]] = {
    "aggregation": {"rule": "aggregation", "secure": "secure-aggregation"},
    "attack": {"kind": "attack", "fraction": "attack-fraction"},
    "privacy": {"delta": "dp-delta"},
    "training": {"clip": "clip-norm"},
}
"""Flags of fields whose names say too little without their group; all others have the field's name."""
HELP_FLAGS = ("-h", "--help", "--help-all")
COMMON = ("data", "clients", "alpha", "model", "epochs", "lr", "rounds", "participation", "seed", "seeds", "out")
"""Flags that the short help explains."""
_WIDTH, _LABEL = 80, 14  # columns of the short help, and of the names in it


def parse(
    parts: Mapping[str, Any],
    args: list[str],
    prog: str,
    description: str,
    config: tuple[Any, ...] = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
) -> dict[str, Any]:
    """Return the parts with flags put in.

    Every field is a flag: by its own name, by the name that `FLAGS` has for it, or, for a field of a method that has
    the name of another flag, by ``method.NAME``. ``--help`` shows the flags by group, ``--help-all`` all texts.

    Args:
        parts: name of a group -> a dataclass with the defaults.
        args: the words of the command line.
        prog: the command, for the help.
        description: what the command does, for the help.
        config: of tyro.
    """
    forms = {name: _Form.of(part, renamed(name, parts)) for name, part in parts.items()}
    if {"-h", "--help"} & set(args):
        screen.write(short_help(parts, prog, description))
        raise SystemExit(0)
    columns: list[Any] = [(name, form.kind, field(default=form.default)) for name, form in forms.items()]
    got: Any = tyro.cli(
        _made("flags", columns, description),
        args=["--help" if a == "--help-all" else a for a in args],
        prog=prog,
        description=description,
        config=config,
        console_outputs="--help-all" in args or sys.stderr is not None,
    )
    return {name: form.back(getattr(got, name)) for name, form in forms.items()}


def renamed(name: str, parts: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a part whose flags have other names: field -> flag."""
    if name != "method":
        return dict(FLAGS.get(name, {}))
    others = {flag for n, part in parts.items() if n != "method" for flag in flags_of(part, FLAGS.get(n, {})).values()}
    own = {f.name: f.name.replace("_", "-") for f in dataclasses.fields(parts[name])}
    return {f: f"method.{flag}" for f, flag in own.items() if flag in others}


def flags_of(part: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of a part's fields, and of the method inside a wrapped one, without dashes: field -> flag."""
    found: dict[str, str] = {}
    for f in dataclasses.fields(part):
        if dataclasses.is_dataclass(inner := getattr(part, f.name)):
            found |= flags_of(inner, {})
        else:
            found[f.name] = names.get(f.name, f.name.replace("_", "-"))
    return found


def short_help(parts: Mapping[str, Any], prog: str, description: str) -> str:
    """Return the flags by group, and the texts of the most common ones."""
    lines = [f"usage: {prog} [flags]", "", *textwrap.wrap(description, _WIDTH), ""]
    explained: dict[str, str] = {}
    several = any(hasattr(part, "seeds") for part in parts.values())  # --seeds is then in the place of --seed
    for name, part in parts.items():
        kind: type = type(part)
        found, texts = flags_of(part, renamed(name, parts)), texts_of(kind)
        found = {field: flag for field, flag in found.items() if not (several and flag == "seed")}
        title = {"show": "output", "runs": "comparison"}.get(name, name)
        rows = textwrap.wrap(" ".join(f"--{flag}" for flag in found.values()), _WIDTH - _LABEL, break_on_hyphens=False)
        lines += [f"{title if i == 0 else '':<{_LABEL}}{row}" for i, row in enumerate(rows)]
        explained |= {f: _line(found[f], texts[f], getattr(part, f)) for f in found.keys() & texts.keys() & set(COMMON)}
    common = [explained[f] for f in COMMON if f in explained]
    return "\n".join([*lines, "", *common, "", f"{prog.partition(' [')[0]} --help-all explains every flag."])


def _line(flag: str, text: str, default: object) -> str:
    """Return a flag, the first clause of its text, and its default."""
    clause = re.split(r"; |: |\. | \(", text)[0].rstrip(".")
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f"--{flag:<{_LABEL}}{clause}" + ("" if default is None else f" [{shown}]")


@cache
def texts_of(kind: type) -> Mapping[str, str]:
    """Return the texts under the fields of a dataclass, of its own and of its base classes: field -> text."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):  # a class made by a program, without a source
            continue
        rows = body.body if isinstance(body, ast.ClassDef) else []
        for row, after in pairwise(rows):
            if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name) and isinstance(after, ast.Expr):
                text = ast.literal_eval(after.value) if isinstance(after.value, ast.Constant) else None
                if isinstance(text, str):
                    found[row.target.id] = " ".join(text.split())
    return found


@dataclass(frozen=True)
class _Form:
    """A part as tyro gets it: itself, or the same fields with other flags."""

    kind: Any
    default: Any
    back: Callable[[Any], Any]

    @classmethod
    def of(cls, part: Any, names: Mapping[str, str]) -> _Form:
        """Return the form of a part whose fields have these flags: field -> flag."""
        kind: type = type(part)
        if not names:
            return cls(kind, part, lambda got: got)
        form = _renamed_kind(kind, tuple(names.items()))
        own = {f.name: getattr(part, f.name) for f in dataclasses.fields(kind)}

        def back(got: Any) -> Any:
            return dataclasses.replace(part, **{name: getattr(got, name) for name in own})

        return cls(form, form(**own), back)


@cache
def _renamed_kind(kind: type, names: tuple[tuple[str, str], ...]) -> Any:
    """Return a dataclass with the fields and texts of another one, some of them with other flags: (field, flag)."""
    hints, texts, flags = get_type_hints(kind, include_extras=True), texts_of(kind), dict(names)
    columns = [
        (f.name, Annotated[hints[f.name], tyro.conf.arg(name=flags.get(f.name), help=texts.get(f.name))])
        for f in dataclasses.fields(kind)
    ]
    return _made(kind.__name__, columns, kind.__doc__)


def _made(name: str, columns: Iterable[Any], doc: str | None) -> Any:
    """Return a dataclass with these columns, which has no source."""
    made = dataclasses.make_dataclass(name, columns, frozen=True)
    made.__doc__ = doc
    made.__module__ = "builtins"  # else tyro parses the whole of this file for the text of each column
    return made


def summary(method: Method) -> str:
    """Return what a method is, and its paper."""
    return f"{(type(method).__doc__ or '').strip()} {method.paper}".strip()
