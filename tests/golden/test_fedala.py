"""FedALA against numbers worked out by hand (Zhang et al., AAAI 2023, Eqs. 4 and 5).

The network is h b x with one number for the head and one for the body; L = 1/2 (h b x - y)^2, one full-batch step of .1
a round, weights learnt in one step of 1 a round; start h = .5, b = 1. Client 0: x = 1, y = 2, 30 samples; client 1: x =
2, y = 1, 10 samples.

Round 1 starts from the global model: client 0: error -1.5, (h, b) = (.65, 1.075); client 1: error 0, (.5, 1). Server:
(.6125, 1.05625). Round 2, client 0: b is the global 1.05625; at W = 1 h is .6125, error -1.353046875, slope of h
-1.42915576, of W that times .6125 - .65: .05359334, so W = .94640666 and h = .65 - .0375 W = .61450975. Trained: error
-1.35092408, h = .75720111, b = 1.13926560. Client 1: error .29390625, slope of W .06984866: W = .93015134, h =
.60464203, trained (.54606107, 1.02271579). Server: (.70441610, 1.11012815).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Batch, Bundle, ModelError, Net, Samples, Train, Training
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches
from fedkin.methods import FedALA
from fedkin.methods.fedala import loss_of_weights
from toys import ByHand, apart, close, copies, federation, mlp, mlp_with_batchnorm, product_net, run, squares


def by_hand(net: Net, v: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """Squared errors in place of the cross-entropy, in both kinds of request."""
    return loss_of_weights(squares, net, v, batch, aux) if "own" in aux else squares(net, v, batch, aux)


def two_clients(method: FedALA | None = None) -> ByHand:
    data = [copies(1.0, 30, y=2), copies(2.0, 10, y=1)]
    training = Training(steps=1, lr=0.1, batch_size=1000)
    return ByHand(method or FedALA(first_epochs=1), product_net(0.5, 1.0), data, training=training, loss=by_hand)


def test_two_rounds() -> None:
    """The numbers above."""
    hand = two_clients()
    close(hand.play().model, [[0.65, 1.075], [0.5, 1.0]])
    close(hand.server.model, [0.6125, 1.05625])
    close(hand.play().model, [[0.75720111, 1.13926560], [0.54606107, 1.02271579]])
    close([float(b.mix) for b in hand.kept], [0.94640666, 0.93015134])
    close(hand.server.model, [0.70441610, 1.11012815])


def test_weights_go_on_from_where_they_were() -> None:
    """Round 3, client 0: h starts at .75720111 - .05278501 * .94640666 = .70724502, its error is -1.21486738, the slope
    of W .07118895: W = .87521771. From 1, as if the first time, it would be .92862703."""
    hand = two_clients()
    hand.play()
    hand.play()
    hand.play([0])
    close(hand.kept[0].mix, [0.87521771])
    apart(hand.kept[0].mix, [0.92862703], 0.05)


def test_predictions_are_mixtures_before_training() -> None:
    """After round 1: client 0 mixes to .61450975 and client 1 to .60464203, with the global body; their states stay as
    they are. The model after training is a view."""
    hand = two_clients()
    hand.play()
    close([hand.used(i).model.tolist() for i in range(2)], [[0.61450975, 1.05625], [0.60464203, 1.05625]])
    assert set(hand.kept[0]) == {"model"}
    views = views_of(hand.method, hand.client(0, hand.download([0]).row(0)))
    close(views["trained"].model, [0.65, 1.075])
    close(views["global"].model, [0.6125, 1.05625])


def test_a_client_without_a_model_of_its_own_uses_the_global_one() -> None:
    """To start from and to predict with. Client 1 on (.65, 1.075): error .3975: (.65 - .0854625, 1.075 - .051675)."""
    hand = two_clients()
    hand.play([0])
    assert torch.equal(hand.used(1).model, hand.server.model)
    close(hand.play([1]).model[0], [0.5645375, 1.023325])


def test_weights_stay_between_0_and_1() -> None:
    """A step of 100 would end at 1 - 5.36; at 0 the head is the client's own. A client for which the global head is
    better keeps 1: its step upwards is cut."""
    hand = two_clients(FedALA(first_epochs=1, mix_lr=100.0))
    hand.play()
    used = hand.used(0).model
    close(used, [0.65, 1.05625])
    hand.kept[0] = Bundle(model=torch.tensor([0.55, 1.075]))
    close(hand.used(0).model, [0.6125, 1.05625])


def test_the_first_time_takes_more_passes() -> None:
    """Two steps from 1: .94640666, then at h = .61450975 the slope of W is .05350926: .89289740."""
    hand = two_clients(FedALA(first_epochs=2))
    hand.play()
    hand.play()
    close(hand.kept[0].mix, [0.89289740])


def test_steps_are_those_of_a_share_of_the_samples() -> None:
    """.8 of 23 samples, 18.4, are four batches of 5; 11 passes are 44 steps the first time; momentum, Adam and weight
    decay of the run take no part."""
    asked: list[Train] = []

    def note(request: Train, client: object) -> Tensor:
        asked.append(request)
        return request.start

    net = mlp()
    training = Training(epochs=3, batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.1)
    hand = ByHand(FedALA(share=0.8), net, [federation()[1].train], training=training, solve=note)
    for _ in range(3):
        hand.play()
    assert len(hand.data[0]) == 23
    assert [r.steps for r in asked] == [None, 44, None, 4, None]
    of_weights = asked[1].training(training)
    assert (of_weights.lr, of_weights.momentum, of_weights.weight_decay) == (1.0, 0.0, 0.0)
    adam = Training(optimizer="adam")
    assert [r.training(adam).optimizer for r in asked[:2]] == ["adam", "sgd"]
    assert int(of_weights.steps or 0) == 44
    assert asked[0].training(training).steps_for(23) == 15


@pytest.mark.parametrize(("layers", "numbers"), [(1, 21), (2, 51)])
def test_layers_are_layers_not_tensors(layers: int, numbers: int) -> None:
    """One layer is the head's weight and bias, 18 + 3 numbers, not the last tensor; below it is the global model."""
    net = mlp()
    hand = ByHand(FedALA(layers=layers), net, training=Training(lr=0.1, batch_size=5))
    hand.play()
    hand.play()
    assert all(len(b.mix) == numbers for b in hand.kept)
    used, below = hand.used(2).model, ~net.top(layers)
    assert torch.equal(used[below], hand.server.model[below])
    apart(used[~below], hand.server.model[~below], 1e-4)


def test_more_layers_than_there_are() -> None:
    """Three of a network of two."""
    with pytest.raises(ModelError):
        ByHand(FedALA(layers=3))


def test_running_statistics_are_the_global_models() -> None:
    """They are not mixed, and learning the weights leaves them as they are."""
    net = mlp_with_batchnorm()
    for layers in (1, 3):
        hand = ByHand(FedALA(layers=layers), net)
        hand.play()
        assert torch.equal(hand.used(1).model[net.buffers], hand.server.model[net.buffers])


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """Named tensors with autograd in float64, five rounds of three out of five unequal clients, two mixed layers."""
    net, shards, training = mlp(), federation(), Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5)
    found = run(FedALA(layers=1, share=0.7, mix_lr=20.0, first_epochs=3), net, shards, rounds_=6, training=training)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    server = {n: t.double() for n, t in net.unflatten(net.w0).items()}
    own: dict[int, Named] = {}
    mix: dict[int, Named] = {}
    for t, report in enumerate(found.reports, 1):
        for i in report.cohort:
            data, start, number = shards[i].train, server, 0
            if i in own:
                steps = (1 if i in mix else 3) * -(-7 * len(data) // 50)
                mix.setdefault(i, {n: torch.ones_like(p) for n, p in server.items() if n.startswith("2.")})
                mix[i] = _learn(module, own[i], server, mix[i], data, steps, t, i)
                start = _mixed(own[i], server, mix[i])
                number = 1
            own[i] = _train(module, start, data, training, t, i, number)
        n = {i: len(shards[i].train) for i in report.cohort}
        server = {name: sum(n[i] * own[i][name] for i in n) / sum(n.values()) for name in server}
    assert plain.distance(found.state.model, torch.cat([server[name].flatten() for name in net.names])) < 2e-6
    assert len(mix) > 2
    for i, weights in mix.items():
        wanted = torch.cat([weights["2.weight"].flatten(), weights["2.bias"]])
        assert plain.distance(found.clients[i].mix, wanted) < 5e-6
        apart(found.clients[i].mix, torch.ones(21), 0.05)


Named = dict[str, Tensor]


def _mixed(own: Named, new: Named, mix: Named) -> Named:
    return {n: own[n] + (new[n] - own[n]) * mix[n] if n in mix else new[n] for n in new}


def _loss(module: nn.Module, parts: Named, data: Samples, index: Tensor) -> Tensor:
    return nn.functional.cross_entropy(functional_call(module, parts, (data.x[index].double(),)), data.y[index])


def _learn(module: nn.Module, own: Named, new: Named, mix: Named, data: Samples, steps: int, t: int, i: int) -> Named:
    rng = generator(0, "batches", "update", t, i, 0)
    for _, index in batches(len(data), Training(steps=steps, batch_size=5), rng, skip_single=False):
        leaves = {n: w.detach().requires_grad_(True) for n, w in mix.items()}
        slopes = torch.autograd.grad(_loss(module, _mixed(own, new, leaves), data, index), list(leaves.values()))
        mix = {n: (w.detach() - 20 * g).clamp(0, 1) for (n, w), g in zip(leaves.items(), slopes, strict=True)}
    return mix


def _train(module: nn.Module, start: Named, data: Samples, training: Training, t: int, i: int, number: int) -> Named:
    leaves = {n: p.detach().clone().requires_grad_(True) for n, p in start.items()}
    sgd = torch.optim.SGD(leaves.values(), training.lr, momentum=training.momentum)
    rng = generator(0, "batches", "update", t, i, number)
    for _, index in batches(len(data), training, rng, skip_single=False):
        sgd.zero_grad()
        _loss(module, leaves, data, index).backward()
        sgd.step()
    return {n: p.detach() for n, p in leaves.items()}
