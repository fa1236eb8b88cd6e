"""Docstrings: every public name of the package has one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fedkin

SOURCE = Path(fedkin.__file__).parent
Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def missing(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    """Yield the line and the name of public classes, functions, methods and properties without a docstring.

    A name is public if neither it nor a class around it has a leading underscore. Functions inside functions, overloads
    and setters do not count.
    """
    for node in _outside_functions(tree):
        if node.name.startswith("_") or any(_repeats(d) for d in getattr(node, "decorator_list", [])):
            continue
        if ast.get_docstring(node) is None:
            yield f"{node.lineno}: {prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from missing(node, f"{prefix}{node.name}.")


def _outside_functions(tree: ast.AST) -> Iterator[Named]:
    """Yield the definitions in a body, also those inside ``if``, ``try`` and ``with``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Named):
            yield node
        elif isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from _outside_functions(node)


def _repeats(decorator: ast.expr) -> bool:
    """Return whether a decorator makes one more version of a name that is documented elsewhere."""
    text = ast.unparse(decorator)
    return text.split(".")[-1] in ("overload", "setter", "deleter")


def test_every_public_name_has_a_docstring() -> None:
    """Modules, classes, functions, methods and properties; the message lists those without."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(SOURCE).as_posix()
        if tree.body and ast.get_docstring(tree) is None:
            found.append(f"{name}:1: the module")
        found += [f"{name}:{place}" for place in missing(tree)]
    assert not found, f"{len(found)} public names without a docstring:\n" + "\n".join(found)


def test_what_counts_as_missing() -> None:
    """A public function, class, method and property; no private name, no setter, no function inside a function."""
    source = '''
class A:
    def method(self): ...
    def _private(self): ...
    @property
    def value(self): ...
    @value.setter
    def value(self, new): ...
class _B:
    def method(self): ...
def done():
    """Do nothing."""
    def inner(): ...
if True:
    def function(): ...
'''
    assert list(missing(ast.parse(source))) == ["2: A", "3: A.method", "6: A.value", "15: function"]
