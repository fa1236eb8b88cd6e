"""docs/run-folder.md names every file and every field that runs write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import fedkin
from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import DataSettings, ModelSettings, Settings
from fedkin.methods import get_method
from fedkin.report.content import content_of
from fedkin.report.folder import read_run
from fedkin.report.page import write_page
from grouped import setup

PAGE = (Path(__file__).parents[1] / "docs" / "run-folder.md").read_text(encoding="utf-8")


def named(title: str, column: int = 0) -> set[str]:
    """What a table of the page names in one of its columns."""
    rows = [
        row.split("|")[1:-1]
        for row in PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines()
        if row[:1] == "|"
    ]
    return {word for row in rows[2:] for word in re.findall(r"`([^`]+)`", row[column])}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs with clusters and true groups, mixtures, views, privacy, drop-outs, attackers, and states in files."""
    place = tmp_path_factory.mktemp("runs")
    planted = DataSettings(clients=4, samples_per_client=30, plant="labels", groups=2)
    plain = DataSettings(clients=4, samples_per_client=30)
    runs = {
        "ifca": (planted, {}),
        "da-pfl": (plain, {"dropout": 0.3, "late_joiners": "1@2", "state": "file"}),
        "ditto": (plain, {"kind": "sign-flip", "fraction": 0.25, "rule": "median"}),
        "fedrep": (plain, {"evaluate": "trained"}),
        "cfic": (plain, {"metadata_epsilon": 1.0}),
        "fedavg-safe": (plain, {}),
    }
    for name, (data, how) in runs.items():
        groups = setup(rounds=3, engine="loop", **how).groups() | {"data": data, "model": ModelSettings("linear")}
        run_settings(Settings(name, get_method(name), **groups), out=place / name)
        write_page(place / name, content_of([read_run(place / name)]))
    return [place / name for name in runs]


def test_every_file_is_named(folders: list[Path]) -> None:
    """Nothing lies in a run folder that the page does not have."""
    known = {name.rstrip("/") for name in named("Files")}
    found = {path.name for folder in folders for path in folder.iterdir()}
    assert found <= known, found - known
    assert {"config.toml", "checkpoint.safetensors", "states", "banks", "relations.jsonl"} <= found


@pytest.mark.parametrize("file", ["rounds", "clients"])
def test_every_field_of_the_lines_is_named(file: str, folders: list[Path]) -> None:
    """Views and notes by their common beginning."""
    known = named(f"Fields of {file}.jsonl")
    lines = [json.loads(text) for folder in folders for text in (folder / f"{file}.jsonl").read_text().splitlines()]
    found = {
        re.sub("^note_.*", "note_NAME", re.sub("^accuracy_.*", "accuracy_VIEW", key)) for line in lines for key in line
    }
    assert found <= known, found - known
    assert "accuracy_VIEW" in found


def test_every_field_of_the_other_files_is_named(folders: list[Path]) -> None:
    """Relations, seconds and the summary."""
    known = named("Fields of the other files", 1)
    found = set[str]()
    for folder in folders:
        for name in ("relations", "timing"):
            path = folder / f"{name}.jsonl"
            found |= {
                key for text in (path.read_text().splitlines() if path.exists() else []) for key in json.loads(text)
            }
        found |= set(json.loads((folder / "summary.json").read_text()))
    assert found <= known, found - known
    assert {"rows", "labels", "training_s", "attack", "privacy", "bytes"} <= found


def test_the_page_names_no_field_that_is_gone() -> None:
    """Each is written somewhere in the sources."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(fedkin.__file__).parent.rglob("*.py"))
    words = named("Fields of rounds.jsonl") | named("Fields of clients.jsonl") | named("Fields of the other files", 1)
    gone = {
        w for w in words if w not in source and w.removesuffix("_s") not in source and not w.endswith(("VIEW", "NAME"))
    }
    assert not gone
