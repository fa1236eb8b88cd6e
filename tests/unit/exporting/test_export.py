"""What is taken home predicts what the run's evaluation said, for every method, and needs no fedkin to do so."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedkin
from fedkin.core import ConfigError, EngineError, ModelError, RunFolderError
from fedkin.core.samples import tally
from fedkin.experiment.run import run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import settings_from
from fedkin.exporting import export, export_all, export_global, load_export
from fedkin.exporting.rules import rule
from fedkin.methods import METHODS
from fedkin.models import get_model
from fedkin.record.lines import ClientLine
from folders import records
from thorough import OF_EVERY_KIND, thorough_except
from toys import Averaging, Branching

TINY = {
    "data": {"data": "digits", "clients": 4, "samples_per_client": 60, "alpha": 0.5},
    "model": {"model": "mlp"},
    "training": {"batch_size": 10, "lr": 0.1},
    "run": {"rounds": 3},
    "compute": {"engine": "loop"},
}


def settings(name: str, **changes: dict[str, object]):
    """A run of a second: digits of four clients."""
    table = {part: {**values, **changes.get(part, {})} for part, values in TINY.items()}
    if name == "oracle":
        table["data"] |= {"partition": "cluster-classes", "groups": 2, "classes_per_group": 5, "alpha": "none"}
    return settings_from({"method": {"name": name, **changes.get("method", {})}, **table})


def reported(folder: Path, client: int) -> ClientLine:
    return [line for line in records(folder, "clients") if line.client == client][-1]


def test_a_run_that_started_from_trained_values(tmp_path: Path) -> None:
    """Its folder alone is enough, if the file of values lies where it lay."""
    values = {name: torch.full_like(p, 0.01) for name, p in get_model("mlp", (1, 8, 8), 10).state_dict().items()}
    save_file(values, tmp_path / "start.safetensors")
    run_settings(settings("local", model={"init_weights": str(tmp_path / "start.safetensors")}), out=tmp_path / "run")
    card = load_export(export(tmp_path / "run", 2, tmp_path / "own")).card
    assert card["test"]["correct"] == reported(tmp_path / "run", 2).correct
    (tmp_path / "start.safetensors").unlink()
    with pytest.raises(ModelError, match="there is no weights file"):
        export(tmp_path / "run", 2, tmp_path / "again")


@pytest.mark.parametrize(
    "name",
    thorough_except(METHODS, {*OF_EVERY_KIND, "fedavg-ensemble", "fedem", "ifca", "knn-per"} - {"creff"}),
)
def test_every_method_predicts_what_was_reported(name: str, tmp_path: Path) -> None:
    """From the folder of a finished run: the same counts as the evaluation of the last round, for all."""
    run_settings(settings(name), out=tmp_path / "run")
    data = settings(name).data.federation(0)
    for i, place in enumerate(export_all(tmp_path / "run", tmp_path / "out")):
        model = load_export(place)
        card, test, line = model.card, data.clients[i].test, reported(tmp_path / "run", i)
        found = model.predict(test.x)
        right = int((found == test.y).sum())

        assert card["test"]["as_evaluated"] is True
        assert (right, len(test)) == (line.correct, line.n_test) == (card["test"]["correct"], card["test"]["n"])
        assert tally(test.y, found, 10).tolist() == [*card["test"]["per_class"].values()]
        assert not list(place.glob("*.pt*"))
        torch.testing.assert_close(model.probabilities(test.x).sum(1), torch.ones(len(test)))


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
    with pytest.raises(ConfigError, match="client 1 predicts no numbers for some test samples: its training has diver"):
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
    with pytest.raises(RunFolderError, match="row 0 is damaged"):
        export(folder, 1, tmp_path / "a")
    assert len(attempts) == 1
    monkeypatch.setattr("fedkin.exporting.finished.owner", lambda path: "a process")
    broken(3)
    export(folder, 1, tmp_path / "b")
    assert len(attempts) == 4
    broken(9)
    with pytest.raises(
        RunFolderError, match="is being written, faster than it can be read; export it when the run has"
    ):
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
    for asked in ("3", 3, "client 3"):
        card = load_export(export(result, asked, tmp_path / "a", force=True)).card
        assert (card["client"], card["client_name"]) == (1, "client 3")
    assert [place.name for place in export_all(result, tmp_path / "all")] == ["client-1", "client-3", "client-4"]
    with pytest.raises(ConfigError, match="there is no client '2' in this run: 2 clients of the data are left out"):
        export(result, "2", tmp_path / "b")


@pytest.mark.parametrize("name", ["pfedcs", "fedproto", "fedgh"])
def test_the_model_that_is_scored_is_exported(name: str, tmp_path: Path) -> None:
    """At either moment, from the run in memory and from its folder: another model at another moment."""
    weights = []
    for moment in ("delivered", "trained"):
        result = run_settings(settings(name, run={"evaluate": moment}), out=tmp_path / moment)
        for i, given in enumerate((result, tmp_path / moment)):
            place = export(given, 1, tmp_path / f"{moment}{i}")
            assert load_export(place).card["test"]["as_evaluated"] is True
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
    assert model.card["round"] == 2
    assert model.card["test"]["as_evaluated"] is True
    assert model.card["test"]["correct"] == reported(tmp_path / "run", 1).correct
    whole = run_settings(made, out=tmp_path / "whole")
    assert fedkin.resume(tmp_path / "run").final == whole.final


def test_the_loader_needs_no_fedkin(tmp_path: Path) -> None:
    """In a Python where importing fedkin fails, `load.py` gives the same probabilities."""
    run_settings(settings("fedproto", model={"model": "small-cnn"}), out=tmp_path / "run")
    place = export(tmp_path / "run", 2)
    assert place == tmp_path / "run" / "exports" / "client-2"
    x = torch.linspace(0, 1, 5 * 64).view(5, 1, 8, 8)
    script = (
        "import sys; sys.modules['fedkin'] = None\n"
        "import torch; from load import load\n"
        "p = load().probabilities(torch.linspace(0, 1, 320).view(5, 1, 8, 8))\n"
        "assert not any(m.startswith('fedkin.') for m in sys.modules)\n"
        "print(p.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=place, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), load_export(place).probabilities(x))


def test_a_result_in_memory_can_be_exported(tmp_path: Path) -> None:
    """What `fedkin.run` gives has its clients with it, also where method and network are a program's own."""
    data = federation()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    result = fedkin.run(Plain(), data, net, rounds=2, compute=fedkin.Compute(workers=1), eval_every=1)
    model = load_export(export(result, 0, tmp_path / "own"))

    last = [line for line in result.clients if line.client == 0][-1]
    assert int((model.predict(data.clients[0].test.x) == data.clients[0].test.y).sum()) == last.correct
    with pytest.raises(ConfigError, match="this run has no folder"):
        export(result, 0)


def test_a_network_without_description_is_asked_for(tmp_path: Path) -> None:
    """A network that branches: its maker must be given, and then it predicts."""
    result = fedkin.run(
        fedkin.methods.FedAvg(), federation(), Branching, rounds=1, compute=fedkin.Compute(engine="loop")
    )
    place = export(result, 0, tmp_path / "own")

    assert not (place / "network.json").exists()
    assert "network=" in (place / "README.md").read_text()
    with pytest.raises(RunFolderError, match="--network"):
        load_export(place)
    assert load_export(place, Branching).predict(torch.ones(2, 1, 8, 8)).shape == (2,)
    with pytest.raises(RunFolderError, match=r"not the one that was trained: it has also offset$"):
        load_export(place, Shifted)


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


class Constant(nn.Module):
    """A network with a random tensor that it does not register."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.head = torch.randn(64), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(x.flatten(1) * self.factors)


def trained(network: object) -> fedkin.Result:
    """A run of FedPer with a network of one's own."""
    compute, training = fedkin.Compute(engine="loop"), fedkin.Training(lr=0.1)
    return fedkin.run(fedkin.methods.FedPer(), federation(), network, training, rounds=2, eval_every=1, compute=compute)


@pytest.mark.parametrize("network", [Shifted, Tied])
def test_all_places_of_a_tensor_are_filled(network: type[nn.Module], tmp_path: Path) -> None:
    """Buffers that are not persistent, and weights that several layers share, are exported as trained."""
    result = trained(network)
    model = load_export(export(result, 1, tmp_path / "own"), network)

    assert model.card["test"]["as_evaluated"] is True
    net, b, test = result.finished.experiment.net, model.model.tensors, federation().clients[1].test
    torch.testing.assert_close(model.model.logits(test.x), net(b["model"], test.x))
    made = model.model.networks["model"][0]
    if network is Tied:
        assert made.second.weight is made.steps.weight_ih_l0 is made.first.weight is made.steps._flat_weights[0]
    with pytest.raises(RunFolderError, match=r"it has no .*; it has also "):
        load_export(tmp_path / "own", Tied if network is Shifted else Shifted)


def test_another_network_at_export_is_told(tmp_path: Path) -> None:
    """A layer of another width in a later build: the fault of the network's code, and nothing is written."""
    widths = [8]

    def shrinking() -> nn.Module:
        return nn.Sequential(Branching(), nn.Linear(10, widths[-1]), nn.Linear(widths[-1], 10))

    result = trained(shrinking)
    widths.append(6)
    with pytest.raises(EngineError, match=r"client 0 .*its 1.weight has the shape \[\d, 10\], expected .*same layers"):
        export(result, 0, tmp_path / "own")
    assert not list(tmp_path.iterdir())


def test_values_drawn_in_each_build_are_told(tmp_path: Path) -> None:
    """A random tensor that is not registered is another one in the exported network: the message says what to do."""
    result = trained(Constant)
    with pytest.raises(EngineError, match=r"does not give the run's logits.*register them with self\.register_buffer"):
        export(result, 0, tmp_path / "own")
    assert not list(tmp_path.iterdir())


def test_a_prediction_that_only_code_knows_is_refused(tmp_path: Path) -> None:
    """The message says what to do, and nothing is written."""
    result = fedkin.run(Doubling(), federation(), "linear", rounds=1, compute=fedkin.Compute(engine="loop"))
    with pytest.raises(ConfigError, match="Doubling predicts with custom code"):
        export(result, 0, tmp_path / "own")
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    """A second export needs force; a folder of something else is never replaced."""
    result = fedkin.run(
        fedkin.methods.FedAvg(), federation(), "linear", rounds=1, compute=fedkin.Compute(engine="loop")
    )
    place = export(result, 0, tmp_path / "own")
    with pytest.raises(RunFolderError, match="--force"):
        export(result, 1, place)
    assert load_export(place).card["client"] == 0
    assert load_export(export(result, 1, place, force=True)).card["client"] == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years")
    with pytest.raises(RunFolderError, match="is not an export"):
        export(result, 0, tmp_path / "other", force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "own"]


def test_the_model_of_all(tmp_path: Path) -> None:
    """FedAvg's is every client's; Ditto's is that under its clients' own; clusters have none."""
    results = {n: run_settings(settings(n), out=tmp_path / n) for n in ("fedavg", "fedavg-ensemble", "ditto", "ifca")}
    for name in ("fedavg", "fedavg-ensemble"):
        both = [load_export(export_global(tmp_path / name)), load_export(export(tmp_path / name, 3))]
        assert all(torch.equal(t, both[1].model.tensors[n]) for n, t in both[0].model.tensors.items())
    found = load_export(export_global(results["ditto"])).model.tensors["model"]
    assert torch.equal(found, results["ditto"].server.state.model)
    with pytest.raises(ConfigError, match="has no global model"):
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

    assert (model.card["client"], model.card["client_name"], model.labels) == (1, "south", ("well", "ill"))
    assert (tmp_path / "run" / "exports" / "client-south").is_dir()
    with pytest.raises(ConfigError, match=r"no client 'west'.*called north, south"):
        export(result, "west")
    with pytest.raises(ConfigError, match="made by a program"):
        export(tmp_path / "run", 0)


def test_real_hosts_keep_their_own(tmp_path: Path) -> None:
    """A server's folder has no client's data: the message says where the models are."""
    run_settings(settings("fedavg"), out=tmp_path / "run")
    (tmp_path / "run" / "clients.json").write_text("{}")
    with pytest.raises(ConfigError, match="real hosts"):
        export(tmp_path / "run", 0)


@pytest.mark.parametrize("file", ["card.json", "labels.json", "model.safetensors"])
def test_a_damaged_export_is_named(file: str, tmp_path: Path) -> None:
    """A file that is cut short: its name is in the message."""
    result = fedkin.run(
        fedkin.methods.FedAvg(), federation(), "linear", rounds=1, compute=fedkin.Compute(engine="loop")
    )
    place = export(result, 0, tmp_path / "own")
    (place / file).write_bytes((place / file).read_bytes()[:30])
    with pytest.raises(RunFolderError, match=file):
        load_export(place)


def test_a_rule_that_no_folder_knows_is_refused() -> None:
    """The error lists the kinds; it was a KeyError after the models had been read."""
    method = SimpleNamespace(export_rule={"kind": "sum"})
    with pytest.raises(
        ConfigError, match=r"export_rule of SimpleNamespace has the kind 'sum', which is none of 'model', "
    ):
        rule(method)  # type: ignore[arg-type]
    assert rule(METHODS["ifca-cam"]()) == {"kind": "additive", "inner": {"kind": "model"}}
