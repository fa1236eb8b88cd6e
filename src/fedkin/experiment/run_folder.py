"""A run folder: the config, what each round gave, and the state of the run; consistent whenever the run is killed.

A round is written down in this order: objects (`fedkin.storage.objects`), lines, ``commit.json``, which names them;
then objects that are no longer named are deleted. `RunFolder.recover` clears what a kill has left.
The files are listed in docs/run-folder.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fedkin.core import Bundle, RunFolderError
from fedkin.core.errors import typed
from fedkin.core.grammar import Table
from fedkin.experiment.records import RoundRecords
from fedkin.record.files import COMMIT, RUN, LineFiles, Lines, mark_of, read_commit, read_json, write_json
from fedkin.record.lines import ClientLine, Commit, Ended, RoundLine, RunLine, Snapshot, TimingLine
from fedkin.server import Server
from fedkin.storage.banks import Banks, stacked
from fedkin.storage.files import naming, write_atomic
from fedkin.storage.folders import require_folder, taken
from fedkin.storage.objects import Named, Objects
from fedkin.storage.toml import differences


class RunFolder:
    """Writes a run down so that a kill at any moment loses at most the round in progress.

    Attributes:
        lines: the files of lines.
        objects: the files of states and rows of banks.
        banks: keeps the server's banks in files; None: they are part of the server's state.
        commit: what is whole.
        survives_power_failures: whether everything is forced to the disk in each round, which takes milliseconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines, self.objects, self.commit = LineFiles(path), Objects(path / "objects"), Commit()
        self.banks: Banks | None = None
        self.survives_power_failures = False

    @classmethod
    def create(cls, path: Path | str, config: str, sources: Mapping[str, bytes] | None = None) -> RunFolder:
        """Create a folder with its config and the files of user-defined code that the config names.

        Raises:
            RunFolderError: there is something at this place already.
        """
        path = Path(path)
        # a kill may have left copies of code without a config
        left = [file for file, content in (sources or {}).items() if _holds(path / file, content)]
        if taken(path, but=left):
            raise RunFolderError(
                f"{path} exists already; name another folder with --out, or go on with it: fedkin resume {typed(path)}"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            for file, content in (sources or {}).items():  # before the config that names them
                write_atomic(path / file, content)
            write_atomic(path / "config.toml", config.encode())
        except OSError as e:
            raise RunFolderError(f"no folder can be made at {path} ({e}); name another with --out") from e
        made = cls(path)
        made.recover()
        return made

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open the folder of a run.

        Raises:
            RunFolderError: it is none.
        """
        path = Path(path)
        require_folder(path)
        if not (path / "config.toml").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.toml")
        return cls(path)

    @staticmethod
    def gradient(path: Path | str) -> str:
        """Return how the run in a folder began to find gradients.

        Raises:
            RunFolderError: ``run.json`` is missing or damaged.
        """
        return read_json(Path(path) / RUN, RunLine).gradient

    def write(self, name: str, value: Table) -> None:
        """Write ``NAME.json`` atomically, for people."""
        _renew(self.path / f"{name}.json", (json.dumps(value, indent=2) + "\n").encode())

    def describe(self, run: RunLine) -> None:
        """Write ``run.json``; what is no text in names, of folders for example, is escaped."""
        lists = {k: tuple(map(_text, getattr(run, k))) for k in ("names", "classes", "notes")}
        run = msgspec.structs.replace(run, command=_text(run.command), **lists)
        _renew(self.path / RUN, msgspec.json.encode(run) + b"\n")

    # ---- lines ------------------------------------------------------------------------------------------------
    def append(self, lines: RoundRecords, seconds: TimingLine) -> None:
        """Add the lines of a round."""
        self.lines.append({"rounds": [lines.round], "clients": lines.clients, "relations": lines.relations,
                           "timing": [seconds]})  # fmt: skip

    def recover(self) -> None:
        """Clear what a kill has left: finish what `replace` began, remove lines and objects that no commit covers.

        Raises:
            RunFolderError: lines of whole rounds are missing or changed.
        """
        self.commit = read_commit(self.path)
        self._finish()
        self.lines.cut(self.commit)
        self.objects.look()
        self.objects.keep(self.commit.names())

    def replace(self, files: Mapping[str, bytes], best: int | None) -> None:
        """Replace files, all or none, for a run that goes on after all.

        Args:
            files: the new contents, by name.
            best: the best round by them.
        """
        for name, raw in files.items():
            with naming(path := self._next(name)):
                path.write_bytes(raw)
        marks = {name: mark_of(raw) for name, raw in files.items()}
        self._commit(Commit(self.commit.last, self.commit.best_of(best), {**self.commit.files, **marks}))
        self._finish()
        self.lines.cut(self.commit)

    def _finish(self) -> None:
        for name, mark in self.commit.files.items():
            if (new := self._next(name)).is_file() and mark_of(new.read_bytes()) == mark:
                (self.path / "summary.json").unlink(missing_ok=True)  # until the longer run has its own
                os.replace(new, self.path / name)

    def _next(self, name: str) -> Path:
        return self.path / f".{name}.new"  # as half-written files are called, which are removed when runs go on

    def _commit(self, commit: Commit) -> None:
        write_json(self.path / COMMIT, commit, sync=self.survives_power_failures)
        self.commit = commit
        self.objects.keep(commit.names())

    def rounds(self) -> Iterable[RoundLine]:
        """Return the lines of the whole rounds."""
        return Lines(self.path, RoundLine, self.commit, 0)

    def clients(self) -> Iterable[ClientLine]:
        """Return the lines of clients in the whole rounds."""
        return Lines(self.path, ClientLine, self.commit, sys.maxsize)

    # ---- state ------------------------------------------------------------------------------------------------
    def save(
        self, server: Server, clients: Mapping[int, Bundle], ended: Ended = "", *, best: int | None = None
    ) -> None:
        """Write the state after the server's last round, and commit it with the lines so far.

        Args:
            server: the server.
            clients: private states of clients; those in memory are written beside the server's state.
            ended: why there are no further rounds.
            best: the best round so far; its state is kept.
        """
        objects = self.objects
        objects.sync = self.survives_power_failures
        state, banks = (server.state, {}) if self.banks is None else self.banks.split(server.state, objects)
        tensors = {f"server.{name}": t for name, t in state.items()}
        tensors |= {f"described.{name}": t for name, t in server.described.items()}
        tensors |= {"roster.size": server.sizes, "roster.ack": server.acks}
        names = dict[int, str]()
        if isinstance(clients, Named):
            names |= clients.names
        else:
            tensors |= {f"client.{i}.{name}": t for i, state in clients.items() for name, t in state.items()}
        last = Snapshot(server.round, objects.put(tensors), names, banks)
        if self.survives_power_failures:
            objects.settle()
            self.lines.sync()  # before the commit that has their marks
        self._commit(Commit(last, Commit(last, self.commit.best).best_of(best), self.lines.marks(), ended))

    def load(
        self, marks: Mapping[str, str], about: Mapping[str, str] | None = None, *, best: bool = False
    ) -> tuple[Server, Mapping[int, Bundle]] | None:
        """Return the state that `save` wrote, or None if no round was finished.

        Args:
            marks: fingerprints that the run must have.
            about: what they are of, as JSON.
            best: the state after the best round instead of the last; None if it was not kept.

        Raises:
            RunFolderError: a file is damaged, or the run is one of another config or other data.
        """
        self.commit = read_commit(self.path)
        self.require(marks, about or {})
        snapshot = self.commit.best if best else self.commit.last
        if snapshot is None:
            return None
        parts: dict[str, Bundle] = {"server": Bundle(), "described": Bundle(), "roster": Bundle()}
        clients = dict[int, Bundle]()
        for name, t in self.objects.get(snapshot.server).items():
            part, rest = name.split(".", 1)
            if part == "client":
                i, rest = rest.split(".", 1)
                clients.setdefault(int(i), Bundle())[rest] = t
            else:
                parts[part][rest] = t
        state, roster = parts["server"], parts["roster"]
        for name, rows in snapshot.banks.items():
            state[name] = stacked(self.objects, rows) if self.banks is None else self.banks.load(self.objects, rows)
        if self.banks is not None:
            state = self.banks.adopt(state, len(roster.size))
        server = Server(state, snapshot.round, roster.size, parts["described"], roster.ack)
        return server, clients or Named(self.objects, snapshot.clients)

    def joined(self) -> int:
        """Return the number of clients that had joined by the last whole round."""
        last = read_commit(self.path).last
        return 0 if last is None else len(self.objects.get(last.server)["roster.ack"])

    def require(self, marks: Mapping[str, str], about: Mapping[str, str]) -> None:
        """Refuse a run of which a round is whole and whose fingerprints are others.

        Raises:
            RunFolderError: it is; the message names the differences.
        """
        if not self.commit.round:
            return
        run = read_json(self.path / RUN, RunLine)
        for name in (name for name, mark in marks.items() if run.marks.get(name) != mark):
            how = _differ(run.about.get(name), about.get(name))
            what = (
                f"the data have changed since this run began, or are others: {how}; restore them"
                if name == "data"
                else f"this run was begun with another {name}: {how}; restore it"
            )
            raise RunFolderError(f"{self.path}: {what}, or start in another folder")


def _differ(there: str | None, here: str | None) -> str:
    """Return the differences between two fingerprinted values; None is one without any."""
    result = differences(json.loads(there or "{}"), json.loads(here or "{}"))
    return result or "sizes and names are the same, values are not"


def _text(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()


def _renew(path: Path, content: bytes) -> None:
    """Write a file unless it holds this already."""
    if not _holds(path, content):
        write_atomic(path, content)


def _holds(path: Path, content: bytes) -> bool:
    """Return whether there is a file of this content."""
    return path.is_file() and path.read_bytes() == content
