"""A run folder: the config, what each round gave, and the last checkpoint; consistent whenever the run is killed.

config.toml            the complete config; ``fedkin run config.toml`` makes the run again
preparation.json       how clients' inputs were made of raw data, where that is known (`fedkin.data.Preparation`)
*.py                   copies of the files with one's own method or network that the config names
rounds.jsonl           a line per round: who took part, bytes, and the summary if it was evaluated
clients.jsonl          a line per evaluated round and client; those of the last round also have a bit for
                       each test sample (`right`: 1 for correct, in test order, hexadecimal) and a digest of the
                       test part (`test_digest`, the same for two runs on the same split)
relations.jsonl        a line per round: who learned from whom
timing.jsonl           a line per round: seconds (apart, so that equal runs have equal files), with a digest of the file
                       up to there
checkpoint.safetensors the last whole round: server state, every client's private state, and digests of the lines so far
best.safetensors       the same of the round with the highest validation accuracy so far
states, banks          with state = "file", in place of them: clients' states, and models that the server keeps of each
summary.json           the final figures, when the run is done, and digests of the lines
.lock                  the process that is writing the folder, while it does
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkin.banks import Banks
from fedkin.core import Bundle, RunFolderError
from fedkin.core.errors import DiskFullError
from fedkin.engines import Server
from fedkin.locks import NAME as LOCK
from fedkin.report.folder import Lines, named, require_folder, write_atomic
from fedkin.report.intact import Digest, lines_of, require_intact, require_rounds
from fedkin.states import NOTHING, Stored, apart, checksum
from fedkin.toml import differences

_LINES = ("rounds", "clients", "relations", "timing")
EXTENDING = "extending.json"
"""What is to be done to a folder whose run gets more rounds (`fedkin.extending`), until it is done."""
_FORMAT = "1"
_BANK = "bank."  # in front of a bank's name, in what a checkpoint says
_UNCHECKED = "unchecked"
_ABOUT = "about."  # in front of a mark's name, before what it stands for
_LINES_OF = "digest."  # in front of a file's name, before the digest of its lines
_HALF_WRITTEN = ".*.new"  # as `write_atomic` names a file until it is whole


class Written(Sequence[dict[str, Any]]):
    """The lines of a file, read anew whenever they are looked at: those of many clients need not be in memory."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._lines)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, i: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, i: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, i: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return list(self)[i]


class RunFolder:
    """Writes a run down so that a kill at any moment loses at most the round in progress.

    The lines of a round are appended before its checkpoint replaces the last one; lines of rounds that no checkpoint
    covers are cut off when the run is resumed.

    Attributes:
        banks: keeps the server's banks in files; None: they are part of the checkpoint.
        about: what the marks of checkpoints stand for, as JSON: tables whose differences a message can name.
        unchecked: the round up to which an older version wrote the lines, without digests.
        keeps_best: whether the checkpoint of the best round is kept; not where clients' states are elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.banks: Banks | None = None
        self.keeps_best = True
        self.about: Mapping[str, str] = {}
        self.unchecked = 0
        self._digests: dict[str, Digest] = {}
        self._written: dict[str, str] = {}  # the digests that the checkpoint tells, by name

    @classmethod
    def create(cls, path: Path | str, config: str, sources: Mapping[str, bytes] | None = None) -> RunFolder:
        """A new folder with its config and, if there are any, the files of one's own code that the config names.

        Raises:
            RunFolderError: there is something at this place already.
        """
        path = Path(path)
        if taken(path):
            raise RunFolderError(
                f"{path} exists already; name another folder with --out, or go on with it: fedkin resume {path}"
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
        """A folder that a run was begun in.

        Raises:
            RunFolderError: it is none.
        """
        path = Path(path)
        require_folder(path)
        if not (path / "config.toml").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.toml")
        return cls(path)

    # ---- lines ------------------------------------------------------------------------------------------------
    def append(self, lines: Mapping[str, list[dict[str, Any]]]) -> None:
        """Adds lines to ``NAME.jsonl`` for each name."""
        for name, new in lines.items():
            path, digest, content = self.path / f"{name}.jsonl", self._digest(name), list[bytes]()
            for line in new:
                text = json.dumps(line).encode()
                content.append((digest.signed(text) if name == "timing" else text) + b"\n")
                digest.add(content[-1])
            with named(path), path.open("ab") as file:
                file.write(b"".join(content))

    def read(self, name: str, until: int | None = None) -> list[dict[str, Any]]:
        """The lines of ``NAME.jsonl`` up to a round; a last line cut short by a kill is left out.

        Raises:
            RunFolderError: a line is damaged, twice there or out of order, which no kill can do.
        """
        lines = Lines(self.path / f"{name}.jsonl")
        return [line for line in lines if until is None or line["round"] <= until]

    def cut(self, until: int) -> None:
        """Removes the lines of rounds after ``until``, and what a kill left half written.

        Raises:
            RunFolderError: lines of rounds up to ``until`` are missing or damaged.
        """
        ends = {name: self._end(name, until) for name in _LINES}
        require_rounds(self.path / "rounds.jsonl", until, beyond=True)
        if self._written:
            require_rounds(self.path / "timing.jsonl", until, beyond=True)
        for name, end in ends.items():
            path = self.path / f"{name}.jsonl"
            if path.exists() and path.stat().st_size != end:
                os.truncate(path, end)
            if end and name not in self._written:
                _end_line(path)
            self._digests.pop(name, None)
        for half in self.path.glob(_HALF_WRITTEN):
            half.unlink(missing_ok=True)

    def _end(self, name: str, until: int) -> int:
        """Where the lines up to a round end, in bytes: as the checkpoint says, or by the lines where it is older."""
        if name in self._written:
            return int(self._written[name].partition(" ")[0])
        return max((end for line, end in lines_of(self.path / f"{name}.jsonl") if line["round"] <= until), default=0)

    def _digest(self, name: str) -> Digest:
        """That of ``NAME.jsonl`` as it is; from then on it is kept up to date by `append`."""
        if name not in self._digests:
            self._digests[name] = Digest.of(self.path / f"{name}.jsonl")
        return self._digests[name]

    def digests(self) -> dict[str, str]:
        """Those of the files that are equal in equal runs, by the files' names."""
        return {f"{name}.jsonl": str(self._digest(name)) for name in _LINES if name != "timing"}

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes ``NAME.json`` whole or not at all."""
        _renew(self.path / f"{name}.json", json.dumps(value, indent=2) + "\n")

    # ---- checkpoint -------------------------------------------------------------------------------------------
    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def best(self) -> Path:
        """The checkpoint of the round with the highest validation accuracy."""
        return self.path / "best.safetensors"

    @property
    def states(self) -> Path:
        """Where clients' states are, if they are in files."""
        return self.path / "states"

    @property
    def bank_files(self) -> Path:
        """Where the server's banks are, if they are in files."""
        return self.path / "banks"

    def save(self, server: Server, clients: Mapping[int, Bundle], marks: Mapping[str, str]) -> None:
        """Replaces the checkpoint by the state after the server's last round; what is in files is only named."""
        state, sums, told = (server.state, Bundle(), {}) if self.banks is None else self.banks.split(server.state)
        tensors = {f"server.{name}": t for name, t in state.items()}
        tensors |= {f"sums.{name}": t for name, t in sums.items()}
        tensors |= {f"described.{name}": t for name, t in server.described.items()}
        tensors |= {"roster.size": server.sizes, "roster.ack": server.acks}
        if isinstance(clients, Stored):
            tensors["roster.file"] = clients.files
        else:
            tensors |= {f"client.{i}.{name}": t for i, state in clients.items() for name, t in state.items()}
        whole = {name: apart(t) for name, t in tensors.items()}
        meta = {"format": _FORMAT, "round": str(server.round), **marks, **{_BANK + n: text for n, text in told.items()}}
        meta |= {_ABOUT + name: text for name, text in self.about.items()}
        meta |= {_UNCHECKED: str(self.unchecked)} if self.unchecked else {}
        meta |= {_LINES_OF + name: digest for name, digest in self.digests().items()}
        content = save(whole, metadata={**meta, "checksum": checksum(whole, meta)})
        write_atomic(self.checkpoint, content, private=True)
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
        if not self.keeps_best or (round is not None and _round_and_whole(self.best)[0] == round):
            return
        if round is None or _round_and_whole(self.checkpoint) != (round, True):
            self.best.unlink(missing_ok=True)
            return
        new = self.best.with_name(f".{self.best.name}.{os.getpid()}.new")
        try:
            new.unlink(missing_ok=True)
            os.link(self.checkpoint, new)  # the next checkpoint takes the name, not the content
            os.replace(new, self.best)
        except OSError:  # a file system without links
            write_atomic(self.best, self.checkpoint.read_bytes(), private=True)
        finally:
            new.unlink(missing_ok=True)

    def best_round(self) -> int | None:
        """The round of `best`; None if there is no such file."""
        return _round_and_whole(self.best)[0]

    def load(self, marks: Mapping[str, str], *, best: bool = False) -> tuple[Server, Mapping[int, Bundle]] | None:
        """The state that `save` wrote, or None if no round was finished.

        It does not matter whether that was with files.

        Args:
            marks: fingerprints that the checkpoint must have.
            best: that of the best round instead of the last.

        Raises:
            RunFolderError: the checkpoint is damaged or belongs to another config or other data, or the lines of its
                rounds are not as they were written.
        """
        path = self.best if best else self.checkpoint
        if (self.path / EXTENDING).exists():
            raise RunFolderError(f"{self.path} is about to get more rounds; complete it: fedkin resume {self.path}")
        if not path.exists():
            return None
        meta, tensors = _checked(path, marks, self.about)
        if not best:
            self._require_lines(meta)
        told = {name.removeprefix(_BANK): text for name, text in meta.items() if name.startswith(_BANK)}
        sums = {name.split(".", 1)[1]: tensors.pop(name) for name in list(tensors) if name.startswith("sums.")}
        server, states = self._unpack(tensors, int(meta["round"]))
        if best:  # it holds everything, and the files of banks are those of the last round
            return server, states
        banks = self.banks or Banks(self.bank_files)
        found = banks.open(server.round, told, sums)
        server.state |= found if self.banks is not None else found.owned()
        if self.banks is not None:
            server.state = self.banks.adopt(server.state, len(server.sizes))
        return server, states

    def _require_lines(self, meta: Mapping[str, str]) -> None:
        """Compares the files of lines with the digests that a checkpoint tells; one of an older version tells none."""
        told = {n.removeprefix(_LINES_OF): digest for n, digest in meta.items() if n.startswith(_LINES_OF)}
        for name, digest in told.items():
            require_intact(self.path / name, digest)
        self.unchecked = int(meta.get(_UNCHECKED, 0 if told else meta["round"]))
        self._written = {name.removesuffix(".jsonl"): digest for name, digest in told.items()}

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
        if "roster.file" in tensors:
            return server, Stored(self.states, tensors["roster.file"], server.acks)
        return server, clients

    def settle(self) -> int:
        """Removes what no checkpoint covers; the round of the checkpoint, 0 if there is none.

        Raises:
            RunFolderError: the checkpoint is damaged, or the lines of its rounds are not as they were written.
        """
        meta: Mapping[str, str] = {"round": "0"}
        if self.checkpoint.exists():
            meta, _ = _checked(self.checkpoint, {}, {})
            self._require_lines(meta)
        self.cut(int(meta["round"]))
        return int(meta["round"])

    def relabel(self, path: Path, texts: Mapping[str, str]) -> None:
        """Gives a checkpoint other marks and digests; its tensors stay. Nothing if it does not exist.

        Raises:
            RunFolderError: it is damaged.
        """
        if path.exists():
            meta, tensors = _checked(path, {}, {})
            meta |= texts
            content = save(tensors, metadata={**meta, "checksum": checksum(tensors, meta)})
            write_atomic(path, content, private=True)

    def clients(self) -> int:
        """How many clients had joined when the checkpoint was written; 0 without one."""
        if not self.checkpoint.exists():
            return 0
        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                return int(file.get_slice("roster.ack").get_shape()[0])
        except (SafetensorError, OSError, ValueError) as e:
            raise RunFolderError(f"{self.checkpoint} is damaged ({e}); start the run again in another folder") from e


def _checked(
    path: Path, marks: Mapping[str, str], about: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Texts and tensors of a checkpoint; errors as of `RunFolder.load`."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as e:
        raise RunFolderError(f"{path} is damaged ({e}); start the run again in another folder") from e
    found = meta.pop("checksum", None)
    if meta.get("format") != _FORMAT or found != checksum(tensors, meta):
        raise RunFolderError(
            f"{path} is damaged (its checksum does not fit its content); start the run again in another folder"
        )
    for name, mark in marks.items():
        if meta.get(name) != mark:
            raise RunFolderError(
                f"{path} belongs to a run with another {name}: {_differ(meta.get(_ABOUT + name), about.get(name))}; "
                "put it back as it was, or start in another folder"
            )
    return meta, tensors


def _differ(there: str | None, here: str | None) -> str:
    """In what two things differ of which a fingerprint differs, as far as checkpoints tell of them."""
    if there is None or here is None:
        return "in what is not written down (the folder is of an older version)"
    told = differences(json.loads(there), json.loads(here))
    return told or "sizes and names are the same, values are not"


def _round_and_whole(path: Path) -> tuple[int | None, bool]:
    """The round of a checkpoint, and whether it holds every state and bank itself; None: there is none, or it is
    damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            apart_from_it = any(name.startswith(_BANK) for name in meta)
            if "roster.file" in file.keys():  # noqa: SIM118 - not a dict
                apart_from_it |= bool((file.get_tensor("roster.file") != NOTHING).any())
            return int(meta["round"]), not apart_from_it
    except (SafetensorError, OSError, ValueError, KeyError):
        return None, False


def _end_line(path: Path) -> None:
    """Ends the last line of a file that an editor has left without its end."""
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


@contextmanager
def room(folder: Path, again: str = "fedkin resume") -> Iterator[None]:
    """Makes the error of a full disk say which folder could not be written, and how the run goes on.

    Raises:
        DiskFullError: instead of the system's error, and of one that names it as its cause.
    """
    try:
        yield
    except (OSError, RunFolderError) as e:
        cause = e if isinstance(e, OSError) else e.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path = cause.filename or folder
        free = shutil.disk_usage(folder).free / 1e6
        begun = any((folder / name).exists() for name in ("config.toml", "compare.toml", "sweep.toml"))
        what = f"then go on with: {again} {folder}" if begun else "or name another folder with --out"
        raise DiskFullError(
            f"the disk is full: {path} cannot be written, {free:,.1f} MB are free there; make room, {what}"
        ) from cause


def taken(path: Path) -> bool:
    """Whether there is something at this place; an empty folder, or one in which a kill left a half-written file or a
    lock, is nothing."""
    if not path.is_dir():
        return path.exists()
    return any(not p.match(_HALF_WRITTEN) and p.name != LOCK for p in path.iterdir())


def _renew(path: Path, text: str) -> None:
    """Writes a file, unless it holds just this text already."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_atomic(path, text.encode())
