"""The runner: next missing cells, kill -9, time, two processes; results as whole lines."""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from reproduce.cells import Cell, cells_of, chosen, in_order
from reproduce.reading import read_paper
from reproduce.results import adoptable, append, file_of, load, told_config
from reproduce.running import Outcome, Plan, folder_of, make, wanted_of
from reproduce.tables import HERE, Paper

from fedkin.storage.lock import owner
from papers import line, paper


@pytest.fixture
def toy(tmp_path: Path) -> Paper:
    """A paper of two small tables."""
    return paper(tmp_path)


def cells(toy: Paper, *names: str) -> list[Cell]:
    """The cells of the toy tables whose names begin with one of `names`; all without any."""
    return chosen([c for table in toy.tables for c in cells_of(table)], names)


def plan(tmp_path: Path, until: float = float("inf"), clock: Callable[[], float] = lambda: 0.0, **more: Any) -> Plan:
    """A runner that looks at a clock of its own."""
    usual = {"runs": tmp_path / "runs", "results": tmp_path / "results", "say": lambda text: None}
    return Plan(until, engine="loop", clock=clock, **(usual | more))


def run(toy: Paper, how: Plan, *names: str) -> Outcome:
    """Makes the cells that are named."""
    return make(cells(toy, *names), how, wanted_of([toy]))


def figures(lines: dict[str, Any]) -> dict[str, Any]:
    """Without what may differ between two runs of a cell."""
    return {digest: {k: v for k, v in one.items() if k != "seconds"} for digest, one in lines.items()}


def forked(work: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    """A started child process that calls `work`."""
    process = multiprocessing.get_context("fork").Process(target=work)
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


# ---- what is made -------------------------------------------------------------------------------------------------
def test_missing_cells_are_made_once_and_those_with_other_settings_again(toy: Paper, tmp_path: Path) -> None:
    """A measured cell is not run again, also under the name of another table; a changed setting makes it missing."""
    how = plan(tmp_path)
    assert run(toy, how, "toy/one/fedavg/few") == Outcome(made=2)
    assert run(toy, how, "toy/one/fedavg/few", "toy/two/fedavg") == Outcome(made=0), "the same runs"
    changed = paper(tmp_path, one=(tmp_path / "toy/one.toml").read_text().replace("lr = 0.1", "lr = 0.2"))
    assert run(changed, how, "toy/one/fedavg/few/1") == Outcome(made=1)
    assert len(load(tmp_path / "results")) == 3
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["locks"], "folders of finished runs are removed"


def test_a_line_says_what_tables_and_verdicts_need(toy: Paper, tmp_path: Path) -> None:
    """A line has the settings, the final figures, the curve, and each client's accuracy."""
    (cell,) = cells(toy, "toy/one/da-pfl/few/1")
    run(toy, plan(tmp_path, keep=True), cell.path)
    made = load(tmp_path / "results")[cell.digest]
    summary = json.loads((folder_of(cell, tmp_path / "runs") / "summary.json").read_text())
    assert (made["cell"], made["seed"], made["scale"]) == ("toy/one/da-pfl/few", 1, "paper")
    assert made["fedkin"] == summary["fedkin"]
    assert made["config"]["run"] == {"rounds": 5, "eval_every": 1, "seed": 1}, "what is set, without defaults"
    assert made["final"]["accuracy"] == pytest.approx(summary["final"]["accuracy"], abs=1e-6)
    assert made["final"]["rounds"] == "round 5"
    assert made["curve"]["rounds"] == [1, 2, 3, 4, 5]
    assert made["curve"]["accuracy"][-1] == pytest.approx(made["last"]["accuracy"], abs=1e-5)
    clients = made["clients"]
    assert clients["ids"] == [0, 1, 2, 3, 4, 5]
    assert sum(clients["accuracy"]) / 6 == pytest.approx(summary["final"]["accuracy"], abs=1e-5)
    assert "few" in clients, "table 2 shows it"
    assert "macro_f1" not in clients, "no table shows it"


def test_a_line_has_no_path_of_this_machine(toy: Paper, tmp_path: Path) -> None:
    """The method is one of our own, in a file beside the table."""
    (tmp_path / "toy/own.py").write_text((HERE / "cfic" / "momentum.py").read_text())
    text = (tmp_path / "toy/one.toml").read_text()
    own = paper(tmp_path, one=text.replace("fedavg = {}", 'fedavg = { method = { name = "own.py:ServerMomentum" } }'))
    assert run(own, plan(tmp_path), "toy/one/fedavg/few/0") == Outcome(made=1)
    (made,) = load(tmp_path / "results").values()
    assert made["config"]["method"]["name"] == "./own.py:ServerMomentum"
    assert str(tmp_path) not in json.dumps(made)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "toy").rename(elsewhere / "toy")
    assert run(read_paper(elsewhere / "toy"), plan(tmp_path), "toy/one/fedavg/few/0") == Outcome(), "the same cell"


def test_cells_of_an_earlier_version_can_be_taken_over(toy: Paper, tmp_path: Path) -> None:
    """Their digests differ, as with a new setting of the library; what they set must be the same."""
    one, other = cells(toy, "toy/one/fedavg/few/0", "toy/one/da-pfl/few/0")
    known = {
        "old": line("old", [0.5], config=told_config(one)),
        "changed": line("changed", [0.5], config={**told_config(other), "training": {"steps": 3}}),
    }
    assert adoptable([one, other], known) == [(one, known["old"])]
    assert adoptable([one], {**known, one.digest: line(one.digest, [0.5], config=told_config(one))}) == []


def test_a_cell_that_fails_does_not_stop_the_others(toy: Paper, tmp_path: Path) -> None:
    """A cell with an impossible partition is reported, and the rest is run."""
    text = (tmp_path / "toy/one.toml").read_text()
    odd = 'data = { clients = 6, partition = "dirichlet@min_samples=900" }'
    broken = paper(tmp_path, one=text.replace("data = { clients = 6 }", odd))
    said: list[str] = []
    found = run(broken, plan(tmp_path, say=said.append), "toy/one/fedavg")
    assert (found.made, found.failed) == (2, 2)
    assert sum("min_samples" in text for text in said) == 2


def test_a_cell_without_data_does_not_stop_the_others(
    toy: Paper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell whose data set is not there is counted, and the rest is run."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = (tmp_path / "toy/one.toml").read_text()
    lacking = paper(tmp_path, one=text.replace("{ clients = 6 }", '{ clients = 6, data = "svhn" }'))
    found = run(lacking, plan(tmp_path, root=tmp_path), "toy/one/fedavg/few/0", "toy/one/fedavg/many/0")
    assert (found.made, found.without_data, found.failed) == (1, 1, 0)


# ---- time ---------------------------------------------------------------------------------------------------------
def test_it_stops_at_the_end_of_a_round_and_goes_on_to_the_same_digits(toy: Paper, tmp_path: Path) -> None:
    """When the time is up the run keeps its rounds; resumed, its line equals that of an uninterrupted run."""
    names = ("toy/one/da-pfl/few/0", "toy/one/fedavg/few/0")
    whole = plan(tmp_path / "whole")
    run(toy, whole, *names)
    ticks = itertools.count(1)  # it looks once before a cell and once after each round
    first = run(toy, plan(tmp_path, until=4, clock=lambda: next(ticks)), *names)
    assert first == Outcome(stopped=True)
    (folder,) = [p for p in (tmp_path / "runs").iterdir() if p.name != "locks"]
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 3
    assert not load(tmp_path / "results")
    assert run(toy, plan(tmp_path, until=1, clock=lambda: 1.0), *names) == Outcome(stopped=True), "no time at all"
    ticks = itertools.count(1)
    assert run(toy, plan(tmp_path, clock=lambda: next(ticks)), names[1]) == Outcome(made=1)  # the first in the table
    assert next(ticks) == 1 + 2 + 1, "rounds 4 and 5 alone were left"
    assert run(toy, plan(tmp_path), *names) == Outcome(made=1)
    assert figures(load(tmp_path / "results")) == figures(load(tmp_path / "whole" / "results"))


def test_a_folder_of_other_settings_is_begun_anew(toy: Paper, tmp_path: Path) -> None:
    """As when the data have moved: the folder's name is that of the cell, its config is not."""
    (cell,) = cells(toy, "toy/one/fedavg/few/0")
    ticks = itertools.count(1)
    run(toy, plan(tmp_path, until=3, clock=lambda: next(ticks)), cell.path)
    config = folder_of(cell, tmp_path / "runs") / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.3"))
    said: list[str] = []
    assert run(toy, plan(tmp_path, say=said.append), cell.path) == Outcome(made=1)
    assert any("started again" in text for text in said)
    run(toy, plan(tmp_path / "whole"), cell.path)
    assert figures(load(tmp_path / "results")) == figures(load(tmp_path / "whole" / "results"))


def test_a_run_that_is_over_when_the_time_is_up_is_kept(toy: Paper, tmp_path: Path) -> None:
    """A run that ends as the time is up gets its line."""
    ticks = itertools.count(1)
    found = run(toy, plan(tmp_path, until=6, clock=lambda: next(ticks)), "toy/one/fedavg/few")
    assert found == Outcome(made=1, stopped=True), "round 5 of 5 ends at tick 6"


# ---- kill -9 ------------------------------------------------------------------------------------------------------
def test_killed_it_goes_on_to_the_same_digits(toy: Paper, tmp_path: Path) -> None:
    """After kill -9 the lock is taken over, and the line equals that of an uninterrupted run."""
    (cell,) = cells(toy, "toy/one/da-pfl/many/0")
    run(toy, plan(tmp_path / "whole"), cell.path)

    def wait_after_round_three() -> Iterator[float]:
        yield from (0.0, 0.0, 0.0, 0.0)  # before the cell, rounds 1 to 3
        while True:
            time.sleep(600)

    ticks = wait_after_round_three()
    process = forked(lambda: run(toy, plan(tmp_path, clock=lambda: next(ticks)), cell.path))
    folder = folder_of(cell, tmp_path / "runs")
    wait_until(lambda: (folder / "rounds.jsonl").exists() and (folder / "rounds.jsonl").read_bytes().count(b"\n") >= 4)
    lock = tmp_path / "runs" / "locks" / cell.digest
    found = owner(lock)
    assert found is not None
    assert found.pid == process.pid
    assert run(toy, plan(tmp_path), cell.path) == Outcome(made=0), "its owner lives"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert lock.exists()
    assert run(toy, plan(tmp_path), cell.path) == Outcome(made=1)
    assert figures(load(tmp_path / "results")) == figures(load(tmp_path / "whole" / "results"))
    assert not lock.exists()


def wait_until(true: Callable[[], bool]) -> None:
    """Waits until a condition is true, at most five minutes."""
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end, "nothing happened in five minutes"
        time.sleep(0.01)


# ---- two at a time ------------------------------------------------------------------------------------------------
def test_two_processes_make_every_cell_once(toy: Paper, tmp_path: Path) -> None:
    """Two processes with the same cells write one line for each."""
    both = [forked(lambda: run(toy, plan(tmp_path), "toy/one/fedavg", "toy/one/da-pfl")) for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    expected = {c.digest for c in in_order(cells(toy, "toy/one/fedavg", "toy/one/da-pfl"))}
    texts = file_of(toy.tables[0], tmp_path / "results").read_text().splitlines()
    assert sorted(json.loads(text)["digest"] for text in texts) == sorted(expected)


def test_a_cell_that_another_process_has_made_in_the_meantime(toy: Paper, tmp_path: Path) -> None:
    """The other one finishes it after this one has seen that it is missing, before it has the lock."""
    others: list[Outcome] = []

    def clock() -> float:
        if not others:
            others.append(run(toy, plan(tmp_path), "toy/one/fedavg/few/0"))
        return 0.0

    assert run(toy, plan(tmp_path, clock=clock), "toy/one/fedavg/few/0") == Outcome(made=0)
    assert others == [Outcome(made=1)]
    assert len(file_of(toy.tables[0], tmp_path / "results").read_text().splitlines()) == 1


# ---- lines --------------------------------------------------------------------------------------------------------
def test_half_a_line_is_removed_and_never_read(tmp_path: Path) -> None:
    """A line without its end is not read, and the next append removes it."""
    path = tmp_path / "results" / "toy-one.jsonl"
    append(path, line("a", [0.5]))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-9])
    assert set(load(path.parent)) == {"a"}
    append(path, line("b", [0.25]))
    assert [json.loads(text)["digest"] for text in path.read_text().splitlines()] == ["a", "b"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    """A whole line that is no JSON is an error that names the file."""
    (tmp_path / "toy-one.jsonl").write_text('{"digest": "a"\n{"digest": "b"}\n')
    with pytest.raises(ValueError, match=r"toy-one\.jsonl: a line is not JSON"):
        load(tmp_path)


def test_processes_append_whole_lines(tmp_path: Path) -> None:
    """Lines of two processes that append at the same time stay whole."""
    path = tmp_path / "toy-one.jsonl"

    def child(names: Sequence[str]) -> None:
        for name in names:
            append(path, line(name, [0.5] * 2000))

    both = [forked(functools.partial(child, [f"{n}{i}" for i in range(20)])) for n in "ab"]
    for process in both:
        process.join()
    assert set(load(tmp_path)) == {f"{n}{i}" for n in "ab" for i in range(20)}
