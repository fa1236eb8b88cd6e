"""CReFF against numbers worked out by hand (Shang et al., IJCAI 2022).

Two features, two classes, the classifier W = 0, b = 0, so both probabilities are .5; the body is the identity and local
training moves nothing, so features are the inputs.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from fedkin.core import ModelError, Net, Samples, Training
from fedkin.core.seeds import generator
from fedkin.functional.retraining import as_matrix, class_gradients, gradient_distance, with_bias
from fedkin.methods.creff import CReFF
from fedkin.methods.fedavg import FedAvg
from fedkin.server import Plan, begin
from toys import ByHand, ClientData, apart, close, copies, federation, mlp, mlp_with_batchnorm, plane_net, run

QUICK = CReFF(features=6, crt_epochs=4, crt_batch=5, matching_steps=5)
NETS = pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm], ids=["plain", "batchnorm"])


def start(data: list[Samples], method: CReFF = QUICK) -> ByHand:
    hand = ByHand(method, plane_net(bias=True), data, solve=lambda request, client: request.start.clone())
    model = torch.cat([torch.arange(6.0), torch.eye(2).flatten()])  # the averaged classifier is not the retrained one
    hand.server = hand.server.but(model=model, head=torch.zeros(6))
    return hand


def gradient(x: float, y: float, c: int = 0) -> torch.Tensor:
    """[W | b] of the gradient at one sample of class c."""
    z, label = torch.tensor([[x, y, 1.0]]), torch.tensor([c])
    return class_gradients(torch.zeros(2, 3), z, label, torch.ones(1, dtype=torch.float64))[c]


def test_gradient_of_the_retrained_classifier() -> None:
    """(softmax - onehot) z' at (1,2) of class 0: dW = [[-.5,-1],[.5,1]], db = (-.5,.5). It is taken at the retrained
    classifier, zero, not at the averaged one, (0 1; 2 3 | 4 5)."""
    up = start([copies([1, 2], 4)]).play()
    close(up.gradients[0, 0, :, :2], [[-0.5, -1], [0.5, 1]])
    close(up.gradients[0, 0, :, 2], [-0.5, 0.5])
    other = start([copies([1, 2], 4)])
    other.server = other.server.but(head=torch.tensor([1.0, 0, 0, 0, 0, 0]))
    apart(other.play().gradients[0, 0], up.gradients[0, 0], 0.2)


def test_a_draw_of_some_samples_is_a_mean_over_those_drawn() -> None:
    """Two draws of one of four equal samples: the gradient of one sample, [[-.5, -1], [.5, 1]], not a quarter of it."""
    up = start([copies([1, 2], 4)], replace(QUICK, real_batch=1, repeats=2)).play()
    close(up.gradients[0, 0, :, :2], [[-0.5, -1], [0.5, 1]])


@pytest.mark.parametrize(("point", "wanted"), [((2, 4), 0.0), ((-1, -2), 4.0), ((2, -1), 2.0)])
def test_distance_of_gradients(point: tuple[float, float], wanted: float) -> None:
    """From the gradient at (1,2): a longer feature gives the same direction, 0; the opposite one turns both rows, 2 + 2
    = 4, and leaves the bias; an orthogonal one gives 1 + 1 = 2."""
    close(gradient_distance(gradient(*point), gradient(1, 2), 2), wanted, 1e-5)


# Matching moves the features of a class against the gradient of D, the sum over rows of 1 - cos. With one feature z per
# class and two classes the rows of a gradient are -q z and q z with some q > 0, so D = 2 (1 - cos(z, u)) where u is the
# mean over owners of q_i x_i; at the classifier 0 all q are 1/2. The bias adds nothing.
ONE = CReFF(features=1, matching_steps=1, matching_lr=0.1, crt_epochs=1, crt_lr=1e-12)


def test_features_are_matched_to_the_plain_mean_over_owners() -> None:
    """(1, 2) of 1 sample and (3, 0) of 9, so u = (2, 1) whatever the numbers of samples. At z = (0, 1) the cosine has
    the gradient u/|u| - (z u/|u|) z = (2/sqrt 5, 0): z = (0 + .1 * 2 * 2/sqrt 5, 1) = (.178885, 1). By samples u would
    be (2.8, .2) and z = (.199492, 1). The client without class 0 has no part in it; the
    features of its class have u = (5, 5), the gradient at (1, 0) is (0, 1/sqrt 2) and z = (1, .141421)."""
    hand = start([copies([1, 2], 1), copies([3, 0], 9), copies([5, 5], 3, y=1)], ONE)
    hand.server = hand.server.but(features=torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]]))
    hand.play()
    close(hand.server.features[:, 0], [[0.178885, 1.0], [1.0, 0.141421]], 1e-5)


def test_owners_weigh_by_their_error_at_the_retrained_classifier() -> None:
    """The retrained W = [[ln 3, 0], [0, 0]], b = 0 has p_0 = 3/4 at (1, 2) and 27/28 at (3, 0): q = 1/4 and 1/28, so u
    is parallel to (1/4 + 3/28, 1/2) = (5, 7)/14. From z = (0, 1): cos has the gradient (5/sqrt 74, 0) and z is
    (.1 * 2 * 5/sqrt 74, 1) = (.116248, 1)."""
    hand = start([copies([1, 2], 1), copies([3, 0], 9)], ONE)
    hand.server = hand.server.but(
        head=torch.tensor([math.log(3), 0, 0, 0, 0, 0]), features=torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])
    )
    hand.play()
    close(hand.server.features[:, 0], [[0.116248, 1.0], [1.0, 0.0]], 1e-5)


def test_features_are_matched_at_the_retrained_classifier() -> None:
    """Three classes, one input: the retrained V = (0, 1, -1), b = 0. The client at 0 has e = p - onehot = (-2, 1, 1)/3
    as its bias gradient and rows of zeros. At z = ln 2: p = (2, 4, 1)/7, e = (-5, 4, 1)/7, dp/dz = p (V - 3/7) =
    (-6, 16, -10)/49; cos(e, e_0) = 15/sqrt 252 has the slope 18/(49 sqrt 6)/(sqrt 42/7) - cos (84/343)/(6/7) = .161985
    - .269975 = -.107990; z = ln 2 - .1 * .107990 = .682348. At the averaged
    classifier, all zeros, nothing would move."""
    net = Net(lambda: torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(1, 3)), (1,), 3)
    hand = ByHand(ONE, net, [copies([0.0], 4)], solve=lambda request, client: request.start.clone())
    hand.server = hand.server.but(
        model=torch.zeros(6),
        head=torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0, 0.0]),
        features=torch.full((3, 1, 1), math.log(2)),
    )
    hand.play()
    close(hand.server.features.flatten(), [0.682348, math.log(2), math.log(2)], 1e-5)


def test_a_feature_s_step_is_divided_by_their_number() -> None:
    """Two features of the class, both (0, 1): their mean gradient is that of one, each has half of the step: (.0894427,
    1)."""
    hand = start([copies([1, 2], 1), copies([3, 0], 9)], replace(ONE, features=2))
    hand.server = hand.server.but(features=torch.tensor([[[0.0, 1.0]] * 2, [[1.0, 0.0]] * 2]))
    hand.play()
    close(hand.server.features[0], [[0.0894427, 1.0]] * 2, 1e-5)


def test_one_class_sends_one_gradient() -> None:
    """The rows of classes that a client does not have are zero, and marked as not there."""
    hand = start([copies([1, 2], 3, y=1)])
    up = hand.play()
    assert up.has.tolist() == [[False, True]]
    assert not bool(up.gradients[0, 0].any())
    assert bool(up.gradients[0, 1].any())


def test_features_of_an_absent_class_stay() -> None:
    """Class 1 is nobody's in round 1: its features are bit for bit the same, class 0's are not."""
    hand = start([copies([1, 2], 3), copies([3, 0], 3, y=1)])
    before = hand.server.features
    hand.play([0])
    assert torch.equal(hand.server.features[1], before[1])
    apart(hand.server.features[0], before[0], 1e-3)


def test_features_are_carried_over_and_come_nearer() -> None:
    """Matching goes on in round 2 from round 1's features: the distance to one wanted gradient falls every time."""
    hand = start([copies([1, 2], 3)], CReFF(features=6, crt_epochs=1, matching_steps=3))
    head, found = torch.zeros(6), []
    wanted = gradient(1, 2)
    for _ in range(3):
        z = hand.server.features[0]
        share = torch.full((6,), 1 / 6, dtype=torch.float64)
        got = class_gradients(
            as_matrix(hand.net, head), with_bias(hand.net, z), torch.zeros(6, dtype=torch.int64), share
        )
        found.append(float(gradient_distance(got[0], wanted, 2)))
        hand.server = hand.server.but(head=head)
        hand.play()
    assert found[0] > found[1] + 0.01 > found[2] + 0.02


def test_retraining_is_sgd_on_the_new_features_from_a_new_layer() -> None:
    """One step of .5 on both classes' features together, from the random layer that a run of the same seed without a
    step size to speak of ends with: the gradient of the mean cross-entropy by autograd. Batches of one are two steps,
    in one of the two orders of the classes, and over ten rounds in both."""

    def played(t: int, method: CReFF) -> ByHand:
        hand = start([copies([1, 2], 1), copies([3, 0], 9, y=1)], method)
        hand.t = t
        hand.play()
        return hand

    def step(head: torch.Tensor, features: torch.Tensor, labels: list[int]) -> torch.Tensor:
        v = head.clone().requires_grad_(True)
        logits = features[labels, 0] @ v[:4].view(2, 2).T + v[4:]
        return head - 0.5 * torch.autograd.grad(torch.nn.functional.cross_entropy(logits, torch.tensor(labels)), v)[0]

    seen = set()
    for t in range(10):
        layer = played(t, ONE).server.head
        hand = played(t, replace(ONE, crt_lr=0.5, crt_batch=2))
        z = hand.server.features
        close(hand.server.head, step(layer, z, [0, 1]), 1e-5)
        single = played(t, replace(ONE, crt_lr=0.5, crt_batch=1)).server.head
        ends = [step(step(layer, z, [first]), z, [1 - first]) for first in (0, 1)]
        apart(ends[0], ends[1], 1e-3)
        (order,) = (first for first, end in enumerate(ends) if torch.allclose(single, end, atol=1e-5))
        seen.add(order)
    assert seen == {0, 1}


def test_without_matching_the_features_stand_still() -> None:
    """Only matching moves them."""
    hand = start([copies([1, 2], 3)], CReFF(features=6, crt_epochs=1, matching_steps=0))
    before = hand.server.features
    hand.play()
    assert torch.equal(hand.server.features, before)


def test_a_new_classifier_in_every_round() -> None:
    """Retraining starts from a new random layer, within 1/sqrt(d), not from the last one: with no step size to speak of
    what is left are two different random layers."""
    hand = ByHand(CReFF(features=6, crt_epochs=1, crt_lr=1e-12), mlp(), [federation()[0].train])
    heads = [hand.server.head]
    for _ in range(2):
        hand.play()
        heads.append(hand.server.head)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        apart(heads[i], heads[j], 0.1)
    assert all(float(h.abs().max()) <= 6**-0.5 for h in heads)


def test_retraining_learns_the_federated_features() -> None:
    """Every class has as many features, one that nobody sends too: with features apart the new classifier knows all of
    them although the one client has a single class."""
    hand = ByHand(CReFF(features=5, crt_epochs=60, matching_steps=0), mlp(), [copies([0, 0, 0, 0], 4, y=1)])
    features = 3 * torch.eye(3, 6)[:, None] + 0.1 * hand.server.features
    hand.server = hand.server.but(features=features)
    hand.play()
    guess = hand.net.classify(hand.server.head, features.flatten(0, 1)).argmax(1)
    assert torch.equal(guess, torch.arange(3).repeat_interleave(5))


@NETS
def test_the_gradient_is_of_the_model_as_received_in_eval_mode(net: Callable[[], Net]) -> None:
    """Features of w^t under its running statistics, before any training: what autograd gives for the mean cross-entropy
    of a class (all of its samples, where there are fewer than a draw takes)."""
    hand = ByHand(QUICK, net(), training=Training(epochs=2, batch_size=5, lr=0.1))
    hand.play()
    sent = hand.server
    up = hand.play()
    for i, data in enumerate(hand.data):
        for c in data.y.unique().tolist():
            v = as_matrix(hand.net, sent.head).requires_grad_(True)
            z = hand.net.features_and_logits(sent.model, data.x[data.y == c])[0]
            loss = torch.nn.functional.cross_entropy(with_bias(hand.net, z) @ v.T, data.y[data.y == c])
            close(up.gradients[i, c], torch.autograd.grad(loss, v)[0], 1e-6)


def test_draws_are_the_client_s_and_the_round_s() -> None:
    """One sample per draw out of many: another gradient in another round and on another client with the same data, the
    same when the same round is done again."""
    data = federation()[3].train

    def gradients(clients: int, rounds: int) -> torch.Tensor:
        method = CReFF(features=6, crt_epochs=1, real_batch=1, repeats=2, matching_steps=0)
        hand = ByHand(method, mlp(), [data] * clients, solve=lambda request, client: request.start.clone())
        head = hand.server.head
        for _ in range(rounds):
            hand.server = hand.server.but(head=head, model=hand.net.w0)
            up = hand.play()
        return up.gradients

    one = gradients(2, 1)
    assert torch.equal(one, gradients(2, 1))
    apart(one[0], one[1], 1e-3)
    apart(one, gradients(2, 2), 1e-3)


@NETS
def test_the_retrained_classifier_never_enters_the_model(net: Callable[[], Net]) -> None:
    """The model is FedAvg's bit for bit after every round, and with its averaged classifier it predicts as FedAvg does;
    what is reported has another classifier on the same body."""
    mine: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    shards = federation()
    a = run(QUICK, net(), shards, each_round=lambda s, _: mine.append(s.state.model))
    b = run(FedAvg(), net(), shards, each_round=lambda s, _: theirs.append(s.state.model))
    assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))
    for x, y in zip(a.reports, b.reports, strict=True):
        assert all(torch.equal(x.evaluation[i]["averaged.test"], y.evaluation[i].test) for i in y.evaluation)
    assert any(
        not torch.equal(x.evaluation[i].test, x.evaluation[i]["averaged.test"]) for x in a.reports for i in range(5)
    )


def test_reported_is_the_new_body_with_the_retrained_classifier() -> None:
    """The same for every client, whether it took part or not."""
    hand = ByHand(QUICK, training=Training(batch_size=5, lr=0.1))
    hand.play([0, 1])
    net, s = hand.net, hand.server
    for i in range(5):
        assert torch.equal(hand.used(i).model, torch.cat([s.head, s.model[net.body]]))
    apart(s.head, s.model[net.head], 1e-3)


def test_a_head_without_bias() -> None:
    """The distance has no bias part then, and the classifier no such column."""
    hand = ByHand(QUICK, plane_net(bias=False), [copies([1, 2], 3), copies([3, 0], 3, y=1)])
    up = hand.play()
    assert tuple(up.gradients.shape) == (2, 2, 2, 2)
    assert tuple(hand.server.head.shape) == (4,)


def test_the_head_must_be_linear() -> None:
    """A closed form of the gradient needs W z + b: anything else is refused at once, by name."""

    class Cosine(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(torch.nn.functional.normalize(x), self.weight)

    net = Net(lambda: torch.nn.Sequential(torch.nn.Linear(4, 6), Cosine(6, 3, bias=False)), (4,), 3)
    with pytest.raises(ModelError):
        ByHand(QUICK, net, [federation()[0].train])


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """Gradients, matching and retraining by autograd in float64, the distance row by row; five unequal clients, most
    without some class, three in each of four rounds."""
    training = Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5)
    method = CReFF(
        features=7, repeats=3, real_batch=4, matching_steps=6, matching_lr=2.0, crt_epochs=4, crt_lr=0.3, crt_batch=5
    )
    net, shards = mlp(), [_without(shard, c) for shard, c in zip(federation(), (3, 1, 1, 0, 1), strict=True)]
    found = run(method, net, shards, training=training)
    drawn = begin(method, net, Plan(4, 0.6)).state  # the first features and the first classifier
    w, header, z = net.w0.double(), drawn.head.double(), list(drawn.features.double())
    silent = 0
    for t, cohort in plain.cohorts(found):
        sent: list[list[Tensor]] = [[], [], []]
        ends = []
        for i in cohort:
            x, y, rng = shards[i].train.x.double(), shards[i].train.y, generator(0, "client", t, i)
            for c in sorted(set(y.tolist())):
                own = plain.features(w, x[y == c])
                draws = [own[torch.randperm(len(own), generator=rng)[:4]] for _ in range(3)]
                sent[c].append(sum(_slope(header, some, c) for some in draws) / 3)
            ends.append(plain.descend(w, shards[i].train, i, t, training=training)[0])
        n = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        w = n @ torch.stack(ends) / n.sum()
        for c, gradients in enumerate(sent):
            silent += not gradients
            for _ in range(6 if gradients else 0):
                wanted = sum(gradients) / len(gradients)
                how_far = lambda v, h=header, c=c, wanted=wanted: _apart(_slope(h, v, c), wanted)  # noqa: E731
                z[c] = z[c] - 2.0 * plain.gradient(how_far, z[c])
        rng, order = generator(0, "server", "", "aggregate", t), torch.arange(21)
        header = torch.empty(plain.HEAD).uniform_(-(6**-0.5), 6**-0.5, generator=rng).double()
        for _ in range(4):
            order = order[torch.randperm(21, generator=rng)]
            for batch in order.split(5):
                x, y = torch.cat(z)[batch], batch // 7
                header = header - 0.3 * plain.gradient(lambda v, x=x, y=y: _classified(v, x, y), header)
    assert silent
    assert plain.distance(found.state.model, w) < 2e-6
    assert plain.distance(found.state.features, torch.stack(z)) < 2e-6
    assert plain.distance(found.state.head, header) < 2e-6


def _without(shard: ClientData, c: int) -> ClientData:
    """The same client without the samples of one class; 3: with all."""
    keep = shard.train.y != c
    return replace(shard, train=Samples(shard.train.x[keep], shard.train.y[keep]))


def _classified(head: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy of a classifier, six weights a row and then the biases, on features."""
    return F.cross_entropy(z @ head[:18].view(3, 6).T + head[18:], y)


def _slope(head: Tensor, z: Tensor, c: int) -> Tensor:
    """The gradient by the classifier of the loss on features of one class, itself differentiable by the features."""
    h = head.detach().requires_grad_(True)
    (g,) = torch.autograd.grad(_classified(h, z, torch.full((len(z),), c)), h, create_graph=z.requires_grad)
    return g


def _apart(mine: Tensor, other: Tensor) -> Tensor:
    """One minus the cosine, summed over three rows of weights and the bias."""
    parts = zip((*mine[:18].split(6), mine[18:]), (*other[:18].split(6), other[18:]), strict=True)
    return sum(1 - (a @ b) / (a.norm() * b.norm() + 1e-6) for a, b in parts)
