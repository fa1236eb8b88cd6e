"""Decode the files of a model folder strictly, since the folder may come from anywhere.

Every value that the loader works with has a type and bounds here, and the network is tried without numbers (on torch's
device ``meta``), so that neither a damaged nor a hostile folder takes memory or ends in a traceback. Nothing in the
folder is imported or run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import UNSET, Meta, UnsetType
from torch import Tensor

from fedkin.core.errors import RunFolderError
from fedkin.exporting import loader
from fedkin.exporting.rules import WORDS

_MOST_BYTES = 4 * 10**9  # of a file, and of one result of a network for a chunk of samples
_MOST_REPEATS = 1000  # maximum layers of a recurrent layer; each makes its own parameters

_Option = bool | int | float | str | None


class _Input(msgspec.Struct):
    shape: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1)]
    channels_last: bool
    dtype: Literal["float32", "int64"] = "float32"


class _Parameter(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    shape: list[int]


class _Network(msgspec.Struct):
    name: str
    head: str
    parameters: Annotated[list[_Parameter], Meta(min_length=1)]
    fixed: list[str] = []


class _Rule(msgspec.Struct):
    kind: str
    of: Literal["logits", "probabilities"] | None = None
    inner: _Rule | None = None

    def __post_init__(self) -> None:
        if self.kind not in WORDS:
            raise ValueError(f"expected one of {', '.join(WORDS)}, got {self.kind!r}")
        if (self.kind == "vote") != (self.of is not None):
            raise ValueError("a vote, and no other rule, names what is voted on")
        if (self.kind in ("additive", "mixture")) != (self.inner is not None):
            raise ValueError("an additive rule or a mixture, and no other, has an inner one")


class _Config(msgspec.Struct):
    data: dict[str, Any] = {}


class _Card(msgspec.Struct):
    """The keys of ``card.json`` that the loader and `fedkin predict` read; other keys are for people."""

    format: Literal["fedkin export 1"]
    classes: Annotated[int, Meta(ge=1)]
    input: _Input
    network: _Network
    rule: _Rule
    tensors: dict[str, Literal["plain", "network", "networks"]]
    config: _Config
    columns: dict[str, str] | None = None


class _Layer(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: str  # the loader has the list
    options: dict[str, _Option | list[_Option]]

    def __post_init__(self) -> None:
        repeats = self.options.get("num_layers", 1)
        if type(repeats) is not int or not 1 <= repeats <= _MOST_REPEATS:
            raise ValueError(f"expected a whole number in 1..{_MOST_REPEATS} for num_layers")


class _Step(msgspec.Struct):
    to: str
    do: Literal["input", "layer", "function", "method", "output"]
    target: str = ""
    args: list[Any] | UnsetType = UNSET
    options: dict[str, Any] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.do != "input" and (self.args is UNSET or self.options is UNSET):
            raise ValueError("a step has `args` and `options`")


class _Plan(msgspec.Struct):
    layers: dict[str, _Layer]
    steps: Annotated[list[_Step], Meta(min_length=1)]


class _Seen(msgspec.Struct):
    """Ranges of a column or of the inputs."""

    min: float | UnsetType = UNSET
    max: float | UnsetType = UNSET
    low: float | UnsetType = UNSET
    high: float | UnsetType = UNSET
    std: float | UnsetType = UNSET
    values: list[float] | UnsetType = UNSET
    texts: list[str] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.low is UNSET) != (self.high is UNSET):
            raise ValueError("a range has both `low` and `high`, or neither")


class _Ranges(msgspec.Struct):
    inputs: _Seen
    columns: dict[str, _Seen] = {}

    def __post_init__(self) -> None:
        if self.inputs.low is not UNSET and self.inputs.std is UNSET:
            raise ValueError("the inputs have a range and lack `std`")


def check_folder(place: Path) -> Mapping[str, Any]:
    """Read and check all files of a model folder; of its weights only the size, since `loader.load` reads them.

    Returns:
        The content of ``card.json``.

    Raises:
        RunFolderError: a file is missing, too large, not JSON, or holds a value of another type.
    """
    card: Mapping[str, Any] = _read(place, "card.json", _Card)
    labels = _read(place, "labels.json", list[str])
    others = {"network.json": _Plan, "ranges.json": _Ranges, "preparation.json": dict[str, Any]}
    for name, kind in others.items():
        if (place / name).exists():
            _read(place, name, kind)
    if len(labels) != card["classes"]:
        raise RunFolderError(
            f"{place / 'labels.json'}: {len(labels)} labels for {card['classes']} classes; export the model again"
        )
    _require_size(place / "model.safetensors")
    return card


def check_network(place: Path, card: Mapping[str, Any]) -> None:
    """Run the network that a folder describes on inputs without numbers (torch's device ``meta``).

    Raises:
        RunFolderError: the inputs do not fit, its output or parameters have other shapes than the card states, or a
            step takes more than 4 GB.
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
        x = _bounded(torch.empty(loader.CHUNK, *shape, dtype=loader.dtype_of(card), device="meta"), "its inputs", place)
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
    """Return the network's output; raise if a step gives a result beyond the limit."""
    known: dict[str, Any] = {}
    for step in network.steps:
        found = known[step["to"]] = network.step(step, known, x)
        for t in found if isinstance(found, tuple) else (found,):
            _bounded(t, f"step {step['to']!r} of its network", place)
    return found


def _bounded(found: Any, what: str, place: Path) -> Any:
    memory = found.numel() * found.element_size() if isinstance(found, Tensor) else 0
    if memory > _MOST_BYTES:
        raise RunFolderError(
            f"{place}: {what} takes {memory / 1e9:,.0f} GB for {loader.CHUNK} samples, more than 4 GB; it is damaged, "
            "export the model again"
        )
    return found


def _read(place: Path, name: str, kind: Any) -> Any:
    """Return the content of a JSON file as plain values that fit a type."""
    file = place / name
    _require_size(file)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise RunFolderError(f"{place} is not an exported model: {name} cannot be read ({e})") from e
    try:
        msgspec.convert(found, kind)
    except (ValueError, OverflowError, RecursionError) as e:
        reason = str(e)[:1].lower() + str(e)[1:]
        raise RunFolderError(f"{file}: {reason[:300]}; it is damaged, export the model again") from e
    return found


def _require_size(file: Path) -> None:
    """Raise `RunFolderError` unless it is a file, and not a pipe or a device, of at most 4 GB."""
    if not file.is_file():
        raise RunFolderError(f"{file.parent} is not an exported model: it has no file {file.name}")
    if (size := file.stat().st_size) > _MOST_BYTES:
        raise RunFolderError(f"{file} has {size / 1e9:,.0f} GB, more than 4 GB; it is damaged, export the model again")
