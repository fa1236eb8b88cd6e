"""What client code and server code may touch."""

import torch
import torch.nn.functional as F

from fedkin.core import Bundle, Client, Roster, Round
from fedkin.functional.grouping import moved_by_share
from fedkin.methods import FedAvg
from toys import ByHand, blobs, close, federation, logit_net, mlp, vector_net


def client(**kwargs) -> Client:
    return ByHand(FedAvg(), **kwargs).client(1)


def round_(sizes: list[int], ids: list[int], **kwargs) -> Round:
    roster = Roster(torch.tensor(sizes))
    return Round(index=3, rounds=9, net=vector_net(0.0), roster=roster, ids=torch.tensor(ids), **kwargs)


# ---- client --------------------------------------------------------------------------------------------------------
def test_a_client_measures_its_own_training_data() -> None:
    """Loss, accuracy, counts and class means of features are those of plain torch."""
    c = client()
    logits = c.net(c.w0, c.data.x)
    close(c.loss(c.w0), F.cross_entropy(logits, c.data.y))
    close(c.accuracy(c.w0), (logits.argmax(1) == c.data.y).double().mean())
    assert c.counts().tolist() == [int((c.data.y == k).sum()) for k in range(3)]
    assert int(c.counts().sum()) == 23
    net, data = mlp(), blobs(20, [0.5, 0.0, 0.5], 3)
    c = ByHand(FedAvg(), net, [data]).client(0)
    means, counts = c.class_means(net.w0)
    z = net.features_and_logits(net.w0, data.x)[0]
    for k in (0, 2):
        close(means[k], z[data.y == k].double().mean(0))
    assert not bool(means[1].any())
    assert int(counts[1]) == 0


def test_inside_sees_only_what_is_under_its_prefix() -> None:
    """A wrapped method gets its own part of what was received and kept."""
    hand = ByHand(FedAvg(), mlp(), [federation()[0].train])
    hand.kept[0] = Bundle(**{"inner.head": torch.ones(1), "own": torch.zeros(1)})
    c = hand.client(0, Bundle(**{"inner.model": torch.ones(2), "model": torch.zeros(2)}))
    inside = c.inside("inner")
    assert (set(inside.received), set(inside.state)) == ({"model"}, {"head"})
    assert float(inside.received.model.sum()) == 2.0
    inside.state = Bundle()
    assert set(c.state) == {"inner.head", "own"}


def test_a_clients_draws_depend_on_seed_round_and_id_only() -> None:
    """The same three numbers, the same draws; any other, others."""

    def draws(seed: int, t: int, i: int) -> list[float]:
        hand = ByHand(FedAvg(), seed=seed)
        hand.t = t
        return torch.rand(3, generator=hand.client(i).rng).tolist()

    assert draws(0, 1, 2) == draws(0, 1, 2)
    assert len({str(draws(*a)) for a in ((0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3))}) == 4


# ---- round ---------------------------------------------------------------------------------------------------------
def test_means_weigh_by_samples_or_uniformly() -> None:
    """Of the cohort, and of groups, which may move by their share (Fed-CAM Eq. 6)."""
    rows = torch.tensor([[0.0], [8.0]])
    close(round_([10, 99, 30], [0, 2]).mean(rows), [6.0])
    close(round_([10, 99, 30], [0, 2], uniform=True).mean(rows), [4.0])
    assert round_([10, 99, 30], [0, 2]).size.tolist() == [10, 30]
    rows, group = torch.tensor([[2.0], [6.0], [10.0]]), torch.tensor([0, 0, 1])
    old = torch.tensor([[0.0], [4.0], [7.0]])
    r = round_([10, 30, 60], [0, 1, 2])
    means = r.group_mean(rows, group, old)
    close(means.flatten(), [5, 10, 7])
    close(moved_by_share(r, means, group, old).flatten(), [2, 7.6, 7])


def test_draws_are_keyed() -> None:
    """By seed, round and client; a step's generator starts anew, and a stream of a wrapper is another."""
    r = round_([1], [0]).but(net=logit_net(3))
    assert torch.equal(r.fresh(0), r.w0)
    assert not torch.equal(r.but(stream="inner").fresh(0), r.w0)
    r = round_([1, 1], [0, 1], step="sample")
    draw = lambda g: torch.rand(2, generator=g).tolist()  # noqa: E731
    assert draw(r.rng) == draw(r.rng)
    others = [r.but(step="x").rng, r.but(index=4).rng, r.but(stream="a").rng, r.but(seed=1).rng, r.client_rng(0)]
    assert len({str(draw(g)) for g in [r.rng, *others, r.client_rng(1)]}) == 7


def test_a_round_among_some_keeps_their_rows() -> None:
    """What was drawn is cut with the ids."""
    r = round_([1] * 9, [2, 5, 8], drawn=Bundle(times=torch.tensor([20, 50, 80])))
    some = r.among(torch.tensor([2, 8]))
    assert some.ids.tolist() == [2, 8]
    assert some.drawn.times.tolist() == [20, 80]
    assert r.among(r.ids[:0]).drawn.times.tolist() == []
