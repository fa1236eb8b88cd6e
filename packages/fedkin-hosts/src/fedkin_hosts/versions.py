"""Equality of both sides as far as results depend on it: versions, and the text of the programs themselves."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fedkin.core import Method
from fedkin.core.refusals import Reason
from fedkin.version import __version__

_PARTS = ("core", "capabilities", "functional", "engines", "models", "data")


def versions(method: Method) -> dict[str, str]:
    """Return the versions of fedkin, flwr and torch, and fingerprints of fedkin's engine and of the method's text."""
    return {
        "fedkin": __version__,
        "flwr": _installed("flwr"),
        "torch": torch.__version__.partition("+")[0],
        "engine": _engine(),
        "method": _text_of(method),
    }


def unlike(theirs: object, ours: dict[str, str]) -> Reason | None:
    """Return the differences with both values; None if there are none."""
    if not isinstance(theirs, dict):
        return Reason("versions", value="it does not report them")
    sent = {
        name: str(theirs.get(name, "none"))[:64]
        for name in ("fedkin", "flwr", "torch", "method", "engine")
    }  # fmt: skip
    names = {"engine": "the text of fedkin's engine", "method": "the text of the method"}
    parts = [
        f"{names.get(name, name)} is {sent[name]} there and {ours[name]} here"
        for name in sent
        if sent[name] != ours[name]
    ]
    return Reason("versions", value=f"{'; '.join(parts)}; install the same on both") if parts else None


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def _engine() -> str:
    spec = importlib.util.find_spec("fedkin")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    files = sorted(path for part in _PARTS for path in (root / part).rglob("*.py"))
    return _digest(*(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() for path in files))


def _text_of(method: Method) -> str:
    """Return the text of the files that define the method and those that it wraps."""
    inside = [m for m in vars(method).values() if isinstance(m, Method)]
    kinds = [type(method), *(type(m) for m in inside)]
    return _digest(*(Path(inspect.getfile(kind)).read_bytes() for kind in kinds))


def _digest(*parts: bytes) -> str:
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()
