"""Flower's programs at a client: a SuperNode, and the SuperExec that starts a client app for each letter.

A SuperNode serves its client apps over HTTP on a port of this machine, which every user of the machine can reach. By
default it hands the next letter to whoever asks. Here the SuperExec is started apart from it (``--isolation process``)
and signs what it asks with a secret that both read from a file of this user's; the port has a certificate that is made
anew at each start, so that no other program can pose as the SuperNode either.
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
_DAYS = 3650.0  # the certificate is made anew at each start of the SuperNode


class SuperNode:
    """A SuperNode and its SuperExec, from construction to `stop`.

    Args:
        command: the SuperNode's program and flags, but for those of its port for client apps.
        folder: of the client; gets the logs, Flower's files, and ``runtime`` with the secret and the certificate.

    Attributes:
        log: the SuperNode's log.
        port: where it serves its client apps on this machine.
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
        """Returns whether both programs run; starts the SuperExec once the SuperNode answers, keeps the logs short."""
        if self._superexec is None and self._supernode.alive and answers(_HOST, self.port):
            self._superexec = self._started()
        for program in self._programs():
            program.trim()
        return all(program.alive for program in self._programs())

    def stop(self) -> None:
        """Ends both programs; may be called twice."""
        for program in reversed(self._programs()):
            program.stop()

    def ended(self) -> EngineError:
        """The error of the program that ended by itself, with the last lines that it wrote."""
        ended = [program for program in self._programs() if not program.alive]
        return (ended or [self._supernode])[0].ended()

    def last_words(self) -> str:
        """The end of the log of the program that ended."""
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
    """A new secret, and a new certificate for this machine whose authority's key is not kept."""
    from fedkin.deploy import certificates  # here: it comes with Flower

    private_folder(folder)
    for former in folder.glob("token-*"):
        former.unlink()
    ca, ca_key = certificates.authority(_DAYS)
    server, key, _ = certificates.server(ca, ca_key, [_HOST], _DAYS)
    with for_this_user():
        made = {"ca.crt": ca, "server.pem": server, "server.key": key, "secret": secrets.token_hex(32).encode()}
        for name, content in made.items():
            (folder / name).unlink(missing_ok=True)  # so that the new file has the mode of a new file
            (folder / name).write_bytes(content)
