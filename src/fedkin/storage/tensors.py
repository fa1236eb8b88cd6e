"""Tensors and texts in one safetensors file with a checksum: memories of hosts."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedkin.core.errors import RunFolderError

Texts = dict[str, str]


def pack(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> bytes:
    """Return the content of a file with tensors, texts and their checksum.

    Args:
        tensors: tensors by name; no two of them may be the same tensor.
        texts: texts by name, other than ``checksum``.
    """
    whole = {name: own_memory(t) for name, t in tensors.items()}
    return save(whole, metadata={**texts, "checksum": checksum(whole, texts)})


def unpack(path: Path, remedy: str) -> tuple[Texts, dict[str, Tensor]]:
    """Return the texts and tensors of a file.

    Args:
        path: a file with the content of `pack`.
        remedy: remedy for a damaged file, the end of the message.

    Raises:
        RunFolderError: the file is missing or damaged.
    """
    try:
        raw = path.read_bytes()
        tensors = load(raw)
        texts = dict(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {}))
    except (SafetensorError, OSError, ValueError) as e:
        raise RunFolderError(f"{path} is damaged ({e}); {remedy}") from e
    if texts.pop("checksum", None) != checksum(tensors, texts):
        raise RunFolderError(f"{path} is damaged (its checksum does not fit its content); {remedy}")
    return texts, tensors


def own_memory(t: Tensor) -> Tensor:
    """Return the tensor, contiguous and in its own memory, as the format requires."""
    t = t.detach()
    own = t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()
    return t if own else t.clone(memory_format=torch.contiguous_format)


def checksum(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """Return eight hexadecimal digits (CRC-32) that change when a tensor or a text does."""
    total = zlib.crc32(json.dumps(sorted(texts.items())).encode())
    for name in sorted(tensors):
        t = tensors[name]
        total = zlib.crc32(f"{name} {t.dtype} {list(t.shape)}".encode(), total)
        if t.numel():
            total = zlib.crc32(t.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
