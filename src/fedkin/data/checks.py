"""Checks of numbers and of clients' data; every message names the place of the value."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
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
    name: str, value: float, *, least: float | None = None, above: float | None = None, below: float | None = None
) -> None:
    """Raise ConfigError unless a setting is finite and within the limits that are given."""
    good = math.isfinite(value) and (least is None or value >= least) and (above is None or value > above)
    if not good or (below is not None and value >= below):
        limits = (("at least", least), ("above", above), ("below", below))
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


def check_names(names: Sequence[str] | None, count: int, where: str, what: str) -> None:
    """Raise DataError unless there are no names, or ``count`` different ones."""
    if names is not None and (len(names) != count or len(set(names)) != count):
        twice = "".join(f", {name!r} twice" for name, times in Counter(names).items() if times > 1)
        raise DataError(f"{where}: {len(names)} names of {what}{twice}, expected {count}; each needs one of its own")


def check_samples(x: Tensor, y: Tensor, classes: int, where: str, *, pixels: bool = False) -> None:
    """Raise DataError unless these are usable inputs and labels: of these types, as many, in range and finite.

    Args:
        x: inputs, float32 or int64 ``[n, *shape]``, or with ``pixels`` also bytes.
        y: labels, int64 ``[n]`` in ``0..classes-1``.
        where: put in front of the message, for example ``client 3, test part``.
    """
    allowed = (torch.float32, torch.int64, torch.uint8) if pixels else (torch.float32, torch.int64)
    if not (
        isinstance(x, Tensor) and x.dtype in allowed and x.ndim > 1
        and isinstance(y, Tensor) and y.dtype == torch.int64 and y.shape == x.shape[:1]
    ):  # fmt: skip
        got = (f"{t.dtype} {list(t.shape)}" if isinstance(t, Tensor) else type(t).__name__ for t in (x, y))
        raise DataError(
            f"{where}: expected inputs [n, ...] as torch.float32 or torch.int64 and labels [n] as torch.int64, got "
            f"{' and '.join(got)}; convert with x.float() and y.long()"
        )
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
        at = int(torch.nonzero((y < 0) | (y >= classes))[0])
        raise DataError(
            f"{where}: label {int(y[at])} of sample {at} is not in 0..{classes - 1}; "
            f"number the {classes} classes from 0 or raise classes"
        )
    _check_finite(x, where)


def check_any(clients: Sequence[object], name: str) -> None:
    """Raise DataError unless there is a client."""
    if not clients:
        raise DataError(f"{name}: a federation needs at least one client, got none")


def check_client_data(shard: ClientData, k: int, like: Tensor, classes: int, name: str) -> None:
    """Raise DataError unless client ``k`` of the federation ``name`` can take part; ``like`` are inputs of client 0."""
    if len(shard.train) == 0:
        raise DataError(f"{name}: client {k} has no training sample; drop this client or give it at least one")
    for part in PARTS:
        data: Samples = getattr(shard, part)
        where = f"{name}: client {k}, {part} part"
        check_samples(data.x, data.y, classes, where)
        check_alike(data.x, like, where, "client 0")
    if shard.drift is not None:
        start, then = shard.drift
        before, after = ([len(getattr(data, part)) for part in PARTS] for data in (shard, then))
        if start < 2 or before != after:
            raise DataError(
                f"{name}: client {k} has {before} samples (train, validation, test) and {after} from round {start} on; "
                "data can drift from round 2 on, to as many samples"
            )
        check_client_data(then, k, like, classes, f"{name}, from round {start} on")


def check_alike(x: Tensor, like: Tensor, where: str, whose: str) -> None:
    """Raise DataError unless inputs are of the shape and type of other ones."""
    if (x.dtype, x.shape[1:]) != (like.dtype, like.shape[1:]):
        raise DataError(
            f"{where}: inputs are {x.dtype} {list(x.shape[1:])}, those of {whose} {like.dtype} {list(like.shape[1:])}; "
            "all need the same shape and type"
        )


def check_one_client(names: Sequence[str] | None, where: str) -> None:
    """Raise DataError if a site's data name more than one client."""
    if names is not None and len(names) > 1:
        raise DataError(
            f"{where} holds {len(names)} clients ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}); a site's "
            "own data are one client's: keep the others apart, or leave out what names them"
        )


def check_scaling(scaling: Scaling, where: str) -> None:
    """Raise ConfigError if a site alone is asked for a scaling that needs all data in one place."""
    if scaling == "pooled":
        raise ConfigError(
            f"{where}: scaling 'pooled' needs the values of all clients in one place, which no site has; "
            'set scaling = "client" in [data], in the simulator too'
        )


def _check_finite(x: Tensor, where: str) -> None:
    width = max(1, x[:1].numel())
    step = max(1, _PIECE // width)
    for start in range(0, len(x), step):
        good = torch.isfinite(x[start : start + step].reshape(-1, width)).all(dim=1)
        if not bool(good.all()):
            at = start + int(torch.nonzero(~good)[0])
            raise DataError(f"{where}: sample {at} holds NaN or an infinite value; remove or fill such values first")


def listed(names: Sequence[str], limit: int = 20) -> str:
    """Return the names, comma separated, the rest counted."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
