"""FedProto against numbers worked out by hand (Tan et al., AAAI 2022).

Features are the inputs themselves wherever numbers are checked: the body is the identity.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import plain
from fedkin.capabilities.presets import preset, presets_of
from fedkin.core import Batch, Bundle, Net, Samples, Training
from fedkin.core.samples import tally
from fedkin.functional.prototypes import prototype_loss
from fedkin.methods.fedproto import FedProto
from fedkin.methods.local import Local
from toys import ByHand, ClientData, apart, blobs, close, copies, federation, mlp, mlp_with_batchnorm, run, unusable


def plain_features(d: int, classes: int) -> Net:
    """Features are the inputs; the head is zero, so cross-entropy is log C and sends nothing back to them."""

    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(d, d, bias=False), nn.Linear(d, classes, bias=False))
        with torch.no_grad():
            module[0].weight.copy_(torch.eye(d))
            module[1].weight.zero_()
        return module

    return Net(build, (d,), classes)


def joined(*parts: Samples) -> Samples:
    return Samples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


def still(method: FedProto, data: list[Samples], d: int = 2, classes: int = 4) -> ByHand:
    """Clients whose training moves nothing."""
    return ByHand(method, plain_features(d, classes), data, solve=lambda request, client: request.start.clone())


def two_clients() -> list[Samples]:
    """Class 0: (2,0) three times and (4,0) once; class 1: (0,2) once and (0,4) three times; class 2: (1,1) twice."""
    return [
        joined(copies([2, 0], 3, y=0), copies([0, 2], 1, y=1)),
        joined(copies([4, 0], 1, y=0), copies([0, 4], 3, y=1), copies([1, 1], 2, y=2)),
    ]


@pytest.mark.parametrize(
    ("weighted", "wanted"), [(False, [[3, 0], [0, 3], [1, 1]]), (True, [[2.5, 0], [0, 3.5], [1, 1]])]
)
def test_prototypes_are_means_over_their_owners(weighted: bool, wanted: list[list[float]]) -> None:
    """Class 0: (2 + 4)/2 = 3 plain, (3 * 2 + 1 * 4)/4 = 2.5 by samples; class 1: 3 and (1 * 2 + 3 * 4)/4 = 3.5; class 2
    has one owner; class 3 has none and no prototype. As printed, with 1/|N_j| on top of shares that sum to 1, the first
    two would shrink to 1.25 and 1.75."""
    hand = still(FedProto(weighted=weighted), two_clients())
    hand.play()
    close(hand.server.prototypes[:3], wanted)
    assert hand.server.known.tolist() == [True, True, True, False]
    apart(hand.server.prototypes[:3], [[1.25, 0], [0, 1.75], [1, 1]], 1.25)


def loss_and_slope(z: Tensor, y: list[int], aux: Bundle) -> tuple[Tensor, Tensor]:
    """What the prototypes add to the loss at features z, and its gradient with respect to them."""
    net = plain_features(z.shape[1], 3)
    z = z.clone().requires_grad_(True)
    value = prototype_loss(net, net.w0, Batch(z, torch.tensor(y)), aux) - math.log(3)
    return value.detach(), torch.autograd.grad(value, z)[0]


def test_pull_towards_prototypes() -> None:
    """z - prototype = (-2, 0) and (0, -2), the third sample's class has none: (4 + 4)/(3 * 2) = 1.333333, the gradient
    2 (z - p)/6 = -.666667 where they differ. A sum over the features' numbers, mean over samples, would be 2.666667."""
    z = torch.tensor([[0.0, 0.0], [0.0, 0.0], [5.0, 5.0]])
    aux = Bundle(
        prototypes=torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]),
        known=torch.tensor([True, True, False]),
        lam=torch.tensor(1.0),
    )
    value, slope = loss_and_slope(z, [0, 1, 2], aux)
    close(value, 1.333333)
    close(slope, [[-0.666667, 0], [0, -0.666667], [0, 0]])
    apart(value, 2.666667, 1.3)
    half, _ = loss_and_slope(z, [0, 1, 2], aux.but(lam=torch.tensor(0.5)))
    close(half, 0.666667)


def test_a_class_without_prototype_is_not_pulled_to_zero() -> None:
    """A published program pulls such classes to the zero vector. Nothing is known: no loss, no gradient."""
    aux = Bundle(prototypes=torch.zeros(3, 2), known=torch.zeros(3, dtype=torch.bool), lam=torch.tensor(1.0))
    value, slope = loss_and_slope(torch.tensor([[5.0, 5.0]]), [2], aux)
    close(value, 0)
    assert slope.tolist() == [[0, 0]]


def test_the_nearest_prototype_predicts() -> None:
    """Prototypes (0,0) and (3,0), class 2 has none. (.7,.3): .49 + .09 = .58 against 5.29 + .09 = 5.38; (1.45,1.35):
    2.1025 + 1.8225 = 3.925 against 2.4025 + 1.8225 = 4.225: both the first."""
    net = plain_features(2, 3)
    b = Bundle(
        model=net.w0,
        prototypes=torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.7, 0.3]]),
        known=torch.tensor([True, True, False]),
    )
    found = FedProto().predict(net, b, torch.tensor([[0.7, 0.3], [1.45, 1.35]]))
    close(-found, [[0.58, 5.38, math.inf], [3.925, 4.225, math.inf]])
    assert found.argmax(1).tolist() == [0, 0]


def test_without_prototypes_the_head_predicts() -> None:
    """No class known: the head's logits, bit for bit; so before the first round."""
    net, x = mlp(), federation()[0].test.x
    hand = ByHand(FedProto(), net)
    assert torch.equal(hand.method.predict(net, hand.used(0), x), net(net.w0, x))


def test_means_are_over_samples() -> None:
    """Samples 0, 2 and 10 of one class in batches of two: mean 4, where a mean of batch means is (1 + 10)/2 = 5.5."""
    data = joined(copies(0.0, 1), copies(2.0, 1), copies(10.0, 1))
    hand = still(FedProto(), [data], d=1, classes=2)
    hand.training = Training(batch_size=2)
    close(hand.play().means, [[[4.0], [0.0]]])


@pytest.mark.parametrize("net", [mlp, mlp_with_batchnorm])
def test_means_are_of_the_trained_model_in_eval_mode(net: Callable[[], Net]) -> None:
    """What leaves are class means under the final weights and running statistics, not means over passes of training."""
    hand = ByHand(FedProto(), net(), training=Training(epochs=2, batch_size=5, lr=0.1))
    up = hand.play()
    for i, kept in enumerate(hand.kept):
        z = hand.net.features_and_logits(kept.model, hand.data[i].x)[0]
        for c in hand.data[i].y.unique().tolist():
            close(up.means[i, c], z[hand.data[i].y == c].mean(0), 1e-5)


def test_a_class_that_nobody_sends_keeps_its_prototype() -> None:
    """Round 2 without client 1: class 2 keeps (1,1), where a published program forgets it; classes 0 and 1 are client
    0's alone."""
    hand = still(FedProto(), two_clients())
    hand.play()
    hand.play([0])
    close(hand.server.prototypes[:3], [[2, 0], [0, 2], [1, 1]])
    assert hand.server.known.tolist() == [True, True, True, False]


def test_what_leaves_a_client() -> None:
    """No model; and class counts only where they are used as weights."""
    for weighted, dtype in ((False, torch.bool), (True, torch.int64)):
        hand = ByHand(FedProto(weighted=weighted))
        up = hand.play()
        assert {n: tuple(t.shape) for n, t in up.items()} == {"means": (5, 3, 6), "weight": (5, 3)}
        assert up.weight.dtype == dtype
        assert {n: tuple(t.shape) for n, t in hand.download([0]).row(0).items()} == {
            "prototypes": (3, 6),
            "known": (3,),
        }


def test_negative_counts_are_refused() -> None:
    """They would make weights that sum to nothing."""
    r = ByHand(FedProto(), mlp(), [federation()[0].train]).at("aggregate", [0])
    sent = Bundle(means=torch.zeros(3, 6), weight=torch.tensor([1, -1, 0]))
    assert unusable(FedProto(weighted=True), r, sent) is not None
    assert unusable(FedProto(weighted=True), r, sent.but(weight=torch.tensor([1, 0, 0]))) is None
    assert unusable(FedProto(), r, sent.but(weight=torch.tensor([True, False, False]))) is None


def test_a_client_without_class_0_predicts_by_prototypes_of_all() -> None:
    """A published program predicts by a client's own prototypes, and only if it owns class 0. Here client 0 owns class
    1 alone and finds class 0 at the prototype of client 1; restricted to its own classes it cannot."""
    data = [copies([0, 4], 2, y=1), copies([4, 0], 2, y=0)]
    x = torch.tensor([[3.0, 1.0]])
    for restrict, wanted in ((False, 0), (True, 1)):
        hand = still(FedProto(restrict_classes=restrict), data)
        hand.play()
        assert int(hand.method.predict(hand.net, hand.used(0), x).argmax()) == wanted


def test_restricted_to_classes_nobody_sent_uses_the_head() -> None:
    """Client 0 has class 1 only and never took part: no prototype among its classes."""
    hand = still(FedProto(restrict_classes=True), [copies([0, 4], 2, y=1), copies([4, 0], 2, y=0)])
    hand.play([1])
    b = hand.used(0)
    assert not bool(b.known.any())
    x = torch.tensor([[3.0, 1.0]])
    assert torch.equal(hand.method.predict(hand.net, b, x), hand.net(hand.net.w0, x))


def test_figures_are_each_client_s_own() -> None:
    """The authors' program never resets its counters between clients and mixes head and prototypes. Here the counts
    of every client are of its own test samples, once by prototypes and once, as "head", by its head."""
    shards = federation()
    ours = run(FedProto(lam=3.0), mlp(), shards, rounds_=5)
    net, differ = mlp(), 0
    for i, found in ours.reports[-1].evaluation.items():
        model, test = ours.clients.get(i, Bundle()).get("model", net.w0), shards[i].test
        z, logits = net.features_and_logits(model, test.x)
        by_prototype = ((z[:, None] - ours.state.prototypes).square().sum(2)).argmin(1)
        for name, guess in (("test", by_prototype), ("head.test", logits.argmax(1))):
            assert torch.equal(found[name], tally(test.y, guess, 3))
        differ += int((by_prototype != logits.argmax(1)).sum())
    assert differ > 0


def test_no_pull_before_the_first_prototypes() -> None:
    """Round 1 is Local's bit for bit at any lam; round 2 is not."""
    shards = federation()
    for rounds_, same in ((1, True), (2, False)):
        ours = run(FedProto(lam=1.0), mlp(), shards, rounds_=rounds_, participation=1.0)
        local = run(Local(), mlp(), shards, rounds_=rounds_, participation=1.0)
        assert all(torch.equal(ours.clients[i].model, local.clients[i].model) == same for i in range(5))


def test_the_pull_brings_features_to_the_prototypes() -> None:
    """With a strong pull the features of the clients lie nearer to their common prototypes than without."""

    def spread(lam: float) -> float:
        hand = ByHand(FedProto(lam=lam), training=Training(epochs=3, lr=0.1))
        for _ in range(6):
            hand.play()
        total = 0.0
        for kept, data in zip(hand.kept, hand.data, strict=True):
            z = hand.net.features_and_logits(kept.model, data.x)[0]
            total += float((z - hand.server.prototypes[data.y]).square().mean())
        return total

    assert spread(5.0) < 0.5 * spread(0.0)


def test_settings() -> None:
    """Presets carry the authors' training."""
    assert preset(FedProto, "code") == FedProto(restrict_classes=True)
    assert preset(FedProto, "code-cifar10").lam == 0.1
    for settings in presets_of(FedProto()).values():
        assert Training(**settings["training"]) == Training(epochs=1, batch_size=4, lr=0.01, momentum=0.5)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weighted", [False, True])
def test_an_independent_program_gives_the_same(weighted: bool) -> None:
    """Loops over samples and classes in float64, three of five clients in each of six rounds, one class with a single
    owner; then predictions by the nearest prototype."""
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5)
    mixes = ([0.5, 0.5, 0.0], [0.3, 0.3, 0.4], [0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.2, 0.8, 0.0])
    parts = zip((9, 23, 14, 30, 11), mixes, strict=True)
    shards = [
        ClientData(*[blobs(m, mix, 10 * i + k) for k, m in enumerate((n, 5, 40))]) for i, (n, mix) in enumerate(parts)
    ]
    method = FedProto(lam=4.0, weighted=weighted, restrict_classes=weighted)
    found = run(method, mlp(), shards, rounds_=6, training=training)
    models = [mlp().w0.double() for _ in shards]
    prototypes: dict[int, Tensor] = {}
    unpulled = forgotten = 0
    for t, cohort in plain.cohorts(found):
        means: dict[int, dict[int, Tensor]] = {}
        for i in cohort:
            data = shards[i].train

            def pull(w: Tensor, x: Tensor, index: Tensor, y: Tensor = data.y) -> Tensor:
                z = plain.features(w, x)
                away = [
                    (z[b] - prototypes[c]).square().sum() for b, c in enumerate(y[index].tolist()) if c in prototypes
                ]
                return 4.0 * sum(away) / z.numel()

            models[i], _ = plain.descend(models[i], data, i, t, extra=pull, training=training)
            z = plain.features(models[i], data.x.double())
            means[i] = {c: z[data.y == c].mean(0) for c in set(data.y.tolist())}
            unpulled += 0 < len(prototypes) < len(means[i])
        for c in range(3):
            owners = [i for i in cohort if c in means[i]]
            n = {i: int((shards[i].train.y == c).sum()) if weighted else 1 for i in owners}
            if owners:
                prototypes[c] = sum(n[i] * means[i][c] for i in owners) / sum(n.values())
            forgotten += c in prototypes and not owners
    assert unpulled > 0
    assert forgotten > 0
    assert found.state.known.all()
    assert plain.distance(found.state.prototypes, torch.stack([prototypes[c] for c in range(3)])) < 2e-6
    seen, by_head = {i for r in found.reports for i in r.cohort}, 0
    assert len(seen) > 3
    for i, data in enumerate(shards):
        if i in seen:
            assert plain.distance(found.clients[i].model, models[i]) < 2e-6
        z, y = plain.features(models[i], data.test.x.double()), data.test.y
        able = sorted(set(data.train.y.tolist())) if weighted else range(3)
        guess = torch.tensor([min(able, key=lambda c: float((row - prototypes[c]).norm())) for row in z])
        assert torch.equal(found.reports[-1].evaluation[i].test, tally(y, guess, 3))
        by_head += int((plain.logits(models[i], data.test.x.double()).argmax(1) != guess).sum())
    assert by_head > 3
