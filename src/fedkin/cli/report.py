"""``fedkin report``: write the page of a run or a comparison again, its figures and tables as files; ``--watch``."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from fedkin.cli import screen
from fedkin.cli.flags import FigureFlags, read
from fedkin.cli.outcome import Outcome, base_of, require_folder_name, write_outcome
from fedkin.core import RunFolderError
from fedkin.core.errors import ConfigError, FedkinError, counted, typed
from fedkin.experiment.compare import known, label_of, result_of, run_name
from fedkin.experiment.listing import compared, require_run_or_comparison
from fedkin.methods import ALONE
from fedkin.record.files import COMMIT, read_commit
from fedkin.record.result import Result
from fedkin.report.content import Caveat, content_of
from fedkin.report.page import write_files, write_page
from fedkin.report.publication_tables import require_decimals
from fedkin.storage import lock
from fedkin.storage.folders import reading, require_folder
from fedkin.storage.toml import read_toml

HOST = "127.0.0.1"
_LOOK = 2.0  # seconds from one look at the folder to the next
_AGAIN = "15"  # seconds after which a browser asks again while runs go on
_SHARE = 5  # times the seconds of writing the page until it is written again


@dataclass(frozen=True, kw_only=True)
class ReportFlags(FigureFlags):
    """Write the page, picture and tables of a run or comparison again, from the files in its folder."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """A run folder, or the folder of a comparison."""
    figures: Path | None = None
    """Also write every figure as SVG and PDF and every table as CSV into this folder."""
    decimals: int = 1
    """Of a comparison: decimal places in table.md and table.tex."""
    watch: bool = False
    """While runs go on, write the page again whenever a round is done, and show it to browsers of this machine."""
    port: int = 0
    """Port of the page with --watch, such as 8765 for a tunnel; 0 takes a free one."""

    def __post_init__(self) -> None:
        require_decimals(self.decimals)


def report_command(args: list[str]) -> int:
    """Run ``fedkin report FOLDER [flags]``."""
    flags = read(ReportFlags, args, "fedkin report", "the folder of a run or a comparison")
    folder = flags.folder
    if flags.figures is not None:
        require_folder_name(flags.figures, "--figures")
    require_folder(folder)
    with reading(folder):
        if flags.watch:
            watch(folder, flags.port, lambda: _so_far(folder, flags))
            return 0
        return _report(folder, flags)


def _report(folder: Path, flags: ReportFlags) -> int:
    require_run_or_comparison(folder)
    if (folder / "compare.toml").is_file():
        result = _comparison(flags)
        report, page = result.report, result.page
    else:
        run = _read(folder, flags)
        report = content_of([run], base=base_of(run))
        page = write_page(folder, report)
    screen.say(f"Pictures and tables: {page}")
    if flags.figures is not None:
        paths = write_files(flags.figures, report)
        screen.say(f"{len(paths)} figures and tables: {flags.figures}")
    return 0


def _comparison(flags: ReportFlags) -> Outcome:
    baseline, places = _planned(flags.folder)
    again = f"fedkin resume {typed(flags.folder)}"
    done = [place for place in places if read_commit(place).ended]
    if not done:
        raise RunFolderError(f"{flags.folder} holds no finished run; continue with: {again}")
    if len(done) < len(places):
        screen.note(f"{len(done)} of {len(places)} runs finished; the others with:", again)
    runs = [_read(place, flags) for place in done]
    return write_outcome(baseline, flags.folder, runs, flags.decimals)


def _planned(folder: Path) -> tuple[str, list[Path]]:
    """Return the reference of a comparison, and the folder of each of its runs."""
    table = read_toml(folder / "compare.toml")  # as it is, since a plan would load user-defined code
    names = compared(tuple(map(known, table["methods"])), bool(table.get("safe")))
    places = [folder / run_name(name, seed) for seed in table.get("seeds", [0]) for name in names]
    return label_of(table.get("baseline", ALONE[0]), names), places


def _so_far(folder: Path, flags: ReportFlags) -> Path:
    """Write the page of the rounds that are done."""
    if not (folder / "compare.toml").is_file():
        run = replace(Result.open(folder), at_best=flags.at_best)
        return write_page(folder, content_of([run], base=base_of(run)))
    baseline, places = _planned(folder)
    begun = (Result.open(place) for place in places if (place / "config.toml").is_file())
    runs = [replace(run, at_best=flags.at_best) for run in begun if run.rounds]
    content, going = result_of(baseline, runs, folder).content, len(places) - sum(bool(run.ended) for run in runs)
    said = f"{counted(going, 'run')} of {len(places)} will have more rounds: figures are of those that are done."
    caveats = [*[Caveat("runs that go on", said)][: going > 0], *content.caveats]
    return write_page(folder, replace(content, caveats=caveats))


def _read(folder: Path, flags: ReportFlags) -> Result:
    return replace(Result.finished_in(folder), at_best=flags.at_best)


# ---- --watch: the page of runs that go on, served to browsers of this machine
class PageServer(ThreadingHTTPServer):
    """Serves one page on this machine alone.

    Attributes:
        text: the page; going: whether it will change.
    """

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # where it would let other programs take the port as well

    def __init__(self, port: int) -> None:
        super().__init__((HOST, port), PageRequest)
        self.text, self.going = b"<!DOCTYPE html><title>fedkin</title>No round is done yet.", True


class PageRequest(BaseHTTPRequestHandler):
    """One request of a browser."""

    server: PageServer
    timeout = 30
    server_version, sys_version = "fedkin", ""

    def do_GET(self) -> None:
        """Answer with the page, under its own name only: a web page elsewhere could lead its name to this machine."""
        named = (self.headers.get("Host") or "").partition(":")[0]
        if named not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self.send_response(HTTPStatus.OK)
            for name, value in (("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store"),
                                ("Content-Length", str(len(self.server.text))), ("X-Frame-Options", "DENY"),
                                ("Cross-Origin-Resource-Policy", "same-origin")):  # fmt: skip
                self.send_header(name, value)
            if self.server.going:
                self.send_header("Refresh", _AGAIN)
            self.end_headers()
            self.wfile.write(self.server.text)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: standard error belongs to the command."""


def watch(folder: Path, port: int, write: Callable[[], Path]) -> None:
    """Serve the page of a folder and write it again whenever a round is done, until Ctrl-C.

    Args:
        folder: a run folder, or that of a comparison.
        port: port of the page; 0 takes a free one.
        write: writes the page and returns its path.

    Raises:
        ConfigError: the port cannot be used.
    """
    try:
        server = PageServer(port)
    except (OSError, OverflowError) as e:
        raise ConfigError(f"port {port} cannot be used ({e}); name another with --port, or none") from e
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        screen.note(f"page: http://{HOST}:{server.server_port}/ (Ctrl-C ends it)")
        before: object = None
        try:
            while True:
                now, going, began = _watched(folder), lock.owner(folder / lock.NAME) is not None, time.monotonic()
                try:
                    if now != before:
                        server.text, before = write().read_bytes(), now
                    server.going = going
                except FedkinError:
                    if not going:  # otherwise a line may be half written
                        raise
                time.sleep(max(_LOOK, _SHARE * (time.monotonic() - began)))
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()


def _watched(folder: Path) -> list[tuple[str, int, int]]:
    """Return what changes with each round."""
    commits = [path for path in (folder / COMMIT, *folder.glob(f"*/{COMMIT}")) if path.exists()]
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in commits)
