"""FedProx against numbers worked out by hand (Li et al., MLSys 2020): min F_i(v) + mu/2 |v - w|^2 from v = w."""

import pytest
import torch

import plain
from fedkin.core import Training
from fedkin.methods import FedAvg, FedProx
from toys import ByHand, apart, close, federation, mlp, run, two_quadratics


def test_one_round() -> None:
    """mu = 1, two steps: client 1 goes 4, then (4 - 8) + (4 - 0) = 0: locals 0 and 4, global 40/40 = 1."""
    hand = two_quadratics(FedProx(mu=1.0), 2)
    close(hand.play().model, [[0.0], [4.0]])
    close(hand.server.model, [1.0])


def test_two_rounds() -> None:
    """mu = .5, two steps. Round 1: locals 0 and 4 - .5 (-4 + .5 * 4) = 5, global 50/40 = 1.25. Round 2 starts at 1.25
    and is pulled back to it, not to the start of the run: .625, then .625 - .5 (.625 - .3125) = .46875; 4.625, then
    4.625 + .5 (3.375 - 1.6875) = 5.46875; global (30 * .46875 + 10 * 5.46875)/40 = 1.71875."""
    hand = two_quadratics(FedProx(mu=0.5), 2)
    close(hand.play().model, [[0.0], [5.0]])
    close(hand.play().model, [[0.46875], [5.46875]])
    close(hand.server.model, [1.71875])


def test_first_step_is_fedavgs() -> None:
    """v = w at the start, so the pull is 0: both make the step to 4."""
    close([float(two_quadratics(m, 1).play().model[1]) for m in (FedProx(mu=1.0), FedAvg())], [4.0, 4.0])


def test_exact_proximal_point() -> None:
    """argmin 1/2 (v - 8)^2 + 1/2 (v - 0)^2 = 4: squared, over the whole vector, with a gradient."""
    close(two_quadratics(FedProx(mu=1.0), 60).play().model[1], [4.0])


def test_pull_has_a_gradient_on_every_layer() -> None:
    """mu = 1 and mu = 0 differ in every parameter tensor after a few steps."""
    net = mlp()
    a, b = (run(FedProx(mu=mu), net, federation(), rounds_=2).state.model for mu in (0.0, 1.0))
    for span in net.layers():
        apart(a[span], b[span], 1e-4)


def test_stragglers_do_part_of_their_epochs() -> None:
    """straggler_fraction = 1, E = 4: every client asks for 1 to 3 epochs, drawn by (seed, round, client)."""
    hand = ByHand(FedProx(straggler_fraction=1.0), training=Training(epochs=4))
    asked = set()
    for t in range(1, 9):
        hand.t = t
        for i in range(5):
            client = hand.client(i, hand.download([i]).row(0))
            epochs = next(hand.method.client_update(client)).epochs
            assert epochs in (1, 2, 3)
            assert next(hand.method.client_update(hand.client(i, client.received))).epochs == epochs
            asked.add(epochs)
    assert asked == {1, 2, 3}


@pytest.mark.parametrize("training", [Training(epochs=1), Training(steps=3)])
def test_no_stragglers_without_epochs_to_drop(training: Training) -> None:
    """One epoch, or a run that counts steps: everybody does all the work."""
    hand = ByHand(FedProx(straggler_fraction=1.0), training=training)
    request = next(hand.method.client_update(hand.client(0, hand.download([0]).row(0))))
    assert request.epochs is None


def test_everybody_is_evaluated_with_the_global_model() -> None:
    """The evaluated model is the server's."""
    hand = ByHand(FedProx())
    hand.play([1])
    assert torch.equal(hand.used(0).model, hand.server.model)


# ---- another program ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("straggler_fraction", [0.0, 1.0])
def test_an_independent_program_gives_the_same(straggler_fraction: float) -> None:
    """The proximal term by autograd in float64, on five clients of unequal size, three in each of five rounds; of two
    epochs a straggler does one."""
    mu, training = 2.0, Training(epochs=2, batch_size=5, lr=0.1, momentum=0.5)
    method = FedProx(mu=mu, straggler_fraction=straggler_fraction)
    found, shards, w = plain.played(method, rounds_=5, training=training)
    done = Training(epochs=1, batch_size=5, lr=0.1, momentum=0.5) if straggler_fraction else training
    free = w
    for t, cohort in plain.cohorts(found):
        size = torch.tensor([len(shards[i].train) for i in cohort], dtype=torch.float64)
        ends, without = [], []
        for i in cohort:

            def near(v, _x, _i, received=w):
                return mu / 2 * sum((a - b) ** 2 for a, b in zip(v, received, strict=True))

            ends.append(plain.descend(w, shards[i].train, i, t, extra=near, training=done)[0])
            without.append(plain.descend(free, shards[i].train, i, t, training=done)[0])
        w, free = (size / size.sum()) @ torch.stack(ends), (size / size.sum()) @ torch.stack(without)
    assert plain.distance(found.state.model, w) < 2e-6
    apart(w, free, 0.05)
