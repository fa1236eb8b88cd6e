"""Submitted runs: settings and the path of the run folder, passed through Flower's own configuration of a run."""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from fedkin.core import ConfigError, FedkinError
from fedkin.core.errors import command_line, typed
from fedkin.data import SOURCES
from fedkin.display import OneLine
from fedkin.experiment.settings import Settings, settings_from, table_of
from fedkin.record.lines import RoundLine
from fedkin.record.result import Result
from fedkin.report.content import content_of
from fedkin.report.page import write_page
from fedkin.server import RoundReport
from fedkin.storage.lock import writing
from fedkin.version import __version__
from fedkin_hosts.allowed_code import require_installed
from fedkin_hosts.control import Control
from fedkin_hosts.heads import WireError, convert, head_of
from fedkin_hosts.messages import Channel
from fedkin_hosts.serve import serve

_PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedkin-app"
version = "{__version__}"
description = "Runs the installed fedkin"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedkin"

[tool.flwr.app.components]
serverapp = "fedkin_app.apps:server"
clientapp = "fedkin_app.apps:client"

[tool.flwr.app.config]
fedkin = ""
"""
_APPS = '''"""The apps of the installed fedkin."""

from fedkin_hosts.flower import client_app, server_app

client = client_app()
server = server_app()
'''


def packed_app(code: str = _APPS) -> bytes:
    """Return the app that Flower runs on the server, as Flower packs it; it is the same for every run."""
    from flwr.cli.build import build_fab_from_files  # imported here: it loads Flower's command line

    files = {"pyproject.toml": _PROJECT, "fedkin_app/__init__.py": "", "fedkin_app/apps.py": code}
    return build_fab_from_files({name: text.encode() for name, text in files.items()})[0]


def submit(settings: Settings, folder: Path, link: Control, nodes: int | None = None) -> str:
    """Submit a run to the link and return its number there. The run then continues by itself, in ``folder``.

    Args:
        settings: settings of the run.
        folder: run folder: new, or one to continue in.
        link: operator's access to the link.
        nodes: number of nodes that Flower simulates, each with a share of the run's data, at a link that simulates.

    Raises:
        EngineError: the link refused it.
    """
    word = packed(settings, folder, link.folder) if nodes is None else packed(settings, folder, data=_data(settings))
    return str(link.start(packed_app(), {"fedkin": word}, nodes))


def _data(settings: Settings) -> str:
    """Return a name of the run's data that is valid in any folder."""
    data = settings.data.data
    return data if data in SOURCES else str(Path(data).resolve())


log = logging.getLogger("fedkin_hosts")


@dataclass(frozen=True)
class Virtual:
    """A run without hosts: Flower simulates its nodes, and each works on a share of the run's data.

    Attributes:
        folder: path of the run folder on every machine that simulates.
        data: the data, likewise: a built-in name or a path.
    """

    folder: Path
    data: str


def packed(settings: Settings, folder: Path, link: Path | None = None, data: str | None = None) -> str:
    """Return a run as one word that is safe in any configuration file.

    Args:
        settings, folder: the run and its folder.
        link: folder of the link that it is submitted to; None for ``fedkin-link``, and where nodes are simulated.
        data: data of a run whose nodes Flower simulates.

    Raises:
        ConfigError: its method, network or initial weights are in a file.
    """
    require_installed(settings.method["name"], settings.model.model)
    if settings.model.init_weights is not None:
        raise ConfigError(
            f"[model] init_weights = {settings.model.init_weights!r}: nodes initialise the network themselves and have "
            "no such file; leave it out, or put the values into a network of an installed package"
        )
    decoded = _Word(table_of(settings), str(folder.resolve()), str(link.resolve()) if link else None, data)
    return base64.urlsafe_b64encode(msgspec.json.encode(decoded)).decode().rstrip("=")


def unpacked(word: object) -> tuple[Settings, Path]:
    """Return the settings and the folder of a packed run.

    Raises:
        ConfigError: it is not a result of `packed`.
    """
    decoded = _read(word)
    return settings_from(decoded.settings, "the submitted run"), Path(decoded.folder)


def virtual(word: object) -> Virtual | None:
    """Return what simulated nodes need to know of a run; None if its nodes are real.

    Raises:
        ConfigError: it is not a result of `packed`.
    """
    decoded = _read(word)
    return Virtual(Path(decoded.folder), decoded.data) if decoded.data else None


def link_folder(word: object) -> Path | None:
    """Return the folder of the link that a run was submitted to; None where it is not known.

    Raises:
        ConfigError: it is not a result of `packed`.
    """
    link = _read(word).link
    return Path(link) if link else None


def command(word: object) -> str:
    """Return the command that submits such a run again.

    Raises:
        ConfigError: it is not a result of `packed`.
    """
    decoded = _read(word)
    words = ["fedkin", "submit", str(Path(decoded.folder) / "config.toml")]
    words += ["--ray"] if decoded.data else ["--link", decoded.link] if decoded.link else []
    return command_line(words)


def _log_to(stream: TextIO) -> None:
    """Log fedkin's lines only: Flower's HTTP client logs one for every look at the link, 20 a second."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(message)s"))
    ours = logging.getLogger("fedkin")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)


class _Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """A submitted run as it is stored in Flower's configuration; see `packed`."""

    settings: dict[str, Any]
    folder: str
    link: str | None = None
    data: str | None = None


def _read(word: object) -> _Word:
    try:
        text = base64.urlsafe_b64decode(f"{word}===".encode())  # surplus padding is ignored
        return convert(head_of(text), _Word, "the word")
    except (ValueError, WireError) as e:
        raise ConfigError(f"the submitted run cannot be read ({e}); submit it with: fedkin submit FILE.toml") from e


def run_submitted(post: Channel, word: object) -> Result:
    """Run a submitted run, as returned by `packed`, to its end and write its report."""
    _log_to(sys.stdout)
    with says_why(word):
        settings, folder = unpacked(word)
    log.info("%s, %d rounds, in %s", settings.method["name"], settings.run.rounds, folder)

    def on_round(report: RoundReport, line: RoundLine) -> None:
        accuracy = "" if line.accuracy is None else f", accuracy {100 * line.accuracy:.1f} %"
        log.info("round %d of %d: %d answers%s", report.round, settings.run.rounds, len(report.answered), accuracy)

    with writing(folder), says_why(word):  # a second server of the same run must not write failed.txt for the first
        (folder / "failed.txt").unlink(missing_ok=True)
        result = serve(settings, post, folder, command=command(word), on_round=on_round)
        write_page(folder, content_of([Result.finished_in(folder)]))
    return result


@contextmanager
def says_why(word: object) -> Iterator[None]:
    """Write ``failed.txt`` into the folder of a submitted run if the context ends with an exception of any kind.

    ``fedkin submit`` watches the folder: the process on the server has no terminal.
    """
    try:
        yield
    except BaseException as e:  # Flower stops a run by SystemExit or KeyboardInterrupt
        try:
            folder = Path(_read(word).folder)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "failed.txt").write_text(f"{_why(e, folder)}\n", encoding="utf-8")
        except (ConfigError, OSError) as error:  # the disk is full, for example: only the log is left
            log.error("why the run ended could not be written down: %s", error)
        raise


def _why(e: BaseException, folder: Path) -> str:
    """Return the reason of a run's end in one or two sentences, with the remedy."""
    again = f"complete rounds are kept; continue with: fedkin submit {typed(folder)}"
    if isinstance(e, FedkinError):
        return str(e)
    if isinstance(e, OSError):
        return f"{e}; when that is fixed, {again}"
    if isinstance(e, Exception):
        return (
            f"the run ended with an unexpected error ({type(e).__name__}: {e}); its traceback is in the "
            f"link's log (logs/superlink.log); {again}"
        )
    return f"the run was stopped ({type(e).__name__}); {again}"
