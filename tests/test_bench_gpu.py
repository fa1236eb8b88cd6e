"""The script for a GPU machine runs where there is none, on a few samples, and writes what the table needs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def lines(gpu: ModuleType, out: Path, *only: str) -> list[dict[str, Any]]:
    gpu.main(["--device", "cpu", "--small", "--rounds", "1", "--only", *only, "--out", str(out / "r" / "g.jsonl")])
    return [json.loads(line) for line in (out / "r" / "g.jsonl").read_text().splitlines()]


def test_it_writes_a_line_for_each_way(gpu: ModuleType, tmp_path: Path) -> None:
    """Seconds of every way and the share of the peak; of stacks the profile, nothing that was left out of them, and
    the loop's numbers."""
    threads = torch.get_num_threads()
    found = lines(gpu, tmp_path, "W1a", "W4")
    stacks = ["stacked", "convolutions as products", "one at a time"]
    alone = ["loop on the CPU", "plain PyTorch loop"]
    assert [(line["workload"], line["way"]) for line in found] == [
        *(("W1a", way) for way in (alone[0], *stacks, alone[1])),
        *(("W4", way) for way in (alone[0], "stacked", "one at a time", alone[1])),
    ]
    for line in found:
        assert line["seconds"] > 0
        assert line["share of peak"] > 0
        assert line["times the loop"] > 0
        assert line["machine"]["small"]
        if line["way"] in stacks:
            assert len(line["costs"]) == 5
            assert line["kernels per step"] > 10
            assert line["stacked steps"] > 2
            assert (line["notes"], line["convolutions"]) == ([], [])  # a CPU groups all convolutions: nothing is timed
            assert line["apart"] < 1e-5
    assert torch.get_num_threads() == threads


def test_convolutions_and_waits_are_looked_at_in_detail(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each layer of four networks and number of rows, with both times; one for a round, an evaluation, and
    memory. A part that fails is a line."""
    found = lines(gpu, tmp_path, "convolutions", "waits")
    measured = [line for line in found if line["part"] == "convolutions"]
    assert [(line["network"], line["rows"]) for line in measured] == [
        (name, rows) for name in ("W1a", "race", "W2", "dapfl") for _ in range(2) for rows in (1, 2)
    ]
    assert all(line["grouped_ms"] > 0 and line["products_ms"] > 0 for line in measured)
    assert [line["step"] for line in found[len(measured) :]] == ["round", "evaluation", "memory"]
    monkeypatch.setattr(gpu, "timed", lambda *given: 1 / 0)
    assert lines(gpu, tmp_path, "convolutions")[-1]["error"] == "ZeroDivisionError: division by zero"


def test_the_work_of_a_layer_is_that_of_its_products(gpu: ModuleType) -> None:
    """The race's convolutions have outputs of 30 x 30 and 28 x 28; only the second's inputs have a gradient."""
    found, batch = gpu.layers("race", False)
    assert [gpu.out_size(layer) for layer in found] == [[30, 30], [28, 28]]
    assert (list(found.values()), batch) == ([False, True], 10)


def test_a_way_that_fails_is_a_line_and_the_others_are_measured(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured before is in the file by then."""
    out = tmp_path / "r" / "g.jsonl"
    written: list[int] = []

    def fails(self: Any, engine: Any, clients: Any = None) -> Any:
        written.append(len(out.read_text().splitlines()))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(gpu.Bench, "stacked", fails)
    found = lines(gpu, tmp_path, "W4")
    assert written == [1, 2]
    assert ["error" in line for line in found] == [False, True, True, False]
    assert found[1]["error"] == "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_some_ways_alone_are_measured_beside_the_loop(gpu: ModuleType, tmp_path: Path) -> None:
    """The race's network, with the dropout of which the loop draws otherwise."""
    found = lines(gpu, tmp_path, "race", "--ways", "stacked")
    assert [(line["workload"], line["way"]) for line in found] == [("race", "loop on the CPU"), ("race", "stacked")]
    assert found[1]["parameters"] == 1_626_442
    assert found[1]["apart"] > 1e-3


def test_the_longest_workload_comes_last(gpu: ModuleType) -> None:
    """A call that is stopped has the others by then."""
    assert [w.name for w in gpu.workloads(False)] == ["W1a", "W4", "race", "dapfl", "W2"]


def test_on_a_gpu_kernels_count_and_not_the_operations_that_started_them(gpu: ModuleType) -> None:
    """Three events, one of which is the operation of another."""
    took = SimpleNamespace(elapsed_us=lambda: 500.0)
    events = [
        SimpleNamespace(name="aten::mm", device_type=gpu.DeviceType.CPU, time_range=took),
        SimpleNamespace(name="sgemm", device_type=gpu.DeviceType.CUDA, time_range=took),
        SimpleNamespace(name="sgemm", device_type=gpu.DeviceType.CUDA, time_range=took),
    ]
    found = gpu.spent(events, True)
    assert found == [("sgemm", 0.5), ("sgemm", 0.5)]
    assert gpu.costs(found) == [{"name": "sgemm", "ms": 1.0, "share": 1.0, "calls": 2}]


def test_the_work_of_a_step_is_counted_forward_and_back(gpu: ModuleType) -> None:
    """A perceptron 784-200-100-62: 2 operations per weight forward and 4 back, but no gradient of the inputs."""
    w = next(w for w in gpu.workloads(True) if w.name == "W4")
    weights = (784 * 200, 200 * 100, 100 * 62)
    assert w.work(w.job().net) == sum(w.sizes) * (6 * sum(weights) - 2 * weights[0])
