"""The same model as one program: torch.export and ONNX."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedkin
from fedkin.core import ConfigError
from fedkin.exporting import export, load_export
from thorough import thorough_except
from toys import Branching

X = torch.linspace(0, 1, 4 * 64).view(4, 1, 8, 8)


def taken_home(method: fedkin.Method, model: object, place: Path, kind: str) -> Path:
    data = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=3)
    result = fedkin.run(method, data, model, fedkin.Training(steps=3), rounds=2, compute=fedkin.Compute(engine="loop"))
    return export(result, 0, place, formats=[kind])


METHODS = {
    "fedavg": fedkin.methods.FedAvg(),
    "ensemble": fedkin.methods.Ensemble(),
    "prototypes": fedkin.methods.FedProto(),
    "two heads": fedkin.methods.FedRoD(),
    "additive": fedkin.methods.CAM(inner=fedkin.methods.IFCA()),
    "mixture": fedkin.methods.Safe(inner=fedkin.methods.FedRoD(), send_numbers=False),
}


@pytest.mark.filterwarnings("ignore")  # of torch's exporters about themselves, when a program is read
@pytest.mark.parametrize("name", thorough_except(METHODS, ("ensemble", "two heads", "additive")))
def test_torch_export_gives_the_logits(name: str, tmp_path: Path) -> None:
    """All that the method does behind the network is in the program, for any number of inputs."""
    place = taken_home(METHODS[name], "small-cnn", tmp_path / "own", "torch-export")
    program = torch.export.load(place / "model.pt2").module()

    for x in (X, X[:1]):
        torch.testing.assert_close(program(x), load_export(place).model.logits(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of torch's exporters about themselves, when a program is read
@pytest.mark.parametrize("name", thorough_except(METHODS, ("prototypes", "additive")))
def test_onnx_gives_the_logits(name: str, tmp_path: Path) -> None:
    """The same by ONNX's own reference."""
    reference = pytest.importorskip("onnx.reference", reason='needs onnx: pip install "fedkin[onnx]"')
    pytest.importorskip("onnxscript", reason='needs onnxscript: pip install "fedkin[onnx]"')
    place = taken_home(METHODS[name], "mlp", tmp_path / "own", "onnx")
    session = reference.ReferenceEvaluator(str(place / "model.onnx"))

    for x in (X, X[:1]):
        got = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        torch.testing.assert_close(got, load_export(place).model.logits(x), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_traced_says_why(tmp_path: Path) -> None:
    """The message names the format and the reason, and nothing is left behind."""
    with pytest.raises(ConfigError, match="cannot be written as torch-export"):
        taken_home(METHODS["fedavg"], Branching, tmp_path / "own", "torch-export")
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    """With those there are."""
    with pytest.raises(ConfigError, match="torch-export, onnx, got 'tflite'"):
        taken_home(METHODS["fedavg"], "mlp", tmp_path / "own", "tflite")
