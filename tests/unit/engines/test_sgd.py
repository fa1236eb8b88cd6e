"""Local SGD, number by number: on 1/2 (w - a)^2 every step can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.core import Batch, Bundle, MethodError, Net, Samples, Train, Training, cross_entropy
from fedkin.core.seeds import generator
from fedkin.engines.loop import batches, sgd
from refusals import refuses


def quadratic(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """1/2 |w - a|^2 with a = 3: from w = 1 the gradient is -2."""
    return 0.5 * (w - 3).square().sum()


def to_mean(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """1/2 (w - mean of the batch's inputs)^2."""
    return 0.5 * (w - batch.x.mean()).square().sum()


def points(n: int) -> Samples:
    """Inputs 0, 1, ... n - 1."""
    return Samples(torch.arange(n, dtype=torch.float32)[:, None], torch.zeros(n, dtype=torch.int64))


LINEAR = Net(lambda: nn.Sequential(nn.Linear(1, 1)), (1,), 1)  # [weight, bias]: P = 2
SCALAR = Net(lambda: nn.Sequential(nn.Linear(1, 1, bias=False)), (1,), 1)


def train(
    training: dict[str, Any], request: dict[str, Any], n: int = 1, start: float = 1.0, net: Net = SCALAR
) -> Tensor:
    """SGD of the quadratic loss from ``start`` in every number, lr 0.1."""
    w = torch.full((net.size,), start)
    asked = Train(w, **{"loss": quadratic, **request})
    return sgd(asked, points(n), net, Training(**{"lr": 0.1, **training}), generator(0))


def test_a_count_of_batches_begins_with_each_request() -> None:
    """With ``momentum=None`` running statistics are the mean over the request's batches: those of 0 .. 7 in batches of
    four have mean 3.5, whatever the module, which all clients of a process share, was trained on before."""
    net = Net(lambda: nn.Sequential(nn.BatchNorm1d(1, momentum=None), nn.Linear(1, 1)), (1,), 1)
    for n in (40, 8, 8):
        w = train({"epochs": 1, "batch_size": 4}, {"loss": cross_entropy}, n=n, start=0.0, net=net)
        torch.testing.assert_close(w[net.buffers][0], torch.tensor((n - 1) / 2))


CENTER = {"center": torch.zeros(1), "mu": 1.0}
SPARED = {"steps": 1, "weight_decay": 0.5, "decay_biases": False}


@pytest.mark.parametrize(
    ("training", "request_", "wanted"),
    [
        ({"steps": 2}, {}, [1.38]),  # w - 0.1 (w - 3), twice: 1, 1.2, 1.38
        ({"steps": 2, "momentum": 0.5}, {}, [1.48]),  # v = -2, then 0.5 * -2 - 1.8 = -2.8: 1, 1.2, 1.48
        ({"steps": 2, "weight_decay": 0.5}, {}, [1.2775]),  # d = -2 + 0.5, then -1.85 + 0.575: 1, 1.15, 1.2775
        # decay comes before momentum: v = -1.5, then 0.5 * -1.5 - 1.275 = -2.025
        ({"steps": 2, "weight_decay": 0.5, "momentum": 0.5}, {}, [1.3525]),
        ({"steps": 1, "weight_decay": 0.5}, {}, [1.15, 1.15]),
        (SPARED, {}, [1.15, 1.2]),  # the bias moves without decay
        (SPARED, {"only": slice(1, 2)}, [1.0, 1.2]),  # also where only a part moves
        ({"steps": 2}, CENTER, [1.18]),  # d = -2 + 1 (1 - 0), then -1.9 + 1.1 = -0.8: 1, 1.1, 1.18
        ({"steps": 2, "momentum": 0.5}, CENTER, [1.23]),  # v = -1, then 0.5 * -1 - 0.8 = -1.3
        # after the gradient step, out of the momentum and from the old w: 1 + 0.2 - 0.1, then + 0.29 - 0.11
        ({"steps": 2, "momentum": 0.5}, {**CENTER, "prox_after": True}, [1.28]),
        # with the step size of the round: 1.1, then + 0.05 * 1.9 - 0.1 * 1.1; in the gradient the pull falls with it
        ({"epochs": 2, "epoch_decay": 0.5}, {**CENTER, "prox_after": True}, [1.085]),
        ({"epochs": 2, "epoch_decay": 0.5}, CENTER, [1.14]),
        ({"epochs": 2, "epoch_decay": 0.5}, {}, [1.29]),  # 1 + 0.1 * 2, then + 0.05 * 1.8
        ({"steps": 2}, {"linear": torch.tensor([0.5])}, [1.285]),  # d = -2 + 0.5, then -1.85 + 0.5
        ({"steps": 1}, {"only": slice(0, 1)}, [1.2, 1.0]),
        ({"lr": 7.0, "epochs": 9}, {"lr": 0.1, "steps": 2, "momentum": 0.5, "weight_decay": 0.5}, [1.3525]),
        ({"steps": 9}, {"epochs": 2}, [1.38]),  # the request's epochs beat the run's steps
        ({"steps": 3}, {"project": lambda w: w.clamp(max=1.3)}, [1.3]),  # 1.2, then 1.38 and 1.47, which become 1.3
    ],
)
def test_steps_by_hand(training: dict[str, Any], request_: dict[str, Any], wanted: list[float]) -> None:
    got = train(training, request_, net=SCALAR if len(wanted) == 1 else LINEAR)
    torch.testing.assert_close(got, torch.tensor(wanted))


@pytest.mark.parametrize(
    ("clip", "linear", "mu", "wanted"),
    [(0.5, 0.0, 0.0, 1.05), (0.5, 1.0, 0.0, 1.05), (9.0, 0.0, 0.0, 1.2), (0.5, 0.0, 2.0, 0.85), (0.5, 2.0, 0.0, 1.0)],
)
def test_a_clipped_gradient(clip: float, linear: float, mu: float, wanted: float) -> None:
    """The gradient of loss and linear term together (-2, -1, -2, -2, 0) is cut to the length, never stretched; the
    proximal term around 0 is added to the cut one: -.5 + 2. A request's clip is used instead of the run's."""
    request = {"linear": torch.tensor([linear]), "center": torch.zeros(1), "mu": mu}
    torch.testing.assert_close(train({"steps": 1}, {**request, "clip": clip}), torch.tensor([wanted]))
    torch.testing.assert_close(train({"steps": 1, "clip": clip}, request), torch.tensor([wanted]))
    assert float(train({"steps": 1, "clip": 1e-9}, {**request, "clip": clip})) == pytest.approx(wanted)


def test_what_lies_between_the_spans_of_a_part_stays_bit_for_bit() -> None:
    """A norm with its statistics and the head, in a network with more layers: none of the terms moves the others."""
    net = Net(lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2)), (2,), 2)
    data = Samples(torch.randn(9, 2, generator=generator(1)), torch.tensor([0, 1, 0, 1, 0, 1, 1, 1, 0]))
    part = net.norms | net.part(net.head_name)
    start = net.fresh(1)
    for terms in ({}, {"prox_after": True}, {"clip": 0.1}):
        request = Train(start, only=part, center=torch.ones(net.size), mu=1.0, linear=torch.ones(net.size), **terms)
        for momentum in (0.0, 0.5):
            w = sgd(
                request, data, net, Training(lr=0.1, batch_size=4, weight_decay=0.1, momentum=momentum), generator(0)
            )
            assert torch.equal(w[~part], start[~part])
            assert not bool((w[part] == start[part]).any())


def test_the_gradient_outside_a_part_does_not_count_for_the_clip() -> None:
    """Slopes 0.5, 9, 1.2 and the second stands still: the norm of the others is 1.3, so each step is a tenth of it."""
    net = Net(lambda: nn.Sequential(nn.Linear(3, 1, bias=False)), (3,), 1)
    linear, only = torch.tensor([0.5, 9.0, 1.2]), torch.tensor([True, False, True])
    request = Train(torch.zeros(3), loss=nothing, linear=linear, only=only, clip=0.13)
    data = Samples(torch.zeros(1, 3), torch.tensor([0]))
    w = sgd(request, data, net, Training(lr=1.0), generator(0))
    torch.testing.assert_close(w, torch.tensor([-0.05, 0.0, -0.12]))


@pytest.mark.parametrize("decay_biases", [True, False])
def test_statistics_and_biases_of_every_network_in_a_vector(decay_biases: bool) -> None:
    """Without a slope all that moves is by weight decay: statistics stay, biases may, a number behind them is none."""
    net = Net(
        lambda: nn.Sequential(nn.Linear(2, 2)),
        (2,),
        2,
        second=lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
    )
    norm, training = net.second, Training(steps=1, lr=0.1, weight_decay=0.5, decay_biases=decay_biases)
    for main, models, kinds in (
        (norm, 2, (norm, norm)),
        (net, (net, norm), (net, norm)),
        (net, (norm, net, norm), (norm, net, norm)),
    ):
        request = Train(torch.ones(sum(kind.size for kind in kinds) + 1), loss=nothing, models=models)
        w = sgd(request, points(2), main, training, generator(0))
        wanted = [*(torch.ones(kind.size) for kind in kinds), torch.tensor([0.95])]
        for one, kind in zip(wanted, kinds, strict=False):
            one[kind.params if decay_biases else kind.matrices(kind.size).bool()] = 0.95
        torch.testing.assert_close(w, torch.cat(wanted))
    assert net.batchnorm


def nothing(net: Net, w: torch.Tensor, batch: Batch, aux: Bundle) -> torch.Tensor:
    """A loss without slope."""
    return 0.0 * w.sum()


def test_the_step_size_falls_after_every_pass_of_steps() -> None:
    """Counting in steps, a pass over the data is an epoch, too: two samples in batches of one, three steps."""
    got = train({"steps": 3, "batch_size": 1, "epoch_decay": 0.5}, {}, n=2)  # 0.1, 0.1, 0.05
    torch.testing.assert_close(got, torch.tensor([1.38 + 0.05 * 1.62]))


@pytest.mark.parametrize(
    ("loss", "facts"),
    [
        (lambda net, w, batch, aux: (w - batch.x).square().sum(1), ("shape [10]", "mean")),
        (lambda net, w, batch, aux: 0.5, ("float 0.5", "tensor")),
        (lambda net, w, batch, aux: None, ("NoneType", "`return`")),
        (lambda net, w, batch: w.sum(), ("4 were given", "loss(net, w, batch, aux)")),
    ],
)
def test_a_loss_of_another_form_is_refused(loss: Any, facts: tuple[str, ...]) -> None:
    with refuses(MethodError, *facts):
        train({"batch_size": 10}, {"loss": loss}, n=10)


def test_an_error_inside_a_loss_stays_what_it_is() -> None:
    """What the loss calls with too many arguments is its own matter."""
    with pytest.raises(TypeError):
        train({}, {"loss": lambda net, w, batch, aux: (lambda a: a)(w, batch)})


def test_what_a_batch_and_a_request_are_given() -> None:
    """Rows per sample come with their batch; nothing that was given is written to; without samples the start stays."""

    def loss(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
        assert torch.equal(aux.mark[:, 0], 10 * batch.x[:, 0])
        assert aux.same == 5
        return to_mean(net, w, batch, aux)

    marks = Bundle(mark=torch.arange(7.0)[:, None] * 10)
    train({"epochs": 2, "batch_size": 3}, {"loss": loss, "per_sample": marks, "aux": Bundle(same=torch.tensor(5))}, n=7)
    given = {"start": torch.ones(1), "center": torch.zeros(1), "linear": torch.ones(1)}
    data = points(5)
    kept = {**given, "x": data.x, "y": data.y}
    before = {n: (t.clone(), t._version) for n, t in kept.items()}
    asked = Train(**given, loss=to_mean, mu=0.5)
    got = sgd(asked, data, SCALAR, Training(momentum=0.9, weight_decay=0.1, batch_size=2), generator(0))
    assert not torch.equal(got, given["start"])
    assert all(torch.equal(t, before[n][0]) and t._version == before[n][1] for n, t in kept.items())
    assert not got.requires_grad
    empty = Samples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64))
    for training in (Training(epochs=3), Training(steps=3)):
        got = sgd(Train(torch.ones(1), loss=to_mean), empty, SCALAR, training, generator(0))
        assert torch.equal(got, torch.ones(1))


# ---- batches ------------------------------------------------------------------------------------------------------
def test_an_epoch_covers_every_sample_once() -> None:
    """Batches of an epoch are a permutation, the next has another; steps go on over new ones, the last cut short."""
    found = list(batches(7, Training(batch_size=3, epochs=2), generator(4), skip_single=False))
    assert [len(index) for _, index in found] == [3, 3, 1, 3, 3, 1]
    assert [end for end, _ in found] == [False, False, True] * 2
    first, second = (torch.cat([index for _, index in found[i : i + 3]]).tolist() for i in (0, 3))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second
    found = list(batches(5, Training(batch_size=2, steps=4), generator(4), skip_single=False))
    assert [len(index) for _, index in found] == [2, 2, 1, 2]
    assert [end for end, _ in found] == [False, False, True, False]
    assert sorted(torch.cat([index for _, index in found[:3]]).tolist()) == list(range(5))


@pytest.mark.parametrize(
    ("n", "training", "sizes"),
    [
        (5, Training(batch_size=2, epochs=2), [2, 2, 2, 2]),
        (5, Training(batch_size=2, steps=3), [2, 2, 2]),
        (4, Training(batch_size=2, epochs=1), [2, 2]),
        (1, Training(batch_size=2, epochs=3), []),
        (1, Training(batch_size=2, steps=3), []),
    ],
)
def test_a_batch_of_one_can_be_left_out(n: int, training: Training, sizes: list[int]) -> None:
    """For batch normalisation: epochs get shorter, steps are filled from the next pass, one sample gives none."""
    found = list(batches(n, training, generator(4), skip_single=True))
    assert [len(index) for _, index in found] == sizes
    per_epoch = n // 2  # the batch before the one that is left out ends the epoch, and lowers the step size
    assert [end for end, _ in found] == [(i + 1) % per_epoch == 0 for i in range(len(found))]


# ---- batch normalisation ------------------------------------------------------------------------------------------
def _norm_net() -> Net:
    return Net(lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), (2,), 2)


def _norm_data(n: int) -> Samples:
    return Samples(torch.randn(n, 2, generator=generator(2)) + 5, torch.arange(n) % 2)


@pytest.mark.parametrize(
    "terms",
    [
        {"mu": 0.5, "prox_after": False},
        {"mu": 0.5, "prox_after": True},
        {"weight_decay": 0.5},
        {"momentum": 0.9, "mu": 0.5},
        {"linear": True},
    ],
    ids=["proximal", "proximal step", "decay", "momentum", "linear"],
)
def test_running_statistics_are_moved_by_the_forward_pass_only(terms: dict[str, Any]) -> None:
    """After one step the buffers are what plain SGD leaves, whatever else pulls at the vector."""
    net, data = _norm_net(), _norm_data(8)
    if "mu" in terms:
        terms = {**terms, "center": net.w0 + 100}
    if "linear" in terms:
        terms = {**terms, "linear": torch.full((net.size,), 100.0)}
    one = Training(steps=1, batch_size=8, lr=0.1)
    plain = sgd(Train(net.w0), data, net, one, generator(0))
    pulled = sgd(Train(net.w0, **terms), data, net, one, generator(0))
    assert torch.equal(plain[net.buffers], pulled[net.buffers])
    assert not torch.equal(plain[net.buffers], net.w0[net.buffers])
    assert not torch.equal(plain[net.params], pulled[net.params])


def test_running_statistics_are_those_of_torch() -> None:
    """The tail of the vector after two batches is what a module in train mode holds; so are the parameters."""
    net, data = _norm_net(), _norm_data(8)
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    module.load_state_dict(net.unflatten(net.w0), strict=False)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    training = Training(batch_size=4, lr=0.1, momentum=0.5, weight_decay=0.01)
    for _, index in batches(8, training, generator(0), skip_single=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(data.x[index]), data.y[index]).backward()
        optimiser.step()
    torch.testing.assert_close(sgd(Train(net.w0), data, net, training, generator(0)), net.flatten(module))
