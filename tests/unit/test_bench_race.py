"""The race's federation, its network, and the line that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import race

import fedkin
from fedkin.core import Samples


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose first value is their number."""
    x = torch.zeros(n, 3, 32, 32)
    x[:, 0, 0, 0] = torch.arange(n) / 1000
    return x, torch.arange(n) % 10


def data(official: bool) -> fedkin.Dataset:
    x, y = images(40)
    tested = Samples(*images(12)) if official else None
    return fedkin.Dataset(x, y, 10, "images", official_test=tested)


def test_a_line_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds by part, the accuracy, what computed them, and the machine."""
    asked: list[Any] = []
    monkeypatch.setattr(fedkin, "load", lambda name: asked.append(name) or data(True))
    monkeypatch.setattr(race, "dealt", lambda found, clients, samples, tests: DEALT(found, clients, 5, 3))
    race.main(["--rounds", "2", "--clients", "3", "--engine", "stacked", "--lines", str(tmp_path / "r" / "a.jsonl")])
    (line,) = [json.loads(text) for text in (tmp_path / "r" / "a.jsonl").read_text().splitlines()]
    assert asked == ["cifar10"]
    assert (line["rounds"], line["clients"], line["engine"]) == (2, 3, "stacked")
    assert {"round", "server", "exchange", "evaluation"} <= set(line["round_s"])
    assert 0 <= line["accuracy"] <= 1
    assert line["computed"].startswith("Stacked(")


DEALT = race.dealt
