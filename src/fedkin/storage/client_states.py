"""Clients' private states on disk: two files for each client, of which the last checkpoint counts on one at most.

A new state is written into the other file. A checkpoint then names, for every client, the file that holds its state:
it costs what the round changed, not what all clients keep. A kill at any moment leaves the named files as they were.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.storage.files import PRIVATE_FILE, make_private
from fedkin.storage.tensors import pack, unpack

Kept: TypeAlias = Literal["auto", "memory", "file"]
"""Where clients' states and the server's banks are: in memory, in files, or in files where they take much memory."""
NOTHING = -1
"""In place of a file's number: this client keeps nothing."""
_PER_FOLDER = 1000  # clients whose files share a folder


class States:
    """Where clients' states lie, a `fedkin.engines.Store`. What a ledger holds is ``at``: ``[file, upload number]``.

    Args:
        folder: where; None: a temporary folder, gone with this object.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fedkin-"))
        if self.folder.exists():
            make_private(self.folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._files = torch.zeros(0, dtype=torch.int8)

    def put(self, client: int, seq: int, state: Bundle, committed: Bundle) -> Bundle:
        """Writes a client's state after its upload ``seq``, over any state but the committed one.

        Raises:
            RunFolderError: it cannot be written.
        """
        if not state:
            return Bundle()
        slot = 1 - file_of(committed) if committed else 0
        path = self.path(client, slot)
        content = pack(state, _texts(client, seq))
        try:
            if not path.parent.exists():
                make_private(self.folder)
                make_private(path.parent)
            if not path.exists():
                path.touch(PRIVATE_FILE)
            path.write_bytes(content)
        except OSError as e:
            raise RunFolderError(
                f"what client {client} keeps cannot be written to {path} ({e}); make room, or name a folder on another "
                "disk by --out"
            ) from e
        return Bundle(at=torch.tensor([slot, seq]))

    def get(self, client: int, held: Bundle) -> Bundle:
        """The state that `put` gave ``held`` for.

        Raises:
            RunFolderError: its file is missing or damaged.
        """
        if not held:
            return Bundle()
        slot, seq = held.at.tolist()
        return read(self.path(client, slot), client, seq)

    def all(self, held: Mapping[int, Bundle], acks: Tensor, changed: Collection[int]) -> Stored:
        """Where all of them are, as a checkpoint names it."""
        files = torch.full((len(acks),), NOTHING, dtype=torch.int8)
        files[: len(self._files)] = self._files[: len(acks)]
        for i in changed:
            files[i] = file_of(held[i])
        self._files = files
        return Stored(self.folder, files.clone(), acks.clone())

    def adopt(self, states: Mapping[int, Bundle], acks: Tensor) -> Mapping[int, Bundle]:
        """What ledgers hold of states that a checkpoint names, here; others are written anew."""
        if isinstance(states, Stored) and states.folder == self.folder:
            return states.held()
        return {i: self.put(i, int(acks[i]), states[i], Bundle()) for i in states}

    def path(self, client: int, slot: int) -> Path:
        return place(self.folder, client, slot)


class Stored(Mapping[int, Bundle]):
    """The states that a checkpoint names, each read when it is asked for.

    Attributes:
        files: number of each client's file, int8 ``[K]``, `NOTHING` where there is none.
        acks: number of the upload that it goes with, int64 ``[K]``.
    """

    def __init__(self, folder: Path, files: Tensor, acks: Tensor) -> None:
        self.folder, self.files, self.acks = folder, files, acks

    def __getitem__(self, client: int) -> Bundle:
        slot = int(self.files[client]) if 0 <= client < len(self.files) else NOTHING
        if slot == NOTHING:
            raise KeyError(client)
        return read(place(self.folder, client, slot), client, int(self.acks[client]))

    def __iter__(self) -> Iterator[int]:
        return iter((self.files != NOTHING).nonzero().flatten().tolist())

    def __len__(self) -> int:
        return int((self.files != NOTHING).sum())

    def held(self) -> dict[int, Bundle]:
        """What the ledger of each of these clients holds in a run that goes on with these very files."""
        return {i: Bundle(at=torch.stack([self.files[i].long(), self.acks[i]])) for i in self}


def file_of(held: Bundle) -> int:
    """The number of the file that a ledger's entry stands for."""
    return int(held.at[0]) if held else NOTHING


def place(folder: Path, client: int, slot: int) -> Path:
    return folder / str(client // _PER_FOLDER) / f"{client}.{slot}"


def read(path: Path, client: int, seq: int) -> Bundle:
    """One client's state.

    Raises:
        RunFolderError: the file is missing, damaged, or that of another client or upload.
    """
    again = "start the run again in another folder"
    texts, tensors = unpack(path, again, rewritten=True)
    if texts != _texts(client, seq):
        raise RunFolderError(f"{path} was written by another run or for another upload; {again}")
    return Bundle(tensors)


def _texts(client: int, seq: int) -> dict[str, str]:
    return {"client": str(client), "seq": str(seq)}
