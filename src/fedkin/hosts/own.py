"""People's own methods and networks on real hosts: what is installed on every host, never a file that a run names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkin.config import Settings, settings_from
from fedkin.core import ConfigError
from fedkin.core.importing import is_import_path
from fedkin.core.sources import fingerprint, is_file


def settings_of(table: Mapping[str, Any], where: str = "the run's settings") -> Settings:
    """The settings of a run that somebody else sent.

    Raises:
        ConfigError: they name a file, a setting is unknown, or a method's text is another here.
    """
    for part, key in (("method", "name"), ("model", "model")):
        of = table.get(part)
        if isinstance(of, Mapping):
            require_installed(name := str(of.get(key, "")))
            _require_same(name, of.get("code"))
    return settings_from(table, where)


def _require_same(name: str, code: object) -> None:
    """Raises `ConfigError` if the sender has another text of an own method or network; ``code`` is its fingerprint."""
    if code is not None and is_import_path(name) and code != fingerprint(name):
        raise ConfigError(
            f"{name} has another text here than at the server; install the same version of its package on both, and "
            "start this node again"
        )


def require_installed(*names: str) -> None:
    """Raises `ConfigError` if a method or a network is in a file: no code travels between hosts, and no letter chooses
    a file to be run."""
    for name in names:
        if is_file(name):
            raise ConfigError(
                f"{name} is a file of this machine, and no code is sent to nodes: make it a package, install it on the "
                "server and on every node, and name it package.module:attribute; or play the run here with fedkin run"
            )
