"""``fedkin node`` and ``fedkin submit``: a client's host, and handing a run to the link."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from fedkin.cli import screen
from fedkin.config import read_toml, settings_from
from fedkin.core import ConfigError, EngineError
from fedkin.hosts.node import Node, run_node
from fedkin.hosts.submit import submit
from fedkin.report.folder import Lines


@dataclass(frozen=True)
class Submission:
    """A run for the link on this machine; it goes on by itself, and this command shows how far it is."""

    file: tyro.conf.Positional[Path]
    """A TOML file as for fedkin run, or the folder of a submitted run to go on in."""
    out: Path | None = None
    """Run folder on this machine. Default: runs/METHOD-TIME."""
    home: Path = Path("fedkin-link/flwr")
    """Flower's folder of the link: flwr in the folder that fedkin link was started with."""
    detach: bool = False
    """Do not wait for the run's end."""
    quiet: bool = False
    """No progress bar."""


def node_command(args: list[str]) -> int:
    """``fedkin node --data PATH --client-id NAME ...``."""
    node = tyro.cli(Node, args=args, prog="fedkin node", description=f"A client's host. {Node.__doc__}")
    return run_node(node, screen.say)


def submit_command(args: list[str]) -> int:
    """``fedkin submit FILE.toml|FOLDER``."""
    asked = tyro.cli(Submission, args=args, prog="fedkin submit", description=Submission.__doc__)
    again = asked.file.is_dir()
    path = asked.file / "config.toml" if again else asked.file
    settings = settings_from(read_toml(path), str(path))
    if again and asked.out is not None:
        raise ConfigError(f"{asked.file} is a run to go on in; leave --out away")
    stamp = Path("runs") / f"{settings.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = asked.file if again else (asked.out or stamp)
    number = submit(settings, folder, asked.home)
    screen.say(f"run {number} is on its way; its folder is {folder}. Go on after a fault: fedkin submit {folder}")
    return 0 if asked.detach else _followed(folder, settings.run.rounds, asked)


def _followed(folder: Path, rounds: int, asked: Submission) -> int:
    """Shows the rounds as they are written; Ctrl-C leaves the run alone."""
    try:
        with screen.bar(rounds, str(folder), quiet=asked.quiet or not sys.stderr.isatty()) as bar:
            done = 0
            while not (folder / "summary.json").exists():
                for line in list(Lines(folder / "rounds.jsonl"))[done:]:
                    bar.at(line)
                    done += 1
                if (folder / "failed.txt").exists():
                    raise EngineError((folder / "failed.txt").read_text(encoding="utf-8").strip())
                time.sleep(0.5)
    except KeyboardInterrupt:
        screen.note(f"the run goes on without this command; look at {folder}, or: fedkin status")
        return 130
    screen.say(f"Everything is in {folder}; pictures and tables: {folder / 'report.html'}")
    return 0
