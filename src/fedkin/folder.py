"""A run folder: the config, what each round gave, and the last checkpoint; consistent whenever the run is killed.

config.toml            the complete config; ``fedkin run config.toml`` makes the run again
rounds.jsonl           a line per round: who took part, bytes, and the summary if it was evaluated
clients.jsonl          a line per evaluated round and client
relations.jsonl        a line per round: who learned from whom
timing.jsonl           a line per round: seconds (apart, so that equal runs have equal files)
checkpoint.safetensors the last whole round: server state and every client's private state
summary.json           the final figures, when the run is done
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.engines import Server
from fedkin.report.folder import write_atomic

_LINES = ("rounds", "clients", "relations", "timing")
_FORMAT = "1"


class RunFolder:
    """Writes a run down so that a kill at any moment loses at most the round in progress.

    The lines of a round are appended before its checkpoint replaces the last one; lines of rounds that no checkpoint
    covers are cut off when the run is resumed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | str, config: str) -> RunFolder:
        """A new folder with its config.

        Raises:
            RunFolderError: there is something at this place already.
        """
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(
                f"{path} exists already; name another folder with --out, or go on with it: fedkin resume {path}"
            )
        path.mkdir(parents=True, exist_ok=True)
        write_atomic(path / "config.toml", config.encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """A folder that a run was begun in.

        Raises:
            RunFolderError: it is none.
        """
        path = Path(path)
        if not (path / "config.toml").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.toml")
        return cls(path)

    # ---- lines ------------------------------------------------------------------------------------------------
    def append(self, lines: Mapping[str, list[dict[str, Any]]]) -> None:
        """Adds lines to ``NAME.jsonl`` for each name."""
        for name, new in lines.items():
            with (self.path / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in new))

    def read(self, name: str, until: int | None = None) -> list[dict[str, Any]]:
        """The lines of ``NAME.jsonl`` up to a round; a last line cut short by a kill is left out."""
        path = self.path / f"{name}.jsonl"
        found = []
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                break
            if until is None or line["round"] <= until:
                found.append(line)
        return found

    def cut(self, until: int) -> None:
        """Removes the lines of rounds after ``until``."""
        for name in _LINES:
            if (self.path / f"{name}.jsonl").exists():
                text = "".join(json.dumps(line) + "\n" for line in self.read(name, until))
                write_atomic(self.path / f"{name}.jsonl", text.encode())

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes ``NAME.json`` whole or not at all."""
        write_atomic(self.path / f"{name}.json", (json.dumps(value, indent=2) + "\n").encode())

    # ---- checkpoint -------------------------------------------------------------------------------------------
    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def save(self, server: Server, clients: Mapping[int, Bundle], marks: Mapping[str, str]) -> None:
        """Replaces the checkpoint by the state after the server's last round."""
        tensors = {f"server.{name}": t for name, t in server.state.items()}
        tensors |= {f"described.{name}": t for name, t in server.described.items()}
        tensors |= {"roster.size": server.sizes, "roster.ack": server.acks}
        for i, state in clients.items():
            tensors |= {f"client.{i}.{name}": t for name, t in state.items()}
        whole = {name: _apart(t) for name, t in tensors.items()}
        meta = {"format": _FORMAT, "round": str(server.round), "checksum": _checksum(whole), **marks}
        write_atomic(self.checkpoint, save(whole, metadata=meta))

    def load(self, marks: Mapping[str, str]) -> tuple[Server, dict[int, Bundle]] | None:
        """The state that `save` wrote, or None if no round was finished.

        Raises:
            RunFolderError: the checkpoint is damaged or belongs to another config or other data.
        """
        if not self.checkpoint.exists():
            return None
        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                meta = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError, ValueError) as e:
            raise RunFolderError(f"{self.checkpoint} is damaged ({e}); start the run again in another folder") from e
        if meta.get("format") != _FORMAT or meta.get("checksum") != _checksum(tensors):
            raise RunFolderError(
                f"{self.checkpoint} is damaged (its checksum does not fit its content); "
                "start the run again in another folder"
            )
        for name, mark in marks.items():
            if meta.get(name) != mark:
                raise RunFolderError(
                    f"{self.checkpoint} belongs to a run with another {name} ({meta.get(name)}, here {mark}); "
                    "put it back as it was, or start in another folder"
                )
        return _unpack(tensors, int(meta["round"]))


def _unpack(tensors: Mapping[str, Tensor], round: int) -> tuple[Server, dict[int, Bundle]]:
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
    return Server(state, round, tensors["roster.size"], described, tensors["roster.ack"]), clients


def _apart(t: Tensor) -> Tensor:
    """The tensor in memory of its own, as the file format wants it."""
    t = t.detach()
    own = t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()
    return t if own else t.clone(memory_format=torch.contiguous_format)


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        if tensors[name].numel():
            total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
