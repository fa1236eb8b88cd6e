"""IFCA against numbers worked out by hand (Ghosh et al., NeurIPS 2020, Algorithm 1).

Each participant measures every centre on its own training data, trains the best one, and a centre becomes the mean of
its members (option I: moves by its members' changes over all participants).
"""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import plain
from fedkin.capabilities.groups import labels_of
from fedkin.core import Batch, Bundle, Net, Samples, Training
from fedkin.methods import IFCA, ifca
from toys import (
    ByHand,
    ClientData,
    apart,
    blobs,
    close,
    copies,
    federation,
    logit_net,
    mlp,
    mlp_with_batchnorm,
    quadratic,
    run,
    vector_net,
)

CENTRES = torch.tensor([[-1.0], [5.0]])


def three_clients(**kwargs) -> ByHand:
    """Centres -1 and 5; L_i = 1/2 (w - a_i)^2 with a = (0, 1, 8), n = (10, 30, 20); one step of .5."""
    hand = ByHand(
        IFCA(clusters=2),
        vector_net(0.0),
        [copies(a, n) for a, n in ((0.0, 10), (1.0, 30), (8.0, 20))],
        training=Training(steps=1, lr=0.5, batch_size=1000),
        loss=quadratic,
        **kwargs,
    )
    hand.server = hand.server.but(centres=CENTRES.clone())
    return hand


def test_losses_and_assignment() -> None:
    """Losses (.5, 12.5), (2, 8), (40.5, 4.5): clients 0 and 1 choose the first centre, client 2 the second."""
    hand = three_clients()
    losses = [[hand.client(i).loss(w) for w in CENTRES] for i in range(3)]
    close(losses, [[0.5, 12.5], [2.0, 8.0], [40.5, 4.5]])
    assert hand.play().cluster.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("uniform", "centres"), [(False, [-0.125, 6.5]), (True, [-0.25, 6.5])])
def test_one_round(uniform: bool, centres: list[float]) -> None:
    """Locals -.5, 0, 6.5; weighted (10 * -.5 + 30 * 0)/40 = -.125, unweighted -.25; the second has one member."""
    hand = three_clients(uniform=uniform)
    close(hand.play().model.flatten(), [-0.5, 0.0, 6.5])
    close(hand.server.centres.flatten(), centres)
    assert labels_of(hand.method, hand.server, hand.at("evaluate", range(3))).tolist() == [0, 0, 1]


def test_one_participant_leaves_the_other_centre() -> None:
    """m = 1: the centre without members stays bit for bit."""
    hand = three_clients()
    hand.play([2])
    close(hand.server.centres.flatten(), [-1.0, 6.5])
    assert torch.equal(hand.server.centres[0], CENTRES[0])


TABLE = torch.tensor([[1.0, 0.5, 0.5], [2.0, 3.0, 4.0], [0.3, 0.9, 0.1]])


def looked_up(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """The loss of centre ``w`` (0, 1 or 2) on the client whose input is its own number."""
    return TABLE[int(batch.x[0]), int(w)]


def test_ties_go_to_the_first() -> None:
    """Losses [[1, .5, .5], [2, 3, 4], [.3, .9, .1]] give clusters 1, 0, 2: the tie of row 0 to the lower index."""
    hand = ByHand(IFCA(clusters=3), vector_net(0.0), [copies(float(i), 2) for i in range(3)], loss=looked_up)
    centres = torch.tensor([[0.0], [1.0], [2.0]])
    chosen = [int(hand.method.personalize(hand.client(i, Bundle(centres=centres))).cluster) for i in range(3)]
    assert chosen == [1, 0, 2]


@pytest.mark.parametrize(("average", "centre"), [("gradients", 4.5), ("models", 6.0)])
def test_gradient_and_model_averaging(average: str, centre: float) -> None:
    """Centre 4, its one member at 6, four equal participants: 4 + (6 - 4)/4 = 4.5 by changes, 6 by models."""
    hand = ByHand(IFCA(clusters=2, average=average), vector_net(0.0), [copies(0.0, 5)] * 4)
    hand.server = hand.server.but(centres=torch.tensor([[4.0], [0.0]]))
    up = Bundle(model=torch.tensor([[6.0], [1.0], [2.0], [3.0]]), cluster=torch.tensor([0, 1, 1, 1]))
    s = hand.method.aggregate(hand.server, hand.at("aggregate", range(4), 1), up)
    close(s.centres[0], [centre])


def test_equal_starts_collapse_and_ours_are_not_equal() -> None:
    """From equal centres every client picks the first for ever; so the starts are drawn apart, the first being w0."""
    hand = three_clients()
    hand.server = hand.server.but(centres=torch.zeros(2, 1))
    assert hand.play().cluster.tolist() == [0, 0, 0]
    net = mlp()
    starts = ByHand(IFCA(clusters=4), net, [federation()[0].train]).server.centres
    assert torch.equal(starts[0], net.w0)
    for a, b in pairwise(starts):
        apart(a, b, 0.1)


def test_the_choice_uses_the_whole_training_part_in_eval_mode() -> None:
    """The loss is the mean over all training samples with running statistics, which it does not change."""
    net, data = mlp_with_batchnorm(), blobs(600, [0.4, 0.3, 0.3], 1)
    client = ByHand(IFCA(clusters=2), net, [data]).client(0)
    w = net.w0
    wanted = torch.nn.functional.cross_entropy(net(w, data.x), data.y)
    close(client.loss(w), wanted)
    assert torch.equal(w, net.w0)


def test_evaluation_chooses_by_training_loss_not_by_test_labels() -> None:
    """Other test labels change neither the models nor the clusters of the evaluation; other training labels do."""
    shards = federation()
    turn = lambda d: Samples(d.x, (d.y + 1) % 3)  # noqa: E731
    test_turned = [ClientData(s.train, s.validation, turn(s.test)) for s in shards]
    a, b = (run(IFCA(clusters=3), mlp(), data) for data in (shards, test_turned))
    assert torch.equal(a.state.centres, b.state.centres)
    assert all(torch.equal(x.clusters, y.clusters) for x, y in zip(a.reports, b.reports, strict=True))
    for x, y in zip(a.reports, b.reports, strict=True):  # every client chooses, also those never sampled
        assert sorted(x.evaluation) == list(range(len(shards)))
        assert all(torch.equal(x.evaluation[i].cluster, y.evaluation[i].cluster) for i in x.evaluation)
    trained = run(IFCA(clusters=3), mlp(), [ClientData(turn(s.train), s.validation, s.test) for s in shards])
    assert not torch.equal(a.state.centres, trained.state.centres)


def test_starts_are_redrawn_until_every_cluster_attracts_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """init_min_share = .4 of two clusters and three clients: shares 1/3 redraw all starts and cost the round; once the
    starts are kept they are never redrawn; there is a limit, here of one."""
    monkeypatch.setattr(ifca, "_REDRAWS", 1)
    net = mlp()
    hand = ByHand(IFCA(clusters=2, init_min_share=0.4), net, [s.train for s in federation()[:3]])
    first = hand.server.centres
    up = Bundle(model=torch.zeros(3, net.size), cluster=torch.tensor([0, 0, 1]))
    s = hand.method.aggregate(hand.server, hand.at("aggregate", range(3), 1), up)
    assert len(torch.cat([first, s.centres]).unique(dim=0)) == 4  # all of them new
    assert int(s.redraws) == 1
    s = hand.method.aggregate(s, hand.at("aggregate", range(3), 2), up)
    assert not bool(s.centres.any())  # the limit is reached: the round counts
    s = hand.method.aggregate(s, hand.at("aggregate", range(3), 3), up.but(model=torch.ones(3, net.size)))
    assert bool((s.centres == 1).all())


def test_a_cohort_smaller_than_the_clusters_ends_the_search() -> None:
    """One client cannot choose both of two clusters: the round counts, and nothing is drawn again."""
    net = mlp()
    hand = ByHand(IFCA(clusters=2, init_min_share=0.4), net, [s.train for s in federation()[:2]])
    up = Bundle(model=torch.ones(1, net.size), cluster=torch.tensor([0]))
    s = hand.method.aggregate(hand.server, hand.at("aggregate", [0], 1), up)
    assert bool((s.centres[0] == 1).all())
    assert int(s.redraws) == -1


def test_kept_starts_are_never_redrawn() -> None:
    """One round in which every cluster attracts enough, just half of the clients, ends the drawing for good."""
    net = mlp()
    hand = ByHand(IFCA(clusters=2, init_min_share=0.5), net, [s.train for s in federation()[:2]])
    up = Bundle(model=torch.ones(2, net.size), cluster=torch.tensor([0, 1]))
    s = hand.method.aggregate(hand.server, hand.at("aggregate", [0, 1], 1), up)
    s = hand.method.aggregate(s, hand.at("aggregate", [0, 1], 2), up.but(cluster=torch.tensor([0, 0])))
    assert bool((s.centres == 1).all())


def test_shared_body_is_averaged_over_everybody() -> None:
    """Weight sharing: one body from all participants, heads per cluster; down go one body and all heads."""
    net = mlp()
    hand = ByHand(IFCA(clusters=2, share_body=True), net, [s.train for s in federation()[:2]])
    sent = hand.download([0]).row(0)
    assert sum(t.numel() for t in sent.values()) == net.size + net.head.stop
    rows = torch.randn(2, net.size, generator=torch.Generator().manual_seed(0))
    up = Bundle(model=rows, cluster=torch.tensor([1, 0]))
    s = hand.method.aggregate(hand.server, hand.at("aggregate", [0, 1], 1), up)
    mean = (9 * rows[0] + 23 * rows[1]) / 32
    close(s.centres[:, net.body], mean[net.body].expand(2, -1))
    close(s.centres[:, net.head], rows[[1, 0]][:, net.head])


@pytest.mark.parametrize(("by", "cluster"), [("loss", 0), ("accuracy", 2)])
def test_choice_by_loss_or_accuracy(by: str, cluster: int) -> None:
    """Logits (2, 0), (0, 9), (1, 0) at x = 1, label 0: losses .127, 9, .313, the first is best. Right answers 1, 0, 1:
    the tie goes to the last, as in the program behind Fed-CAM's tables."""
    hand = ByHand(IFCA(clusters=3, choose_by=by), logit_net(2), [copies(1.0, 4)])
    hand.server = hand.server.but(centres=torch.tensor([[2.0, 0], [0, 9], [1, 0]]))
    assert hand.play().cluster.tolist() == [cluster]
    assert int(hand.used(0).cluster) == cluster


def test_choice_after_training() -> None:
    """First round: a start of the client's own, uploaded for the centre that is best now. Second round: it trains that
    centre, whatever is best by then, and is uploaded for the new choice. A lost upload undoes the choice."""
    hand = ByHand(IFCA(clusters=2, assign="after"), vector_net(0.0), [copies(4.0, 3)], loss=quadratic)
    hand.server = hand.server.but(centres=torch.tensor([[3.0], [9.0]]))
    sent = hand.download([0]).row(0)
    request = next(hand.method.client_update(hand.client(0, sent)))
    assert torch.equal(request.start, hand.net.fresh("own", 0))
    assert hand.play().cluster.tolist() == [0]
    hand.server = hand.server.but(centres=torch.tensor([[9.0], [3.0]]))
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    close(request.start, [9.0])
    assert int(hand.used(0).cluster) == 0  # what it trained for, until its next round
    assert hand.play().cluster.tolist() == [1]
    assert int(hand.used(0).cluster) == 1


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings",
    [
        {"clusters": 2},
        {"clusters": 2, "average": "gradients"},
        {"clusters": 2, "share_body": True},
        {"clusters": 4, "choose_by": "accuracy"},  # the first choice is a tie
        {"clusters": 3, "init_min_share": 0.3},
    ],
    ids=["models", "gradients", "shared body", "accuracy", "redrawn"],
)
def test_an_independent_program_gives_the_same(settings: dict) -> None:
    """Algorithm 1 as loops over centres and members in float64, five clients of unequal size, three in each of six
    rounds; its options, one at a time."""
    found, shards, w0 = plain.played(IFCA(**settings), rounds_=6)
    net, clusters = mlp(), settings["clusters"]
    centres = [net.fresh(j).double() for j in range(clusters)]
    if "share_body" in settings:
        centres = [torch.cat([w[: plain.HEAD], w0[plain.HEAD :]]) for w in centres]
    draws, settled, chosen = 0, "init_min_share" not in settings, list[tuple[int, int]]()
    for t, cohort in plain.cohorts(found):
        members: list[list[tuple[int, Tensor]]] = [[] for _ in centres]
        for i in cohort:
            data = shards[i].train
            j = _best(centres, data, by_accuracy="choose_by" in settings)
            members[j].append((len(data), plain.descend(centres[j], data, i, t)[0]))
            chosen.append((i, j))
        least = min(len(m) for m in members) / len(cohort)
        if not settled and least < settings["init_min_share"]:
            draws += 1
            centres = [net.fresh(draws * clusters + j).double() for j in range(clusters)]
            continue
        settled = True
        total = sum(n for m in members for n, _ in m)
        body = sum(n * w[plain.HEAD :] for m in members for n, w in m) / total
        for j, m in enumerate(members):
            if m and settings.get("average") == "gradients":
                centres[j] = centres[j] + sum(n * (w - centres[j]) for n, w in m) / total
            elif m:
                centres[j] = sum(n * w for n, w in m) / sum(n for n, _ in m)
            if "share_body" in settings:
                centres[j] = torch.cat([centres[j][: plain.HEAD], body])
    assert len({j for _, j in chosen}) > 1
    assert draws == ("init_min_share" in settings)
    assert found.state.labels.tolist() == [dict(chosen).get(i, -1) for i in range(len(shards))]
    assert plain.distance(found.state.centres, torch.stack(centres)) < 2e-6


def _best(centres: list[Tensor], data: Samples, by_accuracy: bool) -> int:
    """The first centre with the least loss, or the last with the most right answers, on all training samples."""
    x = data.x.double()
    if by_accuracy:
        right = [int((plain.logits(w, x).argmax(1) == data.y).sum()) for w in centres]
        return max(j for j, n in enumerate(right) if n == max(right))
    losses = [float(plain.loss(w, x, data.y)) for w in centres]
    return losses.index(min(losses))
