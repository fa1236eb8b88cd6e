"""Faults found in published programs, each with a test that our methods do not have it."""

import pytest
import torch

from fedkin.capabilities.needs import needs_of
from fedkin.core import Method, Samples, Train, Training
from fedkin.core.refusals import UNUSED
from fedkin.core.seeds import generator
from fedkin.core.settings import cohort_size
from fedkin.engines.loop import batches, sgd
from fedkin.methods import CAM, CFIC, DAPFL, IFCA, METHODS, CReFF, FedAvg, FedProx, FeSEM, Local, PFedCS
from thorough import OF_EVERY_KIND
from toys import ClientData, blobs, federation, mlp, mlp_with_batchnorm, run

SEVERAL: dict[str, Method] = {
    "local": Local(),
    "fedavg": FedAvg(after_training=True),
    "fedprox": FedProx(mu=0.5),
    "ifca": IFCA(clusters=2),
    "fesem": FeSEM(clusters=2, lam=0.1),
    "da-pfl": DAPFL(),
    "ditto": DAPFL(variant="v1"),
    "cfic": CFIC(),
    "pfedcs": PFedCS(beta=3),
    "ifca-cam": CAM(IFCA(clusters=2), warmup=1),
    "fesem-cam": CAM(FeSEM(clusters=2), warmup=1, warmup_of="cluster"),
}
SEVERAL["creff"] = CReFF(features=6, crt_epochs=4, crt_batch=5, matching_steps=5)  # the rest is server work
SEVERAL |= {name: make() for name, make in METHODS.items() if name not in SEVERAL}
IN_TEST = {*OF_EVERY_KIND, "apfl", "fedala", "fedbabu", "fedem", "fedrep", "fesem", "ifca", "moon", "scaffold"}
EVERY = pytest.mark.parametrize(
    "method", [pytest.param(m, id=n, marks=() if n in IN_TEST else pytest.mark.thorough) for n, m in SEVERAL.items()]
)


@EVERY
def test_test_and_validation_labels_change_nothing(method: Method) -> None:
    """With other labels in the test and validation parts every state, kept or served, is bit for bit the same. FedFomo
    weighs models by their loss on validation data, Local (full) chooses by it and safe forms mix by it, as they say
    themselves, so for them only the test labels are others."""
    shards = federation()
    turn = lambda d: Samples(d.x, (d.y + 1) % 3)  # noqa: E731
    held = (lambda d: d) if needs_of(method).validation else turn
    other = [ClientData(s.train, held(s.validation), turn(s.test), s.group) for s in shards]
    a, b = run(method, mlp(), shards), run(method, mlp(), other)
    assert a.state.keys() == b.state.keys()
    assert all(torch.equal(a.state[n], b.state[n]) for n in a.state)
    assert all(torch.equal(a.clients[i][n], b.clients[i][n]) for i in a.clients for n in a.clients[i])
    for x, y in zip(a.reports, b.reports, strict=True):
        assert x.clusters is None or torch.equal(x.clusters, y.clusters)


@EVERY
def test_what_a_run_on_an_odd_federation_keeps(method: Method) -> None:
    """A client with one class, one with fewer samples than a batch, one with a single sample, two that are equal; batch
    normalisation; drop-outs; a late joiner. After every round the tensors kept by different clients and by the server
    lie in storages of their own, and what a client keeps has changed only if its upload was aggregated. Everything kept
    is finite, and the weights of every mixture sum to 1."""
    twin = federation()[1]
    one_class = ClientData(
        *[Samples(d.x, torch.zeros_like(d.y)) for d in (twin.train, twin.validation, twin.test)], group=0
    )
    few = ClientData(blobs(3, [1.0, 1, 1], 5), twin.validation, twin.test, group=1)
    single = ClientData(blobs(1, [1.0, 1, 1], 6), twin.validation, twin.test, group=1)
    before: dict[int, dict[str, torch.Tensor]] = {}

    def check(server, simulation) -> None:
        states = simulation.states(server.acks)
        stored = [t for b in [server.state, *states.values()] for t in b.values() if t.numel()]
        pointers = [t.untyped_storage().data_ptr() for t in stored]
        assert len(set(pointers)) == len(pointers)
        for i, b in states.items():
            if i in before and int(server.acks[i]) != server.round:
                assert b.keys() == before[i].keys()
                assert all(torch.equal(b[n], before[i][n]) for n in b)
            before[i] = {n: t.clone() for n, t in b.items()}

    result = run(
        method,
        mlp_with_batchnorm(),
        [twin, twin, one_class, few, single],
        rounds_=6,
        participation=0.6,
        dropout=0.2,
        joins=[1, 1, 1, 1, 3],
        training=Training(epochs=1, batch_size=5, lr=0.05),
        each_round=check,
    )
    kept = [result.state, *result.clients.values()]
    assert all(bool(torch.isfinite(t).all()) for b in kept for t in b.values() if t.is_floating_point())
    assert all(r.code not in UNUSED for report in result.reports for r in report.refused)
    for report in result.reports:
        if report.weights is not None:
            filled = report.weights.sum(1)
            torch.testing.assert_close(filled[filled > 0], torch.ones_like(filled[filled > 0]))


def test_all_methods_see_the_same_participants() -> None:
    """One seed, one schedule: every method that leaves the cohort to the default, wrapped or not, gets the same."""
    plain = {name: m for name, m in SEVERAL.items() if type(m).sample is Method.sample or isinstance(m, CAM)}
    assert len(plain) >= 10
    quick = Training(steps=1, batch_size=5)
    played = [run(m, mlp(), federation(), rounds_=6, training=quick).reports for m in plain.values()]
    cohorts = [[r.cohort for r in reports] for reports in played]
    assert all(c == cohorts[0] for c in cohorts)


def test_cohort_size_is_not_cut_by_rounding() -> None:
    """29 % of 100 clients are 29, not 28 (int(.29 * 100)); a part of a client is none; never fewer than one."""
    assert (cohort_size(0.29, 100), cohort_size(0.35, 10), cohort_size(0.01, 5)) == (29, 3, 1)
    shards = federation()[:1] * 100
    quick = Training(steps=1, batch_size=5)
    assert len(run(FedAvg(), mlp(), shards, rounds_=1, participation=0.29, training=quick).reports[0].cohort) == 29
    assert len(run(FedAvg(), mlp(), shards[:5], rounds_=1, participation=0.01, training=quick).reports[0].cohort) == 1


def test_last_short_batch_is_trained_on() -> None:
    """Seven samples in batches of three: three batches an epoch, all samples once; also with fewer samples than a
    batch."""
    parts = [i.tolist() for _, i in batches(7, Training(epochs=1, batch_size=3), generator(0), skip_single=False)]
    assert [len(p) for p in parts] == [3, 3, 1]
    assert sorted(i for part in parts for i in part) == list(range(7))
    parts = [i.tolist() for _, i in batches(2, Training(epochs=2, batch_size=3), generator(0), skip_single=False)]
    assert [len(p) for p in parts] == [2, 2]


def test_batch_of_one_is_left_out_under_batchnorm() -> None:
    """Batch normalisation cannot train on one sample: such a batch is skipped, and a client with one sample does not
    move at all; without batch normalisation it does."""
    parts = [len(i) for _, i in batches(7, Training(epochs=2, batch_size=3), generator(0), skip_single=True)]
    assert parts == [3, 3, 3, 3]
    one = blobs(1, [1.0, 1, 1], 0)
    net = mlp_with_batchnorm()
    assert torch.equal(sgd(Train(net.w0), one, net, Training(), generator(0)), net.w0)
    assert torch.equal(sgd(Train(net.w0), one, net, Training(steps=4), generator(0)), net.w0)
    assert not torch.equal(sgd(Train(mlp().w0), one, mlp(), Training(), generator(0)), mlp().w0)


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_frozen_part_stands_still(part: str) -> None:
    """Training one part leaves the other bit for bit, under weight decay and momentum too; a frozen body runs in eval
    mode, so its running statistics stay as well."""
    net, data = mlp_with_batchnorm(), blobs(23, [1.0, 1, 1], 0)
    training = Training(epochs=3, batch_size=5, lr=0.1, momentum=0.9, weight_decay=5e-4)
    moves, rests = (net.head, net.body) if part == "head" else (net.body, net.head)
    w = sgd(Train(net.w0, only=moves), data, net, training, generator(0))
    assert torch.equal(w[rests], net.w0[rests])
    assert not torch.equal(w[moves], net.w0[moves])
    statistics_moved = not torch.equal(w[net.buffers], net.w0[net.buffers])
    assert statistics_moved == (part == "body")


@pytest.mark.parametrize("after", [False, True])
def test_weight_decay_and_pull_leave_running_statistics_alone(after: bool) -> None:
    """After one step, whose batch statistics depend on the start only, the running statistics are those of plain
    training, whatever terms there are on the weights."""
    net, data, training = mlp_with_batchnorm(), blobs(20, [1.0, 1, 1], 0), Training(steps=1, batch_size=20, lr=0.1)
    plain = sgd(Train(net.w0), data, net, training, generator(0))
    terms = {"center": torch.ones(net.size), "mu": 5.0, "prox_after": after, "linear": torch.ones(net.size)}
    pulled = sgd(Train(net.w0, weight_decay=5.0, **terms), data, net, training, generator(0))
    assert torch.equal(pulled[net.buffers], plain[net.buffers])
    assert not torch.equal(pulled[net.params], plain[net.params])


def test_a_start_is_never_written_to() -> None:
    """Local training copies its start, so what was received and what is stored stay as they were."""
    net, data = mlp_with_batchnorm(), blobs(20, [1.0, 1, 1], 0)
    start = net.w0
    before = start.clone()
    sgd(Train(start, center=start, mu=1.0), data, net, Training(batch_size=5), generator(0))
    assert torch.equal(start, before)
