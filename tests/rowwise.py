"""Who collaborates with one client, written plainly, one row at a time: what the server computes for all at once."""

import math

import torch
from torch import Tensor


def row_distances(heads: Tensor, k: int) -> Tensor:
    u = torch.stack([(head.double() - heads[k].double()).square().sum() for head in heads])
    return u / u.max() if u.max() > 0 else u


def two_means(d: Tensor) -> Tensor:
    """Every way to divide the sorted numbers between two that differ; the best, at 1e-12 the lowest."""
    order = d.double().sort().values
    best, border = math.inf, float(order[-1])
    for i in range(1, len(order)):
        low, high = order[:i], order[i:]
        if low[-1] == high[0]:
            continue
        spread = sum(float(x.square().sum() - x.sum().square() / len(x)) for x in (low, high))
        if spread < best - 1e-12 * max(1.0, float(order.square().sum())):
            best, border = spread, float(low[-1])
    return d <= border


def two_gaussians(d: Tensor) -> Tensor:
    x, low = d.double(), two_means(d).double()
    share, before = torch.stack([low, 1 - low], 1), -math.inf
    for _ in range(100):
        size = share.sum(0).clamp(min=1e-300)
        mean = (share * x[:, None]).sum(0) / size
        away = (x[:, None] - mean).square()
        variance = ((share * away).sum(0) / size).clamp(min=1e-6)
        log = size.log() - math.log(len(x)) - 0.5 * (variance.log() + away / variance)
        joint = log.logsumexp(1)
        share, now = (log - joint[:, None]).exp(), float(joint.mean())
        if abs(now - before) < 1e-3:
            break
        before = now
    return share.argmax(1) == int(mean.argmin())


def two_ward(d: Tensor) -> Tensor:
    """The two nearest groups, by Ward's distance, are joined until two are left."""
    groups = [[i] for i in range(len(d))]
    mean = {(i,): float(d[i]) for i in range(len(d))}
    while len(groups) > 2:
        pairs = [(a, b) for n, a in enumerate(groups) for b in groups[:n]]
        cost = [len(a) * len(b) / (len(a) + len(b)) * (mean[(*a,)] - mean[(*b,)]) ** 2 for a, b in pairs]
        a, b = pairs[cost.index(min(cost))]
        groups = [g for g in groups if g not in (a, b)] + [a + b]
        mean[(*a, *b)] = float(d[a + b].mean())
    lower = min(groups, key=lambda g: mean[(*g,)])
    return torch.tensor([i in lower for i in range(len(d))])


def candidates(d: Tensor, rule: str, fixed: float = 0.5) -> Tensor:
    if rule == "fixed":
        return d <= fixed
    everybody = torch.ones(len(d), dtype=torch.bool)
    if len(d) < 2 or float(d.max() - d.min()) <= 1e-12 * max(1.0, float(d.max())):
        return everybody
    nearer = {"gmm": two_gaussians, "kmeans": two_means, "hier": two_ward}[rule](d)
    return nearer if bool(nearer.any()) else everybody


def threshold(d: Tensor, t: int, beta: int) -> float:
    r = min(1.0, t / beta)
    return (1 - r) * float(d.mean()) + r * float(d.min()) if len(d) else 0.0


def customised_weights(d: Tensor, chosen: Tensor, k: int, sizes: Tensor, lam: float, reading: str) -> Tensor:
    member = chosen.clone()
    member[k] = True
    if not bool(chosen.any()):
        return member.double()
    base = member if reading == "union" else chosen
    if reading == "literal-norm" and d[base].max() == d[base].min():
        base = member
    mean, largest, count = d[base].mean(), d[base].max(), int(base.sum())
    even = torch.full_like(d, 1 / count)
    similar = even if largest == d[base].min() else (largest - d) / (count * (largest - mean))
    p = lam * similar + (1 - lam) * sizes.double() / float(sizes[base].sum())
    p = p * (chosen if reading == "others" else member)
    return p / p.sum()
