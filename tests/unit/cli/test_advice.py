"""What messages advise can be done: every flag that a text of fedkin names is a flag of one of its commands."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedkin as package
from commandline import Command
from fedkin.methods import METHODS

SOURCE = Path(package.__file__).parent
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
FLOWERS = {"token", "token-file", "isolation", "format"}  # of Flower's programs, which docstrings in hosts name
COMMANDS = (
    "run fedavg", "compare local", "sweep fedprox", "resume", "check", "list", "inspect", "demo", "report", "export",
    "predict", "join", "keys", "link", "status", "node", "submit", "runs",
)  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    """Every string constant of the package with its place; parts of programs that are started are left out."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "--" in node.value:
                if "var(--" in node.value or (path.parent.name == "deploy" and FLAG.fullmatch(node.value)):
                    continue  # a style sheet; an argument of Flower's programs
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node.value


@pytest.fixture
def flags(fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """All flags of all commands, by their help and the fields of the methods."""
    monkeypatch.setenv("COLUMNS", "300")
    found = set(FLAG.findall(fedkin("--help").out))
    for command in COMMANDS:
        done = fedkin(f"{command} --help")
        found |= set(FLAG.findall(done.out + done.err))
    fields = {f.name for make in METHODS.values() for f in dataclasses.fields(make())}  # type: ignore[arg-type]
    return found | {name.replace("_", "-") for name in fields} | {"help", "version"}


def test_every_flag_that_a_text_names_exists(flags: set[str]) -> None:
    """In messages, docstrings and help; a text that advises a flag which was renamed is found."""
    assert {"encoding", "client-column"} <= flags
    unknown = [
        f"{place}: --{name}"
        for place, text in texts()
        for name in FLAG.findall(text)
        if name not in flags and not (name in FLOWERS and place.startswith("deploy/"))
    ]
    assert not unknown, "\n".join(unknown)
