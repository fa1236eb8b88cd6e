"""Data split over clients: the input of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import DataError, counted
from fedkin.core.samples import ClientData, Samples
from fedkin.data import shelf
from fedkin.data.arrays import Array, array_of, numbered_texts, numbers
from fedkin.data.checks import PARTS, faults_of_client, faults_of_names, refuse_first
from fedkin.data.preparation import Preparation
from fedkin.data.splitting import check_fractions, generator, three_parts

__all__ = ["PARTS", "ClientData", "Federation"]


@dataclass(frozen=True)
class Federation:
    """Clients with their data.

    Attributes:
        clients: one shard per client; those of a folder (`open`) are read whenever they are asked for.
        classes: number of classes, the same for all clients.
        name: where the data come from.
        groups: true group of each client, int64 ``[K]``, where the partition knows it.
        labels: names of the classes.
        client_names: names of the clients, where they have any (hospital, writer).
        preparation: how their inputs were made of raw data, where that is known.
        notes: what to know of how the data became clients, such as which were left out.

    Raises:
        DataError: no client, a client without training samples, inputs of different shapes, labels out of range,
            values that are not finite; the message names the client.
    """

    clients: Sequence[ClientData]
    classes: int
    name: str = "data"
    groups: Tensor | None = None
    labels: tuple[str, ...] | None = None
    client_names: tuple[str, ...] | None = None
    preparation: Preparation | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse_first(self.name, self._faults())
        if self.groups is not None and not isinstance(self.clients, shelf.Shelf):
            known = zip(self.clients, self.groups.tolist(), strict=True)
            object.__setattr__(self, "clients", tuple(replace(shard, group=g) for shard, g in known))

    def _faults(self) -> Iterator[str]:
        if not self.clients:
            yield shelf.NO_CLIENT
        if not isinstance(self.clients, shelf.Shelf):  # those were checked when they were written
            for k, shard in enumerate(self.clients):
                yield from faults_of_client(shard, k, self.clients[0].train.x, self.classes)
        if self.groups is not None and (self.groups.shape != (len(self),) or self.groups.dtype != torch.int64):
            got = f"{self.groups.dtype} {list(self.groups.shape)}"
            yield f"groups must be torch.int64 [{len(self)}], one per client, got {got}"
        yield from faults_of_names(self.labels, self.classes, "classes")
        yield from faults_of_names(self.client_names, len(self), "clients")
        if self.preparation is not None and self.preparation.shape != self.shape:
            shapes = list(self.preparation.shape), list(self.shape)
            yield f"its preparation gives inputs of shape {shapes[0]}, the clients' have {shapes[1]}"

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        sizes = f"{counted(len(self), 'client')}, {counted(int(self.sizes().sum()), 'sample')}"
        return f"Federation({self.name!r}, {sizes}, {counted(self.classes, 'class')}, inputs {list(self.shape)})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        if isinstance(self.clients, shelf.Shelf):
            return self.clients.shape
        return tuple(self.clients[0].train.x.shape[1:])

    def counts(self) -> Tensor:
        """Return the number of training samples per client and class, int64 ``[K, classes]``."""
        return torch.stack([shard.train.counts(self.classes) for shard in self.clients])

    def sizes(self) -> Tensor:
        """Return the number of samples per client in train, validation and test, int64 ``[K, 3]``."""
        if isinstance(self.clients, shelf.Shelf):
            return self.clients.sizes.clone()
        return torch.tensor([[len(getattr(shard, part)) for part in PARTS] for shard in self.clients])

    def fingerprint(self) -> str:
        """Return 32 hex digits that change when any size, label or input changes; takes about a second per GB.

        That of a folder is the one found when it was written.
        """
        if isinstance(self.clients, shelf.Shelf):
            return self.clients.header.fingerprint
        return shelf.fingerprint(self.clients, self.classes)

    def groups_in(self, round: int) -> Tensor | None:
        """Return the true group of each client in a round, int64 ``[K]``; None if they are not known.

        They are `groups` unless clients' data drift.
        """
        if self.groups is None or isinstance(self.clients, shelf.Shelf):
            return self.groups
        return torch.tensor([shard.at(round).group for shard in self.clients])

    def save(self, folder: Path | str) -> None:
        """Write the federation to a new folder, for `open`.

        Many clients are written one after another by `fedkin.data.write`.

        Raises:
            DataError: there is something in the folder already, or clients' data drift.
        """
        groups = None if self.groups is None else self.groups.tolist()
        shelf.write(
            folder, self.clients, classes=self.classes, name=self.name, groups=groups, labels=self.labels,
            client_names=self.client_names, preparation=self.preparation,
        )  # fmt: skip

    @classmethod
    def open(cls, folder: Path | str, *, check: bool = False) -> Federation:
        """Return the federation in a folder that `save` or `fedkin.data.write` wrote.

        A client's data are read when it is chosen.

        Args:
            check: read everything now, and make sure that it has not changed since it was written.

        Raises:
            DataError: the folder holds none, or it is not whole.
        """
        result = shelf.Shelf(Path(folder))
        index = result.header
        if check and shelf.fingerprint(result, index.classes) != index.fingerprint:
            raise DataError(f"{folder} has changed since it was written; write the federation again")
        groups = None if index.groups is None else torch.tensor(index.groups, dtype=torch.int64)
        where = f"{Path(folder) / shelf.INDEX}: preparation"
        made = None if index.preparation is None else Preparation.from_json(index.preparation, where)
        return cls(result, index.classes, index.name, groups, index.labels, index.client_names, made)

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[npt.ArrayLike | Tensor, npt.ArrayLike | Tensor]],
        *,
        classes: int | None = None,
        name: str = "own data",
        test: float = 0.2,
        validation: float = 0.1,
        seed: int = 0,
        groups: Sequence[int] | Tensor | None = None,
        labels: Sequence[str] | None = None,
        client_names: Sequence[str] | None = None,
    ) -> Federation:
        """Return a federation of data that are already separate, one ``(x, y)`` per client.

        Args:
            clients: inputs ``[n, *shape]`` and labels ``[n]`` of each client, as arrays, tensors, lists, or tables and
                columns of pandas; labels are whole numbers, or texts at all clients.
            classes: number of classes; None: the largest label plus one, or the number of different texts.
            name: for messages and reports.
            test: fraction of each client's samples for testing.
            validation: fraction for validation.
            seed: of the split.
            groups: true group of each client, where known.
            labels: names of the classes. Default: the texts, sorted.
            client_names: names of the clients.

        Raises:
            DataError: a client without samples, or arrays that cannot be used; the message names the client.
            ConfigError: fractions out of range.
        """
        check_fractions(test, validation)
        places = [f"{name}: client {k}" for k in range(len(clients))]
        ys = [array_of(y, where, "labels") for (_, y), where in zip(clients, places, strict=True)]
        if ys and all(y.dtype.kind == "U" for y in ys):
            _, labels = numbered_texts(np.concatenate(ys), name, labels)
            classes = classes or len(labels)
        parts = [_samples(x, y, where, labels) for (x, _), y, where in zip(clients, ys, places, strict=True)]
        if classes is None:
            classes = 1 + max((int(d.y.max()) for d in parts), default=0)
        shards = []
        for k, data in enumerate(parts):
            rng = generator(seed, "split", k)
            index = three_parts(data.y.numpy(), test=test, validation=validation, rng=rng)
            train, held, tested = (Samples(data.x[i], data.y[i]) for i in index)
            shards.append(ClientData(train, held, tested))
        names = None if labels is None else tuple(labels)
        return cls(
            clients=tuple(shards), classes=classes, name=name, labels=names,
            groups=None if groups is None else torch.as_tensor(groups, dtype=torch.int64),
            client_names=None if client_names is None else tuple(client_names),
            preparation=Preparation("array", tuple(parts[0].x.shape[1:]), names) if parts else None,
        )  # fmt: skip


def _samples(x: object, y: Array, where: str, labels: Sequence[str] | None) -> Samples:
    values = array_of(x, where, "inputs")
    if y.dtype.kind == "U" and labels is not None:
        y = numbered_texts(y, where, labels)[0].numpy()
    if y.dtype.kind not in "iub" or y.size == 0 or values.shape[:1] != y.shape:
        raise DataError(
            f"{where}: expected inputs [n, ...] and a label for each, a whole number, got inputs {list(values.shape)} "
            f"and labels {y.dtype} {list(y.shape)}; drop this client or correct it"
        )
    return Samples(numbers(values), torch.from_numpy(y.astype(np.int64)))
