"""A client's memory on its disk: one file per run, replaced whole, synced before an answer is sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedkin.core import Bundle, ConfigError
from fedkin.server.ledger import Ledger
from fedkin.storage.files import make_private, write_atomic
from fedkin.storage.tensors import pack, unpack
from fedkin_hosts.heads import NAME, RunSetup

_SETUP = "setup.json"


def checked_name(name: str, what: str) -> str:
    """Return the name if it is allowed.

    Raises:
        ConfigError: it is not: other characters, too long, or dots only.
    """
    if not (isinstance(name, str) and NAME.fullmatch(name)) or set(name) == {"."}:
        raise ConfigError(f"{what} must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, got {str(name)[:80]!r}")
    return name


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; when this returns, it is on the disk.

    Raises:
        OSError: the file could not be written; what was there before is untouched.
    """
    make_private(path.parent, tighten=False, sync=True)
    write_atomic(path, content, sync=True, private=True)


@dataclass
class Kept:
    """The memory that a client keeps of one run.

    Attributes:
        ledger: the client's state, and the answer that is not acknowledged yet.
        session: session of the server that wrote last; messages of an older one are stale.
        said: the description sent when the client joined, so that it is never drawn again; None before.
        masked: the last round whose upload was masked.
        of: fingerprint of the run's settings; "" before the first message.
    """

    ledger: Ledger
    session: int = 0
    said: Bundle | None = None
    masked: int = 0
    of: str = ""


class ClientStore:
    """The folder of one client, with a sub-folder for each run."""

    def __init__(self, folder: Path, client: str) -> None:
        self.folder = folder / checked_name(client, "client-id")

    def path(self, run: str) -> Path:
        """Return the path of the file of a run."""
        return self.folder / checked_name(run, "run") / "memory.safetensors"

    def load(self, run: str) -> Kept:
        """Return the memory of a run, empty if there is none yet; `RunFolderError` if the file is damaged."""
        path = self.path(run)
        if not path.exists():
            return Kept(Ledger())
        meta, tensors = unpack(path, "delete it to have this client join again")
        parts = {
            part: Bundle({n.split(".", 1)[1]: t for n, t in tensors.items() if n.split(".", 1)[0] == part})
            for part in ("committed", "pending", "answer", "said")
        }
        pending = bool(int(meta["seq"]))
        ledger = Ledger(
            committed=parts["committed"],
            at=int(meta["at"]),
            seq=int(meta["seq"]),
            mark=meta["mark"],
            pending=parts["pending"] if pending else None,
            answer=parts["answer"] if pending else None,
        )
        said = parts["said"] if int(meta["said"]) else None
        return Kept(ledger, int(meta["session"]), said, int(meta.get("masked", "0")), meta.get("of", ""))

    def setup(self, run: str) -> RunSetup | None:
        """Return the setup of a run that was kept last; None if there is none, or the file is damaged."""
        try:
            return msgspec.json.decode((self.path(run).parent / _SETUP).read_bytes(), type=RunSetup)
        except (OSError, msgspec.DecodeError):  # the server sends it again
            return None

    def keep_setup(self, run: str, setup: RunSetup) -> None:
        """Replace the setup of a run.

        Raises:
            OSError: it could not be written; what was there before is untouched.
        """
        write_private(self.path(run).parent / _SETUP, msgspec.json.encode(setup))

    def save(self, run: str, kept: Kept) -> None:
        """Replace the file; when this returns, it is on the disk.

        Raises:
            OSError: it could not be written; what was there before is untouched.
        """
        ledger = kept.ledger
        bundles = {"committed": ledger.committed, "pending": ledger.pending, "answer": ledger.answer, "said": kept.said}
        # copies: a client may keep the same tensor that it sends, and a file holds each tensor once
        tensors = {f"{part}.{n}": t for part, b in bundles.items() if b is not None for n, t in b.owned().items()}
        meta = {
            "at": str(ledger.at),
            "seq": str(ledger.seq if ledger.pending is not None else 0),
            "mark": ledger.mark,
            "session": str(kept.session),
            "said": str(int(kept.said is not None)),
            "of": kept.of,
        }
        if kept.masked:
            meta["masked"] = str(kept.masked)
        write_private(self.path(run), pack(tensors, meta))
