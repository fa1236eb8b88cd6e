"""The registered networks: sizes as in the papers, logits of the right shape, clear refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedkin.core.errors import ModelError
from fedkin.models import MODELS, Classifier, get_model
from refusals import refuses

GREY, COLOUR = (1, 28, 28), (3, 32, 32)

PARAMETERS = [
    ("dapfl-cnn", COLOUR, 10, 307_842),  # stated for the authors' code
    ("dapfl-cnn100", COLOUR, 20, 1_064_724),
    ("dapfl-mlp", GREY, 10, 468_874),
    ("dapfl-mlp-code", GREY, 10, 550_346),
    ("linear", GREY, 10, 784 * 10 + 10),
    ("mlp", GREY, 10, 784 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10),
    ("small-cnn", (1, 8, 8), 10, 6_090),
    ("pfedcs-cnn", COLOUR, 10, (75 * 32 + 32) + (800 * 64 + 64) + (1600 * 512 + 512) + (512 * 10 + 10)),
    ("resnet18", COLOUR, 10, 11_173_962),
    ("cfic-cnn", GREY, 10, (25 * 32 + 32) + (800 * 64 + 64) + (3136 * 512 + 512) + (512 * 10 + 10)),
    (
        "cfic-cnn-cifar",
        COLOUR,
        10,
        (75 * 64 + 64) + (1600 * 64 + 64) + (1600 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10),
    ),
    (
        "cfic-cnn-emnist",
        GREY,
        62,
        (25 * 32 + 32) + (800 * 32 + 32) + (800 * 64 + 64) + (576 * 256 + 256) + (256 * 62 + 62),
    ),
    ("cam-cnn", GREY, 10, (25 * 16 + 16 + 32) + (400 * 32 + 32 + 64) + (1568 * 10 + 10)),
    ("cam-lenet", COLOUR, 10, (75 * 6 + 6) + (150 * 16 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)),
]


@pytest.mark.parametrize(("name", "shape", "classes", "expected"), PARAMETERS)
def test_parameters(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    """A paper's network on a paper's data has the paper's number of parameters."""
    model = get_model(name, shape, classes)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_all_are_tested() -> None:
    """Every registered network has its number of parameters above and a one-line description."""
    assert {name for name, *_ in PARAMETERS} == set(MODELS)
    for maker in MODELS.values():
        assert maker.__doc__
        assert maker.__doc__.splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [GREY, (2, 24, 33)])
def test_logits_for_any_shape(name: str, shape: tuple[int, ...]) -> None:
    """Other channels, sizes and numbers of classes work, in training mode and backward too."""
    model = get_model(name, shape, 7)
    assert isinstance(model, Classifier)
    assert isinstance(model.head, nn.Linear)
    assert model.training
    out = model(torch.randn(4, *shape))
    assert out.shape == (4, 7)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "least"),
    [
        *((name, 4) for name in ("small-cnn", "cam-cnn", "cfic-cnn")),
        *((name, 16) for name in ("dapfl-cnn", "pfedcs-cnn", "cam-lenet")),
        ("cfic-cnn-emnist", 20),
    ],
)
def test_too_small_images(name: str, least: int) -> None:
    """A too small image is refused with the least side, which itself works."""
    with refuses(ModelError, name, f"{least} x {least}"):
        get_model(name, (1, least - 1, least - 1), 3)
    get_model(name, (1, least, least), 3)


@pytest.mark.parametrize("name", ["small-cnn", "dapfl-cnn", "resnet18", "cam-cnn"])
def test_not_an_image(name: str) -> None:
    """A convolutional network refuses inputs that are no images, and says what to use."""
    with refuses(ModelError, "[9, 128]", "'mlp'"):
        get_model(name, (9, 128), 6)
    assert get_model("mlp", (9, 128), 6)(torch.zeros(1, 9, 128)).shape == (1, 6)


def test_checks_leave_no_trace() -> None:
    """Making a network draws exactly its parameters and leaves running statistics as they start."""
    torch.manual_seed(0)
    first = get_model("cam-cnn", GREY, 10)
    torch.manual_seed(0)
    again = MODELS["cam-cnn"](GREY, 10)
    for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert first.state_dict()["body.1.running_mean"].abs().sum() == 0
    assert first.state_dict()["body.1.num_batches_tracked"] == 0
