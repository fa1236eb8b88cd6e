"""What a client keeps on its own host is the folder that `fedkin export` writes in a simulation, and no more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.cli.export import predict_command
from fedkin.core.refusals import Reason
from fedkin.data import SiteData
from fedkin.experiment.settings import Settings
from fedkin.exporting import export_all, folder, load_export
from fedkin_hosts.allowed_code import Allowed
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from hosttoys import Direct, on_hosts, same_export, settings, simulated, sites, taken_home
from owncode import CAUTIOUS

HERE = ("client_name", "fingerprints")  # a host knows its client's name, and no fingerprint of everybody's data
KINDS = ["fedavg", "fedrep", "fedavg-ensemble", "fedproto", "ifca-cam", "fesem-cam", "pfedcs", "fedrod", "da-pfl"]

METHODS = (
    CAUTIOUS
    + '''

@dataclass(frozen=True)
class Doubling(fedkin.Method):
    """The same with logits twice as large."""

    step: float = 0.5
    """As above."""

    init, distribute = Cautious.init, Cautious.distribute
    client_update, aggregate = Cautious.client_update, Cautious.aggregate

    def predict(self, net, b, x):
        return 2 * net(b.model, x)
'''
)
NETWORK = """
from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.mark.parametrize("name", KINDS)
def test_as_exported_from_a_simulation(name: str, tmp_path: Path) -> None:
    """One network, several that vote, a sum of two, prototypes, two heads: the same weights, figures and files."""
    s, last = settings(name), dict[int, dict[str, Any]]()
    for line in on_hosts(s, tmp_path, Direct(sites(tmp_path))).clients:
        last[line.client] = line
    for i, ours in enumerate(as_simulated(s, tmp_path)):
        card = json.loads((ours / "card.json").read_text())
        assert card["client_name"] == f"c{i}"
        assert card["test"]["as_evaluated"] is True
        assert (card["test"]["correct"], card["test"]["n"]) == (last[i].correct, last[i].n_test)
        assert not (ours.parent / "model" / "model.json").exists()


def as_simulated(s: Settings, folder: Path, *but: str) -> list[Path]:
    """What each client keeps, which is what a simulation exports but for some entries of the card."""
    kept = [taken_home(folder, f"c{i}") for i in range(3)]
    for ours, theirs in zip(kept, export_all(simulated(s), folder / "simulated"), strict=True):
        same_export(ours, theirs, *(but or HERE))
    return kept


# ---- tables ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """A file per hospital: a number that differs by hospital, a text, a column that is empty at one of them."""
    rng, folder = np.random.default_rng(0), tmp_path / "hospitals"
    folder.mkdir()
    for k, name in enumerate(("eastend", "northside", "southport")):
        lines = ["age,sex,lab,ill"]
        for _ in range(60):
            age, lab = int(rng.integers(20, 80)) + 5 * k, "" if name == "southport" else f"{rng.normal(k, 1):.2f}"
            lines.append(f"{age},{'fm'[int(rng.integers(2))]},{lab},{'yes' if age > 50 + 5 * k else 'no'}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def of_tables(folder: Path, **data: Any) -> Settings:
    table = {"data": str(folder), "partition": "natural", "target": "ill", "scaling": "client", **data}
    none = {"clients": None, "samples_per_client": None}
    return settings("fedper", data={**none, **table}, run={"rounds": 6})


def test_a_table_takes_its_preparation_along(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every site has files of its own: the scaling is that of its own training part, as in a simulation of all, and
    raw rows are predicted. Nothing names another site."""
    s = of_tables(hospitals)
    files = sorted(hospitals.iterdir())
    on_hosts(
        s, tmp_path, Direct({i: ClientService(f.stem, SiteData(f), tmp_path / "disks") for i, f in enumerate(files)})
    )
    rows = tmp_path / "rows.csv"
    rows.write_text("sex,age,lab\nf,30,1.5\nm,84,\n")
    for file, theirs in zip(files, export_all(simulated(s), tmp_path / "simulated"), strict=True):
        ours = taken_home(tmp_path, file.stem)
        same_export(ours, theirs, "data", "fingerprints")
        assert json.loads((ours / "card.json").read_text())["data"] == f"{file.stem}, natural"
        age = json.loads((ours / "card.json").read_text())["preparation"]["columns"][0]
        assert (age["name"], len(age["mean"])) == ("age", 1)
        assert predict_command([str(ours), str(rows), "--json"]) == 0
        assert [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()] == ["no", "yes"]
        told = "".join(p.read_text() for p in ours.iterdir() if p.suffix in (".json", ".md"))
        assert not [other.stem for other in files if other != file and other.stem in told]
    means = {f.stem: load_export(taken_home(tmp_path, f.stem)).card.preparation.columns[0].mean for f in files}
    assert len(set(means.values())) == 3


def test_shares_of_a_table_are_scaled_by_all_training_parts(hospitals: Path, tmp_path: Path) -> None:
    """With shares of one data set to try things out, the scaling may be that of everybody's training parts."""
    s = of_tables(hospitals, scaling="pooled")
    shares = {i: ClientService(f"c{i}", SiteData(hospitals, share=i), tmp_path / "disks") for i in range(3)}
    on_hosts(s, tmp_path, Direct(shares))
    found = {load_export(ours).card.preparation for ours in as_simulated(s, tmp_path)}
    assert len(found) == 1


def test_images_take_their_size_and_classes_along(tmp_path: Path) -> None:
    """Sites with other classes: an export names those of all sites, in the order of the model, and takes a picture."""
    image = pytest.importorskip("PIL.Image", reason="Pillow comes with fedkin[images]")
    rng, shades = np.random.default_rng(0), {"cat": 30, "dog": 120, "owl": 220}
    for site, classes in {"a": ("cat", "dog"), "b": ("dog", "owl")}.items():
        for name in classes:
            (tmp_path / "data" / site / name).mkdir(parents=True)
            for i in range(12):
                pixels = np.clip(rng.normal(shades[name], 10, (6, 6)), 0, 255).astype(np.uint8)
                image.fromarray(pixels).save(tmp_path / "data" / site / name / f"{i}.png")
    none = {"clients": None, "samples_per_client": None}
    data = {**none, "data": str(tmp_path / "data"), "partition": "natural"}
    s = settings("fedproto", data=data, hosts={"min_clients": 2})
    both = {i: ClientService(n, SiteData(tmp_path / "data" / n), tmp_path / "disks") for i, n in enumerate("ab")}
    on_hosts(s, tmp_path, Direct(both))
    for name, theirs in zip("ab", export_all(simulated(s), tmp_path / "simulated"), strict=True):
        same_export(taken_home(tmp_path, name), theirs, "data", "fingerprints")
        model = load_export(taken_home(tmp_path, name))
        assert model.card.preparation.labels == model.labels == ("cat", "dog", "owl")
        picture = tmp_path / "data" / name / "dog" / "3.png"
        assert model.predict_file(picture).names == load_export(theirs).predict_file(picture).names


# ---- people's own code ----------------------------------------------------------------------------------------------
@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with two methods and a network, as if it were installed on all hosts."""
    place = tmp_path / "installed" / "package_of_a_team"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "methods.py").write_text(METHODS)
    (place / "nets.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(place.parent))
    return place.name


def test_methods_and_networks_by_import_path(installed: str, tmp_path: Path) -> None:
    """As those of the catalogue."""
    s = settings(f"{installed}.methods:Cautious", model={"model": f"{installed}.nets:build"})
    on_hosts(s, tmp_path, Direct(sites(tmp_path, allowed=Allowed((installed,)))))
    for ours in as_simulated(s, tmp_path):
        assert load_export(ours).card.method["name"] == f"{installed}.methods:Cautious"


def test_a_prediction_of_ones_own(installed: str, tmp_path: Path) -> None:
    """The program at the host does what the method's `predict` does."""
    s = settings(f"{installed}.methods:Doubling")
    on_hosts(s, tmp_path, Direct(sites(tmp_path, allowed=Allowed((installed,)))))
    as_simulated(s, tmp_path)


# ---- hosts that come back -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedavg-ft", "fedproto"])
def test_a_worker_that_was_started_anew(name: str, tmp_path: Path) -> None:
    """Between its last evaluation and its model: it evaluates again, and the card says what the server was told."""
    s = settings(name)

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if of.head["kind"] == "keep":
            i = int(client[1:])
            post.sites[100 + i] = ClientService(client, SiteData("digits", share=i), tmp_path / "disks")
        return post.ask(client, of)

    last = {line.client: line for line in on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch)).clients}
    for i, ours in enumerate(as_simulated(s, tmp_path)):
        assert load_export(ours).card.test.correct_as_evaluated == last[i].correct


def test_what_was_told_is_compared(tmp_path: Path) -> None:
    """A site that told the server something else than its model does: card and README say so."""
    post = Direct(sites(tmp_path))

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if (client, of.head["kind"]) == ("c1", "evaluate"):
            told = post.sites[101]._reported
            told[of.head["run"]] = of.head["round"], torch.ones(3, 10, dtype=torch.int64)
        return answer

    post.touch = touch
    on_hosts(settings("fedavg"), tmp_path, post)
    tests = [load_export(taken_home(tmp_path, f"c{i}")).card.test for i in range(3)]
    assert [t.as_evaluated for t in tests] == [True, False, True]
    assert tests[1].correct_as_evaluated == 10 != tests[1].correct
    text = (taken_home(tmp_path, "c1") / "README.md").read_text()
    assert "In the run's own evaluation of that round it was right on 10:" in text
    assert "own evaluation" not in (taken_home(tmp_path, "c0") / "README.md").read_text()


def test_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that is submitted again after its end: the model is written anew, what a killed worker left behind is
    gone; a folder with something else in it stays as it is."""
    s = settings("fedavg")
    on_hosts(s, tmp_path, Direct(sites(tmp_path)))
    first, other = taken_home(tmp_path, "c0"), taken_home(tmp_path, "c1")
    before = (first / "model.safetensors").read_bytes()
    (first / "model.safetensors").write_bytes(b"damaged")
    (first.parent / ".model.1.new").mkdir()
    (first.parent / ".model.1.new" / "card.json").write_text("half")
    shutil.rmtree(other)
    other.mkdir()
    (other / "thesis.tex").write_text("years")
    on_hosts(s, tmp_path, Direct(sites(tmp_path)))
    assert (first / "model.safetensors").read_bytes() == before
    assert sorted(p.name for p in first.parent.iterdir()) == ["memory.safetensors", "model", "setup.json"]
    assert [p.name for p in other.iterdir()] == ["thesis.tex"]
    assert "is not an export" in caplog.text


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """While the model is written anew: the older one stays whole, nothing half-written is left, both sides say why."""
    s = settings("fedavg", run={"rounds": 1})
    on_hosts(s, tmp_path, Direct(sites(tmp_path)))
    place = taken_home(tmp_path, "c0")
    before = {p.name: p.read_bytes() for p in place.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "sync_to_disk", full)
    on_hosts(s, tmp_path, Direct(sites(tmp_path)))
    assert {p.name: p.read_bytes() for p in place.iterdir()} == before
    assert sorted(p.name for p in place.parent.iterdir()) == ["memory.safetensors", "model", "setup.json"]
    assert f"c0: keep: {Reason('disk')}" in caplog.text
    assert "No space left on device" in caplog.text
