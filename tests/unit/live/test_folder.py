"""What the live page is given: runs as they are now, and clients of one of them."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest

from fedkin.experiment.planned import planned_runs
from fedkin.live import folder as live_folder
from fedkin.live.folder import LiveFolder
from fedkin.live.followed import MOST_POINTS, thinned
from fedkin.storage.lock import writing
from liveruns import append, play


def finish(place: Path, **summary: object) -> None:
    (place / "summary.json").write_text(json.dumps({"title": "FedAvg", "final": {"accuracy": 0.9}, **summary}))


def test_a_run_grows(begun, tmp_path) -> None:
    """Rounds, curve, time left and state follow the files; the accuracy is the last one, at the end the final one."""
    live, place = LiveFolder(tmp_path), begun("several/a")
    assert [(r["id"], r["done"], r["value"], r["curve"]) for r in live.runs()["runs"]] == [("several/a", 0, None, [])]
    with writing(place):
        play(place, 1, [0.2, 0.4])
        append(place, "rounds", {"round": 2})  # not evaluated
        (run,) = live.runs()["runs"]
        assert (run["method"], run["data"], run["seed"], run["planned"]) == ("FedAvg", "digits", 0, 4)
        assert (run["done"], run["curve"], run["left"]) == (2, [[1, 0.3]], 4.0)
        assert run["value"] == pytest.approx(0.3)
        assert run["state"].startswith("running")
    play(place, 3, [0.6, 0.8])
    finish(place)
    (run,) = live.runs()["runs"]
    assert (run["done"], run["curve"], run["value"]) == (3, [[1, 0.3], [3, 0.7]], 0.9)
    assert (run["state"], run["left"]) == ("finished", None)


def test_a_resumed_run_is_read_again(begun, tmp_path) -> None:
    """Rounds that were cut off are gone, in sums and curves as well."""
    live, place = LiveFolder(tmp_path), begun("a")
    for number in (1, 2):
        play(place, number, [0.5])
    live.runs()
    assert live.clients("a", 0)["bytes_up"] == 2_000_000
    for name in ("rounds", "clients", "timing"):
        path = place / f"{name}.jsonl"
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    (run,) = live.runs()["runs"]
    assert (run["done"], run["curve"]) == (1, [[1, 0.5]])
    found = live.clients("a", 0)
    assert (found["round"], found["bytes_up"], found["curve"]) == (1, 1_000_000, [[1, 0.5]])


def test_clients_of_a_run(begun, tmp_path) -> None:
    """Those of the last evaluated round, with refused and missing ones of the last round; one with its curve."""
    live, place = LiveFolder(tmp_path), begun("a")
    play(place, 1, [0.2, 0.4])
    play(place, 2, [0.5, 0.7], refused={"1": "not finite"}, missing={"0": "late"})
    found = live.clients("a", 1)
    assert found["clients"] == [[0, "", 0.5, 10], [1, "", 0.7, 10]]
    assert (found["round"], found["last"], found["curve"]) == (2, 2, [[1, 0.4], [2, 0.7]])
    assert (found["refused"], found["missing"]) == ({"1": "not finite"}, {"0": "late"})
    assert live.clients("a", 9)["curve"] == live.clients("a")["curve"] == []
    assert live.clients("../a") is None


def test_names_come_from_a_finished_run_on_the_same_data(begun, tmp_path) -> None:
    """A run writes its clients' names at its end; a run on the same data and seed knows them before, no other."""
    finish(begun("a"), clients={"names": ["bern", "zurich"]})
    for name, seed in (("b", 0), ("c", 1)):
        play(begun(name, seed=seed), 1, [0.2, 0.4])
    live = LiveFolder(tmp_path)
    assert [row[1] for row in live.clients("b")["clients"]] == ["bern", "zurich"]
    assert [row[1] for row in live.clients("c")["clients"]] == ["", ""]


def test_a_sweep_shows_validation_figures(begun, tmp_path) -> None:
    """Its settings are chosen by validation data, so test figures of its runs do not reach the page."""
    play(begun("sweep/000-seed0"), 1, [0.9])
    (tmp_path / "sweep" / "sweep.toml").write_text("")
    live = LiveFolder(tmp_path)
    (run,) = live.runs()["runs"]
    assert (run["metric"], run["value"], run["curve"]) == ("validation", 0.5, [[1, 0.5]])
    assert live.clients(run["id"], 0)["clients"] == [[0, "", 0.4, 5]]
    assert "0.9" not in json.dumps([live.runs(), live.clients(run["id"], 0)])


def test_the_running_run_of_a_comparison_or_a_sweep_is_counted(begun, tmp_path) -> None:
    """The second of 16: three references and two methods, three of them also in the safe form, for two seeds each; of a
    sweep the first of 12, six settings for two seeds. Runs that have ended have no number, nor has a single run."""
    for name in ("c/local-seed0", "c/local-full-seed0", "s/000-seed0", "alone"):
        begun(name)
    (tmp_path / "c" / "compare.toml").write_text('methods = ["da-pfl", "./mine.py:Mine"]\nsafe = true\nseeds = [0, 4]')
    grid = '"training.lr" = [0.1, 0.2]\n"method.mu" = [1, 2, 3]'
    (tmp_path / "s" / "sweep.toml").write_text(f"[sweep]\nseeds = [0, 1]\nsampler = 'tpe'\n{grid}")
    live = LiveFolder(tmp_path)

    def counted(*running: str) -> list[tuple[int | None, int | None]]:
        with contextlib.ExitStack() as stack:
            for name in running:
                stack.enter_context(writing(tmp_path / name))
            return [(run["number"], run["of"]) for run in live.runs()["runs"]]

    assert counted() == [(None, None)] * 4
    assert counted("alone", "c/local-full-seed0", "s/000-seed0") == [(None, None), (2, 16), (None, None), (1, 12)]
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "compare.toml").write_text("methods = 3")
    assert planned_runs(tmp_path / "d") is None


def test_settings_that_differ(begun, tmp_path) -> None:
    """Runs can be grouped by settings that are not the same in all; method and seed are no such settings."""
    begun("a", lr=0.1)
    begun("b", "da-pfl", seed=1, lr=0.5)
    found = LiveFolder(tmp_path).runs()
    assert [run["settings"] for run in found["runs"]] == [{"training.lr": "0.1"}, {"training.lr": "0.5"}]
    assert found["slots"] == {"FedAvg": 1, "DA-PFL": 2}


def test_settings_of_all_runs_come_first(begun, tmp_path, monkeypatch) -> None:
    """Settings of single methods leave room for those of all runs; the seed of the data is one, their name is not."""
    monkeypatch.setattr(live_folder, "MOST_SETTINGS", 2)
    for name, lr, data_seed in (("a", 0.1, None), ("b", 0.5, 3), ("c", 0.5, 3)):
        config = begun(name, lr=lr) / "config.toml"
        text = (
            config.read_text() if data_seed is None else config.read_text().replace("[data]", "[data]\ndata_seed = 3")
        )
        config.write_text(f"{text}[method.inner]\n{name} = 1\n")
    found = LiveFolder(tmp_path).runs()
    assert [list(run["settings"]) for run in found["runs"]] == [["training.lr", "data.data_seed"]] * 3


def test_nothing_stops_the_page(begun, tmp_path) -> None:
    """A folder that is not there, damaged tables, figures that are not finite, user-defined methods: valid JSON."""
    assert LiveFolder(tmp_path / "later").runs()["runs"] == []
    (begun("a") / "config.toml").write_text("[")
    play(begun("b", "./evil.py:Mine"), 1, [math.nan])
    found = LiveFolder(tmp_path).runs()["runs"]
    assert "is not a TOML file" in found[0]["state"]
    assert (found[1]["method"], found[1]["value"], found[1]["done"]) == ("Mine", None, 1)
    json.dumps(found, allow_nan=False)


def test_long_curves_are_thinned() -> None:
    """Curves of any length have the same rounds, so that means of them exist; the last round is always there."""
    from array import array

    long = array("d", [x for r in range(1, 1002) for x in (r, 0.5)])
    found = [pair[0] for pair in thinned(long)]
    assert (found[:3], found[-1]) == ([1, 7, 13], 1001)
    assert len(found) <= MOST_POINTS + 1
