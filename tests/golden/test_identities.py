"""Methods that must be one another in a special case, through the real round loop.

Five clients of unequal sizes, three of them in each round. Where the arithmetic is the same, equality is bit for bit;
with and without batch normalisation.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fedkin
from fedkin.core import Method, Net, Training
from fedkin.data import planted_groups
from fedkin.experiment.settings import Compute
from fedkin.methods import (
    CFIC,
    DAPFL,
    IFCA,
    CReFF,
    Ditto,
    Ensemble,
    FedAvg,
    FedAvgFT,
    FedPer,
    FedProto,
    FedProx,
    FedRoD,
    FeSEM,
    Local,
    PFedCS,
)
from toys import ByHand, Run, apart, close, copies, federation, mlp, mlp_with_batchnorm, quadratic, run, vector_net

NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])


def same_evaluations(a: Run, b: Run) -> None:
    """Every client predicts the same in every round."""
    for x, y in zip(a.reports, b.reports, strict=True):
        assert x.cohort == y.cohort
        assert x.evaluation.keys() == y.evaluation.keys()
        assert all(torch.equal(x.evaluation[i].test, y.evaluation[i].test) for i in x.evaluation)


@NETS
@pytest.mark.parametrize(
    ("method", "name"),
    [
        (FedProx(mu=0.0), "model"),
        (IFCA(clusters=1), "centres"),
        (IFCA(clusters=1, average="gradients"), "centres"),
        (FeSEM(clusters=1), "centres"),
        (CFIC(beta=0.0, even_sampling=False), "model"),
        (CFIC(correction=False, even_sampling=False), "model"),
        (DAPFL(variant="v1", lam=0.3), "model"),
        (Ensemble(members=1), "models"),
        (FedAvgFT(tune_epochs=0), "model"),
        (Ditto(coupled_steps=True), "model"),
        (CReFF(features=2, crt_epochs=1, matching_steps=1), "model"),
    ],
)
def test_equal_to_fedavg(method: Method, name: str, net: Callable[[], Net]) -> None:
    """FedProx(mu=0), IFCA, FeSEM and PFA with one cluster, CFIC without correction or with beta = 0 under uniform
    cohorts, CFL that never divides, an ensemble of one, FedRoD whose generic loss knows no prior, and the global models
    beside those that clients use in Ditto and CReFF: the server's model is FedAvg's bit for bit after every round."""
    mine: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    shards = federation()
    a = run(method, net(), shards, each_round=lambda s, _: mine.append(s.state[name].reshape(-1)))
    b = run(FedAvg(), net(), shards, each_round=lambda s, _: theirs.append(s.state.model))
    assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))
    if not isinstance(method, DAPFL | Ditto | FedRoD | CReFF):  # there clients predict with something else
        same_evaluations(a, b)


@NETS
def test_pfedcs_without_collaboration_is_fedper(net: Callable[[], Net]) -> None:
    """beta = 0 (no stage 1) and select none are FedPer: common body, heads and predictions at both moments, bit for
    bit."""
    shards = federation()
    per = run(FedPer(), net(), shards)
    for method in (PFedCS(beta=0), PFedCS(select="none")):
        ours = run(method, net(), shards)
        assert torch.equal(ours.state.body, per.state.body)
        for i, kept in per.clients.items():
            assert kept.keys() == ours.clients[i].keys()
            assert all(torch.equal(kept[n], ours.clients[i][n]) for n in kept)
        same_evaluations(ours, per)


@pytest.mark.parametrize("moment", ["delivered", "trained"])
def test_pfedcs_without_collaboration_reports_what_fedper_reports(moment: Any) -> None:
    """The same run of both, at either moment: the headline and every other figure, every client's line and the outcome
    of every test sample are equal; the two moments are not."""
    data = planted_groups(clients=6, groups=2, samples=30)
    how: dict[str, Any] = {
        "training": Training(epochs=2, batch_size=8, lr=0.1),
        "rounds": 5,
        "participation": 0.6,
        "seed": 3,
    }
    how |= {"compute": Compute(engine="loop"), "evaluate": moment}
    ours, per = (fedkin.run(m, data, "mlp", **how) for m in (PFedCS(select="none"), FedPer()))
    assert ours.final == per.final
    assert ours.clients == per.clients
    assert all(line.right for line in ours.clients if line.round == 5)
    other = "accuracy_trained" if moment == "delivered" else "accuracy_delivered"
    assert ours.final.accuracy != ours.final.of(other)


@pytest.mark.parametrize("method", [PFedCS(), PFedCS(select="all"), FedPer()])
def test_alone_is_local_training(method: Method) -> None:
    """K = 1: the client's own body comes back to it, and PFedCS and FedPer are local training."""
    shards = federation()[:1]
    ours, local = run(method, mlp(), shards), run(Local(), mlp(), shards)
    same_evaluations(ours, local)
    assert torch.equal(torch.cat([ours.clients[0].head, ours.state.body]), local.clients[0].model)


@NETS
@pytest.mark.parametrize("method", [Ditto(lam=0.0), Ditto(lam=0.0, coupled_steps=True), FedProto(lam=0.0)])
def test_without_a_pull_is_local_training(method: Method, net: Callable[[], Net]) -> None:
    """Ditto and FedProto with lam = 0: the model that a client keeps is the one it trains alone, bit for bit in every
    round under partial participation."""
    shards = federation()
    ours, local = run(method, net(), shards), run(Local(), net(), shards)
    for i, kept in local.clients.items():
        if kept:
            assert torch.equal(ours.clients[i].model, kept.model)


def test_one_cluster_per_client_is_local_training() -> None:
    """FeSEM with as many clusters as clients: k-means++ puts each in its own, and everybody trains alone."""
    shards = federation()
    ours = run(FeSEM(clusters=5, feature="all"), mlp(), shards, participation=1.0)
    local = run(Local(), mlp(), shards, participation=1.0)
    same_evaluations(ours, local)
    for i, kept in local.clients.items():
        assert torch.equal(ours.state.centres[ours.state.labels[i]], kept.model)


def test_no_pull_is_local_training() -> None:
    """DA-PFL with lam = 0, and Ditto's personal branch with lam = 0, are local training."""
    shards = federation()
    local = run(Local(), mlp(), shards)
    ours = run(DAPFL(lam=0.0), mlp(), shards)
    same_evaluations(ours, local)
    for i, kept in local.clients.items():
        assert torch.equal(ours.clients[i].get("model", mlp().w0), kept.get("model", mlp().w0))


@NETS
def test_equal_affinities_and_small_sigma_mix_uniformly(net: Callable[[], Net]) -> None:
    """DA-PFL with equal affinities and sigma -> 0: the distance factor is 1 for everybody, so the pull is towards the
    plain mean of the others, from the first round on."""
    shards = federation()
    a = run(DAPFL(variant="dynamic", sigma=1e-12), net(), shards)
    b = run(DAPFL(variant="v1-uniform"), net(), shards)
    close(a.state.bank, b.state.bank)
    for report in a.reports:
        m = len(report.cohort)
        wanted = (1 - torch.eye(m, dtype=torch.float64)) / (m - 1)
        close(report.weights[:, report.cohort], wanted, 1e-12)


def test_cfic_of_one_group_without_memory_is_fedavg_with_a_unit_step() -> None:
    """alpha = 0 and one group: every round ends beta further along FedAvg's own update."""
    shards = federation()
    hand = ByHand(CFIC(memory=0.0, beta=0.25), mlp(), [shards[i].train for i in (0, 3)])
    hand.server = hand.server.but(label=torch.zeros(2, dtype=torch.int64))
    before = hand.server.model
    up = hand.play()
    mean = (9 * up.model[0] + 30 * up.model[1]) / 39
    close(hand.server.model, mean + 0.25 * (mean - before) / (mean - before).norm())


def test_optimisers_do_not_outlive_a_round() -> None:
    """Two rounds of one step with momentum .9 are two plain steps: L = 1/2 (w - 8)^2, steps of .5 from 0: 4, 6."""
    hand = ByHand(
        Local(),
        vector_net(0.0),
        [copies(8.0, 5)],
        training=Training(steps=1, lr=0.5, momentum=0.9, batch_size=1000),
        loss=quadratic,
    )
    hand.play()
    hand.play()
    close(hand.kept[0].model, [6.0])
    once = ByHand(Local(), vector_net(0.0), hand.data, training=Training(steps=2, lr=0.5, momentum=0.9), loss=quadratic)
    once.play()
    apart(once.kept[0].model, [6.0], 1.0)
