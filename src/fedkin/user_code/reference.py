"""References to user-defined code: its file, its name in a run folder, its fingerprint and its copies."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedkin.core.errors import ConfigError, FedkinError, typed
from fedkin.user_code.loading import bare_name, find, is_import_path


@dataclass(frozen=True)
class CodeRef:
    """A method, network or data set by name: built in, or user-defined code.

    Attributes:
        name: a built-in name, ``package.module:attribute`` or ``FILE.py:attribute``; of a method with settings in its
            name, with ``@FIELD=VALUE`` behind it, and of a safe form, with ``-safe``.
    """

    name: str

    @classmethod
    def read(cls, name: str, folder: Path | None = None) -> CodeRef:
        """Return the reference with its file, if it has one, by an absolute path.

        Args:
            name: name as written.
            folder: folder in which it was written; the file is searched there before the working folder.
        """
        file = cls(name).file
        if file is None:
            return cls(name)
        near = None if folder is None else folder / file
        return cls(f"{(near if near is not None and near.is_file() else file).resolve()}:{cls(name).attribute}")

    @property
    def is_user_code(self) -> bool:
        """Whether it is user-defined code and not a built-in name."""
        return is_import_path(self.name)

    @property
    def file(self) -> Path | None:
        """The file of ``./file.py:attribute``; None for anything else."""
        path = self.name.rpartition(":")[0]
        return Path(path).expanduser() if self.is_user_code and path.endswith(".py") else None

    @property
    def attribute(self) -> str:
        """The attribute of user-defined code; any other name unchanged. Short, for titles and names of folders."""
        return self.name.rpartition(":")[2] if self.is_user_code else self.name

    @property
    def portable(self) -> str:
        """The name as written in a run folder, where a copy of the file lies next to the config."""
        return self.name if self.file is None else f"./{self.file.name}:{self.attribute}"

    @property
    def typed(self) -> str:
        """The name as it is typed in a shell, its file by a path from the working folder."""
        if self.file is None:
            return typed(self.name)
        try:
            path = os.path.relpath(self.file)
        except ValueError:  # on another drive
            path = str(self.file)
        here = "" if os.path.isabs(path) or path.startswith(os.pardir) else f".{os.sep}"
        return typed(f"{here}{path}:{self.attribute}")

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits of the text of its file and files next to it that it imports, or of its module.

        Raises:
            ConfigError: the code does not exist, or its text cannot be found.
        """
        if self.file is not None:
            files = copies([self])
        else:
            thing = find(bare_name(self.name))
            try:
                path = Path(inspect.getfile(thing))
                files = {path.name: path.read_bytes()}
            except (TypeError, OSError) as e:
                raise ConfigError(
                    f"{self.name}: the text of its module cannot be read ({e}); code that was typed into a session is "
                    f"saved in a file first (in a notebook: %%writefile mine.py) and named ./mine.py:{self.attribute}"
                ) from e
        total = hashlib.blake2b(digest_size=16)
        for file, content in sorted(files.items()):
            total.update(file.encode() + b"\0" + len(content).to_bytes(8, "big") + content)
        return total.hexdigest()

    def entry(self, *, files_only: bool = False) -> dict[str, str]:
        """Return the entries of a config next to the name, by which a change of the code is detected."""
        marked = self.file is not None if files_only else self.is_user_code
        return {"code": self.fingerprint()} if marked else {}

    def require_same(self, code: object, where: str) -> None:
        """Compare the code with the fingerprint of a config.

        Raises:
            ConfigError: the code has changed since the config was written.
        """
        if code is not None and code != self.entry().get("code"):
            raise ConfigError(
                f"{where}: {self.name} has changed since this was written; restore the former text, or start a new "
                'run from a config without the line code = "..."'
            )


def copies(references: Iterable[CodeRef], error: type[FedkinError] = ConfigError) -> dict[str, bytes]:
    """Return the files of references, and the modules next to them that they import: file name -> content.

    Packages next to a file are not among them: code that needs one should be installed, ``package.module:attribute``.

    Raises:
        FedkinError: of class ``error``: a file cannot be read, or two different files have the same name.
    """
    files, seen = dict[str, bytes](), set[Path]()
    waiting = [reference.file for reference in references if reference.file is not None]
    while waiting:
        path = waiting.pop()
        try:
            content = path.read_bytes()
        except OSError as e:
            raise error(f"{path} cannot be read: {e}") from e
        if files.get(path.name, content) != content:
            raise error(f"two different files are called {path.name}; a run folder keeps both, so rename one")
        files[path.name] = content
        seen.add(path)
        near = (path.parent / f"{module}.py" for module in _imported(content))
        waiting += [p for p in near if p not in seen and p.is_file()]
    return files


def _imported(content: bytes) -> set[str]:
    """Return the first names of all imports of a file; none if it is not Python, which is reported when it is run."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return set()
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules
