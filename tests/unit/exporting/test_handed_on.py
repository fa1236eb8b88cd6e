"""A model folder is data: nothing in it is run as code, and nothing in it takes memory or ends in a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fedkin
from commandline import Command
from fedkin.core import DataError, RunFolderError
from fedkin.exporting import export, load_export
from refusals import refuses


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a linear network on digits."""
    data = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=3)
    result = fedkin.run(fedkin.methods.FedAvg(), data, "linear", rounds=1, compute=fedkin.Compute(engine="loop"))
    return export(result, 0, tmp_path_factory.mktemp("export") / "home")


@pytest.fixture
def home(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    copy = tmp_path / "home"
    copy.mkdir()
    for file in whole.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def card(edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Puts another value into the card."""

    def change(home: Path) -> None:
        found = json.loads((home / "card.json").read_text())
        (home / "card.json").write_text(json.dumps(edit(found) or found))

    return change


def program(edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Changes the program."""

    def change(home: Path) -> None:
        found = onnx.load(home / "model.onnx")
        edit(found)
        (home / "model.onnx").write_bytes(found.SerializeToString())

    return change


def elsewhere(name: str) -> Callable[[Any], None]:
    """A tensor whose values are in another file."""

    def edit(model: Any) -> None:
        node = next(n for n in model.graph.node if n.op_type == "Constant")
        tensor = node.attribute[0].t
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)

    return edit


def endless(home: Path) -> None:
    """An input of 10^18 numbers, in the card and in the program."""
    shape = [1, 10**9, 10**9]
    card(lambda c: c["preparation"].update(shape=shape, kind="array"))(home)

    def edit(model: Any) -> None:
        for side, size in zip(model.graph.input[0].type.tensor_type.shape.dim[1:], shape, strict=True):
            side.dim_value = size

    program(edit)(home)


def first(*nodes: Any) -> Callable[[Any], None]:
    """Steps before all others, whose results are not used but for the last, which is added to the input."""

    def edit(model: Any) -> None:
        used = model.graph.node[0].output[0]
        model.graph.node[0].output[0] = "before"
        added = helper.make_node("Add", ["before", nodes[-1].output[0]], [used])
        rest = [type(n).FromString(n.SerializeToString()) for n in model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend([rest[0], *nodes, added, *rest[1:]])

    return edit


HUGE = helper.make_node("Constant", [], ["huge"], value=helper.make_tensor("h", TensorProto.INT64, [1], [10**11]))
BODY = helper.make_graph([], "body", [], [])
LOOP = helper.make_node("Loop", ["", ""], ["looped"], body=BODY)

CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a card that is a list": (card(lambda c: [c]), "card.json"),
    "a card nested too deeply": (lambda home: (home / "card.json").write_text("[" * 100_000), "card.json"),
    "a card without a key": (card(lambda c: c.pop("classes") and None), "card.json"),
    "classes as numbers": (card(lambda c: c.update(classes=[1, 2])), "card.json"),
    "a shape below 0": (card(lambda c: c["preparation"].update(shape=[1, -8, 8])), "card.json"),
    "another format": (card(lambda c: c.update(format="fedkin export 1")), "card.json"),
    "classes of another number": (card(lambda c: c["classes"].pop() and None), "not those of the card"),
    "a side of another length": (card(lambda c: c["preparation"].update(shape=[1, 8, 9])), "not those of the card"),
    "an input of 10^18 numbers": (endless, "model.onnx"),
    "ranges of texts": (lambda home: (home / "ranges.json").write_text('{"of": "", "inputs": {"low": "a"}}'), "ranges"),
    "a program that is none": (lambda home: (home / "model.onnx").write_bytes(b"\x80\x04."), "model.onnx"),
    "a program cut short": (
        lambda home: (home / "model.onnx").write_bytes((home / "model.onnx").read_bytes()[:300]), "model.onnx"),
    "values in another file": (program(elsewhere("../../secret")), "values in other files"),
    "values in the folder": (program(elsewhere("model.safetensors")), "values in other files"),
    "operators of others": (program(lambda m: m.opset_import.add(domain="com.microsoft", version=1)), "operators of"),
    "a loop": (program(first(LOOP)), "a program inside another"),
    "an unknown operator": (program(first(helper.make_node("Run", [], ["a"]))), "cannot be loaded"),
    "400 GB": (program(first(HUGE, helper.make_node("ConstantOfShape", ["huge"], ["all"]))), "model.onnx"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_or_hostile_folder_is_refused(case: str, home: Path) -> None:
    """One message that names the file, and no memory taken."""
    damage, said = CASES[case]
    damage(home)
    with refuses(RunFolderError, said, home):
        load_export(home)


@pytest.mark.parametrize("name", ["card.json", "model.onnx", "ranges.json"])
@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "folder"])
@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in folders")
def test_what_is_no_file_is_not_read(name: str, what: str, home: Path) -> None:
    """Nothing waits for a pipe, and nothing reads a device without end."""
    (home / name).unlink()
    if what == "pipe":
        os.mkfifo(home / name)
    elif what == "folder":
        (home / name).mkdir()
    else:
        (home / name).symlink_to(what)
    with refuses(RunFolderError, name):
        load_export(home)


@pytest.mark.parametrize("name", ["card.json", "model.onnx"])
def test_a_file_of_a_terabyte_is_not_read(name: str, home: Path) -> None:
    """It takes no place on the disk."""
    os.truncate(home / name, 10**12)
    with refuses(RunFolderError, name):
        load_export(home)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_no_prediction_is_not_a_number(value: float, home: Path, fedkin: Command) -> None:
    """Weights that are not finite, or that overflow: one sentence, no label and no "nan %" with exit code 0."""

    def edit(model: Any) -> None:
        for node in model.graph.node:
            if node.op_type == "Constant" and len(node.attribute[0].t.dims) == 2:
                shape = list(node.attribute[0].t.dims)
                tensor = onnx.numpy_helper.from_array(np.full(shape, value, np.float32))
                node.attribute[0].t.CopyFrom(tensor)

    program(edit)(home)
    np.save("x.npy", np.full((2, 1, 8, 8), 1e4, np.float32))
    for command in ("predict home x.npy --json", "predict home x.npy --out labels.csv"):
        done = fedkin(command)
        assert (done.code, done.out) == (2, "")
        assert "nan" in done.err
        assert "Traceback" not in done.err
    assert not Path("labels.csv").exists()
    with pytest.raises(DataError):
        load_export(home).predict(np.full((2, 1, 8, 8), 1e4))
