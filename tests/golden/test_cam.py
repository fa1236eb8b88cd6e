"""Fed-CAM against numbers worked out by hand.

Formulas (NeurIPS 2023). A client predicts with ``F = h(x; global) + f(x; cluster)``, a sum of logits. Eq. 2: its
cluster is the one whose f, *added to h*, has the least loss on its training data. Eq. 6: ``Theta_k <- (1 - s_k)
Theta_k + sum_i n_i/N theta_i`` with N the participants' samples and s_k the fraction of them that the members hold; it
is ``update="damped"``, the preset "paper", and every test of it says so. The default is the members' mean, as in the
authors' package and in Eq. 11. Eq. 13: the pull of FeSEM-CAM,
``theta <- theta - eta (grad + lam (theta - Theta_k))``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from fedkin.capabilities import Grouped, Logs
from fedkin.capabilities.asks import asks
from fedkin.capabilities.groups import labels_of
from fedkin.capabilities.logs import numbers_of
from fedkin.capabilities.presets import preset as with_preset
from fedkin.capabilities.views import views_of
from fedkin.core import (
    Batch,
    Bundle,
    Client,
    ConfigError,
    Download,
    Method,
    MethodError,
    Net,
    Round,
    Samples,
    Train,
    Training,
    Work,
    head_loss,
    to_all,
    to_each,
)
from fedkin.methods import CAM, CFIC, DAPFL, IFCA, FedAvg, FedPer, FeSEM, get_method, get_title
from fedkin.methods.cfl import CFL
from fedkin.methods.fedsoft import FedSoft
from fedkin.methods.oracle import Oracle
from fedkin.methods.pfa import PFA
from toys import ByHand, ClientData, Run, close, copies, federation, logit_net, mlp, mlp_with_batchnorm, run, vector_net


def exact(request: Train, client: Client) -> Tensor:
    """argmin_w 1/2 (w + offset - 1)^2: the model that completes its partner to the target 1."""
    return 1 - request.per_sample.offset[0]


def total(hand: ByHand) -> float:
    """F = h + f of client 0 with the server's models."""
    return float(hand.server.model + hand.server["inner.centres"][0])


def scalars(method: CAM, clients: int, **kwargs) -> ByHand:
    """Clients of equal size; models that are one number, all 0 at the start."""
    hand = ByHand(method, vector_net(0.0), [copies(1.0, 4)] * clients, **kwargs)
    assert not bool(hand.server["inner.centres"].any())
    return hand


def own_clusters(up: Bundle) -> Bundle:
    """Every client in the cluster of its own number."""
    return up.but(**{"inner.cluster": torch.arange(len(up.model))})


# ---- the order of training -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("order", "update", "clients", "path"),
    [
        ("simultaneous", "damped", 1, [0.0, 2.0, 0.0, 2.0, 0.0]),
        ("simultaneous", "damped", 4, [0.0, 1.25, 0.9375, 1.015625, 0.996094]),
        ("simultaneous", "mean", 1, [0.0, 2.0, 0.0, 2.0, 0.0]),
        ("simultaneous", "mean", 4, [0.0, 2.0, 0.0, 2.0, 0.0]),
        ("cluster-first", "damped", 1, [0.0, 1.0, 1.0, 1.0, 1.0]),
        ("cluster-first", "mean", 1, [0.0, 1.0, 1.0, 1.0, 1.0]),
        ("global-first", "damped", 1, [0.0, 1.0, 1.0, 1.0, 1.0]),
        ("global-first", "mean", 1, [0.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_orders_with_exact_local_solves(order: str, update: str, clients: int, path: list[float]) -> None:
    """Target 1 from h = f = 0. One cluster (s = 1): trained at once, both models fill the same gap and F swings 0, 2,
    0, 2, under Eq. 6 as with the mean; one after the other it is there at once. Four clients in four clusters (s =
    1/4): under Eq. 6 each round multiplies the error by -1/4, with the mean it swings."""
    hand = scalars(CAM(IFCA(clusters=clients), warmup=0, order=order, update=update), clients, solve=exact)
    seen = [total(hand)]
    for _ in range(4):
        hand.play(change=own_clusters)
        seen.append(total(hand))
    close(seen, path)


@pytest.mark.parametrize(
    ("rho", "clients", "factor"),
    [(0.1, 10, 0.89), (0.1, 1, 0.8), (0.5, 10, 0.45), (0.5, 1, 0.0), (1.0, 10, -0.1), (1.0, 1, -1.0)],
)
def test_error_of_a_partial_fit(rho: float, clients: int, factor: float) -> None:
    """Local training that closes a fraction rho of the gap, members with a fraction s of the samples, Eq. 6: a
    simultaneous round multiplies the error by 1 - rho (1 + s)."""

    def partial(request: Train, client: Client) -> Tensor:
        return request.start + rho * (exact(request, client) - request.start)

    hand = scalars(CAM(IFCA(clusters=clients), warmup=0, update="damped"), clients, solve=partial)
    error = 1 - total(hand)
    for _ in range(2):
        hand.play(change=own_clusters)
        error *= factor
        close(1 - total(hand), error)


def test_each_model_is_trained_beside_the_other() -> None:
    """Simultaneous: h beside f as received and f beside h as received. Cluster first: h beside the trained f. Global
    first: f beside the trained h. The partner's logits are added, one row per training sample."""
    offsets = {}
    for order in ("simultaneous", "cluster-first", "global-first"):
        hand = ByHand(CAM(IFCA(clusters=1), warmup=0, order=order), vector_net(0.0), [copies(1.0, 3)])
        received = Bundle(model=torch.tensor([2.0]), **{"inner.centres": torch.tensor([[5.0]])})
        work, seen = hand.method.client_update(hand.client(0, received)), []
        asked = next(work)
        try:
            while True:
                group = asked if isinstance(asked, tuple) else (asked,)
                seen += [(float(r.start), float(r.per_sample.offset[0])) for r in group]
                assert all(r.per_sample.offset.shape == (3, 1) for r in group)
                trained = tuple(r.start + 0.5 for r in group)
                asked = work.send(trained if isinstance(asked, tuple) else trained[0])
        except StopIteration as end:
            close([float(end.value.model), float(end.value["inner.model"])], [2.5, 5.5])
        offsets[order] = seen
    assert offsets["simultaneous"] == [(2.0, 5.0), (5.0, 2.0)]
    assert offsets["cluster-first"] == [(5.0, 2.0), (2.0, 5.5)]
    assert offsets["global-first"] == [(2.0, 5.0), (5.0, 2.5)]


# ---- assignment ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("h", "f", "with_h", "alone", "picks", "alone_picks"),
    [
        ([0, 3, 0], [[4, 0, 0], [3, 0, 3.5]], [0.326563, 1.294377], [0.035976, 0.992699], 0, 0),
        ([0, 4, 0], [[3, 1, 0], [2, -3, 1.5]], [2.132845, 0.68027], [0.169846, 0.478262], 1, 0),
    ],
)
def test_assignment_uses_the_sum_of_logits(
    h: list[float], f: list[list[float]], with_h: list[float], alone: list[float], picks: int, alone_picks: int
) -> None:
    """Eq. 2, label 0: the cluster is chosen by CE(h + f_k). In the second case f alone would choose the other one."""
    label = torch.tensor([0])
    h_, f_ = torch.tensor(h, dtype=torch.float32), torch.tensor(f, dtype=torch.float32)
    close([F.cross_entropy((h_ + row)[None], label) for row in f_], with_h)
    hand = ByHand(CAM(IFCA(clusters=2), warmup=0), logit_net(3), [copies(1.0, 5)])
    client = hand.client(0, Bundle(model=h_, **{"inner.centres": f_}))
    inside = hand.method._within(client)
    close([inside.loss(row) for row in f_], with_h)
    close([client.loss(row) for row in f_], alone)
    chosen = hand.method.personalize(client)
    assert int(chosen.cluster) == picks
    assert torch.equal(chosen["inner.model"], f_[picks])
    plain = IFCA(clusters=2).personalize(hand.client(0, Bundle(centres=f_)))
    assert int(plain.cluster) == alone_picks
    measured_alone = CAM(IFCA(clusters=2), warmup=0, choose_on="cluster").personalize(client)
    assert int(measured_alone.cluster) == alone_picks
    g, asked = next(hand.method.client_update(client))
    assert torch.equal(asked.start, f_[picks])
    assert torch.equal(g.start, h_)


def test_prediction_is_the_sum_of_logits() -> None:
    """One softmax over h + f."""
    hand = ByHand(CAM(IFCA(clusters=1), warmup=0), logit_net(3), [copies(1.0, 2)])
    received = Bundle(model=torch.tensor([0.0, 4, 0]), **{"inner.centres": torch.tensor([[2.0, -3, 1.5]])})
    b = hand.method.personalize(hand.client(0, received))
    close(hand.method.predict(hand.net, b, torch.ones(1, 1)), [[2.0, 1.0, 1.5]])


# ---- aggregation ---------------------------------------------------------------------------------------------------
THETA = torch.tensor([[2.0], [6.0], [10.0]])
GLOBAL = torch.tensor([[1.0], [2.0], [3.0]])


@pytest.mark.parametrize(("update", "centres"), [("damped", [2.0, 7.6, 7.0]), ("mean", [5.0, 10.0, 7.0])])
def test_aggregation(update: str, centres: list[float]) -> None:
    """n = (10, 30, 60), clusters {0, 1}, {2}, {}; old models 0, 4, 7; uploads 2, 6, 10. Eq. 6: .6 * 0 + .1 * 2 + .3 * 6
    = 2, .4 * 4 + .6 * 10 = 7.6; the members' means are 5 and 10; an empty cluster stays. The global model is
    (10 + 60 + 180)/100 = 2.5."""
    hand = ByHand(
        CAM(IFCA(clusters=3), warmup=0, update=update), vector_net(0.0), [copies(1.0, n) for n in (10, 30, 60)]
    )
    hand.server = hand.server.but(**{"inner.centres": torch.tensor([[0.0], [4.0], [7.0]])})
    up = Bundle(model=GLOBAL, **{"inner.model": THETA, "inner.cluster": torch.tensor([0, 0, 1])})
    hand.t = 1
    s = hand.method.aggregate(hand.server, hand.at("aggregate", range(3)), up)
    close(s["inner.centres"].flatten(), centres)
    close(s.model, [2.5])


@pytest.mark.parametrize("update", ["damped", "mean"])
def test_one_cluster_is_the_plain_average(update: str) -> None:
    """One cluster holds all samples: Eq. 6 and the mean are both (20 + 180 + 600)/100 = 8."""
    hand = ByHand(
        CAM(IFCA(clusters=1), warmup=0, update=update), vector_net(0.0), [copies(1.0, n) for n in (10, 30, 60)]
    )
    hand.server = hand.server.but(**{"inner.centres": torch.tensor([[-50.0]])})
    up = Bundle(model=GLOBAL, **{"inner.model": THETA, "inner.cluster": torch.zeros(3, dtype=torch.int64)})
    s = hand.method.aggregate(hand.server, hand.at("aggregate", range(3), 1), up)
    close(s["inner.centres"], [[8.0]])


def test_absent_clients_do_not_damp() -> None:
    """Eq. 6 goes by the participants: of the clients above, 0 and 2 take part, with 10 and 60 of 70 samples. Cluster 0
    moves by 1/7 from 0 to 2/7, cluster 1 by 6/7 from 4 to 64/7; were client 1 counted, it would be .2 and 7.6."""
    hand = ByHand(
        CAM(IFCA(clusters=3), warmup=0, update="damped"), vector_net(0.0), [copies(1.0, n) for n in (10, 30, 60)]
    )
    hand.server = hand.server.but(**{"inner.centres": torch.tensor([[0.0], [4.0], [7.0]])})
    up = Bundle(model=GLOBAL[[0, 2]], **{"inner.model": THETA[[0, 2]], "inner.cluster": torch.tensor([0, 1])})
    s = hand.method.aggregate(hand.server, hand.at("aggregate", [0, 2], 1), up)
    close(s["inner.centres"].flatten(), [2 / 7, 64 / 7, 7.0])


# ---- FeSEM-CAM -----------------------------------------------------------------------------------------------------
def slope(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """A loss whose gradient is 4 everywhere."""
    return 4 * w.sum()


def test_pull_towards_the_centre() -> None:
    """Eq. 13 with theta = 2, Theta = 1, gradient 4, eta = lam = .1: 2 - .1 (4 + .1) = 1.59. With n_i/n on the gradient
    alone it would be 1.988; with a detached penalty 1.6."""
    method = CAM(FeSEM(clusters=1, lam=0.1), warmup=0, warmup_of="cluster", update="mean")
    hand = ByHand(method, vector_net(0.0), [copies(1.0, 4)], training=Training(steps=1, lr=0.1), loss=slope)
    client = hand.client(0, Bundle(model=torch.tensor([0.0]), **{"inner.model": torch.tensor([1.0])}))
    _, asked = next(method.client_update(client))
    close(hand.train(asked.but(start=torch.tensor([2.0])), client), [1.59])


def test_clients_restart_from_their_centre() -> None:
    """Algorithm 1 puts theta_i back to the cluster's model: each round adds 1 to f on client 0 and 3 on client 1; both
    start the second one at the centre 2, and no cluster model is kept."""
    starts: list[float] = []

    def solve(request: Train, client: Client) -> Tensor:
        if request.center is not None:
            starts.append(float(request.start))
        return request.start + (0.0 if request.center is None else 1.0 + 2.0 * client.id)

    hand = scalars(CAM(FeSEM(clusters=1), warmup=0), 2, solve=solve)
    hand.play()
    hand.play()
    close(starts[2:], [2.0, 2.0])
    assert not hand.kept[0]


# ---- warm-up -------------------------------------------------------------------------------------------------------
IFCA_CAM = CAM(IFCA(clusters=2))
FESEM_CAM = CAM(FeSEM(clusters=2), warmup_of="cluster", update="mean")


@pytest.mark.parametrize(
    ("method", "h_steps", "f_steps"), [(IFCA_CAM, 1000, 700), (FESEM_CAM, 700, 1000), (FedAvg(), 1000, 0)]
)
def test_budget_of_local_steps(method: Method, h_steps: int, f_steps: int) -> None:
    """100 rounds, the first 30 warm-up, 10 steps a round and model: the warm-up counts in the run. IFCA-CAM trains h in
    all 100 rounds and f in 70; FeSEM-CAM the other way round; FedAvg one model in 100."""
    counts = {"h": 0, "f": 0}

    def counting(request: Train, client: Client) -> Tensor:
        of_f = "model" not in client.received or not torch.equal(request.start, client.received.model)
        counts["f" if of_f else "h"] += request.training(client.training).steps_for(len(client.data))
        return request.start + (0.001 if of_f else 1.0)

    hand = ByHand(method, mlp(), [federation()[0].train], training=Training(steps=10), total=100, solve=counting)
    for _ in range(100):
        hand.play()
    assert counts == {"h": h_steps, "f": f_steps}


@pytest.mark.parametrize(
    ("method", "down", "up"),
    [(FedAvg(), 1, 1), (IFCA(clusters=2), 2, 1), (IFCA_CAM, 3, 2), (FeSEM(clusters=2), 1, 1), (FESEM_CAM, 2, 2)],
)
def test_models_on_the_wire(method: Method, down: int, up: int) -> None:
    """Models per client and joint round: FedAvg 1 and 1, IFCA K and 1, IFCA-CAM K + 1 and 2, FeSEM 1 and 1, FeSEM-CAM 2
    and 2."""
    net = mlp()
    hand = ByHand(method, net)
    for _ in range(4):
        hand.play()
    sent = hand.download(range(5)).row(0)
    assert sum(t.numel() for t in sent.values()) // net.size == down
    got = {n: t[0] for n, t in hand.play().items()}
    assert sum(t.numel() for t in got.values()) // net.size == up


def test_cluster_models_start_apart() -> None:
    """Equal starts would tie for ever; zeros would never move apart: the starts differ from each other and from h."""
    s = ByHand(CAM(IFCA(clusters=3)), mlp(), [federation()[0].train]).server
    rows = torch.cat([s.model[None], s["inner.centres"]])
    assert len(rows.unique(dim=0)) == 4
    assert bool(rows.any(1).all())
    hand = ByHand(CAM(FedSoft(clusters=2), warmup=0), mlp(), [federation()[0].train])
    own = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))[1].start
    rows = torch.cat([own[None], hand.server.model[None], hand.server["inner.centres"]])
    assert len(rows.unique(dim=0)) == 4


def test_warm_up_of_cluster_models_trains_alone_from_one_start() -> None:
    """FeSEM-CAM: each client trains f alone from one common start; after the last warm-up round the first clusters are
    formed of all warmed-up models, and the client's model in the evaluation is its own f until then."""
    hand = ByHand(CAM(FeSEM(clusters=2), warmup=2, warmup_of="cluster"), vector_net(0.5), [copies(1.0, 4)] * 3)
    jumps = iter([0.0, 1.0, 10.0, 0.0, 1.0, 10.0])
    hand.solve = lambda request, client: request.start + next(jumps)
    hand.play()
    close(hand.server.own, [[0.5], [1.5], [10.5]])
    close(hand.used(1).alone, [1.5])
    hand.play()
    assert "own" not in hand.server
    labels = labels_of(hand.method, hand.server, hand.at("evaluate", range(3))).tolist()
    assert labels[0] == labels[1] != labels[2]
    close(hand.server["inner.centres"].flatten().sort().values, [1.5, 20.5])


def test_the_first_clusters_are_means_under_eq_6_as_well() -> None:
    """Three clients of 4 samples, models 1.5, 2.5 and 10.5 after one round of warm-up from 0.5: the first centres are
    2 and 10.5. Eq. 6 moves cluster models that there are; there are none yet, and the common start 0.5 is no part of
    them (damped they would be .5 + 2/3 * 1.5 = 1.5 and .5 + 10/3)."""
    hand = ByHand(
        CAM(FeSEM(clusters=2), warmup=1, warmup_of="cluster", update="damped"), vector_net(0.5), [copies(1.0, 4)] * 3
    )
    jumps = iter([1.0, 2.0, 10.0])
    hand.solve = lambda request, client: request.start + next(jumps)
    hand.play()
    close(hand.server["inner.centres"].flatten().sort().values, [2.0, 10.5])


def test_newcomer_warms_up_at_once() -> None:
    """A client that comes after the warm-up of cluster models trains for all its rounds in one."""
    method = CAM(FeSEM(clusters=2), warmup=3, warmup_of="cluster")
    hand = ByHand(method, training=Training(steps=4, batch_size=5), present=4, total=10)
    for _ in range(4):
        hand.play(range(4))
    hand.join(5)
    sent = hand.download([0, 4])
    assert ["warmup" in sent.row(i) for i in range(2)] == [False, True]
    request = next(method.client_update(hand.client(4, sent.row(1))))
    assert request.training(hand.training).steps == 12
    hand.play([0, 4])
    assert "warmup" not in hand.download([4]).row(0)


def test_a_newcomers_warm_up_is_counted_as_the_training_settings_count() -> None:
    """Three rounds of warm-up: of 4 steps 12 steps; of 2 epochs 6 epochs, which on 11 samples
    in batches of 5 are 18 steps, not 6 steps or 2 epochs."""
    for training, steps in ((Training(steps=4, batch_size=5), 12), (Training(epochs=2, batch_size=5), 18)):
        method = CAM(FeSEM(clusters=2), warmup=3, warmup_of="cluster")
        hand = ByHand(method, training=training, present=4)
        for _ in range(3):
            hand.play(range(4))
        hand.join(5)
        request = next(method.client_update(hand.client(4, hand.download([4]).row(0))))
        assert isinstance(request, Train)
        assert request.training(training).steps_for(len(hand.data[4])) == steps


def test_a_late_client_trains_h_beside_its_warmed_up_model() -> None:
    """A newcomer at h = 2 and centre 1: it trains f alone from the start 0.5 of every warm-up, three rounds' worth, to
    10, then h beside that model's logits 10; not beside the start's, the centre's or none."""
    method = CAM(FeSEM(clusters=1), warmup=3, warmup_of="cluster")
    hand = ByHand(method, vector_net(0.5), [copies(1.0, 4)])
    received = Bundle(model=torch.tensor([2.0]), warmup=torch.tensor(3), **{"inner.model": torch.tensor([1.0])})
    work = method.client_update(hand.client(0, received))
    alone = next(work)
    assert isinstance(alone, Train)
    assert "offset" not in alone.per_sample
    close(alone.start, [0.5])
    then = work.send(torch.tensor([10.0]))
    assert isinstance(then, Train)
    close(then.start, [2.0])
    close(then.per_sample.offset, [[10.0]] * 4)
    with pytest.raises(StopIteration) as end:
        work.send(torch.tensor([7.0]))
    close([float(end.value.value.model), float(end.value.value["inner.model"])], [7.0, 10.0])


# ---- around every clustered method ---------------------------------------------------------------------------------
ONE_CLUSTER = {
    "ifca": IFCA(clusters=1),
    "fesem": FeSEM(clusters=1),
    "cfl": CFL(eps2=1e9),
    "pfa": PFA(clusters=1),
    "oracle": Oracle(),
}


@pytest.mark.parametrize("update", ["damped", "mean"])
def test_one_cluster_is_one_cluster_whatever_makes_it(update: str) -> None:
    """IFCA and FeSEM with K = 1, CFL that never divides, PFA with one group and Oracle with one true group are the same
    inside the wrapper, bit for bit: global models, and what every client predicts in every round."""
    shards = [ClientData(s.train, s.validation, s.test, group=0) for s in federation()]
    runs = [run(CAM(inner, warmup=1, update=update), mlp(), shards) for inner in ONE_CLUSTER.values()]
    for other in runs[1:]:
        assert torch.equal(other.state.model, runs[0].state.model)
        for a, b in zip(other.reports, runs[0].reports, strict=True):
            assert all(torch.equal(a.evaluation[i].test, b.evaluation[i].test) for i in range(5))


@pytest.mark.parametrize("inner", [Oracle(), FeSEM(clusters=2), CFL(after=0, eps1=9.0, eps2=0.0)], ids=repr)
def test_clusters_of_models_warmed_up_alone(inner: Method) -> None:
    """Oracle, FeSEM and CFL make their first clusters of models that were trained alone from one start; a method that
    asks its clients cannot."""
    groups = [0, 1, 0, 1, 0]
    method = CAM(inner, warmup=2, warmup_of="cluster")
    hand = ByHand(method, training=Training(batch_size=5, lr=0.1), group=groups)
    hand.play()
    hand.play()
    assert "own" not in hand.server
    up = hand.play()
    assert torch.isfinite(up.model).all()
    if isinstance(inner, Oracle):
        assert labels_of(hand.method, hand.server, hand.at("evaluate", range(5))).tolist() == groups


@pytest.mark.parametrize("inner", [IFCA(), PFA(), FedSoft()], ids=lambda m: type(m).__name__)
def test_who_cannot_group_models_is_refused_as_a_cluster_warm_up(inner: Method) -> None:
    """Said when the wrapper is made."""
    with pytest.raises(ConfigError):
        CAM(inner, warmup_of="cluster")


def test_oracle_clusters_by_hand() -> None:
    """n = (10, 30, 60), true groups {0, 1}, {2}; the numbers of the aggregation above: Eq. 6 gives 2 and 7.6."""
    method = CAM(Oracle(), warmup=0, update="damped")
    hand = ByHand(method, vector_net(0.0), [copies(1.0, n) for n in (10, 30, 60)], group=[0, 0, 1])
    hand.server = hand.server.but(**{"inner.models": torch.tensor([[0.0], [4.0]])})
    s = method.aggregate(hand.server, hand.at("aggregate", range(3), 1), Bundle(model=GLOBAL, **{"inner.model": THETA}))
    close(s["inner.models"].flatten(), [2.0, 7.6])
    close(s.model, [2.5])


# ---- around FedSoft: surveys, draws beside the ids, models of the clients' own -------------------------------------
def test_a_survey_measures_the_sum() -> None:
    """The second assignment above with FedSoft inside: h + f_1 fits the client's samples best, f_0 would alone."""
    h, f = torch.tensor([0.0, 4, 0]), torch.tensor([[3.0, 1, 0], [2, -3, 1.5]])
    for choose_on, share in (("sum", [0.0, 1.0]), ("cluster", [1.0, 0.0])):
        hand = ByHand(CAM(FedSoft(clusters=2), warmup=0, choose_on=choose_on), logit_net(3), [copies(1.0, 5)] * 2)
        hand.server = hand.server.but(model=h, **{"inner.centres": f})
        sent = asks(hand.method, "round").question(hand.method, hand.server, hand.at("survey", [0, 1], 1))
        assert sent is not None
        assert sorted(sent.row(0)) == ["inner.centres", "model"]
        close(hand.ask()["inner.share"], [share] * 2)
        close(hand.server["inner.u"], [[max(v, 1e-4) for v in share]] * 2)


def test_nobody_is_asked_in_the_warm_up_and_only_the_asked_are_sent_the_global_model() -> None:
    """One round of warm-up: no survey. In the next everybody is asked, as nobody has answered; client 4, who comes
    later, is then the only one to be sent anything."""
    method = CAM(FedSoft(clusters=2, tau=50), warmup=1)
    hand = ByHand(method, present=4)
    assert asks(hand.method, "round").question(hand.method, hand.server, hand.at("survey", range(4), 1)) is None
    hand.play(range(4))
    assert len(hand.ask(range(4))["inner.share"]) == 4
    hand.join(5)
    sent = asks(hand.method, "round").question(hand.method, hand.server, hand.at("survey", range(5), 3))
    assert sent is not None
    assert [bool(sent.row(i)) for i in range(5)] == [False] * 4 + [True]
    assert torch.equal(sent.row(4).model, hand.server.model)


def test_draws_reach_the_wrapped_method() -> None:
    """Three clients at f = 2, 6, 10; drawn for centre 0: 0 and 1, for centre 1: 2. Plain means 4 and 10; damped, a
    centre moves by its share of the draws, 2/3 and 1/3: from 0 to 8/3, from 4 to 6. h is the mean of all by samples."""
    for update, centres in (("mean", [4.0, 10.0]), ("damped", [8 / 3, 6.0])):
        method = CAM(FedSoft(clusters=2), warmup=0, update=update)
        hand = ByHand(method, vector_net(0.0), [copies(1.0, n) for n in (10, 30, 60)])
        hand.server = hand.server.but(**{"inner.centres": torch.tensor([[0.0], [4.0]])})
        r = hand.at("aggregate", range(3), 1).but(
            drawn=Bundle(chosen=torch.tensor([[True, False], [True, False], [False, True]]))
        )
        s = method.aggregate(hand.server, r, Bundle(model=GLOBAL, **{"inner.model": THETA}))
        close(s["inner.centres"].flatten(), centres)
        close(s.model, [2.5])


def test_sampling_is_uniform_in_the_warm_up_and_the_wrapped_methods_afterwards() -> None:
    """FedAvg's cohort while only h is trained; then FedSoft's draw, with who was drawn for which centre."""
    method = CAM(FedSoft(clusters=2), warmup=1)
    hand = ByHand(method, cohort=2)
    first = method.sample(hand.server, hand.at("sample", range(5), 1))
    assert torch.equal(first, FedAvg().sample(Bundle(), hand.at("sample", range(5), 1)))
    second = method.sample(hand.server, hand.at("sample", range(5), 2))
    assert second.chosen.shape == (len(second.ids), 2)


def test_own_models_live_inside_and_their_views_too() -> None:
    """FedSoft's own model is kept under "inner." and trained on from there; its view is h plus the best centre."""
    starts = []

    def solve(request: Train, client: Client) -> Tensor:
        if request.center is not None:
            starts.append(float(request.start))
        return request.start + (7.0 if request.center is not None else 1.0)

    hand = ByHand(CAM(FedSoft(clusters=1), warmup=0), vector_net(0.0), [copies(1.0, 4)], solve=solve)
    chosen = Bundle(chosen=torch.ones(1, 1, dtype=torch.bool))
    hand.play(drawn=chosen)
    hand.play(drawn=chosen)
    assert starts == [0.0, 7.0]
    close(hand.kept[0]["inner.model"], [14.0])
    sent = hand.method.deliver(hand.server, hand.at("evaluate", [0])).row(0)
    client = hand.client(0, sent)
    close(hand.method.predict(hand.net, hand.method.personalize(client), torch.ones(1, 1)), [[2.0 + 14.0]])
    view = views_of(hand.method, client)["centre"]
    close(hand.method.predict(hand.net, view, torch.ones(1, 1)), [[2.0 + 14.0]])
    warm = ByHand(CAM(FedSoft(clusters=1), warmup=2), vector_net(0.0), [copies(1.0, 4)])
    assert views_of(warm.method, warm.client(0, warm.download([0]).row(0))) == {}


@pytest.mark.parametrize(
    ("order", "update", "path"),
    [
        ("simultaneous", "damped", [2.0, 0.0, 2.0]),
        ("simultaneous", "mean", [2.0, 0.0, 2.0]),
        ("cluster-first", "mean", [1.0, 1.0, 1.0]),
        ("global-first", "mean", [1.0, 1.0, 1.0]),
    ],
)
def test_damping_does_not_reach_models_of_the_clients_own(order: str, update: str, path: list[float]) -> None:
    """Four clients, four centres, exact solves of target 1 with FedSoft's pull off. Each predicts with h plus its own
    model, which Eq. 6 does not slow down: trained at once F swings 0, 2, 0, 2 as without it (IFCA's settles, above);
    one after the other it is there at once. So around FedSoft: an order, and plain means."""
    method = CAM(FedSoft(clusters=4, lam=0.0), warmup=0, order=order, update=update)
    hand = ByHand(method, vector_net(0.0), [copies(1.0, 4)] * 4, solve=exact)
    chosen = Bundle(chosen=torch.eye(4, dtype=torch.bool))
    for wanted in path:
        hand.play(drawn=chosen)
        b = hand.used(0)
        close(b.model + b["inner.model"], [wanted])


# ---- the program behind the paper's tables (fedbase 0.10.3) --------------------------------------------------------
def fedbase(**fields: Any) -> CAM:
    return with_preset(
        CAM, "fedbase-0.10.3-ifca", inner=IFCA(clusters=2, choose_by="accuracy", assign="after"), warmup=0, **fields
    )


def test_entries_of_the_catalogue() -> None:
    """IFCA-CAM takes the members' mean, as the authors' package does; the printed Eq. 6 has an entry of its own; and
    a run made in Python is called what it is."""
    assert get_method("ifca-cam") == CAM(IFCA(), warmup_of="global", order="simultaneous", update="mean")
    assert get_method("ifca-cam-eq6") == CAM(IFCA(), warmup_of="global", order="simultaneous", update="damped")
    assert get_method("fesem-cam") == CAM(FeSEM(lam=0.01), warmup_of="cluster", update="mean")
    assert CAM(IFCA(clusters=7), warmup=0).title == "IFCA-CAM" == get_title("ifca-cam")
    assert CAM(IFCA(clusters=7), update="damped").title == "IFCA-CAM (Eq. 6)" == get_title("ifca-cam-eq6")


def test_the_program_chooses_after_training_by_accuracy_alone() -> None:
    """h = (0, 4, 0), label 0, f_0 = (3, 1, 0), f_1 = (2, -3, 1.5). Eq. 2 chooses f_1 and trains it. By accuracy of f
    alone both are right: the tie goes to the last, f_1, though f_0 has the smaller loss. It is chosen for the upload
    and the next round; the first round trains a start of the client's own, which is neither."""
    h, f = torch.tensor([0.0, 4, 0]), torch.tensor([[3.0, 1, 0], [2, -3, 1.5]])
    hand = ByHand(fedbase(), logit_net(3), [copies(1.0, 5)] * 2)
    hand.server = hand.server.but(model=h, **{"inner.centres": f})
    own = [next(hand.method.client_update(hand.client(i, hand.download([i]).row(0)))).start for i in range(2)]
    assert not any(torch.equal(own[0], other) for other in (own[1], f[0], f[1], hand.net.w0))
    assert hand.play()["inner.cluster"].tolist() == [1, 1]
    assert hand.kept[0]["inner.cluster"] == 1
    hand.server = hand.server.but(**{"inner.centres": torch.tensor([[5.0, 0, 0], [0.0, 5, 0]])})
    asked = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    close(asked.start, [0.0, 5, 0])  # what it chose after its last round ...
    assert hand.play()["inner.cluster"].tolist() == [0, 0]  # ... and what it goes to now: only f_0 is right
    assert int(hand.used(0).cluster) == 0


# ---- what must not happen ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["simultaneous", "cluster-first", "global-first"])
def test_the_frozen_partner_does_not_change(order: str) -> None:
    """Parameters and running statistics of the partner stay bit for bit as they were, its logits come from eval mode,
    and no graph leads into it."""
    net, shard = mlp_with_batchnorm(), federation()[1]
    hand = ByHand(
        CAM(IFCA(clusters=2), warmup=0, order=order), net, [shard.train], training=Training(batch_size=5, lr=0.1)
    )
    hand.play()
    sent = hand.download([0]).row(0)
    before = sent.owned()
    client = hand.client(0, sent)
    eval_logits = net(sent.model, shard.train.x)
    work = hand.method.client_update(client)
    asked = next(work)
    beside_h = asked[1] if isinstance(asked, tuple) else asked
    if order != "global-first":
        assert torch.equal(beside_h.per_sample.offset, eval_logits)
    assert not beside_h.per_sample.offset.requires_grad
    trained = tuple(hand.train(r, client) for r in asked) if isinstance(asked, tuple) else hand.train(asked, client)
    if order == "simultaneous":
        with pytest.raises(StopIteration):
            work.send(trained)
    else:
        hand.train(work.send(trained), client)
    for name in before:
        assert torch.equal(sent[name], before[name])


@dataclass(frozen=True)
class Nothing(Method):
    """A clustered method whose one cluster model stays zero."""

    def init(self, r: Round) -> Bundle:
        return Bundle(centre=torch.zeros(r.net.size))

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(centre=s.centre)

    def _labels(self, s: Bundle, r: Round) -> torch.Tensor:
        return torch.zeros(len(r.roster), dtype=torch.int64)

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.centre)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return s

    def personalize(self, c: Client) -> Bundle:
        return Bundle(model=c.received.centre)

    can = (Grouped(_labels),)


def test_a_zero_cluster_model_leaves_fedavg() -> None:
    """f = 0 adds nothing: the global model and every evaluation are FedAvg's, bit for bit."""
    shards = federation()
    ours, theirs = run(CAM(Nothing(), warmup=0), mlp(), shards), run(FedAvg(), mlp(), shards)
    assert torch.equal(ours.state.model, theirs.state.model)
    for a, b in zip(ours.reports, theirs.reports, strict=True):
        assert all(torch.equal(a.evaluation[i].test, b.evaluation[i].test) for i in range(5))


@pytest.mark.parametrize("method", [CAM(IFCA(clusters=2)), CAM(FeSEM(clusters=2), warmup_of="cluster")])
def test_clusters_never_look_at_test_labels(method: Method) -> None:
    """Other test labels: the same models and the same clusters, those of the evaluation included."""
    shards = federation()
    turned = [ClientData(s.train, s.validation, type(s.test)(s.test.x, (s.test.y + 1) % 3)) for s in shards]
    a, b = (run(method, mlp(), data, participation=1.0) for data in (shards, turned))
    assert all(torch.equal(a.state[n], b.state[n]) for n in a.state)
    assert all(
        (x.clusters is None and y.clusters is None) or torch.equal(x.clusters, y.clusters)
        for x, y in zip(a.reports, b.reports, strict=True)
    )


def test_pull_has_a_gradient_inside_the_wrapper() -> None:
    """lam = 0 and lam = 1 train differently (a penalty built of detached weights would not)."""
    a, b = (
        run(CAM(FeSEM(clusters=2, lam=lam), warmup=1), mlp(), federation(), participation=1.0) for lam in (0.0, 1.0)
    )
    assert not torch.equal(a.state["inner.centres"], b.state["inner.centres"])


@pytest.mark.parametrize("wrapped", ["CFIC", "DAPFL", "FedPer"])
def test_only_clustered_methods_are_wrapped(wrapped: str) -> None:
    """A method without clusters is refused when the wrapper is made, not three rounds later: CFIC draws from groups and
    has one model, DA-PFL has an affinity for each client."""
    make = {"CFIC": CFIC, "DAPFL": DAPFL, "FedPer": FedPer}[wrapped]
    with pytest.raises(ConfigError, match=wrapped):
        CAM(make())


@dataclass(frozen=True)
class Two(Method):
    """A clustered method that trains two models at once."""

    def init(self, r: Round) -> Bundle:
        return Bundle()

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(centre=r.w0)

    def _labels(self, s: Bundle, r: Round) -> torch.Tensor:
        return torch.zeros(len(r.roster), dtype=torch.int64)

    def client_update(self, c: Client) -> Work:
        a, b = yield (Train(c.received.centre), Train(c.received.centre))
        return Bundle(model=a + b)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return s

    can = (Grouped(_labels),)


def test_wrapping_a_method_that_trains_two_models() -> None:
    """Two trainings at once: an error that says what can be wrapped, not a wrong result."""
    hand = ByHand(CAM(Two(), warmup=0))
    with pytest.raises(MethodError):
        hand.play()


@dataclass(frozen=True)
class OwnLoss(Method):
    """A clustered method that trains by another loss, delivers something of its own and takes notes."""

    init = Two.init

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_each(centre=torch.zeros(len(r.ids), r.net.size))

    def deliver(self, s: Bundle, r: Round) -> Download:
        return to_each(centre=torch.ones(len(r.ids), r.net.size))

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.centre, loss=head_loss)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return s

    def _numbers(self, s: Bundle) -> dict[str, float]:
        return {"kept": float(len(s))}

    def personalize(self, c: Client) -> Bundle:
        return Bundle(model=c.received.centre)

    can = (*Two.can, Logs(_numbers))


def test_wrapping_a_method_with_a_loss_of_its_own() -> None:
    """A loss that does not know of the partner's logits would train f as if it were alone: an error instead."""
    hand = ByHand(CAM(OwnLoss(), warmup=0))
    with pytest.raises(MethodError, match="head_loss"):
        hand.play()


def test_what_is_delivered_and_noted_inside_comes_through() -> None:
    """Evaluation uses the wrapped method's own `deliver`, and its notes are the wrapper's."""
    hand = ByHand(CAM(OwnLoss(), warmup=0), vector_net(0.0), [copies(1.0, 3)])
    hand.t = 1
    close(hand.download([0]).row(0)["inner.centre"], [0.0])
    close(hand.used(0)["inner.model"], [1.0])
    assert numbers_of(hand.method, hand.server) == {"kept": 0.0}


@pytest.mark.parametrize("inner", ["ifca", "fesem", "cfl", "pfa", "fedsoft", "oracle"])
def test_any_clustered_method_is_wrapped_by_name(inner: str) -> None:
    """``NAME-cam`` is Fed-CAM around NAME, with a title of its own; the global model is averaged as ever."""
    method = get_method(f"{inner}-cam")
    assert isinstance(method, CAM)
    assert type(method.inner) is type(get_method(inner))
    assert get_title(f"{inner}-cam") == f"{get_title(inner)}-CAM" == method.title
    result = run(method, mlp(), federation(), rounds_=5)
    assert bool(result.state.model.isfinite().all())
    assert not any(report.refused for report in result.reports)


# ---- another program ------------------------------------------------------------------------------------------------
LAM = 0.5
VARIANTS = {
    "IFCA-CAM": CAM(IFCA(clusters=3), warmup=2),
    "IFCA-CAM (Eq. 6)": CAM(IFCA(clusters=3), warmup=2, update="damped"),
    "FeSEM-CAM": CAM(FeSEM(clusters=2, lam=LAM), warmup=2, warmup_of="cluster"),
}


def _fit(
    w: Tensor, data: Samples, who: tuple[int, int], beside: Tensor | None = None, lam: float = 0.0, **settings: int
) -> Tensor:
    """SGD on the loss of a model's logits, or of their sum with those of a model beside it, which stays as it is."""
    number, start = settings.get("number", 0), w
    training = Training(epochs=settings.get("epochs", 2), batch_size=5, lr=0.1)
    for index in plain.drawn(data, *who, training, number):
        x, y = data.x[index].double(), data.y[index]
        more = 0.0 if beside is None else plain.logits(beside, x)

        def of(v, x=x, y=y, more=more):
            return F.cross_entropy(plain.logits(v, x) + more, y) + lam / 2 * (v - start).square().sum()

        w = w - 0.1 * plain.gradient(of, w)
    return w


def _mean(models: dict[int, Tensor], n: Sequence[int]) -> Tensor:
    return sum(n[i] * w for i, w in models.items()) / sum(n[i] for i in models)


def _nearest(models: dict[int, Tensor], centres: list[Tensor]) -> dict[int, int]:
    return {i: min(range(len(centres)), key=lambda k: float((w - centres[k]).norm())) for i, w in models.items()}


def _partition(models: dict[int, Tensor], n: Sequence[int]) -> list[dict[int, Tensor]]:
    """The two groups with the least sum of squares, of all there are."""
    ids, best, least = sorted(models), [], float("inf")
    for at in product((0, 1), repeat=len(ids)):
        groups = [{i: models[i] for i, k in zip(ids, at, strict=True) if k == side} for side in (0, 1)]
        if all(groups):
            squares = sum(n[i] * float((w - _mean(g, n)).square().sum()) for g in groups for i, w in g.items())
            if squares < least:
                best, least = groups, squares
    return best


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_independent_program_gives_the_same(variant: str) -> None:
    """Two rounds of warm-up and eight of sums of logits in float64, on six or seven unequal clients; FeSEM-CAM's first
    groups are the best of all."""
    method, grouped = VARIANTS[variant], variant == "FeSEM-CAM"
    shards = federation((9, 7, 12, 6, 30, 8), seed=8) if grouped else federation((9, 23, 14, 30, 11, 17, 8))
    start = ByHand(method, mlp(), [s.train for s in shards]).server
    states: list[Bundle] = []
    keep = lambda server, _: states.append(server.state)  # noqa: E731
    found = run(method, mlp(), shards, rounds_=10, training=plain.TRAINING, each_round=keep)
    data, n = [s.train for s in shards], [len(s.train) for s in shards]
    h, f = start.model.double(), list(start["inner.centres"].double())
    if grouped:
        h, f = _fesem_cam(found, states[1]["inner.labels"], data, n, h, f)
    else:
        h, f = _ifca_cam(found, data, n, h, f, damped=method.update == "damped")
    assert plain.distance(found.state.model, h) < 2e-6
    assert plain.distance(found.state["inner.centres"], torch.stack(f)) < 2e-6


def _ifca_cam(
    found: Run, data: list[Samples], n: list[int], h: Tensor, f: list[Tensor], *, damped: bool
) -> tuple[Tensor, list[Tensor]]:
    sizes, usual, moved = [], {}, 0
    for t, cohort in plain.cohorts(found):
        if t <= 2:
            h = _mean({i: _fit(h, data[i], (i, t)) for i in cohort}, n)
            continue
        choice, hs, fs = {}, {}, {}
        for i in cohort:
            x, y = data[i].x.double(), data[i].y
            losses = [float(F.cross_entropy(plain.logits(h, x) + plain.logits(w, x), y)) for w in f]
            choice[i] = losses.index(min(losses))
            hs[i] = _fit(h, data[i], (i, t), beside=f[choice[i]])
            fs[i] = _fit(f[choice[i]], data[i], (i, t), beside=h, number=1)
        assert found.reports[t - 1].clusters[cohort].tolist() == list(choice.values())
        moved += sum(usual.get(i, k) != k for i, k in choice.items())
        usual |= choice
        h = _mean(hs, n)
        for k, old in enumerate(f):
            members = {i: w for i, w in fs.items() if choice[i] == k}
            sizes.append(len(members))
            if members:
                share = sum(n[i] for i in members) / sum(n[i] for i in cohort)
                f[k] = (1 - share) * old + share * _mean(members, n) if damped else _mean(members, n)
    assert set(sizes) == {0, 1, 2, 3}
    assert moved
    return h, f


def _fesem_cam(
    found: Run, names: Tensor, data: list[Samples], n: list[int], h: Tensor, f: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Of the library only which of the first two groups is called 0: K-means starts from a draw."""
    alone, labels, last, late, moved = f[0], {}, {}, 0, 0
    for t, cohort in plain.cohorts(found):
        if t <= 2:
            last |= {i: _fit(last.get(i, alone), data[i], (i, t)) for i in cohort}
            if t == 2:
                groups = _partition(last, n)
                if int(names[min(groups[0])]) == 1:
                    groups.reverse()
                labels = {i: k for k, g in enumerate(groups) for i in g}
                f = [_mean(g, n) for g in groups]
            continue
        hs, fs = {}, {}
        for i in cohort:
            if i in labels:
                centre = f[labels[i]]
                hs[i] = _fit(h, data[i], (i, t), beside=centre)
                fs[i] = _fit(centre, data[i], (i, t), beside=h, lam=LAM, number=1)
            else:
                fs[i] = _fit(alone, data[i], (i, t), epochs=4)
                hs[i] = _fit(h, data[i], (i, t), beside=fs[i], number=1)
                late += 1
        h, last = _mean(hs, n), last | fs
        before, labels, centres = labels, {}, f
        while (now := _nearest(last, centres)) != labels:
            labels = now
            groups = [{i: last[i] for i in last if labels[i] == k} for k in (0, 1)]
            centres = [_mean(g, n) if g else c for g, c in zip(groups, centres, strict=True)]
        moved += sum(labels[i] != k for i, k in before.items())
        f = [_mean(g, n) if (g := {i: fs[i] for i in cohort if labels[i] == k}) else f[k] for k in (0, 1)]
    assert late >= 1
    assert moved >= 2
    assert {i: int(k) for i, k in enumerate(found.state["inner.labels"]) if i in labels} == labels
    return h, f
