"""Bundles as the bodies of messages: safetensors, whose sizes are checked before anything is made of them."""

from __future__ import annotations

import hashlib

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedkin.core import Bundle
from fedkin_hosts.heads import HEAD_LIMIT, Json, Tensors, WireError, WireMessage, convert, head_bytes, reason, require

_TYPES = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
}  # fmt: skip


def wire_message(head: Json, bundle: Bundle | None = None) -> WireMessage:
    """Return a message with the tensors of a bundle, whose names the head has in the bundle's order; `WireError` if a
    tensor has a type that is not sent."""
    tensors = (bundle or Bundle()).owned()
    for name, t in tensors.items():
        require(t.dtype in _TYPES, f"tensor {name!r} is of type {t.dtype}, which is not sent")
    return WireMessage({**head, "tensors": list(tensors)}, save(tensors) if tensors else b"")


def bundle(of: WireMessage) -> Bundle:
    """Return the tensors of a message, each in its own memory; `WireError` if the body is not that of a message, or has
    other tensors than the head names."""
    names = convert(of.head.get("tensors", []), Tensors, "the list of tensors")
    require(int.from_bytes(of.body[:8], "little") <= HEAD_LIMIT, "the list of tensors in the body is too long")
    try:
        result = load(of.body) if of.body or names else {}
    except (SafetensorError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise WireError(f"the tensors cannot be made: {reason(error)}") from error
    require(sorted(result) == sorted(names), "the body has other tensors than the head names")
    for name, t in result.items():
        odd = t.dtype is torch.bool and t.numel() and int(t.view(torch.uint8).max()) > 1
        sound = t.dtype in _TYPES and not odd
        require(sound, f"tensor {name[:40]!r} holds bytes that are no numbers of type {t.dtype}")
    return Bundle({name: result[name] for name in names})


def mark(of: WireMessage) -> str:
    """Return a fingerprint of a message's whole content, which distinguishes two messages with the same number."""
    return hashlib.blake2b(head_bytes(of) + of.body, digest_size=16).hexdigest()
