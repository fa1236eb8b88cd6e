"""Oracle clusters, FedAvg inside the true groups, by hand: the row that clustered methods are held against."""

from dataclasses import replace

import pytest
import torch

import plain
from fedkin.capabilities.groups import labels_of
from fedkin.core import Bundle, ConfigError, Training
from fedkin.data import federate, load
from fedkin.data.partition import PARTITIONS
from fedkin.data.synthetic import planted_groups
from fedkin.experiment.run import run as real_run
from fedkin.experiment.settings import Compute
from fedkin.methods import FedAvg
from fedkin.methods.oracle import Oracle
from toys import ByHand, ClientData, close, copies, federation, mlp, run, vector_net


def grouped(groups: list[int], sizes: list[int], **kwargs: object) -> ByHand:
    """Clients of these groups and sizes; models that are one number, 5 at the start."""
    return ByHand(Oracle(), vector_net(5.0), [copies(0.0, n) for n in sizes], group=groups, **kwargs)


def upload(hand: ByHand, models: list[float], ids: list[int]) -> dict[int, float]:
    """The model of each group after these uploads."""
    hand.t += 1
    up = Bundle(model=torch.tensor(models)[:, None])
    hand.server = hand.method.aggregate(hand.server, hand.at("aggregate", ids), up)
    return dict(zip(hand.server.groups.tolist(), hand.server.models.flatten().tolist(), strict=True))


@pytest.mark.parametrize(("uniform", "wanted"), [(False, {0: 4.0, 1: 7.0}), (True, {0: 3.0, 1: 7.0})])
def test_means_inside_the_groups(uniform: bool, wanted: dict[int, float]) -> None:
    """Clients 0 and 2 of 10 and 30 samples at 1 and 5: (10 * 1 + 30 * 5)/40 = 4, without weights 3; client 1 at 7."""
    hand = grouped([0, 1, 0], [10, 20, 30], uniform=uniform)
    assert upload(hand, [1.0, 7.0, 5.0], [0, 1, 2]) == wanted
    close([float(hand.download([i]).row(0).model) for i in range(3)], [wanted[0], wanted[1], wanted[0]])


def test_a_group_without_answers_stays() -> None:
    """Only client 1 answers: the other group's model is what it was, bit for bit."""
    hand = grouped([0, 1, 0], [10, 20, 30])
    assert upload(hand, [7.0], [1]) == {0: 5.0, 1: 7.0}


def test_groups_keep_their_true_numbers() -> None:
    """Groups 7 and 3: two models, relations 7, 3, 7, in the order of the clients."""
    hand = grouped([7, 3, 7], [1, 1, 1])
    assert len(hand.server.models) == 2
    assert upload(hand, [1.0, 2.0, 3.0], [0, 1, 2]) == {3: 2.0, 7: 2.0}
    assert labels_of(hand.method, hand.server, hand.at("evaluate", range(3))).tolist() == [7, 3, 7]


def test_a_group_that_comes_late_starts_from_the_common_start() -> None:
    """Groups 2 and 9 have trained; then a client of group 4 and one of group 2 come: group 4 starts at 5, group 2's
    model and group 9's are as before."""
    hand = grouped([2, 9, 4, 2], [1] * 4, present=2)
    assert upload(hand, [1.0, 8.0], [0, 1]) == {2: 1.0, 9: 8.0}
    hand.join(4)
    close([float(hand.download([i]).row(0).model) for i in range(4)], [1.0, 8.0, 5.0, 1.0])
    assert upload(hand, [6.0, 3.0], [2, 3]) == {2: 3.0, 9: 8.0, 4: 6.0}


def test_a_group_learns_from_its_own_members_alone() -> None:
    """Other data in group 1 leave group 0's model as it is."""
    shards = federation()
    other = [ClientData(shards[0].train, s.validation, s.test, s.group) if s.group == 1 else s for s in shards]
    a, b = (run(Oracle(), mlp(), data, participation=1.0).state for data in (shards, other))
    assert torch.equal(a.models[0], b.models[0])
    assert not torch.equal(a.models[1], b.models[1])


def test_without_true_groups_it_says_so() -> None:
    """A Dirichlet partition has none: the message names the client and says which partitions have."""
    data = federate(load("digits"), PARTITIONS["dirichlet"](alpha=0.5), clients=4, seed=0)
    with pytest.raises(ConfigError, match="client 0"):
        real_run(Oracle(), data, "mlp", Training(steps=1), rounds=1, compute=Compute(engine="loop"))


def test_a_client_without_group_is_named() -> None:
    """Groups 0, 0, -1: it is client 2 that has none."""
    with pytest.raises(ConfigError, match="client 2"):
        grouped([0, 0, -1], [1, 1, 1])


def test_true_groups_beat_one_model_where_labels_are_turned() -> None:
    """Three planted groups that name the same inputs differently: one model for all can be right for one group only
    (1/3), the groups' own models learn. The clusters are the true ones: adjusted Rand index 1."""
    data = planted_groups(clients=6, groups=3, samples=40, seed=0)
    got = {}
    for m in (Oracle(), FedAvg()):
        result = real_run(m, data, "mlp", Training(epochs=2, lr=0.1), rounds=6, compute=Compute(engine="loop"))
        got[type(m).__name__] = result.rounds[-1]
    assert got["Oracle"].figures.ari == 1.0
    assert got["Oracle"].accuracy > 0.9
    assert got["Oracle"].accuracy > got["FedAvg"].accuracy + 0.3


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """One dictionary entry per true group in float64, on five clients of unequal size in three groups, two in each of
    six rounds."""
    of = (7, 3, 7, 3, 5)
    shards = [replace(s, group=g) for s, g in zip(federation(), of, strict=True)]
    found = run(Oracle(), mlp(), shards, rounds_=6, participation=0.4, training=plain.TRAINING)
    models = dict.fromkeys(of, mlp().w0.double())
    together = 0
    for t, cohort in plain.cohorts(found):
        ends = {i: plain.descend(models[of[i]], shards[i].train, i, t)[0] for i in cohort}
        for g in set(of):
            n = {i: len(shards[i].train) for i in cohort if of[i] == g}
            together += len(n) > 1
            if n:
                models[g] = sum(n[i] * ends[i] for i in n) / sum(n.values())
    assert together > 0
    assert sorted(found.state.groups.tolist()) == [3, 5, 7]
    for g, model in zip(found.state.groups.tolist(), found.state.models, strict=True):
        assert plain.distance(model, models[g]) < 2e-6
