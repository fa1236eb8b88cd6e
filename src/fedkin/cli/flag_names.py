"""Names of flags by command, read off the sources: a mistyped flag is refused before torch is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

FLAGS: Mapping[str, Mapping[str, str]] = {
    "aggregation": {"rule": "aggregation", "secure": "secure-aggregation"},
    "attack": {"kind": "attack", "fraction": "attack-fraction"},
    "privacy": {"delta": "dp-delta"},
    "training": {"clip": "clip-norm"},
}
"""Flags of fields whose names say too little without their group; all others have the field's name."""
HELP_FLAGS = ("-h", "--help", "--help-all")

_SETTINGS = (
    "cli/flags.py", "cli/figures.py", "cli/live.py", "experiment/*settings.py", "core/train.py", "core/robust.py",
    "server/attacks.py", "server/plan.py", "privacy/budget.py",
)  # fmt: skip
_DECLARED: Mapping[str, tuple[str, ...]] = {
    "run": (*_SETTINGS, "methods/*.py"),
    "sweep": (*_SETTINGS, "methods/*.py"),
    "compare": _SETTINGS,
    "check": ("cli/check.py", "methods/*.py"),
    "inspect": ("cli/inspect.py", "experiment/data_settings.py"),
    "resume": ("cli/flags.py", "cli/figures.py", "cli/live.py"),
    "demo": ("cli/demo.py", "cli/live.py"),
    "runs": ("cli/runs.py", "cli/live.py"),
    "report": ("cli/report.py", "cli/figures.py"),
    "export": ("cli/export.py",),
    "predict": ("cli/export.py",),
    "join": ("cli/join.py",),
}
"""Command -> files with the classes whose fields are its flags, perhaps with others."""
_OF_METHOD = ("run", "sweep", "check")
_FIELD = re.compile(r'^    (\w+): [^\n]*\n    """', re.MULTILINE)  # an annotated name with a docstring below it
_NAME = re.compile(r'conf\.arg\([^)]*name="([\w-]+)"')  # a flag that is not called like its field
_PACKAGE = Path(__file__).parents[1]


def declared(command: str) -> set[str]:
    """Return the flags of a command without dashes, perhaps with a few of other commands.

    Empty where they are not known: for other commands, and without the sources.
    """
    files = sorted(path for pattern in _DECLARED.get(command, ()) for path in _PACKAGE.glob(pattern))
    texts = [path.read_text(encoding="utf-8") for path in files]
    fields = {name for text in texts for pattern in (_FIELD, _NAME) for name in pattern.findall(text)}
    renamed = {flag for flags in FLAGS.values() for flag in flags.values()} if "rounds" in fields else set[str]()
    return {name.replace("_", "-") for name in fields} | renamed


def refusal(args: Sequence[str]) -> str | None:
    """Return the answer to a command line with flags that do not exist; None if all may exist.

    Flags of a user-defined method and of a method in a file are known only after it is loaded, so nothing is refused
    there.
    """
    command, first = args[0], args[1] if len(args) > 1 else ""
    if command in _OF_METHOD and not re.fullmatch(r"[a-z][\w-]*", first):
        return None
    if not (known := declared(command)):
        return None
    wrong = [name for name in _named(args[1:]) if not {name, name.removeprefix("no-")} & known]
    if not wrong:
        return None
    offered = known - {"seed"} if "seeds" in known and command in ("compare", "sweep") else known
    meant = [close[0] for name in wrong if (close := get_close_matches(name, sorted(offered), n=1, cutoff=0.6))]
    hint = f"; did you mean {' and '.join(f'--{name}' for name in meant)}?" if meant else ""
    what = f"fedkin {command} {first}" if command in _OF_METHOD else f"fedkin {command}"
    named = ", ".join(f"--{name}" for name in wrong)
    return f"fedkin {command} has no flag {named}{hint}{' ' if hint else '; '}{what} --help shows all"


def _named(words: Iterable[str]) -> list[str]:
    """Return the flags among the words of a command line, spelled as `declared` does."""
    found = []
    for word in words:
        if word.startswith("--") and word not in ("--", *HELP_FLAGS):
            found.append(word[2:].partition("=")[0].replace("_", "-").removeprefix("method."))
    return [name for name in found if not name.startswith("tyro-")]  # of the library that reads flags
