"""What a run writes down of people's own code: names that stay right when a folder moves, copies, a fingerprint."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from fedkin.core.errors import ConfigError, FedkinError
from fedkin.core.importing import find, is_import_path


def is_file(name: str) -> bool:
    """Whether a name means something in a file: ``./file.py:attribute``."""
    return is_import_path(name) and name.rpartition(":")[0].endswith(".py")


def placed(name: str, folder: Path | None = None) -> str:
    """The name with its file by an absolute path; any other name as it is.

    Args:
        name: of a method or a network.
        folder: where the name was read, which is looked into before the working folder.
    """
    if not is_file(name):
        return name
    path, _, attribute = name.rpartition(":")
    near = None if folder is None else folder / Path(path).expanduser()
    file = near if near is not None and near.is_file() else Path(path).expanduser()
    return f"{file.resolve()}:{attribute}"


def told(name: str) -> str:
    """The name as a run folder writes it, where a copy of the file lies beside the config: ``./file.py:attribute``."""
    path, _, attribute = name.rpartition(":")
    return f"./{Path(path).name}:{attribute}" if is_file(name) else name


def label(name: str) -> str:
    """Short, for titles and names of folders: the attribute; any other name as it is."""
    return name.rpartition(":")[2] if is_import_path(name) else name


def copies(names: Iterable[str], error: type[FedkinError] = ConfigError) -> dict[str, bytes]:
    """The files behind the names, and the modules beside them that they import: file name -> content.

    Packages beside a file are not among them: what needs one is better installed, as ``package.module:attribute``.

    Raises:
        FedkinError: of class ``error``: a file cannot be read, or two different ones have the same name.
    """
    found: dict[str, bytes] = {}
    waiting = [Path(name.rpartition(":")[0]).expanduser() for name in names if is_file(name)]
    while waiting:
        path = waiting.pop()
        try:
            content = path.read_bytes()
        except OSError as e:
            raise error(f"{path} cannot be read: {e}") from e
        if found.get(path.name, content) != content:
            raise error(f"two different files are called {path.name}; a run folder keeps both, so rename one")
        if path.name not in found:
            found[path.name] = content
            waiting += [p for p in (path.parent / f"{m}.py" for m in _imported(content)) if p.is_file()]
    return found


def fingerprint(name: str) -> str:
    """Of the code behind a name: its file and those beside it that it imports, or the text of its module.

    Raises:
        ConfigError: there is no such thing, or its text cannot be found.
    """
    if is_file(name):
        files = copies([name])
    else:
        thing = find(name)
        try:
            path = Path(inspect.getfile(thing))
            files = {path.name: path.read_bytes()}
        except (TypeError, OSError) as e:
            raise ConfigError(f"{name}: the text of its module cannot be read: {e}") from e
    total = hashlib.blake2b(digest_size=16)
    for file, content in sorted(files.items()):
        total.update(file.encode() + b"\0" + len(content).to_bytes(8, "big") + content)
    return total.hexdigest()


def code_of(name: str, *, files_only: bool = False) -> dict[str, str]:
    """What a config keeps beside the name of one's own method or network, so that another text of it is noticed."""
    own = is_file(name) or (is_import_path(name) and not files_only)
    return {"code": fingerprint(name)} if own else {}


def require_code(name: str, code: object, where: str) -> None:
    """Raises `ConfigError` if a config says that one's own code was another when it was written."""
    if code is not None and code != code_of(name).get("code"):
        raise ConfigError(
            f"{where}: {name} has changed since this was written; put the former text back, or begin a new run from a "
            'config without the line code = "..."'
        )


def _imported(content: bytes) -> set[str]:
    """First names of all imports of a file; none if it is not Python, which is said when it is run."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found
