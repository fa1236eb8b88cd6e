"""Runs that take a fraction of a second, and run folders compared byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from fedkin.experiment.run_folder import RunFolder
from fedkin.experiment.settings import Settings, settings_from
from fedkin.record.files import COMMIT, RUN, read_commit, read_json, write_json
from fedkin.record.lines import FILES as FILES_OF_LINES
from fedkin.record.lines import RunLine

LINES = ("rounds", "clients", "relations")
FILES = {
    "config.toml",
    "preparation.json",
    "run.json",
    "commit.json",
    "rounds.jsonl",
    "clients.jsonl",
    "relations.jsonl",
    "timing.jsonl",
    "objects",
    "summary.json",
}
"""What every folder holds."""


def small(method: str = "fedavg", /, fields: dict[str, Any] | None = None, **tables: dict[str, Any]) -> Settings:
    """A run on 6 clients with 24 digits each and a linear model: some milliseconds per round."""
    table = {
        "method": {"name": method, **(fields or {})},
        "data": {"data": "digits", "clients": 6, "samples_per_client": 24, **tables.get("data", {})},
        "model": {"model": "linear", **tables.get("model", {})},
        "training": {"steps": 2, "batch_size": 5, "lr": 0.1, **tables.get("training", {})},
        "run": {"rounds": 4, "participation": 0.7, **tables.get("run", {})},
        "compute": {"engine": "loop", **tables.get("compute", {})},
    }
    table |= {name: tables[name] for name in ("aggregation", "privacy") if name in tables}
    return settings_from(table)


def lines_in(folder: Path) -> dict[str, bytes]:
    """The files that equal runs have equal."""
    return {name: (folder / f"{name}.jsonl").read_bytes() for name in LINES}


def records(folder: Path, name: str) -> list[Any]:
    """The lines of ``NAME.jsonl``."""
    return msgspec.json.Decoder(FILES_OF_LINES[name]).decode_lines((folder / f"{name}.jsonl").read_bytes())


def tensors_in(folder: Path, *, best: bool = False) -> dict[str, torch.Tensor]:
    """All tensors of a run's state, by name; after the last round or after the best."""
    loaded = RunFolder(folder).load({}, best=best)
    assert loaded is not None
    server, states = loaded
    found = {f"server.{name}": t for name, t in server.state.items()}
    found |= {f"described.{name}": t for name, t in server.described.items()}
    found |= {"size": server.sizes, "ack": server.acks, "round": torch.tensor(server.round)}
    return found | {f"client.{i}.{name}": t for i in states for name, t in states[i].items()}


def assert_same_tensors(a: Path, b: Path, *, best: bool = False) -> None:
    """Asserts that the states of two runs hold the same tensors to the last bit."""
    mine, other = tensors_in(a, best=best), tensors_in(b, best=best)
    assert mine.keys() == other.keys()
    for name, t in mine.items():
        assert torch.equal(t, other[name]), name


def assert_same_run(a: Path, b: Path, *, best: bool = True) -> None:
    """Asserts that two folders tell of one and the same run, and that nothing is left of a round that was not finished.

    Args:
        best: the states after the best rounds are compared, too.
    """
    assert lines_in(a) == lines_in(b)
    assert_same_tensors(a, b)
    if best and read_commit(b).best is not None:
        assert_same_tensors(a, b, best=True)
    assert {p.name for p in a.iterdir()} >= FILES - {"preparation.json"}  # which made-up data have not
    assert not list(a.rglob(".*"))
    assert {p.name for p in (a / "objects").iterdir()} == read_commit(a).names()


def without_end(folder: Path) -> None:
    """Let a finished run be one whose end was lost."""
    write_json(folder / COMMIT, replace(read_commit(folder), ended=""))


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_equal_folders(one: Path, other: Path, done: int = 0, but: tuple[str, ...] = ()) -> None:
    """Asserts that two folders hold the same run to the last bit, and no trace of how it came about.

    Args:
        but: settings of how the run is computed that may differ, engine and its workers.
        done: the rounds before the first got more. The best of them may be lost: that of the shorter run was another.
    """
    mine, theirs = read_commit(one), read_commit(other)
    lost = theirs.best is not None and mine.best is None
    assert not lost or theirs.best.round <= done
    assert_same_run(one, other, best=not lost)
    assert replace(theirs, best=None) == replace(mine, best=None)
    assert lost or mine == theirs
    assert but or (one / "config.toml").read_bytes() == (other / "config.toml").read_bytes()
    assert read_json(one / RUN, RunLine).marks == read_json(other / RUN, RunLine).marks
    ours, others = (json.loads((folder / "summary.json").read_text()) for folder in (one, other))
    for summary in (ours, others):
        del summary["command"]
        if but:
            del summary["config"]["compute"]["engine"], summary["engine"]
    assert ours == others
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}
