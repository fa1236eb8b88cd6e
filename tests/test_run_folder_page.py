"""docs/run-folder.md names every file that runs write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedkin.experiment.run import run_settings
from fedkin.experiment.settings import DataSettings, Settings
from fedkin.record.result import Result
from fedkin.report.content import content_of
from fedkin.report.page import write_page

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
    planted = DataSettings(clients=4, samples_per_client=30, plant="labels@groups=2")
    plain = DataSettings(clients=4, samples_per_client=30)
    runs = {
        "ifca": (planted, {}),
        "da-pfl": (plain, {"dropout": 0.3, "late_joiners": "1@2", "state": "file"}),
        "ditto": (plain, {"attack": "sign-flip@fraction=0.25", "rule": "median"}),
        "fedrep": (plain, {"evaluate": "trained"}),
        "cfic": (plain, {"metadata_epsilon": 1.0}),
        "fedavg-safe": (plain, {}),
    }
    for name, (data, how) in runs.items():
        base = Settings().but(method=name, data=data, model="linear", rounds=3, engine="loop", **how)
        run_settings(base, out=place / name)
        write_page(place / name, content_of([Result.finished_in(place / name)]))
    return [place / name for name in runs]


def test_every_file_is_named(folders: list[Path]) -> None:
    """Nothing lies in a run folder that the page does not have."""
    known = {name.rstrip("/") for name in named("Files")}
    found = {path.name for folder in folders for path in folder.iterdir()}
    assert found <= known, found - known
    assert {"config.toml", "commit.json", "objects", "relations.jsonl"} <= found
