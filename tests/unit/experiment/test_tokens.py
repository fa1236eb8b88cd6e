"""Samples of whole numbers, such as those of words, from a file to training, on every engine, and to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from commandline import Command
from fedkin.core import ConfigError, DataError, ModelError
from fedkin.data import Dataset, SiteData, add_feature_noise, load
from fedkin.engines.stacked import Stacked
from fedkin.exporting import export, load_export
from fedkin.exporting.joining import join
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client import ClientService
from hosttoys import Direct, on_hosts, same_server, settings, simulated

NETWORK = """
from torch import nn

class Words(nn.Module):
    def __init__(self, shape, classes, rows=30):
        super().__init__()
        self.emb, self.fc = nn.Embedding(rows, 8, padding_idx=0), nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(self.emb(x).mean(1))

class Few(Words):
    def __init__(self, shape, classes):
        super().__init__(shape, classes, rows=29)

class Branches(Words):
    def forward(self, x):
        return super().forward(x if len(x) else x)
"""
TRAINING = fedkin.Training(epochs=2, batch_size=10, lr=1.0)


def texts(n: int = 240) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Texts of up to 6 of 30 words, 0 is padding; a class is that of most of its words."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = np.where(rng.random((n, 6)) < 0.8, 1, 0) * (rng.integers(1, 15, (n, 6)) + 14 * y[:, None])
    x[:, 0] = np.where(np.arange(n) == n - 1, 29, x[:, 0])
    return x, y


def written(folder: Path, dtype: str = "int64", **more: Any) -> Path:
    """The texts of six clients in a file, and networks next to it."""
    x, y = texts()
    (folder / "words.py").write_text(NETWORK)
    np.savez(folder / "texts.npz", x=x.astype(dtype), y=y, client=np.arange(len(y)) % 6, **more)
    return folder / "texts.npz"


def federation(folder: Path, dtype: str = "int64") -> fedkin.Federation:
    return fedkin.federate(load(written(folder, dtype)), fedkin.Natural())


def trained(data: fedkin.Federation, model: str, engine: Any = "loop", **more: Any) -> fedkin.Result:
    engine = "workers@n=2" if engine == "workers" else engine
    return fedkin.run(fedkin.get_method("fedavg"), data, model, TRAINING, rounds=4, engine=engine, **more)


def stop(report: Any, line: Any) -> None:
    if report.round == 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize("engine", ["loop", "workers", Stacked(device="cpu")], ids=str)
def test_every_engine_trains_on_words(engine: Any, tmp_path: Path) -> None:
    """A network that looks its inputs up, without a conversion: better than chance, and the same models."""
    data, model = federation(tmp_path), f"{tmp_path / 'words.py'}:Words"
    found = trained(data, model, engine)
    assert {c.train.x.dtype for c in data.clients} == {torch.int64}
    assert found.final.accuracy > 0.8
    if engine != "loop":
        torch.testing.assert_close(found.server.state.model, trained(data, model).server.state.model)


def test_numbers_of_words_are_features_to_other_networks(tmp_path: Path) -> None:
    """A built-in network computes with them as floats, to the last bit what it computes with a file of floats."""
    whole = trained(federation(tmp_path), "mlp").server
    assert torch.equal(whole.state.model, trained(federation(tmp_path, "float32"), "mlp").server.state.model)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "int32", ">i8", "uint32"])
def test_every_width_of_whole_numbers(dtype: str, tmp_path: Path) -> None:
    """They are int64, with their values."""
    data = load(written(tmp_path, dtype))
    assert (data.x.dtype, data.x.tolist()) == (torch.int64, texts()[0].tolist())


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "float64", "uint64"])
def test_what_is_no_whole_number(dtype: str, tmp_path: Path) -> None:
    """Pixels, measured values, and whole numbers that int64 might not hold."""
    assert load(written(tmp_path, dtype)).x.dtype == torch.float32
    assert load(written(tmp_path, scale=0.5)).x.dtype == torch.float32


def test_arrays_of_a_program(tmp_path: Path) -> None:
    """`from_arrays`, a data set of tensors and a folder of a federation keep whole numbers, and know them again."""
    x, y = texts()
    made = fedkin.Federation.from_arrays([(x[k::6].astype(np.int32), y[k::6]) for k in range(6)])
    made.save(tmp_path / "saved")
    again = fedkin.Federation.open(tmp_path / "saved", check=True)
    assert again.clients[2].test.x.dtype == torch.int64
    assert torch.equal(again.clients[2].test.x, made.clients[2].test.x)
    written(tmp_path)
    words = f"{tmp_path / 'words.py'}:Words"
    assert torch.equal(trained(again, words).server.state.model, trained(made, words).server.state.model)
    assert Dataset(torch.from_numpy(x), torch.from_numpy(y), 2).rows([3]).x.tolist() == [x[3].tolist()]
    with pytest.raises(DataError, match=r"client 1, train part: inputs are torch.float32 .* torch.int64"):
        fedkin.Federation.from_arrays([(x, y), (x.astype(float), y)])
    with pytest.raises(DataError, match=r"torch.float32 or torch.int64 .* got torch.int16 \[240, 6\]"):
        Dataset(torch.from_numpy(x).short(), torch.from_numpy(y), 2)


def test_noise_needs_measured_values(tmp_path: Path) -> None:
    """Words with fractions would be no words."""
    with pytest.raises(ConfigError, match=r"feature_noise adds fractions .* whole numbers"):
        add_feature_noise(federation(tmp_path), 0.1)


def test_a_run_goes_on(tmp_path: Path) -> None:
    """From its folder, to the state of a run without a break."""
    data, model = federation(tmp_path), f"{tmp_path / 'words.py'}:Words"
    with pytest.raises(KeyboardInterrupt):
        trained(data, model, out=tmp_path / "run", on_round=stop)
    found = trained(data, model, out=tmp_path / "run", resume=True)
    assert torch.equal(found.server.state.model, trained(data, model).server.state.model)


def test_an_exported_model_takes_words(tmp_path: Path) -> None:
    """Files of whole numbers, and no fractions."""
    file, x = written(tmp_path), texts()[0]
    result = trained(fedkin.federate(load(file), fedkin.Natural()), f"{tmp_path / 'words.py'}:Words")
    found = load_export(export(result, 1, tmp_path / "own"))
    assert (found.card.dtype, found.card.inputs[0].type, found.card.test.as_evaluated) == ("int64", "int64", True)
    assert found.predict_file(file).probabilities.tolist() == found.probabilities(x).tolist()
    with pytest.raises(DataError, match="hold fractions; this model takes whole numbers"):
        found.probabilities(x + 0.5)
    with pytest.raises(DataError, match="the model fails on these inputs"):
        found.probabilities(x + 9)
    assert join(result, (x[:40], texts()[1][:40])).accuracy


def test_hosts_train_on_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has no sample to check the network with; the sites have. The run is that of the simulator."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "words_of_hosts.py").write_text(NETWORK)
    file, allowed = str(written(tmp_path)), Allowed(("words_of_hosts",))
    share = {"data": {"data": file, "partition": "natural", "clients": None, "samples_per_client": None}}
    s = settings("fedavg", **share, model={"model": "words_of_hosts:Words"})
    x, y = texts()
    for i in range(3):
        np.savez(tmp_path / f"c{i}.npz", x=x[i::3], y=y[i::3])
    sites = {
        100 + i: ClientService(f"c{i}", SiteData(str(tmp_path / f"c{i}.npz")), tmp_path / "disks", allowed=allowed)
        for i in range(3)
    }
    np.savez(file, x=x, y=y, client=np.arange(len(y)) % 3)
    assert same_server(on_hosts(s, tmp_path, Direct(sites)), simulated(s))


@pytest.mark.parametrize("engine", ["loop", "workers", Stacked(device="cpu")], ids=str)
def test_a_network_that_fails_in_training(engine: Any, tmp_path: Path) -> None:
    """One client has a word that the table of words lacks: its number, the round, and how many rows are needed."""
    data = federation(tmp_path)
    with pytest.raises(ModelError, match=r"of client 5 failed in round 1: .*words.py:Few fails .* at least 29 \+ 1"):
        trained(data, f"{tmp_path / 'words.py'}:Few", engine)


def test_words_in_the_command_line(fedkin: Command, tmp_path: Path) -> None:
    """It trains, and a fault is one line and no traceback."""
    short = f"run fedavg --data {written(tmp_path)} --client-column client --rounds 1 --engine loop"
    assert fedkin(f"{short} --model {tmp_path / 'words.py'}:Words --out a").code == 0
    done = fedkin(f"{short} --model {tmp_path / 'words.py'}:Few --out b")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "index out of range" in done.err
