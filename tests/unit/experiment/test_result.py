"""`Result`: final figures with names, and the lines of a run as pandas DataFrames."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import fedkin
from fedkin import Method, Result, Training, run
from fedkin.core import ConfigError, RunFolderError
from fedkin.data import planted_groups
from fedkin.methods import IFCA, FedAvg, FedPer, Safe
from fedkin.record.figures import GROUPED, METRICS
from fedkin.record.lines import Figures


def play(method: Method, **more: Any) -> Result:
    """Six rounds with four clients of two groups, every second one evaluated."""
    data = planted_groups(clients=4, groups=2, samples=30)
    how = {"rounds": 6, "participation": 0.7, "seed": 3, "eval_every": 2, "dropout": 0.3, "engine": "loop", **more}
    return run(method, data, "linear", Training(steps=2, batch_size=5, lr=0.1), **how)


@pytest.fixture
def pandas() -> Any:
    return pytest.importorskip("pandas")


def documented(kind: str) -> set[str]:
    """The columns in the docstring of `Result.to_frame`, those of the metrics aside."""
    text = (Result.to_frame.__doc__ or "").split("Args:")[0].split('``to_frame("rounds")``')[kind == "rounds"]
    found = set(re.findall(r"``([a-z_0-9]+)``", text))
    if kind == "clients":
        found |= {f"{size}_{what}" for size in ("medium", "many", "unseen") for what in ("correct", "total")}
        return found - {"medium", "many", "unseen"}
    return found


def test_final_figures_are_those_that_are_averaged() -> None:
    """Of a method with clusters and another model; metrics that a run does not have are None."""
    clustered, other = play(IFCA(clusters=2)).final, play(FedPer()).final
    assert clustered.ari is not None
    assert (other.ari, clustered.views) == (None, {})
    assert other.of("accuracy_trained") is not None
    with pytest.raises(AttributeError):
        other.accuracy = 1.0  # type: ignore[misc]
    documented = re.findall(r"^ +(\w+): ", (Figures.__doc__ or "").split("Attributes:")[1], re.M)
    assert documented == [f.name for f in msgspec.structs.fields(Figures)]


@pytest.mark.parametrize(
    "method", [FedAvg(), FedPer(), IFCA(clusters=2), Safe(inner=FedAvg())], ids=lambda m: type(m).__name__
)
def test_a_row_for_each_client_and_evaluated_round(method: Method, pandas: Any) -> None:
    """The lines, their pairs as two columns; the training samples that only a client's first line has in every row."""
    result = play(method)
    found = result.to_frame()

    assert len(found) == len(list(result.clients)) > 8
    for line, row in zip(result.clients, found.to_dict("records"), strict=True):
        assert (row["method"], row["seed"]) == (result.title, 3)
        for name in ("round", "client", "accuracy", "macro_f1", "balanced", "correct", "n_test", "majority"):
            assert row[name] == getattr(line, name), name
        assert (row["few_correct"], row["few_total"]) == line.few
        assert row["n_train"] == sum(result.clients[row["client"]].labels)
        assert row["group"] == result.run.groups[row["client"]]
        assert row.get("cluster") == line.cluster
        assert row.get("accuracy_trained") == line.views.get("trained")
        assert row.get("note_share") == line.notes.get("share")
    optional = {"client_name", "cluster", "accuracy_trained", "note_share"}
    views = {"accuracy_method", "accuracy_alone"}
    assert documented("clients") - optional <= set(found) <= documented("clients") | views
    assert ("note_share" in found) == isinstance(method, Safe)
    assert {found[name].dtype.kind for name in ("accuracy", "validation")} == {"f"}
    assert {found[name].dtype.kind for name in ("round", "client", "n_test", "n_train")} == {"i"}


def test_a_row_for_each_round(pandas: Any) -> None:
    """Numbers of clients and bytes of all rounds, metrics of the evaluated ones; they are the means of the clients."""
    result = play(IFCA(clusters=2))
    found = result.to_frame("rounds")

    assert list(found["round"]) == [1, 2, 3, 4, 5, 6]
    assert list(found.evaluated) == [line.figures is not None for line in result.rounds]
    for line, row in zip(result.rounds, found.to_dict("records"), strict=True):
        assert row["cohort"] == len(line.cohort) >= row["answered"] == len(line.answered)
        assert row["bytes_up"] == line.bytes_up
        assert math.isnan(row["accuracy"]) if line.figures is None else row["accuracy"] == line.accuracy
        assert row["clusters"] == 2
    metrics = {*METRICS, *GROUPED}
    assert documented("rounds") <= set(found) <= documented("rounds") | metrics
    evaluated = found[found.evaluated].set_index("round")["accuracy"]
    by_client = result.to_frame().groupby("round")["accuracy"].mean()
    assert list(evaluated.index) == list(by_client.index)
    assert list(evaluated) == pytest.approx(list(by_client))


def test_frames_of_several_runs_go_together(pandas: Any) -> None:
    """Rows of both, distinguished by their first columns; a run without an evaluated round has a frame without rows."""
    frames = [play(FedAvg()).to_frame(), play(IFCA(clusters=2), seed=4).to_frame()]
    both = pandas.concat(frames, ignore_index=True)
    assert sorted(set(zip(both["method"], both["seed"], strict=True))) == [("FedAvg", 3), ("IFCA", 4)]
    result = play(FedAvg())
    empty = dataclasses.replace(result, clients=[])
    assert len(empty.to_frame()) == 0
    assert {"method", "round", "client", "accuracy", "n_test", "few_total"} <= set(empty.to_frame())


def test_runs_of_a_comparison_are_read_again(pandas: Any, tmp_path: Path) -> None:
    """All finished runs, with the frames of the runs that `compare` returned; those that are not finished are told."""
    data = fedkin.DataSettings(data="digits", clients=4, partition="dirichlet@alpha=0.5")
    model, rounds = fedkin.ModelSettings("linear"), fedkin.RunSettings(rounds=2)
    plan = fedkin.Comparison(("ifca",), (0, 1), base=fedkin.Settings().but(data=data, model=model, run=rounds))
    found = fedkin.compare(plan, out=tmp_path / "c").runs
    again = fedkin.read_runs(tmp_path / "c")
    assert [run.folder.name for run in again if run.folder] == sorted(run.folder.name for run in found if run.folder)
    assert len(again) == len(found) == 8
    key = ["method", "seed", "round"]
    kinds: dict[Literal["clients", "rounds"], list[str]] = {"clients": [*key, "client"], "rounds": key}
    for kind, columns in kinds.items():
        both = [pandas.concat([run.to_frame(kind) for run in runs]) for runs in (found, again)]
        one, other = (frame.sort_values(columns).reset_index(drop=True) for frame in both)
        pandas.testing.assert_frame_equal(one, other)
    assert [run.title for run in fedkin.read_runs(tmp_path / "c" / "ifca-seed1")] == ["IFCA"]

    (tmp_path / "c" / "ifca-seed1" / "commit.json").unlink()
    with pytest.warns(UserWarning, match="7 of 8 runs in .* are finished; go on with: fedkin resume"):
        assert len(fedkin.read_runs(str(tmp_path / "c"))) == 7
    shutil.rmtree(tmp_path / "c" / "ifca-seed1")  # as if it had not begun
    with pytest.warns(UserWarning, match="7 of 8 runs"):
        assert len(fedkin.read_runs(tmp_path / "c")) == 7
    for file in tmp_path.glob("c/*/commit.json"):
        file.unlink()
    with pytest.raises(RunFolderError, match="c has no finished run; go on with: fedkin resume"):
        fedkin.read_runs(tmp_path / "c")


def test_folders_that_are_no_run_are_refused(tmp_path: Path) -> None:
    """A place without a folder, an empty one, a folder of runs, a sweep."""
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.toml").touch()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.toml").touch()
    for name, said in {
        "nowhere": "there is no folder",
        "runs": "holds 1 run and is none itself; name one of them",
        "runs/one": "is not a finished run",
        "sweep": "is a sweep, whose settings and figures are in sweep.csv",
    }.items():
        with pytest.raises(RunFolderError, match=said):
            fedkin.read_runs(tmp_path / name)


def test_clients_that_have_names_keep_them(pandas: Any) -> None:
    """A column with their names, where the data have them."""
    result = play(FedAvg())
    named = dataclasses.replace(result, run=msgspec.structs.replace(result.run, names=("a", "b", "c", "d"), groups=()))
    found = named.to_frame()
    assert [*found["client_name"]] == ["abcd"[i] for i in found.client]
    assert "group" not in found


def test_another_kind_of_frame() -> None:
    """The error has the kinds that there are."""
    with pytest.raises(ConfigError, match="to_frame takes 'clients' or 'rounds', got 'client'"):
        play(FedAvg()).to_frame("client")  # type: ignore[arg-type]
