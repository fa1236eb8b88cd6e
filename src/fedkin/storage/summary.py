"""The summary of a run, with digests of the files of its lines and of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.core.errors import RunFolderError, typed
from fedkin.storage.json_lines import KEYS, Record, require_ended, require_rounds

DIGESTS = "digests"
"""The entry of ``summary.json`` with the digests of the files."""
_SUMMARY = "summary.json"


def with_digests(summary: Mapping[str, Any], files: Mapping[str, str]) -> Record:
    """Return a summary with the digests of a run's files, by the files' names, and of itself."""
    return {**summary, DIGESTS: {**files, _SUMMARY: _digest_of(summary)}}


def without_digests(folder: Path, summary: Record) -> Record:
    """Return a summary as it was before `with_digests`, after the check of it and of the files by their digests.

    Raises:
        RunFolderError: the summary or a file has changed since it was written.
    """
    rest, stored = {k: v for k, v in summary.items() if k != DIGESTS}, summary.get(DIGESTS)
    if not isinstance(stored, dict) or stored.get(_SUMMARY) != _digest_of(rest):
        raise RunFolderError(
            f"{folder / _SUMMARY} has changed since it was written (its digest differs); write it again: "
            f"fedkin resume {typed(folder)}"
        )
    for name, digest in stored.items():
        if name in KEYS:
            require_ended(folder / name, digest)
    require_rounds(folder / "timing.jsonl", int(rest["rounds"]))
    return rest


def _digest_of(summary: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(summary, sort_keys=True).encode(), digest_size=16).hexdigest()
