"""The ONNX program of a model: preparation of raw data, the method's `predict`, and the names of the classes.

Its inputs are one ``double [n]`` or ``string [n]`` per column of a table, or one array ``x [n, *shape]`` in the units
of the data's files; its outputs are ``label [n]`` and ``probabilities [n, C]``.
"""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedkin.core import Bundle, DataError, FedkinError, Method, ModelError, Net
from fedkin.data.columns import Raw, unscaled
from fedkin.data.preparation import Preparation
from fedkin.exporting.card import ProgramInput

Array = npt.NDArray[Any]
CHUNK = 64
"""Samples per pass of a program."""
OUTPUTS = ("label", "probabilities")
_MEMORY = 4 << 30  # bytes of all passes together: a program may come from anywhere
_TOLERANCE = 1e-4  # of probabilities: another runtime sums in another order
_UNKNOWN = "\0"  # a text that no category is


def inputs_of(preparation: Preparation, dtype: str) -> list[ProgramInput]:
    """Return the inputs of a model's program; ``dtype`` is that of the network's inputs."""
    if preparation.kind == "table":
        types = {"number": "double", "text": "string"}
        notes = {"number": "NaN where not known", "text": "empty where not known"}
        return [
            ProgramInput(c.name, types[c.kind], ["n"], notes[c.kind], list(c.categories)) for c in preparation.columns
        ]
    unit = "as in training"
    if preparation.kind == "image":
        unit = f"pixels 0 to 255, {'grey' if preparation.mode == 'L' else 'red, green, blue'}"
    elif preparation.factor != 1:
        unit = f"as in the data's files; the program multiplies by {preparation.factor:.6g}"
    return [ProgramInput("x", "float" if dtype == "float32" else dtype, ["n", *preparation.shape], unit)]


def feed(preparation: Preparation, x: Array) -> dict[str, Array]:
    """Return the program's inputs for inputs of the network as in training, ``[n, *shape]``."""
    if preparation.kind == "table":
        return feed_rows(preparation, unscaled(x, preparation.columns))
    return {"x": x if preparation.factor == 1 else x / np.float32(preparation.factor)}


def feed_rows(preparation: Preparation, raw: Raw) -> dict[str, Array]:
    """Return the program's inputs for rows of a table that `fedkin.data.columns.raw_rows` read."""
    result = dict[str, Array]()
    for values, c in zip(raw.T, preparation.columns, strict=True):
        texts = np.array([*c.categories, _UNKNOWN], dtype=object)  # -1 is the last
        result[c.name] = np.ascontiguousarray(values) if c.kind == "number" else texts[values.astype(np.int64)]
    return result


class _Predictor(nn.Module):
    """Numbers of the classes and probabilities of the program's inputs; texts as one column per category."""

    def __init__(self, preparation: Preparation, logits: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.preparation, self.logits = preparation, logits

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        """Return int64 ``[n]`` and float32 ``[n, C]``."""
        logits = self.logits(self._prepared(given))
        return logits.argmax(1), logits.softmax(1)

    def _prepared(self, given: Sequence[Tensor]) -> Tensor:
        if self.preparation.kind != "table":
            return given[0] if self.preparation.factor == 1 else given[0] * self.preparation.factor
        parts = []
        for x, c in zip(given, self.preparation.columns, strict=True):
            if c.kind == "text":
                parts.append(x)
                continue
            away = x.isnan()
            scaled = (torch.where(away, c.mean[0], x) - c.mean[0]) / (c.std[0] or torch.inf)
            parts += [column.float()[:, None] for column in (scaled, away)[: c.width]]
        return torch.cat(parts, 1)


def program(
    net: Net, method: Method, bundle: Bundle, preparation: Preparation, labels: Sequence[str], x: Tensor
) -> bytes:
    """Return the program of a model, which gives the probabilities of ``method.predict``; tested at inputs ``x``."""

    def logits(x: Tensor) -> Tensor:
        return method.predict(net, bundle, x)

    try:
        with torch.no_grad():
            _require_one_way(logits, net.inputs(2).contiguous())
            with _reported("ONNX cannot express it"):  # tracing and checking of anybody's network may raise anything
                inputs = inputs_of(preparation, str(net.dtype).removeprefix("torch."))
                content = _named(_traced(net, _Predictor(preparation, logits)), inputs, labels)
            made = session(content)
            for part in (net.inputs(1), net.inputs(5), *x.split(256)):
                if preparation.kind == "table":  # with values that it gives: those of columns have few digits
                    part = preparation.scaled(unscaled(part.numpy(), preparation.columns))
                _require_same(made, preparation, part.contiguous().numpy(), logits(part).softmax(1))
    finally:
        net.release()
    return content


def _require_same(made: Any, preparation: Preparation, x: Array, wanted: Tensor) -> None:
    """Raise `ModelError` unless a program gives these probabilities at inputs as in training."""
    got = torch.from_numpy(run(made, feed(preparation, x)))
    if not torch.allclose(got, wanted, rtol=0, atol=_TOLERANCE):
        apart = float((got - wanted).nan_to_num().abs().max())
        raise ModelError(
            f"its program gives other probabilities, by up to {apart:.2g}: the network's code may depend on values "
            "that are neither parameters nor float buffers"
        )


def _require_one_way(logits: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise `ModelError` if what is computed depends on values of the inputs, of which a trace knows one way only."""
    try:
        torch.func.vmap(lambda one: logits(one[None]))(x)
    except Exception as e:  # not all networks can be mapped over; those are compared only
        if "data-dependent control flow" in str(e) or ("vmap" in str(e) and ".item()" in str(e)):
            raise ModelError("its code takes another way for other values of the inputs") from e


def _traced(net: Net, predictor: _Predictor) -> bytes:
    """Return the program before columns and classes have their names.

    By the exporter that traces: 0.07 s for a small network, where the one by `torch.export` takes 4 s, and values of
    the model may decide what its method computes.
    """
    example = feed(predictor.preparation, net.inputs(3).contiguous().numpy())
    columns = predictor.preparation.columns or (None,)
    given = tuple(
        torch.zeros(3, c.width) if c is not None and c.kind == "text" else torch.from_numpy(values)
        for c, values in zip(columns, example.values(), strict=True)
    )
    names = [f"input {i}" for i in range(len(given))]
    file, log = cast(Any, io.BytesIO()), logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                predictor.eval(), given, file, dynamo=False, input_names=names, output_names=["number", OUTPUTS[1]],
                dynamic_axes={name: {0: "n"} for name in (*names, "number", OUTPUTS[1])},
            )  # fmt: skip
    finally:
        log.setLevel(level)
    return bytes(file.getvalue())


def _named(content: bytes, inputs: Sequence[ProgramInput], labels: Sequence[str]) -> bytes:
    """Return a traced program with its inputs by name, texts as they are, and the names of the classes."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load_model_from_string(content)
    types = {"float": TensorProto.FLOAT, "double": TensorProto.DOUBLE, "int64": TensorProto.INT64}
    types["string"] = TensorProto.STRING
    graph = model.graph
    before = [
        helper.make_node("OneHotEncoder", [c.name], [old.name], domain="ai.onnx.ml", cats_strings=c.values, zeros=1)
        if c.type == "string"
        else helper.make_node("Identity", [c.name], [old.name])
        for c, old in zip(inputs, graph.input, strict=True)
    ]
    after = helper.make_node(
        "LabelEncoder", ["number"], [OUTPUTS[0]], domain="ai.onnx.ml",
        keys_int64s=range(len(labels)), values_strings=labels,
    )  # fmt: skip
    nodes = [*before, *graph.node, after]
    for field, values in (
        (graph.node, nodes),
        (graph.input, [helper.make_tensor_value_info(c.name, types[c.type], c.shape) for c in inputs]),
        (graph.output, [helper.make_tensor_value_info(OUTPUTS[0], TensorProto.STRING, ["n"]), graph.output[1]]),
    ):
        values = [_copied(v) for v in values]
        del field[:]
        field.extend(values)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _copied(message: Any) -> Any:
    """Return a copy of a part of a program, which outlives it."""
    result = type(message)()
    result.CopyFrom(message)
    return result


# ---- programs from anywhere -----------------------------------------------------------------------------------------
def require_harmless(content: bytes) -> None:
    """Raise `ModelError` unless a program ends and reads no files: no loops, no operators of others, no external data.

    Its memory is limited when it runs.
    """
    import onnx

    with _reported("is not an ONNX program"):
        model = onnx.load_model_from_string(content)
    tensors = [*model.graph.initializer, *(t for s in model.graph.sparse_initializer for t in (s.values, s.indices))]
    attributes = [a for node in model.graph.node for a in node.attribute]
    for a in attributes:
        tensors += [a.t, *a.tensors, *(t for s in (*a.sparse_tensors, a.sparse_tensor) for t in (s.values, s.indices))]
    faults = {
        "operators of its own": model.functions or {o.domain for o in model.opset_import} - {"", "ai.onnx.ml"},
        "a program inside another": any(a.HasField("g") or a.graphs for a in attributes),
        "values in other files": any(t.data_location or t.external_data for t in tensors),
    }
    if result := [fault for fault, there in faults.items() if there]:
        raise ModelError(f"has {' and '.join(result)}, which no export has")


@cache
def _runtime() -> Any:
    """Return onnxruntime, with a limit of its memory, and without the reports that it sends to its maker."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read once, when it is imported
    import onnxruntime as ort

    where = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(where, ort.OrtArenaCfg(_MEMORY, -1, -1, -1))
    return ort


def session(content: bytes) -> Any:
    """Return a program ready to run, an ``onnxruntime.InferenceSession``."""
    ort = _runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_env_allocators", "1")
    with _reported("cannot be loaded"):
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(program: Any, given: dict[str, Array]) -> npt.NDArray[np.float32]:
    """Return the probabilities ``[n, C]`` of a program from `session`."""
    n = len(next(iter(given.values())))
    if n == 0:
        return np.zeros((0, program.get_outputs()[1].shape[1]), dtype=np.float32)
    with _reported("the model fails on these inputs", DataError):
        parts = [
            program.run([OUTPUTS[1]], {name: values[at : at + CHUNK] for name, values in given.items()})[0]
            for at in range(0, n, CHUNK)
        ]
    return np.concatenate(parts)


@contextmanager
def _reported(what: str, kind: type[FedkinError] = ModelError) -> Iterator[None]:
    """Turn any error into one of fedkin's; protobuf and onnxruntime have many classes of them."""
    try:
        yield
    except Exception as e:
        raise kind(f"{what} ({type(e).__name__}: {' '.join(str(e).split())[:300]})") from e
