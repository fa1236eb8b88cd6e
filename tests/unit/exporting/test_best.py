"""The best round beside the last: the models of the very round that validation chose, and what is said without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from commandline import Command
from fedkin.core import ConfigError, RunFolderError
from fedkin.data import federation_of
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import settings_from
from fedkin.exporting import export, export_all, export_global, load_export
from fedkin.exporting.card import Chosen
from fedkin.record.files import COMMIT, read_commit, write_json
from folders import records
from refusals import refuses

METHODS = ("fedavg", "local", "ditto", "fedavg-ft", "fedbabu", "fedproto", "fedrod", "ifca-cam", "da-pfl", "pfedcs")
ROUNDS = 8


def settings(name: str, **changes: dict[str, Any]):
    """Digits of four clients, with steps so long that the best round is not the last."""
    table: dict[str, dict[str, Any]] = {
        "data": {"data": "digits", "clients": 4, "samples_per_client": 60, "partition": "dirichlet@alpha=0.5"},
        "model": {"model": "linear"},
        "training": {"batch_size": 10, "lr": 0.5},
        "run": {"rounds": ROUNDS, "eval_every": 1},
        "compute": {"engine": "loop"},
    }
    merged = {part: {**values, **changes.get(part, {})} for part, values in table.items()}
    return settings_from({"method": {"name": name}, **merged})


def chosen(folder: Path) -> int:
    """By hand: the first round with the highest validation accuracy."""
    figures = [line.figures.validation for line in records(folder, "rounds")]
    return 1 + figures.index(max(figures))


def weights(place: Path) -> bytes:
    return (place / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", METHODS)
def test_the_best_round_predicts_what_was_reported(name: str, tmp_path: Path) -> None:
    """For every client, the counts and figures of the evaluation of that round, which is not the last; the
    card says which it is, and its figures."""
    run_settings(settings(name), out=tmp_path / "run")
    best, data = chosen(tmp_path / "run"), federation_of(settings(name).data, 0)
    assert best < ROUNDS
    lines = {line.client: line for line in records(tmp_path / "run", "clients") if line.round == best}
    found = list(export_all(tmp_path / "run", round="best"))
    assert [p.parent for p in found] == [tmp_path / "run" / "exports" / "best"] * 4
    for i, place in enumerate(found):
        model = load_export(place)
        card, test = model.card, data.clients[i].test
        right = torch.from_numpy(model.predict(test.x)) == test.y
        assert int(right.sum()) == lines[i].correct == card.test.correct
        assert card.test.as_evaluated is True
        assert (card.round, card.rounds_planned) == (best, ROUNDS)
        line = records(tmp_path / "run", "rounds")[best - 1]
        assert card.chosen == Chosen(best, line.figures.validation, line.accuracy)
        assert f"round {best} of {ROUNDS} (highest validation accuracy" in (place / "README.md").read_text()


def test_it_is_the_model_of_a_run_stopped_there(tmp_path: Path) -> None:
    """Weight by weight, of a method with private states: what an interrupted run has that was stopped after it."""
    run_settings(settings("ditto"), out=tmp_path / "run")
    best = chosen(tmp_path / "run")

    def stop(report: Any, line: dict[str, Any]) -> None:
        if report.round == best:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_settings(settings("ditto"), out=tmp_path / "stopped", on_round=stop)
    for take in (lambda run, **more: export(run, 2, **more), export_global):
        ours = weights(take(tmp_path / "run", out=tmp_path / "a", round="best", force=True))
        assert ours == weights(take(tmp_path / "stopped", out=tmp_path / "b", force=True))
        assert ours != weights(take(tmp_path / "run", out=tmp_path / "c", force=True))


def test_a_result_and_the_command(tmp_path: Path, fedkin: Command) -> None:
    """What `fedkin.run` gave with a folder; without one nothing was kept. The screen says which round it is."""
    result = run_settings(settings("fedper"), out="run")
    assert load_export(export(result, 1, "one", round="best")).card.round == chosen(Path("run"))
    with refuses(ConfigError, "out="):
        export(run_settings(settings("fedper")), 1, "two", round="best")
    with refuses(ConfigError, "round: ", "'first'", "last, best"):
        export(result, 1, "two", round="first")  # type: ignore[arg-type]
    done = fedkin("export run --client 0 --round best")
    assert done.code == 0, done.err
    assert f"round {chosen(Path('run'))} (highest validation accuracy)" in done.out
    assert Path("run/exports/best/client-0/card.json").is_file()
    assert fedkin("export run --client 0").code == 0
    assert json.loads(Path("run/exports/client-0/card.json").read_text())["chosen"] is None


def test_the_last_round_may_be_the_best(tmp_path: Path) -> None:
    """Then no other checkpoint is needed: also from a run whose models are in files."""
    run_settings(settings("da-pfl", run={"rounds": 1}, compute={"state": "file"}), out=tmp_path / "run")
    card = load_export(export(tmp_path / "run", 0, round="best")).card
    assert (card.round, card.chosen.round) == (1, 1)


def test_no_validation_samples(tmp_path: Path) -> None:
    """Nothing chooses then, and nothing is kept."""
    run_settings(settings("fedavg", data={"validation": 0.0}), out=tmp_path / "run")
    assert read_commit(tmp_path / "run").best is None
    with refuses(ConfigError, "--validation"):
        export(tmp_path / "run", 0, round="best")
    assert load_export(export(tmp_path / "run", 0)).card.round == ROUNDS


def test_a_folder_without_its_best_round(tmp_path: Path) -> None:
    """One that has no best round kept can do all but that, and is told what to do; a damaged file is named."""
    run_settings(settings("fedavg"), out=tmp_path / "run")
    commit = read_commit(tmp_path / "run")
    write_json(tmp_path / "run" / COMMIT, replace(commit, best=None))
    with refuses(ConfigError, "was not kept", "fedkin run"):
        export(tmp_path / "run", 0, round="best")
    assert load_export(export(tmp_path / "run", 0)).card.round == ROUNDS
    write_json(tmp_path / "run" / COMMIT, commit)
    (tmp_path / "run" / "objects" / commit.best.server).write_bytes(b"")
    with refuses(RunFolderError, commit.best.server):
        export(tmp_path / "run", 0, round="best")


def test_the_best_costs_no_second_copy(tmp_path: Path) -> None:
    """While it is the last, the best state is the same; the next round leaves it as it is."""
    same = []

    def look(report: Any, line: dict[str, Any]) -> None:
        commit = read_commit(tmp_path / "run")
        same.append(commit.last == commit.best)

    run_settings(settings("fedavg"), out=tmp_path / "run", on_round=look)
    figures = [line.figures.validation for line in records(tmp_path / "run", "rounds")]
    assert same == [v > max(figures[:i], default=-1) for i, v in enumerate(figures)]
    assert True in same
    assert False in same
