"""Damage model folders: `load_export` and what it predicts work, or refuse the folder; no code of a folder is run.

python -m tests.fuzz --minutes 2 cards
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from damage import confined, raw, tree
from torch import nn

import fedkin
from fedkin.exporting import export, load_export
from fedkin.exporting.model import write_csv
from fedkin.methods import get_method

MODELS = ("linear", "small-cnn")
METHODS = ("fedavg", "fedrod", "fedproto", "fedavg-ensemble", "ifca-cam")
TRAP = "raise SystemExit('code of a folder was run')\n"


class Recurrent(nn.Module):
    """An LSTM and the steps around it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, 10]``."""
        steps, _ = self.lstm(x.squeeze(1))
        return self.head(steps[:, -1] + steps.mean(1))


def run(seed: int, seconds: float) -> None:
    """Damages model folders for a time, at least once.

    Raises:
        AssertionError: something other than a refusal came out.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        whole = made(Path(folder))
        confined("cards", lambda rng, place: case(rng, place, whole), seed, seconds)


def made(folder: Path) -> list[dict[str, bytes]]:
    """Files of exports of several methods and networks, and of a table."""
    digits = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=3)
    found = []
    plans = (
        [(method, "linear") for method in METHODS] + [("fedavg", model) for model in MODELS] + [("fedavg", Recurrent)]
    )
    for i, (method, model) in enumerate(plans):
        result = fedkin.run(get_method(method), digits, model, rounds=1, compute=fedkin.Compute(engine="loop"))
        found.append(export(result, 0, folder / str(i)))
    rows = "".join(f"{20 + i % 60},{'fm'[i % 2]},{i % 3 % 2}\n" for i in range(120))
    (folder / "t.csv").write_text("age,sex,ill\n" + rows)
    table = fedkin.federate(fedkin.load(folder / "t.csv", target="ill"), fedkin.Dirichlet(alpha=5.0), clients=2)
    found.append(
        export(
            fedkin.run(get_method("fedavg"), table, "linear", rounds=1, compute=fedkin.Compute(engine="loop")),
            0,
            folder / "table",
        )
    )
    return [{p.name: p.read_bytes() for p in place.iterdir()} for place in found]


def case(rng: random.Random, place: Path, whole: list[dict[str, bytes]]) -> None:
    """One damaged folder, loaded and asked."""
    files = dict(rng.choice(whole))
    name = rng.choice(["card.json"] * 3 + ["model.onnx"] * 4 + ["ranges.json"])
    what = rng.randrange(10)
    if what == 0:
        del files[name]
    elif what <= 2:
        files[name] = raw(rng, files[name])
    elif name.endswith(".json"):
        files[name] = json.dumps(tree(rng, json.loads(files[name]))).encode()
    else:
        files[name] = program(rng, files[name])
    for trap in ("weights.py", "onnxruntime.py", "load.py"):
        (place / trap).parent.mkdir(exist_ok=True)
        (place / trap).write_text(TRAP)
    for file, content in files.items():
        if not file.endswith(".py"):
            (place / file).write_bytes(content)
    model = load_export(place)
    if model.card.preparation.kind == "table":
        (place / "rows.csv").write_text("age,sex\n30,f\n50,m\n")
        found = model.predict_file(place / "rows.csv")
    else:
        np.save(place / "x.npy", np.full((2, 1, 8, 8), 0.5, np.float32))
        found = model.predict_file(place / "x.npy")
    write_csv(found)


def program(rng: random.Random, content: bytes) -> bytes:
    """A program with some of its steps, sizes and names changed."""
    model = onnx.load_model_from_string(content)
    for _ in range(rng.randint(1, 3)):
        node, what = rng.choice(model.graph.node), rng.randrange(7)
        if what == 0:
            model.graph.node.remove(node)
        elif what == 1:
            node.op_type = rng.choice(sorted({s.name for s in onnx.defs.get_all_schemas()}))
        elif what == 2 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(rng.choice(model.graph.node).output or ["x"])
        elif what == 3 and node.attribute:
            attribute = rng.choice(node.attribute)
            attribute.i, attribute.f = rng.choice([-1, 0, 7, 10**9, 2**62]), rng.choice([0.0, 1e30, -1.0])
            attribute.ints[:] = [rng.choice([-1, 0, 3, 10**9]) for _ in attribute.ints]
            attribute.type = rng.choice([attribute.type, rng.randrange(15)])
        elif what == 4 and node.attribute and node.attribute[0].t.dims:
            dims = node.attribute[0].t.dims
            dims[rng.randrange(len(dims))] = rng.choice([-1, 0, 1, 10**6, 2**40, 2**62])
        elif what == 5:
            side = rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type
            side.elem_type = rng.randrange(25)
        else:
            value = onnx.helper.make_tensor("h", onnx.TensorProto.INT64, [2], [rng.choice([10**6, 10**11]), 1000])
            more = [
                onnx.helper.make_node("Constant", [], ["shape"], value=value),
                onnx.helper.make_node(rng.choice(["ConstantOfShape", "Expand", "Tile"]), ["shape"] * 2, ["more"]),
            ]
            model.graph.node.extend(more)
    return bytes(model.SerializeToString())
