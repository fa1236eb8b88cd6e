"""The live page of commands: opened in a browser while they compute, or for runs that are there."""

from __future__ import annotations

import contextlib
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import screen
from fedkin.core.errors import typed
from fedkin.live.process import served
from fedkin.live.server import LiveServer, address, listening, new_token
from fedkin.storage.files import cache_folder, write_atomic


@dataclass(frozen=True)
class PageFlags:
    """The address of the live page, and how it is opened."""

    browser: bool = True
    """Whether a browser is opened for the live page; its address is printed in any case."""
    port: int = 0
    """Port of the live page on this machine, such as 8765 for a tunnel; 0 takes a free one."""


@contextmanager
def followed(folder: Path, page: PageFlags, *, live: bool) -> Iterator[None]:
    """Serve the live page of a folder while a command writes it, if that is wanted, and print its address.

    Raises:
        ConfigError: the port cannot be used.
    """
    if not live:
        yield
        return
    with served(folder, page.port) as where:
        _tell(where, page)
        try:
            yield
        finally:
            if folder.exists():
                screen.note(f"live page again: fedkin runs {typed(folder)} --open")


def browse(folder: Path, page: PageFlags) -> None:
    """Serve the live page of a folder until Ctrl-C.

    Raises:
        ConfigError: the port cannot be used.
    """
    listener, token = listening(page.port), new_token()
    with LiveServer(listener, token, folder) as server:
        _tell(address(listener, token), page)
        screen.note("Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def _tell(where: str, page: PageFlags) -> None:
    screen.note(f"live page: {where}")
    if page.browser and _has_display():
        kept = cache_folder() / "live.html"  # other users can read a browser's arguments, but not this file
        with contextlib.suppress(webbrowser.Error, OSError):  # the address is printed
            write_atomic(kept, f'<meta http-equiv="refresh" content="0;url={where}">'.encode(), private=True)
            webbrowser.open(kept.as_uri())


def _has_display() -> bool:
    """Return whether a browser would have a window: without one, a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
