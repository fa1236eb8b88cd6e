"""A model folder is data: nothing in it is run, and nothing in it takes memory or ends in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedkin
from commandline import Command
from fedkin.core import FedkinError, RunFolderError
from fedkin.exporting import export, load_export
from fedkin.exporting.loader import ExportError, load
from fedkin.models import MODELS
from fedkin.models.registry import get_model

BRANCHING = """
import torch
from pathlib import Path
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x if x.sum() > 0 else -x)
"""
TRAP = "from pathlib import Path\nPath({place!r}).write_text('run')\ndef build(shape, classes): raise SystemExit\n"


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


def change(file: Path, edit: Callable[[Any], Any]) -> None:
    """Puts another value into a JSON file."""
    told = json.loads(file.read_text())
    file.write_text(json.dumps(edit(told) or told))


def hostile(home: Path, tmp_path: Path, name: str = "{home}/weights.py:build") -> Path:
    """A folder without a description of its network, whose card names code beside the weights; the place that this
    code would write to."""
    ran = tmp_path / "ran"
    (home / "weights.py").write_text(TRAP.format(place=str(ran)))
    (home / "network.json").unlink()
    change(home / "card.json", lambda c: c["network"].update(name=name.format(home=home), by_name=True))
    return ran


# ---- code ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["{home}/weights.py:build", "home/weights.py:build", "home.weights:build"])
def test_predict_imports_nothing_that_a_card_names(name: str, home: Path, tmp_path: Path, fedkin: Command) -> None:
    """`fedkin predict` refuses the folder, names the flag for code that the user trusts, and runs no line of it."""
    ran = hostile(home, tmp_path, name)
    np.save("x.npy", np.zeros((2, 1, 8, 8), np.float32))
    done = fedkin("predict home x.npy")
    assert not ran.exists()
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "no network.json" in done.err
    assert "--network ./FILE.py:FUNCTION" in done.err
    assert name.format(home=home) not in done.err.partition("--network")[2]  # nothing hostile to copy and paste


def test_the_loader_in_the_folder_imports_nothing_that_a_card_names(home: Path, tmp_path: Path) -> None:
    """`load.py` by itself refuses it as well, with fedkin at hand."""
    ran = hostile(home, tmp_path, "weights:build")
    done = subprocess.run(
        [sys.executable, "-c", "from load import load; load()"], cwd=home, capture_output=True, text=True, check=False
    )
    assert not ran.exists()
    assert "ExportError" in done.stderr
    assert "not a built-in network of fedkin" in " ".join(done.stderr.split())


def test_code_comes_by_an_explicit_flag(fedkin: Command) -> None:
    """A run with a user-defined network: the folder says what is needed, predict takes it by --network alone."""
    Path("net.py").write_text(BRANCHING)
    run = "run fedavg --model ./net.py:Net --clients 3 --samples-per-client 30 --rounds 1 --engine loop --quiet"
    assert fedkin(f"{run} --out run").code == 0
    assert fedkin("export run --client 0 --out home").code == 0
    assert "--network ./net.py:Net" in Path("home/README.md").read_text()
    np.save("x.npy", np.full((2, 1, 8, 8), 0.5, np.float32))
    refused = fedkin("predict home x.npy")
    assert refused.code == 2
    assert "--network ./FILE.py:FUNCTION" in refused.err
    assert fedkin("predict home x.npy --network ./net.py:Net").code == 0
    Path("net.py").write_text(BRANCHING.replace("self.head", "self.tail"))
    other = fedkin("predict home x.npy --network ./net.py:Net")
    assert (other.code, "Traceback" in other.err) == (2, False)
    assert "the network is not the one that was trained: it has no head.weight, head.bias; it has also" in other.err


@pytest.mark.parametrize("name", MODELS)
def test_networks_of_the_catalogue_need_no_description(name: str, home: Path) -> None:
    """Each is made by its name where network.json is missing, and gives the logits of the network itself."""
    shape = (3, 64, 64) if name == "resnet18" else (3, 32, 32)
    shape = (1, 28, 28) if name == "cfic-cnn-emnist" else shape
    torch.manual_seed(1)
    network = get_model(name, shape, 10).eval()
    head = [n for n, m in network.named_modules() if isinstance(m, torch.nn.Linear)][-1]
    stored = {n: t.contiguous() for n, t in network.state_dict().items() if t.dtype == torch.float32}
    save_file({f"model.{n}": t for n, t in stored.items()}, home / "model.safetensors")
    (home / "network.json").unlink()
    parameters = [[n, list(t.shape)] for n, t in stored.items()]

    def edit(card: dict[str, Any]) -> None:
        card["network"].update(name=name, by_name=True, parameters=parameters, head=head)
        card["input"].update(shape=list(shape), channels_last=False)

    change(home / "card.json", edit)
    for left in ("preparation.json", "ranges.json"):
        (home / left).unlink()
    x = torch.linspace(0, 1, 2 * torch.Size(shape).numel()).view(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(load_export(home).model.logits(x), network(x))


# ---- values -------------------------------------------------------------------------------------------------------
def card(edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda home: change(home / "card.json", edit)


def plan(edit: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda home: change(home / "network.json", edit)


def step(**values: Any) -> Callable[[Path], None]:
    """A step in front of the first layer."""
    given = {"to": "more", "do": "function", "target": "mul", "args": [{"result": "x"}, 2], "options": {}}
    return plan(lambda p: p["steps"].insert(1, {**given, **values}))


def copies(to: str, of: str) -> dict[str, Any]:
    """A step that makes 900 copies."""
    return {"to": to, "do": "function", "target": "torch.cat", "args": [[{"result": of}] * 900, 1], "options": {}}


X = {"result": "x"}
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a card that is a list": (card(lambda c: [c]), "card.json: expected `object`, got `array`"),
    "a card nested too deeply": (
        lambda home: (home / "card.json").write_text("[" * 100_000), "card.json cannot be read"),
    "a card without a key": (
        card(lambda c: c.pop("tensors") and None), "card.json: object missing required field `tensors`"),
    "classes as a text": (
        card(lambda c: c.update(classes="10")), r"card.json: expected `int`, got `str` - at `\$.classes`"),
    "classes without end": (card(lambda c: c.update(classes=10**30)), "10 labels for 10{30} classes"),
    "a side below 0": (
        card(lambda c: c["input"].update(shape=[1, -8, 8])), r"expected `int` >= 1 - at `\$.input.shape\[1\]`"),
    "an input of 10^18 numbers": (
        card(lambda c: c["input"].update(shape=[10**9, 10**9])), "cannot go through"),
    "a parameter of 10^18 numbers": (
        card(lambda c: c["network"]["parameters"][0].__setitem__(1, [10**9, 10**9])), "the card says"),
    "columns as a list": (card(lambda c: c.update(columns=["age"])), r"expected `object \| null`, got `array` - at"),
    "another format": (card(lambda c: c.update(format="fedkin export 2")), "enum value 'fedkin export 2'"),
    "a step without arguments": (plan(lambda p: p["steps"][1].pop("args") and None), "a step has `args` and `options`"),
    "an input beyond the limit": (card(lambda c: c["input"].update(shape=[1, 30_000, 30_000])), "more than 4 GB"),
    "a parameter of other sides": (
        card(lambda c: c["network"]["parameters"][0].__setitem__(1, [10, 65])), "the card says"),
    "a head that is not there": (card(lambda c: c["network"].update(head="tail")), "damaged"),
    "rules without end": (card(lambda c: c.update(rule=nested(50))), "cannot go through its model"),
    "labels of another number": (
        lambda home: change(home / "labels.json", lambda found: found[:-1]), "9 labels for 10 classes"),
    "a layer of 10^12 numbers": (
        plan(lambda p: last(p)[1].update(in_features=10**6, out_features=10**6)), "the card says"),
    "a layer that torch does not have": (
        plan(lambda p: last(p).__setitem__(0, "load")), "network.json: layer 'head' is of an unknown kind 'load'"),
    "a layer on a device": (plan(lambda p: last(p)[1].update(device="cpu")), "names a device or a type"),
    "a layer without end": (
        plan(lambda p: p["layers"].update(more=["LSTM", {"input_size": 1, "hidden_size": 1, "num_layers": 10**9}])),
        "num_layers"),
    "a text repeated": (step(args=["x", 10**12]), "mul takes tensors and numbers, got str, int"),
    "a list repeated": (step(args=[[0], 10**12]), "mul takes tensors and numbers, got list, int"),
    "a method of a text": (step(do="method", target="view", args=["x", 1]), "unknown step 'method' 'view'"),
    "padding without end": (step(target="F.pad", args=[X, [0, 10**7, 0, 10**4]]), "more than 4 GB"),
    "copies of copies": (
        plan(lambda p: p["steps"].__setitem__(slice(1, 1), [copies("a", "x"), copies("b", "a")])), "more than 4 GB"),
    "a step that is not there": (step(args=[{"result": "nothing"}]), "cannot go through"),
    "ranges of texts": (
        lambda home: change(home / "ranges.json", lambda r: r["inputs"].update(low="a")),
        r"ranges.json: expected `float`, got `str` - at `\$.inputs.low`"),
    "ranges without end": (
        lambda home: change(home / "ranges.json", lambda r: r["inputs"].update(min=10**400)),
        r"number out of range - at `\$.inputs.min`"),
}  # fmt: skip


def last(described: dict[str, Any]) -> Any:
    """The last layer of a description."""
    return list(described["layers"].values())[-1]


def nested(depth: int) -> dict[str, Any]:
    return {"kind": "additive", "inner": nested(depth - 1)} if depth else {"kind": "model"}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_or_hostile_folder_is_refused(case: str, home: Path) -> None:
    """Every value is typed and bounded: one message that names it, and no memory taken."""
    damage, said = CASES[case]
    described = json.loads((home / "network.json").read_text())
    assert described["steps"][0]["to"] == "x"
    damage(home)
    with pytest.raises(RunFolderError, match=said) as caught:
        load_export(home)
    assert str(home) in str(caught.value) or "network.json" in str(caught.value)


def test_weights_of_other_shapes_are_refused(home: Path) -> None:
    """Weights that do not fit the card."""
    stored = load_file(home / "model.safetensors")
    save_file({name: t[:1].clone() for name, t in stored.items()}, home / "model.safetensors")
    with pytest.raises(RunFolderError, match="damaged"):
        load_export(home)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_no_prediction_is_not_a_number(value: float, home: Path, fedkin: Command) -> None:
    """Weights that are not finite, or that overflow: one sentence, no label and no "nan %" with exit code 0."""
    stored = load_file(home / "model.safetensors")
    name = next(n for n, t in stored.items() if t.dim() > 1)
    stored[name] = torch.full_like(stored[name], value)
    save_file(stored, home / "model.safetensors")
    np.save("x.npy", np.full((2, 1, 8, 8), 1e4, np.float32))
    for command in ("predict home x.npy", "predict home x.npy --json", "predict home x.npy --out labels.csv"):
        done = fedkin(command)
        assert (done.code, done.out) == (2, "")
        assert "nan" in done.err
        assert "Traceback" not in done.err
    assert not Path("labels.csv").exists()
    with pytest.raises((ExportError, ValueError)):
        load(home).predict(torch.full((2, 1, 8, 8), 1e4))


@pytest.mark.parametrize("name", ["card.json", "labels.json", "network.json", "preparation.json", "model.safetensors"])
@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "folder"])
def test_what_is_no_file_is_not_read(name: str, what: str, home: Path) -> None:
    """Nothing waits for a pipe, and nothing reads a device without end."""
    (home / name).unlink()
    if what == "pipe":
        os.mkfifo(home / name)
    elif what == "folder":
        (home / name).mkdir()
    else:
        (home / name).symlink_to(what)
    with pytest.raises(RunFolderError, match=name):
        load_export(home)


def test_weights_beyond_the_limit_are_not_read(home: Path) -> None:
    """A weights file of 1 TB that takes no place on the disk."""
    os.truncate(home / "model.safetensors", 10**12)
    with pytest.raises(FedkinError, match="1,000 GB, more than 4"):
        load_export(home)
