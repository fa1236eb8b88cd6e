"""What the project holds, by room, against `budget.toml`, whose numbers only fall.

``python -m tests.budget`` lowers the file to what is counted; it never raises a number. A change that needs more room
than it frees edits the file by hand, which a reviewer sees.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import tomli_w

ROOT = Path(__file__).parents[1]
FILE = ROOT / "budget.toml"
_HEAD = """\
# Upper bounds, by room of src/fedkin, of the package fedkin-hosts (fedkin_hosts) and for the whole: `make check` fails
# where a count is above its number. Numbers only fall: `make budget` lowers them to what is counted.
"""
_UNTYPED = {f"{kind}[str, {value}]" for kind in ("dict", "Mapping") for value in ("Any", "object")}
Counts = dict[str, dict[str, int]]


def counted(root: Path = ROOT) -> Counts:
    """Return the counts of the project: lines, files, ``raise`` and untyped mappings of each room, and the whole."""
    src = root / "src" / "fedkin"
    found: Counts = {}
    hosts = root / "packages" / "fedkin-hosts" / "src"
    for path in sorted([*src.rglob("*.py"), *hosts.rglob("*.py")]):
        inside = path.relative_to(hosts if path.is_relative_to(hosts) else src).parts
        room = found.setdefault(inside[0] if len(inside) > 1 else "top", Counter())
        text = path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        room["lines"] += text.count("\n")
        room["files"] += 1
        room["raise"] += sum(isinstance(node, ast.Raise) for node in nodes)
        room["untyped"] += sum(isinstance(node, ast.Subscript) and ast.unparse(node) in _UNTYPED for node in nodes)
    tests = [path.read_text() for path in (root / "tests").rglob("*.py")]
    whole = {
        "method_members": sum(1 for _ in _members(src / "core" / "method.py")),
        "flags": sum(line.startswith("| `") for line in _text(root / "docs" / "reference" / "flags.md").splitlines()),
        "docs_words": sum(len(_text(path).split()) for path in (root / "docs").rglob("*.md")),
        "changelog_lines": _text(root / "CHANGELOG.md").count("\n"),
        "test_lines": sum(text.count("\n") for text in tests),
        "test_patterns": sum(text.count("match=") for text in tests),
        "test_patches": sum(text.count("monkeypatch.") for text in tests),
    }
    return {
        name: {key: room[key] for key in ("lines", "files", "raise", "untyped")} for name, room in found.items()
    } | {"whole": whole}


def above(counts: Counts, budget: Counts) -> list[str]:
    """Return a line for each count above its number; a room without numbers may hold nothing."""
    return [
        f"{room}: {count} {what}, the budget is {budget.get(room, {}).get(what, 0)}"
        for room, of_room in counts.items()
        for what, count in of_room.items()
        if count > budget.get(room, {}).get(what, 0)
    ]


def lowered(counts: Counts, budget: Counts) -> Counts:
    """Return the budget with every number that is above its count lowered to it; rooms that are gone go."""
    return {
        room: {what: min(count, budget.get(room, {}).get(what, 0)) for what, count in of_room.items()}
        for room, of_room in counts.items()
    }


def written() -> Counts:
    """Return the numbers of `budget.toml`."""
    found: Counts = tomllib.loads(FILE.read_text())
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _members(path: Path) -> Iterator[str]:
    """Yield the public members of the class ``Method``."""
    (method,) = (n for n in ast.parse(_text(path)).body if isinstance(n, ast.ClassDef) and n.name == "Method")
    seen = set[str]()
    for node in method.body:
        names = [node.name] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for name in names:
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name


if __name__ == "__main__":
    FILE.write_text(_HEAD + tomli_w.dumps(lowered(counted(), written())))
