"""FedRoD against numbers worked out by hand (Chen and Chao, ICLR 2022).

Generic logits g(z), trained by balanced softmax: -log( n_y^gamma e^{g_y} / sum_c n_c^gamma e^{g_c} ). Personal head p,
trained by cross-entropy of g(z) + p(z), in which g and z are constants. One SGD step moves both.
"""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, Samples, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import sgd
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedrod import FedRoD, log_prior, made_head, new_hyper, two_heads
from fedkin.server import Plan, begin
from toys import (
    ByHand,
    ClientData,
    Run,
    apart,
    blobs,
    close,
    copies,
    federation,
    logit_net,
    mlp,
    mlp_with_batchnorm,
    plane_net,
    run,
    vector_net,
)

STEP = Training(steps=1, lr=0.1, batch_size=1000)


# ---- balanced softmax ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("gamma", "y", "loss", "q"),
    [
        (1.0, 0, 0.087983, [0.915776, 0.084224, 0.0]),
        (1.0, 1, 2.474278, [0.915776, 0.084224, 0.0]),
        (0.0, 1, 1.551445, [0.576117, 0.211942, 0.211942]),
        (0.5, 1, 1.861995, [0.844638, 0.155362, 0.0]),
    ],
)
def test_balanced_softmax(gamma: float, y: int, loss: float, q: list[float]) -> None:
    """Logits (1, 0, 0), counts (4, 1, 0): q_0 = 4e/(4e + 1) = .915776 and class 2 takes no part; gamma = .5: 2e/(2e +
    1) = .844638; gamma = 0 is plain cross-entropy over all classes, e/(e + 2) = .576117. The gradient is q - e_y."""
    net = logit_net(3)
    v = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], requires_grad=True)
    prior = log_prior(torch.tensor([4, 1, 0]), gamma)
    batch = Batch(torch.ones(1, 1), torch.tensor([y]))
    both = two_heads(net, v, batch, Bundle(log_prior=prior))
    close(both.item() - F.cross_entropy(v[:3], batch.y[0]).item(), loss)
    (grad,) = torch.autograd.grad(both, v)
    close(grad[:3], torch.tensor(q) - F.one_hot(batch.y[0], 3))


def test_counts_come_from_the_whole_training_set() -> None:
    """A label that was not counted would have an infinite loss (a published program counts through a shuffled loader
    that drops its last batch). Here 7 samples in batches of 3 are all counted, the last one's class included."""
    net = logit_net(3)
    batch = Batch(torch.ones(1, 1), torch.tensor([2]))
    prior = log_prior(torch.tensor([4, 1, 0]), 1.0)
    assert float(two_heads(net, torch.zeros(6), batch, Bundle(log_prior=prior))) == float("inf")
    data = Samples(torch.ones(7, 1), torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    hand = ByHand(FedRoD(), net, [data], training=Training(batch_size=3, epochs=2))
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    close(request.aux.log_prior, torch.tensor([4.0, 2.0, 1.0]).log())
    assert bool(torch.isfinite(hand.play().model).all())


# ---- one step of both heads ----------------------------------------------------------------------------------------
def one_step(method: FedRoD, kept: Bundle | None = None) -> ByHand:
    """Generic head ((.2, .1), (0, .3)), body the identity; 3 and 1 samples per class; a batch of one: z = (1, 2), class
    1."""
    data = Samples(torch.tensor([[1.0, 2.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1]))
    batch = Samples(data.x[:1], torch.tensor([1]))
    net = plane_net()
    hand = ByHand(method, net, [data], training=STEP, solve=lambda t, c: sgd(t, batch, net, STEP, generator(0)))
    hand.server = hand.server.but(model=torch.tensor([0.2, 0.1, 0.0, 0.3, 1.0, 0.0, 0.0, 1.0]))
    hand.kept = [kept or Bundle()]
    return hand


GENERIC = [0.128934, -0.042133, 0.071066, 0.442133]


@pytest.mark.parametrize("kept", [None, Bundle(head=torch.tensor([0.2, 0.1, 0.0, 0.3]))])
def test_one_step_of_both_heads(kept: Bundle | None) -> None:
    """g = (.4, .6), balanced q_0 = 3 e^.4/(3 e^.4 + e^.6) = .710665: head row 0 falls by .1 * .710665 (1, 2), row 1
    rises; the feature's gradient W^T (q - e_1) = (.142133, -.142133), so the body, whose input is (1, 2) too, moves by
    -.1 times its outer product with (1, 2). Whatever the personal head is: its own gradient reaches neither. If it did,
    with a copy of the generic head, the feature's gradient would be (.302658, -.302658)."""
    up = one_step(FedRoD(), kept).play().model[0]
    close(up[:4], GENERIC)
    feature = torch.tensor([0.142133, -0.142133])
    close(up[4:], torch.eye(2).flatten() - 0.1 * torch.outer(feature, torch.tensor([1.0, 2.0])).flatten())


def test_one_step_of_the_personal_head() -> None:
    """From zero: g + p = (.4, .6), probability of class 0 .450166 (loss .598139), so row 0 moves by -.1 * .450166 (1,
    2): the features and logits are those before the generic step."""
    hand = one_step(FedRoD())
    hand.play()
    close(hand.kept[0].head, [-0.045017, -0.090033, 0.045017, 0.090033])


def test_losses_of_the_step() -> None:
    """Balanced 1.240167 and personal .598139 add up."""
    v = torch.tensor([0.2, 0.1, 0.0, 0.3, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    batch = Batch(torch.tensor([[1.0, 2.0]]), torch.tensor([1]))
    aux = Bundle(log_prior=log_prior(torch.tensor([3, 1]), 1.0))
    close(two_heads(plane_net(), v, batch, aux).item(), 1.240167 + 0.598139)


# ---- prediction ----------------------------------------------------------------------------------------------------
def test_personal_prediction_adds_both_heads() -> None:
    """Generic logits (2, 1.5, 0), personal (-1, .5, 1.2): generic says 0, the sum (1, 2, 1.2) says 1; the personal
    head alone, as in a published program, would say 2."""
    method, net, x = FedRoD(), logit_net(3), torch.ones(1, 1)
    b = Bundle(model=torch.tensor([2.0, 1.5, 0.0]), head=torch.tensor([-1.0, 0.5, 1.2]))
    close(method.predict(net, b, x), [[1.0, 2.0, 1.2]])
    assert int(method.predict(net, b, x).argmax()) == 1
    assert int(method.predict(net, b.only(["model"]), x).argmax()) == 0
    assert int(b.head.argmax()) == 2


def test_which_model_is_reported() -> None:
    """The client's head on the new common model; "trained" is its own model after its last training. A client never
    seen predicts with the common model and its first head, zero, in both."""
    net, data = mlp(), [s.train for s in federation()]
    hand = ByHand(FedRoD(), net, data)
    up = hand.play([0, 1, 2])
    for i, trained in ((1, up.model[1]), (4, hand.server.model)):
        used, views = hand.used(i), views_of(hand.method, hand.client(i, hand.download([i]).row(0)))
        assert torch.equal(used.model, hand.server.model)
        assert torch.equal(views["trained"].model, trained)
        assert torch.equal(used.head, views["trained"].head)
        assert torch.equal(views["generic"].model, hand.server.model)
        assert "head" not in views["generic"]
    assert torch.equal(hand.used(1).head, hand.kept[1].head)
    assert not bool(hand.used(4).head.any())
    apart(up.model[1], hand.server.model, 1e-4)


# ---- what moves, what leaves --------------------------------------------------------------------------------------
def test_classes_that_a_client_lacks_stand_still() -> None:
    """Their row of the generic head has gradient 0 and comes back as it was sent, bit for bit, which shows the server
    that they are missing; plain cross-entropy moves every row."""
    net = mlp()
    full = blobs(20, [1.0, 1, 1], 0)
    data = Samples(full.x, full.y.clamp(max=1))
    for gamma, still in ((1.0, True), (0.0, False)):
        up = ByHand(FedRoD(gamma=gamma), net, [data], training=Training(epochs=2, batch_size=5, lr=0.1)).play().model[0]
        rows = up[net.head_weight].view(3, 6) == net.w0[net.head_weight].view(3, 6)
        assert rows.all(1).tolist() == [False, False, still]


def test_a_client_of_one_class_teaches_the_common_model_nothing() -> None:
    """Its balanced loss is -log 1 = 0, so its model comes back as it was; its personal head learns the class."""
    net = mlp()
    hand = ByHand(
        FedRoD(), net, [copies([1.0, -1.0, 0.5, 2.0], 6, y=1)], training=Training(epochs=5, batch_size=4, lr=0.1)
    )
    assert torch.equal(hand.play().model[0], net.w0)
    logits = hand.method.predict(net, hand.used(0), hand.data[0].x[:1])
    assert int(logits.argmax()) == 1


def test_the_personal_head_never_leaves_its_client() -> None:
    """Up and down goes one model; the head stays, and goes on from where it was."""
    net = mlp()
    hand = ByHand(FedRoD(), net)
    assert {n: t.numel() for n, t in hand.download([0]).row(0).items()} == {"model": net.size}
    assert {n: tuple(t.shape) for n, t in hand.play().items()} == {"model": (5, net.size)}
    request = next(hand.method.client_update(hand.client(2, hand.download([2]).row(0))))
    assert torch.equal(request.start, torch.cat([hand.server.model, hand.kept[2].head]))


def test_server_mean_is_weighted() -> None:
    """30 and 10 samples: (30 w_0 + 10 w_1)/40."""
    hand = ByHand(FedRoD(), mlp(), [blobs(30, [1.0, 1, 1], 0), blobs(10, [1.0, 1, 1], 1)])
    up = hand.play()
    close(hand.server.model, (30 * up.model[0] + 10 * up.model[1]) / 40)


def test_the_personal_head_starts_at_zero() -> None:
    """Whatever model a late joiner is sent."""
    hand = ByHand(FedRoD())
    hand.server = hand.server.but(model=hand.net.w0 + 1.0)
    assert not any(bool(hand.used(i).head.any()) for i in range(3))


# ---- the hypernetwork ----------------------------------------------------------------------------------------------
def test_head_made_of_class_shares() -> None:
    """One hidden unit: relu(2 * .25 - 1 * .75 + .5) = .25; the head of two numbers is 4 * .25 + 1 = 2, -4 * .25 = -1;
    with shares (0, 1) the unit is relu(-.5) = 0 and the head (1, 0)."""
    hyper = torch.tensor([2.0, -1.0, 0.5, 4.0, 1.0, -4.0, 0.0])
    close(made_head(hyper, torch.tensor([0.25, 0.75]), 2), [2.0, -1.0])
    close(made_head(hyper, torch.tensor([0.0, 1.0]), 2), [1.0, 0.0])


def test_hypernetwork_learns_from_the_personal_loss_alone() -> None:
    """It starts with heads of zero. One step: only the second layer moves, by -.1 (q - e_1) z^T times the hidden units
    (a constant 1 among them), so the new head is the own head's step times 1 + |units|^2; the generic model moves as
    with an own head."""
    hand = one_step(FedRoD(personal="hyper", hidden=5))
    start, share = hand.server.hyper, torch.tensor([0.75, 0.25])
    assert not bool(made_head(start, share, 4).any())
    up = hand.play()
    close(up.model[0, :4], GENERIC)
    units = F.relu(start[:15].view(5, 3) @ torch.tensor([0.75, 0.25, 1.0]))
    wanted = torch.tensor([-0.045017, -0.090033, 0.045017, 0.090033]) * (1 + units.square().sum())
    close(made_head(up.hyper[0], share, 4), wanted)
    close(hand.kept[0].head, wanted)
    assert torch.equal(up.hyper[0, :15], start[:15])


def test_hypernetwork_makes_a_head_for_a_newcomer() -> None:
    """A client never seen gets a head of its own class shares at once; it differs from that of another client."""
    hand = ByHand(FedRoD(personal="hyper"), training=Training(epochs=3, lr=0.1))
    for _ in range(3):
        hand.play([0, 1, 2])
    a, b = hand.used(3), hand.used(4)
    assert torch.equal(a.model, hand.server.model)
    apart(a.head, torch.zeros(21), 1e-3)
    apart(a.head, b.head, 1e-3)
    close(a.head, made_head(hand.server.hyper, hand.data[3].counts(3) / 30, 21))


def test_new_hypernetworks_are_drawn_by_the_seed() -> None:
    """First layer within 1/sqrt(C), second zero; another generator, another first layer."""
    a, b = (new_hyper(4, 3, 6, generator(seed)) for seed in (0, 1))
    assert a.shape == (6 * 5 + 3 * 7,)
    assert bool((a[:30].abs() <= 0.5).all())
    assert not bool(a[30:].any())
    assert torch.equal(a, new_hyper(4, 3, 6, generator(0)))
    assert not torch.equal(a, b)


# ---- identities ----------------------------------------------------------------------------------------------------
def models(
    method: FedRoD | FedAvg, batchnorm: bool = False, shards: Sequence[ClientData] | None = None
) -> list[Tensor]:
    """The server's model after every round."""
    out: list[Tensor] = []
    net = mlp_with_batchnorm() if batchnorm else mlp()
    run(method, net, shards or federation(), each_round=lambda s, _: out.append(s.state.model))
    return out


def test_the_common_model_does_not_depend_on_the_personal_part() -> None:
    """However the personal head is made: bit for bit the same common model, unlike FedAvg's."""
    own = models(FedRoD())
    assert all(torch.equal(a, b) for a, b in zip(own, models(FedRoD(personal="hyper")), strict=True))
    apart(own[-1], models(FedAvg())[-1], 1e-3)


def test_predictions_of_an_untrained_personal_head_are_the_generic_ones() -> None:
    """Before a client was ever sampled the personal prediction is the generic one (a start at zero)."""
    result: Run = run(FedRoD(), mlp(), federation(), rounds_=1, participation=0.4)
    for i, found in result.reports[0].evaluation.items():
        same = torch.equal(found.test, found["generic.test"]) and torch.equal(found.test, found["trained.test"])
        assert same or i in result.reports[0].cohort


def test_running_statistics_are_kept_with_the_model() -> None:
    """Under batch normalisation a client of one sample stands still, others' statistics move and stay finite."""
    net = mlp_with_batchnorm()
    data = [blobs(n, [1.0, 1, 1], n) for n in (1, 2, 20)]
    hand = ByHand(FedRoD(), net, data, training=Training(batch_size=5, lr=0.1))
    up = hand.play().model
    assert torch.equal(up[0], net.w0)
    assert all(not torch.equal(w[net.buffers], net.w0[net.buffers]) for w in up[1:])
    assert bool(torch.isfinite(up).all())
    assert torch.equal(hand.kept[2].trained[net.buffers], up[2][net.buffers])
    assert torch.equal(hand.used(2).model[net.buffers], hand.server.model[net.buffers])


def test_one_logit_and_no_body() -> None:
    """A network that is all head, with one class, still goes through (its losses are 0)."""
    hand = ByHand(FedRoD(), vector_net(1.0), [copies(2.0, 3)])
    assert torch.equal(hand.play().model, torch.ones(1, 1))


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("personal", ["own", "hyper"])
def test_an_independent_program_gives_the_same(personal: str) -> None:
    """Both losses with a gradient of their own in float64, some clients without a class, own heads or a hypernetwork,
    three of five clients in each of five rounds."""
    net, method = mlp(), FedRoD(gamma=0.7, personal=personal, hidden=5)
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5)
    mixes = ([0.8, 0.2, 0.0], [0.2, 0.1, 0.7], [0.0, 0.9, 0.1], [0.3, 0.4, 0.3], [0.1, 0.0, 0.9])
    sizes = (9, 23, 14, 30, 11)
    shards = [
        ClientData(*[blobs(m, mixes[i], 10 * i + k) for k, m in enumerate((n, 5, 8))]) for i, n in enumerate(sizes)
    ]
    found = run(method, net, shards, rounds_=5, training=training)
    counts = [torch.tensor([float((s.train.y == c).sum()) for c in range(3)]).double() for s in shards]
    w, heads = net.w0.double(), [torch.zeros(plain.HEAD).double() for _ in shards]
    drawn = begin(method, net, Plan(5)).state.hyper if personal == "hyper" else torch.zeros(0)  # its first layer
    hyper, first = drawn.double(), 5 * 4  # five hidden units, then a head of 21; the bias is the last of each row

    def made(v: Tensor, i: int) -> Tensor:
        if personal == "own":
            return v
        one, two = v[:first].view(5, 4), v[first:].view(plain.HEAD, 6)
        units = torch.clamp(one[:, :3] @ (counts[i] / counts[i].sum()) + one[:, 3], min=0)
        return two[:, :5] @ units + two[:, 5]

    lacking = 0
    for t, cohort in plain.cohorts(found):
        models, hypers = [], []
        for i in cohort:
            data, here, there = shards[i].train, w, heads[i] if personal == "own" else hyper
            lacking += int((counts[i] == 0).any())
            speed = torch.zeros(len(here) + len(there)).double()
            for index in plain.drawn(data, i, t, training):
                x, y = data.x[index].double(), data.y[index]

                def balanced(v: Tensor, x: Tensor = x, y: Tensor = y, n: Tensor = counts[i] ** 0.7) -> Tensor:
                    odds = n * plain.logits(v, x).exp()
                    return -(odds[range(len(y)), y] / odds.sum(1)).log().mean()

                def of_person(v: Tensor, x: Tensor = x, y: Tensor = y, i: int = i, w: Tensor = here) -> Tensor:
                    head, z = made(v, i), plain.features(w, x)
                    scores = plain.logits(w, x) + z @ head[:18].view(3, 6).T + head[18:]
                    return -scores.log_softmax(1)[range(len(y)), y].mean()

                g = torch.cat([plain.gradient(balanced, here), plain.gradient(of_person, there)])
                speed = 0.5 * speed + g
                here, there = here - 0.2 * speed[: len(here)], there - 0.2 * speed[len(here) :]
            heads[i] = made(there, i)
            models.append(here)
            hypers.append(there)
        size = torch.tensor([len(shards[i].train) for i in cohort]).double()
        w, hyper = (size / size.sum()) @ torch.stack(models), (size / size.sum()) @ torch.stack(hypers)
    seen = {i for r in found.reports for i in r.cohort}
    assert lacking >= 3
    assert len(seen) > 3
    assert plain.distance(found.state.model, w) < 2e-6
    if personal == "hyper":
        assert plain.distance(found.state.hyper, hyper) < 2e-6
    for i in seen:
        assert plain.distance(found.clients[i].head, heads[i]) < 2e-6
    apart(heads[min(seen)], torch.zeros(plain.HEAD), 1e-2)
