"""The script for a GPU machine runs where there is none, on a few samples, and writes what the table needs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

GPU = Path(__file__).parents[1] / "bench" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gpu", GPU)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_gpu", module)
    spec.loader.exec_module(module)
    return module


def test_it_writes_a_line_per_workload(gpu: ModuleType, tmp_path: Path) -> None:
    """Seconds of every way, the share of the peak, three costs; nothing was left out of the stacks, and the trained
    numbers are the loop's."""
    threads = torch.get_num_threads()
    gpu.main(
        ["--device", "cpu", "--small", "--rounds", "1", "--only", "W1a", "W4", "--out", str(tmp_path / "r" / "g.jsonl")]
    )
    lines = [json.loads(line) for line in (tmp_path / "r" / "g.jsonl").read_text().splitlines()]
    assert [line["workload"] for line in lines] == ["W1a", "W4"]
    for line in lines:
        ways = {"stacked", "convolutions as products", "one at a time", "loop on the CPU"}
        assert set(line["seconds"]) == ways
        assert min(line["seconds"].values()) > 0
        assert line["share of peak"] > 0
        assert len(line["costs"]) == 3
        assert line["notes"] == []
        assert max(line["apart"].values()) < 1e-5
        assert line["machine"]["small"]
    assert torch.get_num_threads() == threads


def test_the_work_of_a_step_is_counted_forward_and_back(gpu: ModuleType) -> None:
    """A perceptron 784-200-100-62: 2 operations per weight forward and 4 back, but no gradient of the inputs."""
    w = next(w for w in gpu.workloads(True) if w.name == "W4")
    weights = (784 * 200, 200 * 100, 100 * 62)
    assert w.work(w.job().net) == sum(w.sizes) * (6 * sum(weights) - 2 * weights[0])
