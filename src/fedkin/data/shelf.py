"""Clients' data in a folder, read when a client is chosen: for federations larger than the memory.

index.json                       number of classes, shape of an input, names, true groups, a fingerprint of all data
train.x  validation.x  test.x    inputs of one client after another: float32 or int64, little-endian, nothing else
train.y  validation.y  test.y    their labels: int64
train.n  validation.n  test.n    how many samples each client has: int64

Everything is checked when it is written, so a folder is opened without reading more than numbers of samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, overload

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.core.samples import ClientData, Samples
from fedkin.data.arrays import Array
from fedkin.data.checks import PARTS, faults_of_client, readable, refuse_first
from fedkin.data.preparation import Preparation
from fedkin.storage.files import write_atomic

INDEX = "index.json"
NO_CLIENT = "a federation needs at least one client, got none"
_FORMAT: Literal["fedkin federation 1"] = "fedkin federation 1"
_MOST_CLASSES = 1_000_000  # counts of classes take memory for all of them
Inputs = Literal["float32", "int64"]


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``index.json``; the names are those of a `Federation`."""

    format: Literal["fedkin federation 1"]
    name: str
    clients: Annotated[int, Meta(ge=1)]
    classes: Annotated[int, Meta(ge=1, le=_MOST_CLASSES)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1, max_length=8)]
    fingerprint: str
    groups: tuple[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], ...] | None
    labels: tuple[str, ...] | None
    client_names: tuple[str, ...] | None
    preparation: Any = None
    inputs: Inputs = "float32"


class Shelf(Sequence[ClientData]):
    """Clients of such a folder. Nothing that is read is kept.

    Attributes:
        header: content of ``index.json``.
        sizes: samples per client in train, validation and test, int64 ``[K, 3]``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with readable(folder, f"a federation, which has a file {INDEX}", "write one by federation.save"):
            # a pipe would be waited for
            self.header = msgspec.json.decode((folder / INDEX).read_bytes() if is_shelf(folder) else b"", type=Index)
        self.shape = self.header.shape
        self._types = {"x": "<i8" if self.header.inputs == "int64" else "<f4", "y": "<i8"}
        counts = [_counts(folder / f"{part}.n", self.header.clients, part == "train") for part in PARTS]
        self.sizes = torch.from_numpy(np.stack(counts, axis=1))
        self._ends = {part: np.concatenate([[0], np.cumsum(n)]) for part, n in zip(PARTS, counts, strict=True)}
        for part, end in ((part, int(ends[-1])) for part, ends in self._ends.items()):
            for kind, count in (("x", math.prod(self.shape)), ("y", 1)):
                path = folder / f"{part}.{kind}"
                if not path.is_file() or path.stat().st_size != end * count * int(self._types[kind][-1]):
                    raise DataError(f"{path} is missing, or not of {end} samples; write the federation again")

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, k: int) -> ClientData: ...
    @overload
    def __getitem__(self, k: slice) -> tuple[ClientData, ...]: ...
    def __getitem__(self, k: int | slice) -> ClientData | tuple[ClientData, ...]:
        if isinstance(k, slice):
            return tuple(self[i] for i in range(*k.indices(len(self))))
        at = range(len(self))[k]
        groups = self.header.groups
        train, validation, test = (self._part(part, at) for part in PARTS)
        return ClientData(train, validation, test, -1 if groups is None else groups[at])

    def _part(self, part: str, k: int) -> Samples:
        start, stop = (int(n) for n in self._ends[part][k : k + 2])
        return _Lazy(self, part, start, stop)

    def read(self, part: str, kind: str, start: int, stop: int) -> Tensor:
        """Return inputs (``x``) or labels (``y``) of samples ``start`` to ``stop`` of a part of all clients."""
        shape = (stop - start, *(self.shape if kind == "x" else ()))
        path, count, kind_ = self.folder / f"{part}.{kind}", math.prod(shape), np.dtype(self._types[kind])
        out = np.fromfile(path, kind_, count, offset=start * math.prod(shape[1:]) * kind_.itemsize)
        bad = (out < 0) | (out >= self.header.classes) if kind == "y" else ~np.isfinite(out)
        if len(out) < count or bad.any():
            result = out[bad][0] if bad.any() else f"{len(out)} numbers instead of {count}"
            raise DataError(
                f"{path}: samples {start} to {stop - 1} hold {result}, expected "
                f"{f'classes in 0..{self.header.classes - 1}' if kind == 'y' else 'finite numbers'}; write the "
                "federation again"
            )
        return torch.from_numpy(out.reshape(shape))


class _Lazy(Samples):
    """Samples that are read whenever they are asked for."""

    def __init__(self, shelf: Shelf, part: str, start: int, stop: int) -> None:
        for name, value in (("_read", shelf.read), ("_part", part), ("_span", (start, stop))):
            object.__setattr__(self, name, value)

    _read: Callable[[str, str, int, int], Tensor]
    _part: str
    _span: tuple[int, int]

    @property
    def x(self) -> Tensor:
        return self._read(self._part, "x", *self._span)

    @property
    def y(self) -> Tensor:
        return self._read(self._part, "y", *self._span)

    def __len__(self) -> int:
        return self._span[1] - self._span[0]


def is_shelf(path: Path | str) -> bool:
    """Return whether a folder holds a federation that was written by `write`."""
    return (Path(path) / INDEX).is_file()


def write(
    folder: Path | str,
    shards: Iterable[ClientData],
    *,
    classes: int,
    name: str = "own data",
    groups: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    preparation: Preparation | None = None,
) -> Shelf:
    """Write a federation one client after another, so that they need not all be in memory; `Federation.open` reads it.

    Args:
        folder: a new one, or an empty one.
        shards: every client's data.
        classes, name, groups, labels, client_names, preparation: as of a `Federation`.

    Raises:
        DataError: there is something in the folder; no client; data that cannot be used, or that drift.
    """
    folder = Path(folder)
    made = not folder.exists()
    if not made and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        undo.callback(_emptied, folder, made)
        shape, sizes, inputs = _write_parts(folder, shards, classes, name)
        index = Index(
            _FORMAT, name, len(sizes), classes, shape, "", None if groups is None else tuple(groups),
            None if labels is None else tuple(labels), None if client_names is None else tuple(client_names),
            None if preparation is None else preparation.to_json(), inputs,
        )  # fmt: skip
        write_atomic(folder / INDEX, msgspec.json.encode(index))  # to be read back by, as it lies on the disk
        whole = msgspec.structs.replace(index, fingerprint=fingerprint(Shelf(folder), classes))
        write_atomic(folder / INDEX, msgspec.json.encode(whole))
        undo.pop_all()
    return Shelf(folder)


def _emptied(folder: Path, made: bool) -> None:
    """Remove what was written, so that the same folder can be named again."""
    for path in folder.iterdir():
        path.unlink()
    if made:
        folder.rmdir()


def _write_parts(
    folder: Path, shards: Iterable[ClientData], classes: int, name: str
) -> tuple[tuple[int, ...], list[list[int]], Inputs]:
    """Write inputs, labels and numbers of samples; return an input's shape, the clients' sizes and the inputs' type."""
    like: Tensor | None = None
    sizes: list[list[int]] = []
    with ExitStack() as stack:
        files = {
            file: stack.enter_context((folder / file).open("wb"))
            for file in (f"{part}.{kind}" for part in PARTS for kind in "xyn")
        }
        for k, shard in enumerate(shards):
            if shard.drift is not None:
                raise DataError(f"{name}: the data of client {k} drift, which a folder cannot hold; save them without")
            like = shard.train.x[:1].clone() if like is None else like
            refuse_first(name, faults_of_client(shard, k, like, classes))
            sizes.append([len(getattr(shard, part)) for part in PARTS])
            for part, n in zip(PARTS, sizes[-1], strict=True):
                data: Samples = getattr(shard, part)
                files[f"{part}.x"].write(data.x.contiguous().numpy().tobytes())
                files[f"{part}.y"].write(data.y.contiguous().numpy().astype("<i8", copy=False).tobytes())
                files[f"{part}.n"].write(np.array([n], dtype="<i8").tobytes())
    refuse_first(name, [] if sizes else [NO_CLIENT])
    assert like is not None  # of the first client
    return tuple(like.shape[1:]), sizes, "int64" if like.dtype == torch.int64 else "float32"


def fingerprint(clients: Sequence[ClientData], classes: int) -> str:
    """Return 32 hex digits that change when any size, label or input changes; takes about a second per GB."""
    digest = hashlib.blake2b(digest_size=16)
    sizes = [[len(getattr(shard, part)) for part in PARTS] for shard in clients]
    digest.update(repr((classes, tuple(clients[0].train.x.shape[1:]), sizes)).encode())
    for data in (getattr(shard, part) for shard in clients for part in PARTS):
        digest.update(data.y.contiguous().numpy().data)
        digest.update(data.x.contiguous().numpy().reshape(-1).data)  # hashlib wants one dimension
    for k, shard in enumerate(clients):
        if shard.drift is not None:
            digest.update(repr((k, shard.drift[0], fingerprint([shard.drift[1]], classes))).encode())
    return digest.hexdigest()


def _counts(path: Path, clients: int, needed: bool) -> Array:
    """Return the numbers of samples in a file, int64 ``[clients]``; ``needed``: no client is without one."""
    there = path.is_file() and path.stat().st_size == 8 * clients
    result = np.fromfile(path, dtype="<i8").astype(np.int64) if there else np.zeros(0)
    if not there or result.min() < needed or result.max() >= 2**62 // clients:
        raise DataError(
            f"{path}: expected the numbers of samples of {clients} clients, {int(needed)} or more of each; write the "
            "federation again"
        )
    return result
