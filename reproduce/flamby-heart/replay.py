"""FLamby's program once more in plain PyTorch, on the split of flamby.py: does it give FLamby's figures?

    cd reproduce/flamby-heart
    export FEDKIN_DATA=FOLDER             # that holds heart-disease/
    python replay.py

Then the measurements behind docs/results/flamby-heart.md: the pooled model with test rows scaled as its training rows,
and how far SGD comes in 1,500 steps.
"""

from __future__ import annotations

import copy
import csv
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from flamby import federation, folder, read_hospitals, scaled, unscaled
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedkin.core import Samples

HERE = Path(__file__).parent
SEEDS = range(42, 47)
ROUNDS, STEPS, BATCH = 15, 100, 4


def loader(data: Samples) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(data.x, data.y.float()), BATCH, shuffle=True)


class Stream:
    """Batches without end; each pass over the data is shuffled by torch's global generator, as in FLamby's loaders."""

    def __init__(self, data: Samples) -> None:
        self.size, self.loader = len(data), loader(data)
        self.batches = iter(self.loader)

    def next(self) -> list[Tensor]:
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return list(batch)


def start(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(13, 1)


def loss_of(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy(model(x).sigmoid()[:, 0], y.float())


def accuracy(model: nn.Linear, data: Samples) -> float:
    with torch.no_grad():
        return float(((model(data.x)[:, 0] > 0) == (data.y > 0)).double().mean())


def alone(seed: int, data: Samples) -> nn.Linear:
    """FLamby's Local and Pooled: 50 epochs of Adam with 0.001."""
    model = start(seed)
    torch.manual_seed(seed)
    optimiser, batches = torch.optim.Adam(model.parameters(), lr=0.001), loader(data)
    for _ in range(50):
        for x, y in batches:
            optimiser.zero_grad()
            loss_of(model, x, y).backward()
            optimiser.step()
    return model


def moved(model: nn.Linear, stream: Stream, lr: float, mu: float = 0.0) -> nn.Linear:
    """100 steps of SGD on a copy, pulled by mu to where it began."""
    w, begin = copy.deepcopy(model), [p.detach() for p in model.parameters()]
    for _ in range(STEPS):
        x, y = stream.next()
        grads = torch.autograd.grad(loss_of(w, x, y), list(w.parameters()))
        with torch.no_grad():
            for p, g, b in zip(w.parameters(), grads, begin, strict=True):
                p.sub_(lr * (g + mu * (p - b)))
    return w


def one_round(model: nn.Linear, streams: list[Stream], lr: float, mu: float = 0.0) -> nn.Linear:
    """FedAvg's next model, weighted by training rows; with mu FedProx's."""
    ends = [moved(model, stream, lr, mu) for stream in streams]
    total, new = sum(stream.size for stream in streams), copy.deepcopy(model)
    with torch.no_grad():
        for p, *theirs in zip(new.parameters(), *(end.parameters() for end in ends), strict=True):
            p += sum(s.size / total * (q - p) for s, q in zip(streams, theirs, strict=True))
    return new


def federated(seed: int, train: list[Samples], lr: float, mu: float = 0.0) -> nn.Linear:
    model, streams = start(seed), [Stream(data) for data in train]
    torch.manual_seed(seed)
    for _ in range(ROUNDS):
        model = one_round(model, streams, lr, mu)
    return model


def fine_tuned(train: list[Samples], test: list[Samples]) -> dict[str, list[float]]:
    """FLamby's comparison of FedAvg with and without 100 steps of fine-tuning, mean of four hospitals, one per seed.

    Its program draws a seed's start before it sets that seed, so a start depends on all that was drawn before it.
    """
    found: dict[str, list[float]] = {"FedAvg": [], "FedAvg + FT": []}
    torch.manual_seed(42)
    for seed in SEEDS:
        begin = nn.Linear(13, 1)
        torch.manual_seed(seed)
        for name, tested in (("FedAvg", 1), ("FedAvg + FT", 4)):
            model, streams = copy.deepcopy(begin), [Stream(data) for data in train]
            for _ in range(ROUNDS):
                model = one_round(model, streams, 0.00316227)
            models = [moved(model, s, 0.00316227) for s in streams] if name == "FedAvg + FT" else [model] * len(test)
            found[name].append(mean(accuracy(m, d) for m, d in zip(models, test, strict=True)))
            for _ in range(tested):  # the test rows are shuffled, too, which moves the generator on
                for data in test:
                    list(loader(data))
    return found


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def theirs(file: str) -> dict[tuple[str, int], list[float]]:
    with (HERE / file).open(encoding="utf-8") as lines:
        _, *rows = csv.reader(lines)
    return {(method, int(seed)): [float(v) for v in values] for method, seed, *values in rows}


def agree(title: str, found: dict[int, list[float]], published: dict[tuple[str, int], list[float]]) -> None:
    pairs = [(a, b) for seed, values in found.items() for a, b in zip(values, published[title, seed], strict=True)]
    equal = sum(abs(a - b) < 1e-4 for a, b in pairs)
    print(f"{title}: {equal} of {len(pairs)} figures are FLamby's (mean {mean(a for a, _ in pairs):.4f})")


def pooled_scaling(models: dict[int, nn.Linear]) -> None:
    """FLamby trains Pooled on rows scaled together and tests it on rows scaled per hospital; here both together."""
    parts = unscaled(read_hospitals(folder()))
    together = torch.cat([train.x for train, _ in parts])
    shown = [mean(accuracy(m, Samples(scaled(t.x, together), t.y)) for m in models.values()) for _, t in parts]
    print(f"Pooled, test rows scaled as training rows: {' '.join(f'{a:.3f}' for a in shown)}, mean {mean(shown):.3f}")


def pooled_rows() -> Samples:
    parts = [train for train, _ in unscaled(read_hospitals(folder()))]
    x = torch.cat([p.x for p in parts])
    return Samples(scaled(x, x), torch.cat([p.y for p in parts]))


def minimum(x: Tensor, y: Tensor) -> nn.Linear:
    """The model of least loss."""
    model = nn.Linear(13, 1)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=2000, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        return float(loss.detach())

    optimiser.step(closure)
    return model


def progress(train: list[Samples], test: list[Samples]) -> None:
    """FedAvg's training loss and mean test accuracy over rounds at FLamby's step size, means of the five seeds."""
    x, y = torch.cat([d.x for d in train]), torch.cat([d.y for d in train])
    best = minimum(x, y)
    line: dict[int, list[tuple[float, float]]] = {t: [] for t in (0, 5, 15, 50)}
    for seed in SEEDS:
        model, streams = start(seed), [Stream(data) for data in train]
        for t in range(max(line) + 1):
            if t in line:
                loss = float(loss_of(model, x, y).detach())
                line[t].append((loss, mean(accuracy(model, d) for d in test)))
            model = one_round(model, streams, 0.001)
    least = float(loss_of(best, x, y).detach())
    print(f"least training loss {least:.3f}, test accuracy {mean(accuracy(best, d) for d in test):.3f}")
    for t, values in line.items():
        print(f"FedAvg, round {t}: loss {mean(a for a, _ in values):.3f}, accuracy {mean(b for _, b in values):.3f}")


def main() -> None:
    data = federation()
    train, test = [c.train for c in data.clients], [c.test for c in data.clients]
    published, pool = theirs("theirs.csv"), pooled_rows()
    pooled = {seed: alone(seed, pool) for seed in SEEDS}
    own = {s: [accuracy(alone(s, a), b) for a, b in zip(train, test, strict=True)] for s in SEEDS}
    agree("Local", own, published)
    agree("Pooled", {s: [accuracy(m, d) for d in test] for s, m in pooled.items()}, published)
    for title, mu in (("FedAvg", 0.0), ("FedProx", 0.01)):
        models = {seed: federated(seed, train, 0.001, mu) for seed in SEEDS}
        agree(title, {seed: [accuracy(m, d) for d in test] for seed, m in models.items()}, published)
    told = theirs("theirs-finetune.csv")
    for title, values in fine_tuned(train, test).items():
        agree(title, {seed: [v] for seed, v in zip(SEEDS, values, strict=True)}, told)
    usual = [float((b.y == a.y.mode().values).double().mean()) for a, b in zip(train, test, strict=True)]
    print(f"\nthe most frequent training label: {' '.join(f'{a:.3f}' for a in usual)}, mean {mean(usual):.3f}")
    pooled_scaling(pooled)
    progress(train, test)


if __name__ == "__main__":
    main()
