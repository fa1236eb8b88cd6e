"""Whole runs with compiled training: on any number of workers, interrupted, resumed where llvmlite is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedkin.core import ConfigError, RunFolderError
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Settings
from fedkin.record.files import RUN
from folders import assert_same_run, lines_in, small, tensors_in

pytest.importorskip("llvmlite")


class Killed(BaseException):
    """The end of the process."""


def settings_of(gradient: str = "auto", **compute: Any) -> Settings:
    """A run of a network with a hidden layer, with momentum; private states, and requests for the head alone."""
    return small("fedrep", model={"model": "mlp"}, training={"momentum": 0.5, "batch_size": 7, "steps": 5},
                 compute={"engine": "loop", "gradient": gradient, **compute})  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without interruption, one client after another."""
    place = tmp_path_factory.mktemp("whole") / "run"
    assert "training compiled" in run_settings(settings_of(), out=place).run.engine
    return place


def interrupted(settings: Settings, place: Path) -> None:
    """The first two rounds of a run, which is then killed."""

    def stop(report: Any, line: dict[str, Any]) -> None:
        if report.round == 2:
            raise Killed

    with pytest.raises(Killed):
        run_settings(settings, out=place, on_round=stop)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_do_not_depend_on_workers(workers: int, whole: Path, tmp_path: Path) -> None:
    run_settings(settings_of(engine=f"workers@n={workers}"), out=tmp_path / "a")
    assert_same_run(tmp_path / "a", whole)


def test_asked_for_or_by_itself(whole: Path, tmp_path: Path) -> None:
    """The setting is one of those that decide results, so the checkpoints differ in their marks alone."""
    run_settings(settings_of("compiled"), out=tmp_path / "a")
    assert lines_in(tmp_path / "a") == lines_in(whole)
    explicit = run_settings(settings_of("explicit"), out=tmp_path / "b")
    assert "gradients written out" in explicit.run.engine
    mine, other = tensors_in(tmp_path / "b"), tensors_in(whole)
    assert any(not bool((t == other[name]).all()) for name, t in mine.items())


def test_a_resumed_run_ends_as_without_interruption(whole: Path, tmp_path: Path) -> None:
    interrupted(settings_of(), tmp_path / "a")
    resume(tmp_path / "a")
    assert_same_run(tmp_path / "a", whole)


def test_a_run_that_began_without_llvmlite_goes_on_without(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What auto was is written down: the rounds after the resumption are computed like those before."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llvmlite", None)
        interrupted(settings_of(), tmp_path / "a")
        run_settings(settings_of(), out=tmp_path / "b")
    assert "gradients written out" in resume(tmp_path / "a").run.engine
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_a_compiled_run_cannot_go_on_without_llvmlite(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is missing and changes nothing; with llvmlite it goes on."""
    interrupted(settings_of(), tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llvmlite", None)
        with pytest.raises(ConfigError, match=r"begun with compiled training.*pip install 'fedkin\[fast\]'"):
            resume(tmp_path / "a")
    resume(tmp_path / "a")
    assert_same_run(tmp_path / "a", whole)


def test_asking_for_what_is_missing_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(ConfigError, match="pip install 'fedkin"):
        run_settings(settings_of("compiled"), out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"gradient": "by hand"}'])
def test_a_damaged_note_is_named(content: str, tmp_path: Path) -> None:
    interrupted(settings_of(), tmp_path / "a")
    (tmp_path / "a" / RUN).write_text(content)
    with pytest.raises(RunFolderError, match=RUN):
        resume(tmp_path / "a")
    (tmp_path / "a" / RUN).unlink()
    with pytest.raises(RunFolderError, match=RUN):
        resume(tmp_path / "a")


def test_a_run_gets_more_rounds_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llvmlite", None)
        run_settings(settings, out=tmp_path / "a")
        run_settings(settings.but(run=settings.run.but(rounds=6)), out=tmp_path / "b")
    resume(tmp_path / "a", rounds=6)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert json.loads((tmp_path / "a" / RUN).read_text())["gradient"] == "explicit"
