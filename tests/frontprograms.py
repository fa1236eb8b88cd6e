"""nginx and Caddy as programs with a configuration of fedkin's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedkin.deploy import fronts

# what a distribution's own nginx.conf has around a server block, with all that nginx writes in one folder
_AROUND = """
daemon off; error_log {here}/error.log; pid {here}/pid; {user}
events {{}}
http {{
    access_log off; client_body_temp_path {here}/a; proxy_temp_path {here}/b; fastcgi_temp_path {here}/c;
    uwsgi_temp_path {here}/d; scgi_temp_path {here}/e;
    include {here}/fedkin.conf;
}}
"""


def nginx(text: str, here: Path) -> list[str]:
    (here / "fedkin.conf").write_text(text)
    user = "user root;" if os.getuid() == 0 else ""
    (here / "nginx.conf").write_text(_AROUND.format(here=here, user=user))
    return ["nginx", "-e", str(here / "error.log"), "-c", str(here / "nginx.conf")]


def caddy(text: str, here: Path) -> list[str]:
    (here / "Caddyfile").write_text(text.replace("auto_https off", "auto_https off\n    admin off"))
    return ["caddy", "run", "--config", str(here / "Caddyfile"), "--adapter", "caddyfile"]


Write = Callable[[str, Path], list[str]]
FRONTS: dict[str, tuple[Callable[..., str], Write]] = {"nginx": (fronts.nginx, nginx), "caddy": (fronts.caddy, caddy)}


def installed(name: str) -> None:
    """Skips a test where the program is not there."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed on this machine")
