"""A newcomer after the end of training: where it is placed, what it gets, and that the run stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from commandline import Command
from fedkin.core import ConfigError, DataError
from fedkin.experiment.prepare import FinishedRun
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import settings_from
from fedkin.exporting.joining import join
from refusals import refuses

GROUPS = 2


def people(count: int = 6) -> fedkin.Federation:
    """Clients of two groups that name the same two blobs in opposite ways."""
    return fedkin.Federation.from_arrays([one(k % GROUPS, k) for k in range(count)], classes=2, name="blobs")


def one(group: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(60) % 2
    x = rng.normal(0, 0.5, size=(60, 2)) + np.where(y == 1, 2.0, -2.0)[:, None]
    return x.astype(np.float32), (y + group) % 2


def after_run(method: fedkin.Method, **more: object) -> fedkin.Result:
    training = fedkin.Training(lr=0.1, steps=5, batch_size=10)
    return fedkin.run(method, people(), "linear", training, rounds=6, compute=fedkin.Compute(engine="loop"), **more)


def test_ifca_puts_a_newcomer_to_its_like() -> None:
    """A newcomer that names blobs as the odd clients do comes to their cluster, and is right at once."""
    result = after_run(fedkin.methods.IFCA())
    for group in range(GROUPS):
        drill = join(result, one(group, 99), after=(0, 2))

        assert drill.mates == tuple(str(i) for i in range(6) if i % GROUPS == group)
        assert drill.accuracy == {0: 1.0, 2: 1.0}
        assert drill.clusters == {0: drill.cluster, 2: drill.cluster}
        assert set(drill.local) == {0, 2, 6}
        assert drill.global_model is None


def test_fedavg_gives_the_global_model_and_then_trains_it() -> None:
    """After 0 rounds it has the run's model itself, by hand; one round alone makes it the newcomer's own training."""
    result = after_run(fedkin.methods.FedAvg())
    new = one(1, 99)
    drill = join(result, new, after=(0, 1, 3))
    shard = fedkin.Federation.from_arrays([new], classes=2).clients[0]
    net = result.finished.experiment.net
    right = net(result.server.state.model, shard.test.x).argmax(1) == shard.test.y

    assert drill.accuracy[0] == drill.global_model == float(right.double().mean())
    assert drill.accuracy[3] == 1.0  # nobody pulls it back
    assert (drill.cluster, drill.weights, drill.mates) == (None, None, ())


def test_the_constant_answer_is_that_of_the_most_frequent_training_class() -> None:
    """Of 100 samples 70 are of class 0: the share of class 0 in its test part, by hand, whatever the run's clients had;
    1 where all samples are of one class."""
    result, rng = after_run(fedkin.methods.FedAvg()), np.random.default_rng(0)
    y = rng.permutation(np.arange(100) >= 70).astype(int)
    new = rng.normal(size=(100, 2)).astype(np.float32), y
    drill = join(result, new, after=(0,))
    test = fedkin.Federation.from_arrays([new], classes=2).clients[0].test.y

    assert drill.constant == float((test == 0).double().mean()) > 0.5
    assert join(result, (new[0], 0 * y + 1), after=(0,)).constant == 1.0


def test_dapfl_tells_whom_a_newcomer_learns_from() -> None:
    """Weights of clients, largest first, that are those of a mixture."""
    drill = join(after_run(fedkin.methods.DAPFL()), one(0, 99), after=(0, 1))

    assert drill.weights is not None
    values = list(drill.weights.values())
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1, abs=1e-4)
    assert set(drill.weights) <= {"itself", *map(str, range(6))}


@pytest.mark.parametrize(
    "name", ["local", "pfedcs", "fedper", "ifca-cam", "fesem-cam", "fesem", "cfl", "fedfomo", "fedproto"]
)
def test_every_kind_of_method_takes_a_newcomer(name: str, tmp_path: Path) -> None:
    """From a folder whose files stay as they are; the figures are counts of its test samples."""
    table = {
        "method": {"name": name},
        "data": {"data": "digits", "clients": 4, "samples_per_client": 60, "partition": "dirichlet@alpha=0.5"},
        "training": {"batch_size": 10, "lr": 0.1},
        "run": {"rounds": 2},
        "compute": {"engine": "loop", "state": "file"},
    }
    run_settings(settings_from(table), out=tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    digits = fedkin.load("digits")
    drill = join(tmp_path / "run", (digits.x[:80], digits.y[:80]), after=(0, 1, 2))

    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    assert (drill.train, drill.validation, drill.test) == (56, 8, 16)
    for figures in (drill.accuracy, drill.local):
        assert all(v * 16 == pytest.approx(round(v * 16)) for v in figures.values())
    assert drill.accuracy[2] > 0
    assert drill == join(tmp_path / "run", (digits.x[:80], digits.y[:80]), after=(0, 1, 2))


def test_training_alone_is_a_run_of_local() -> None:
    """The reference is what a run of Local on the newcomer's data gives."""
    new = one(0, 99)
    drill = join(after_run(fedkin.methods.FedPer()), new, after=(0, 1, 2))
    alone = fedkin.run(
        fedkin.methods.Local(), fedkin.Federation.from_arrays([new], classes=2), "linear",
        fedkin.Training(lr=0.1, steps=5, batch_size=10), rounds=6, compute=fedkin.Compute(engine="loop"), eval_every=1,
    )  # fmt: skip
    assert [drill.local[t] for t in (1, 2, 6)] == [alone.clients[t - 1].accuracy for t in (1, 2, 6)]


def test_what_does_not_fit_is_told() -> None:
    """Another shape, a class too many, no rounds."""
    result = after_run(fedkin.methods.FedAvg())
    assert isinstance(result.finished, FinishedRun)
    x, y = one(0, 1)
    with refuses(DataError, "[3]", "[2]"):
        join(result, (torch.zeros(9, 3), torch.zeros(9, dtype=torch.int64)))
    with refuses(DataError, "0..1"):
        join(result, (x, y + 1))
    with refuses(ConfigError, "after", -1):
        join(result, (x, y), after=(-1,))


def test_a_small_newcomer_with_a_large_label(fedkin: Command) -> None:
    """Fewer samples than the run has classes, the last one among them; a class beyond the run's is refused."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 40
    np.savez("all.npz", x=rng.normal(size=(400, 3)).astype(np.float32), y=y, subject=np.arange(400) // 200)
    flags = "--partition natural --model linear --rounds 1 --engine loop --quiet --out run"
    assert fedkin(f"run fedavg --data all.npz {flags}").code == 0
    x, y = rng.normal(size=(32, 3)).astype(np.float32), np.arange(8, 40)
    np.savez("new.npz", x=x, y=y)
    done = fedkin("join run --data new.npz --after 0 --json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["train"] == 23
    np.savez("other.npz", x=x, y=y + 1)
    refused = fedkin("join run --data other.npz --after 0")
    assert (refused.code, "class 40 is not one of those that the run knows" in refused.err) == (2, True)
    np.savez("named.npz", x=x, y=np.array([f"c{i}" for i in y]))  # whose number would be that among these names
    refused = fedkin("join run --data named.npz --after 0")
    assert (refused.code, "class c10" in refused.err) == (2, True)
    np.savez("texts.npz", x=x, y=y.astype(str))
    same = json.loads(fedkin("join run --data texts.npz --after 0 --json").out)
    assert same | {"data": "new.npz"} == json.loads(done.out)


def test_clients_of_a_table_that_are_left_out_or_join_together(fedkin: Command) -> None:
    """One that is asked for by its name is told why it has no model; several in the file of a newcomer are noted."""
    names = ["Köln"] * 40 + ["Graz"] * 40 + ["Bern"] * 4
    rows = [f"{i * 37 % 101},{name},{i % 2}" for i, name in enumerate(names)]
    Path("a.csv").write_text("\n".join(["age,town,ill", *rows, ""]), encoding="utf-8")
    flags = "--target ill --client-column town --model linear --rounds 1 --engine loop --quiet --out run"
    assert fedkin(f"run fedavg --data a.csv {flags}").code == 0
    assert "there is no client 'Bern'" in fedkin("export run --client Bern").err
    assert "there is no client 'Koln'; did you mean 'Köln'?" in fedkin("export run --client Koln").err
    note = "warning: the column town names 3 clients (Bern, Graz, Köln): their rows join as one"
    assert note in fedkin("join run --data a.csv --after 0").err
    Path("b.csv").write_text("\n".join(["age,town,ill", *rows[:40], ""]), encoding="utf-8")
    assert "join as one" not in fedkin("join run --data b.csv --after 0").err


def test_from_the_command_line_by_a_table(fedkin: Command) -> None:
    """Hospitals as csv: a run, an export that predicts a raw row, a newcomer; columns that are missing are named."""
    rng = np.random.default_rng(0)
    Path("hospitals").mkdir()
    for name in ("north", "south", "new"):
        lines = ["age,sex,ill"]
        for _ in range(40):
            age = int(rng.integers(20, 80))
            lines.append(f"{age},{'fm'[int(rng.integers(2))]},{'yes' if age > 50 else 'no'}")
        place = "new.csv" if name == "new" else f"hospitals/{name}.csv"
        Path(place).write_text("\n".join(lines) + "\n")
    flags = "--target ill --partition natural --model linear --rounds 20 --lr 0.1 --engine loop --quiet --out run"
    assert fedkin(f"run fedavg --data hospitals {flags}").code == 0
    assert fedkin("export run --client north").code == 0
    Path("rows.csv").write_text("sex,age\nf,25\nm,79\n")
    done = fedkin("predict run/exports/client-north rows.csv --json")
    assert [json.loads(line)["label"] for line in done.out.splitlines()] == ["no", "yes"], done.err
    done = fedkin("join run --data new.csv --after 0 2")

    assert done.code == 0, done.err
    assert "28 training, 4 validation, 8 test samples" in done.out
    assert "global model as it is" in done.out
    told = json.loads(fedkin("join run --data new.csv --after 0 2 --json").out)
    assert told["accuracy"]["0"] == told["global_model"] > 0.6
    Path("short.csv").write_text("age,ill\n30,no\n")
    for command in ("join run --data short.csv", "predict run/exports/client-north short.csv"):
        done = fedkin(command)
        assert done.code == 2
        assert "no column 'sex'" in done.err
    Path("odd.csv").write_text("age,sex,ill\n30,f,perhaps\n")
    said = "class perhaps of target 'ill' is not one of those that the run knows, no, yes"
    assert said in fedkin("join run --data odd.csv").err
