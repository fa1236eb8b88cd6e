"""Conversion of bundles to messages and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedkin.core import Bundle
from fedkin.deploy.wire_format import TensorEntry, WireError, WireMessage, entries, head_bytes, reason

_TYPES = {str(t).removeprefix("torch."): t for t in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip


def wire_message(head: Mapping[str, Any], bundle: Bundle | None = None) -> WireMessage:
    """Return a message with the tensors of a bundle.

    Raises:
        WireError: a tensor has a type that is not sent.
    """
    listed, parts = [], []
    for name, t in (bundle or Bundle()).items():
        dtype = str(t.dtype).removeprefix("torch.")
        if dtype not in _TYPES:
            raise WireError(f"tensor {name!r} is of type {dtype}, which is not sent")
        listed.append([name, dtype, list(t.shape)])
        flat = t.detach().cpu().contiguous().reshape(-1)
        parts.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return WireMessage({**head, "tensors": listed}, b"".join(parts))


def bundle(of: WireMessage) -> Bundle:
    """Return the tensors of a message, each in its own memory.

    Raises:
        WireError: see `entries`; or a tensor cannot be made for another reason, such as too little memory.
    """
    found = Bundle()
    for e in entries(of):
        try:
            found[e.name] = _tensor(of.body[e.start : e.stop], e)
        except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise WireError(f"tensor {e.name[:40]!r} cannot be made: {reason(error)}") from error
    return found


def _tensor(content: bytes, e: TensorEntry) -> Tensor:
    if e.dtype == "bool" and any(b > 1 for b in set(content)):
        raise WireError(f"tensor {e.name[:40]!r} holds bytes that are not truth values")
    t = torch.empty(e.shape, dtype=_TYPES[e.dtype])
    if t.numel():
        t.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return t


def mark(of: WireMessage) -> str:
    """Return a fingerprint of a message's whole content, which distinguishes two messages with the same number."""
    return hashlib.blake2b(head_bytes(of) + of.body, digest_size=16).hexdigest()
