"""Load an exported model; needs torch and safetensors, and fedkin only where `card.json` says so.

Every export contains this file as ``load.py``::

    from load import load

    model = load()              # the folder that this file lies in
    model.probabilities(x)      # x [n, *shape], prepared as in training
    model.labels                # names of the classes
    model.predict_csv("rows.csv")  # tables: rows as they are; model.inputs(rows) gives their x

Nothing in the folder is run as a program or unpickled: the network is a list of torch layers in ``network.json``, or
one of fedkin's built-in networks. A name in ``card.json`` is never imported.
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
CHUNK = 256
"""Samples per pass, as in the evaluation of a run: another number could change the last bit of a logit."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (operator.add, operator.sub, operator.mul, operator.truediv, operator.getitem)},
    **{f"torch.{f.__name__}": f for f in (torch.add, torch.cat, torch.flatten, torch.mean, torch.relu)},
    **{f"torch.{f.__name__}": f for f in (torch.sigmoid, torch.tanh, torch.sum, torch.mul)},
    **{f"F.{n}": getattr(F, n) for n in ("relu", "gelu", "silu", "leaky_relu", "elu", "dropout", "softmax", "pad")},
    **{f"F.{n}": getattr(F, n) for n in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "log_softmax")},
}
"""Functions that a network may call between its layers."""
_ARITHMETIC = ("add", "sub", "mul", "truediv")  # on numbers only: the same operators repeat and join texts and lists
METHODS = (
    "add", "contiguous", "flatten", "float", "long", "mean", "mul", "permute", "relu", "reshape", "sigmoid", "size",
    "squeeze", "sum", "tanh", "transpose", "unsqueeze", "view",
)  # fmt: skip
"""Methods of a tensor that a network may call."""
LAYERS = (
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "BatchNorm1d",
    "BatchNorm2d", "Conv1d", "Conv2d", "Dropout", "Dropout1d", "Dropout2d", "ELU", "Embedding", "Flatten", "GELU",
    "GRU", "GroupNorm", "Hardswish", "Identity", "InstanceNorm1d", "InstanceNorm2d", "LSTM", "LayerNorm", "LeakyReLU",
    "Linear", "LocalResponseNorm", "MaxPool1d", "MaxPool2d", "PReLU", "RNN", "ReLU", "ReLU6", "SELU", "SiLU",
    "Sigmoid", "Softplus", "Tanh", "ZeroPad2d",
)  # fmt: skip
"""Layers of torch that a network may have."""


FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that Python and torch raise for invalid values."""


class ExportError(Exception):
    """The folder is not a complete export, or a request does not fit it."""


class Network(nn.Module):
    """A network of torch layers from its description: ``layers`` by name, and the ``steps`` from input to output."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = list(plan["steps"])
        for name, (kind, options) in plan["layers"].items():
            if kind not in LAYERS:
                raise ExportError(f"network.json: layer {name!r} is of an unknown kind {kind!r}")
            if {"device", "dtype"} & set(options):  # would allocate memory before the sizes have been compared
                raise ExportError(f"network.json: layer {name!r} names a device or a type; expected neither")
            made: nn.Module = getattr(nn, kind)(**{k: _tuples(v) for k, v in options.items()})
            *outer, last = name.split(".")
            at: nn.Module = self
            for part in outer:
                if not hasattr(at, part):
                    at.add_module(part, nn.Module())
                at = getattr(at, part)
            at.add_module(last, made)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, C]``."""
        known: dict[str, Any] = {}
        for step in self.steps:
            known[step["to"]] = self.step(step, known, x)
        out: Tensor = known[self.steps[-1]["to"]]
        return out

    def step(self, step: Mapping[str, Any], known: Mapping[str, Any], x: Tensor) -> Any:
        """Return the result of one step.

        Args:
            step: description of the step.
            known: results of the steps before it, by name.
            x: inputs of the network.

        Raises:
            ExportError: an unknown step, or invalid arguments.
        """
        does, target = step["do"], step.get("target", "")
        if does == "input":
            return x
        args, options = _filled(step["args"], known), _filled(step["options"], known)
        if does == "layer":
            return self.get_submodule(target)(*args, **options)
        if does == "function" and target in FUNCTIONS:
            return FUNCTIONS[target](*_numbers(target, args), **options)
        if does == "method" and target in METHODS and args and isinstance(args[0], Tensor):
            return getattr(args[0], target)(*args[1:], **options)
        if does == "output":
            return args[0]
        raise ExportError(f"network.json: unknown step {does!r} {target!r}")


def _filled(value: Any, known: Mapping[str, Any]) -> Any:
    """Return a description's arguments with the results of earlier steps filled in."""
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


def _numbers(target: str, args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments if the function computes with tensors and numbers of a usual size."""
    if target in _ARITHMETIC and not all(isinstance(a, Tensor | float) or _is_size(a) for a in args):
        raise ExportError(f"network.json: {target} takes tensors and numbers, got {', '.join(map(_kind, args[:5]))}")
    if target == "getitem" and not (args and isinstance(args[0], Tensor | tuple)):
        raise ExportError(f"network.json: getitem takes a tensor or a tuple, got {', '.join(map(_kind, args[:5]))}")
    return args


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def _kind(value: Any) -> str:
    return type(value).__name__


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Model:
    """The model of one client.

    All methods except `logits` warn (`warnings.warn`) of values unlike those of training.

    Attributes:
        card: description and origin of the model.
        labels: names of the classes, in the order of the logits.
        shape: shape of one input.
        dtype: type of the inputs, float32 or int64.
        tensors: all tensors that the method gave the client for prediction, by name; networks as flat vectors.
        networks: the tensors that are networks, as modules: one, or several that vote.
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
        self.dtype = dtype_of(card)
        self._make = make
        self.tensors: dict[str, Tensor] = {}
        self.networks: dict[str, list[nn.Module]] = {}
        self._seen: list[Tensor] = []
        self._parameters = [(str(name), tuple(shape)) for name, shape in card["network"]["parameters"]]
        self._fixed = {name: stored[f"fixed.{name}"] for name in card["network"].get("fixed", ())}
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
        self._number = {name: float(t) for name, t in self.tensors.items() if t.dim() == 0}

    def predict(self, x: Any) -> Tensor:
        """Return the number of the predicted class of each input, int64 ``[n]``: a tensor, an array, a list, or a table
        of pandas, of raw rows where the model was trained on those."""
        return self._warned(x).argmax(1)

    def probabilities(self, x: Any) -> Tensor:
        """Return the softmax of the logits, ``[n, C]``: the confidence of the model, which is not calibrated."""
        return self._warned(x).softmax(1)

    def inputs(self, rows: Sequence[Mapping[str, object]]) -> Tensor:
        """Return inputs ``[n, *shape]`` of rows of a table: fields by column, texts or numbers; None where empty.

        Raises:
            ExportError: the model does not accept tables, a column is missing, a field is not a number.
        """
        return self._inputs(rows, None)

    def predict_csv(self, path: Path | str, encoding: str | None = None) -> list[dict[str, Any]]:
        """Return the label and the probabilities by class of each row of a csv file, whose text is UTF-8 unless
        ``encoding`` is given; errors as of `inputs`."""
        try:
            rows, places = _prepare().read_records(Path(path), encoding)
        except ValueError as e:
            raise ExportError(printable(str(e))) from e
        found = []
        for i, p in enumerate(self.logits(self._inputs(rows, places)).softmax(1).tolist(), start=1):
            prediction = {
                "label": self.labels[p.index(max(p))],
                "probabilities": dict(zip(self.labels, p, strict=True)),
            }
            found.append({"row": str(i), **prediction})
        return found

    def ranges(self) -> dict[str, Any]:
        """Return the ranges of the training data from ``ranges.json``; empty where the export does not have them."""
        there = self.folder is not None and (self.folder / "ranges.json").exists()
        return dict(_json(self.folder, "ranges.json")) if self.folder is not None and there else {}

    def unused_columns(self) -> tuple[str, ...]:
        """Return the columns that training data may have and the network does not use: class, client, dropped ones."""
        data = self.card["config"].get("data", {})
        dropped = str(data.get("drop") or "").split(",")
        found = self.card.get("columns") or {}  # where the reader had to find the class and the client
        names = (data.get("target"), data.get("client_column"), found.get("label"), found.get("client"), *dropped)
        return tuple(str(n).strip() for n in names if n)

    def _preparation(self) -> dict[str, Any]:
        there = self.folder is not None and (self.folder / "preparation.json").exists()
        return dict(_json(self.folder, "preparation.json")) if self.folder is not None and there else {}

    def _inputs(self, rows: Sequence[Mapping[str, object]], places: Sequence[str] | None) -> Tensor:
        made = self._preparation()
        if made.get("kind") != "table":
            raise ExportError("this model does not accept rows of a table; pass inputs as in training to predict")
        prepare = _prepare()
        columns = prepare.columns_of(made)
        try:
            raw = prepare.raw_rows(rows, columns, places)
        except ValueError as e:
            raise ExportError(printable(str(e))) from e
        unused = (*self.unused_columns(), made["target"])
        for text in prepare.unusual_rows(rows, raw, columns, self.ranges().get("columns", {}), unused):
            warnings.warn(printable(text), stacklevel=3)
        return torch.from_numpy(prepare.scaled(raw, columns))

    def _warned(self, x: Any) -> Tensor:
        if hasattr(x, "itertuples"):  # a table of pandas
            if self._preparation().get("kind") == "table":
                return self.logits(self.inputs(x.astype(object).where(x.notna(), None).to_dict("records")))
            x = x.to_numpy()
        try:
            x = torch.as_tensor(x.copy() if hasattr(x, "flags") else x)  # arrays of pandas cannot be written to
        except (TypeError, ValueError) as e:
            raise ExportError(f"the inputs must be an array of numbers, as in training: {e}") from e
        found, ranges = self.logits(x), self.ranges()
        if ranges:
            text = _prepare().unusual_inputs(x.float().numpy(), ranges["inputs"])
            if text:
                warnings.warn(text, stacklevel=3)
        return found

    def logits(self, x: Any) -> Tensor:
        """Return logits ``[n, C]`` of inputs ``[n, *shape]``, prepared as in training.

        Raises:
            ExportError: inputs of another shape, values that are not finite, fractions for a model of whole numbers, or
                inputs on which the network fails.
        """
        x = torch.as_tensor(x)
        if tuple(x.shape[1:]) != self.shape or x.dim() != len(self.shape) + 1:
            raise ExportError(f"expected inputs [n, {', '.join(map(str, self.shape))}], got {list(x.shape)}")
        if not bool(x.float().isfinite().all()):
            raise ExportError("the inputs hold values that are not finite (nan or infinity); fill or drop them")
        if not self.dtype.is_floating_point and not bool((x == x.long()).all()):
            raise ExportError("the inputs hold fractions; this model takes whole numbers, such as numbers of words")
        x = x.to(self.dtype)
        if self.card["input"]["channels_last"]:
            x = _channels_last(x)
        try:
            with torch.no_grad():
                parts = [self.program(part) for part in x.split(CHUNK)]
        except Exception as e:  # a network of the user's code may raise anything
            raise ExportError(f"the network fails on these inputs: {type(e).__name__}: {_line(e)}") from e
        out = torch.cat(parts) if parts else torch.zeros(0, len(self.labels))
        if bool(out.softmax(1).isnan().any()):
            raise ExportError(
                "the network gives no number (nan) for these inputs: they are too large, or it has diverged"
            )
        return out

    def program(self, x: Tensor) -> Tensor:
        """Return logits ``[n, C]``, in one pass and without checks: for tracing."""
        out = self._rule(self.card["rule"], "", x)
        self._seen.clear()
        return out

    def _rule(self, rule: Mapping[str, Any], inside: str, x: Tensor) -> Tensor:
        """Return logits by a rule of prediction; ``inside`` is the prefix of a wrapped method's tensors."""
        kind, tensor = rule["kind"], self.tensors
        networks = {n[len(inside) :]: found for n, found in self.networks.items() if n.startswith(inside)}
        if kind == "additive":
            if "alone" in networks:
                return self._out(networks["alone"][0], x)
            return self._out(networks["model"][0], x) + self._rule(rule["inner"], f"{inside}inner.", x)
        if kind == "mixture":
            return self._mixture(rule["inner"], self._number[f"{inside}share"], networks["alone"][0], inside, x)
        if kind == "vote":
            z = torch.stack([self._out(network, x) for network in networks["models"]])
            if (share := tensor.get(f"{inside}share")) is not None:  # the members' weights
                return (z.log_softmax(2) + share.log()[:, None, None]).logsumexp(0)
            mean = rule["of"] == "logits" or len(z) == 1
            return z.mean(0) if mean else z.log_softmax(2).logsumexp(0)
        logits = self._out(networks["model"][0], x)
        if kind == "prototypes" and self._any.get(f"{inside}known", False):
            z, known = self._seen[-1], tensor[f"{inside}known"]
            away = torch.stack([(z - p).square().sum(1) for p in tensor[f"{inside}prototypes"]], 1)
            return torch.where(known, -away, -torch.inf)
        if kind == "two heads" and f"{inside}head" in tensor:
            return logits + self._second(networks["model"][0], tensor[f"{inside}head"])
        if kind == "neighbours" and f"{inside}features" in tensor:
            return self._with_memory(rule, inside, logits)
        return logits

    def _with_memory(self, rule: Mapping[str, Any], inside: str, logits: Tensor) -> Tensor:
        """Return the log of the probabilities of logits, mixed with the labels of the nearest stored features."""
        stored, labels = self.tensors[f"{inside}features"], self.tensors[f"{inside}labels"]
        apart = torch.cdist(self._seen[-1], stored, compute_mode="donot_use_mm_for_euclid_dist")
        near, which = apart.topk(min(rule["neighbours"], len(stored)), largest=False)
        weights = (-near / rule["scale"]).softmax(1)
        memory = (weights[:, :, None] * F.one_hot(labels, logits.shape[1])[which]).sum(1)
        share = self._number[f"{inside}weight"]
        out: Tensor = (share * memory + (1 - share) * logits.softmax(1)).log()
        return out

    def _mixture(self, rule: Mapping[str, Any], share: float, alone: nn.Module, inside: str, x: Tensor) -> Tensor:
        """Return the log of mixed probabilities; at share 0 and 1 of the inner rule the logits of the one model."""
        if share == 0:
            return self._out(alone, x)
        z = self._rule(rule, f"{inside}inner.", x)
        if share == 1:
            return z
        p, q = z.softmax(1), self._out(alone, x).softmax(1)
        return (share * torch.where(p.isnan(), 0.0, p) + (1 - share) * torch.where(q.isnan(), 0.0, q)).log()

    def _second(self, network: nn.Module, head: Tensor) -> Tensor:
        """Return logits of another head ``[H]`` at the features that were just computed."""
        name = self.card["network"]["head"]
        own = [(n, s) for n, s in self._parameters if n.startswith(f"{name}.")]
        sizes = [torch.Size(shape).numel() for _, shape in own]
        values = {n[len(name) + 1 :]: p.view(s) for (n, s), p in zip(own, head.split(sizes), strict=True)}
        out: Tensor = torch.func.functional_call(network.get_submodule(name), values, (self._seen[-1],))
        return out

    def _out(self, network: nn.Module, x: Tensor) -> Tensor:
        self._seen.clear()
        out = network(x)
        found: Tensor = getattr(out, "logits", out)
        return found

    def _network(self, flat: Tensor) -> nn.Module:
        """Return the network at a flat vector; its parameters are views of it, as in a run."""
        network = self._make().eval()
        sizes = [torch.Size(shape).numel() for _, shape in self._parameters]
        views = {n: part.view(s) for (n, s), part in zip(self._parameters, flat.split(sizes), strict=True)}
        _set_tensors(network, views | self._fixed)
        for module in network.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                if buffer.is_meta:  # a counter of batches, which prediction does not read
                    setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))
        network.requires_grad_(False)
        head = network.get_submodule(self.card["network"]["head"])
        head.register_forward_pre_hook(lambda _module, args: self._seen.append(args[0]))
        return network


def _set_tensors(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set parameters and float buffers in every place that holds them: tied weights have several.

    Raises:
        ExportError: the network has other ones, or of other shapes.
    """
    there: dict[str, Tensor] = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    strange = [name for name in values if name not in there]
    lacking = [
        n for n, t in there.items() if n not in values and (isinstance(t, nn.Parameter) or t.is_floating_point())
    ]
    differences = [f"it has no {', '.join(strange)}"] * bool(strange)
    differences += [f"it has also {', '.join(lacking)}"] * bool(lacking)
    for name, value in values.items():
        found = there.get(name)
        if found is not None and not nn.parameter.is_lazy(found) and found.shape != value.shape:
            differences.append(f"its {name} has the shape {list(found.shape)}, expected {list(value.shape)}")
    if differences:
        raise ExportError(f"the network is not the one that was trained: {'; '.join(differences)}")
    filled = {id(there[n]): nn.Parameter(v) if isinstance(there[n], nn.Parameter) else v for n, v in values.items()}
    for module in network.modules():
        for key, held in [*module._parameters.items(), *module._buffers.items()]:
            if id(held) in filled:
                setattr(module, key, filled[id(held)])  # not in the dict: recurrent layers keep a list of theirs


def dtype_of(card: Mapping[str, Any]) -> torch.dtype:
    """Return the type of a model's inputs."""
    return torch.int64 if card["input"].get("dtype") == "int64" else torch.float32


def _channels_last(x: Tensor) -> Tensor:
    """Return images ``[n, C, H, W]`` with channels innermost in memory, as in the evaluation of the run."""
    n, c, h, w = x.shape
    return torch.empty(n, h, w, c, dtype=x.dtype).permute(0, 3, 1, 2).copy_(x)


def load(folder: Path | str | None = None, network: Callable[[], nn.Module] | None = None) -> Model:
    """Return the model in a folder.

    Args:
        folder: the folder. Default: the folder of this file.
        network: makes the network, where the folder does not describe it. Its code is run; the folder's never is.

    Raises:
        ExportError: the folder is not an export, is incomplete, or needs a network that cannot be made.
    """
    place = Path(__file__).parent if folder is None else Path(folder)
    card, labels = _json(place, "card.json"), _json(place, "labels.json")
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        found = card.get("format") if isinstance(card, dict) else card
        raise ExportError(f"{place / 'card.json'} is of the format {str(found)[:80]!r}, expected {FORMAT!r}")
    file = place / "model.safetensors"
    try:
        stored = load_file(file)
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as e:
        raise ExportError(f"{file} cannot be read ({_line(e)}); export the model again") from e
    try:
        return Model(card, labels, stored, network or described(place, card), place)
    except KeyError as e:
        raise ExportError(f"{place} is incomplete: {e} is missing; export the model again") from e
    except FAULTS as e:
        raise ExportError(f"{place} is damaged ({type(e).__name__}: {_line(e)}); export the model again") from e


def described(place: Path, card: Mapping[str, Any]) -> Callable[[], nn.Module]:
    """Return a function that makes the described network without numbers (on torch's device ``meta``): sizes in the
    folder take no memory before they have been compared with its weights.

    Raises:
        ExportError: the folder describes no network.
    """
    make = _of_plan(_json(place, "network.json")) if (place / "network.json").exists() else _of_catalogue(card)

    def without_numbers() -> nn.Module:
        with torch.device("meta"):
            return make()

    return without_numbers


def _of_plan(plan: Mapping[str, Any]) -> Callable[[], nn.Module]:
    return lambda: Network(plan)


def _of_catalogue(card: Mapping[str, Any]) -> Callable[[], nn.Module]:
    name, shape, classes = card["network"]["name"], tuple(card["input"]["shape"]), card["classes"]
    try:
        from fedkin.models.registry import MODELS
    except ImportError as e:
        raise ExportError(
            f"the network {name!r} is not described by torch layers here; fedkin can make it if it is built in: "
            "pip install fedkin. Or pass your own code: load(folder, network=a_function_that_makes_it)"
        ) from e
    if name not in MODELS:  # a name in the card is never imported: a folder from elsewhere is data
        raise ExportError(
            f"the folder does not describe its network by torch layers (no network.json), and {name!r} is not a "
            "built-in network of fedkin. It is code, which a model folder never contains; pass the file or the module "
            "that has it, if you trust it: fedkin predict FOLDER FILE --network ./FILE.py:FUNCTION, or in Python "
            "load(folder, network=a_function_that_makes_it)"
        )
    return lambda: MODELS[name](shape, classes)


def _prepare() -> ModuleType:
    """Return ``prepare.py``, which lies next to this file."""
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
    except (OSError, ValueError, RecursionError) as e:
        raise ExportError(f"{place} is not an exported model: {name} cannot be read ({e})") from e


def printable(text: str) -> str:
    """Return a text of data with control characters as escapes such as ``\\x9b``: it must not drive a terminal."""
    return "".join(c if c.isprintable() or c in "\t\n" else ascii(c)[1:-1] for c in text)


def _line(error: Exception) -> str:
    """Return an error's text as one short line."""
    return " ".join(str(error).split())[:300]
