"""What a submitted run is: settings and the place of its folder, through Flower's own configuration of a run."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.config import Settings, settings_from
from fedkin.core import ConfigError, FedkinError
from fedkin.course import Result
from fedkin.hosts.post import Post
from fedkin.hosts.serve import serve
from fedkin.report.page import write_page


def packed(settings: Settings, folder: Path) -> str:
    """A run as one word that survives any configuration file."""
    told = {"settings": settings.table(), "folder": str(folder.resolve())}
    return base64.urlsafe_b64encode(json.dumps(told).encode()).decode()


def unpacked(word: object) -> tuple[Settings, Path]:
    """The run again.

    Raises:
        ConfigError: it is not what `packed` gave.
    """
    try:
        told = json.loads(base64.urlsafe_b64decode(str(word).encode()))
        return settings_from(told["settings"], "the submitted run"), Path(str(told["folder"]))
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"the submitted run cannot be read ({e}); submit it with: fedkin submit FILE.toml") from e


def run_submitted(post: Post, config: Mapping[str, Any], started: float) -> Result:
    """Plays a submitted run to its end and writes its report."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    settings, folder = unpacked(config.get("fedkin", ""))
    log = logging.getLogger("fedkin.hosts")
    log.info("%s, %d rounds, in %s", settings.name, settings.run.rounds, folder)

    def on_round(report: Any, line: Mapping[str, Any]) -> None:
        accuracy = f", accuracy {100 * line['accuracy']:.1f} %" if line["evaluated"] and "accuracy" in line else ""
        log.info("round %d of %d: %d answers%s", report.round, settings.run.rounds, len(report.answered), accuracy)

    (folder / "failed.txt").unlink(missing_ok=True)
    try:
        result = serve(settings, post, folder, on_round=on_round)
        write_page(folder)
    except (FedkinError, OSError) as e:  # for whoever follows the folder: this process has no screen
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failed.txt").write_text(f"{e}\n", encoding="utf-8")
        raise
    return result
