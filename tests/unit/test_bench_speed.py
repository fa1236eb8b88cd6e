"""The bench of whole rounds: what it counts and says is right; nothing here depends on how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bench.speed import __main__ as command
from bench.speed import flops, measure, table
from bench.speed.drive import Ran
from bench.speed.workloads import WORKLOADS, Workload
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fedkin
from fedkin.core.machine import cores
from fedkin.models.registry import get_model

TINY = Workload("W4", "tiny", "mlp", (1, 4, 4), 3, clients=3, cohort=3, samples=6, tests=20, batch=6, lr=0.1, rounds=1)


# ---- what is counted ------------------------------------------------------------------------------------------------
def test_the_operations_of_a_step_by_hand() -> None:
    """LeNet at 3 x 32 x 32, multiplications per sample: 28*28*6*75 + 10*10*16*150 + 400*120 + 120*84 + 84*10."""
    first, rest = 28 * 28 * 6 * 75, 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10
    module = get_model("cam-lenet", (3, 32, 32), 10)
    assert flops.of_step(module, (3, 32, 32), 10) == 10 * (4 * first + 6 * rest)
    assert flops.of_step(nn.Linear(5, 7), (5,), 3) == 3 * 4 * 35  # nobody needs the gradient of its input


@pytest.mark.parametrize("name", ["W1a", "W1b", "W1c", "W2", "W4", "W5"])
def test_the_operations_of_a_step_are_those_that_torch_carries_out(name: str) -> None:
    """Torch's own counter over a forward and a backward pass says the same for each network."""
    w = WORKLOADS[name]
    module = get_model(w.model, w.shape, w.classes)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(module(torch.zeros(2, *w.shape)), torch.zeros(2, dtype=torch.int64)).backward()
    assert flops.of_step(module, w.shape, 2) == counter.get_total_flops()


def test_shares_of_time() -> None:
    """A quarter of a round lies outside training; the time to an accuracy ends with its round."""
    parts = [{"training": 3.0, "round": 2.0, "evaluation": 9.0}, {"training": 2.0, "round": 2.0, "evaluation": 9.0}]
    assert measure.outside(parts[:1], 2) == 0.25
    assert measure.outside([*parts, parts[0]], 2) == 0.25
    curve = Ran([], 1.0, 9.0, 5.0, 0.5, more={"times": [10.0, 11.0, 12.5, 15.0], "accuracies": [0.3, 0.8, 0.7]})
    assert measure.seconds_to(curve, 0.8) == 2.5
    assert measure.seconds_to(curve, 0.2) == 1.0
    assert measure.seconds_to(curve, 0.9) is None


# ---- the same for all programs --------------------------------------------------------------------------------------
def test_the_fastest_setting_of_a_peer_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is tried once, the pairs use the best; ratios are the peer's seconds over ours, pair by pair."""
    seconds = {1: 4.0, 2: 3.0, 3: 5.0}
    asked: list[tuple[int, bool]] = []

    def peer_ran(self: measure.Peer, w: Workload, folder: Path, tried: dict[str, int], **more: object) -> Ran:
        asked.append((tried["threads"], bool(more.get("watch"))))
        return Ran(
            [seconds[tried["threads"]]], 2.0, 9.0, 5.0, 0.5, 1.5, 7.0, {"versions": {"torch": "x"}, "checkout": "c"}
        )

    mine = iter([9.0, 1.0, 2.0, 1.5])
    monkeypatch.setattr(measure.Peer, "run", peer_ran)
    monkeypatch.setattr(measure.Ours, "run", lambda *_, **__: Ran([next(mine)], 1.0, 9.0, 4.0, 0.6, None, 3.0))
    peer = measure.Peer("plain", "python", [{"threads": n} for n in seconds])
    found = measure.beside(TINY, tmp_path, measure.Ours(), peer, 3)
    assert asked == [(1, False), (2, False), (3, False), (2, True), (2, False), (2, False), (2, False)]  # True: watched
    assert found["setting"] == {"threads": 2}
    assert found["pairs"] == [[1.0, 3.0], [2.0, 3.0], [1.5, 3.0]]
    assert found["cpu_s"] == [[4.0, 5.0]] * 3
    assert found["ratio"] == 2.0
    assert found["spread"] == [1.5, 3.0]
    assert found["memory_mb"] == [3.0, 7.0]
    assert found["peer_versions"] == {"torch": "x", "checkout": "c"}


# ---- from end to end ------------------------------------------------------------------------------------------------
@pytest.mark.thorough
def test_a_quick_run_writes_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--quick`: a step alone, whole rounds and a pair, each a line with machine, versions and settings. Its tables say
    nothing, since it measured nothing."""
    monkeypatch.setattr(measure, "threads", lambda: [{"threads": 1}])
    file = tmp_path / "deep" / "lines.jsonl"
    words = ["W4", "--quick", "--plain", "--engine", "workers", "--lines", str(file), "--note", "a test"]
    command.main([*words, "--parts", "step", "whole", "pair"])
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    expected = 1 if not measure.gradients() else len(measure.gradients())
    assert [line["kind"] for line in lines] == ["step"] * expected + ["whole", "whole", "pair"]
    for line in lines:
        assert line["workload"] == "W4"
        assert line["quick"] is True
        assert line["note"] == "a test"
        assert line["machine"]["cores"] == cores()
        assert {"cpu", "memory_gb", "load"} <= set(line["machine"])
        assert line["versions"]["fedkin"] == fedkin.__version__
        assert line["versions"]["torch"] == torch.__version__
        assert line["settings"]["batch"] == 8
        assert line["step_flop"] == 8 * (4 * 784 * 200 + 6 * (200 * 100 + 100 * 62))
    off, on = lines[-3:-1]
    assert (off["evaluate"], on["evaluate"]) == (False, True)
    assert off["given"] == {"engine": "workers"}
    assert off["round_flop"] == off["step_flop"] * 2 * 4
    assert len(off["round_s"]) == 1
    assert 0 < off["outside"] < 1
    assert {"round", "server", "exchange", "training", "evaluation"} <= set(off["parts_s"])
    assert off["parts_s"]["evaluation"] < on["parts_s"]["evaluation"]
    pair = lines[-1]
    assert pair["setting"] == {"threads": 1}
    assert len(pair["pairs"]) == 1
    assert pair["ratio"] == pytest.approx(pair["pairs"][0][1] / pair["pairs"][0][0], rel=0.05)
    assert min(pair["cpu_s"][0]) > 0.1  # both at least load torch
    assert pair["peer_versions"]["torch"] == torch.__version__
    assert table.tables(lines) == "Nothing has been measured yet."


# ---- tables ---------------------------------------------------------------------------------------------------------
BASE: dict[str, Any] = {
    "workload": "W4", "quick": False, "peak_gflops": [10.0, 20.0], "day": "2026-01-01", "cohort": 20, "samples": 200,
    "step_flop": 5_000_000, "settings": {"clients": 100},
    "machine": {"cores": 2, "cpu": "a cpu", "vectors": "AVX2", "memory_gb": 8.0},
    "versions": {"fedkin": "1", "torch": "2", "python": "3"},
}  # fmt: skip
WHOLE = {
    **BASE, "kind": "whole", "method": "fedavg", "evaluate": False, "round_s": [0.1, 0.2, 0.3], "outside": 0.04,
    "memory_mb": 300.0, "first_s": 2.5, "accuracy": 0.5, "round_flop": 2_000_000_000,
}  # fmt: skip
PAIR = {
    **BASE, "kind": "pair", "peer": "flower", "setting": {"threads": 2}, "pairs": [[0.1, 1.0], [0.2, 1.6], [0.2, 2.2]],
    "ratio": 10.0, "spread": [8.0, 11.0], "first_s": [2.0, 9.0], "memory_mb": [300.0, 1000.0], "accuracy": [0.9, 0.8],
}  # fmt: skip
STEP = {**BASE, "kind": "step", "step_ms": 2.0, "least_ms": 1.9}
START = {**BASE, "kind": "start", "first_s": [2.0, 3.0, 2.5]}


def test_the_tables_say_what_was_measured() -> None:
    """By hand: 20 clients in 0.2 s are 100 updates/s; 2 GFLOP in 0.2 s are 10 GFLOP/s, half of the peak of 20; a step
    of 5 MFLOP takes 0.5 ms at the peak of 10 GFLOP/s, a quarter of the 2 ms it took."""
    text = table.tables([WHOLE, PAIR, STEP, START])
    assert "2 cores of a cpu (AVX2), 8 GB; matmul peak 10 GFLOP/s on one core and 20 on all" in text
    assert "| W4 | FedAvg | off | 100 | 20,000 | 50 % | 50 % | 4.0 % | 300 MB | 2.5 s |" in text
    assert (
        "| W4 | Flower (threads 2) | 12.5 | 100 | **10.00** (8.00 to 11.00) | 25 | 9.0 s, 2.0 s | 1000 MB, 300 MB | "
        "80.0 %, 90.0 % |"
    ) in text
    assert "| W4 | autograd | 0.005 | 0.5 | 2 | 25 % |" in text
    assert "first round 2.50 s (2.00 to 3.00) after the command (goal: 3 s)" in text
