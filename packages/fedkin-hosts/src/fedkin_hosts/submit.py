"""Submission of a run to the link on this machine: Flower receives an app of ten lines that never changes."""

from __future__ import annotations

from pathlib import Path

from fedkin.data import SOURCES
from fedkin.experiment.settings import Settings
from fedkin.version import __version__
from fedkin_hosts.control import Control
from fedkin_hosts.submitted import packed

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
