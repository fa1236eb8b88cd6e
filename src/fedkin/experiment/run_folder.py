"""A run folder: the config, what each round gave, and the last checkpoint; consistent whenever the run is killed.

config.toml            the complete config; ``fedkin run config.toml`` makes the run again
preparation.json       how clients' inputs were made of raw data, where that is known (`fedkin.data.Preparation`)
*.py                   copies of the files with one's own method or network that the config names
rounds.jsonl           a line per round: who took part, bytes, and the summary if it was evaluated
clients.jsonl          a line per evaluated round and client; those of the last round also have a bit for
                       each test sample (`right`: 1 for correct, in test order, hexadecimal), a digest of the test
                       part (`test_digest`, the same for two runs on the same split) and one of the logits for it
                       (`logits_digest`, the same for two models that predict alike)
relations.jsonl        a line per round: who learned from whom
timing.jsonl           a line per round: seconds (apart, so that equal runs have equal files)
checkpoint.safetensors the last whole round: server state, every client's private state, and the bytes of lines so far
best.safetensors       the same of the round with the highest validation accuracy so far
states, banks          with state = "file", in place of them: clients' states, and models that the server keeps of each
summary.json           the final figures, when the run is done, and the bytes of lines
.lock                  the process that is writing the folder, while it does
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.core.errors import typed
from fedkin.experiment.records import RoundRecords
from fedkin.record.files import COMMIT, RUN, LineFiles, Lines, read_commit, read_json, write_json
from fedkin.record.lines import ClientLine, Commit, Ended, Mark, RoundLine, RunLine, TimingLine
from fedkin.server import Server
from fedkin.storage.checkpoint import FILES, Checkpoint, banks_of
from fedkin.storage.client_states import Stored
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import require_folder, taken
from fedkin.storage.row_store import Banks

EXTENDING = "extending.json"
"""What is to be done to a folder whose run gets more rounds (`fedkin.experiment.extend`), until it is done."""


class RunFolder:
    """Writes a run down so that a kill at any moment loses at most the round in progress.

    The lines of a round are appended before its checkpoint replaces the last one; lines of rounds that no checkpoint
    covers are cut off when the run is resumed.

    Attributes:
        lines: the files of lines.
        banks: keeps the server's banks in files; None: they are part of the checkpoint.
        about: what the marks of checkpoints stand for, as JSON: tables whose differences a message can name.
        survives_power_failures: whether lines and checkpoint are forced to the disk after each round, which takes
            milliseconds.
        keeps_best: whether the checkpoint of the best round is kept; not where clients' states are elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines, self._commit = LineFiles(path), Commit()
        self.survives_power_failures = False
        self.banks: Banks | None = None
        self.keeps_best = True
        self.about: Mapping[str, str] = {}

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
        return cls(path)

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

    def write(self, name: str, value: Mapping[str, Any]) -> None:
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
        """Remove the lines of rounds that no checkpoint covers.

        Raises:
            RunFolderError: lines of its rounds are missing or changed.
        """
        self.lines.cut(self._commit)
        if self._commit.round and read_commit(self.path) != self._commit:  # a kill came between the two
            write_json(self.path / COMMIT, self._commit)

    def commit_with(self, files: Mapping[str, Mark]) -> Commit:
        """Return the commit of a run that goes on, with other files of lines."""
        return Commit(self._commit.round, {**self._commit.files, **files})

    def rounds(self) -> Iterable[RoundLine]:
        """Return the lines of the rounds up to the checkpoint."""
        return Lines(self.path, RoundLine, self._commit, 0)

    def clients(self) -> Iterable[ClientLine]:
        """Return the lines of clients up to the checkpoint."""
        return Lines(self.path, ClientLine, self._commit, sys.maxsize)

    # ---- checkpoint -------------------------------------------------------------------------------------------
    @property
    def checkpoint(self) -> Checkpoint:
        """That after the last whole round."""
        return Checkpoint(self.path / "checkpoint.safetensors")

    @property
    def best(self) -> Checkpoint:
        """That after the round with the highest validation accuracy."""
        return Checkpoint(self.path / "best.safetensors")

    @property
    def states(self) -> Path:
        """The folder of clients' states, if they are in files."""
        return self.path / "states"

    @property
    def bank_files(self) -> Path:
        """The folder of the server's banks, if they are in files."""
        return self.path / "banks"

    def save(self, server: Server, clients: Mapping[int, Bundle], marks: Mapping[str, str], ended: Ended = "") -> None:
        """Replace the checkpoint by the state after the server's last round; what is in files is only named."""
        state, sums, banks = (server.state, Bundle(), {}) if self.banks is None else self.banks.split(server.state)
        tensors = {f"server.{name}": t for name, t in state.items()}
        tensors |= {f"sums.{name}": t for name, t in sums.items()}
        tensors |= {f"described.{name}": t for name, t in server.described.items()}
        tensors |= {"roster.size": server.sizes, "roster.ack": server.acks}
        if isinstance(clients, Stored):
            tensors[FILES] = clients.files
        else:
            tensors |= {f"client.{i}.{name}": t for i, state in clients.items() for name, t in state.items()}
        if self.survives_power_failures:
            self.lines.sync()  # before the checkpoint that has their marks
        commit = self._commit = Commit(server.round, self.lines.marks(), ended)
        self.checkpoint.write(
            server.round, tensors, marks, about=self.about, banks=banks, more=commit_text(commit),
            sync=self.survives_power_failures,
        )  # fmt: skip
        write_json(self.path / COMMIT, commit, sync=self.survives_power_failures)
        if isinstance(clients, Stored):
            clients.saved()
        if self.banks is not None:
            self.banks.saved(server.round, server.state)
        for place, used in ((self.states, isinstance(clients, Stored)), (self.bank_files, self.banks is not None)):
            if not used and place.exists():  # of a former life of this run
                shutil.rmtree(place, ignore_errors=True)

    def keep_best(self, round: int | None) -> None:
        """Keep the checkpoint as `best` if it is that of this round, else remove a `best` of another round.

        Without a best round (None), and where states or banks are in files, which later rounds overwrite, there is no
        `best`. To be called after `save` in a round that is better than all before, and with the best round so
        far when a run is resumed, for a kill may have come in between.
        """
        if not self.keeps_best or (round is not None and self.best.round() == round):
            return
        if round is None or not self.checkpoint.is_whole_of(round):
            self.best.path.unlink(missing_ok=True)
            return
        self.checkpoint.copy_to(self.best)

    def load(self, marks: Mapping[str, str], *, best: bool = False) -> tuple[Server, Mapping[int, Bundle]] | None:
        """Return the state that `save` wrote, with files or without, or None if no round was finished.

        Args:
            marks: fingerprints that the checkpoint must have.
            best: that of the best round instead of the last.

        Raises:
            RunFolderError: the checkpoint is damaged or belongs to another config or other data, or the lines of its
                rounds are not as they were written.
        """
        file = self.best if best else self.checkpoint
        if (self.path / EXTENDING).exists():
            raise RunFolderError(
                f"{self.path} is about to get more rounds; complete it: fedkin resume {typed(self.path)}"
            )
        if not file.path.exists():
            return None
        texts, tensors = file.read(marks, self.about)
        if not best:
            self._commit = _commit_in(texts, file.path)
        sums = {name.split(".", 1)[1]: tensors.pop(name) for name in list(tensors) if name.startswith("sums.")}
        server, states = self._unpack(tensors, int(texts["round"]))
        if best:  # it holds everything, and the files of banks are those of the last round
            return server, states
        banks = self.banks or Banks(self.bank_files)
        found = banks.open(server.round, banks_of(texts), sums)
        server.state |= found if self.banks is not None else found.owned()
        if self.banks is not None:
            server.state = self.banks.adopt(server.state, len(server.sizes))
        return server, states

    def _unpack(self, tensors: Mapping[str, Tensor], round: int) -> tuple[Server, Mapping[int, Bundle]]:
        state, described, clients = Bundle(), Bundle(), dict[int, Bundle]()
        for name, t in tensors.items():
            part, rest = name.split(".", 1)
            if part == "server":
                state[rest] = t
            elif part == "described":
                described[rest] = t
            elif part == "client":
                i, rest = rest.split(".", 1)
                clients.setdefault(int(i), Bundle())[rest] = t
        server = Server(state, round, tensors["roster.size"], described, tensors["roster.ack"])
        if FILES in tensors:
            return server, Stored(self.states, tensors[FILES], server.acks)
        return server, clients

    def settle(self, marks: Mapping[str, str], about: Mapping[str, str]) -> int:
        """Remove what no checkpoint covers.

        Args:
            marks: fingerprints that the checkpoint must have.
            about: what they are of.

        Returns:
            the round of the checkpoint, 0 if there is none.

        Raises:
            RunFolderError: the checkpoint is damaged or of another run, or lines of its rounds are missing or damaged.
        """
        if self.checkpoint.path.exists():
            texts, _ = self.checkpoint.read(marks, about)
            self._commit = _commit_in(texts, self.checkpoint.path)
        self.recover()
        return self._commit.round


def commit_text(commit: Commit) -> dict[str, str]:
    """Return a commit as a text of a checkpoint."""
    return {"commit": msgspec.json.encode(commit).decode()}


def _commit_in(texts: Mapping[str, str], path: Path) -> Commit:
    try:
        return msgspec.json.decode(texts.get("commit", ""), type=Commit)
    except ValueError as e:
        raise RunFolderError(f"{path} is damaged ({e}); restore the folder from a copy") from e


def _text(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()


def _renew(path: Path, content: bytes) -> None:
    """Write a file unless it holds this already."""
    if not _holds(path, content):
        write_atomic(path, content)


def _holds(path: Path, content: bytes) -> bool:
    """Return whether there is a file of this content."""
    return path.is_file() and path.read_bytes() == content
