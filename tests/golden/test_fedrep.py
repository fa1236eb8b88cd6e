"""FedRep against numbers worked out by hand (Collins et al., ICML 2021, Algorithm 1).

The network is h * b * x with one number for the body b and one for each client's head h; L = 1/2 (h b - y)^2 at x = 1
with y = (2, -1), b = 1, h = 0, steps of .5: two on the head, then one on the body.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, Net, Samples, Train, Training, head_loss
from fedkin.core.seeds import generator
from fedkin.engines.loop import sgd
from fedkin.methods.fedper import FedPer
from fedkin.methods.fedrep import FedRep
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, product_net, run, squares

NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])
HARD = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.05)


def fitted(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """1/2 (h z - y)^2 while the head is trained on features z, 1/2 (h b x - y)^2 otherwise."""
    if "z" not in aux:
        return squares(net, w, batch, aux)
    return 0.5 * (net.classify(w, aux.z)[:, 0] - batch.y).square().mean()


def clients(method: FedRep, targets: tuple[int, ...] = (2, -1), sizes: tuple[int, ...] = (4, 4), **more) -> ByHand:
    return ByHand(
        method,
        product_net(head=0.0, body=1.0),
        [copies(1.0, n, y=y) for y, n in zip(targets, sizes, strict=True)],
        training=Training(batch_size=1000, lr=0.5),
        loss=fitted,
        **more,
    )


def figures(hand: ByHand, up: Bundle) -> list[float]:
    """The body, the two heads, the two bodies uploaded."""
    return [float(hand.server.body), *(float(b.head) for b in hand.kept), *up.body.flatten().tolist()]


def test_two_rounds() -> None:
    """Client 0: h = 1, 1.5, then b = 1 + .5 * .5 * 1.5 = 1.375; client 1: h = -.5, -.75, b = 1 + .5 * .25 * .75 =
    1.09375; mean 1.234375. Round 2 from there: h = 1.61343243, -.80671621, b = 1.24116702, 1.23607301."""
    hand = clients(FedRep(head_epochs=2))
    close(figures(hand, hand.play()), [1.234375, 1.5, -0.75, 1.375, 1.09375])
    close(figures(hand, hand.play()), [1.23862001, 1.61343243, -0.80671621, 1.24116702, 1.23607301])


@pytest.mark.parametrize(("uniform", "body"), [(False, 1.3046875), (True, 1.234375)])
def test_bodies_weigh_by_samples_or_all_the_same(uniform: bool, body: float) -> None:
    """12 and 4 samples: (12 * 1.375 + 4 * 1.09375)/16 = 1.3046875; uniform, as the authors' program on CIFAR,
    1.234375."""
    hand = clients(FedRep(head_epochs=2), sizes=(12, 4), uniform=uniform)
    hand.play()
    close(hand.server.body, [body])


def test_one_participant() -> None:
    """m = 1: the body is that client's, 1.375; the other client keeps no head and predicts with the common one, 0."""
    hand = clients(FedRep(head_epochs=2))
    hand.play([0])
    close(hand.server.body, [1.375])
    assert hand.kept[1] == Bundle()
    close(hand.used(1).model, [0.0, 1.375])
    close(hand.used(0).model, [1.5, 1.375])


def test_epochs_on_the_head_do_not_include_those_on_the_body() -> None:
    """Asked for as many epochs on the head as on the body, both are done: h = 1, b = 1 + .5 * 1 * 1 = 1.5. The authors'
    program counts the body's epochs in: with a total equal to them the head would stay at 0 and the body, too."""
    hand = clients(FedRep(head_epochs=1, body_epochs=1))
    close(figures(hand, hand.play())[1:4:2], [1.0, 1.5])


@pytest.mark.parametrize("training", [Training(epochs=3, batch_size=5), Training(steps=7, batch_size=5)])
def test_epochs_asked_for(training: Training) -> None:
    """The head trains for its own number of epochs, also in a run that counts steps; the body as the run, unless
    told."""
    for asked, epochs, steps in ((None, training.epochs, training.steps), (2, 2, None)):
        hand = ByHand(FedRep(body_epochs=asked), training=training)
        work = hand.method.client_update(hand.client(1, hand.download([1]).row(0)))
        head = next(work)
        assert (head.training(training).epochs, head.training(training).steps) == (10, None)
        body = work.send(head.start)
        assert (body.training(training).epochs, body.training(training).steps) == (epochs, steps)


@NETS
def test_what_is_frozen_stands_still(net: Callable[[], Net]) -> None:
    """Under momentum and weight decay: the head is trained on the body as received, the body through the head just
    trained, and neither step moves the other part. One optimiser for both, with gradients set to zero, moves a frozen
    head by momentum and decay."""
    hand = ByHand(FedRep(head_epochs=3), net(), training=HARD)
    hand.play()
    client = hand.client(1, hand.download([1]).row(0))
    work = hand.method.client_update(client)
    head = next(work)
    assert torch.equal(head.start, hand.kept[1].head)
    assert torch.equal(head.per_sample.z, client.features(torch.cat([head.start, client.received.body])))
    got = hand.train(head, client)
    body = work.send(got)
    assert torch.equal(body.start, torch.cat([got, client.received.body]))
    w = hand.train(body, client)
    assert torch.equal(w[client.net.head], got)
    with pytest.raises(StopIteration) as end:
        work.send(w)
    assert torch.equal(client.state.head, got)
    assert torch.equal(end.value.value.body, w[client.net.body])
    apart(got, head.start, 1e-3)
    apart(w[client.net.body], client.received.body, 1e-3)


@NETS
def test_training_on_features_is_training_with_a_frozen_body(net: Callable[[], Net]) -> None:
    """The head trained on features computed once is the head trained through the whole network with the body frozen in
    eval mode, on the same batches, to rounding."""
    net, data = net(), federation()[1].train
    hand = ByHand(FedRep(), net, [data], training=HARD)
    client = hand.client(0, hand.download([0]).row(0))
    request = next(hand.method.client_update(client))
    assert request.loss is head_loss
    one = sgd(request, data, net, HARD, generator(7))
    other = sgd(Train(net.w0, only=net.head, epochs=10), data, net, HARD, generator(7))
    close(one, other[net.head], 1e-5)
    assert torch.equal(other[net.body], net.w0[net.body])


def test_only_the_body_leaves() -> None:
    """Up and down goes the body: FL-bench's FedRep sends the whole model and counts it."""
    hand = ByHand(FedRep(final_head_epochs=2))
    size = hand.net.size - hand.net.head.stop
    assert {n: t.numel() for n, t in hand.download([0]).row(0).items()} == {"body": size}
    assert {n: tuple(t.shape) for n, t in hand.play().items()} == {"body": (5, size)}


def test_a_client_with_one_class_trains_its_head() -> None:
    """All labels equal: the head still moves, and to a model that predicts that class."""
    few = federation()[0].train
    one = Samples(few.x, torch.full_like(few.y, 2))
    hand = ByHand(FedRep(), mlp(), [one, few], training=Training(batch_size=5, lr=0.1))
    hand.play()
    apart(hand.kept[0].head, hand.net.w0[hand.net.head], 1e-2)
    assert bool((hand.net(hand.used(0).model, one.x).argmax(1) == 2).all())


def test_first_head_is_the_common_one() -> None:
    """A client that comes in round 3 starts with the head of round 0, on the body of round 2."""
    hand = ByHand(FedRep())
    hand.play([0, 1])
    hand.play([1, 2])
    client = hand.client(4, hand.download([4]).row(0))
    assert torch.equal(next(hand.method.client_update(client)).start, hand.net.w0[hand.net.head])
    assert torch.equal(hand.used(4).model, torch.cat([hand.net.w0[hand.net.head], hand.server.body]))


def test_first_head_averaged() -> None:
    """``first_head="average"``: heads go up, too; who has none starts with their mean, (12 * 1.5 - 4 * .75)/16 = .9375,
    who has one keeps it."""
    hand = clients(FedRep(head_epochs=2, first_head="average"), (2, -1, 5), (12, 4, 4))
    up = hand.play([0, 1])
    close(up.head, [[1.5], [-0.75]])
    close(hand.server.head, [0.9375])
    starts = [next(hand.method.client_update(hand.client(i, hand.download([i]).row(0)))).start for i in range(3)]
    close(torch.cat(starts), [1.5, -0.75, 0.9375])
    close(hand.used(2).model, [0.9375, 1.3046875])


def test_averaging_heads_changes_nothing_for_those_who_have_one() -> None:
    """Everybody in every round: body, heads and predictions are bit for bit those without."""
    shards = federation()
    a, b = (run(FedRep(first_head=f), mlp(), shards, participation=1.0) for f in ("start", "average"))
    assert torch.equal(a.state.body, b.state.body)
    assert all(torch.equal(a.clients[i].head, b.clients[i].head) for i in a.clients)


def test_tuning_at_evaluation() -> None:
    """Two more head steps on the new body b = 1.234375 before predicting: h = 1.5 - .5 b (1.5 b - 2) and once more,
    1.61343243, which is what round 2 begins with; the view "untuned" is the head as kept; nothing is kept of it."""
    hand = clients(FedRep(head_epochs=2, final_head_epochs=2))
    hand.play()
    close(hand.used(0).model, [1.61343243, 1.234375])
    sent = hand.method.deliver(hand.server, hand.at("evaluate", [0])).row(0)
    close(views_of(hand.method, hand.client(0, sent))["untuned"].model, [1.5, 1.234375])
    close(hand.kept[0].head, [1.5])
    assert views_of(FedRep(), hand.client(0, sent)) == {}


@NETS
def test_tuning_does_not_leak_back(net: Callable[[], Net]) -> None:
    """With and without tuning at evaluation: bodies and heads of every round bit for bit the same, predictions not."""
    shards = federation()
    a, b = (run(FedRep(head_epochs=2, final_head_epochs=n), net(), shards) for n in (0, 20))
    assert torch.equal(a.state.body, b.state.body)
    assert all(torch.equal(a.clients[i][n], b.clients[i][n]) for i in a.clients for n in a.clients[i])
    pairs = [
        (x.evaluation[i], y.evaluation[i]) for x, y in zip(a.reports, b.reports, strict=True) for i in x.evaluation
    ]
    assert all(torch.equal(x.test, y["untuned.test"]) for x, y in pairs)
    assert not all(torch.equal(x.test, y.test) for x, y in pairs)


def test_another_method_than_fedper() -> None:
    """As many epochs in all, but head first: another body."""
    shards = federation()
    rep, per = run(FedRep(head_epochs=1), mlp(), shards), run(FedPer(), mlp(), shards)
    apart(rep.state.body, per.state.body, 1e-3)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("first_head", ["start", "average"])
def test_an_independent_program_gives_the_same(first_head: str) -> None:
    """Two linear layers with one ``torch.optim.SGD`` each in float64, three epochs on the head, two on the body; five
    rounds of three out of five unequal clients."""
    training = Training(epochs=1, batch_size=5, lr=0.1, momentum=0.5, weight_decay=0.05)
    method = FedRep(head_epochs=3, body_epochs=2, first_head=first_head)
    found, shards, w0 = plain.played(method, rounds_=5, training=training)
    body, given, heads = w0[plain.HEAD :], w0[: plain.HEAD], dict[int, Tensor]()
    late = 0
    for t, cohort in plain.cohorts(found):
        n = [len(shards[i].train) for i in cohort]
        bodies = []
        for i in cohort:
            late += t > 1 and i not in heads
            top, bottom = _linear(6, 3, heads.get(i, given)), _linear(4, 6, body)
            for number, (epochs, layer) in enumerate([(3, top), (2, bottom)]):
                sgd = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5, weight_decay=0.05)
                for index in plain.drawn(shards[i].train, i, t, Training(epochs=epochs, batch_size=5), number):
                    sgd.zero_grad()
                    x, y = shards[i].train.x[index].double(), shards[i].train.y[index]
                    nn.functional.cross_entropy(top(torch.tanh(bottom(x))), y).backward()
                    sgd.step()
            heads[i] = nn.utils.parameters_to_vector(top.parameters()).detach()
            bodies.append(nn.utils.parameters_to_vector(bottom.parameters()).detach())
        body = sum(size * b for size, b in zip(n, bodies, strict=True)) / sum(n)
        if first_head == "average":
            given = sum(size * heads[i] for size, i in zip(n, cohort, strict=True)) / sum(n)
    assert late
    assert plain.distance(found.state.body, body) < 2e-6
    for i, head in heads.items():
        assert plain.distance(found.clients[i].head, head) < 2e-6


def _linear(inputs: int, outputs: int, w: Tensor) -> nn.Linear:
    """A linear layer in float64 whose weight and bias are a flat vector."""
    layer = nn.Linear(inputs, outputs, dtype=torch.float64)
    nn.utils.vector_to_parameters(w.clone(), layer.parameters())
    return layer
