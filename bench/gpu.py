"""The stacked engine against the loop: times, share of the device's peak, how far results are apart, and the profile.

    python bench/gpu.py [--device auto] [--only convolutions waits W1a W4 race dapfl W2]
        [--ways stacked tf32] [--small] [--out bench/results/gpu.jsonl]

On a machine with a GPU and torch (nothing else is needed), from the repository's root; a few minutes for each part, of
which a call with a time limit had better measure one:

    PYTHONPATH=src python3 bench/gpu.py --only W1a --out results/gpu.jsonl

docs/performance.md ("On a GPU") has what was measured, and the calls.

FedAvg's client step, synthetic data, a new round each time:

- W1a: LeNet 6-16-120-84 on 3x32x32, batch 10, 8 clients of 2,000 samples, one epoch (DA-PFL)
- W4: perceptron 784-200-100-62, batch 10, 100 clients of 100 to 360 samples, one epoch (FEMNIST)
- race: the network and the clients of bench/race.py, 50 of 50 samples, batch 10, one epoch; it has dropout, which the
  loop draws otherwise, so that `apart` says nothing
- dapfl: convolutions of 64 and 128 channels on 3x32x32, batch 10, 20 clients of 550 to 2,400 samples, one epoch (the
  CIFAR-100 runs of DA-PFL)
- W2: convolutions of 32 and 64 channels and 512 units on 3x32x32, batch 100, 20 clients of 2,000 samples, five epochs
  (PFedCS)

For each: seconds per round of the loop on one core of the CPU, of stacks (as they are, without CUDA graphs, with tf32,
with uploads that stay on the device because a run needs their mean alone, with all convolutions grouped, with all as
products of matrices), of one client at a time on the same device, and of a plain PyTorch loop there; those of one
client at a time are measured on a few clients and scaled by steps. Each way is a line of the file of results as soon as
it is measured; one that fails is a line with its error, and the others are measured all the same.

In a line, the share of the peak is the work of the samples (torch's count of products, forward and back) over the peak
of a product of two large fp32 matrices, measured here. `apart` is the largest distance of a trained number from the
loop's. `busy` is the share of a round in which the device computes: far below 1, starting its kernels is what takes
time. Rounds are timed when no more steps are recorded. `convolutions` says how each layer was computed and the times
(ms) by which that was chosen.

Two parts look at details:

- convolutions: each convolution of these networks, forward and back, for stacks of 1 to 200 clients, as one grouped
  convolution and as products, with and without tf32
- waits: where the host waits for the device in a round and in an evaluation of W4; memory after 20 rounds, and what
  recordings gave back
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import platform
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.utils.flop_counter import FlopCounterMode

from fedkin.core import Batch, Bundle, Net, Samples, Training, cross_entropy
from fedkin.core.seeds import generator
from fedkin.engines import Answer, Engine, Job, Loop, Stacked, Task
from fedkin.engines.stacked import StackedSession
from fedkin.engines.stacked_choice import ConvTimes, LayersMet, timed
from fedkin.engines.stacked_conv import ConvLayer
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_graph import Graphs
from fedkin.methods.fedavg import FedAvg
from fedkin.models.papers import cam_lenet, dapfl_cnn100, pfedcs_cnn
from fedkin.testing.toys import ClientData

RESULTS = Path(__file__).parent / "results" / "gpu.jsonl"
PARTS = ["convolutions", "waits", "W1a", "W4", "race", "dapfl", "W2"]


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
        Workload("W4", perceptron, (784,), 62, uneven, Training(batch_size=10, lr=0.01), 10),
        Workload("race", race_cnn, (3, 32, 32), 10, [50] * 50, Training(batch_size=10, lr=0.1), 10),
        Workload(
            "dapfl",
            lambda: dapfl_cnn100((3, 32, 32), 20),
            (3, 32, 32),
            20,
            torch.randint(550, 2400, (20,), generator=generator(6, "sizes")).tolist(),
            Training(batch_size=10, lr=0.001),
            1,
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
    ]
    if not small:
        return full
    return [replace(w, sizes=w.sizes[:3] if w.name == "W4" else [25, 25], few=1) for w in full]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 62))


def race_cnn() -> nn.Module:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from bench.race import SimpleCNN

    return SimpleCNN()


class Timed:
    """An engine at work on a job, one round after another."""

    def __init__(self, engine: Engine, job: Job, clients: int) -> None:
        self.session, self._job, self._clients, self._round = engine.start(job), job, clients, 0
        self._w = job.net.w0

    @property
    def graphs(self) -> Graphs | None:
        run = getattr(self.session, "_run", None)
        return run if isinstance(run, Graphs) else None

    def round(self) -> list[Answer]:
        self._round += 1
        return list(self.session.map([self._task(i) for i in range(self._clients)]))

    def evaluation(self) -> list[Answer]:
        return list(self.session.map([self._task(i, "evaluate") for i in range(self._clients)]))

    def _task(self, client: int, step: Literal["update", "evaluate"] = "update") -> Task:
        return Task(step, client, self._round, Bundle(model=self._w), Bundle())

    def warm(self, most: int) -> None:
        """Run two rounds; with recordings more, until one starts no step by itself, for half a minute at most."""
        started, single = time.perf_counter(), -1
        for i in range(most):
            now = self.graphs.single if self.graphs else 0
            if i >= 2 and (now == single or not self.graphs or time.perf_counter() - started > 30):
                return
            single = now
            self.round()

    def seconds(self, rounds: int) -> float:
        """Median of some rounds; answers are on the host at the end of each, so the device has finished."""
        found = []
        for _ in range(rounds):
            started = time.perf_counter()
            self.round()
            found.append(time.perf_counter() - started)
        return statistics.median(found)

    def steps(self) -> int:
        """Steps of stacks in a round."""
        assert isinstance(self.session, StackedSession)
        run, taken = self.session._run, 0

        def counting(steps: Any, rows: Any, batches: Any, lr: Any) -> None:
            nonlocal taken
            taken += len(batches)
            run(steps, rows, batches, lr)

        self.session._run = counting
        try:
            self.round()
        finally:
            self.session._run = run
        return taken


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


def profiled(timed: Timed, device: torch.device) -> list[tuple[str, float]]:
    """Every kernel of a round (on a CPU: every operation) with its milliseconds."""
    cuda = device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CUDA] if cuda else [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        timed.round()
        sync(device)
    return spent(profile.events() or [], cuda)


def spent(events: Sequence[Any], cuda: bool) -> list[tuple[str, float]]:
    """On a GPU the events that run there: an operation has the times of its kernels, which would count twice."""
    if not cuda:
        return [(e.name, e.self_cpu_time_total / 1e3) for e in events]
    return [(e.name, e.time_range.elapsed_us() / 1e3) for e in events if e.device_type == DeviceType.CUDA]


def costs(events: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """The five names that took most, with their share of what all took."""
    total, calls = Counter[str](), Counter(name for name, _ in events)
    for name, ms in events:
        total[name] += ms  # type: ignore[assignment]
    whole = sum(total.values()) or 1.0
    return [
        {"name": name[:120], "ms": round(ms, 3), "share": round(ms / whole, 3), "calls": calls[name]}
        for name, ms in total.most_common(5)
    ]


def plain(w: Workload, job: Job, device: torch.device) -> float:
    """Seconds of the few clients' training by an ordinary PyTorch loop, data on the device."""
    parts = [(d.train.x.to(device), d.train.y.to(device)) for d in job.shards[: w.few]]
    times = []
    for _ in range(2):
        sync(device)
        started = time.perf_counter()
        for x, y in parts:
            module = w.make().to(device)
            optimizer = torch.optim.SGD(module.parameters(), lr=w.training.lr)
            for _ in range(w.training.epochs):
                for index in torch.randperm(len(y)).to(device).split(w.training.batch_size):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(module(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        sync(device)
        times.append(time.perf_counter() - started)
    return times[-1]


def apart(stacked: Sequence[Answer], loop: Sequence[Answer]) -> float:
    """The largest distance of a trained number from the loop's."""
    by_client: dict[int, Tensor] = {a.client: a.reply.model.cpu() for a in stacked}
    return max(float((by_client[a.client] - a.reply.model).abs().max()) for a in loop)


@dataclass
class Bench:
    """Measurement of one workload on one device, a line for each way.

    Attributes:
        top: floating-point operations per second at the peak.
        write: takes a line.
        only: ways to measure beside the loop; empty: all.
    """

    w: Workload
    device: torch.device
    top: float
    rounds: int
    write: Callable[[dict[str, Any]], None]
    only: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.job = self.w.job()
        self.work, self.clients = self.w.work(self.job.net), len(self.w.sizes)
        self.scale = self.w.steps(self.clients) / self.w.steps(self.w.few)
        self.loop: list[Answer] = []
        self.loop_s: float | None = None

    def all(self, engine: Stacked) -> None:
        """Measure every way, the loop first: results are compared with its."""
        cuda, threads = self.device.type == "cuda", torch.get_num_threads()
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            "loop on the CPU": self.on_the_loop,
            "stacked": lambda: self.stacked(engine),
            **({"without graphs": lambda: self.stacked(replace(engine, graphs=False))} if cuda else {}),
            **({"tf32": lambda: self.stacked(replace(engine, tf32=True))} if cuda else {}),
            **({"uploads stay": lambda: self.stacked(engine, stay=True)} if cuda else {}),
            **({"grouped convolutions": lambda: self.stacked(replace(engine, products=False))} if cuda else {}),
            "convolutions as products": lambda: self.stacked(replace(engine, products=True)),
            **(
                {"convolutions as products, tf32": lambda: self.stacked(replace(engine, products=True, tf32=True))}
                if cuda
                else {}
            ),
            "one at a time": lambda: self.stacked(replace(engine, clients=1), self.w.few),
            "plain PyTorch loop": lambda: self.line(plain(self.w, self.job, self.device) * self.scale),
        }
        for name, way in ways.items():
            if self.only and name not in self.only and name != "loop on the CPU":
                continue
            if "convolutions" in name and not any(isinstance(m, nn.Conv2d) for m in self.job.net.module.modules()):
                continue
            torch.set_num_threads(1 if name == "loop on the CPU" else threads)
            try:
                found = way()
            except Exception as e:  # the other ways are worth having all the same
                found = {"error": f"{type(e).__name__}: {e}"[:2000]}
            finally:
                torch.set_num_threads(threads)
            self.write({"workload": self.w.name, "way": name, **found})

    def line(self, seconds: float) -> dict[str, Any]:
        """Times of a round, and what they come to."""
        return {
            "seconds": round(seconds, 5),
            "clients": self.clients,
            "samples": sum(self.w.sizes),
            "steps": self.w.steps(self.clients),
            "parameters": self.job.net.size,
            "gflop": round(self.work / 1e9, 3),
            "share of peak": round(self.work / seconds / self.top, 4),
            "updates per second": round(self.clients / seconds, 2),
            "times the loop": None if self.loop_s is None else round(self.loop_s / seconds, 2),
        }

    def on_the_loop(self) -> dict[str, Any]:
        """One round of the few clients, without a round before: nothing there gets faster."""
        timed = Timed(Loop(), self.job, self.w.few)
        started = time.perf_counter()
        self.loop = timed.round()
        self.loop_s = (time.perf_counter() - started) * self.scale
        timed.session.close()
        return self.line(self.loop_s)

    def stacked(self, engine: Stacked, clients: int | None = None, *, stay: bool = False) -> dict[str, Any]:
        """Rounds of all clients, or of some of them one at a time."""
        timed = Timed(engine, replace(self.job, means_only=stay), clients or self.clients)
        try:
            return self._stacked(timed, self.scale if clients else 1.0)
        finally:
            timed.session.close()

    def _stacked(self, timed: Timed, scale: float) -> dict[str, Any]:
        assert isinstance(timed.session, StackedSession)
        cuda = self.device.type == "cuda"
        first = timed.round()
        timed.warm(20)
        seconds = timed.seconds(self.rounds)
        steps, events = timed.steps(), profiled(timed, self.device)
        kernels = [ms for name, ms in events if not name.startswith(("Memcpy", "Memset"))]
        graphs = timed.graphs
        return {
            **self.line(seconds * scale),
            "apart": apart(first, self.loop) if self.loop else None,
            "stacked steps": steps,
            "kernels per step": round(len(kernels) / max(1, steps), 1),
            "busy": round(sum(ms for _, ms in events) / 1e3 / seconds, 3) if cuda else None,
            "recordings": graphs.recordings if graphs else 0,
            "played": graphs.played if graphs else 0,
            "one by one": graphs.single if graphs else 0,
            "reserved_mib": torch.cuda.memory_reserved(self.device) >> 20 if cuda else None,
            "costs": costs(events),
            "convolutions": [layer_line(t) for t in timed.session.convolutions.times],
            "notes": timed.session.notes,
        }


def layer_line(t: ConvTimes) -> dict[str, Any]:
    """Times of a layer, and the way that they choose."""
    return {
        "layer": str(t.layer),
        "rows": t.rows,
        "batch": t.batch,
        "grouped_ms": round(t.grouped, 4),
        "products_ms": round(t.products, 4),
        "faster": "products" if t.products < t.grouped else "grouped",
    }


def layers(name: str, small: bool) -> tuple[dict[ConvLayer, bool], int]:
    """The convolutions of a network, each with whether its inputs have a gradient; and the size of a batch."""
    (w,) = (w for w in workloads(small) if w.name == name)
    net = Net(w.make, w.shape, w.classes)
    with LayersMet() as found:
        batch = Batch(torch.zeros(1, *w.shape), torch.zeros(1, dtype=torch.int64))
        cross_entropy(net.training(), net.w0.requires_grad_(True), batch, Bundle())
    return found.met, w.training.batch_size


def convolutions(device: torch.device, small: bool, write: Callable[[dict[str, Any]], None]) -> None:
    """Time each layer in both ways, a line for each number of rows and precision."""
    for tf32 in (False, True) if device.type == "cuda" else (False,):
        place = Place(str(device), 0.0, tf32)
        for name in ("W1a", "race", "W2", "dapfl"):
            found, batch = layers(name, small)
            for layer, inner in found.items():
                work = 2 * (3 if inner else 2) * math.prod(layer.weight) * math.prod(out_size(layer))
                for rows in (1, 2) if small else (1, 8, 50, 200):
                    with place.at_work():
                        t = timed(layer, rows, 2 if small else batch, inner, place)
                    if t is not None:
                        flop = work * t.rows * t.batch
                        rates = {"grouped_tflops": flop / t.grouped / 1e9, "products_tflops": flop / t.products / 1e9}
                        rounded = {way: round(rate, 3) for way, rate in rates.items()}
                        write({"part": "convolutions", "network": name, "tf32": tf32, **layer_line(t), **rounded})


def out_size(layer: ConvLayer) -> list[int]:
    """Height and width of a layer's outputs."""
    sizes = zip(layer.input[1:], layer.weight[2:], layer.padding, layer.stride, strict=True)
    return [(n + 2 * margin - kernel) // stride + 1 for n, kernel, margin, stride in sizes]


def waits(device: torch.device, engine: Stacked, small: bool, write: Callable[[dict[str, Any]], None]) -> None:
    """Count where the host waits for the device, by line of code; then memory after 20 rounds and when all is freed."""
    (w,) = (w for w in workloads(small) if w.name == "W4")
    timed, cuda = Timed(engine, replace(w.job(), means_only=True), len(w.sizes)), device.type == "cuda"
    for _ in range(2 if small else 20):
        timed.round()
    for name, step in (("round", timed.round), ("evaluation", timed.evaluation)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if cuda:
                torch.cuda.set_sync_debug_mode("warn")
            try:
                step()
            finally:
                if cuda:
                    torch.cuda.set_sync_debug_mode("default")
        places = Counter(f"{Path(w.filename).name}:{w.lineno}" for w in said)
        write({"part": "waits", "step": name, "waits": dict(places.most_common())})
    stats = torch.cuda.memory_stats(device) if cuda else {}
    line = {
        "retries": stats.get("num_alloc_retries", 0),
        "reserved_mib": stats.get("reserved_bytes.all.current", 0) >> 20,
    }
    graphs = timed.graphs.recordings if timed.graphs else 0
    timed.session.close()
    left = torch.cuda.memory_reserved(device) >> 20 if cuda else 0
    write({"part": "waits", "step": "memory", **line, "recordings": graphs, "reserved_when_closed_mib": left})


def machine(device: torch.device, top: float) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    return {"device": name, "peak_gflops": round(top / 1e9, 1), "threads": torch.get_num_threads(), **versions}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--ways", nargs="*", default=[], help="names of ways as in the lines; the loop is always one")
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

    def write(line: dict[str, Any]) -> None:
        text = json.dumps({**line, "machine": about})
        print(text, flush=True)
        with given.out.open("a", encoding="utf-8") as f:
            f.write(text + "\n")

    details: dict[str, Callable[[], None]] = {
        "convolutions": lambda: convolutions(device, given.small, write),
        "waits": lambda: waits(device, engine, given.small, write),
    }
    for part in (name for name in details if name in given.only):
        try:
            details[part]()
        except Exception as e:  # the other parts are worth having all the same
            write({"part": part, "error": f"{type(e).__name__}: {e}"[:2000]})
    for w in workloads(given.small):  # the longest one last
        if w.name in given.only:
            Bench(w, device, top, given.rounds, write, given.ways).all(engine)


if __name__ == "__main__":
    main()
