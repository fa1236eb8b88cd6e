"""Ports of this machine: listening sockets, free ports, and whether a port answers."""

from __future__ import annotations

import socket
from contextlib import suppress

from fedkin.core.errors import ConfigError


def listening(host: str, port: int, flags: str = "--host or --port") -> socket.socket:
    """Return a non-blocking socket that listens on a port; port 0 takes a free one.

    Args:
        host: name or address of this machine.
        port: the port.
        flags: flags that choose host and port, for the message.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
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
    with listening(host, 0) as found:
        return int(found.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Return whether a program accepts connections on a port."""
    with suppress(OSError):
        socket.create_connection((host, port), timeout=1.0).close()
        return True
    return False
