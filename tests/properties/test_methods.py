"""What must hold for any clients, models and weights."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from fedkin.core import Method, Net, Samples, Training, to_all, to_each
from fedkin.core.rows import group_mean, mix, squared_distances, weighted_mean
from fedkin.core.seeds import key
from fedkin.functional.grouping import lloyd, nearest, two_means
from fedkin.methods import CAM, CFIC, DAPFL, IFCA, FedPer, PFedCS
from fedkin.methods.cfic import even_cohort, label_feature
from fedkin.methods.dapfl import affinity
from fedkin.methods.pfedcs import candidates, row_distances, threshold
from toys import ByHand, blobs, close, copies, draw, mlp, plane_net, squares_apart

FEW = settings(max_examples=25, deadline=None)
LESS = settings(max_examples=6, deadline=None)

seeds = st.integers(0, 2**20)


def shuffled(seed: int, n: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


# ---- DA-PFL --------------------------------------------------------------------------------------------------------
tables = st.integers(2, 6).flatmap(
    lambda c: st.lists(st.lists(st.integers(0, 40), min_size=c, max_size=c).filter(any), min_size=1, max_size=6)
)
variants = st.sampled_from([{}, {"variant": "v2"}, {"variant": "dynamic"}, {"include_self": True}, {"sigma": "median"}])


@FEW
@given(counts=tables, seed=seeds, options=variants, scale=st.sampled_from([0.0, 1e-4, 1.0, 100.0]))
def test_dapfl_rows_are_mixtures(counts: list[list[int]], seed: int, options: dict, scale: float) -> None:
    """alpha is non-negative, its rows sum to 1, and nobody is in its own mixture unless asked for (or alone)."""
    models = 1 + scale * draw(len(counts), 5, seed=seed)
    alpha = DAPFL(**options).mixture(models, affinity(torch.tensor(counts)))
    assert float(alpha.min()) >= 0
    close(alpha.sum(1), torch.ones(len(counts)), 1e-12)
    if len(counts) > 1 and "include_self" not in options:
        assert not bool(alpha.diagonal().any())


@FEW
@given(counts=tables, seed=seeds, options=variants)
def test_permuting_clients_permutes_the_dapfl_mixture(counts: list[list[int]], seed: int, options: dict) -> None:
    s, models, order = torch.tensor(counts), draw(len(counts), 5, seed=seed), shuffled(seed, len(counts))
    c, moved = affinity(s), affinity(s[order])
    close(moved, c[order][:, order], 1e-9)
    alpha = DAPFL(**options).mixture(models, c)
    close(DAPFL(**options).mixture(models[order], moved), alpha[order][:, order], 1e-9)


@FEW
@given(counts=tables)
def test_affinity_is_symmetric_and_bounded(counts: list[list[int]]) -> None:
    """c = c^T; above 0 and at most 3."""
    c = affinity(torch.tensor(counts))
    close(c, c.T, 1e-9)
    assert float(c.min()) > 0
    assert float(c.max()) <= 3 + 1e-9


@settings(max_examples=150, deadline=None)
@given(counts=tables, seed=seeds, single=st.sampled_from(["floor", "formula"]), first=st.integers(1, 6))
@example(counts=[[8, 5, 2, 0], [2, 5, 8, 0], [0, 0, 0, 6], [1, 0, 0, 3]], seed=10, single="floor", first=2)
def test_a_cohort_has_its_part_of_the_affinity_of_all(
    counts: list[list[int]], seed: int, single: str, first: int
) -> None:
    data = [
        Samples(torch.zeros(sum(row), 4), torch.arange(len(row)).repeat_interleave(torch.tensor(row))) for row in counts
    ]
    net = Net(lambda: nn.Sequential(nn.Linear(4, len(counts[0]))), (4,), len(counts[0]))
    hand = ByHand(DAPFL(single=single), net, data, present=min(first, len(data)))
    if first < len(data):
        hand.join(len(data))
    ids = shuffled(seed, len(data))[: 1 + seed % len(data)].sort().values
    got = hand.method.affinity(hand.server, hand.at("distribute", ids.tolist()))
    close(got, affinity(torch.tensor(counts), single=single)[ids][:, ids], 1e-12)


@FEW
@given(counts=tables, seed=seeds)
def test_affinity_does_not_depend_on_the_names_of_classes(counts: list[list[int]], seed: int) -> None:
    """Permuting classes changes nothing; multiplying all counts of all clients by 3 neither."""
    s = torch.tensor(counts)
    close(affinity(s[:, shuffled(seed, s.shape[1])]), affinity(s), 1e-9)
    close(affinity(3 * s), affinity(s), 1e-9)


# ---- PFedCS --------------------------------------------------------------------------------------------------------
readings = st.sampled_from(["union", "others", "literal-norm"])
rules = st.sampled_from(["gmm", "kmeans", "hier", "fixed", "all"])


def pfedcs_weights(heads: torch.Tensor, sizes: list[int], k: int, t: int, **options) -> torch.Tensor:
    method = PFedCS(beta=10, **options)
    hand = ByHand(method, plane_net(), [copies([0.0, 0.0], n) for n in sizes], total=20)
    hand.server = hand.server.but(heads=heads, uploaded=torch.ones(len(sizes), dtype=torch.int64))
    r = hand.at("distribute", range(len(sizes)), t)
    return method.mixture(hand.server, r, torch.tensor([k]), torch.arange(len(sizes)))[0]


@FEW
@given(
    sizes=st.lists(st.integers(1, 300), min_size=2, max_size=7),
    seed=seeds,
    t=st.integers(1, 10),
    rule=rules,
    reading=readings,
    lam=st.floats(0, 1),
    ties=st.booleans(),
)
def test_pfedcs_weights_are_mixtures(
    sizes: list[int], seed: int, t: int, rule: str, reading: str, lam: float, ties: bool
) -> None:
    """Non-negative, sum 1, finite; in "union" the client itself takes part."""
    heads = draw(len(sizes), 4, seed=seed)
    heads = heads.round() if ties else heads
    p = pfedcs_weights(heads, sizes, 0, t, select=rule, weights=reading, lam=lam)
    assert float(p.min()) >= 0
    close(p.sum(), 1.0, 1e-12)
    if reading == "union":
        assert float(p[0]) > 0


@FEW
@given(sizes=st.lists(st.integers(1, 300), min_size=3, max_size=7), seed=seeds, t=st.integers(1, 10), rule=rules)
def test_permuting_clients_permutes_pfedcs_weights(sizes: list[int], seed: int, t: int, rule: str) -> None:
    """The same client under another number, the same weights for the same classifiers."""
    n = len(sizes)
    heads, order = draw(n, 4, seed=seed), shuffled(seed, n)
    p = pfedcs_weights(heads, sizes, 0, t, select=rule)
    me = int((order == 0).nonzero())
    moved = pfedcs_weights(heads[order], [sizes[i] for i in order.tolist()], me, t, select=rule)
    close(moved, p[order], 1e-9)


@FEW
@given(
    sizes=st.lists(st.integers(1, 300), min_size=3, max_size=7),
    seed=seeds,
    t=st.integers(1, 10),
    rule=rules,
    power=st.integers(-6, 6),
)
def test_scaling_all_classifiers_changes_nothing(sizes: list[int], seed: int, t: int, rule: str, power: int) -> None:
    """Heads times c: relative distances, collaborators and weights stay."""
    heads = draw(len(sizes), 4, seed=seed)
    p = pfedcs_weights(heads, sizes, 0, t, select=rule)
    scaled = pfedcs_weights(2.0**power * heads, sizes, 0, t, select=rule)
    assert torch.equal(p > 0, scaled > 0)
    close(scaled, p, 1e-12)


@FEW
@given(seed=seeds, n=st.integers(2, 9), t=st.integers(1, 15))
def test_somebody_is_always_within_the_threshold(seed: int, n: int, t: int) -> None:
    """tau lies between the least and the mean distance, so the nearest passes."""
    d = row_distances(draw(n + 1, 4, seed=seed), torch.tensor([0]))[0][1:]
    tau = threshold(d, t, 10)
    assert float(d.min()) <= tau <= float(d.mean()) + 1e-15
    for rule in ("kmeans", "hier"):
        assert bool(candidates(d, rule)[d.argmin()])


# ---- grouping ------------------------------------------------------------------------------------------------------
@FEW
@given(d=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=12))
def test_groups_are_never_empty_and_below_each_other(d: list[float]) -> None:
    """Exact two-means: the lower group holds the least number and lies below the other; no rule leaves nobody."""
    x = torch.tensor(d, dtype=torch.float64)
    low = two_means(x)
    assert bool(low[x.argmin()])
    assert bool(low.all()) or float(x[low].max()) < float(x[~low].min())
    assert all(bool(candidates(x, rule).any()) for rule in ("gmm", "kmeans", "hier"))


@FEW
@given(seed=seeds, m=st.integers(1, 20), k=st.integers(1, 5))
def test_lloyd_never_gets_worse(seed: int, m: int, k: int) -> None:
    """The weighted sum of squared distances after K-means is at most that of the start."""
    points, weights, start = draw(m, 3, seed=seed), draw(m, seed=seed + 1).abs() + 0.1, draw(k, 3, seed=seed + 2)

    def cost(centres: torch.Tensor) -> float:
        at = centres[nearest(points, centres)].double()
        return float((weights.double() * (points.double() - at).square().sum(1)).sum())

    labels, centres = lloyd(points, weights, start)
    assert cost(centres) <= cost(start) + 1e-6
    for j in set(range(k)) - set(labels.tolist()):
        close(centres[j], centres[j])
        assert bool(torch.isfinite(centres[j]).all())


# ---- CFIC ----------------------------------------------------------------------------------------------------------
@FEW
@given(counts=st.lists(st.integers(0, 50), min_size=2, max_size=12).filter(any), factor=st.integers(1, 9))
def test_label_feature_sees_shares_only(counts: list[int], factor: int) -> None:
    """Multiplying all counts changes nothing; the feature is a label of largest deviation, or -1 if there is none."""
    feature = label_feature(torch.tensor(counts))
    assert label_feature(torch.tensor(counts) * factor) == feature
    far = [abs(c * len(counts) - sum(counts)) for c in counts]
    assert (feature == -1) == (max(far) == 0)
    assert feature == -1 or far[feature] == max(far)


@FEW
@given(
    labels=st.lists(st.integers(-2, 6), min_size=1, max_size=40),
    budget=st.integers(1, 45),
    quota=st.sampled_from(["equal", "paper"]),
    seed=seeds,
)
def test_even_cohorts_meet_the_budget(labels: list[int], budget: int, quota: str, seed: int) -> None:
    """Exactly the budget (or everybody), distinct, ascending, from the available ids."""
    ids = 3 * torch.arange(len(labels)) + 1
    cohort = even_cohort(ids, torch.tensor(labels), budget, quota, torch.Generator().manual_seed(seed))
    assert len(cohort) == min(budget, len(labels))
    assert bool(torch.isin(cohort, ids).all())
    assert torch.equal(cohort, cohort.unique())


# ---- means and distances -------------------------------------------------------------------------------------------
@FEW
@given(seed=seeds, m=st.integers(1, 8), p=st.integers(1, 40))
def test_means_against_numpy(seed: int, m: int, p: int) -> None:
    """mix, weighted_mean and group_mean are what NumPy computes in float64."""
    rows, weights = draw(m, p, seed=seed), draw(m, seed=seed + 1).abs() + 0.01
    x, w = rows.double().numpy(), weights.double().numpy()
    close(mix(weights[None], rows)[0], w @ x, 1e-5)
    close(weighted_mean(rows, weights), np.average(x, axis=0, weights=w), 1e-6)
    group = torch.randint(0, 3, (m,), generator=torch.Generator().manual_seed(seed))
    otherwise = draw(3, p, seed=seed + 2)
    got = group_mean(rows, weights, group, otherwise)
    for g in range(3):
        members = group.numpy() == g
        wanted = np.average(x[members], axis=0, weights=w[members]) if members.any() else otherwise[g].numpy()
        close(got[g], wanted, 1e-6)


@FEW
@given(seed=seeds, m=st.integers(2, 7), p=st.integers(2, 300), base=st.floats(-100, 100))
def test_centred_distances_of_close_models(seed: int, m: int, p: int, base: float) -> None:
    """A common base plus 1e-3 noise: relative error below 1e-6 against summed differences."""
    rows = base + 1e-3 * draw(m, p, seed=seed)
    exact, gram = squares_apart(rows), squared_distances(rows)
    others = ~torch.eye(m, dtype=torch.bool) & (exact > 0)
    assert float(((gram - exact).abs()[others] / exact[others]).max() if bool(others.any()) else 0) < 1e-6


@FEW
@given(
    a=st.lists(st.one_of(st.integers(0, 99), st.sampled_from(["x", "y"])), max_size=4),
    b=st.lists(st.one_of(st.integers(0, 99), st.sampled_from(["x", "y"])), max_size=4),
    seed=st.integers(0, 9),
)
def test_keys_differ_when_arguments_do(a: list[int | str], b: list[int | str], seed: int) -> None:
    assert (key(seed, *a) == key(seed, *b)) == (a == b)


# ---- downloads -----------------------------------------------------------------------------------------------------
@FEW
@given(given_=st.lists(st.booleans(), min_size=1, max_size=6), prefix=st.sampled_from(["a", "inner"]))
def test_rows_go_to_those_they_are_for(given_: list[bool], prefix: str) -> None:
    """Receiver i gets the shared tensors and row i of what is given to it; a prefix changes names only."""
    mask = torch.tensor(given_)
    numbers = torch.arange(float(len(given_)))
    sent = to_all(shared=torch.ones(1)) | to_each(given=mask, some=numbers) | to_each(each=numbers)
    for i, has in enumerate(given_):
        row = sent.row(i)
        assert set(row) == {"shared", "each", *(["some"] if has else [])}
        assert float(row.each) == i
        assert sent.under(prefix).row(i) == row.under(prefix)


# ---- whole methods -------------------------------------------------------------------------------------------------
def of_size(n: int, seed: int) -> list[int]:
    return [5 + int(v) for v in torch.randint(0, 20, (n,), generator=torch.Generator().manual_seed(seed))]


METHODS: list[Callable[[], Method]] = [
    FedPer,
    lambda: DAPFL(variant="v1"),
    lambda: CFIC(beta=0.5),
    lambda: PFedCS(beta=5),
    lambda: CAM(IFCA(clusters=2), warmup=0),
]


@pytest.mark.parametrize("make", METHODS)
@LESS
@given(seed=st.integers(0, 1000))
def test_permuting_clients_permutes_what_they_predict_with(make: Callable[[], Method], seed: int) -> None:
    """Two rounds of full-batch training: the same client under another number ends with the same model, to rounding."""
    n, order = 4, shuffled(seed, 4)
    data = [blobs(size, [0.2, 0.3, 0.5], seed + i) for i, size in enumerate(of_size(n, seed))]
    net, training = mlp(), Training(steps=2, lr=0.1, batch_size=1000)
    here = ByHand(make(), net, data, training=training)
    there = ByHand(make(), net, [data[i] for i in order.tolist()], training=training)
    for hand in (here, there):
        hand.play()
        hand.play()
    for k, i in enumerate(order.tolist()):
        a, b = here.used(i), there.used(k)
        x = data[i].x
        close(there.method.predict(net, b, x), here.method.predict(net, a, x), 1e-4)


@pytest.mark.parametrize("make", METHODS)
@LESS
@given(seed=st.integers(0, 1000))
def test_clients_with_the_same_data_get_the_same_model(make: Callable[[], Method], seed: int) -> None:
    data = [blobs(9, [0.6, 0.2, 0.2], seed), blobs(14, [0.2, 0.2, 0.6], seed + 1)]
    net = mlp()
    hand = ByHand(make(), net, [data[0], data[1], data[0]], training=Training(steps=2, lr=0.1, batch_size=1000))
    hand.play()
    hand.play()
    x = data[0].x
    predict = hand.method.predict
    close(predict(net, hand.used(0), x), predict(net, hand.used(2), x), 1e-4)
