"""A model as one program for other runtimes: torch.export and ONNX, each tested before it is kept."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.core import ConfigError
from fedkin.exporting.loader import Model

Format = Literal["torch-export", "onnx"]
"""Formats of programs: ``model.pt2``, ``model.onnx``."""
_TOLERANCE = 1e-4  # maximum difference of the logits: another runtime sums in another order


class Predictor(nn.Module):
    """Logits ``[n, C]`` of inputs ``[n, *shape]``: the network and everything that the method does after it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.networks = nn.ModuleList(n for found in model.networks.values() for n in found)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[n, C]``."""
        return self.model.program(x)


def write_program(name: Format, model: Model, x: Tensor, folder: Path) -> None:
    """Write the model as a program of this format into the folder.

    Args:
        x: inputs ``[5, *shape]`` that the network takes, by which the program is made and tested.

    Raises:
        ConfigError: the model or this machine does not allow it; the message states the reason.
    """
    if name == "onnx":
        _onnx(model, x, folder / "model.onnx")
    else:
        _torch_export(model, x, folder / "model.pt2")


def require_formats(names: Collection[str]) -> None:
    """Raise `ConfigError` for an unknown format."""
    for name in names:
        if name not in get_args(Format):
            raise ConfigError(f"format must be one of {', '.join(get_args(Format))}, got {name!r}")


def _torch_export(model: Model, x: Tensor, path: Path) -> None:
    program = _traced(model, x, "torch-export")
    _require_same(model, x, lambda x: program.module()(x), "torch-export")
    with _silent():
        torch.export.save(program, path)


def _onnx(model: Model, x: Tensor, path: Path) -> None:
    try:
        reference: Any = import_module("onnx.reference")
        import_module("onnxscript")
    except ImportError as e:
        raise ConfigError('the format onnx needs onnx and onnxscript: pip install "fedkin[onnx]"') from e
    program = _traced(model, x, "onnx")
    try:
        with _silent():
            torch.onnx.export(
                program,
                (),
                path,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=["x"],
                output_names=["logits"],
            )
    except Exception as e:  # the exporter may raise anything for an operation that it does not know
        raise ConfigError(_why("onnx", e)) from e
    session = reference.ReferenceEvaluator(str(path))
    _require_same(model, x, lambda x: torch.from_numpy(np.asarray(session.run(None, {"x": x.numpy()})[0])), "onnx")


def _traced(model: Model, x: Tensor, name: str) -> Any:
    """Return the program for any number of inputs."""
    try:
        with _silent(), torch.no_grad():
            shapes = {"x": {0: torch.export.Dim("n", min=1)}}
            return torch.export.export(Predictor(model).eval(), (x[:3],), dynamic_shapes=shapes, strict=False)
    except Exception as e:  # tracing a user-defined network may raise anything
        raise ConfigError(_why(name, e)) from e


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress the output of exporters about themselves."""
    talkers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [talker.level for talker in talkers]
    try:
        for talker in talkers:
            talker.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for talker, level in zip(talkers, before, strict=True):
            talker.setLevel(level)


def _require_same(model: Model, given: Tensor, run: Callable[[Tensor], Tensor], name: str) -> None:
    for n in (1, 3, 5):
        x = given[:n]
        with torch.no_grad():
            got, wanted = run(x), model.logits(x)
        if got.shape != wanted.shape or not torch.allclose(got, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ConfigError(
                f"the model cannot be written as {name}: it gives other logits than the model (at {n} inputs); "
                "omit --format, load.py is exact"
            )


def _why(name: str, e: Exception) -> str:
    text = str(e).strip().splitlines() or [type(e).__name__]
    return f"the model cannot be written as {name}: {type(e).__name__}: {text[0][:300]}; omit --format"
