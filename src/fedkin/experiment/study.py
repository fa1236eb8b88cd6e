"""Many runs in one folder: its lock, the files of its plan, and runs that are begun or continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.core import ConfigError, RunFolderError
from fedkin.core.errors import typed
from fedkin.core.grammar import converted
from fedkin.record.result import Result
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import room, taken
from fedkin.storage.lock import remove, writing


@dataclass(frozen=True)
class Study:
    """Runs of one plan.

    Attributes:
        folder: holds a run folder for each; None keeps them in memory.
    """

    folder: Path | None

    def run(self, name: str, make: Callable[..., Result], **how: Any) -> Result:
        """Return the run of a name, made anew or continued.

        Args:
            name: name of its folder.
            make: makes it; gets ``out``, ``resume`` and what follows.
            how: further arguments.
        """
        place = None if self.folder is None else self.folder / name
        begun = place is not None and (place / "config.toml").is_file()
        return make(out=place, resume=begun, **how)


@contextmanager
def study(folder: Path | None, files: Mapping[str, bytes], *, resume: bool) -> Iterator[Study]:
    """Hold the folder of a study while its runs are made. A new one that fails before a run began is removed.

    Args:
        folder: its folder; None keeps everything in memory.
        files: what a new folder holds: copies of user-defined code, and last the plan.
        resume: continue in the folder.

    Raises:
        RunFolderError: something is at this place already, it cannot be written to, or another process writes there.
    """
    if folder is None:
        yield Study(None)
        return
    with writing(folder), room(folder):
        if not resume:
            _begin(folder, files)
        try:
            yield Study(folder)
        except Exception:
            if not resume and not any(folder.rglob("config.toml")):
                remove(folder)
            raise


def _begin(folder: Path, files: Mapping[str, bytes]) -> None:
    if taken(folder):
        raise RunFolderError(f"{folder} exists already; name another with --out, or: fedkin resume {typed(folder)}")
    try:
        for file, content in files.items():
            write_atomic(folder / file, content)
    except OSError as e:
        raise RunFolderError(f"no folder can be made at {folder} ({e}); name another with --out") from e


def seeds_of(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds of a study.

    Raises:
        ConfigError: they are not whole numbers, there is none, or two are equal.
    """
    made: tuple[int, ...] = converted([*seeds] if isinstance(seeds, range) else seeds, tuple[int, ...], "seeds")
    if not made or len(set(made)) < len(made):
        raise ConfigError(f"seeds must be one or several whole numbers that differ, got {list(made)}")
    return made
