"""Decode the files of a model folder strictly, since the folder may come from anywhere.

Every value is of its type and within bounds before the loader works with it, and the network is tried without numbers
(on torch's device ``meta``), so that neither a damaged nor a hostile folder takes memory or ends in a traceback.
Nothing in the folder is imported or run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.core.errors import DataError, RunFolderError
from fedkin.data.limits import Budget, advice, limit_gb, size_of
from fedkin.exporting import loader
from fedkin.exporting.rules import WORDS

_LARGEST_FILE = 64 << 20  # bytes of a JSON file
_LONGEST_TEXT = 10_000
_MOST_STEPS = 10_000
_MOST_NUMBERS = 2**40  # in one tensor; files are limited by their sizes
_DEEPEST = 8  # methods inside methods
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # which could drive a terminal

Check = Callable[[Any, str], None]
"""Raises `RunFolderError` unless a value is what it should be; the second argument names the value."""


def check_folder(place: Path) -> Mapping[str, Any]:
    """Reads and checks all files of a model folder but its weights, which `loader.load` reads.

    Returns:
        what ``card.json`` states.

    Raises:
        RunFolderError: a file is missing, too large, not JSON, or holds a value of another type or out of bounds.
    """
    card: Mapping[str, Any] = _read(place, "card.json", _CARD)
    _read(place, "labels.json", _list(_text(_LONGEST_TEXT), 1, 100_000))
    for name, check in (("network.json", _PLAN), ("ranges.json", _ranges), ("preparation.json", _anything)):
        if (place / name).exists():
            _read(place, name, check)
    labels, classes = json.loads((place / "labels.json").read_text(encoding="utf-8")), card["classes"]
    if len(labels) != classes:
        raise RunFolderError(
            f"{place / 'labels.json'}: {len(labels)} labels for {classes} classes; export the model again"
        )
    weights = place / "model.safetensors"
    if weights.is_file():
        size = weights.stat().st_size
        try:
            Budget().take(weights, size, size)
        except DataError as e:
            raise RunFolderError(str(e)) from e
    return card


def check_network(place: Path, card: Mapping[str, Any]) -> None:
    """Tries the network that a folder describes, on inputs without numbers.

    Raises:
        RunFolderError: it does not go through, gives other shapes than the card states, or a step of it takes more
            memory than the limit on data.
    """
    shape, classes = tuple(card["input"]["shape"]), card["classes"]
    try:
        network = loader.described(place, card)().eval()
        wanted = {name: tuple(sides) for name, sides in card["network"]["parameters"]}
        found = {name: tuple(t.shape) for name, t in network.state_dict().items() if name in wanted}
        odd = [name for name in wanted if found.get(name) != wanted[name]]
        if odd:
            raise RunFolderError(
                f"{place}: the network has {odd[0]} of shape {list(found.get(odd[0], ()))}, the card says "
                f"{list(wanted[odd[0]])}; export the model again"
            )
        x = _bounded(torch.empty(loader.CHUNK, *shape, device="meta"), "its inputs", place)
        with torch.no_grad():
            out = _sized(network, x, place) if isinstance(network, loader.Network) else network(x)
    except loader.ExportError as e:
        raise RunFolderError(f"{place}: {e}") from e
    except loader.FAULTS as e:
        raise RunFolderError(
            f"{place}: inputs of shape {list(shape)} cannot go through its network ({type(e).__name__}: "
            f"{' '.join(str(e).split())[:300]}); export the model again"
        ) from e
    if not isinstance(out, Tensor) or tuple(out.shape) != (loader.CHUNK, classes):
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise RunFolderError(
            f"{place}: its network gives {got} for {loader.CHUNK} inputs, expected [{loader.CHUNK}, {classes}]; "
            "export the model again"
        )


def _sized(network: loader.Network, x: Tensor, place: Path) -> Any:
    """The network's output, if no step gives a result beyond the limit."""
    known: dict[str, Any] = {}
    for step in network.steps:
        found = known[step["to"]] = network.step(step, known, x)
        for t in found if isinstance(found, tuple) else (found,):
            _bounded(t, f"step {step['to']!r} of its network", place)
    return found


def _bounded(found: Any, what: str, place: Path) -> Any:
    memory = found.numel() * found.element_size() if isinstance(found, Tensor) else 0
    if memory > Budget().left:
        raise RunFolderError(
            f"{place}: {what} takes {size_of(memory)} for {loader.CHUNK} samples; the limit is {limit_gb():g} GB. "
            f"{advice(math.ceil(memory / 1e9))}"
        )
    return found


# ---- values -----------------------------------------------------------------------------------------------------
def _read(place: Path, name: str, check: Check) -> Any:
    file = place / name
    try:
        size = file.stat().st_size
        if size > _LARGEST_FILE:
            raise RunFolderError(f"{file} has {size} bytes, at most {_LARGEST_FILE} are read; it is not of an export")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise RunFolderError(f"{place} is not an exported model: {name} cannot be read ({e})") from e
    check(found, str(file))
    return found


def _wrong(where: str, wanted: str, found: object) -> RunFolderError:
    got = ascii(found)[:60] if isinstance(found, str | float | bool | None) else type(found).__name__
    if type(found) is int:
        got = str(found) if abs(found) < 10**18 else "a huge number"
    return RunFolderError(f"{where}: expected {wanted}, got {got}; the export is damaged, export the model again")


def _text(most: int = 500) -> Check:
    def check(found: Any, where: str) -> None:
        if not isinstance(found, str) or len(found) > most or _CONTROL.search(found):
            raise _wrong(where, f"a text of at most {most} characters without control characters", found)

    return check


def _whole(least: int, most: int) -> Check:
    def check(found: Any, where: str) -> None:
        if type(found) is not int or not least <= found <= most:
            raise _wrong(where, f"a whole number in {least}..{most}", found)

    return check


def _flag(found: Any, where: str) -> None:
    if not isinstance(found, bool):
        raise _wrong(where, "true or false", found)


def _finite(found: Any, where: str) -> None:
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e300:  # of ints, too
        raise _wrong(where, "a finite number", found)


def _anything(found: Any, where: str) -> None:
    """Parts that no code works with."""


def _or_none(check: Check) -> Check:
    return lambda found, where: None if found is None else check(found, where)


def _list(check: Check, least: int, most: int) -> Check:
    def checks(found: Any, where: str) -> None:
        if not isinstance(found, list) or not least <= len(found) <= most:
            got = f"{len(found)} of them" if isinstance(found, list) else found
            raise _wrong(where, f"a list of {least} to {most}", got)
        for i, one in enumerate(found):
            check(one, f"{where}[{i}]")

    return checks


def _table(**checks: Check) -> Check:
    """An object with these keys; others are not looked at."""

    def check(found: Any, where: str) -> None:
        if not isinstance(found, dict):
            raise _wrong(where, f"an object with {', '.join(checks)}", found)
        for key, one in checks.items():
            if key not in found:
                raise RunFolderError(f"{where} lacks {key!r}; the export is damaged, export the model again")
            one(found[key], f"{where}: {key}")

    return check


def _map(check: Check, most: int) -> Check:
    def checks(found: Any, where: str) -> None:
        if not isinstance(found, dict) or len(found) > most:
            raise _wrong(where, f"an object of at most {most} keys", found)
        for key, one in found.items():
            _text(1000)(key, f"{where}: a key")
            check(one, f"{where}: {key}")

    return checks


def _shape(found: Any, where: str) -> None:
    _list(_whole(0, _MOST_NUMBERS), 0, 8)(found, where)
    if math.prod(found) > _MOST_NUMBERS:
        raise _wrong(where, f"a shape of at most {_MOST_NUMBERS} numbers", "x".join(map(str, found)))


def _input_shape(found: Any, where: str) -> None:
    _shape(found, where)
    if not found or min(found) < 1:
        raise _wrong(where, "a shape with sides of at least 1", "x".join(map(str, found)))


def _parameter(found: Any, where: str) -> None:
    _list(_anything, 2, 2)(found, where)
    _text()(found[0], where)
    _shape(found[1], where)


def _one_of(*known: str) -> Check:
    def check(found: Any, where: str) -> None:
        if found not in known:
            raise _wrong(where, f"one of {', '.join(known)}", found)

    return check


def _rule(found: Any, where: str, depth: int = 0) -> None:
    _table(kind=_one_of(*WORDS))(found, where)
    if depth > _DEEPEST:
        raise _wrong(where, f"at most {_DEEPEST} rules inside each other", "more")
    if found["kind"] == "vote":
        _table(of=_one_of("logits", "probabilities"))(found, where)
    if found["kind"] == "additive":
        _table(inner=lambda inner, at: _rule(inner, at, depth + 1))(found, where)


def _layer(found: Any, where: str) -> None:
    _list(_anything, 2, 2)(found, where)
    _one_of(*loader.LAYERS)(found[0], where)
    _map(_anything, 50)(found[1], where)
    for name, value in found[1].items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | bool | None):
                _or_none(lambda v, w: None if isinstance(v, bool) else _text()(v, w))(one, f"{where}: {name}")
            else:
                _finite(one, f"{where}: {name}")
    if "num_layers" in found[1]:  # each makes parameters of its own
        _whole(1, 1000)(found[1]["num_layers"], f"{where}: num_layers")


def _step(found: Any, where: str) -> None:
    _table(to=_text(), do=_one_of("input", "layer", "function", "method", "output"))(found, where)
    if found["do"] != "input":
        _table(args=_list(_anything, 0, 1000), options=_map(_anything, 50))(found, where)
    _text()(found.get("target", ""), f"{where}: target")


def _seen(found: Any, where: str) -> None:
    """Ranges of a column or of the inputs: numbers, lists of numbers or texts, flags."""
    _map(_anything, 100)(found, where)
    for name in ("min", "max", "low", "high", "std"):
        if name in found:
            _finite(found[name], f"{where}: {name}")
    if "low" in found:
        _table(high=_finite)(found, where)
    for name, check in (("values", _finite), ("texts", _text(_LONGEST_TEXT))):
        if name in found:
            _list(check, 0, 1000)(found[name], f"{where}: {name}")


def _ranges(found: Any, where: str) -> None:
    _table(inputs=_seen)(found, where)
    if found["inputs"].get("low") is not None:
        _table(std=_finite)(found["inputs"], f"{where}: inputs")
    _map(_seen, 100_000)(found.get("columns", {}), f"{where}: columns")


def _config(found: Any, where: str) -> None:
    _table()(found, where)
    _table()(found.get("data", {}), f"{where}: data")


_CARD = _table(
    format=_one_of(loader.FORMAT),
    client=_or_none(_whole(0, 2**62)),
    client_name=_or_none(_text()),
    title=_text(),
    round=_whole(0, 2**62),
    rounds_planned=_whole(0, 2**62),
    seed=_whole(-(2**63), 2**64),
    data=_text(_LONGEST_TEXT),
    classes=_whole(1, 100_000),
    input=_table(shape=_input_shape, channels_last=_flag),
    network=_table(name=_text(), head=_text(), by_name=_flag, parameters=_list(_parameter, 1, 100_000)),
    rule=_rule,
    tensors=_map(_one_of("plain", "network", "networks"), 1000),
    config=_config,
    versions=_map(_text(), 100),
)
_PLAN = _table(layers=_map(_layer, _MOST_STEPS), steps=_list(_step, 1, _MOST_STEPS))
