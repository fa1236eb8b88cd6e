"""FedGH against numbers worked out by hand (Yi et al., ACM MM 2023).

Two features, two classes, header W = 0, b = 0. Three mean features arrive: (1,0) of class 0, (1,1) of class 0, (0,2) of
class 1; step size .1. Training on the clients moves nothing and the body is the identity, so features are the inputs.
"""

from collections.abc import Callable

import pytest
import torch

import plain
from fedkin.capabilities.presets import preset, presets_of
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Client, Net, Samples, Train, Training
from fedkin.methods.fedgh import FedGH
from fedkin.methods.local import Local
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, plane_net, run

POINTS = [copies([1, 0], 2, y=0), copies([1, 1], 7, y=0), copies([0, 2], 1, y=1)]


def start(method: FedGH, data: list[Samples]) -> ByHand:
    hand = ByHand(method, plane_net(bias=True), data, solve=lambda request, client: request.start.clone())
    model = torch.cat([torch.zeros(6), torch.eye(2).flatten()])
    hand.kept = [Bundle(model=model.clone()) for _ in data]
    hand.server = Bundle(head=torch.zeros(6))
    return hand


def header(hand: ByHand) -> list[float]:
    """W row by row, then b."""
    return hand.server.head.tolist()


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ([0], [0.05, 0, -0.05, 0, 0.05, -0.05]),
        ([0, 1], [0.095017, 0.045017, -0.095017, -0.045017, 0.095017, -0.095017]),
        ([0, 1, 2], [0.095017, -0.07328, -0.095017, 0.07328, 0.035868, -0.035868]),
    ],
)
def test_sequential_steps(ids: list[int], wanted: list[float]) -> None:
    """At 0 both probabilities are .5: the first step adds .1 * .5 * (1,0) to the first row. Then the logits at (1,1)
    are .1 and -.1, 1 - p = 1/(1 + e^.2) = .450166: + .0450166 (1,1). Then at (0,2) they are .185051 and -.185051, p =
    .591486 of the wrong class: - .0591486 (0,2)."""
    hand = start(FedGH(server_lr=0.1), POINTS)
    hand.play(ids)
    close(header(hand), wanted)


def test_one_minibatch_of_three() -> None:
    """All three at 0: .1 * .5 * ((1,0) + (1,1) - (0,2))/3 = (.033333, -.016667), bias .1 * .5 * (1 + 1 - 1)/3."""
    hand = start(FedGH(server_lr=0.1, server_batch=3), POINTS)
    hand.play()
    close(header(hand), [0.033333, -0.016667, -0.033333, 0.016667, 0.016667, -0.016667])


def test_order_is_that_of_client_ids_and_classes() -> None:
    """One client with two classes sends both, the lower first: the same as two clients in that order, and not as in the
    other order."""
    one = start(FedGH(server_lr=0.1), [Samples(torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 0]))])
    one.play()
    ahead, back = (
        start(FedGH(server_lr=0.1), [POINTS[0], POINTS[2]]),
        start(FedGH(server_lr=0.1), [POINTS[2], POINTS[0]]),
    )
    ahead.play()
    back.play()
    close(header(one), header(ahead), 1e-7)
    apart(header(ahead), header(back), 1e-3)


def test_without_uploads_the_header_stays() -> None:
    """Nobody answers: `aggregate` is not called. An upload without any class moves nothing either."""
    hand = start(FedGH(server_lr=0.1), POINTS)
    up = Bundle(means=torch.randn(2, 2, 2), has=torch.zeros(2, 2, dtype=torch.bool))
    after = hand.method.aggregate(hand.server, hand.at("aggregate", [0, 1]), up)
    assert torch.equal(after.head, hand.server.head)
    lost = run(FedGH(), mlp(), federation(), rounds_=3, dropout=0.999)
    assert all(not r.answered for r in lost.reports)
    assert torch.equal(lost.state.head, mlp().w0[mlp().head])


def test_mean_features_are_over_samples() -> None:
    """(1,0) twice and (7,0) once in batches of two: mean 3; a mean of batch means is 4."""
    data = Samples(torch.tensor([[1.0, 0], [1.0, 0], [7.0, 0]]), torch.zeros(3, dtype=torch.int64))
    hand = start(FedGH(), [data])
    hand.training = Training(batch_size=2)
    close(hand.play().means, [[[3.0, 0], [0, 0]]])


@pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm])
def test_mean_features_are_of_the_trained_body_in_eval_mode(net: Callable[[], Net]) -> None:
    """What leaves are class means under the final weights and running statistics."""
    hand = ByHand(FedGH(), net(), training=Training(epochs=2, batch_size=5, lr=0.1))
    up = hand.play()
    for i, kept in enumerate(hand.kept):
        z = hand.net.features_and_logits(kept.model, hand.data[i].x)[0]
        for c in hand.data[i].y.unique().tolist():
            close(up.means[i, c], z[hand.data[i].y == c].mean(0), 1e-5)


def test_the_header_is_trained() -> None:
    """The authors' program gives its optimiser the clients' network, so its header never moves. Ours does, in every
    round, and lowers the loss on the mean features it was trained on."""
    hand = ByHand(FedGH(server_lr=0.5))
    net = hand.net
    for _ in range(3):
        before = hand.server.head
        up = hand.play()
        y = up.has.nonzero()[:, 1]
        loss = [
            torch.nn.functional.cross_entropy(net.classify(h, up.means[up.has]), y) for h in (before, hand.server.head)
        ]
        assert float(loss[1]) < float(loss[0])


def test_the_header_is_not_client_0_s() -> None:
    """In a published program the server's header is the object that client 0 trains. Here only the local header of
    client 0 moves, by a lot: the server's is what it would have been, and no upload holds a header."""

    def spoil(request: Train, client: Client) -> torch.Tensor:
        w = request.start.clone()
        w[:6] += 100.0 * (client.id == 0)
        return w

    calm, spoilt = start(FedGH(server_lr=0.1), POINTS), start(FedGH(server_lr=0.1), POINTS)
    spoilt.solve = spoil
    calm.play()
    up = spoilt.play()
    assert torch.equal(calm.server.head, spoilt.server.head)
    assert {n: tuple(t.shape) for n, t in up.items()} == {"means": (3, 2, 2), "has": (3, 2)}
    assert float(spoilt.kept[0].model[0]) == 100.0


def test_bodies_are_never_averaged() -> None:
    """Every client trains on from its own body under the header it was sent."""
    asked: list[tuple[int, torch.Tensor]] = []
    hand = ByHand(FedGH(server_lr=0.5), training=Training(batch_size=5, lr=0.1))
    hand.play()
    bodies, head = [b.model[hand.net.body] for b in hand.kept], hand.server.head
    hand.solve = lambda request, client: (asked.append((client.id, request.start)), request.start.clone())[1]
    hand.play()
    for i, w in asked:
        assert torch.equal(w, torch.cat([head, bodies[i]]))
    assert len({tuple(b.tolist()) for b in bodies}) == 5


def test_delivered_and_trained() -> None:
    """Reported: the client's body with the server's new header; the view "trained" has the header that the client
    trained itself. Who never took part has the common body and the server's header in both."""
    hand = ByHand(FedGH(server_lr=0.5), training=Training(batch_size=5, lr=0.1))
    hand.play([0, 1])
    net = hand.net
    for i in (0, 1, 2):
        body = hand.kept[i].get("model", net.w0)[net.body]
        view = views_of(hand.method, hand.client(i, hand.download([i]).row(0)))["trained"]
        assert torch.equal(hand.used(i).model, torch.cat([hand.server.head, body]))
        assert torch.equal(view.model, hand.kept[i].model if i < 2 else hand.used(i).model)
    apart(hand.kept[0].model[net.head], hand.server.head, 1e-3)


def test_first_round_is_local_training() -> None:
    """Round 1 starts everywhere from the common start: the trained models are Local's bit for bit. In round 2 the
    header is the server's again and they are not."""
    for rounds_, same in ((1, True), (2, False)):
        ours = run(FedGH(), mlp(), federation(), rounds_=rounds_, participation=1.0)
        local = run(Local(), mlp(), federation(), rounds_=rounds_, participation=1.0)
        assert all(torch.equal(ours.clients[i].model, local.clients[i].model) == same for i in range(5))


def test_server_lr_0_is_what_the_authors_program_does() -> None:
    """Local training whose header is put back to one fixed layer in every round; ours, with a step, is not that."""
    shards = [s.train for s in federation()]
    training = Training(batch_size=5, lr=0.1)
    fixed, ours = ByHand(FedGH(server_lr=0.0), mlp(), shards, training), ByHand(FedGH(), mlp(), shards, training)
    alone = ByHand(Local(), mlp(), shards, training)
    for _ in range(3):
        for hand in (fixed, ours, alone):
            hand.play()
        assert all(torch.equal(a.model, b.model) for a, b in zip(fixed.kept, alone.kept, strict=True))
        head = alone.net.w0[alone.net.head]
        alone.kept = [Bundle(model=torch.cat([head, b.model[alone.net.body]])) for b in alone.kept]
    apart(ours.kept[0].model, fixed.kept[0].model, 1e-4)


def test_clip_is_passed_on() -> None:
    """The longest gradient of the authors' program goes with the request."""
    hand = ByHand(preset(FedGH, "code"), mlp(), [federation()[0].train])
    (asked,) = [next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))]
    assert isinstance(asked, Train)
    assert asked.clip == 50.0
    assert Training(**presets_of(FedGH())["code"]["training"]).momentum == 0.9


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("server_batch", "clip"), [(1, None), (5, 0.3)])
def test_an_independent_program_gives_the_same(server_batch: int, clip: float | None) -> None:
    """The header's steps one mean feature after another, or in batches of five, in float64; clients with autograd and
    clipped gradients, three of five in each of five rounds."""
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5, weight_decay=0.02)
    found = run(
        FedGH(server_lr=0.8, server_batch=server_batch, clip=clip), mlp(), federation(), rounds_=5, training=training
    )
    shards, start = federation(), mlp().w0.double()
    header, bodies, trained, clipped = start[: plain.HEAD], [start[plain.HEAD :]] * 5, {}, 0
    for t, cohort in plain.cohorts(found):
        arrived: list[tuple[torch.Tensor, int]] = []
        for i in cohort:
            data, w = shards[i].train, torch.cat([header, bodies[i]])
            speed = torch.zeros_like(w)
            for index in plain.drawn(data, i, t, training):
                g = plain.gradient(lambda v, b=data, j=index: plain.loss(v, b.x[j].double(), b.y[j]), w)
                if clip is not None and g.norm() > clip:
                    g, clipped = g * clip / g.norm(), clipped + 1
                speed = 0.5 * speed + g + 0.02 * w
                w = w - 0.2 * speed
            trained[i], bodies[i] = w, w[plain.HEAD :]
            z = plain.features(w, data.x.double())
            arrived += [(z[data.y == c].mean(0), c) for c in sorted(set(data.y.tolist()))]
        weight, bias = header[:18].view(3, 6).clone(), header[18:].clone()
        for at in range(0, len(arrived), server_batch):
            some = arrived[at : at + server_batch]
            slopes = []
            for r, j in some:
                odds = (weight @ r + bias).exp()
                slopes.append(odds / odds.sum() - torch.eye(3).double()[j])
            for (r, _), slope in zip(some, slopes, strict=True):
                weight -= 0.8 / len(some) * torch.outer(slope, r)
                bias -= 0.8 / len(some) * slope
        header = torch.cat([weight.flatten(), bias])
    assert len(arrived) % 5 > 0
    assert (clipped > 0) == (clip is not None)
    assert plain.distance(found.state.head, header) < 2e-6
    apart(header, start[: plain.HEAD], 0.1)
    assert len(trained) > 3
    assert max(plain.distance(found.clients[i].model, w) for i, w in trained.items()) < 2e-6
