"""Submission of a run to the link on this machine: Flower receives an app of ten lines that never changes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from fedkin.core import EngineError
from fedkin.data import SOURCES
from fedkin.deploy.control import Control
from fedkin.deploy.offline import CONNECTION, check_version, environment, program
from fedkin.deploy.submitted import packed
from fedkin.experiment.settings import Settings
from fedkin.version import __version__

_PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedkin-app"
version = "{__version__}"
description = "Hands Flower's messages to the installed fedkin"
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

from fedkin.deploy.flower import client_app, server_app

client = client_app()
server = server_app()
'''


def write_app(folder: Path) -> Path:
    """Write the app that Flower sends to every node; it is the same for every run."""
    (folder / "fedkin_app").mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PROJECT)
    (folder / "fedkin_app" / "__init__.py").write_text("")
    (folder / "fedkin_app" / "apps.py").write_text(_APPS)
    return folder


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
    check_version()
    if nodes is None:
        word = packed(settings, folder, link.folder)
    else:
        word = packed(settings, folder, data=_data(settings))
    with tempfile.TemporaryDirectory(prefix="fedkin-") as place:
        app = write_app(Path(place) / "app")
        command = [program("flwr"), "run", str(app), CONNECTION, "--format", "json"]
        command += ["--run-config", f'fedkin="{word}"']
        if nodes is not None:  # a client computes in one thread
            command += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
        done = subprocess.run(command, env=environment(link.home), capture_output=True, text=True, check=False)
    try:
        answered = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answered = {}
    if done.returncode or not answered.get("success", False):
        said = (done.stderr or done.stdout).strip().splitlines()
        raise EngineError(f"the link did not accept the run: {said[-1] if said else 'no reason given'}; is it up?")
    return str(answered.get("run-id", answered.get("run_id", "")))


def _data(settings: Settings) -> str:
    """Return a name of the run's data that is valid in any folder."""
    data = settings.data.data
    return data if data in SOURCES else str(Path(data).resolve())
