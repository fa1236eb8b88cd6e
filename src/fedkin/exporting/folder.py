"""The folder of an export: written next to its place, tested, and moved there whole."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor

from fedkin.core import Bundle, ConfigError, DataError, ModelError, Net, RunFolderError
from fedkin.core.samples import tally
from fedkin.data.preparation import Preparation
from fedkin.exporting.card import FORMAT, ExportSource, Taken, card, readme, tested
from fedkin.exporting.program import inputs_of, program
from fedkin.storage.files import PRIVATE_FILE, PRIVATE_FOLDER, sync_to_disk

log = logging.getLogger("fedkin.export")


def write_export(origin: ExportSource, taken: Taken, place: Path, *, force: bool = False) -> None:
    """Write one model's folder; when this returns, it is on the disk.

    A model that ONNX cannot express is written as weights only, with a warning. An older export is replaced by
    ``force``, and untouched where the new one cannot be written.
    """
    net, method = origin.net, origin.method
    preparation = taken.preparation or Preparation("array", net.shape)
    made = card(origin, taken, preparation, inputs_of(preparation, str(net.dtype).removeprefix("torch.")))
    x = net.inputs(2) if taken.shard is None else net.layout(taken.shard.test.x)
    logits = _logits(origin, taken, x)
    if taken.shard is not None:
        counts = tally(taken.shard.test.y, logits.argmax(1), net.classes)
        made = msgspec.structs.replace(
            made, test=tested(counts, taken.evaluated, taken.shard.train.counts(net.classes))
        )
    content: bytes | None = None
    try:
        content = program(net, method, taken.bundle, preparation, made.classes, x)
    except (ModelError, DataError) as e:
        made = msgspec.structs.replace(made, weights_only=str(e))
        log.warning("%s is exported as weights only: %s", taken.model, e)
    files: dict[str, bytes] = {
        "model.safetensors": save(_named(net, taken.bundle), metadata={"format": "pt"}),
        "card.json": _json(made),
        "README.md": readme(made, taken.ranges).encode(),
    }
    if content is not None:
        files["model.onnx"] = content
    if taken.ranges is not None:
        files["ranges.json"] = _json(taken.ranges)
    _write(files, place, private=taken.client is not None, force=force)


def require_free(place: Path, force: bool) -> None:
    """Raise `RunFolderError` unless an export may be written to this place."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())) or (force and _is_export(place)):
        return
    if _is_export(place):
        raise RunFolderError(f"{place} exists already; name another folder with --out, or replace it with --force")
    raise RunFolderError(f"{place} exists and is not an export; name another folder with --out")


def _logits(origin: ExportSource, taken: Taken, x: Tensor) -> Tensor:
    """Return the logits of the run's own code, in passes as in an evaluation."""
    net = origin.net
    with torch.no_grad():
        parts = [origin.method.predict(net, taken.bundle, part) for part in x.split(256) if len(part)]
    result = torch.cat(parts) if parts else torch.zeros(0, net.classes)
    if bool(result.isnan().any()):
        raise ConfigError(
            f"{taken.model} predicts no numbers for some samples: its training has diverged, or its network fails on "
            "them; nothing was written"
        )
    return result


def _named(net: Net, b: Bundle) -> dict[str, Tensor]:
    """Return the tensors under the names of the network's parameters: ``[P]`` as one network, ``[k, P]`` as ``k``."""
    stored = {f"fixed.{n}": t.contiguous().clone() for n, t in net.fixed.items()}
    for name, t in b.items():
        if t.dim() not in (1, 2) or t.shape[-1] != net.size or t.dtype != torch.float32:
            stored[name] = t.detach().clone(memory_format=torch.contiguous_format)
            continue
        for parameter, (span, shape) in net.places().items():
            stored[f"{name}.{parameter}"] = t[..., span].detach().reshape(*t.shape[:-1], *shape).clone()
    return stored


def _json(value: Any) -> bytes:
    """Return a Struct as JSON in ASCII: no name in it drives a terminal."""
    return (json.dumps(msgspec.to_builtins(value), indent=2) + "\n").encode()


def _is_export(place: Path) -> bool:
    try:
        return bool(json.loads((place / "card.json").read_text(encoding="utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(files: dict[str, bytes], place: Path, *, private: bool, force: bool) -> None:
    """Write the folder and move it to its place; an older export is kept until then."""
    half = place.with_name(f".{place.name}.{os.getpid()}.new")
    shutil.rmtree(half, ignore_errors=True)
    try:
        half.mkdir(parents=True, mode=PRIVATE_FOLDER if private else 0o777)
        for name, content in files.items():
            (half / name).write_bytes(content)
            if private:  # a model of one client's data, and the ranges of its values
                (half / name).chmod(PRIVATE_FILE)
        require_free(place, force)
        for file in (*half.iterdir(), half):
            sync_to_disk(file)
        old = place.with_name(f".{place.name}.{os.getpid()}.old")
        if place.exists():
            os.replace(place, old)
        os.replace(half, place)
        sync_to_disk(place.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(half, ignore_errors=True)
