"""Submitted runs: settings and the path of the run folder, passed through Flower's own configuration of a run."""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from fedkin_hosts.heads import convert, head_of
from fedkin_hosts.messages import Channel
from fedkin_hosts.serve import serve

log = logging.getLogger("fedkin_hosts")
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

    With a number of ``nodes`` the link simulates them, each with a share of the run's data.

    Raises:
        EngineError: the link refused it.
    """
    data = settings.data.data if settings.data.data in SOURCES else str(Path(settings.data.data).resolve())
    run = Submitted.of(settings, folder, data=data) if nodes else Submitted.of(settings, folder, link.folder)
    return str(link.start(packed_app(), {"fedkin": run.word}, nodes))


class Submitted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run as one word that is safe in Flower's configuration.

    Attributes:
        settings: settings of the run as tables.
        folder: the run folder, on every machine that simulates.
        link: folder of the link that it is submitted to; None for ``fedkin-link``, and where nodes are simulated.
        data: data of a run whose nodes Flower simulates, a built-in name or a path; None where they are real.
    """

    settings: dict[str, Any]
    folder: str
    link: str | None = None
    data: str | None = None

    @classmethod
    def of(cls, settings: Settings, folder: Path, link: Path | None = None, data: str | None = None) -> Submitted:
        """Return a run for submission; `ConfigError` if its method, network or initial weights are in a file."""
        require_installed(settings.method["name"], settings.model.model)
        if settings.model.init_weights is not None:
            raise ConfigError(
                f"[model] init_weights = {settings.model.init_weights!r}: nodes initialise the network themselves and "
                "have no such file; leave it out, or put the values into a network of an installed package"
            )
        return cls(table_of(settings), str(folder.resolve()), str(link.resolve()) if link else None, data)

    @classmethod
    def read(cls, word: object) -> Submitted:
        """Read the word that `word` returned; `ConfigError` if it is another one."""
        try:
            text = base64.urlsafe_b64decode(f"{word}===".encode())  # surplus padding is ignored
            return convert(head_of(text), cls, "the word")
        except ValueError as e:
            raise ConfigError(f"the submitted run cannot be read ({e}); submit it with: fedkin submit FILE.toml") from e

    @property
    def word(self) -> str:
        """The run as one word."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @property
    def command(self) -> str:
        """The command that submits such a run again."""
        words = ["fedkin", "submit", f"{self.folder}/config.toml"]
        return command_line([*words, *(["--ray"] if self.data else ["--link", self.link] if self.link else [])])


def _log_to(stream: TextIO) -> None:
    """Log fedkin's lines only: Flower's HTTP client logs one for every look at the link, 20 a second."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(message)s"))
    ours = logging.getLogger("fedkin")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)


def run_submitted(post: Channel, word: object) -> Result:
    """Run a submitted run to its end and write its report."""
    _log_to(sys.stdout)
    with says_why(word):
        run = Submitted.read(word)
        settings, folder = settings_from(run.settings, "the submitted run"), Path(run.folder)
    log.info("%s, %d rounds, in %s", settings.method["name"], settings.run.rounds, folder)

    def on_round(report: RoundReport, line: RoundLine) -> None:
        accuracy = "" if line.accuracy is None else f", accuracy {100 * line.accuracy:.1f} %"
        log.info("round %d of %d: %d answers%s", report.round, settings.run.rounds, len(report.answered), accuracy)

    with writing(folder), says_why(word):  # a second server of the same run must not write failed.txt for the first
        (folder / "failed.txt").unlink(missing_ok=True)
        result = serve(settings, post, folder, command=run.command, on_round=on_round)
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
            folder = Path(Submitted.read(word).folder)
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
