"""Checks of settings and of samples: faults as sentences that name the place of a value, and one error for them."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError, FedkinError
from fedkin.core.samples import ClientData, Samples

Indices = npt.NDArray[np.int64]
Scaling = Literal["pooled", "client"]
PARTS = ("train", "validation", "test")

NAMELESS = "(empty)"
"""Name of the client of all samples whose field of the client is empty."""
_PIECE = 1 << 24  # values looked at in one go, so that a check of a large set needs little memory


def check_range(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> None:
    """Raise ConfigError unless a setting is finite and within the limits that are given."""
    good = math.isfinite(value) and (least is None or value >= least) and (above is None or value > above)
    if not good or (below is not None and value >= below) or (most is not None and value > most):
        limits = (("at least", least), ("above", above), ("below", below), ("at most", most))
        words = [f"{word} {limit}" for word, limit in limits if limit is not None]
        raise ConfigError(
            f"{name} must be {' and '.join(words if math.isfinite(value) else ['finite', *words])}, got {value}"
        )


@contextmanager
def readable(where: object, what: str, mend: str = "if it is damaged, fetch it again") -> Iterator[None]:
    """Turn any error of a library within this context into a DataError: ``where`` is not ``what``."""
    try:
        yield
    except FedkinError:
        raise
    except Exception as error:  # of a dozen classes, for damaged files and of users' functions
        cause = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise DataError(f"{where}: cannot be read as {what} ({cause}); {mend}") from error


def optional(module: str, extra: str, what: str) -> Any:
    """Return a module of an extra. Raise ConfigError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'{what} needs {module.partition(".")[0]}, which is not installed: pip install "fedkin[{extra}]"'
        ) from error


def is_nameless(name: str) -> bool:
    """Return whether a client is that of the samples that name none; ``subject (empty)`` is, of an array subject."""
    return name == NAMELESS or name.endswith(f" {NAMELESS}")


def refuse_first(where: object, faults: Iterable[str]) -> None:
    """Raise DataError with the first of these faults, if there is one."""
    for fault in faults:
        raise DataError(f"{where}: {fault}")


def faults_of_names(names: Sequence[str] | None, count: int, what: str) -> Iterator[str]:
    """Yield what is wrong with names, unless there are none, or ``count`` different ones."""
    if names is not None and (len(names) != count or len(set(names)) != count):
        twice = "".join(f", {name!r} twice" for name, times in Counter(names).items() if times > 1)
        yield f"{len(names)} names of {what}{twice}, expected {count}; each needs one of its own"


def faults_of_samples(
    x: Tensor, y: Tensor, classes: int, like: Tensor | None = None, whose: str = "", *, pixels: bool = False
) -> Iterator[str]:
    """Yield what makes inputs and labels unusable: their types, numbers, range, values that are not finite.

    Args:
        x: inputs, float32 or int64 ``[n, *shape]``, or with ``pixels`` also bytes.
        y: labels, int64 ``[n]`` in ``0..classes-1``.
        like, whose: inputs whose shape and type they must have, and what these are called.
    """
    allowed = (torch.float32, torch.int64, torch.uint8) if pixels else (torch.float32, torch.int64)
    if not (
        isinstance(x, Tensor) and x.dtype in allowed and x.ndim > 1
        and isinstance(y, Tensor) and y.dtype == torch.int64 and y.shape == x.shape[:1]
    ):  # fmt: skip
        got = (f"{t.dtype} {list(t.shape)}" if isinstance(t, Tensor) else type(t).__name__ for t in (x, y))
        yield (
            "expected inputs [n, ...] as torch.float32 or torch.int64 and labels [n] as torch.int64, got "
            f"{' and '.join(got)}; convert with x.float() and y.long()"
        )
    if len(bad := torch.nonzero((y < 0) | (y >= classes))):
        yield (
            f"label {int(y[bad[0]])} of sample {int(bad[0])} is not in 0..{classes - 1}; number the {classes} classes "
            "from 0 or raise classes"
        )
    step = max(1, _PIECE // max(1, x[:1].numel()))
    for start in range(0, len(x), step):
        if not bool((good := torch.isfinite(x[start : start + step].flatten(1)).all(dim=1)).all()):
            at = start + int(good.int().argmin())
            yield f"sample {at} holds NaN or an infinite value; remove or fill such values first"
    if like is not None and (x.dtype, x.shape[1:]) != (like.dtype, like.shape[1:]):
        yield (
            f"inputs are {x.dtype} {list(x.shape[1:])}, those of {whose} {like.dtype} {list(like.shape[1:])}; all need "
            "the same shape and type"
        )


def faults_of_client(shard: ClientData, k: int, like: Tensor, classes: int) -> Iterator[str]:
    """Yield why client ``k`` of a federation cannot take part; ``like`` are inputs of client 0."""
    if len(shard.train) == 0:
        yield f"client {k} has no training sample; drop this client or give it at least one"
    for part in PARTS:
        data: Samples = getattr(shard, part)
        for fault in faults_of_samples(data.x, data.y, classes, like, "client 0"):
            yield f"client {k}, {part} part: {fault}"
    if shard.drift is not None:
        start, then = shard.drift
        before, after = ([len(getattr(data, part)) for part in PARTS] for data in (shard, then))
        if start < 2 or before != after:
            yield (
                f"client {k} has {before} samples (train, validation, test) and {after} from round {start} on; "
                "data can drift from round 2 on, to as many samples"
            )
        for fault in faults_of_client(then, k, like, classes):
            yield f"from round {start} on: {fault}"


def check_one_client(names: Sequence[str] | None, where: str) -> None:
    """Raise DataError if a site's data name more than one client."""
    if names is not None and len(names) > 1:
        raise DataError(
            f"{where} holds {len(names)} clients ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}); a site's "
            "own data are one client's: keep the others apart, or leave out what names them"
        )


def listed(names: Sequence[str], limit: int = 20) -> str:
    """Return the names, comma separated, the rest counted."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
