"""Flower's SuperExec with task tokens in private files: ``python -m fedkin.deploy.superexec FOLDER FLAGS...``.

A SuperExec asks a SuperNode for tasks and starts a client app for each, with ``--token TOKEN`` on its command line. Any
user of the machine can read command lines, and with the token a program can take the task's message from the SuperNode
or answer it. Flower's client app also accepts ``--token-file FILE``, so the token is written to a private file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

_FLAG, _FILE_FLAG, _PREFIX = "--token", "--token-file", "token-"


def without_token(command: Sequence[str], folder: Path) -> list[str]:
    """Return the command with its token in a file of mode 0600 in ``folder``; files of former commands are deleted.

    A SuperNode has one task at a time, and a former task's token is useless by then.
    """
    words = list(command)
    if _FLAG not in words[:-1]:
        return words
    at = words.index(_FLAG)
    for former in folder.glob(f"{_PREFIX}*"):
        former.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=_PREFIX, delete=False) as file:
        file.write(words[at + 1])
    return [*words[:at], _FILE_FLAG, file.name, *words[at + 2 :]]


def main(args: Sequence[str]) -> None:
    """Run Flower's SuperExec in this process until it ends."""
    folder = Path(args[0])

    class Popen(subprocess.Popen[Any]):
        """Starts programs as `subprocess.Popen` does, with their tokens in files."""

        def __init__(self, command: Any, *more: Any, **options: Any) -> None:
            super().__init__(without_token(command, folder), *more, **options)

    # Flower has no setting for the way of passing tokens to the programs that it starts
    subprocess.Popen = Popen  # type: ignore[assignment, misc]
    (superexec,) = entry_points(group="console_scripts", name="flower-superexec")
    sys.argv = ["flower-superexec", *args[1:]]
    superexec.load()()


if __name__ == "__main__":
    main(sys.argv[1:])
