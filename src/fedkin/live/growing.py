"""New lines of a JSON-lines file that another process is writing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedkin.storage.json_lines import Record

_TAIL = 256  # bytes before the known end by which a file is recognised
_WIDEST = 1 << 28  # bytes of a line without an end that are read again at most


class GrowingFile:
    """A file of which each call reads only what was appended since the last call.

    Attributes:
        damaged: number of complete lines that are not JSON objects; they are skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.damaged = path, 0
        self._end, self._tail = 0, b""

    def catch_up(self, take: Callable[[Record], None], forget: Callable[[], None]) -> None:
        """Pass on the new complete lines; an incomplete last line waits for its end.

        Args:
            take: called with each new line.
            forget: called first if the file no longer begins with what was read: it was cut back or replaced, as when
                a run is resumed. All its lines are then new.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._restart(forget)
            return
        with file:
            if not self._continues(file):
                self._restart(forget)
            file.seek(self._end)
            while (raw := file.readline(_WIDEST)).endswith(b"\n"):
                self._end, self._tail = self._end + len(raw), (self._tail + raw[-_TAIL:])[-_TAIL:]
                self._pass_on(raw, take)

    def _continues(self, file: BinaryIO) -> bool:
        if os.fstat(file.fileno()).st_size < self._end:
            return False
        file.seek(self._end - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _restart(self, forget: Callable[[], None]) -> None:
        if self._end:
            forget()
        self._end, self._tail, self.damaged = 0, b"", 0

    def _pass_on(self, raw: bytes, take: Callable[[Record], None]) -> None:
        try:
            record = json.loads(raw)
            if not isinstance(record, dict):
                raise TypeError(f"a line must be an object, got {type(record).__name__}")
            take(record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.damaged += 1  # fedkin report names the line; the page goes on
