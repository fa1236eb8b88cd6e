"""Texts from elsewhere, such as names of clients, as they are shown: on a screen, in a log, in a chart, on a page.

Files of data keep the texts as they are. What is shown passes `printable` where it leaves fedkin.
"""

from __future__ import annotations

import logging
import re
from typing import Any

_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline: they drive a terminal, XML lacks them
    "\u2028\u2029"  # line ends of JavaScript
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # directions: a text reads in another order than it has
    "\ud800-\udfff\ufffe\uffff]"  # no characters: UTF-8 or XML lack them
)


def printable(text: str) -> str:
    r"""Return a text with visible escapes, such as ``\x1b``, for what could drive a terminal or break a file."""
    return _UNSHOWN.sub(lambda result: ascii(result[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""Return the same on one line: tabs and newlines are escapes too."""
    return printable(text).replace("\t", r"\t").replace("\n", r"\n")


def printable_parts(value: Any) -> Any:
    """Return lists and mappings of plain values with `printable` texts."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_parts(key): printable_parts(inner) for key, inner in value.items()}
    return [printable_parts(inner) for inner in value] if isinstance(value, list | tuple) else value


class OneLine(logging.Formatter):
    """A formatter of a line per message, so that a text in a message forges no line of the log."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return time, level and message of a record on one line."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return a traceback, whose lines are kept."""
        return printable(super().formatException(ei))
