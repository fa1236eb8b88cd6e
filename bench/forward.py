"""Microseconds of forward passes outside training, alone on one core, by compiled programs and by torch, interleaved.

    python -m bench.forward                # the workloads of bench.speed that are chains
    python -m bench.forward W4 --repeats 50

``evaluation`` is a client's whole evaluation as an engine makes it, on the test samples of the workload, without what
sends its answer; ``passes`` is the part of it that computes logits; ``features`` are those of the training samples, as
PFedCS and others ask for them. The minimum is what the machine can do, the median what it did.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from bench.speed.workloads import WORKLOADS, Workload

from fedkin.core import Bundle, ClientData, Net, Samples, Training
from fedkin.core.seeds import generator
from fedkin.core.settings import Gradient
from fedkin.core.sides import chunked
from fedkin.engines import Job, Task
from fedkin.engines.loop import trainer
from fedkin.engines.passes import evaluating
from fedkin.engines.turns import perform
from fedkin.methods import FedAvg
from fedkin.models.start import factory

WAYS: tuple[Gradient, ...] = ("compiled", "explicit")


def job_of(w: Workload, gradient: Gradient) -> Job:
    """A client with the workload's data, drawn at random."""
    net, rng = Net(factory(w.model, w.shape, w.classes), w.shape, w.classes), generator(0, "bench")

    def some(n: int) -> Samples:
        x = net.layout(torch.randn(n, *w.shape, generator=rng))
        return Samples(x, torch.randint(w.classes, (n,), generator=rng))

    shard = ClientData(some(w.samples), some(0), some(w.tests))
    return Job(FedAvg(), net, Training(batch_size=w.batch), [shard], 0, gradient=gradient)


def parts(job: Job) -> dict[str, Callable[[], object]]:
    """What is timed."""
    net, w, (shard,), train = evaluating(job), job.net.w0, job.shards, trainer(job)
    return {
        "evaluation": lambda: perform(job, Task("evaluate", 0, 1, Bundle(model=w), Bundle()), train),
        "passes": lambda: chunked(lambda x: net(w, x), shard.test.x),
        "features": lambda: chunked(lambda x: net.features_and_logits(w, x)[0], shard.train.x),
    }


def times(w: Workload, repeats: int) -> dict[tuple[str, str], list[float]]:
    """Return the microseconds of each repetition, by part and way."""
    timed = {(part, way): f for way in WAYS for part, f in parts(job_of(w, way)).items()}
    found: dict[tuple[str, str], list[float]] = {name: [] for name in timed}
    for i in range(repeats + 1):
        for name, f in timed.items():
            begun = time.perf_counter()
            f()
            if i:  # the first is for what is made once
                found[name].append(1e6 * (time.perf_counter() - begun))
    return found


def main() -> None:
    """Print a line for each workload, part and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W4", "W1a", "W2", "W3"])
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.workloads:
        found, w = times(WORKLOADS[name], asked.repeats), WORKLOADS[name]
        for part in ("evaluation", "passes", "features"):
            n = w.samples if part == "features" else w.tests
            for way in WAYS:
                us = found[part, way]
                line = f"minimum {min(us):8.0f} us, median {statistics.median(us):8.0f} us"
                print(f"{name:4} {part:10} of {n:4} samples, {way:8} {line}")


if __name__ == "__main__":
    main()
