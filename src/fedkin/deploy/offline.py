"""Flower's programs: their paths, the supported versions, and an environment without calls to the internet.

By default Flower sends telemetry, looks for updates and installs what an app requires; an environment made by
`environment` turns each of these off. This module does not import flwr: its programs are started, and its version is
read from the installed package's metadata.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import tomli_w

from fedkin.core.errors import ConfigError
from fedkin.storage.files import write_atomic

SWITCHES: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray, the engine of Flower's own simulator, also reports its use
}
CONNECTION = "fedkin"  # the name of fedkin's SuperLink in Flower's configuration file
INSTALL = "pip install 'fedkin[flower]'"

_OLDEST, _TOO_NEW = (1, 40), (1, 43)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def environment(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for Flower's programs.

    Args:
        home: folder of Flower's own files (its configuration, unpacked apps); created by the code that writes into it.
        base: environment to start from; this process's if None.

    Returns:
        ``base`` with the switches that keep Flower offline, ``FLWR_HOME``, Python's programs first on ``PATH`` (a
        SuperLink starts other programs by name), and no proxy for connections to this machine itself.
    """
    env = dict(os.environ if base is None else base)
    env.update(SWITCHES)
    env["FLWR_HOME"] = str(home.resolve())
    env["PATH"] = os.pathsep.join([str(_beside()), env.get("PATH", os.defpath)])
    direct = [h for h in env.get("NO_PROXY", env.get("no_proxy", "")).split(",") if h]
    env["NO_PROXY"] = env["no_proxy"] = ",".join(dict.fromkeys([*direct, *_LOOPBACK]))
    return env


def program(name: str) -> str:
    """Return the path of one of Flower's programs, such as ``flower-superlink``: next to this Python, else on ``PATH``.

    Raises:
        ConfigError: it is not installed.
    """
    found = shutil.which(name, path=str(_beside())) or shutil.which(name)
    if found is None:
        raise ConfigError(f"Flower's program {name} was not found next to {sys.executable} nor on PATH; {INSTALL}")
    return found


def check_version() -> str:
    """Return the version of the installed flwr.

    Raises:
        ConfigError: flwr is not installed, or its version is not one that fedkin was tested with. Flower changes its
            transport and its command lines between minor versions, and a mismatch shows as nodes that wait forever.
    """
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"real hosts are reached through Flower, and flwr is not installed; {INSTALL}") from error
    if not _OLDEST <= _minor(version) < _TOO_NEW:
        raise ConfigError(f"flwr is {version}; this fedkin works with {supported()}; {INSTALL}")
    return version


def supported() -> str:
    """Return the supported versions of flwr as a requirement: ``flwr>=1.40,<1.43``."""
    return "flwr>=" + ".".join(map(str, _OLDEST)) + ",<" + ".".join(map(str, _TOO_NEW))


def write_connection(home: Path, address: str, certificate: Path | None) -> Path:
    """Write Flower's ``config.toml`` into its home, with one connection, `CONNECTION`.

    Without this file Flower's command writes a default one that names servers of Flower Labs.

    Args:
        home: folder given to `environment`.
        address: ``HOST:PORT`` of the SuperLink.
        certificate: certificate of the authority that signed the SuperLink's; None for plain HTTP.

    Returns:
        Path of the file.
    """
    trust = {"insecure": True} if certificate is None else {"root-certificates": str(certificate.resolve())}
    content = {"superlink": {"default": CONNECTION, CONNECTION: {"address": address, **trust}}}
    path = home / "config.toml"
    write_atomic(path, tomli_w.dumps(content).encode())
    return path


def _beside() -> Path:
    """Return the folder of this Python's programs; not resolved, as a virtual environment's Python is a link."""
    return Path(sys.executable).parent


def _minor(version: str) -> tuple[int, ...]:
    digits = [part for part in version.split(".")[:2] if part.isdigit()]
    return tuple(map(int, digits)) if len(digits) == 2 else (0, 0)
