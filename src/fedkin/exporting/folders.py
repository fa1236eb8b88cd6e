"""The folder of an export: written next to its place, tested, and moved there whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedkin.core import Bundle, ConfigError, EngineError, Net, RunFolderError
from fedkin.core.samples import tally
from fedkin.data import standalone
from fedkin.display import printable_parts
from fedkin.exporting import card as cards
from fedkin.exporting import loader
from fedkin.exporting.export_source import ExportSource, Taken
from fedkin.exporting.network import described
from fedkin.exporting.programs import Format, write_program
from fedkin.storage.files import PRIVATE_FILE, PRIVATE_FOLDER, sync_to_disk

_TOLERANCE = 1e-4  # maximum difference of the exported model's logits from the run's
_BUG = "This is a bug in fedkin: please report it with the config"


def write_export(
    origin: ExportSource, taken: Taken, place: Path, formats: Collection[Format] = (), *, force: bool = False
) -> None:
    """Write one model's folder; when this returns, it is on the disk.

    Args:
        origin: run that the model is from.
        taken: the model.
        place: the new folder.
        formats: programs to write next to it, see `fedkin.exporting.export`.
        force: replace an older export in ``place``.

    Raises:
        RunFolderError: ``place`` holds something else, or an export and not ``force``.
        EngineError: the written model cannot be loaded, or does not give the run's logits.
        ConfigError: a format that this model does not allow, or a model that predicts NaN.
        OSError: it could not be written; what was there before is untouched.
    """
    net = origin.net
    labels = printable_parts(list(origin.labels or map(str, range(net.classes))))
    stored, kinds = _named(net, taken.bundle)
    card, plan = printable_parts(cards.card(origin, taken, kinds)), described(net)
    half = place.with_name(f".{place.name}.{os.getpid()}.new")
    shutil.rmtree(half, ignore_errors=True)
    try:
        half.mkdir(parents=True, mode=0o777 if taken.client is None else PRIVATE_FOLDER)
        (half / "model.safetensors").write_bytes(save(stored, metadata={"format": "pt"}))
        (half / "labels.json").write_text(json.dumps(labels, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if plan is not None:
            (half / "network.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
        shutil.copyfile(loader.__file__, half / "load.py")
        shutil.copyfile(standalone.__file__, half / "prepare.py")
        prepared, ranges = taken.preparation, taken.ranges
        options = {"standalone": plan is not None, "prepared": prepared, "ranges": ranges}
        _write_json(None if prepared is None else prepared.to_json(), half / "preparation.json")
        _write_json(ranges, half / "ranges.json")
        _write_card(half, card | {"test": None}, labels, options)
        model = _loaded(half, taken, None if plan is not None else net._factory)
        custom = plan is None and not card["network"]["by_name"]
        found = None if taken.client is None else _tried(origin, taken, model, custom=custom)
        counts = None if taken.shard is None else taken.shard.train.counts(net.classes)
        card["test"] = None if found is None or counts is None else cards.tested(found, taken.evaluated, counts)
        for name in formats:
            write_program(name, model, net.inputs(5).contiguous(), half)
        card["files"] = sorted(f.name for f in half.iterdir())
        _write_card(half, card, labels, options)
        if taken.client is not None:  # a model of one client's data, and the ranges of its values
            for file in half.iterdir():
                file.chmod(PRIVATE_FILE)
        _move(half, place, force)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def require_free(place: Path, force: bool) -> None:
    """Raise `RunFolderError` unless an export may be written to this place."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    ours = _is_export(place)
    if not ours:
        raise RunFolderError(f"{place} exists and is not an export; name another folder with --out")
    if not force:
        raise RunFolderError(f"{place} exists already; name another folder with --out, or replace it with --force")


def _named(net: Net, b: Bundle) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors under the names of the network's parameters, and the kind of each tensor of the bundle.

    ``network``: a flat vector ``[P]``; ``networks``: rows ``[k, P]``, stored as ``[k, *shape]``; ``plain``: as it is.
    """
    stored, kinds = {f"fixed.{n}": t.contiguous().clone() for n, t in net.fixed.items()}, dict[str, str]()
    for name, t in b.items():
        flat = t.dim() in (1, 2) and t.shape[-1] == net.size and t.dtype == torch.float32
        kinds[name] = ("plain", "network", "networks")[t.dim() if flat else 0]
        if not flat:
            stored[name] = t.detach().clone(memory_format=torch.contiguous_format)
            continue
        for parameter, (span, shape) in net.places().items():
            stored[f"{name}.{parameter}"] = t[..., span].detach().reshape(*t.shape[:-1], *shape).clone()
    return stored, kinds


def _loaded(half: Path, taken: Taken, make: Callable[[], nn.Module] | None) -> loader.Model:
    """Return the model that was just written; ``make`` makes its network where the folder does not describe it.

    Raises:
        EngineError: it cannot be loaded.
    """
    try:
        return loader.load(half, make)
    except loader.ExportError as e:
        hint = _BUG if make is None else "The network's code must make the same layers in every build"
        raise EngineError(f"{_model_of(taken)} cannot be loaded again: {e}; nothing was written. {hint}") from e


def _model_of(taken: Taken) -> str:
    return f"the exported model of {'all clients' if taken.client is None else f'client {taken.client}'}"


def _tried(origin: ExportSource, taken: Taken, model: loader.Model, *, custom: bool) -> Tensor:
    """Return the exported model's `tally` on the client's test part; ``custom``: user code made its network.

    Raises:
        EngineError: its logits are not those of the run's own code.
    """
    assert taken.shard is not None  # a client's model
    net, test = origin.net, taken.shard.test
    if not len(test):
        return tally(test.y, test.y, net.classes)
    with torch.no_grad():
        wanted = torch.cat([origin.method.predict(net, taken.bundle, x) for x in net.layout(test.x).split(256)])
    if bool(wanted.isnan().any()):
        raise ConfigError(
            f"{_model_of(taken)} predicts no numbers for some test samples: its training has diverged, or its network "
            "fails on them; nothing was written"
        )
    got = model.logits(test.x)
    if not torch.allclose(got, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
        apart = float((got - wanted).nan_to_num().abs().max())
        hint = _BUG
        if custom:
            hint = (
                "The network's code probably draws values in each build that are neither parameters nor float "
                "buffers, and an export cannot keep those: register them with self.register_buffer, or set them to "
                f"the same values in every build. If it does not: {_BUG}"
            )
        raise EngineError(
            f"{_model_of(taken)} does not give the run's logits (they differ by up to {apart:.2g}); nothing was "
            f"written. {hint}"
        )
    return tally(test.y, got.argmax(1), net.classes)


def _write_card(half: Path, card: dict[str, Any], labels: Sequence[str], options: Mapping[str, Any]) -> None:
    """Write the card; ``options`` are the keyword arguments of `fedkin.exporting.card.readme`."""
    (half / "card.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    text = cards.readme(card, list(labels), **options)
    (half / "README.md").write_text(text, encoding="utf-8")


def _write_json(value: Mapping[str, Any] | None, file: Path) -> None:
    if value is not None:
        file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _is_export(place: Path) -> bool:
    try:
        card = json.loads((place / "card.json").read_text(encoding="utf-8"))
        return bool(card["format"] == loader.FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _move(half: Path, place: Path, force: bool) -> None:
    """Move the complete folder to its place; an older export is kept until then."""
    require_free(place, force)
    for file in (*half.iterdir(), half):
        sync_to_disk(file)
    old = place.with_name(f".{place.name}.{os.getpid()}.old")
    if place.exists():
        os.replace(place, old)
    os.replace(half, place)
    sync_to_disk(place.parent)
    shutil.rmtree(old, ignore_errors=True)
