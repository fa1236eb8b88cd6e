"""Wrong values of flags in one line, like other errors, in place of the boxes of the library that reads flags."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

import tyro

from fedkin.core import ConfigError
from fedkin.core.errors import meant

_USAGE = 2  # exit code for words that cannot be flags
_KINDS = {"INT": ("a whole number", "whole numbers"), "FLOAT": ("a number", "numbers")}  # one value, several
_CHOICE = re.compile(
    r"invalid choice '(?P<got>.*?)' for argument '(?P<flag>--[\w.-]+)'. Expected one of \((?P<of>.*?)\)"
)
_VALUE = re.compile(r"Error parsing (?P<flag>--[\w.-]+):.*? (?P=flag) (?P<kind>\S+)")
_NONE = re.compile(r"Missing value for argument '(?P<flag>--[\w.-]+)'")
_REQUIRED = re.compile(r"Missing from (?P<command>[a-z ]+): (?P<what>--[\w-]+ \S+|\S+)")
_UNKNOWN = re.compile(r"Unrecognized options: (?P<words>.*?)(?= For full helptext|$)")


def read_flags(kind: Any, args: Sequence[str], prog: str, **more: Any) -> Any:
    """Return what `tyro.cli` does.

    Raises:
        ConfigError: a word or a value that is not accepted; ``prog`` says where all are listed.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said) if sys.stderr is not None else contextlib.nullcontext():
            return tyro.cli(kind, args=list(args), prog=prog, **more)
    except SystemExit as end:
        found = explained(said.getvalue(), args) if end.code == _USAGE else None
        if found is None:  # said in a way that is not known here
            if sys.stderr is not None:
                sys.stderr.write(said.getvalue())
            raise
        command = re.split(r" (?=[A-Z\[])", prog)[0]
        raise ConfigError(f"{found}{'' if found.endswith('?') else ';'} {command} --help shows all flags") from None


def explained(box: str, args: Sequence[str]) -> str | None:
    """Return the first error of a box of tyro in words; None if it is of none of the known kinds."""
    rows = [row.strip(" │|") for row in box.splitlines()]  # the frame is of letters where nothing else can be shown
    text = " ".join(" ".join(row for row in rows if row.strip("─-╭╮╰╯+ ")).split())
    if choice := _CHOICE.search(text):
        names = [name.strip(" '") for name in choice["of"].split(",")]
        shown = ", ".join(name for name in names if name)
        return f"{choice['flag']} must be one of {shown}, got {choice['got']!r}{meant(choice['got'], names)}"
    if value := _VALUE.search(text):
        kinds = [_KINDS[word] for word in re.findall("[A-Z]+", value["kind"]) if word in _KINDS]
        if kinds:
            several, given = "[" in value["kind"], _given(args, value["flag"])
            apart = " separated by spaces" if several and "," in "".join(given) else ""
            return f"{value['flag']} must be {kinds[0][several]}{apart}, got {' '.join(map(repr, given))}"
    if lacking := _NONE.search(text):
        return f"{lacking['flag']} needs a value"
    if required := _REQUIRED.search(text):
        return f"{required['command']} needs {required['what']}"
    if unknown := _UNKNOWN.search(text):
        return f"not a flag, nor the value of one: {unknown['words'].strip()}"
    return None


def _given(args: Sequence[str], flag: str) -> list[str]:
    """Return the words that a flag was given."""
    found: list[str] = []
    inside = False
    for word in args:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            inside = name.replace("_", "-") == flag.replace("_", "-")
            found += [value] if inside and equals else []
        elif inside:
            found.append(word)
    return found
