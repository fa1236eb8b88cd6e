"""Arrays, lists and columns of pandas that a program gives in the place of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core.errors import DataError
from fedkin.data.pixels import Array


def array_of(values: Any, where: str, what: str) -> Array:
    """Return what a program gives as inputs, labels, clients or units (``what``) as an array of numbers or of texts.

    Raises:
        DataError: it holds other objects or objects of several types, or texts where these are not taken.
    """
    try:
        found = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {what} cannot be made an array: {error}") from error
    texts, got = what.startswith(("label", "client", "unit")), f"one of {found.dtype}"
    if found.dtype.kind == "O":
        kinds = sorted({type(value).__name__ for value in found.flat})
        found, got = found.astype(str) if kinds == ["str"] else found, f"Python objects ({', '.join(kinds)})"
    if found.dtype.kind in ("iufbUS" if texts else "iufb"):
        return found
    wanted = "numbers, or one of texts alone" if texts else "numbers"
    columns = "; fedkin.load(table, target=COLUMN) reads columns of texts" if hasattr(values, "columns") else ""
    raise DataError(
        f"{where}: {what} must be an array of {wanted}, got {got}; give all of them one type, for example by "
        f"astype{columns}"
    )


def numbered_texts(values: Array, where: str, names: Sequence[str] | None = None) -> tuple[Tensor, tuple[str, ...]]:
    """Return the place of each label among the names of the classes, int64 ``[n]``, and these; by default they are
    sorted.

    Raises:
        DataError: a label that is not among them.
    """
    known = tuple(sorted({str(text) for text in values.flat})) if names is None else tuple(names)
    place = {name: number for number, name in enumerate(known)}
    if unknown := sorted({str(text) for text in values.flat} - place.keys()):
        raise DataError(f"{where}: label {unknown[0]!r} is not one of the classes, {', '.join(known)}")
    return torch.tensor([place[str(text)] for text in values.flat], dtype=torch.int64), known
