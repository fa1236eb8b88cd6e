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


@pytest.mark.parametrize("official", [True, False])
def test_every_client_has_its_own_samples(official: bool) -> None:
    """Four clients train on five samples each and share the test part; no sample is used twice."""
    dealt = race.dealt(data(official), 4, 5, 3)
    trained, tested = (
        sorted(round(1000 * float(v)) for c in dealt.clients for v in part(c).x[:, 0, 0, 0])
        for part in (lambda c: c.train, lambda c: c.test)
    )
    assert [len(c.train) for c in dealt.clients] == [5] * 4
    assert [len(c.test) for c in dealt.clients] == [3] * 4
    assert len(set(trained)) == 20
    assert trained != list(range(20))  # random ones
    assert len(set(tested)) == 12
    assert (tested == list(range(12))) if official else not set(tested) & set(trained)


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
