"""One client's model as a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedkin.core import Bundle, ConfigError, EngineError, Method, Net, RunFolderError
from fedkin.course import Played
from fedkin.engines import asked, common
from fedkin.exporting import card as cards
from fedkin.exporting import loader
from fedkin.exporting.network import described
from fedkin.exporting.played import Run, name_of, number_of, played, simulation
from fedkin.exporting.programs import Format, require_formats, write_program
from fedkin.exporting.rules import rule

_TOLERANCE = 1e-4  # logits of the exported model against those of the run's network


def export(
    run: Run,
    client: int | str,
    out: Path | str | None = None,
    *,
    formats: Collection[Format] = (),
    force: bool = False,
) -> Path:
    """Writes what a client predicts with after the run's last round to a folder of its own.

    What is trained for it, is trained just as in an evaluation: figures are the run's own.

    Args:
        run: what `fedkin.run` gave, or a run folder; an interrupted run gives the models of its last whole round.
        client: number or name.
        out: the new folder. Default: ``exports/client-NAME`` in the run's folder.
        formats: programs to write beside it: "torch-export" (``model.pt2``), "onnx" (``model.onnx``).
        force: an older export in ``out`` is replaced.

    Returns:
        the folder.

    Raises:
        ConfigError: no such client; a run whose clients are elsewhere; a method that predicts by code of its own; a
            format that this model does not allow.
        RunFolderError: ``out`` exists, or the run's folder is damaged.
        EngineError: the written model does not give the run's logits.
    """
    p = played(run)
    number = number_of(p, client)
    place = _place(p, out, f"client-{name_of(p, number) or number}")
    _require_free(place, force)
    require_formats(formats)
    return next(_written(p, {number: place}, formats, force))


def export_all(
    run: Run, out: Path | str | None = None, *, formats: Collection[Format] = (), force: bool = False
) -> Iterator[Path]:
    """`export` for every client that has joined, each into ``OUT/client-NAME``; gives each folder when it is done."""
    p = played(run)
    root = _place(p, out, "")
    places = {i: root / f"client-{_safe(name_of(p, i) or str(i))}" for i in range(len(p.server.sizes))}
    if len(set(places.values())) < len(places):
        places = {i: root / f"client-{i}" for i in places}
    for place in places.values():
        _require_free(place, force)
    require_formats(formats)
    yield from _written(p, places, formats, force)


def export_global(
    run: Run, out: Path | str | None = None, *, formats: Collection[Format] = (), force: bool = False
) -> Path:
    """`export` of the one model that the server sends to all clients.

    Raises:
        ConfigError: the method has none.
    """
    p = played(run)
    place = _place(p, out, "global")
    _require_free(place, force)
    require_formats(formats)
    method, net = p.course.method, p.course.net
    if method.family == "one global model":  # what one client predicts with is what all do
        with simulation(p) as clients:
            found = next(asked(method, net, clients, p.course.plan, p.server, "keep", [0]))[0][0]
        return _write(p, None, found, None, rule(method), place, formats, force)
    with simulation(p) as clients:
        sent = common(method, net, clients, p.course.plan, p.server)
    if method.family in ("clusters", "no federation") or sent.get("model", torch.empty(0)).shape != (net.size,):
        raise ConfigError(
            f"{p.course.title} has no global model: clients get {method.family or 'models of their own'}; export a "
            "client's (--client) or everybody's (--all)"
        )
    return _write(p, None, Bundle(model=sent.model), None, {"kind": "model"}, place, formats, force)


def _written(p: Played, places: dict[int, Path], formats: Collection[Format], force: bool) -> Iterator[Path]:
    how, c = rule(p.course.method), p.course
    for at in range(0, len(places), 32):  # a few at a time: no more models in memory than these
        some = list(places)[at : at + 32]
        with simulation(p) as clients:
            kept, seen = dict[int, Bundle](), dict[int, Bundle]()
            for answers, _ in asked(c.method, c.net, clients, c.plan, p.server, "keep", some):
                kept |= answers
            for answers, _ in asked(c.method, c.net, clients, c.plan, p.server, "evaluate", some):
                seen |= answers
            for i in some:
                yield _write(p, i, kept[i], seen[i].test, how, places[i], formats, force)


def _write(
    p: Played,
    client: int | None,
    b: Bundle,
    evaluated: Tensor | None,
    how: dict[str, Any],
    place: Path,
    formats: Collection[Format],
    force: bool,
) -> Path:
    """Writes the folder beside its place, tries it, and moves it there."""
    net, labels = p.course.net, list(p.federation.labels or map(str, range(p.federation.classes)))
    stored, kinds = _named(net, b)
    card, plan = cards.card(p, client, how, kinds), described(net)
    half = place.with_name(f".{place.name}.{os.getpid()}.new")
    shutil.rmtree(half, ignore_errors=True)
    try:
        half.mkdir(parents=True)
        (half / "model.safetensors").write_bytes(save(stored, metadata={"format": "pt"}))
        (half / "labels.json").write_text(json.dumps(labels, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if plan is not None:
            (half / "network.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
        shutil.copyfile(loader.__file__, half / "load.py")
        prepared = _preparation(p, client, half)
        _tell(half, card | {"test": None}, labels, standalone=plan is not None, prepared=prepared)
        model = loader.load(half, None if plan is not None else net._factory)
        if client is not None:
            card["test"] = cards.tested(_tried(p, client, b, model), evaluated)
        else:
            card["test"] = None
        for name in formats:
            write_program(name, model, half)
        card["files"] = sorted(f.name for f in half.iterdir())
        _tell(half, card, labels, standalone=plan is not None, prepared=prepared)
        _move(half, place, force)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return place


def _named(net: Net, b: Bundle) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors under the names of the network's parameters, and what each of the bundle's is.

    ``network``: a flat vector ``[P]``; ``networks``: rows ``[k, P]``, stored as ``[k, *shape]``; ``plain``: as it is.
    """
    stored, kinds = dict[str, Tensor](), dict[str, str]()
    for name, t in b.items():
        flat = t.dim() in (1, 2) and t.shape[-1] == net.size and t.dtype == torch.float32
        kinds[name] = ("plain", "network", "networks")[t.dim() if flat else 0]
        if not flat:
            stored[name] = t.detach().clone(memory_format=torch.contiguous_format)
            continue
        for parameter, (span, shape) in net.places().items():
            stored[f"{name}.{parameter}"] = t[..., span].detach().reshape(*t.shape[:-1], *shape).clone()
    return stored, kinds


def _tried(p: Played, client: int, b: Bundle, model: loader.Model) -> Tensor:
    """The exported model's confusion matrix on the client's test part.

    Raises:
        EngineError: its logits are not those of the run's own code.
    """
    method: Method = p.course.method
    net, test, c = p.course.net, p.job.shards[client].test, p.federation.classes
    if not len(test):
        return torch.zeros(c, c, dtype=torch.int64)
    with torch.no_grad():
        wanted = torch.cat([method.predict(net, b, x) for x in net.layout(test.x).split(256)])
    got = model.logits(test.x)
    if not torch.allclose(got, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
        apart = float((got - wanted).nan_to_num().abs().max())
        raise EngineError(
            f"the exported model of client {client} does not give the run's logits (they differ by up to {apart:.2g}); "
            "nothing was written. This is a fault of fedkin's: please report it with the config"
        )
    return torch.bincount(test.y * c + got.argmax(1), minlength=c * c).view(c, c)


def _tell(half: Path, card: dict[str, Any], labels: Sequence[str], *, standalone: bool, prepared: bool) -> None:
    (half / "card.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    text = cards.readme(card, list(labels), standalone=standalone, prepared=prepared)
    (half / "README.md").write_text(text, encoding="utf-8")


def _preparation(p: Played, client: int | None, half: Path) -> bool:
    """Writes how raw inputs were prepared, where the federation knows it."""
    found = p.federation.preparation
    if found is None:
        return False
    own = found if client is None else found.of(client)
    text = json.dumps(own.to_json(), indent=2, ensure_ascii=False)
    (half / "preparation.json").write_text(text + "\n", encoding="utf-8")
    return True


# ---- places ---------------------------------------------------------------------------------------------------------
def _place(p: Played, out: Path | str | None, name: str) -> Path:
    if out is not None:
        return Path(out)
    if p.folder is None:
        raise ConfigError("this run has no folder of its own: say where the export goes, out='FOLDER'")
    return p.folder / "exports" / _safe(name) if name else p.folder / "exports"


def _safe(name: str) -> str:
    """A client's name as part of a folder's name."""
    return "".join(ch if ch.isalnum() or ch in "._-" else "_" for ch in name)[:80]


def _require_free(place: Path, force: bool) -> None:
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    ours = _is_export(place)
    if not ours:
        raise RunFolderError(f"{place} exists and is no export; name another folder with --out")
    if not force:
        raise RunFolderError(f"{place} exists already; name another folder with --out, or replace it with --force")


def _is_export(place: Path) -> bool:
    try:
        card = json.loads((place / "card.json").read_text(encoding="utf-8"))
        return bool(card["format"] == loader.FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _move(half: Path, place: Path, force: bool) -> None:
    """Puts the whole folder in its place; what was there is kept until then."""
    _require_free(place, force)
    old = place.with_name(f".{place.name}.{os.getpid()}.old")
    if place.exists():
        os.replace(place, old)
    os.replace(half, place)
    shutil.rmtree(old, ignore_errors=True)
