"""``fedkin node`` and ``fedkin submit``: a client's host, and submission of a run to the link."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro

from fedkin.cli import DIVERGED, OK, screen
from fedkin.cli.flags import options
from fedkin.cli.outcome import chosen_folder
from fedkin.core import ConfigError, EngineError
from fedkin.core.errors import command_line, typed
from fedkin.experiment.progress import Bar
from fedkin.experiment.settings import Settings, code_of, settings_from
from fedkin.record.divergence import sentence
from fedkin.record.result import Result
from fedkin.storage.lock import require_free
from fedkin.storage.toml import read_toml
from fedkin_hosts.control import Control
from fedkin_hosts.node import Node, run_node
from fedkin_hosts.submitted import submit

_LOOK = 30.0  # seconds between two queries whether the link still has the run


@dataclass(frozen=True)
class Submission:
    """Submit a run to the link on this machine; the run continues by itself, and this command shows its progress."""

    file: tyro.conf.Positional[Path]
    """A TOML file as for fedkin run, or the folder of a submitted run to continue."""
    out: Path | None = None
    """Run folder on this machine. Default: runs/METHOD-TIME."""
    link: Path = Path("fedkin-link")
    """The folder that fedkin link was started with, on this machine."""
    ray: bool = False
    """No link and no nodes: simulate the clients of fedkin run with Flower's simulator, which Ray distributes over
    this machine or, with RAY_ADDRESS, over a cluster."""
    detach: bool = False
    """Do not wait for the run's end."""
    quiet: bool = False
    """No progress bar."""


def node_command(args: list[str]) -> int:
    """Run ``fedkin node --data PATH --client-id NAME ...``."""
    node = options(Node, args, "fedkin node", "Take part as a client, with data that stay on this host.")
    run_node(node, screen.say)
    return 0


def submit_command(args: list[str]) -> int:
    """Run ``fedkin submit FILE.toml|FOLDER``."""
    asked = options(Submission, args, "fedkin submit")
    again = asked.file.is_dir()
    path = asked.file / "config.toml" if again else asked.file
    settings = settings_from(read_toml(path), str(path))
    for wrong, why in (
        (again and asked.out is not None, f"{asked.file} is the folder of a run, which is continued; omit --out"),
        (asked.ray and asked.detach, "Flower's simulator runs as long as this command; omit --detach"),
    ):
        if wrong:
            raise ConfigError(why)
    folder = asked.file if again else chosen_folder(asked.out, code_of(settings).attribute)
    require_free(folder)
    if not asked.ray:
        return _submitted(settings, folder, Control.at(asked.link), asked)
    from fedkin_hosts.scaleout import scaled, simulating_link

    waiting, clients = scaled(settings)
    with simulating_link() as link:
        return _submitted(waiting, folder, link, asked, clients)


def _submitted(settings: Settings, folder: Path, link: Control, asked: Submission, nodes: int | None = None) -> int:
    (folder / "failed.txt").unlink(missing_ok=True)
    former = _time_of(folder / "report.html")
    number = submit(settings, folder, link, nodes)
    at = ["--ray"] if asked.ray else [] if asked.link == Submission.link else ["--link", str(asked.link)]
    again = command_line(["fedkin", "submit", str(folder), *at])
    screen.say(f"run {number} is submitted; its folder is {folder}. Continue it after a failure: {again}")
    if asked.detach:
        return 0

    def over() -> str | None:
        """Return how the run ended according to the link; None while it continues."""
        result = (run.status for run in link.runs() if run.number == number)
        status = next(result, "unknown to the link")
        if status in ("pending", "starting", "running"):
            return None
        return status

    try:
        with screen.bar(settings.run.rounds, str(folder), quiet=asked.quiet or not sys.stderr.isatty()) as bar:
            _follow(folder, bar, former, over)
    except KeyboardInterrupt:
        if asked.ray:
            screen.note("stopped; continue with:", again)
        else:
            look = command_line(["fedkin", "status", str(asked.link)])
            screen.note(f"the run continues without this command; see {folder}, or:", look)
        return 130
    screen.say(f"Everything is in {folder}; pictures and tables: {folder / 'report.html'}")
    run = Result.open(folder)
    if run.diverged is not None:
        screen.note(f"fedkin: {sentence(run.diverged, run.rounds)}")
        return DIVERGED
    return OK


def _follow(folder: Path, bar: Bar, former: float, over: Callable[[], str | None]) -> None:
    """Show the rounds as they are written, until the report is, which comes last; `EngineError` if the run failed, or
    its process has ended."""
    done, looked = 0, time.monotonic()
    while _time_of(folder / "report.html") == former:
        for line in Result.open(folder).rounds[done:] if (folder / "config.toml").exists() else ():
            bar.at(line)
            done += 1
        why, failed = "", folder / "failed.txt"
        if failed.exists():
            why = failed.read_text(encoding="utf-8").strip()
        elif time.monotonic() - looked > _LOOK:
            if (status := over()) is not None and _time_of(folder / "report.html") == former:
                why = (
                    f"the run ended without a report; submit {typed(folder)} to continue it. The link's log says why; "
                    f"it reports {status}"
                )
            looked = time.monotonic()
        if why:
            raise EngineError(why)
        time.sleep(0.5)


def _time_of(file: Path) -> float:
    """Return the time of a file's last write; 0 if it does not exist."""
    return file.stat().st_mtime if file.exists() else 0.0
