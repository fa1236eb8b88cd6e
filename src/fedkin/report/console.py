"""The console of everything that is printed: texts are text, never markup, pictures or commands to a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedkin.display import printable

WIDEST = 100
"""Columns of output at most, however wide the window is."""


class Screen(Console):
    """A console that shows a fingerprint's ``:AB:`` and brackets as they are, escapes what would drive a terminal, and
    whose lines are not too long to read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, markup=False, **options)
        if self._width is not None or not self.is_terminal:
            self._width = min(self._width or WIDEST, WIDEST)

    @property  # type: ignore[misc]  # only `width` is ever set
    def size(self) -> ConsoleDimensions:
        """Columns and lines; a window may get other ones while a command works."""
        found = super().size
        return found if self._width is not None else found._replace(width=min(found.width, WIDEST))

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text to print; `Text` would drop some control characters without a trace."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what goes to the terminal: rich's own commands, and texts that are none."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))
