"""A checkpoint: tensors, their round, and fingerprints of settings and data, in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkin.core.errors import RunFolderError
from fedkin.storage.client_states import NOTHING
from fedkin.storage.files import half_written, write_atomic
from fedkin.storage.tensors import Texts, pack, unpack
from fedkin.storage.toml import differences

_FORMAT = "1"
_ABOUT = "about."  # prefix of a fingerprint's name, for the fingerprinted values
_BANK = "bank."  # prefix of the name of a bank that is in a file
_AGAIN = "start the run again in another folder"
SECOND = "second network"
"""Name of the fingerprint of a second network."""
FILES = "roster.file"
"""The tensor with the numbers of clients' files, where their states are stored in files."""


@dataclass(frozen=True)
class Checkpoint:
    """The file of a checkpoint, which may not exist yet."""

    path: Path

    def write(
        self,
        round: int,
        tensors: Mapping[str, Tensor],
        marks: Mapping[str, str],
        *,
        about: Mapping[str, str],
        banks: Mapping[str, str],
        more: Mapping[str, str],
        sync: bool = False,
    ) -> None:
        """Replace the file.

        Args:
            round: round after which the tensors were taken.
            tensors: tensors by name.
            marks: fingerprints by name.
            about: fingerprinted values, as JSON, by the names of the fingerprints.
            banks: places of banks that are not among the tensors.
            more: other texts.
            sync: return only when it would survive a power failure.
        """
        texts = {"format": _FORMAT, "round": str(round), **marks, **{_BANK + n: text for n, text in banks.items()}}
        write_atomic(self.path, pack(tensors, {**texts, **about_texts(about), **more}), private=True, sync=sync)

    def read(self, marks: Mapping[str, str], about: Mapping[str, str]) -> tuple[Texts, dict[str, Tensor]]:
        """Return the texts and tensors of the checkpoint.

        Args:
            marks: required fingerprints.
            about: fingerprinted values.

        Raises:
            RunFolderError: the file is damaged, or a fingerprint differs; the message names the differences.
        """
        texts, tensors = unpack(self.path, _AGAIN)
        if texts.get("format") != _FORMAT:
            raise RunFolderError(
                f"{self.path} is a checkpoint of format {texts.get('format')!r}, expected {_FORMAT!r}; {_AGAIN}"
            )
        for name, mark in marks.items():
            if texts.get(name) != mark:
                how = _differ(texts.get(_ABOUT + name), about.get(name))
                raise RunFolderError(
                    f"{self.path.parent}: the data have changed since this run began, or are others: {how}; restore "
                    "them, or start in another folder"
                    if name == "data"
                    else f"{self.path} belongs to a run with another {name}: {how}; restore it, or start in another "
                    "folder"
                )
        return texts, tensors

    def relabel(self, texts: Mapping[str, str]) -> None:
        """Replace the texts of the file; its tensors stay. Does nothing if the file does not exist.

        Raises:
            RunFolderError: it is damaged.
        """
        if self.path.exists():
            before, tensors = self.read({}, {})
            write_atomic(self.path, pack(tensors, {**before, **texts}), private=True)

    def copy_to(self, other: Checkpoint) -> None:
        """Keep this checkpoint as another file, which is unchanged when this one is replaced."""
        new = half_written(other.path)
        try:
            new.unlink(missing_ok=True)
            os.link(self.path, new)  # the next checkpoint replaces the name, not the content
            os.replace(new, other.path)
        except OSError:  # a file system without links
            write_atomic(other.path, self.path.read_bytes(), private=True)
        finally:
            new.unlink(missing_ok=True)

    def round(self) -> int | None:
        """Return the round of the checkpoint; None if the file is missing or damaged."""
        return self._round_and_whole()[0]

    def is_whole_of(self, round: int) -> bool:
        """Return whether the checkpoint is of this round and contains every state and bank itself."""
        return self._round_and_whole() == (round, True)

    def clients(self) -> int:
        """Return the number of clients that had joined; 0 without a file.

        Raises:
            RunFolderError: it is damaged.
        """
        if not self.path.exists():
            return 0
        try:
            with safe_open(self.path, framework="pt") as file:
                return int(file.get_slice("roster.ack").get_shape()[0])
        except (SafetensorError, OSError, ValueError) as e:
            raise RunFolderError(f"{self.path} is damaged ({e}); {_AGAIN}") from e

    def _round_and_whole(self) -> tuple[int | None, bool]:
        try:
            with safe_open(self.path, framework="pt") as file:
                texts = file.metadata() or {}
                elsewhere = any(name.startswith(_BANK) for name in texts)
                if FILES in file.keys():  # noqa: SIM118 - not a dict
                    elsewhere |= bool((file.get_tensor(FILES) != NOTHING).any())
                return int(texts["round"]), not elsewhere
        except (SafetensorError, OSError, ValueError, KeyError):
            return None, False


def about_texts(about: Mapping[str, str]) -> Texts:
    """Return the fingerprinted values as texts of a checkpoint."""
    return {_ABOUT + name: text for name, text in about.items()}


def banks_of(texts: Mapping[str, str]) -> Texts:
    """Return the places of banks that are in files, by their names."""
    return {name.removeprefix(_BANK): text for name, text in texts.items() if name.startswith(_BANK)}


def _differ(there: str | None, here: str | None) -> str:
    """Return the differences between two fingerprinted values; None is one without any."""
    found = differences(json.loads(there or "{}"), json.loads(here or "{}"))
    return found or "sizes and names are the same, values are not"
