"""FedAvg against numbers worked out by hand (McMahan et al., AISTATS 2017): w <- sum n_i w_i / sum n_i."""

import pytest
import torch
from torch import Tensor, nn

import plain
from fedkin.capabilities.views import views_of
from fedkin.core import Bundle, Samples, Training
from fedkin.methods import FedAvg
from toys import ByHand, close, copies, mlp, mlp_with_batchnorm, quadratic, vector_net


@pytest.mark.parametrize(("uniform", "wanted"), [(False, [4.0, -1.0]), (True, [3.0, 0.0])])
def test_mean_by_samples_and_uniform(uniform: bool, wanted: list[float]) -> None:
    """n = (10, 30), w = (1, 2) and (5, -2): (4, -1) by samples, (3, 0) uniform."""
    hand = ByHand(FedAvg(), vector_net(0.0, 0.0), [copies([0.0, 0.0], n) for n in (10, 30)], uniform=uniform)
    up = Bundle(model=torch.tensor([[1.0, 2.0], [5.0, -2.0]]))
    close(hand.method.aggregate(hand.server, hand.at("aggregate", [0, 1], 1), up).model, wanted)


def test_two_rounds() -> None:
    """L_i = 1/2 (w - a_i)^2, a = (0, 8), n = (30, 10), two steps of .5 from 0: locals 0 and 6, global 60/40 = 1.5. The
    next round starts there: locals 1.5/4 = .375 and 8 - 6.5/4 = 6.375, global (11.25 + 63.75)/40 = 1.875."""
    hand = ByHand(
        FedAvg(),
        vector_net(0.0),
        [copies(0.0, 30), copies(8.0, 10)],
        training=Training(steps=2, lr=0.5, batch_size=1000),
        loss=quadratic,
    )
    close(hand.play().model, [[0.0], [6.0]])
    close(hand.server.model, [1.5])
    close(hand.play().model, [[0.375], [6.375]])
    close(hand.server.model, [1.875])


def test_one_participant() -> None:
    """m = 1: the global model is that client's."""
    hand = ByHand(FedAvg())
    up = hand.play([3])
    assert torch.equal(hand.server.model, up.model[0])


def test_identical_models_are_unchanged() -> None:
    """Clients that all send the same model: that model, exactly."""
    hand = ByHand(FedAvg())
    w = hand.net.w0
    got = hand.method.aggregate(hand.server, hand.at("aggregate", range(5), 1), Bundle(model=w.expand(5, -1)))
    assert torch.equal(got.model, w)


def test_everybody_is_evaluated_with_the_global_model() -> None:
    """Participants or not; "local" is each client's own model right after its training."""
    hand = ByHand(FedAvg(after_training=True))
    up = hand.play([0, 2])
    assert torch.equal(hand.used(4).model, hand.server.model)
    sent = hand.method.deliver(hand.server, hand.at("evaluate", [2, 4]))
    views = [views_of(hand.method, hand.client(i, sent.row(row)))["local"].model for row, i in enumerate((2, 4))]
    assert torch.equal(views[0], up.model[1])
    assert torch.equal(views[1], hand.server.model)
    assert views_of(FedAvg(), hand.client(2, sent.row(0))) == {}


def test_running_statistics_are_averaged_like_weights_and_counters_are_not() -> None:
    """BatchNorm: the float buffers are the tail of the vector and get the weighted mean of the clients'; the integer
    counter is no part of what is sent."""
    net = mlp_with_batchnorm()
    hand = ByHand(FedAvg(), net, training=Training(batch_size=5, lr=0.1))
    sizes = torch.tensor([9.0, 30.0])
    up = hand.play([0, 3])
    assert not torch.equal(up.model[0, net.buffers], net.w0[net.buffers])
    mean = (sizes[:, None] * up.model[:, net.buffers]).sum(0) / sizes.sum()
    close(hand.server.model[net.buffers], mean)
    assert net.size == sum(t.numel() for t in net.unflatten(net.w0).values())
    assert not any("num_batches_tracked" in n for n in net.names)


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """PyTorch's own module, loss and SGD in float64, with momentum and weight decay on weights only; five rounds of
    three out of five unequal clients."""
    training = Training(epochs=2, batch_size=5, lr=0.2, momentum=0.5, weight_decay=0.05, decay_biases=False)
    found, shards, _ = plain.played(FedAvg(after_training=True), rounds_=5, training=training)
    net = mlp()
    server = {name: value.double() for name, value in net.unflatten(net.w0).items()}
    kept: dict[int, dict[str, Tensor]] = {}
    for t, cohort in plain.cohorts(found):
        for i in cohort:
            kept[i] = _trained(server, shards[i].train, training, i, t)
        n = {i: len(shards[i].train) for i in cohort}
        server = {name: sum(n[i] * kept[i][name] for i in cohort) / sum(n.values()) for name in server}
    flat = lambda parts: torch.cat([parts[name].flatten() for name in net.names])  # noqa: E731
    assert plain.distance(found.state.model, flat(server)) < 2e-6
    assert len(kept) > 3
    for i, parts in kept.items():
        assert plain.distance(found.clients[i].local, flat(parts)) < 2e-6


def _trained(start: dict[str, Tensor], data: Samples, training: Training, client: int, t: int) -> dict[str, Tensor]:
    """A client's parameters after ``torch.optim.SGD``."""
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    module.load_state_dict(start)
    weights, biases = ([p for n, p in module.named_parameters() if n.endswith(end)] for end in ("weight", "bias"))
    groups = [{"params": weights, "weight_decay": training.weight_decay}, {"params": biases}]
    sgd = torch.optim.SGD(groups, lr=training.lr, momentum=training.momentum)
    for index in plain.drawn(data, client, t, training):
        sgd.zero_grad()
        nn.CrossEntropyLoss()(module(data.x[index].double()), data.y[index]).backward()
        sgd.step()
    return {name: p.detach() for name, p in module.named_parameters()}
