"""Clients' private states on disk: up to two files per client, of which the last checkpoint uses at most one.

A new state is written to the other file. A checkpoint then names, for every client, the file with its state: its cost
depends on the changes of the round, not on the states of all clients. A kill leaves the named files unchanged; files
that only the checkpoint before named are deleted when it is replaced.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.storage.files import PRIVATE_FILE, PRIVATE_FOLDER, make_private
from fedkin.storage.tensors import pack, unpack

"""Place of clients' states and of the server's banks: memory, files, or files where they take much memory."""
NOTHING = -1
"""In place of a file's number: this client has no state."""
_PER_FOLDER = 1000  # clients whose files share a folder


class States:
    """Clients' states in files, a `fedkin.server.simulate.StateStore`.

    A ledger then holds ``at``: ``[file, upload number]``.

    Args:
        folder: folder of the files; None: a temporary folder, deleted with this object.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fedkin-"))
        if self.folder.exists():
            make_private(self.folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._files = torch.zeros(0, dtype=torch.int8)

    def put(self, client: int, seq: int, state: Bundle, committed: Bundle) -> Bundle:
        """Write a client's state after its upload ``seq``, over any state but the committed one.

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
                for made in (self.folder, path.parent):  # and none above: a run's folder may have been moved
                    made.mkdir(PRIVATE_FOLDER, exist_ok=True)
            if not path.exists():
                path.touch(PRIVATE_FILE)
            path.write_bytes(content)
        except OSError as e:
            raise RunFolderError(
                f"the state of client {client} cannot be written to {path} ({e}); make room, or choose a folder on "
                "another disk with --out"
            ) from e
        return Bundle(at=torch.tensor([slot, seq]))

    def get(self, client: int, held: Bundle) -> Bundle:
        """Return the state for which `put` returned ``held``.

        Raises:
            RunFolderError: its file is missing or damaged.
        """
        if not held:
            return Bundle()
        slot, seq = held.at.tolist()
        return read(self.path(client, slot), client, seq)

    def all(self, held: Mapping[int, Bundle], acks: Tensor, changed: Collection[int]) -> Stored:
        """Return the places of all states, as a checkpoint names them."""
        files = torch.full((len(acks),), NOTHING, dtype=torch.int8)
        files[: len(self._files)] = self._files[: len(acks)]
        former = []
        for i in changed:
            before, files[i] = int(files[i]), file_of(held[i])
            if before not in (NOTHING, int(files[i])):
                former.append(place(self.folder, i, before))
        self._files = files
        return Stored(self.folder, files.clone(), acks.clone(), former)

    def adopt(self, states: Mapping[int, Bundle], acks: Tensor) -> Mapping[int, Bundle]:
        """Return the ledgers' entries for states that a checkpoint names; states of other places are written here."""
        if isinstance(states, Stored) and states.folder == self.folder:
            self._files = states.files.clone()
            return states.held()
        return {i: self.put(i, int(acks[i]), states[i], Bundle()) for i in states}

    def path(self, client: int, slot: int) -> Path:
        """Return the path of one of a client's two files."""
        return place(self.folder, client, slot)


class Stored(Mapping[int, Bundle]):
    """The states that a checkpoint names, each read when it is accessed.

    Attributes:
        files: number of each client's file, int8 ``[K]``, `NOTHING` where there is none.
        acks: number of the upload of the state, int64 ``[K]``.
        former: files that the checkpoint before names and this one does not.
    """

    def __init__(self, folder: Path, files: Tensor, acks: Tensor, former: Sequence[Path] = ()) -> None:
        self.folder, self.files, self.acks, self.former = folder, files, acks, former

    def __getitem__(self, client: int) -> Bundle:
        slot = int(self.files[client]) if 0 <= client < len(self.files) else NOTHING
        if slot == NOTHING:
            raise KeyError(client)
        return read(place(self.folder, client, slot), client, int(self.acks[client]))

    def __iter__(self) -> Iterator[int]:
        return iter((self.files != NOTHING).nonzero().flatten().tolist())

    def __len__(self) -> int:
        return int((self.files != NOTHING).sum())

    def saved(self) -> None:
        """Record that the checkpoint has replaced the one before: delete the files that only that one names."""
        for path in self.former:
            path.unlink(missing_ok=True)

    def held(self) -> dict[int, Bundle]:
        """Return the ledgers' entries of these clients for a run that continues with these files."""
        return {i: Bundle(at=torch.stack([self.files[i].long(), self.acks[i]])) for i in self}


def file_of(held: Bundle) -> int:
    """Return the number of the file that a ledger's entry refers to."""
    return int(held.at[0]) if held else NOTHING


def place(folder: Path, client: int, slot: int) -> Path:
    """Return the path of a client's file below a folder."""
    return folder / str(client // _PER_FOLDER) / f"{client}.{slot}"


def read(path: Path, client: int, seq: int) -> Bundle:
    """Return one client's state.

    Raises:
        RunFolderError: the file is missing, damaged, or belongs to another client or upload.
    """
    again = "start the run again in another folder"
    texts, tensors = unpack(path, again, rewritten=True)
    if texts != _texts(client, seq):
        raise RunFolderError(f"{path} was written by another run or for another upload; {again}")
    return Bundle(tensors)


def _texts(client: int, seq: int) -> dict[str, str]:
    return {"client": str(client), "seq": str(seq)}
