"""An export predicts what the run's evaluation said, for every method, and needs onnxruntime only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedkin
from fedkin.core import ConfigError, RunFolderError
from fedkin.core.samples import tally
from fedkin.data import federation_of
from fedkin.experiment.run import run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import settings_from
from fedkin.exporting import export, export_all, export_global, load_export
from fedkin.exporting.finished import simulation
from fedkin.methods import METHODS
from fedkin.record.files import read_commit
from fedkin.record.lines import ClientLine, Commit, Mark
from fedkin.server import asked
from folders import records
from refusals import refuses
from thorough import OF_EVERY_KIND, thorough_except
from toys import Averaging, Branching

TINY = {
    "data": {"data": "digits", "clients": 4, "samples_per_client": 60, "partition": "dirichlet@alpha=0.5"},
    "model": {"model": "mlp"},
    "training": {"batch_size": 10, "lr": 0.1},
    "run": {"rounds": 3},
    "compute": {"engine": "loop"},
}


def settings(name: str, **changes: dict[str, object]):
    """A run of a second: digits of four clients."""
    table = {part: {**values, **changes.get(part, {})} for part, values in TINY.items()}
    if name == "oracle":
        table["data"] |= {"partition": "cluster-classes@groups=2,classes_per_group=5"}
    return settings_from({"method": {"name": name, **changes.get("method", {})}, **table})


def reported(folder: Path, client: int) -> ClientLine:
    return [line for line in records(folder, "clients") if line.client == client][-1]


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of a process as Linux has them")
def test_nothing_is_reported_to_the_maker_of_onnxruntime() -> None:
    """Its import starts a thread that sends reports, unless it was turned off before."""
    script = (
        "import os; from fedkin.exporting import program; before = len(os.listdir('/proc/self/task'))\n"
        "program._runtime(); print(len(os.listdir('/proc/self/task')) - before)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.parametrize(
    "name",
    thorough_except(METHODS, {*OF_EVERY_KIND, "fedavg-ensemble", "fedem", "ifca", "knn-per"} - {"creff"}),
)
def test_every_method_predicts_what_was_reported(name: str, tmp_path: Path) -> None:
    """From the folder of a finished run: the same counts as the evaluation of the last round, for all."""
    run_settings(settings(name), out=tmp_path / "run")
    data = federation_of(settings(name).data, 0)
    for i, place in enumerate(export_all(tmp_path / "run", tmp_path / "out")):
        model = load_export(place)
        card, test, line = model.card, data.clients[i].test, reported(tmp_path / "run", i)
        found = torch.from_numpy(model.predict(test.x))
        right = int((found == test.y).sum())

        assert card.test.as_evaluated is True
        assert (right, len(test)) == (line.correct, line.n_test) == (card.test.correct, card.test.n)
        counts = card.test.per_class
        assert tally(test.y, found, 10).tolist() == [counts.samples, counts.predicted, counts.correct]
        np.testing.assert_allclose(model.probabilities(test.x).sum(1), 1, rtol=1e-5)


def numbers(spoilt: float = 1.0) -> fedkin.Federation:
    """Four clients with rows of numbers; those of client 1 are multiplied."""
    draw = np.random.default_rng(0)
    made = [(draw.normal(size=(40, 6)) * (spoilt if i == 1 else 1), draw.integers(0, 3, size=40)) for i in range(4)]
    return fedkin.Federation.from_arrays(made, classes=3)


def test_models_that_predict_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training of client 1 has diverged: the others are exported, and its own is refused by that reason."""
    result = fedkin.run(fedkin.get_method("local"), numbers(1e20), "linear", fedkin.Training(lr=0.5), rounds=3)
    assert result.rounds[-1].figures.unpredicted == (1,)
    assert [place.name for place in export_all(result, tmp_path / "all")] == ["client-0", "client-2", "client-3"]
    assert "the model of client 1 predicts NaN and is not exported" in caplog.text
    with refuses(ConfigError, "client 1 predicts no numbers"):
        export(result, 1, tmp_path / "one")
    assert not (tmp_path / "one").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_a_clients_model_is_its_owners(tmp_path: Path) -> None:
    """Files 0600 and folders 0700, as of a run's data of single clients; the global model is anyone's to read."""
    result = fedkin.run(fedkin.get_method("fedavg"), numbers(), "linear", fedkin.Training(lr=0.1), rounds=1)
    own, common = export(result, 1, tmp_path / "own"), export_global(result, tmp_path / "all")
    assert own.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in own.iterdir()} == {0o600}
    assert {file.stat().st_mode & 0o077 for file in common.iterdir()} != {0}


def test_a_run_that_is_written_meanwhile_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Banks that were copied in the middle of a round are read anew; five times at most, and damage is damage where
    nothing writes."""
    folder = tmp_path / "run"
    run_settings(settings("da-pfl", compute={"state": "file"}), out=folder)
    load, attempts = RunFolder.load, list[int]()

    def broken(times: int) -> None:
        attempts.clear()

        def fails(self: RunFolder, *args: Any, **more: Any) -> Any:
            attempts.append(1)
            if len(attempts) <= times:
                raise RunFolderError("row 0 is damaged")
            return load(self, *args, **more)

        monkeypatch.setattr(RunFolder, "load", fails)

    broken(1)
    with refuses(RunFolderError, "row 0 is damaged"):
        export(folder, 1, tmp_path / "a")
    assert len(attempts) == 1
    read = read_commit

    def moved_on(path: Path) -> Commit:
        return msgspec.structs.replace(read(path), files={f"f{'x' * len(attempts)}.l": Mark(0, "")})

    monkeypatch.setattr("fedkin.exporting.finished.read_commit", moved_on)
    broken(3)
    export(folder, 1, tmp_path / "b")
    assert len(attempts) == 4
    broken(9)
    with pytest.raises(RunFolderError):
        export(folder, 1, tmp_path / "c")
    assert len(attempts) == 5


def test_clients_by_their_number_in_the_data(tmp_path: Path) -> None:
    """Where the data's clients 0 and 2 are too small, --client 3 is the client that the data call 3."""
    client = torch.tensor([0] * 5 + [1] * 20 + [2] * 5 + [3] * 20 + [4] * 20)
    x = torch.randn(70, 4, generator=torch.Generator().manual_seed(0))
    data = fedkin.Dataset(x, torch.arange(70) % 2, classes=2, client=client)
    result = fedkin.run(
        fedkin.get_method("local"), fedkin.federate(data, fedkin.Natural()), "linear", fedkin.Training(lr=0.1), rounds=1
    )
    for who in ("3", 3, "client 3"):
        card = load_export(export(result, who, tmp_path / "a", force=True)).card
        assert (card.client, card.client_name) == (1, "client 3")
    assert [place.name for place in export_all(result, tmp_path / "all")] == ["client-1", "client-3", "client-4"]
    with refuses(ConfigError, "there is no client '2'"):
        export(result, "2", tmp_path / "b")


@pytest.mark.parametrize("name", ["pfedcs", "fedproto", "fedgh"])
def test_the_model_that_is_scored_is_exported(name: str, tmp_path: Path) -> None:
    """At either moment, from the run in memory and from its folder: another model at another moment."""
    weights = []
    for moment in ("delivered", "trained"):
        result = run_settings(settings(name, run={"evaluate": moment}), out=tmp_path / moment)
        for i, given in enumerate((result, tmp_path / moment)):
            place = export(given, 1, tmp_path / f"{moment}{i}")
            assert load_export(place).card.test.as_evaluated is True
            weights.append([file.read_bytes() for file in sorted(place.glob("*.safetensors"))])
    assert weights[0] == weights[1] != weights[2] == weights[3]


@dataclass(frozen=True)
class Doubling(Averaging, fedkin.Method):
    """A method of one's own that predicts by code of its own."""

    def predict(self, net, b, x):
        return 2 * net(b.model, x)


@dataclass(frozen=True)
class Plain(Averaging, fedkin.Method):
    """A method of one's own that predicts with one network."""


def federation() -> fedkin.Federation:
    return fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=3)


@pytest.mark.parametrize("name", ["ditto", "fedbabu", "ifca-cam", "da-pfl"])
@pytest.mark.parametrize("state", ["memory", "file"])
def test_an_interrupted_run_gives_the_models_of_its_last_round(name: str, state: str, tmp_path: Path) -> None:
    """Killed after round 2 of 3: the models of round 2, those that a run stopped there has; the folder stays as it is,
    and the run can be resumed to the same end."""
    made = settings(name, run={"eval_every": 1}, compute={"state": state})

    def stop(report, line):
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_settings(made, out=tmp_path / "run", on_round=stop)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    model = load_export(export(tmp_path / "run", 1, tmp_path / "out"))

    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    assert model.card.round == 2
    assert model.card.test.as_evaluated is True
    assert model.card.test.correct == reported(tmp_path / "run", 1).correct
    whole = run_settings(made, out=tmp_path / "whole")
    assert fedkin.resume(tmp_path / "run").final == whole.final


@pytest.mark.parametrize("name", ["fedproto", "fedem", "knn-per", "fedavg-safe"])
def test_onnxruntime_alone(name: str, tmp_path: Path) -> None:
    """In a Python without fedkin and torch: any number of images in the units of the data, which are 0 to 16."""
    run_settings(settings(name, model={"model": "small-cnn"}), out=tmp_path / "run")
    place = export(tmp_path / "run", 2)
    assert place == tmp_path / "run" / "exports" / "client-2"
    x = federation_of(settings(name).data, 0).clients[0].train.x[:5]
    np.save(tmp_path / "x.npy", 16 * x.numpy())
    script = (
        "import sys; sys.modules['fedkin'] = sys.modules['torch'] = None\n"
        "import json, numpy, onnxruntime\n"
        "x = numpy.load(sys.argv[1]); model = onnxruntime.InferenceSession('model.onnx')\n"
        "found = [model.run(['label', 'probabilities'], {'x': x[:n]}) for n in (1, 5)]\n"
        "print(json.dumps([[a.tolist() for a in both] for both in found]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.npy")], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (_, one), (labels, five) = json.loads(done.stdout)
    result = run_settings(settings(name, model={"model": "small-cnn"})).finished
    with simulation(result) as clients:
        e = result.experiment
        own = asked(e.method, e.net, clients, e.plan, result.server, "keep", [2])[0][2]
    wanted = e.method.predict(e.net, own, x).softmax(1)
    np.testing.assert_allclose(five, wanted, atol=1e-5)
    np.testing.assert_allclose(one, five[:1], atol=1e-6)
    assert labels == [str(i) for i in wanted.argmax(1).tolist()]


def test_columns_are_prepared_in_the_program(tmp_path: Path) -> None:
    """Plain onnxruntime takes the columns of a table as they are: numbers with gaps, texts known and not."""
    rng = np.random.default_rng(0)
    lines = [
        f"{20 + i % 50},{'' if i % 4 == 0 else round(rng.normal(), 2)},{'fm'[i % 2]},7,{'yes' if i % 50 > 25 else 'no'}"
        for i in range(120)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["age,lab value (mmol/l),sex,same,ill", *lines]))
    data = fedkin.federate(fedkin.load(tmp_path / "t.csv", target="ill"), fedkin.Dirichlet(alpha=5.0), clients=2)
    result = fedkin.run(fedkin.methods.FedPer(), data, "mlp", fedkin.Training(lr=0.2), rounds=5)
    place = export(result, 1, tmp_path / "home")
    columns = {"age": [25.0, np.nan, 60.0], "lab value (mmol/l)": [np.nan, 1.5, -0.5], "sex": ["f", "x", ""]}
    columns["same"] = [7.0, 8.0, np.nan]
    given = {n: np.array(v, dtype=object if n == "sex" else np.float64) for n, v in columns.items()}
    labels, found = onnxruntime.InferenceSession(place / "model.onnx").run(None, given)
    rows = [{n: None if v[i] != v[i] else v[i] for n, v in columns.items()} for i in range(3)]
    model = load_export(place)
    x = data.preparation.apply(rows)
    e, state = result.finished.experiment, result.finished
    with simulation(state) as clients:
        own = asked(e.method, e.net, clients, e.plan, state.server, "keep", [1])[0][1]
    np.testing.assert_allclose(found, e.method.predict(e.net, own, x).softmax(1), atol=1e-5)
    with pytest.warns(UserWarning, match="sex: nothing, 'x' in 2 of 3 rows|in no training row|outside"):
        np.testing.assert_allclose(model.probabilities(rows), found, atol=1e-6)
    assert labels.tolist() == [model.labels[i] for i in found.argmax(1)]
    with pytest.warns(UserWarning, match="another scale"):
        np.testing.assert_allclose(model.probabilities(x.numpy() * 1000).sum(1), 1, rtol=1e-5)


def test_a_result_in_memory_can_be_exported(tmp_path: Path) -> None:
    """What `fedkin.run` gives has its clients with it, also where method and network are a program's own."""
    data = federation()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    result = fedkin.run(Plain(), data, net, rounds=2, compute=fedkin.Compute("workers@n=1"), eval_every=1)
    model = load_export(export(result, 0, tmp_path / "own"))

    last = [line for line in result.clients if line.client == 0][-1]
    test = data.clients[0].test
    assert int((torch.from_numpy(model.predict(test.x)) == test.y).sum()) == last.correct
    with refuses(ConfigError, "this run has no folder"):
        export(result, 0)


def test_weights_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A network that branches on values: a trace would know one way. The weights have the network's names."""
    result = fedkin.run(
        fedkin.methods.FedAvg(), federation(), Branching, rounds=1, compute=fedkin.Compute(engine="loop")
    )
    place = export(result, 0, tmp_path / "own")
    assert "the model of client 0 is exported as weights only: its code takes another way" in caplog.text
    assert sorted(p.name for p in place.iterdir()) == ["README.md", "card.json", "model.safetensors", "ranges.json"]
    stored = load_file(place / "model.safetensors")
    Branching().load_state_dict({name.removeprefix("model."): t for name, t in stored.items()})
    with refuses(RunFolderError, "holds weights only: its code takes another way"):
        load_export(place)


class Shifted(nn.Module):
    """A network with a float buffer that its ``state_dict`` leaves out, and one of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.rand(64), persistent=False)
        self.register_buffer("order", torch.arange(64).flip(0), persistent=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head((x.flatten(1) - self.offset)[:, self.order])


class Tied(nn.Module):
    """Layers before the head that share a weight, one of them recurrent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.steps = nn.Linear(64, 64), nn.Linear(64, 64), nn.RNN(64, 64, batch_first=True)
        self.second.weight = self.steps.weight_ih_l0 = self.first.weight
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.second(self.first(x.flatten(1)).tanh()).tanh()
        return self.head(self.steps(x[:, None])[0][:, -1])


def trained(network: object) -> fedkin.Result:
    """A run of FedPer with a network of one's own."""
    compute, training = fedkin.Compute(engine="loop"), fedkin.Training(lr=0.1)
    return fedkin.run(fedkin.methods.FedPer(), federation(), network, training, rounds=2, eval_every=1, compute=compute)


@pytest.mark.parametrize("network", [Shifted, Tied])
def test_networks_of_ones_own(network: type[nn.Module], tmp_path: Path) -> None:
    """Buffers that are not persistent, weights that several layers share, recurrent layers."""
    result = trained(network)
    model = load_export(export(result, 1, tmp_path / "own"))
    assert model.card.test.as_evaluated is True
    net, test = result.finished.experiment.net, federation().clients[1].test
    stored = load_file(tmp_path / "own" / "model.safetensors")
    w = torch.cat([stored[f"model.{name}"].flatten() for name in net.places()])
    np.testing.assert_allclose(model.probabilities(test.x), net(w, test.x).softmax(1), atol=1e-5)


def test_a_prediction_of_ones_own(tmp_path: Path) -> None:
    """The program does what `predict` does."""
    result = fedkin.run(Doubling(), federation(), "linear", rounds=1, compute=fedkin.Compute(engine="loop"))
    model, x = load_export(export(result, 0, tmp_path / "own")), federation().clients[0].test.x
    w, net = result.server.state.model, result.finished.experiment.net
    np.testing.assert_allclose(model.probabilities(x), (2 * net(w, x)).softmax(1), atol=1e-5)


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    """A second export needs force; a folder of something else is never replaced."""
    result = fedkin.run(
        fedkin.methods.FedAvg(), federation(), "linear", rounds=1, compute=fedkin.Compute(engine="loop")
    )
    place = export(result, 0, tmp_path / "own")
    with refuses(RunFolderError, "--force"):
        export(result, 1, place)
    assert load_export(place).card.client == 0
    assert load_export(export(result, 1, place, force=True)).card.client == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years")
    with refuses(RunFolderError, "is not an export"):
        export(result, 0, tmp_path / "other", force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "own"]


def test_the_model_of_all(tmp_path: Path) -> None:
    """FedAvg's is every client's; Ditto's is that under its clients' own; clusters have none."""
    results = {n: run_settings(settings(n), out=tmp_path / n) for n in ("fedavg", "fedavg-ensemble", "ditto", "ifca")}
    for name in ("fedavg", "fedavg-ensemble"):
        both = [export_global(tmp_path / name), export(tmp_path / name, 3)]
        assert both[0].joinpath("model.safetensors").read_bytes() == both[1].joinpath("model.safetensors").read_bytes()
    found, net = load_export(export_global(results["ditto"])), results["ditto"].finished.experiment.net
    x = net.inputs(2)
    np.testing.assert_allclose(
        found.probabilities(x), net(results["ditto"].server.state.model, x).softmax(1), atol=1e-5
    )
    with refuses(ConfigError, "has no global model"):
        export_global(tmp_path / "ifca")


def test_clients_by_name_and_number(tmp_path: Path) -> None:
    """A name names; a number that is too large, and a run of nothing, are told."""
    rng = torch.Generator().manual_seed(0)
    arrays = [(torch.rand(20, 4, generator=rng).numpy(), [0, 1] * 10) for _ in range(2)]
    data = fedkin.Federation.from_arrays(arrays, classes=2, client_names=["north", "south"], labels=["well", "ill"])
    result = fedkin.run(
        fedkin.methods.FedPer(), data, "mlp", rounds=1, compute=fedkin.Compute(engine="loop"), out=tmp_path / "run"
    )
    model = load_export(export(result, "south"))

    assert (model.card.client, model.card.client_name, model.labels) == (1, "south", ("well", "ill"))
    assert (tmp_path / "run" / "exports" / "client-south").is_dir()
    with refuses(ConfigError, "'west'", "north, south"):
        export(result, "west")
    with refuses(ConfigError, "made by a program"):
        export(tmp_path / "run", 0)


def test_real_hosts_keep_their_own(tmp_path: Path) -> None:
    """A server's folder has no client's data: the message says where the models are."""
    run_settings(settings("fedavg"), out=tmp_path / "run")
    (tmp_path / "run" / "clients.json").write_text("{}")
    with refuses(ConfigError, "real hosts"):
        export(tmp_path / "run", 0)
