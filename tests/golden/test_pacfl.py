"""PACFL against numbers worked out by hand (Vahidian et al., AAAI 2023).

A client sends the first p left singular vectors of its inputs of each class, once. The angle of two clients is the
smallest principal angle of the spans, and clusters are joined by rising angles up to a threshold; each is FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import acos, degrees, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import subspace_angles
from scipy.spatial.distance import squareform
from torch import Tensor, nn

import fedkin
import plain
from fedkin import Compute, Federation
from fedkin.capabilities import PrivateSums, has
from fedkin.capabilities.logs import caveat_of
from fedkin.core import Bundle, Client, ClientData, Method, Net, Samples, Train
from fedkin.core.rows import group_mean
from fedkin.data import IID, federate, load, plant
from fedkin.functional.linkage import by_first_member
from fedkin.methods import CAM, PACFL, Safe
from fedkin.methods.pacfl import angles, principal_vectors
from toys import ByHand, close, draw, federation, mlp, run


def net() -> Net:
    """Two inputs, two classes, no hidden layer."""
    return Net(lambda: nn.Sequential(nn.Linear(2, 2, bias=False)), (2,), 2)


def towards(*directions: float, n: int = 1) -> Samples:
    """Samples of class 0 in the plane, ``n`` in each of these directions, in degrees."""
    a = torch.tensor(directions, dtype=torch.float64).deg2rad().repeat_interleave(n)
    return Samples(torch.stack([a.cos(), a.sin()], 1).float(), torch.zeros(len(a), dtype=torch.int64))


def clients(method: PACFL, *directions: float, sizes: Sequence[int] = (1,) * 9, **changes: Any) -> ByHand:
    """Clients with one direction each, whose training ends at a model of all ones times their direction."""

    def solve(request: Train, client: Client) -> Tensor:
        return torch.full_like(request.start, directions[client.id])

    data = [towards(d, n=n) for d, n in zip(directions, sizes, strict=False)]
    return ByHand(method, net(), data, solve=solve, **changes)


def test_principal_vectors() -> None:
    """Inputs (5, 1) and (5, -1): X'X = diag(50, 2), so (1, 0) first and (0, 1) second; with means taken off, as in PCA,
    it would be (0, 1) alone. Inputs on one line give one vector, zeros none."""
    found = principal_vectors(torch.tensor([[5.0, 1.0], [5.0, -1.0]]), 3)
    close(found.abs(), [[1, 0], [0, 1]])
    close(principal_vectors(torch.tensor([[3.0, 4.0], [6.0, 8.0]]), 3).abs(), [[0.6, 0.8]])
    assert principal_vectors(torch.zeros(3, 2), 3).shape == (0, 2)


def test_a_signature() -> None:
    """Class by class, the places of missing directions and classes empty."""
    hand = ByHand(PACFL(vectors=2), net(), [Samples(torch.tensor([[0.0, 2.0], [0.0, 3.0]]), torch.tensor([1, 1]))])
    found = hand.roster.described.signature[0]
    close(found.abs(), [[[0, 0], [0, 0]], [[0, 1], [0, 0]]])


def test_angles_of_subspaces() -> None:
    """(1, 1, 1)/sqrt 3 and the plane of the first two axes: its projection has length sqrt(2/3), 35.3 degrees; the
    nearest axis is at arccos(1/sqrt 3), 54.7 degrees. The third axis is at 90 degrees, and so is a client without any
    vector, but not from another one."""
    plane, diagonal = torch.eye(3)[:2], torch.full((3,), 1 / sqrt(3))
    signature = torch.zeros(5, 1, 2, 3)
    signature[0, 0], signature[1, 0, 0], signature[2, 0, 0, 2] = plane, diagonal, 1.0
    ids = torch.arange(5)
    close(angles(signature, ids, "smallest")[0], [0, degrees(acos(sqrt(2 / 3))), 90, 90, 90], 1e-4)
    close(angles(signature, ids, "vectors")[0], [0, degrees(acos(1 / sqrt(3))), 90, 90, 90], 1e-4)
    assert angles(signature, ids, "smallest")[3].tolist() == [90, 90, 90, 0, 0]


@pytest.mark.parametrize("measure", ["smallest", "vectors"])
def test_a_vector_has_no_sign(measure: str) -> None:
    """Singular vectors have no sign: with one times -1 the angle stays 10 degrees. The authors' program has 170."""
    signature = torch.stack([towards(d).x for d in (0, 10, 190)])[:, None]
    close(angles(signature, torch.tensor([0]), measure)[0], [0, 10, 10], 1e-4)  # type: ignore[arg-type]


def test_principal_angles_are_scipy_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy clients with two classes of two vectors each in 9 dimensions, more than are held at a time; each pair is
    computed once, also among some clients that join later."""
    monkeypatch.setattr("fedkin.methods.pacfl._BLOCK", 16)
    inputs = draw(70, 2, 5, 9)
    signature = torch.stack([torch.stack([principal_vectors(x, 2) for x in client]) for client in inputs])
    found = angles(signature, torch.arange(70), "smallest")
    for i, j in ((0, 1), (3, 69), (68, 5), (64, 63)):
        wanted = subspace_angles(*(signature[k].flatten(0, 1).double().numpy().T for k in (i, j))).min()
        close(found[i, j], np.rad2deg(wanted), 1e-4)
    assert torch.equal(found, found.T)
    some = torch.arange(1, 70, 2)
    close(angles(signature, some, "smallest"), found[some], 1e-4)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (PACFL(threshold=7), [0, 1, 2]),
        (PACFL(threshold=9), [0, 0, 1]),
        (PACFL(threshold=25), [0, 0, 1]),
        (PACFL(threshold=27), [0, 0, 0]),
        (PACFL(threshold=23, linkage="single"), [0, 0, 0]),
        (PACFL(threshold=29, linkage="complete"), [0, 0, 1]),
    ],
)
def test_clusters(method: PACFL, wanted: list[int]) -> None:
    """Directions 0, 8, 30: the first two are 8 apart, the third from them 30 and 22, 26 on average."""
    hand = clients(method, 0, 8, 30)
    assert hand.server.labels.tolist() == wanted
    assert len(hand.server.centres) == max(wanted) + 1
    assert torch.equal(hand.server.centres, hand.net.w0.expand(max(wanted) + 1, -1))


def test_each_cluster_is_fedavg() -> None:
    """Directions 0 and 8 with 1 and 3 samples: (0 + 3 * 8)/4 = 6; a cluster that is absent stays."""
    hand = clients(PACFL(threshold=9), 0, 8, 30, sizes=(1, 3, 5))
    hand.play([0, 1])
    close(hand.server.centres[0], [6.0] * 4)
    assert torch.equal(hand.server.centres[1], hand.net.w0)
    hand.play([1, 2])
    close(hand.server.centres, [[8.0] * 4, [30.0] * 4])
    close(hand.used(0).model, [8.0] * 4)


@pytest.mark.parametrize(("uniform", "wanted"), [(False, [6.0, 30.0]), (True, [4.0, 30.0])])
def test_a_secure_sum_is_made_for_each_cluster(uniform: bool, wanted: list[float]) -> None:
    """Directions 0, 8, 30 with 1, 3, 5 samples: the means of the pools are (0 + 3 * 8)/4 and 30, or 4 and 30 if all
    weigh the same. In one pool all would be the mean of all, 174/9. The server needs no more than these means."""
    hand = clients(PACFL(threshold=9), 0, 8, 30, sizes=(1, 3, 5), uniform=uniform)
    r, up = hand.at("aggregate", [0, 1, 2]), Bundle(model=torch.tensor([[0.0], [8.0], [30.0]]).expand(3, 4))
    pools = has(hand.method, PrivateSums).pools(hand.method, hand.server, r)
    means = group_mean(up.model, pools.weight, pools.group, torch.zeros(2, 4))
    close(means[:, 0], wanted)
    assert torch.equal(hand.method.aggregate(hand.server, r, Bundle(model=means[pools.group])).centres, means)


@pytest.mark.parametrize("clients", [12, 20])
def test_the_defaults_find_rotated_images(clients: int) -> None:
    """Digits turned by quarters, four true groups; the spans of 30 vectors in 64 dimensions all meet."""
    found = plant(federate(load("digits"), IID(), clients=clients), "rotations", 4)
    network = Net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), found.shape, 10)
    hand = ByHand(PACFL(), network, [client.train for client in found.clients])
    assert found.groups is not None
    assert torch.equal(hand.server.labels, by_first_member(found.groups))
    spans = ByHand(PACFL(measure="smallest"), network, hand.data)
    assert not bool(spans.server.labels.any())


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            PACFL(threshold=40),
            "one cluster of all 3 clients, so it is FedAvg here; try a smaller threshold than 40 degrees",
        ),
        (
            PACFL(threshold=2),
            "a cluster for each of 3 clients, so it is Local here; try a larger threshold than 2 degrees",
        ),
        (PACFL(threshold=9), ""),
        (Safe(PACFL(threshold=40)), "one cluster"),
        (CAM(PACFL(threshold=2)), "a cluster for each"),
    ],
)
def test_clusters_that_separate_nobody_or_everybody_are_a_caveat(method: Method, said: str) -> None:
    """Directions 0, 8, 30; the note of a run tells which method it then is, also for the wrapped one."""
    parts = [Samples(towards(d, n=5).x, torch.tensor([0, 1, 0, 1, 0])) for d in (0, 8, 30)]
    data = Federation([ClientData(part, part, part) for part in parts], 2)
    found = fedkin.run(method, data, "linear", rounds=1, compute=Compute(engine="loop"))
    notes = found.run.notes
    assert bool(said) == any(note.startswith("PACFL made") and said in note for note in notes)
    assert said or not notes


def test_one_client_is_no_caveat() -> None:
    """One client is one cluster of all and each one of its own."""
    hand = clients(PACFL(), 0)
    assert caveat_of(hand.method, hand.net, hand.server) == ""


def test_joining_clients_are_placed_by_their_angles() -> None:
    """Clusters {0, 8} and {30}. 21 is 17 from the one on average and 9 from the other; 89 is near none and opens one,
    from the common start, which 85 then joins. All others stay."""
    hand = clients(PACFL(threshold=9.5), 0, 8, 30, 21, 89, 85, present=3)
    hand.play([0, 1, 2])
    before = hand.server.centres
    hand.join(6)
    assert hand.server.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(hand.server.centres[:2], before)
    assert torch.equal(hand.server.centres[2], hand.net.w0)


@pytest.mark.parametrize(
    ("at", "wanted"),
    [(18, {"single": 0, "average": 1, "complete": 1}), (15, {"single": 0, "average": 0, "complete": 2})],
)
def test_a_joining_client_s_angle_to_a_cluster_is_that_of_the_linkage(at: float, wanted: dict[str, int]) -> None:
    """Clusters {0, 8} and {30}. 18 is 10, 14 and 18 from the first one, by single, average and complete linkage, and 12
    from the second; 15 is 7, 11 and 15 from the first, 15 from the second, and 13 is the most."""
    for kind, cluster in wanted.items():
        hand = clients(PACFL(threshold=13, linkage=kind), 0, 8, 30, at, present=3)  # type: ignore[arg-type]
        hand.join(4)
        assert int(hand.server.labels[3]) == cluster


def test_an_independent_program_gives_the_same() -> None:
    """Vectors by eigenvalues, clusters by scipy and FedAvg in each, on five clients of unequal size."""
    shards = federation()
    found = run(PACFL(vectors=2, measure="vectors", threshold=13), mlp(), shards, rounds_=5, training=plain.TRAINING)
    sent = []
    for s in shards:
        x, y = s.train.x.double().numpy(), s.train.y.numpy()
        ways = [np.linalg.eigh(x[y == k].T @ x[y == k])[1][:, ::-1][:, : min(2, (y == k).sum())] for k in range(3)]
        sent.append(np.hstack(ways))
    apart = np.array([[np.rad2deg(np.arccos(min(1.0, np.abs(a.T @ b).max()))) for a in sent] for b in sent])
    np.fill_diagonal(apart, 0)
    labels = fcluster(linkage(squareform(apart, checks=False), "average"), 13, "distance")
    mine = found.state.labels
    assert 1 < len(set(labels)) < 5
    assert all((labels[i] == labels[j]) == bool(mine[i] == mine[j]) for i in range(5) for j in range(5))
    models = {int(k): mlp().w0.double() for k in mine}
    for t, cohort in plain.cohorts(found):
        ends = {i: plain.descend(models[int(mine[i])], shards[i].train, i, t)[0] for i in cohort}
        for k in {int(mine[i]) for i in cohort}:
            n = {i: len(shards[i].train) for i in cohort if int(mine[i]) == k}
            models[k] = sum(n[i] * ends[i] for i in n) / sum(n.values())
    assert all(plain.distance(found.state.centres[k], w) < 5e-6 for k, w in models.items())
