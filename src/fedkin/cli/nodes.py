"""``fedkin node`` and ``fedkin submit``: a client's host, and handing a run to the link."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro

from fedkin.cli import screen
from fedkin.cli.exit_codes import DIVERGED, OK
from fedkin.core import ConfigError, EngineError
from fedkin.deploy.control import Control
from fedkin.deploy.node import Node, run_node
from fedkin.deploy.offline import check_version
from fedkin.deploy.submit import submit
from fedkin.evaluate.divergence import diverged, sentence
from fedkin.experiment.settings import Settings, settings_from
from fedkin.storage.json_lines import Lines
from fedkin.storage.lock import require_free
from fedkin.storage.toml import read_toml

_LOOK = 30.0  # seconds between two questions to the link whether the run is still there


@dataclass(frozen=True)
class Submission:
    """A run for the link on this machine; it goes on by itself, and this command shows how far it is."""

    file: tyro.conf.Positional[Path]
    """A TOML file as for fedkin run, or the folder of a submitted run to go on in."""
    out: Path | None = None
    """Run folder on this machine. Default: runs/METHOD-TIME."""
    link: Path = Path("fedkin-link")
    """The folder that fedkin link was started with, on this machine."""
    ray: bool = False
    """No link and no nodes: simulate the clients of fedkin run with Flower's simulator, which Ray spreads over this
    machine or, with RAY_ADDRESS, over a cluster."""
    detach: bool = False
    """Do not wait for the run's end."""
    quiet: bool = False
    """No progress bar."""


def node_command(args: list[str]) -> int:
    """``fedkin node --data PATH --client-id NAME ...``."""
    node = tyro.cli(Node, args=args, prog="fedkin node", description=f"A client's host. {Node.__doc__}")
    run_node(node, screen.say)
    return 0


def submit_command(args: list[str]) -> int:
    """``fedkin submit FILE.toml|FOLDER``."""
    asked = tyro.cli(Submission, args=args, prog="fedkin submit", description=Submission.__doc__)
    check_version()
    from fedkin.deploy.link import find_link  # after the check: it needs a package that comes with Flower

    again = asked.file.is_dir()
    path = asked.file / "config.toml" if again else asked.file
    settings = settings_from(read_toml(path), str(path))
    if again and asked.out is not None:
        raise ConfigError(f"{asked.file} is a run to go on in; leave --out away")
    stamp = Path("runs") / f"{settings.code.attribute}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = asked.file if again else (asked.out or stamp)
    require_free(folder)
    (folder / "failed.txt").unlink(missing_ok=True)
    if not asked.ray:
        return _submitted(settings, folder, find_link(asked.link), asked)
    from fedkin.deploy.scaleout import scaled, simulating_link

    if asked.detach:
        raise ConfigError("Flower's simulator runs as long as this command; leave --detach away")
    scale = scaled(settings)
    with simulating_link() as link:
        return _submitted(scale.settings, folder, link, asked, scale.clients)


def _submitted(settings: Settings, folder: Path, link: Control, asked: Submission, nodes: int | None = None) -> int:
    former = _time_of(folder / "report.html")
    number = submit(settings, folder, link, nodes)
    at = " --ray" if asked.ray else "" if asked.link == Submission.link else f" --link {asked.link}"
    screen.say(f"run {number} is on its way; its folder is {folder}. Go on after a fault: fedkin submit {folder}{at}")
    if asked.detach:
        return 0

    def over() -> str | None:
        """How the link says that the run ended; None while it goes on."""
        found = (str(run["status"]) for run in link.runs() if str(run["run-id"]) == number)
        status = next(found, "unknown to the link")
        if status in ("pending", "starting", "running"):
            return None
        return f"{status}; the run's last words:\n{link.last_words(number)}"

    try:
        with screen.bar(settings.run.rounds, str(folder), quiet=asked.quiet or not sys.stderr.isatty()) as bar:
            _follow(folder, bar, former, over)
    except KeyboardInterrupt:
        if asked.ray:
            screen.note(f"stopped; go on with: fedkin submit {folder} --ray")
        else:
            screen.note(f"the run goes on without this command; look at {folder}, or: fedkin status {asked.link}")
        return 130
    screen.say(f"Everything is in {folder}; pictures and tables: {folder / 'report.html'}")
    if (first := diverged(Lines(folder / "rounds.jsonl"))) is not None:
        screen.note(f"fedkin: {sentence(first)}")
        return DIVERGED
    return OK


def _follow(folder: Path, bar: screen.Bar, former: float, over: Callable[[], str | None]) -> None:
    """Shows the rounds as they are written, until the report is, which comes last.

    Raises:
        EngineError: the run failed, or its process is gone.
    """
    done, looked = 0, time.monotonic()
    while _time_of(folder / "report.html") == former:
        for line in list(Lines(folder / "rounds.jsonl"))[done:]:
            bar.at(line)
            done += 1
        if (folder / "failed.txt").exists():
            raise EngineError((folder / "failed.txt").read_text(encoding="utf-8").strip())
        if time.monotonic() - looked > _LOOK:
            if (status := over()) is not None and _time_of(folder / "report.html") == former:
                raise EngineError(f"the run ended without a report; submit {folder} to go on. The link says: {status}")
            looked = time.monotonic()
        time.sleep(0.5)


def _time_of(file: Path) -> float:
    """When a file was written; 0 if it is not there."""
    return file.stat().st_mtime if file.exists() else 0.0
