"""Tensors in files that are named by the digest of their bytes, and clients' private states in such files.

An object never changes, and the same tensors are one file. Which objects are in use is said elsewhere (`commit.json`
of a run); the others are deleted. So a kill at any moment leaves the objects that are in use as they are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedkin.core import Bundle, RunFolderError
from fedkin.storage.files import PRIVATE_FILE, PRIVATE_FOLDER, sync_to_disk
from fedkin.storage.tensors import own_memory

_HOW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_NOTHING = torch.empty(0)


class Objects:
    """A folder of objects, whose names are the first 40 hexadecimal digits of SHA-256 of their bytes.

    Args:
        folder: None: a temporary folder, deleted with this object.

    Attributes:
        sync: whether objects are forced to the disk.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.temporary, self.sync = folder is None, False
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fedkin-"))
        self._there: set[str] = set()
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def put(self, tensors: Mapping[str, Tensor]) -> str:
        """Write an object unless it is there; return its name.

        Raises:
            RunFolderError: it cannot be written.
        """
        raw = save({name: own_memory(t) for name, t in tensors.items()})
        name = _digest(raw)
        if name not in self._there:
            path = self.folder / name
            try:
                if not self._there:
                    self.folder.mkdir(PRIVATE_FOLDER, exist_ok=True)  # and none above: a run may have been moved
                with open(os.open(path, _HOW, PRIVATE_FILE), "wb") as file:
                    file.write(raw)
                    if self.sync:
                        file.flush()
                        os.fsync(file.fileno())
            except OSError as e:
                raise RunFolderError(
                    f"{path} cannot be written ({e}); make room, or choose a folder on another disk with --out"
                ) from e
            self._there.add(name)
        return name

    def get(self, name: str) -> Bundle:
        """Return the tensors of an object.

        Raises:
            RunFolderError: it is missing or damaged.
        """
        path = self.folder / name
        try:
            raw = path.read_bytes()
            if _digest(raw) != name:
                raise ValueError("its content is not what it is named after")
            return Bundle(load(raw))
        except (OSError, ValueError, SafetensorError) as e:
            raise RunFolderError(f"{path} is damaged ({e}); start the run again in another folder") from e

    def look(self) -> None:
        """Find the objects that are there, and what a kill has left of others, for `keep` and `put`."""
        self._there = set(os.listdir(self.folder)) if self.folder.is_dir() else set()
        if self._there:
            self.folder.chmod(PRIVATE_FOLDER)

    def keep(self, names: Collection[str]) -> None:
        """Delete all other objects that were found or written."""
        for name in self._there.difference(names):
            (self.folder / name).unlink(missing_ok=True)
        self._there.intersection_update(names)

    def settle(self) -> None:
        """With ``sync``, return when the names of all objects would survive a power failure."""
        if self.sync and self._there:
            sync_to_disk(self.folder)


class Named(Mapping[int, Bundle]):
    """Clients' states by the names of their objects; each is read when it is accessed."""

    def __init__(self, objects: Objects, names: Mapping[int, str]) -> None:
        self.objects, self.names = objects, names

    def __getitem__(self, client: int) -> Bundle:
        return self.objects.get(self.names[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class States:
    """Clients' states as objects, a `fedkin.server.simulate.StateStore`.

    A ledger then holds the name of an object, as the name of an empty tensor.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects, self._names = objects, dict[int, str]()

    def put(self, client: int, seq: int, state: Bundle, committed: Bundle) -> Bundle:
        """Write a client's state."""
        return _held(self.objects.put(state)) if state else Bundle()

    def get(self, client: int, held: Bundle) -> Bundle:
        """Return the state for which `put` returned ``held``.

        Raises:
            RunFolderError: its file is missing or damaged.
        """
        return self.objects.get(next(iter(held))) if held else Bundle()

    def all(self, held: Mapping[int, Bundle], acks: Tensor, changed: Collection[int]) -> Named:
        """Return the names of all states; in a temporary folder nothing else is kept."""
        for i in changed:
            if held[i]:
                self._names[i] = next(iter(held[i]))
            else:
                self._names.pop(i, None)
        if self.objects.temporary:
            self.objects.keep(self._names.values())
        return Named(self.objects, dict(self._names))

    def adopt(self, states: Mapping[int, Bundle], acks: Tensor) -> Mapping[int, Bundle]:
        """Return the ledgers' entries for states; those of other places are written here."""
        if isinstance(states, Named) and states.objects is self.objects:
            self._names = dict(states.names)
            return {i: _held(name) for i, name in self._names.items()}
        return {i: self.put(i, int(acks[i]), states[i], Bundle()) for i in states}


def _held(name: str) -> Bundle:
    return Bundle({name: _NOTHING})


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:40]  # faster than blake2b: processors have instructions for it
