"""The stacked engine against the loop: times, share of the device's peak, how far results are apart, and the profile.

    python bench/gpu.py [--device auto] [--only W1a W2 W4] [--small] [--out bench/results/gpu.jsonl]

On a machine with a GPU and torch (nothing else is needed), from the repository's root; some minutes:

    PYTHONPATH=src python3 bench/gpu.py

FedAvg's client step, made-up data, a new round each time:

- W1a: LeNet 6-16-120-84 on 3x32x32, batch 10, 8 clients of 2,000 samples, one epoch (DA-PFL)
- W2: convolutions of 32 and 64 channels and 512 units on 3x32x32, batch 100, 20 clients of 2,000 samples, five epochs
  (PFedCS)
- W4: perceptron 784-200-100-62, batch 10, 100 clients of 100 to 360 samples, one epoch (FEMNIST)

For each: seconds per round of stacks (with and without CUDA graphs, with tf32, with convolutions as products
of matrices), of one client at a time on the same
device, and of the loop on one core of the CPU; the latter two are measured on a few clients and scaled by steps. The
share of the peak is the work of the samples (torch's count of products, forward and back) over the peak of a product
of two large fp32 matrices, measured here. `apart` is the largest distance of a trained number from the loop's. One
line per workload is appended to the file of results.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedkin.core import Batch, Bundle, Net, Samples, Training, cross_entropy
from fedkin.core.seeds import generator
from fedkin.engines import Answer, Engine, Job, Loop, Stacked, Task
from fedkin.engines.stacked import StackedSession
from fedkin.methods.fedavg import FedAvg
from fedkin.models.papers import cam_lenet, pfedcs_cnn
from fedkin.testing.toys import ClientData

RESULTS = Path(__file__).parent / "results" / "gpu.jsonl"


@dataclass(frozen=True)
class Workload:
    """A network, clients of N samples, training settings; ``few`` clients stand for all where one at a time is slow."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    sizes: Sequence[int]
    training: Training
    few: int

    def job(self) -> Job:
        net = Net(self.make, self.shape, self.classes)
        shards = [self.shard(net, i, n) for i, n in enumerate(self.sizes)]
        return Job(FedAvg(), net, self.training, shards, seed=1)

    def shard(self, net: Net, i: int, n: int) -> ClientData:
        rng = generator(5, self.name, i)
        x = net.layout(torch.randn(n, *self.shape, generator=rng))
        train = Samples(x, torch.randint(0, self.classes, (n,), generator=rng))
        held = Samples(x[: n // 5], train.y[: n // 5])
        return ClientData(train, held, held)

    def steps(self, clients: int) -> int:
        return sum(self.training.steps_for(n) for n in self.sizes[:clients])

    def work(self, net: Net) -> float:
        """Products of a round, forward and back, in floating-point operations."""
        x = net.layout(torch.randn(self.training.batch_size, *self.shape))
        y = torch.zeros(self.training.batch_size, dtype=torch.int64)
        w = net.w0.requires_grad_(True)
        with FlopCounterMode(display=False) as counted:
            torch.autograd.grad(cross_entropy(net.training(), w, Batch(x, y), Bundle()), w)
        return counted.get_total_flops() / self.training.batch_size * sum(self.sizes) * self.training.epochs


def workloads(small: bool) -> list[Workload]:
    uneven = torch.randint(100, 361, (100,), generator=generator(5, "sizes")).tolist()
    full = [
        Workload(
            "W1a", lambda: cam_lenet((3, 32, 32), 10), (3, 32, 32), 10, [2000] * 8, Training(batch_size=10, lr=0.01), 1
        ),
        Workload(
            "W2",
            lambda: pfedcs_cnn((3, 32, 32), 10),
            (3, 32, 32),
            10,
            [2000] * 20,
            Training(5, batch_size=100, lr=0.01),
            1,
        ),
        Workload("W4", perceptron, (784,), 62, uneven, Training(batch_size=10, lr=0.01), 10),
    ]
    if not small:
        return full
    return [replace(w, sizes=w.sizes[:3] if w.name == "W4" else [25, 25], few=1) for w in full]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 62))


class Timed:
    """An engine at work on a job, one round after another."""

    def __init__(self, engine: Engine, job: Job, clients: int) -> None:
        self.session, self._job, self._clients, self._round = engine.start(job), job, clients, 0
        self._w = job.net.w0

    def round(self) -> list[Answer]:
        self._round += 1
        return list(self.session.map([self._task(i) for i in range(self._clients)]))

    def _task(self, client: int) -> Task:
        return Task("update", client, self._round, Bundle(model=self._w), Bundle())

    def seconds(self, warm: int, rounds: int) -> list[float]:
        """Of each round after the first so many; answers are on the host by then, so the device has finished."""
        found = []
        for _ in range(warm + rounds):
            started = time.perf_counter()
            self.round()
            found.append(time.perf_counter() - started)
        return found[warm:]


def peak(device: torch.device, small: bool) -> float:
    """Floating-point operations per second of a product of two large fp32 matrices; the best of some."""
    n = 256 if small else (8192 if device.type == "cuda" else 2048)
    a, b, best = torch.randn(n, n, device=device), torch.randn(n, n, device=device), 0.0
    for _ in range(8):
        sync(device)
        started = time.perf_counter()
        for _ in range(4):
            torch.mm(a, b)
        sync(device)
        best = max(best, 4 * 2 * n**3 / (time.perf_counter() - started))
    return best


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def costs(timed: Timed, device: torch.device) -> list[dict[str, Any]]:
    """The three kernels (on a CPU: operations) that took most of a round, with their share of what all took."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        timed.round()
        sync(device)

    def spent(e: Any) -> float:
        return float(e.self_device_time_total if device.type == "cuda" else e.self_cpu_time_total)

    found = sorted(profile.key_averages(), key=spent, reverse=True)
    total = sum(spent(e) for e in found) or 1.0
    return [
        {"name": e.key[:120], "ms": round(spent(e) / 1e3, 3), "share": round(spent(e) / total, 3), "calls": e.count}
        for e in found[:3]
    ]


def apart(stacked: Sequence[Answer], loop: Sequence[Answer]) -> float:
    """The largest distance of a trained number from the loop's."""
    by_client: dict[int, Tensor] = {a.client: a.reply.model for a in stacked}
    return max(float((by_client[a.client] - a.reply.model).abs().max()) for a in loop)


def measured(w: Workload, engine: Stacked, device: torch.device, top: float, rounds: int) -> dict[str, Any]:
    """The line of one workload."""
    job, clients = w.job(), len(w.sizes)
    scale = w.steps(clients) / w.steps(w.few)
    cuda = device.type == "cuda"
    ways: dict[str, tuple[Engine, int]] = {
        "stacked": (engine, clients),
        **({"without graphs": (replace(engine, graphs=False), clients)} if cuda else {}),
        **({"tf32": (replace(engine, tf32=True), clients)} if cuda else {}),
        "convolutions as products": (replace(engine, products=True), clients),
        "one at a time": (replace(engine, clients=1), w.few),
        "loop on the CPU": (Loop(), w.few),
    }
    seconds, notes, first, profile = dict[str, float](), set[str](), dict[str, list[Answer]](), []
    threads = torch.get_num_threads()
    for name, (way, some) in ways.items():
        torch.set_num_threads(1 if isinstance(way, Loop) else threads)
        timed = Timed(way, job, some)
        first[name] = timed.round()
        found = timed.seconds(0, 1) if isinstance(way, Loop) else timed.seconds(2, rounds)
        seconds[name] = statistics.median(found) * (scale if some < clients else 1.0)
        if isinstance(timed.session, StackedSession):
            notes.update(timed.session.notes)
        if name == "stacked":
            profile = costs(timed, device)
        timed.session.close()
        print(f"{w.name} {name}: {seconds[name]:.4f} s a round", file=sys.stderr)
    torch.set_num_threads(threads)
    work = w.work(job.net)
    return {
        "workload": w.name,
        "clients": clients,
        "samples": sum(w.sizes),
        "steps": w.steps(clients),
        "parameters": job.net.size,
        "seconds": {name: round(s, 5) for name, s in seconds.items()},
        "times the loop": round(seconds["loop on the CPU"] / seconds["stacked"], 2),
        "times one at a time": round(seconds["one at a time"] / seconds["stacked"], 2),
        "updates per second": round(clients / seconds["stacked"], 2),
        "gflop": round(work / 1e9, 3),
        "share of peak": round(work / seconds["stacked"] / top, 4),
        "apart": {name: apart(a, first["loop on the CPU"]) for name, a in first.items() if name != "loop on the CPU"},
        "costs": profile,
        "notes": sorted(notes),
    }


def machine(device: torch.device, top: float) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    return {"device": name, "peak_gflops": round(top / 1e9, 1), "threads": torch.get_num_threads(), **versions}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="*", default=["W1a", "W2", "W4"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a few samples: to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    engine = Stacked(given.device)
    cuda = given.device.startswith("cuda") or (given.device == "auto" and torch.cuda.is_available())
    device = torch.device(("cuda" if given.device == "auto" else given.device) if cuda else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    top = peak(device, given.small)
    about = {"small": given.small, **machine(device, top)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for w in workloads(given.small):
        if w.name in given.only:
            line = {**measured(w, engine, device, top, given.rounds), "machine": about}
            print(json.dumps(line))
            with given.out.open("a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
