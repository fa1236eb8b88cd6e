"""The comparison of runs in common stacks with runs one after another writes what the page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import together

from fedkin.core import Training
from fedkin.experiment.compare import Comparison
from fedkin.experiment.settings import Compute, DataSettings, ModelSettings, RunSettings


def small(*sizes: int) -> Comparison:
    return Comparison(
        ("fedavg",),
        seeds=(0, 1),
        data=DataSettings(clients=4, samples_per_client=24, validation=0.2),
        model=ModelSettings("linear"),
        training=Training(steps=2, batch_size=5),
        run=RunSettings(rounds=1),
        compute=Compute(engine="stacked"),
    )


def test_a_line_has_the_seconds_of_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of FedAvg and both references with two seeds; their accuracies are equal."""
    monkeypatch.setattr(together, "plan", small)
    together.main(["--pairs", "2", "--together", "3", "--lines", str(tmp_path / "r" / "a.jsonl")])
    (line,) = [json.loads(text) for text in (tmp_path / "r" / "a.jsonl").read_text().splitlines()]
    assert line["runs"] == 6
    assert [len(seconds) for seconds in line["seconds"].values()] == [2, 2]
    assert all(s > 0 for seconds in line["seconds"].values() for s in seconds)
    assert line["times as fast"] > 0
    assert line["apart"] < 1e-6
    assert line["together"] == 3
