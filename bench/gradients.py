"""Microseconds of a step of local SGD, alone on one core, for each way of computing gradients, interleaved.

    python -m bench.gradients              # the workloads of bench.speed that are chains
    python -m bench.gradients W1a W4 --repeats 50
    python -m bench.gradients --ways compiled --without avx512    # programs as on a processor with less

Whole requests are timed, as clients make them, and divided by their steps. The minimum is what the machine can do, the
median what it did; other work on the machine moves the median more.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from bench.speed.workloads import WORKLOADS, Workload

import fedkin.engines.compiled.request as compiled
from fedkin.core import Net, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines.compiled.code import host
from fedkin.engines.loop import sgd
from fedkin.models.start import factory

WAYS = ("compiled", "explicit", "autograd")


def steps(w: Workload, ways: list[str], repeats: int) -> dict[str, list[float]]:
    """Return the microseconds per step of each repetition, by the way of computing gradients."""
    net = Net(factory(w.model, w.shape, w.classes), w.shape, w.classes)
    rng, n = generator(0, "bench"), w.samples
    data = Samples(net.layout(torch.randn(n, *w.shape, generator=rng)), torch.randint(w.classes, (n,), generator=rng))
    request, training = Train(net.w0), Training(batch_size=w.batch, lr=0.001)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for i in range(repeats + 1):
        for way in ways:
            begun = time.perf_counter()
            sgd(request, data, net, training, generator(i), gradient=way)  # type: ignore[arg-type]
            if i:  # the first is for what is made once
                found[way].append(1e6 * (time.perf_counter() - begun) / training.steps_for(n))
    return found


def main() -> None:
    """Print a line for each workload and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1a", "W4", "W1b", "W2"])
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--without", nargs="*", default=[], help="features of the processor that programs do not use")
    asked = parser.parse_args()
    if asked.without:
        lesser = host().without(*asked.without)
        compiled.host = lambda: lesser  # type: ignore[attr-defined]
        print("programs use:", " ".join(f for f in ("sse4.2", "avx", "avx2", "fma", "avx512f") if lesser.can(f)))
    torch.set_num_threads(1)
    for name in asked.workloads:
        for way, found in steps(WORKLOADS[name], asked.ways, asked.repeats).items():
            print(f"{name:4} {way:9} minimum {min(found):8.0f} us, median {statistics.median(found):8.0f} us a step")


if __name__ == "__main__":
    main()
