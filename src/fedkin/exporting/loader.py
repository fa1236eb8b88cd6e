"""Loads an exported model; needs torch and safetensors, and fedkin only where `card.json` says so.

Lies in every export as ``load.py``::

    from load import load

    model = load()              # the folder that this file lies in
    model.probabilities(x)      # x [n, *shape], prepared as in training
    model.labels                # names of the classes
    model.predict_csv("rows.csv")  # tables: rows as they are; model.inputs(rows) gives their x

Nothing in the folder is run as a program or unpickled: the network is a list of torch layers in ``network.json``.
"""

from __future__ import annotations

import importlib.util
import json
import operator
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

FORMAT = "fedkin export 1"
_CHUNK = 256  # samples per pass, as in the evaluation of a run: another number may change the last bit of a logit

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (operator.add, operator.sub, operator.mul, operator.truediv, operator.getitem)},
    **{f"torch.{f.__name__}": f for f in (torch.add, torch.cat, torch.flatten, torch.mean, torch.relu)},
    **{f"torch.{f.__name__}": f for f in (torch.sigmoid, torch.tanh, torch.sum, torch.mul)},
    **{f"F.{n}": getattr(F, n) for n in ("relu", "gelu", "silu", "leaky_relu", "elu", "dropout", "softmax", "pad")},
    **{f"F.{n}": getattr(F, n) for n in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "log_softmax")},
}
"""Functions that a network may call between its layers."""
METHODS = (
    "add", "contiguous", "flatten", "mean", "mul", "permute", "relu", "reshape", "sigmoid", "size", "squeeze", "sum",
    "tanh", "transpose", "unsqueeze", "view",
)  # fmt: skip
"""Methods of a tensor that a network may call."""
LAYERS = (
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "BatchNorm1d",
    "BatchNorm2d", "Conv1d", "Conv2d", "Dropout", "Dropout1d", "Dropout2d", "ELU", "Flatten", "GELU", "GRU",
    "GroupNorm", "Hardswish", "Identity", "InstanceNorm1d", "InstanceNorm2d", "LSTM", "LayerNorm", "LeakyReLU",
    "Linear", "LocalResponseNorm", "MaxPool1d", "MaxPool2d", "PReLU", "RNN", "ReLU", "ReLU6", "SELU", "SiLU",
    "Sigmoid", "Softplus", "Tanh", "ZeroPad2d",
)  # fmt: skip
"""Layers of torch that a network may have."""


class ExportError(Exception):
    """The folder is no whole export, or what it is asked does not fit it."""


class Network(nn.Module):
    """A network of torch's layers, from its description: ``layers`` by name, and the ``steps`` from input to output."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = list(plan["steps"])
        for name, (kind, options) in plan["layers"].items():
            if kind not in LAYERS:
                raise ExportError(f"network.json: layer {name!r} is of an unknown kind {kind!r}")
            made: nn.Module = getattr(nn, kind)(**{k: _tuples(v) for k, v in options.items()})
            *outer, last = name.split(".")
            at: nn.Module = self
            for part in outer:
                if not hasattr(at, part):
                    at.add_module(part, nn.Module())
                at = getattr(at, part)
            at.add_module(last, made)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, C]``."""
        known: dict[str, Any] = {}
        for step in self.steps:
            known[step["to"]] = self._step(step, known, x)
        out: Tensor = known[self.steps[-1]["to"]]
        return out

    def _step(self, step: Mapping[str, Any], known: Mapping[str, Any], x: Tensor) -> Any:
        does, target = step["do"], step.get("target", "")
        if does == "input":
            return x
        args, options = _filled(step["args"], known), _filled(step["options"], known)
        if does == "layer":
            return self.get_submodule(target)(*args, **options)
        if does == "function" and target in FUNCTIONS:
            return FUNCTIONS[target](*args, **options)
        if does == "method" and target in METHODS:
            return getattr(args[0], target)(*args[1:], **options)
        if does == "output":
            return args[0]
        raise ExportError(f"network.json: unknown step {does!r} {target!r}")


def _filled(value: Any, known: Mapping[str, Any]) -> Any:
    """A description's arguments with the results of earlier steps put in."""
    if isinstance(value, list):
        return [_filled(v, known) for v in value]
    if isinstance(value, Mapping):
        if "result" in value:
            return known[value["result"]]
        if "tuple" in value:
            return tuple(_filled(v, known) for v in value["tuple"])
        if "slice" in value:
            return slice(*_filled(value["slice"], known))
        return {k: _filled(v, known) for k, v in value.items()}
    return value


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Model:
    """What one client predicts with.

    All but `logits` warn (`warnings.warn`) of values unlike those of training.

    Attributes:
        card: what the model is and how it was made.
        labels: names of the classes, in the order of the logits.
        shape: shape of one input.
        tensors: everything that the method gave the client to predict with, by name; networks as flat vectors.
        networks: those that are networks, as modules; one, or several that vote.
    """

    def __init__(
        self,
        card: Mapping[str, Any],
        labels: Sequence[str],
        stored: Mapping[str, Tensor],
        make: Callable[[], nn.Module],
        folder: Path | None = None,
    ) -> None:
        self.card, self.labels, self.folder = dict(card), tuple(labels), folder
        self.shape: tuple[int, ...] = tuple(card["input"]["shape"])
        self._make = make
        self.tensors: dict[str, Tensor] = {}
        self.networks: dict[str, list[nn.Module]] = {}
        self._seen: list[Tensor] = []
        self._parameters = [(str(name), tuple(shape)) for name, shape in card["network"]["parameters"]]
        for name, kind in card["tensors"].items():
            if kind == "plain":
                self.tensors[name] = stored[name]
                continue
            parts = [stored[f"{name}.{parameter}"] for parameter, _ in self._parameters]
            lead = parts[0].dim() - len(self._parameters[0][1])
            self.tensors[name] = torch.cat([p.flatten(lead) for p in parts], dim=lead)
            rows = self.tensors[name] if lead else self.tensors[name][None]
            self.networks[name] = [self._network(row.clone()) for row in rows]
        self._any = {name: bool(t.any()) for name, t in self.tensors.items() if t.dtype == torch.bool}

    def predict(self, x: Any) -> Tensor:
        """The number of the predicted class of each input, int64 ``[n]``."""
        return self._warned(x).argmax(1)

    def probabilities(self, x: Any) -> Tensor:
        """The softmax of the logits, ``[n, C]``; how sure the model is, not how often it is right."""
        return self._warned(x).softmax(1)

    def inputs(self, rows: Sequence[Mapping[str, object]]) -> Tensor:
        """Inputs ``[n, *shape]`` of rows of a table: the fields by column, as texts or numbers; None where empty.

        Raises:
            ExportError: the model takes no tables, a column is not there, a field of a column of numbers is none.
        """
        return self._inputs(rows, None)

    def predict_csv(self, path: Path | str) -> list[dict[str, Any]]:
        """The label and the probabilities by class of each row of a csv file; errors as of `inputs`."""
        try:
            rows, places = _prepare().read_records(Path(path))
        except ValueError as e:
            raise ExportError(str(e)) from e
        found = []
        for i, p in enumerate(self.logits(self._inputs(rows, places)).softmax(1).tolist(), start=1):
            told = {"label": self.labels[p.index(max(p))], "probabilities": dict(zip(self.labels, p, strict=True))}
            found.append({"row": str(i), **told})
        return found

    def ranges(self) -> dict[str, Any]:
        """What training had, as in ``ranges.json``; empty where the export does not say."""
        there = self.folder is not None and (self.folder / "ranges.json").exists()
        return dict(_json(self.folder, "ranges.json")) if self.folder is not None and there else {}

    def beside(self) -> tuple[str, ...]:
        """Columns that training data may have and the network does not look at: the class, the client, dropped ones."""
        data = self.card["config"].get("data", {})
        dropped = str(data.get("drop") or "").split(",")
        return tuple(str(n).strip() for n in (data.get("target"), data.get("client_column"), *dropped) if n)

    def _inputs(self, rows: Sequence[Mapping[str, object]], places: Sequence[str] | None) -> Tensor:
        made = _json(self.folder, "preparation.json") if self.folder is not None else {}
        if made.get("kind") != "table":
            raise ExportError("this model does not take rows of a table; give predict its inputs as in training")
        prepare = _prepare()
        columns = prepare.columns_of(made)
        try:
            raw = prepare.raw_rows(rows, columns, places)
        except ValueError as e:
            raise ExportError(str(e)) from e
        beside = (*self.beside(), made["target"])
        for text in prepare.unusual_rows(rows, raw, columns, self.ranges().get("columns", {}), beside):
            warnings.warn(text, stacklevel=3)
        return torch.from_numpy(prepare.scaled(raw, columns))

    def _warned(self, x: Any) -> Tensor:
        found, ranges = self.logits(x), self.ranges()
        if ranges:
            text = _prepare().unusual_inputs(torch.as_tensor(x).float().numpy(), ranges["inputs"])
            if text:
                warnings.warn(text, stacklevel=3)
        return found

    def logits(self, x: Any) -> Tensor:
        """Logits ``[n, C]`` of inputs ``[n, *shape]``, prepared as in training.

        Raises:
            ExportError: inputs of another shape, or values that are not finite.
        """
        x = torch.as_tensor(x).float()
        if tuple(x.shape[1:]) != self.shape or x.dim() != len(self.shape) + 1:
            raise ExportError(f"expected inputs [n, {', '.join(map(str, self.shape))}], got {list(x.shape)}")
        if not bool(x.isfinite().all()):
            raise ExportError("the inputs hold values that are not finite (nan or infinity); fill or drop them")
        if self.card["input"]["channels_last"]:
            x = _channels_last(x)
        with torch.no_grad():
            parts = [self.program(part) for part in x.split(_CHUNK)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.labels))

    def program(self, x: Tensor) -> Tensor:
        """Logits ``[n, C]``, in one pass and without checks: for tracing."""
        out = self._rule(self.card["rule"], "", x)
        self._seen.clear()
        return out

    def _rule(self, rule: Mapping[str, Any], inside: str, x: Tensor) -> Tensor:
        """Logits by a rule of prediction; ``inside`` stands before the names of a wrapped method's tensors."""
        kind, tensor = rule["kind"], self.tensors
        networks = {n[len(inside) :]: found for n, found in self.networks.items() if n.startswith(inside)}
        if kind == "additive":
            if "alone" in networks:
                return self._out(networks["alone"][0], x)
            return self._out(networks["model"][0], x) + self._rule(rule["inner"], f"{inside}inner.", x)
        if kind == "vote":
            z = torch.stack([self._out(network, x) for network in networks["models"]])
            mean = rule["of"] == "logits" or len(z) == 1
            return z.mean(0) if mean else z.log_softmax(2).logsumexp(0)
        logits = self._out(networks["model"][0], x)
        if kind == "prototypes" and self._any.get(f"{inside}known", False):
            z, known = self._seen[-1], tensor[f"{inside}known"]
            away = torch.stack([(z - p).square().sum(1) for p in tensor[f"{inside}prototypes"]], 1)
            return torch.where(known, -away, -torch.inf)
        if kind == "two heads" and f"{inside}head" in tensor:
            return logits + self._second(networks["model"][0], tensor[f"{inside}head"])
        return logits

    def _second(self, network: nn.Module, head: Tensor) -> Tensor:
        """Logits of another head ``[H]`` at the features that were just seen."""
        name = self.card["network"]["head"]
        own = [(n, s) for n, s in self._parameters if n.startswith(f"{name}.")]
        sizes = [torch.Size(shape).numel() for _, shape in own]
        values = {n[len(name) + 1 :]: p.view(s) for (n, s), p in zip(own, head.split(sizes), strict=True)}
        out: Tensor = torch.func.functional_call(network.get_submodule(name), values, (self._seen[-1],))
        return out

    def _out(self, network: nn.Module, x: Tensor) -> Tensor:
        self._seen.clear()
        out: Tensor = network(x)
        return out

    def _network(self, flat: Tensor) -> nn.Module:
        """The network at a flat vector; its parameters are views of it, as in a run."""
        network = self._make().eval()
        sizes = [torch.Size(shape).numel() for _, shape in self._parameters]
        views = {n: part.view(s) for (n, s), part in zip(self._parameters, flat.split(sizes), strict=True)}
        strange = network.load_state_dict(views, strict=False, assign=True).unexpected_keys
        if strange:
            raise ExportError(f"the network has no {', '.join(strange)}; it is not the one that was trained")
        network.requires_grad_(False)
        head = network.get_submodule(self.card["network"]["head"])
        head.register_forward_pre_hook(lambda _module, args: self._seen.append(args[0]))
        return network


def _channels_last(x: Tensor) -> Tensor:
    """Images ``[n, C, H, W]`` with channels innermost in memory, in which the model was evaluated."""
    n, c, h, w = x.shape
    return torch.empty(n, h, w, c).permute(0, 3, 1, 2).copy_(x)


def load(folder: Path | str | None = None, network: Callable[[], nn.Module] | None = None) -> Model:
    """The model in a folder.

    Args:
        folder: by default the one that this file lies in.
        network: makes the network, where the folder does not describe it; by default fedkin is asked for it.

    Raises:
        ExportError: the folder is no export, not whole, or needs a network that cannot be made.
    """
    place = Path(__file__).parent if folder is None else Path(folder)
    card, labels = _json(place, "card.json"), _json(place, "labels.json")
    if card.get("format") != FORMAT:
        raise ExportError(f"{place / 'card.json'} is of the format {card.get('format')!r}, expected {FORMAT!r}")
    try:
        stored = load_file(place / "model.safetensors")
    except (SafetensorError, OSError) as e:
        raise ExportError(f"{place / 'model.safetensors'} cannot be read ({e}); export the model again") from e
    if network is None and (place / "network.json").exists():
        plan = _json(place, "network.json")
        network = lambda: Network(plan)  # noqa: E731
    try:
        return Model(card, labels, stored, network or _from_fedkin(card), place)
    except KeyError as e:
        raise ExportError(f"{place} is not whole: it lacks {e}; export the model again") from e


def _prepare() -> ModuleType:
    """``prepare.py``, which lies beside this file."""
    file = Path(__file__).with_name("prepare.py")
    if not file.exists():  # in fedkin itself
        return importlib.import_module("fedkin.data.standalone")
    name = f"{__name__}_prepare"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ExportError(f"{file} cannot be read; export the model again")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _json(place: Path, name: str) -> Any:
    try:
        return json.loads((place / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ExportError(f"{place} is not an exported model: {name} cannot be read ({e})") from e


def _from_fedkin(card: Mapping[str, Any]) -> Callable[[], nn.Module]:
    name, shape, classes = card["network"]["name"], tuple(card["input"]["shape"]), card["classes"]
    if not card["network"]["by_name"]:
        raise ExportError(
            f"this network ({name}) came from a program and cannot be described as torch layers; give a function that "
            "makes it: load(folder, network=...)"
        )
    try:
        from fedkin.models.registry import get_model
    except ImportError as e:
        raise ExportError(
            f"the network {name} cannot be described as torch layers; its architecture comes from fedkin: "
            "pip install fedkin, or give a function that makes it: load(folder, network=...)"
        ) from e
    return lambda: get_model(name, shape, classes)
