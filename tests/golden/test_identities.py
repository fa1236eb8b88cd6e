"""Methods that must be one another in a special case, through the real round loop.

Five clients of unequal sizes, three of them in each round. Where the arithmetic is the same, equality is bit for bit;
with and without batch normalisation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedkin
from fedkin import methods as m
from fedkin.core import Method, Net, Samples, Training
from fedkin.data import planted_groups
from fedkin.experiment.settings import Compute
from fedkin.server import Server
from toys import (
    ByHand,
    Run,
    apart,
    blobs,
    close,
    copies,
    federation,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    vector_net,
)

NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
SHARDS = federation()
ONE = {"shards": SHARDS[:1]}
ALL = {"participation": 1.0}
LATE = {"joins": [1, 1, 1, 1, 3], "rounds_": 5}
LOST = {**LATE, "dropout": 0.2}
EQUAL = {"shards": federation((12, 12, 12, 12)), **ALL}
GROUPED = {"shards": [replace(s, group=3) for s in SHARDS]}
APART = {"shards": [replace(s, group=i) for i, s in enumerate(SHARDS)], **ALL}
UNVALIDATED = {"shards": [replace(s, validation=Samples(s.train.x[:0], s.train.y[:0])) for s in SHARDS], **ALL}
EVEN = [replace(s, train=Samples(blobs(12, [1.0, 1, 1], i).x, torch.arange(12) % 3)) for i, s in enumerate(SHARDS)]
COPIES = [replace(s, train=copies(blobs(1, [1.0, 1, 1], i).x[0].tolist(), len(s.train), i % 3))
          for i, s in enumerate(SHARDS)]  # fmt: skip
STEPS = {"training": Training(steps=4, batch_size=5, lr=0.1, momentum=0.5)}
DIVIDES = {"eps1": 1e9, "eps2": 0.0, "after": 0}


def same_evaluations(a: Run, b: Run) -> None:
    """Every client predicts the same in every round."""
    for x, y in zip(a.reports, b.reports, strict=True):
        assert x.cohort == y.cohort
        assert x.evaluation.keys() == y.evaluation.keys()
        assert all(torch.equal(x.evaluation[i][n], t) for i, own in y.evaluation.items() for n, t in own.items())


@NETS
@pytest.mark.parametrize(
    ("method", "name", "how"),
    [
        (m.FedProx(mu=0.0), "model", {}),
        (m.FedOpt(rule="momentum", server_lr=1.0, beta1=0.0), "model", {}),
        (m.MOON(mu=0.0), "model", {}),
        (m.IFCA(clusters=1), "centres", {}),
        (m.IFCA(clusters=1, average="gradients"), "centres", {}),
        (m.FeSEM(clusters=1), "centres", {}),
        (m.Oracle(), "models", GROUPED),
        (m.CFIC(beta=0.0, even_sampling=False), "model", {}),
        (m.CFIC(correction=False, even_sampling=False), "model", {}),
        # too early, eps2 out of reach, a mean that is never at rest, halves never unlike enough
        *((m.CFL(**how), "centres", LOST) for how in ({}, {"eps2": 1e9, "after": 0}, {"eps1": 0.0, "after": 0},
                                                      {"gamma": 0.99, **DIVIDES})),
        (m.PFA(clusters=1), "centres", LATE),
        (m.PFA(after=9), "model", LATE),
        (m.PFA(after=9), "model", LOST),
        (m.Ensemble(members=1), "models", {}),
        (m.FedAvgFT(tune_epochs=0), "model", {"dropout": 0.2}),
        (m.ClusteredSampling(by="size"), "model", EQUAL),  # every client has a slot of its own
        (m.ClusteredSampling(by="similarity"), "model", EQUAL),
        (m.CAM(m.IFCA(clusters=2), warmup=2), "model", {"rounds_": 2}),  # the warm-up
    ],
)  # fmt: skip
def test_equal_to_fedavg(method: Method, name: str, how: dict[str, Any], net: Callable[[], Net]) -> None:
    """The server's model and every client's evaluation are FedAvg's bit for bit after every round."""
    a, b = global_models(method, name, net(), how)
    same_evaluations(a, b)


def global_models(
    method: Method, name: str, net: Net, how: dict[str, Any], tolerance: float = 0.0, uniform: bool = False
) -> tuple[Run, Run]:
    """Runs of a method and of FedAvg, whose models agree after every round."""
    seen: list[Tensor] = []

    def look(server: Server, _: object) -> None:
        model = server.state.get(name, server.state.get("model"))
        seen.append(model if model.numel() else server.state.model)  # PFA has no centres in its first phase

    how = {"shards": SHARDS, "each_round": look, **how}
    ours, average = run(method, net, **how), run(m.FedAvg(), net, **{**how, "uniform": uniform})
    for x, y in zip(seen[: len(ours.reports)], seen[len(ours.reports) :], strict=True):
        close(x.reshape(-1)[: net.size], y, tolerance)
    return ours, average


@NETS
@pytest.mark.parametrize(
    ("method", "name", "how"),
    [
        (m.DAPFL(variant="v1", lam=0.3), "model", {}),
        (m.Ditto(coupled_steps=True), "model", {}),
        (m.CReFF(features=2, crt_epochs=1, matching_steps=1), "model", {}),
        (m.FedRoD(gamma=0.0), "model", {}),  # no personal gradient reaches it
        (m.FedRoD(gamma=0.0, personal="hyper"), "model", {}),
        (m.KNNPer(), "model", {}),
        (m.FedALA(), "model", {"rounds_": 1}),  # no client has a model of its own yet
        (m.PFA(clusters=1), "centres", LOST),  # who could not be asked predicts with the common model meanwhile
        (m.PFedGraph(lam=0.0), "bank", ONE),
    ],
)
def test_the_global_model_is_fedavgs(method: Method, name: str, how: dict[str, Any], net: Callable[[], Net]) -> None:
    """Bit for bit after every round, beside what clients predict with."""
    global_models(method, name, net(), how)


@pytest.mark.parametrize(
    ("method", "name", "how", "uniform", "tolerance", "net"),
    [
        *((*row, net) for net in (mlp, mlp_with_batchnorm) for row in (
            (m.APFL(), "model", {}, False, 1e-5),  # the mixture's loss has no gradient in w
            (m.FedEM(components=1), "models", {}, False, 1e-6),
            (m.FedMGDA(eps=0.0, lambda0="samples", normalise=False), "model", {}, False, 1e-5),
            (m.FedFa(accuracy_share=0.0, eta=0.0, client_momentum=0.0), "model", ALL, True, 1e-5),
            (m.FedNova(), "model", STEPS, False, 2e-6),  # all take the same number of steps, and the lengths cancel
        )),
        (m.FedRoD(), "model", {"shards": EVEN}, False, 1e-5, mlp),  # all logits are shifted alike
        # every part of a batch has the same gradient
        *((m.PerFedAvg(order=order, inner_lr=0.0, outer_lr=0.1), "model", {"shards": COPIES}, True, 1e-6, mlp)
          for order in ("first", "hessian-free")),
    ],
)  # fmt: skip
def test_the_global_model_is_fedavgs_to_rounding(
    method: Method, name: str, how: dict[str, Any], uniform: bool, tolerance: float, net: Callable[[], Net]
) -> None:
    """In sums of another order."""
    global_models(method, name, net(), how, tolerance, uniform)


def test_without_norms_fedbn_is_fedavg() -> None:
    """Evaluations as well, bit for bit."""
    same_evaluations(*global_models(m.FedBN(), "shared", mlp(), {}))


def trains_alone(method: Method, model: Callable[[Run, int], Tensor], net: Net, how: dict[str, Any]) -> tuple[Run, Run]:
    """Runs of a method and of local training, after which each client has the same model."""
    ours, local = (run(one, net, **{"shards": SHARDS, **how}) for one in (method, m.Local()))
    assert any(local.clients.values())
    assert all(torch.equal(model(ours, i), kept.model) for i, kept in local.clients.items() if kept)
    return ours, local


@NETS
@pytest.mark.parametrize(
    ("method", "how"),
    [
        *((m.Ditto(lam=0.0), {"rounds_": n, "dropout": 0.2}) for n in range(1, 7)),  # in every round
        (m.Ditto(lam=0.0, coupled_steps=True), {}),
        (m.DAPFL(lam=0.0), {}),
        (m.FedFomo(peers=0, fallback="trained"), {}),
        (m.FedFomo(fallback="trained"), ONE),
        (m.FedProto(lam=0.0), {}),
    ],
)
def test_equal_to_local_training(method: Method, how: dict[str, Any], net: Callable[[], Net]) -> None:
    """Each client's own model is the one that it trains alone, bit for bit, and so is what it predicts with, of
    FedProto with its head."""
    ours, local = trains_alone(method, lambda found, i: found.clients[i].model, net(), how)
    if isinstance(method, m.FedProto):
        for x, y in zip(ours.reports, local.reports, strict=True):
            assert all(torch.equal(x.evaluation[i]["head.test"], own.test) for i, own in y.evaluation.items())
    elif not (isinstance(method, m.Ditto) and method.coupled_steps):
        same_evaluations(ours, local)


@pytest.mark.parametrize(
    ("method", "model", "how"),
    [
        (m.PFedCS(), lambda found, i: torch.cat([found.clients[i].head, found.state.body]), ONE),
        (m.PFedCS(select="all"), lambda found, i: torch.cat([found.clients[i].head, found.state.body]), ONE),
        (m.FedPer(), lambda found, i: torch.cat([found.clients[i].head, found.state.body]), ONE),
        (m.LGFedAvg(), lambda found, i: torch.cat([found.state.head, found.clients[i].body]), ONE),
        (m.FeSEM(clusters=5, feature="all"), lambda found, i: found.state.centres[found.state.labels[i]], ALL),
        (m.Oracle(), lambda found, i: found.state.models[i], APART),
        (m.LocalFull(), lambda found, i: found.clients[i].chosen, UNVALIDATED),
    ],
)
def test_alone_is_local_training(method: Method, model: Callable[[Run, int], Tensor], how: dict[str, Any]) -> None:
    """One client, whose own part comes back to it; or a cluster or group for each; or no validation data by which
    another model than the last could be chosen."""
    same_evaluations(*trains_alone(method, model, mlp(), how))


@NETS
def test_pfedcs_without_collaboration_is_fedper(net: Callable[[], Net]) -> None:
    """beta = 0 (no stage 1) and select none are FedPer: common body, heads and predictions at both moments, bit for
    bit."""
    shards = federation()
    per = run(m.FedPer(), net(), shards)
    for method in (m.PFedCS(beta=0), m.PFedCS(select="none")):
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
    ours, per = (fedkin.run(one, data, "mlp", **how) for one in (m.PFedCS(select="none"), m.FedPer()))
    assert ours.final == per.final
    assert ours.clients == per.clients
    assert all(line.right for line in ours.clients if line.round == 5)
    other = "accuracy_trained" if moment == "delivered" else "accuracy_delivered"
    assert ours.final.accuracy != ours.final.of(other)


@NETS
def test_equal_affinities_and_small_sigma_mix_uniformly(net: Callable[[], Net]) -> None:
    """DA-PFL with equal affinities and sigma -> 0: the distance factor is 1 for everybody, so the pull is towards the
    plain mean of the others, from the first round on."""
    shards = federation()
    a = run(m.DAPFL(variant="dynamic", sigma=1e-12), net(), shards)
    b = run(m.DAPFL(variant="v1-uniform"), net(), shards)
    close(a.state.bank, b.state.bank)
    for report in a.reports:
        n = len(report.cohort)
        wanted = (1 - torch.eye(n, dtype=torch.float64)) / (n - 1)
        close(report.weights[:, report.cohort], wanted, 1e-12)


def test_cfic_of_one_group_without_memory_is_fedavg_with_a_unit_step() -> None:
    """alpha = 0 and one group: every round ends beta further along FedAvg's own update."""
    shards = federation()
    hand = ByHand(m.CFIC(memory=0.0, beta=0.25), mlp(), [shards[i].train for i in (0, 3)])
    hand.server = hand.server.but(label=torch.zeros(2, dtype=torch.int64))
    before = hand.server.model
    up = hand.play()
    mean = (9 * up.model[0] + 30 * up.model[1]) / 39
    close(hand.server.model, mean + 0.25 * (mean - before) / (mean - before).norm())


def test_optimisers_do_not_outlive_a_round() -> None:
    """Two rounds of one step with momentum .9 are two plain steps: L = 1/2 (w - 8)^2, steps of .5 from 0: 4, 6."""
    hand = ByHand(
        m.Local(),
        vector_net(0.0),
        [copies(8.0, 5)],
        training=Training(steps=1, lr=0.5, momentum=0.9, batch_size=1000),
        loss=quadratic,
    )
    hand.play()
    hand.play()
    close(hand.kept[0].model, [6.0])
    once = ByHand(
        m.Local(), vector_net(0.0), hand.data, training=Training(steps=2, lr=0.5, momentum=0.9), loss=quadratic
    )
    once.play()
    apart(once.kept[0].model, [6.0], 1.0)
