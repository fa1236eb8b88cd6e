"""Decode the files of a model folder strictly, since the folder may come from anywhere.

Every value that the loader works with has a type and bounds here, and the network is tried without numbers (on torch's
device ``meta``), so that neither a damaged nor a hostile folder takes memory or ends in a traceback. Nothing in the
folder is imported or run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import UNSET, Meta, UnsetType
from torch import Tensor

from fedkin.core.errors import DataError, RunFolderError
from fedkin.data.limits import Budget, advice, limit_gb, size_of
from fedkin.exporting import loader
from fedkin.exporting.rules import WORDS

_LARGEST_FILE = 64 << 20  # maximum bytes of a JSON file
_MOST_NUMBERS = 2**40  # maximum numbers in one tensor; files are limited by their sizes
_DEEPEST = 8  # maximum depth of nested rules
_MOST_REPEATS = 1000  # maximum layers of a recurrent layer; each makes its own parameters

_Text = Annotated[str, Meta(max_length=500)]
_LongText = Annotated[str, Meta(max_length=10_000)]
_Key = Annotated[str, Meta(max_length=1000)]
_Number = Annotated[float, Meta(gt=-1e300, lt=1e300)]
_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Classes = Annotated[int, Meta(ge=1, le=100_000)]
_Side = Annotated[int, Meta(ge=0, le=_MOST_NUMBERS)]
_InputSide = Annotated[int, Meta(ge=1, le=_MOST_NUMBERS)]
_Shape = Annotated[list[_Side], Meta(max_length=8)]
_Whole = Annotated[int, Meta(gt=-(2**62), lt=2**62)]
_Option = bool | _Whole | _Number | _Text | None
_Labels = Annotated[list[_LongText], Meta(min_length=1, max_length=100_000)]


def _require_bounded(shape: list[int]) -> None:
    """Raise `ValueError`, which msgspec converts to its own error, if a tensor of this shape has too many numbers."""
    if math.prod(shape) > _MOST_NUMBERS:
        raise ValueError(f"expected a shape of at most {_MOST_NUMBERS} numbers, got {'x'.join(map(str, shape))}")


class _Input(msgspec.Struct):
    shape: Annotated[list[_InputSide], Meta(min_length=1, max_length=8)]
    channels_last: bool
    dtype: Literal["float32", "int64"] = "float32"

    def __post_init__(self) -> None:
        _require_bounded(self.shape)


class _Parameter(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: _Text
    shape: _Shape

    def __post_init__(self) -> None:
        _require_bounded(self.shape)


class _Network(msgspec.Struct):
    name: _Text
    head: _Text
    by_name: bool
    parameters: Annotated[list[_Parameter], Meta(min_length=1, max_length=100_000)]
    fixed: Annotated[list[_Text], Meta(max_length=100_000)] = []


class _Rule(msgspec.Struct):
    kind: _Text
    of: Literal["logits", "probabilities"] | None = None
    inner: _Rule | None = None
    depth: int = 0

    def __post_init__(self) -> None:
        if self.kind not in WORDS:
            raise ValueError(f"expected one of {', '.join(WORDS)}, got {self.kind!r}")
        if (self.kind == "vote") != (self.of is not None):
            raise ValueError("a vote, and no other rule, names what is voted on")
        if (self.kind in ("additive", "mixture")) != (self.inner is not None):
            raise ValueError("an additive rule or a mixture, and no other, has an inner one")
        self.depth = 0 if self.inner is None else self.inner.depth + 1
        if self.depth > _DEEPEST:
            raise ValueError(f"expected at most {_DEEPEST} rules inside each other")


class _Config(msgspec.Struct):
    data: dict[str, Any] = {}


class _Card(msgspec.Struct):
    """The keys of ``card.json`` that the loader and `fedkin predict` read; other keys are for people."""

    format: str
    client: _Count | None
    client_name: _Text | None
    title: _Text
    round: _Count
    rounds_planned: _Count
    seed: int
    data: _LongText
    classes: _Classes
    input: _Input
    network: _Network
    rule: _Rule
    tensors: Annotated[dict[_Key, Literal["plain", "network", "networks"]], Meta(max_length=1000)]
    config: _Config
    versions: Annotated[dict[_Key, _Text], Meta(max_length=100)]
    columns: Annotated[dict[_Key, _LongText], Meta(max_length=100)] | None = None

    def __post_init__(self) -> None:
        if self.format != loader.FORMAT:
            raise ValueError(f"expected the format {loader.FORMAT!r}, got {self.format[:60]!r}")
        if not -(2**63) <= self.seed <= 2**64:
            raise ValueError("expected a seed of 64 bits")


class _Layer(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: _Text  # the loader has the list
    options: Annotated[dict[_Key, _Option | list[_Option]], Meta(max_length=50)]

    def __post_init__(self) -> None:
        repeats = self.options.get("num_layers", 1)
        if type(repeats) is not int or not 1 <= repeats <= _MOST_REPEATS:
            raise ValueError(f"expected a whole number in 1..{_MOST_REPEATS} for num_layers")


class _Step(msgspec.Struct):
    to: _Text
    do: Literal["input", "layer", "function", "method", "output"]
    target: _Text = ""
    args: Annotated[list[Any], Meta(max_length=1000)] | UnsetType = UNSET
    options: Annotated[dict[_Key, Any], Meta(max_length=50)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.do != "input" and (self.args is UNSET or self.options is UNSET):
            raise ValueError("a step has `args` and `options`")


class _Plan(msgspec.Struct):
    layers: Annotated[dict[_Key, _Layer], Meta(max_length=10_000)]
    steps: Annotated[list[_Step], Meta(min_length=1, max_length=10_000)]


class _Seen(msgspec.Struct):
    """Ranges of a column or of the inputs."""

    min: _Number | UnsetType = UNSET
    max: _Number | UnsetType = UNSET
    low: _Number | UnsetType = UNSET
    high: _Number | UnsetType = UNSET
    std: _Number | UnsetType = UNSET
    values: Annotated[list[_Number], Meta(max_length=1000)] | UnsetType = UNSET
    texts: Annotated[list[_LongText], Meta(max_length=1000)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.low is UNSET) != (self.high is UNSET):
            raise ValueError("a range has both `low` and `high`, or neither")


class _Ranges(msgspec.Struct):
    inputs: _Seen
    columns: Annotated[dict[_Key, _Seen], Meta(max_length=100_000)] = {}

    def __post_init__(self) -> None:
        if self.inputs.low is not UNSET and self.inputs.std is UNSET:
            raise ValueError("the inputs have a range and lack `std`")


def check_folder(place: Path) -> Mapping[str, Any]:
    """Read and check all files of a model folder except its weights, which `loader.load` reads.

    Returns:
        The content of ``card.json``.

    Raises:
        RunFolderError: a file is missing, too large, not JSON, or holds a value of another type or out of bounds.
    """
    card: Mapping[str, Any] = _read(place, "card.json", _Card)
    labels = _read(place, "labels.json", _Labels)
    others = {"network.json": _Plan, "ranges.json": _Ranges, "preparation.json": dict[str, Any]}
    for name, kind in others.items():
        if (place / name).exists():
            _read(place, name, kind)
    if len(labels) != card["classes"]:
        raise RunFolderError(
            f"{place / 'labels.json'}: {len(labels)} labels for {card['classes']} classes; export the model again"
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
    """Run the network that a folder describes on inputs without numbers (torch's device ``meta``).

    Raises:
        RunFolderError: the inputs do not fit, its output or parameters have other shapes than the card states, or a
            step takes more memory than the limit on data.
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
    if memory > Budget().left:
        raise RunFolderError(
            f"{place}: {what} takes {size_of(memory)} for {loader.CHUNK} samples; the limit is {limit_gb():g} GB. "
            f"{advice(math.ceil(memory / 1e9))}"
        )
    return found


def _read(place: Path, name: str, kind: Any) -> Any:
    """Return the content of a JSON file as plain values that fit a type."""
    file = place / name
    try:
        size = file.stat().st_size
        if size > _LARGEST_FILE:
            raise RunFolderError(
                f"{file} has {size} bytes, at most {_LARGEST_FILE} are read; it does not belong to an export"
            )
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise RunFolderError(f"{place} is not an exported model: {name} cannot be read ({e})") from e
    try:
        msgspec.convert(found, kind)
    except (ValueError, OverflowError, RecursionError) as e:
        reason = str(e)[:1].lower() + str(e)[1:]
        raise RunFolderError(f"{file}: {reason[:300]}; it is damaged, export the model again") from e
    return found
