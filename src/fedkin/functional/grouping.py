"""Grouping of points and of distances. Deterministic: ties go to the lowest index, starts come from a generator."""

from __future__ import annotations

import heapq
import math

import torch
from torch import Tensor

from fedkin.core import Round
from fedkin.core.rows import group_mean
from fedkin.functional.linkage import by_first_member

_BLOCK, _WIDTH = 1 << 16, 1 << 10  # elements of float64 held at a time, so that they stay in the cache; columns of them


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the index of the nearest centroid, int64 ``[m]``, for ``points [m, d]`` and ``centroids [k, d]``.

    Sums are computed in float64.
    """
    d = torch.zeros(len(points), len(centroids), dtype=torch.float64)
    for left in range(0, points.shape[1], _WIDTH):  # models are wide
        c = centroids[:, left : left + _WIDTH].double()
        for top in range(0, len(points), _BLOCK // _WIDTH):
            x = points[top : top + _BLOCK // _WIDTH, left : left + _WIDTH].double()
            d[top : top + _BLOCK // _WIDTH] += torch.stack([(x - row).square().sum(1) for row in c], 1)
    return first_argmin(d)


def first_argmin(values: Tensor) -> Tensor:
    """Return the index of the first smallest entry of every row, int64 ``[m]``.

    ``torch.argmin`` does not promise the first.
    """
    least = values.min(1, keepdim=True).values
    return (values == least).to(torch.uint8).argmax(1)


def kmeans_plus_plus(points: Tensor, weights: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """Start centroids ``[k', d]`` by greedy k-means++, k' <= k distinct points.

    K-means++ (Arthur and Vassilvitskii 2007, Sec. 2.2) draws each centroid with a probability proportional to the
    point's weight times its squared distance to the centroids before it. Greedy, as they suggest for further work and
    scikit-learn does: 2 + floor(ln k) candidates are drawn for each, and the one that leaves the smallest weighted sum
    of squared distances is taken, the first of equals. One candidate alone often misses one of ten clear clusters.

    Args:
        points: ``[m, d]``; weights: at least 0, ``[m]``; k: number of centroids.
    """
    weights = weights.double()
    chosen, first = [int(torch.multinomial(weights, 1, generator=rng))], torch.zeros(len(points), dtype=torch.int64)
    d = _from_own(points, points[chosen], first)
    while len(chosen) < k and float((d * weights).sum()) > 0:
        drawn = torch.multinomial(d * weights, 2 + int(math.log(k)), replacement=True, generator=rng)
        then = torch.stack([torch.minimum(d, _from_own(points, points[[i]], first)) for i in drawn.tolist()])
        best = int(first_argmin((then @ weights)[None]))
        chosen.append(int(drawn[best]))
        d = then[best]
    return points[chosen]


def _from_own(points: Tensor, centroids: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of each of ``points [m, d]`` to the centroid of its label, float64 ``[m]``."""
    rows = max(1, _BLOCK // max(1, points.shape[1]))
    parts = zip(points.split(rows), labels.split(rows), strict=True)
    return torch.cat([(x.double() - centroids[mine].double()).square().sum(1) for x, mine in parts])


def lloyd(points: Tensor, weights: Tensor, centroids: Tensor, iterations: int = 100) -> tuple[Tensor, Tensor]:
    """Run K-means from given centroids until no label changes.

    Args:
        points: ``[m, d]``; weights: positive ``[m]``; centroids: ``[k, d]``.

    Returns:
        Labels int64 ``[m]`` and centroids ``[k, d]``; an empty cluster keeps its centroid.
    """
    labels = nearest(points, centroids)
    for _ in range(iterations):
        centroids = group_mean(points, weights, labels, centroids)
        new = nearest(points, centroids)
        if torch.equal(new, labels):
            break
        labels = new
    return labels, centroids


def kmeans(points: Tensor, weights: Tensor, k: int, rng: torch.Generator, *, starts: int = 5) -> Tensor:
    """Return labels int64 ``[m]`` of the best of several K-means runs, each from its own k-means++ start."""
    best, least = nearest(points, points[:1]), math.inf
    for _ in range(starts):
        labels, centroids = lloyd(points, weights, kmeans_plus_plus(points, weights, k, rng))
        spread = float((_from_own(points, centroids, labels) * weights.double()).sum())
        if spread < least:
            best, least = labels, spread
    return best


def two_means(d: Tensor) -> Tensor:
    """Return the lower of two groups of numbers in every row ``d [..., n]`` by exact 1-D 2-means, bool ``[..., n]``.

    Ties are never split; of equally good divisions (to 1e-12) the one with the smallest lower group is taken.
    """
    order = d.double().sort(-1).values
    n = order.shape[-1]
    if n < 2:
        return torch.ones_like(d, dtype=torch.bool)
    total, square = order.sum(-1, keepdim=True), order.square().sum(-1, keepdim=True)
    low, low_square = order.cumsum(-1)[..., :-1], order.square().cumsum(-1)[..., :-1]
    size = torch.arange(1, n)  # of the lower group
    spread = (low_square - low.square() / size) + (square - low_square - (total - low).square() / (n - size))
    spread = torch.where(order[..., 1:] == order[..., :-1], math.inf, spread)
    good = spread <= spread.min(-1, keepdim=True).values + 1e-12 * square.clamp(min=1)
    return d <= order.gather(-1, good.to(torch.uint8).argmax(-1, keepdim=True))


def two_gaussians(d: Tensor, *, floor: float = 1e-6, tolerance: float = 1e-3, steps: int = 100) -> Tensor:
    """Return the lower component of a mixture of two normals over every row ``d [..., n]``, bool ``[..., n]``.

    EM started from `two_means`, so the result does not depend on a seed; variances are kept above ``floor``; a row
    stops when its mean log-likelihood changes by less than ``tolerance``; hard assignment by the larger posterior.
    """
    x = d.double().reshape(-1, d.shape[-1])
    low = two_means(x).double()
    share, centre = torch.stack([low, 1 - low]), torch.zeros(2, len(x), dtype=torch.float64)
    going, before = torch.arange(len(x)), torch.full((len(x),), -math.inf, dtype=torch.float64)
    for _ in range(steps if x.numel() else 0):
        y, part = x[going], share[:, going]
        size = part.sum(2).clamp(min=1e-300)
        mean = (part * y).sum(2) / size
        away = (y - mean[:, :, None]).square()
        variance = ((part * away).sum(2) / size).clamp(min=floor)[:, :, None]
        log = size.log()[:, :, None] - math.log(x.shape[1]) - 0.5 * (variance.log() + away / variance)
        joint = log.logsumexp(0)
        share[:, going], centre[:, going], now = (log - joint).exp(), mean, joint.mean(1)
        moves = ~((now - before).abs() < tolerance)
        going, before = going[moves], now[moves]
        if len(going) == 0:
            break
    first_is_lower = (centre[0] <= centre[1])[:, None]
    return torch.where(first_is_lower, share[0] >= share[1], share[1] > share[0]).reshape(d.shape)


def two_ward(d: Tensor) -> Tensor:
    """Return the lower of two groups of every row ``d [..., n]`` by Ward's clustering cut at two, bool ``[..., n]``.

    Ties are never split. Rows are handled one after another, in n log n steps each.
    """
    rows = d.reshape(-1, d.shape[-1])
    ordered = rows.sort(1).values
    last = torch.tensor([_lower_by_ward(row) - 1 for row in ordered.double().tolist()], dtype=torch.int64)
    return (rows <= ordered.gather(1, last[:, None])).reshape(d.shape)


def _lower_by_ward(x: list[float]) -> int:
    """Return how many of the ascending numbers are in the lower group.

    On a line Ward's nearest two groups are always neighbours: a group between two others is nearer to one of them.
    """
    n, left = len(x), len(x)
    size, mean, age = [1] * n, list(x), [0] * n
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))

    def pair(i: int, j: int) -> tuple[float, int, int, int]:
        cost = size[i] * size[j] / (size[i] + size[j]) * (mean[i] - mean[j]) ** 2
        return cost, i, age[i], age[j]  # valid as long as neither group has changed

    waiting = [pair(i, i + 1) for i in range(n - 1)]
    heapq.heapify(waiting)
    while left > 2:
        _, i, mine, its = heapq.heappop(waiting)
        j = after[i]
        if age[i] != mine or age[j] != its:
            continue
        mean[i] = (size[i] * mean[i] + size[j] * mean[j]) / (size[i] + size[j])
        size[i], after[i], age[i], age[j] = size[i] + size[j], after[j], mine + 1, -1
        if after[i] < n:
            before[after[i]] = i
            heapq.heappush(waiting, pair(i, after[i]))
        if before[i] >= 0:
            heapq.heappush(waiting, pair(before[i], i))
        left -= 1
    return size[0]


def ward_groups(pairs: Tensor, weights: Tensor, most: int) -> Tensor:
    """Return the highest nodes of Ward's dendrogram that weigh at most ``most``; a single point always is a group.

    Args:
        pairs: distances of all pairs, float64 ``[m (m - 1) / 2]``: (0, 1), (0, 2), ..., (m - 2, m - 1).
        weights: int64 ``[m]``.

    Returns:
        Groups int64 ``[m]``, numbered by their first point.
    """
    from scipy.cluster.hierarchy import linkage

    m = len(weights)
    if m == 1:
        return torch.zeros(1, dtype=torch.int64)
    children = linkage(pairs.double().numpy(), "ward")[:, :2].astype(int).tolist()  # node m + i has these two
    weight = weights.tolist()
    for a, b in children:
        weight.append(weight[a] + weight[b])
    label = torch.empty(m, dtype=torch.int64)
    waiting = [(2 * m - 2, -1)]  # from the root; a group has the number of its node
    while waiting:
        node, inside = waiting.pop()
        inside = node if inside < 0 and weight[node] <= most else inside
        if node < m:
            label[node] = max(inside, node)
        else:
            waiting += [(child, inside) for child in children[node - m]]
    return by_first_member(label)


def moved_by_share(r: Round, mean: Tensor, group: Tensor, otherwise: Tensor) -> Tensor:
    """Return ``(1 - s_g) otherwise_g + s_g mean_g`` for every group g, ``[G, P]``.

    s_g is the fraction of the samples of ``r.ids`` that the members of group g hold; clients that are absent from the
    round do not count. It equals ``otherwise_g`` plus the members' changes, weighted by their samples over those of all
    participants.

    Args:
        mean: the members' mean of each group ``[G, P]``.
        group: int64 ``[m]``, the group of each of ``r.ids``.
        otherwise: the groups' present models ``[G, P]``.
    """
    share = torch.zeros(len(otherwise), dtype=torch.float64).index_add_(0, group, r.weight)
    share = (share / r.weight.sum())[:, None]
    return ((1 - share) * otherwise.double() + share * mean.double()).to(otherwise.dtype)
