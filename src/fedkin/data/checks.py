"""Checks of arrays that several files of this package need; every message names the place of the value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.core.errors import ConfigError, DataError

Indices = npt.NDArray[np.int64]
Scaling = Literal["pooled", "client"]

NAMELESS = "(empty)"
"""Name of the client of all samples whose field of the client is empty."""
_PIECE = 1 << 24  # values looked at in one go, so that a check of a large set needs little memory


def is_nameless(name: str) -> bool:
    """Return whether a client is that of the samples that name none; ``subject (empty)`` is, of an array subject."""
    return name == NAMELESS or name.endswith(f" {NAMELESS}")


def check_client_names(names: Sequence[str], where: str) -> None:
    """Raise DataError if two clients have the same name."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"{where}: two clients are called {twice[0]!r}; give each a name of its own")


def check_samples(x: Tensor, y: Tensor, classes: int, where: str, *, pixels: bool = False) -> None:
    """Raise DataError unless these are usable inputs and labels.

    Args:
        x: inputs, float32 or int64 ``[n, *shape]``.
        y: labels, int64 ``[n]`` in ``0..classes-1``.
        classes: number of classes.
        where: put in front of the message, for example ``client 3, test part``.
        pixels: inputs may also be bytes, uint8.

    Raises:
        DataError: wrong type, sizes that differ, a label out of range, a value that is not finite.
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
