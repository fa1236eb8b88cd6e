"""Operator's access to a SuperLink through Flower's own command, on the machine that the SuperLink runs on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedkin.core.errors import ConfigError, EngineError, nearest
from fedkin.deploy.keys import key_fingerprint
from fedkin.deploy.offline import CONNECTION, environment, program
from fedkin.storage.files import write_atomic

BOOK = "nodes.json"  # in the link's folder: the key that each node number stands for
SHUT_OUT = "unregistered"  # the status of a node whose key is refused
_IN_USE = "already in use"  # Flower's message for a key that is registered already


@dataclass(frozen=True)
class Key:
    """A registered key of a node. Flower lists nodes by number only, so fedkin keeps a book of the keys.

    Attributes:
        name: name of its file, without ``.pub``.
        fingerprint: fingerprint as ``ssh-keygen -l`` prints it.
    """

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Changes:
    """Changes that `Control.register` found, as names of keys.

    Attributes:
        new: keys registered by this call.
        gone: registered keys whose files do not exist any more.
        shut: keys shut out although their files exist.
        unreadable: files that hold no key, with the reasons.
        failed: keys that Flower did not register, with the reasons; another call may succeed.
    """

    new: tuple[str, ...]
    gone: tuple[str, ...]
    shut: tuple[str, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


class Control:
    """The operator's side of a link.

    Args:
        folder: the link's folder.
        home: Flower's folder in it, with a connection in its ``config.toml``.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder, home
        self._book = folder / BOOK

    def ask(self, *words: str, seconds: float = 60.0) -> dict[str, Any]:
        """Return the answer of ``flwr WORDS CONNECTION --format json``.

        Raises:
            EngineError: the command failed; the text contains Flower's message.
        """
        command = [program("flwr"), *words, CONNECTION, "--format", "json"]
        env = {**environment(self.home), "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"`flwr {' '.join(words)}` did not answer within {seconds:g} s") from error
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError as error:
            said = (done.stdout + done.stderr).strip()
            raise EngineError(
                f"`flwr {' '.join(words)}` returned no answer (exit code {done.returncode}): {said}"
            ) from error
        if not isinstance(answer, dict) or not answer.get("success"):  # its exit code is 0 then as well
            why = str(answer.get("error-message", answer) if isinstance(answer, dict) else answer)
            raise EngineError(" ".join(why.partition(")\n")[2].split() or why.split()))
        return answer

    def nodes(self) -> list[dict[str, Any]]:
        """Return every registered node: Flower's ``node-id``, ``status``, times, and ``name``, ``fingerprint``."""
        book = self.book()
        unknown = Key("?", "")
        found = [n for n in self.ask("supernode", "list", "--verbose")["nodes"] if isinstance(n, dict)]
        return [{**node, **asdict(book.get(str(node["node-id"]), unknown))} for node in found]

    def runs(self) -> list[dict[str, Any]]:
        """Return every submitted run, as Flower lists it."""
        return [run for run in self.ask("list")["runs"] if isinstance(run, dict)]

    def last_words(self, run: str, count: int = 8) -> str:
        """Return the last lines of the log of a run's program on the server, indented."""
        command = [program("flwr"), "log", run, CONNECTION, "--show"]
        env = {**environment(self.home), "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30.0, check=False
            )
        except subprocess.TimeoutExpired:
            return "  (no answer)"
        said = [line for line in done.stdout.splitlines() if line.strip()]
        return "\n".join(f"  {line}" for line in said[-count:]) or "  (nothing)"

    def register(self, keys: Path) -> Changes:
        """Register every ``*.pub`` file of a folder that is not known yet; repeated calls are harmless.

        A file that is not a key of the right kind, and a key that Flower does not accept, do not affect the others.

        Raises:
            ConfigError: the book of keys is damaged.
            EngineError: the link does not answer.
        """
        found, unreadable = _keys(keys)
        listed = {str(node["node-id"]): node for node in self.nodes()}
        book = {number: key for number, key in self.book().items() if number in listed}  # of this database only
        named = {fingerprint: name for name, (_, fingerprint) in reversed(found.items())}
        book = {n: Key(named.get(k.fingerprint, k.name), k.fingerprint) for n, k in book.items()}  # a file was renamed
        known = {key.fingerprint for key in book.values()}
        new, failed = [], {}
        for name, (path, fingerprint) in found.items():
            try:
                number = None if fingerprint in known else self._registered(path, name)
            except EngineError as error:
                failed[name] = str(error)
                continue
            if number:
                book[number] = Key(name, fingerprint)
                new.append(name)
        if not self._book.exists() or book != self.book():  # without a file, nodes could take any name
            self._write(book)
        here = {fingerprint for _, fingerprint in found.values()}
        out = {number for number, node in listed.items() if node.get("status") == SHUT_OUT}
        shut = [key.name for number, key in book.items() if number in out and key.fingerprint in here]
        gone = [key.name for number, key in book.items() if number not in out and key.fingerprint not in here]
        return Changes(tuple(new), tuple(gone), tuple(shut), unreadable, failed)

    def revoke(self, name: str) -> str:
        """Shut a node out permanently and return its key's fingerprint: the key cannot be registered again.

        A node whose file was replaced by another key has several; all of them are shut out and returned.

        Raises:
            ConfigError: no node with this name is registered.
            EngineError: the link does not answer, or refuses.
        """
        inside = [n for n in self.nodes() if n.get("status") != SHUT_OUT]
        named = [n for n in inside if n["name"] == name]
        if not named:
            names = {str(n["name"]) for n in inside}
            raise ConfigError(f"no node {name!r} is registered at this link{nearest(name, names) if names else ''}")
        for node in named:
            self.ask("supernode", "unregister", str(node["node-id"]))
        self._tell()
        return ", ".join(str(node["fingerprint"]) for node in named)

    def _tell(self) -> None:
        """Change the time of the book, so that a link that runs asks Flower which keys are shut out."""
        try:
            os.utime(self._book)  # the link may be writing names into it
        except FileNotFoundError:
            self._write({})

    def changed(self) -> int:
        """Return the time of the last write of the book of keys in nanoseconds; 0 if there is no book yet."""
        return self._book.stat().st_mtime_ns if self._book.exists() else 0

    def book(self) -> dict[str, Key]:
        """Return the key of each node by the node's number."""
        return read_book(self.folder)

    def _write(self, book: Mapping[str, Key]) -> None:
        write_atomic(self._book, json.dumps({n: asdict(k) for n, k in book.items()}, indent=2).encode())

    def _registered(self, path: Path, name: str) -> str | None:
        """Return the new node's number; None if Flower has the key already although the book does not list it."""
        try:
            return str(self.ask("supernode", "register", str(path), "--name", name)["node-id"])
        except EngineError as error:
            if _IN_USE in str(error):
                return None
            raise EngineError(f"the key {path} was not registered: {error}") from error


def _keys(folder: Path) -> tuple[dict[str, tuple[Path, str]], dict[str, str]]:
    """Return path and fingerprint of every key in a folder, and the reasons why other files hold none, by name."""
    found, unreadable = {}, {}
    for path in sorted(folder.glob("*.pub")):
        try:
            found[path.stem] = path, key_fingerprint(path)
        except ConfigError as error:
            unreadable[path.stem] = str(error)
    return found, unreadable


def read_book(folder: Path) -> dict[str, Key]:
    """Read the book of keys (node number to key) of the link in a folder; it is empty before a key is registered.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / BOOK
    try:
        text = path.read_text()
        return {str(n): Key(str(k["name"]), str(k["fingerprint"])) for n, k in json.loads(text).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error!r}); restore it, or take it away: nodes whose keys are registered then have no "
            "name, and only runs with free_names = true in [hosts] take them, until they come with new keys"
        ) from error
