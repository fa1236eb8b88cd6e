"""Requests for training and settings of it."""

import math
from functools import partial
from typing import Any

import pytest
import torch

from fedkin.core import Batch, Bundle, MethodError, Train, Training, cross_entropy
from refusals import refuses
from toys import close, logit_net, quadratic, squares

BASE = Train(
    torch.zeros(4),
    aux=Bundle(prior=torch.zeros(3)),
    per_sample=Bundle(offset=torch.zeros(5, 3)),
    center=torch.zeros(4),
    linear=torch.zeros(4),
)


def stackable(a: Train, b: Train) -> bool:
    """What engines go by that train requests of one kind together."""
    return a.signature() == b.signature()


def test_equal_requests_can_be_stacked() -> None:
    """Equal apart from the numbers in their tensors, and from how many samples the client has."""
    other = BASE.but(
        start=torch.ones(4),
        aux=Bundle(prior=torch.ones(3)),
        per_sample=Bundle(offset=torch.ones(9, 3)),
        center=torch.ones(4),
        linear=torch.ones(4),
    )
    assert stackable(BASE, other)
    assert stackable(BASE.but(only=slice(0, 2)), other.but(only=slice(0, 2)))


def test_a_part_is_a_slice_or_a_mask_of_the_whole_vector() -> None:
    """Equal parts are of one kind however they are written; another tensor, or a step, is refused with its shape."""
    mask = torch.tensor([True, True, False, False])
    assert stackable(BASE.but(only=slice(0, 2)), BASE.but(only=mask))
    assert not stackable(BASE.but(only=slice(0, 2)), BASE.but(only=~mask))
    assert BASE.but(only=torch.tensor([True, False, True, True])).moves.each == ((0, 1), (2, 4))
    assert BASE.but(only=torch.zeros(4, dtype=torch.bool)).moves.each == ()
    assert BASE.moves.hull == slice(0, 4)
    for wrong, text in (
        (torch.tensor([0, 1]), "bool [4]; got a tensor of int64 [2]"),
        (mask[:2], "got a tensor of bool [2]"),
        (slice(0, 3, 2), "slice without a step"),
        ("head", "got 'head'"),
    ):
        with refuses(MethodError, text):
            BASE.but(only=wrong)


DIFFERENT: dict[str, object] = {
    "loss": quadratic, "only": slice(0, 2), "center": None, "linear": None, "mu": 0.1, "prox_after": True, "clip": 1.0,
    "optimizer": "adam", "project": torch.relu, "models": 2, "batches": 0, "epochs": 2, "steps": 2, "batch_size": 7,
    "lr": 0.2, "momentum": 0.5, "weight_decay": 0.1, "per_sample": Bundle(), "aux": Bundle(),
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name, value in DIFFERENT.items()),
        {"start": torch.zeros(5), "center": torch.zeros(5), "linear": torch.zeros(5)},
        {"start": torch.zeros(4, dtype=torch.float64)},
        {"aux": Bundle(other=torch.zeros(3))},
        {"aux": Bundle(prior=torch.zeros(2))},
        {"per_sample": Bundle(offset=torch.zeros(5, 2))},
    ],
    ids=lambda change: str(next(iter(change))),
)
def test_requests_that_differ_cannot_be_stacked(change: dict[str, object]) -> None:
    """Another loss, shape, type, set of names, part, setting, or a term that only one has."""
    assert not stackable(BASE, BASE.but(**change))
    assert not stackable(BASE.but(**change), BASE)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.5, "'beta' is a float; write torch.tensor(0.5)"),
        (True, "'beta' is a bool; write torch.tensor(True)"),
        ("much", r"'beta' is a str; it must be a tensor"),
    ],
)
@pytest.mark.parametrize("name", ["aux", "per_sample"])
def test_what_a_loss_is_given_must_be_tensors(name: str, value: Any, words: str) -> None:
    """A number worked on the loop and failed on the stacked engine; it is refused when the request is made."""
    with refuses(MethodError, f"{name} {words}"):
        BASE.but(**{name: Bundle(beta=value)})


@pytest.mark.parametrize("name", ["center", "linear"])
def test_terms_are_of_the_vectors_length(name: str) -> None:
    """A single number, which torch would add to every other, is refused."""
    with refuses(MethodError, f"{name} has the shape [1], start [4]"):
        BASE.but(**{name: torch.zeros(1)})


def test_terms_of_a_request() -> None:
    """Of the vector's length; a pull needs a center."""
    with refuses(MethodError, "mu = 0.1 pulls towards center, which is not given; add center="):
        Train(torch.zeros(4), mu=0.1)
    assert Train(torch.zeros(4), mu=0.0, center=torch.ones(4)).mu == 0
    net, batch = logit_net(2), Batch(torch.ones(1, 1), torch.tensor([1]))
    w = torch.tensor([1.0, 0.0])
    close(cross_entropy(net, w, batch, Bundle()), math.log(1 + math.e))
    close(cross_entropy(net, w, batch, Bundle(offset=torch.tensor([[0.0, 2.0]]))), math.log(1 + math.exp(-1)))


def tempered(net: Any, w: Any, batch: Any, aux: Any, by: Any = 1.0) -> Any:
    """A loss with a setting."""
    return squares(net, w, batch, aux) / by


SCALE = torch.tensor(2.0)


@pytest.mark.parametrize("by", [0.5, (1, "a"), SCALE, cross_entropy], ids=["float", "tuple", "tensor", "function"])
def test_partials_of_one_loss_with_equal_arguments_can_be_stacked(by: Any) -> None:
    """Each client makes its own `functools.partial`, of the same function; so do two in one another."""
    for made in (lambda: partial(tempered, by=by), lambda: partial(partial(tempered), by=by)):
        assert stackable(BASE.but(loss=made()), BASE.but(loss=made()))
        assert hash(BASE.but(loss=made()).signature()) == hash(BASE.but(loss=made()).signature())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (partial(tempered, by=1), partial(tempered, by=2)),
        (partial(tempered, by=1), partial(tempered, by=1.0)),
        (partial(tempered, by=SCALE), partial(tempered, by=SCALE.clone())),
        (partial(tempered, by=[1]), partial(tempered, by=[1])),
        (partial(tempered, by=1), partial(quadratic, by=1)),
        (partial(tempered), tempered),
        (lambda *a: tempered(*a), lambda *a: tempered(*a)),
    ],
    ids=["value", "type", "tensor", "list", "function", "plain", "lambda"],
)
def test_losses_that_may_differ_cannot_be_stacked(one: Any, other: Any) -> None:
    """Tensors and what may change are equal to themselves alone."""
    assert not stackable(BASE.but(loss=one), BASE.but(loss=other))
    assert stackable(BASE.but(loss=one), BASE.but(loss=one))


def test_a_requests_own_settings_beat_the_runs() -> None:
    """What a request leaves open is the run's; asking for epochs beats a run that counts in steps."""
    run = Training(epochs=3, steps=7, batch_size=4, lr=0.5, momentum=0.9, schedule="step@factor=0.5")
    assert Train(torch.zeros(1)).training(run) is run
    own = Train(torch.zeros(1), epochs=2, lr=0.1, weight_decay=0.3).training(run)
    assert (own.epochs, own.steps, own.batch_size, own.lr) == (2, None, 4, 0.1)
    assert (own.momentum, own.weight_decay) == (0.9, 0.3)
    assert Train(torch.zeros(1), epochs=2, steps=5).training(run).steps == 5
    assert Train(torch.zeros(1), lr=0.1).training(run).steps == 7
    clipped = run.but(clip=2.0)
    assert [Train(torch.zeros(1), clip=clip).training(clipped).clip for clip in (None, 1.0)] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("training", "samples", "steps"),
    [
        (Training(epochs=2, batch_size=3), 7, 6),
        (Training(epochs=2, batch_size=3), 6, 4),
        (Training(epochs=5, batch_size=10), 1, 5),
        (Training(steps=4, batch_size=10), 1000, 4),
    ],
)
def test_number_of_steps(training: Training, samples: int, steps: int) -> None:
    """Epochs times batches, the last short one included; or the steps asked for."""
    assert training.steps_for(samples) == steps


def test_step_sizes_by_the_round() -> None:
    """step: .8 times .5 after every second round. cosine over four rounds: .8 (1 + cos(pi t / 4)) / 2 for t = 0 to 3;
    later rounds, of clients that join the finished run, as the last."""
    step = Training(lr=0.8, schedule="step@factor=0.5,every=2")
    assert [step.in_round(t, 4).lr for t in range(6)] == [0.8, 0.8, 0.8, 0.4, 0.4, 0.2]
    cosine = Training(lr=0.8, schedule="cosine")
    wanted = [0.8, 0.4 + 0.2 * 2**0.5, 0.4, 0.4 - 0.2 * 2**0.5]
    found = [cosine.in_round(t, 4).lr for t in range(8)]
    assert found == pytest.approx([0.8, *wanted, *wanted[-1:] * 3])
    assert Training().in_round(9, 10) == Training()
