"""Samples that occur more than once, found by hashing every input once: no pairs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedkin.core.errors import counted
from fedkin.data.checks import PARTS, Indices
from fedkin.data.federation import Federation
from fedkin.inspection.columns import Fields, Mask
from fedkin.inspection.finding import EXAMPLES, Finding, Severity, percent

MOST_VALUES = 2_000_000_000
"""Numbers looked at; of a larger federation only the first clients."""
FEW = 0.01  # up to this share of the samples, copies are a note: they move no accuracy by more than a point
FEW_INPUTS = 0.5  # fewer different inputs than this share: equal ones need not be copies (where columns are not known)
CHANCE = 0.1  # this many of the equal pairs are chance: dependent columns make ten times as many as independent ones
_TEST = PARTS.index("test")


@dataclass(frozen=True)
class HashedSamples:
    """Samples of a federation by the hashes of their inputs; all arrays ``[n]``.

    ``group`` is the number of the input, equal for equal inputs; ``label``, ``client``, ``part`` (in the order of
    `PARTS`) and ``number`` in that part say which sample it is; ``names`` are those of the clients.
    """

    group: Indices
    label: Indices
    client: Indices
    part: Indices
    number: Indices
    names: tuple[str, ...]

    @property
    def groups(self) -> int:
        """Number of different inputs."""
        return int(self.group.max(initial=-1)) + 1

    def places(self, mask: Mask) -> tuple[str, ...]:
        """Return the first groups of equal inputs among these samples: two places of each."""
        chosen = np.flatnonzero(mask)
        result = []
        for group in dict.fromkeys(self.group[chosen[: 20 * EXAMPLES]].tolist()):
            same = np.flatnonzero(mask & (self.group == group))
            result.append(" = ".join(self._place(i) for i in same[:2].tolist()))
            if len(result) == EXAMPLES:
                break
        return tuple(result)

    def _place(self, i: int) -> str:
        return f"{self.names[self.client[i]]}, {PARTS[self.part[i]]} sample {self.number[i]}"


def read_rows(federation: Federation, names: tuple[str, ...]) -> HashedSamples:
    """Hash every input of a federation."""
    hashes, columns = list[npt.NDArray[np.uint64]](), list[Indices]()
    budget, width = MOST_VALUES, max(1, int(np.prod(federation.shape)))
    for k, shard in enumerate(federation.clients):
        if budget <= 0:
            break
        for p, part in enumerate(PARTS):
            data = getattr(shard, part)
            n = len(data)
            if not n:
                continue
            hashes.append(hash_rows(data.x))
            columns.append(np.array([data.y.numpy(), np.full(n, k), np.full(n, p), np.arange(n)], dtype=np.int64))
            budget -= n * width
    group = np.unique(np.concatenate(hashes), return_inverse=True)[1].astype(np.int64)
    label, client, part_of, number = np.concatenate(columns, axis=1)
    return HashedSamples(group, label, client, part_of, number, names)


def hash_rows(x: Tensor) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each row of ``x [n, ...]``; equal rows have equal ones, other rows practically never."""
    rows = np.ascontiguousarray(x.numpy().reshape(len(x), -1)) + np.float32(0)  # -0.0 is 0.0
    blake: Callable[..., hashlib.blake2b] = hashlib.blake2b
    return np.frombuffer(b"".join(blake(row.data, digest_size=8).digest() for row in rows), dtype=np.uint64)


def alike(fields: Fields) -> float:
    """Return the probability that two rows are equal by chance.

    Columns are taken to be independent, each with its own values.
    """
    n = max(1, len(fields.inputs[0].codes)) if fields.inputs else 1
    shares = [np.bincount(f.codes + 1) / n for f in fields.inputs]
    return float(np.prod([(share**2).sum() for share in shares]))


def duplicates(rows: HashedSamples, by_chance: float | None = None) -> list[Finding]:
    """Return findings on copies between train and test and between clients, and on those with two labels.

    ``by_chance`` is the probability that two inputs are equal without being copies, see `alike`; None: not known.
    """
    few = _coarse(rows, by_chance)
    return [finding for check in (_leaking, _between, _conflicts) for finding in check(rows, few)]


def _coarse(rows: HashedSamples, by_chance: float | None) -> bool:
    """Return whether equal inputs may not be copies."""
    n = len(rows.group)
    if by_chance is None:
        return rows.groups < FEW_INPUTS * n
    sizes = np.bincount(rows.group, minlength=1).astype(np.float64)
    pairs = float((sizes * (sizes - 1) / 2).sum())
    return pairs > 0 and by_chance * n * (n - 1) / 2 >= CHANCE * pairs


def _leaking(rows: HashedSamples, few: bool) -> Iterator[Finding]:
    test = rows.part == _TEST
    trained = np.bincount(rows.group[~test], minlength=rows.groups) > 0
    leaking = test & trained[rows.group]
    if not leaking.any():
        return
    width = len(rows.names)
    own = np.unique((rows.group * width + rows.client)[~test])
    at_home = leaking & np.isin(rows.group * width + rows.client, own)
    share = float(leaking.sum() / test.sum())
    tested = np.bincount(rows.group[leaking], minlength=rows.groups) > 0
    yield Finding(
        "train-test-leak",
        _severity(share, few, limit=max(FEW, 0.5 / float(test.sum()) ** 0.5)),
        f"copies of {counted(int(leaking.sum()), 'test sample')} ({percent(share)}) are in a training or "
        f"validation part, of {int(at_home.sum()):,} at the same client",
        "what was trained on is predicted too well: accuracies come out too high",
        "remove the copies; samples that belong together (windows of one recording) are kept on one side of the "
        "split by an array 'unit' in an npz file",
        clients=_clients(rows, leaking),
        rows=rows.places(tested[rows.group]),
    )


def _between(rows: HashedSamples, few: bool) -> Iterator[Finding]:
    pairs = np.unique(rows.group * len(rows.names) + rows.client)
    owners = np.bincount(pairs // len(rows.names), minlength=rows.groups)
    shared = owners[rows.group] > 1
    if not shared.any():
        return
    clients, once = np.unique(rows.client[shared]), np.zeros(len(shared), dtype=np.bool_)
    once[np.unique(rows.group * len(rows.names) + rows.client, return_index=True)[1]] = True  # of two clients
    share = float(shared.mean())
    yield Finding(
        "duplicates-between-clients",
        _severity(share, few),
        f"{counted(int((owners > 1).sum()), 'input')} that more than one client has; {int(shared.sum()):,} "
        f"samples of {counted(len(clients), 'client')} ({percent(share)})",
        "one client's test sample may be another's training sample, and clients look more alike than they are",
        "remove the copies, or give each to one client",
        clients=_clients(rows, shared),
        rows=rows.places(shared & once),
    )


def _conflicts(rows: HashedSamples, few: bool) -> Iterator[Finding]:
    classes = int(rows.label.max(initial=0)) + 1
    pairs = np.unique(rows.group * classes + rows.label)
    torn = np.bincount(pairs // classes, minlength=rows.groups) > 1
    mask = torn[rows.group]
    if not mask.any():
        return
    share = float(mask.mean())
    yield Finding(
        "label-conflict",
        _severity(share, few),
        f"{counted(int(torn.sum()), 'input')} with two labels or more, {int(mask.sum()):,} samples ({percent(share)})",
        "the same input cannot be of two classes: some labels are wrong, or an input that distinguishes them is "
        "missing",
        "correct the labels; where clients mean different things by one label, personalised methods are the answer",
        clients=_clients(rows, mask),
        rows=rows.places(mask),
    )


def _clients(rows: HashedSamples, mask: Mask) -> tuple[str, ...]:
    """Return the clients with most of these samples."""
    counts = np.bincount(rows.client[mask], minlength=len(rows.names))
    order = np.argsort(-counts, kind="stable")
    return tuple(rows.names[k] for k in order[: 2 * EXAMPLES].tolist() if counts[k])


def _severity(share: float, few: bool, limit: float = FEW) -> Severity:
    """Return a note up to ``limit``: of test samples the largest standard error of their accuracy, 0.5 / sqrt(n)."""
    return "note" if few or share <= limit else "warning"
