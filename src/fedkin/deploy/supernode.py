"""Flower's programs at a client: a SuperNode, and the SuperExec that starts a client app for each message.

A SuperNode serves its client apps over HTTP on a port of this machine, which every user of the machine can reach. By
default it gives the next message to any program that asks. Here the SuperExec is started apart from it (``--isolation
process``) and signs its requests with a secret that both read from a private file; the port uses a certificate that is
made at each start, so that no other program can pose as the SuperNode either.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from fedkin.core.errors import EngineError
from fedkin.deploy.offline import environment
from fedkin.deploy.ports import answers, free_port
from fedkin.deploy.private import private_folder
from fedkin.deploy.programs import Program, last_lines
from fedkin.storage.files import for_this_user

_HOST = "127.0.0.1"
_DAYS = 3650.0  # the certificate is replaced at each start of the SuperNode


class SuperNode:
    """A SuperNode and its SuperExec, from construction to `stop`.

    Args:
        command: the SuperNode's program and flags, except those of its port for client apps.
        folder: folder of the client; receives the logs, Flower's files, and ``runtime`` with secret and certificate.

    Attributes:
        log: log of the SuperNode.
        port: port that serves its client apps on this machine.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.log, self.port = folder / "supernode.log", free_port()
        self._folder, self._runtime = folder, folder / "runtime"
        _write_runtime(self._runtime)
        flags = ["--host", _HOST, "--port", str(self.port), "--isolation", "process", *self._secret()]
        flags += ["--ssl-ca-certfile", self._file("ca.crt"), "--ssl-certfile", self._file("server.pem")]
        flags += ["--ssl-keyfile", self._file("server.key")]
        env = environment(folder / "flwr")
        self._supernode = Program("the SuperNode", [*command, *flags], env, self.log)
        self._superexec: Program | None = None

    def look(self) -> bool:
        """Return whether both programs run; start the SuperExec once the SuperNode answers, limit the logs' size."""
        if self._superexec is None and self._supernode.alive and answers(_HOST, self.port):
            self._superexec = self._started()
        for program in self._programs():
            program.trim()
        return all(program.alive for program in self._programs())

    def stop(self) -> None:
        """End both programs; may be called twice."""
        for program in reversed(self._programs()):
            program.stop()

    def ended(self) -> EngineError:
        """Return the error of the program that ended by itself, with the last lines that it wrote."""
        ended = [program for program in self._programs() if not program.alive]
        return (ended or [self._supernode])[0].ended()

    def last_words(self) -> str:
        """Return the end of the log of the program that ended."""
        ended = [program for program in self._programs() if not program.alive]
        return last_lines((ended or [self._supernode])[0].log)

    def _programs(self) -> list[Program]:
        return [program for program in (self._supernode, self._superexec) if program is not None]

    def _started(self) -> Program:
        # -P: the working folder is not a place to import from
        command = [sys.executable, "-P", "-m", "fedkin.deploy.superexec", str(self._runtime)]
        command += ["--runtime-api-address", f"{_HOST}:{self.port}", "--root-certificates", self._file("ca.crt")]
        command += ["--parent-pid", str(os.getpid()), *self._secret()]
        return Program("the SuperExec", command, environment(self._folder / "flwr"), self._folder / "superexec.log")

    def _secret(self) -> list[str]:
        return ["--superexec-auth-secret-file", self._file("secret")]

    def _file(self, name: str) -> str:
        return str(self._runtime / name)


def _write_runtime(folder: Path) -> None:
    """Write a new secret, and a new certificate for this machine whose authority's key is not kept."""
    from fedkin.deploy import certificates  # imported here: it is installed with Flower

    private_folder(folder)
    for former in folder.glob("token-*"):
        former.unlink()
    ca, ca_key = certificates.authority(_DAYS)
    server, key, _ = certificates.server(ca, ca_key, [_HOST], _DAYS)
    with for_this_user():
        made = {"ca.crt": ca, "server.pem": server, "server.key": key, "secret": secrets.token_hex(32).encode()}
        for name, content in made.items():
            (folder / name).unlink(missing_ok=True)  # so that the file is created with its mode
            (folder / name).write_bytes(content)
