"""The summary of a run, with digests of the files of its lines and of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedkin.core.errors import RunFolderError, typed
from fedkin.storage.json_lines import KEYS, Record, require_ended, require_rounds

DIGESTS = "digests"
"""The entry of ``summary.json`` with the digests of the files."""
_SUMMARY = "summary.json"
_UNCHECKED = "unchecked"


@contextmanager
def understood(folder: Path, checked: bool) -> Iterator[None]:
    """Turn errors of a folder's content into `RunFolderError`, for lines that were not checked by digests.

    Raises:
        RunFolderError: a value is of another type, or missing.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        if checked:
            raise
        raise RunFolderError(
            f"{folder} was written by a version of fedkin without digests, and its lines or its summary do not hold "
            f"what is expected ({type(e).__name__}: {e}); restore the folder from a copy"
        ) from e


def with_digests(summary: Mapping[str, Any], files: Mapping[str, str], unchecked: int) -> Record:
    """Return a summary with the digests of a run's files and of itself.

    Args:
        summary: the summary.
        files: digests by the files' names.
        unchecked: round up to which an older version wrote the lines, without digests.
    """
    older = {_UNCHECKED: unchecked} if unchecked else {}
    return {**summary, DIGESTS: {**files, _SUMMARY: _digest_of(summary), **older}}


def without_digests(folder: Path, summary: Record) -> tuple[Record, bool]:
    """Return a summary as it was before `with_digests`, and whether it and the files were checked by digests.

    Folders of older versions have none.

    Raises:
        RunFolderError: the summary or a file has changed since it was written.
    """
    if DIGESTS not in summary:
        return summary, False
    rest, stored = {k: v for k, v in summary.items() if k != DIGESTS}, summary[DIGESTS]
    if not isinstance(stored, dict) or stored.get(_SUMMARY) != _digest_of(rest):
        raise RunFolderError(
            f"{folder / _SUMMARY} has changed since it was written (its digest differs); write it again: "
            f"fedkin resume {typed(folder)}"
        )
    for name, digest in stored.items():
        if name in KEYS:
            require_ended(folder / name, digest)
    require_rounds(folder / "timing.jsonl", int(rest["rounds"]))
    return rest, _UNCHECKED not in stored


def _digest_of(summary: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(summary, sort_keys=True).encode(), digest_size=16).hexdigest()
