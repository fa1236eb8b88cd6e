"""The machine that a link or a node runs on: Flower's version and environment, ports, folders of one process."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from fedkin.core.errors import ConfigError, typed
from fedkin.storage import lock as locks
from fedkin.storage.files import make_private

SWITCHES: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray, the engine of Flower's own simulator, also reports its use
}
"""By default Flower sends telemetry, looks for updates and installs what an app requires; these turn each off."""
INSTALL = "pip install fedkin-hosts"

_OLDEST, _TOO_NEW = (1, 40), (1, 43)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of this process for Flower, whose own files are in ``home``: no calls to the internet.

    Python's programs are first on ``PATH``, as a SuperLink starts other programs by name, and no proxy is used for
    connections to this machine itself.
    """
    env = {**os.environ, **SWITCHES, "FLWR_HOME": str(home.resolve())}
    env["PATH"] = os.pathsep.join([str(_beside()), env.get("PATH", os.defpath)])
    direct = [h for h in env.get("NO_PROXY", env.get("no_proxy", "")).split(",") if h]
    env["NO_PROXY"] = env["no_proxy"] = ",".join(dict.fromkeys([*direct, *_LOOPBACK]))
    return env


def program(name: str) -> str:
    """Return the path of one of Flower's programs, such as ``flower-superlink``: next to this Python, else on ``PATH``;
    `ConfigError` if it is not installed."""
    result = shutil.which(name, path=str(_beside())) or shutil.which(name)
    if result is None:
        raise ConfigError(f"Flower's program {name} was not found next to {sys.executable} nor on PATH; {INSTALL}")
    return result


def require_flower() -> None:
    """Turn off Flower's calls to the internet, and check that flwr is installed in a supported version.

    Flower changes its transport and its command lines between minor versions, and a mismatch shows as nodes that wait
    forever.

    Raises:
        ConfigError: it is not.
    """
    os.environ.update(SWITCHES)
    version = "not installed"
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("flwr")
    digits = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if not _OLDEST <= tuple(digits) < _TOO_NEW:
        least, most = (".".join(map(str, bound)) for bound in (_OLDEST, _TOO_NEW))
        raise ConfigError(f"flwr is {version}; this fedkin works with flwr>={least},<{most}; {INSTALL}")


def _beside() -> Path:
    """Return the folder of this Python's programs; not resolved, as a virtual environment's Python is a link."""
    return Path(sys.executable).parent


def listening(host: str, port: int, flags: str = "--host or --port") -> socket.socket:
    """Return a non-blocking socket that listens on a port of this machine; port 0 takes a free one.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine; ``flags`` choose other ones.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.create_server((str(address[0]), port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port} ({error}); choose another {flags}") from error
    made.setblocking(False)
    return made


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that no program listens on now."""
    with listening(host, 0) as result:
        return int(result.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Return whether a program accepts connections on a port."""
    with suppress(OSError):
        socket.create_connection((host, port), timeout=1.0).close()
        return True
    return False


def private_folder(folder: Path, *, tighten: bool = True) -> bool:
    """Make a folder and its missing parents with mode 0700; ``tighten``: also if it exists.

    Returns:
        Whether the folder existed and was open to other users.

    Raises:
        ConfigError: the folder cannot be made, or belongs to another user and is open to others.
    """
    try:
        return make_private(folder, tighten=tighten)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be a folder for this user only ({error}); choose another folder, or have its owner do: "
            f"chmod 700 {typed(folder)}"
        ) from error


@contextmanager
def locked(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Keep other processes from using a folder while the context is open.

    Raises:
        ConfigError: another process runs ``what``, such as "a link", in it; ``remedy``: what to do but stop that one.
    """
    path = folder / locks.NAME
    with locks.held(path) as free:
        if not free:
            owner = locks.owner(path) or "another process"
            raise ConfigError(f"{what} runs in {folder} already ({owner}); stop that one first, or {remedy}")
        yield
