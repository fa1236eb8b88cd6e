"""What a submitted run is: settings and the place of its folder, through Flower's own configuration of a run."""

from __future__ import annotations

import base64
import json
import logging
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from fedkin.config import Settings, settings_from
from fedkin.core import ConfigError, FedkinError
from fedkin.course import Result
from fedkin.hosts.own import require_installed
from fedkin.hosts.post import Post
from fedkin.hosts.serve import serve
from fedkin.locks import writing
from fedkin.report.page import write_page


@dataclass(frozen=True)
class Virtual:
    """A run without hosts: Flower simulates its nodes, and each works on a share of the run's data.

    Attributes:
        folder: the run folder, where every machine that simulates finds it.
        data: the data, likewise: a built-in name or a path.
    """

    folder: Path
    data: str


def packed(settings: Settings, folder: Path, link: Path | None = None, data: str | None = None) -> str:
    """A run as one word that survives any configuration file.

    Args:
        settings, folder: the run and its folder.
        link: the folder of the link it is submitted to; None for ``fedkin-link``, and where nodes are simulated.
        data: of a run whose nodes Flower simulates.

    Raises:
        ConfigError: its method, network or start is in a file.
    """
    require_installed(settings.name, settings.model.model)
    if settings.model.init_weights is not None:
        raise ConfigError(
            f"[model] init_weights = {settings.model.init_weights!r}: nodes make the start themselves and have no such "
            "file; leave it out, or put the values into a network of an installed package"
        )
    told = {"settings": settings.table(), "folder": str(folder.resolve())}
    told |= {"link": str(link.resolve())} if link else {}
    told |= {"data": data} if data else {}
    return base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")


def unpacked(word: object) -> tuple[Settings, Path]:
    """The run again.

    Raises:
        ConfigError: it is not what `packed` gave.
    """
    told = _told(word)
    return settings_from(told["settings"], "the submitted run"), Path(str(told["folder"]))


def virtual(word: object) -> Virtual | None:
    """What simulated nodes need to know of a run; None if its nodes are real.

    Raises:
        ConfigError: it is not what `packed` gave.
    """
    told = _told(word)
    return Virtual(Path(str(told["folder"])), str(told["data"])) if "data" in told else None


def link_folder(word: object) -> Path | None:
    """The folder of the link that a run was submitted to; None where it is not known.

    Raises:
        ConfigError: it is not what `packed` gave.
    """
    told = _told(word)
    return Path(str(told["link"])) if "link" in told else None


def command(word: object) -> str:
    """What submits such a run once more.

    Raises:
        ConfigError: it is not what `packed` gave.
    """
    told = _told(word)
    words = ["fedkin", "submit", str(Path(str(told["folder"])) / "config.toml")]
    words += ["--ray"] if "data" in told else ["--link", str(told["link"])] if "link" in told else []
    return shlex.join(words)


def _log_to(stream: TextIO) -> None:
    """Our own lines and nobody else's: Flower's client of HTTP has one for every look at the link, 20 a second."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("fedkin")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)


def _told(word: object) -> dict[str, Any]:
    try:
        told = json.loads(base64.urlsafe_b64decode(f"{word}===".encode()))  # more padding than it lacks does no harm
        return {"settings": told["settings"], "folder": told["folder"], **told}
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"the submitted run cannot be read ({e}); submit it with: fedkin submit FILE.toml") from e


def run_submitted(post: Post, word: object) -> Result:
    """Plays a submitted run, as `packed`, to its end and writes its report."""
    _log_to(sys.stdout)
    settings, folder = unpacked(word)
    log = logging.getLogger("fedkin.hosts")
    log.info("%s, %d rounds, in %s", settings.name, settings.run.rounds, folder)

    def on_round(report: Any, line: Mapping[str, Any]) -> None:
        accuracy = f", accuracy {100 * line['accuracy']:.1f} %" if line["evaluated"] and "accuracy" in line else ""
        log.info("round %d of %d: %d answers%s", report.round, settings.run.rounds, len(report.answered), accuracy)

    with writing(folder):  # a second server of the same run ends here and leaves no failed.txt to the first
        (folder / "failed.txt").unlink(missing_ok=True)
        try:
            result = serve(settings, post, folder, command=command(word), on_round=on_round)
            write_page(folder)
        except (FedkinError, OSError) as e:  # for whoever follows the folder: this process has no screen
            (folder / "failed.txt").write_text(f"{e}\n", encoding="utf-8")
            raise
    return result
