"""Building blocks that the networks share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedkin.core.errors import ModelError

_LARGEST_SIDE = 256


class Classifier(nn.Module):
    """``head(body(x))``: the body makes features ``[B, d]``, the head, one linear layer, makes logits ``[B, classes]``.

    Attributes:
        body: everything but the last layer.
        head: the last layer.
    """

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[B, classes]`` of inputs ``x [B, ...]``."""
        out: Tensor = self.head(self.body(x))
        return out


def with_hidden(features: nn.Sequential, width: int, hidden: tuple[int, ...], classes: int) -> Classifier:
    """Return ``features``, flattened to ``width`` numbers, then linear layers with ReLU, then the head."""
    layers: list[nn.Module] = [*features, nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return Classifier(nn.Sequential(*layers), width, classes)


def convolutional(
    features: nn.Sequential, hidden: tuple[int, ...], shape: tuple[int, ...], classes: int, name: str
) -> Classifier:
    """Return a convolutional network whose first linear layer is as wide as these inputs make it.

    Raises:
        ModelError: inputs that are not images, or too small for the network.
    """
    channels(shape, name)
    width = _width(features, shape)
    if width == 0:
        least = next((s for s in range(1, _LARGEST_SIDE) if _width(features, (shape[0], s, s))), _LARGEST_SIDE)
        raise ModelError(
            f"{name} needs images of at least {least} x {least} pixels, got {shape[1]} x {shape[2]}; "
            "use 'mlp', or larger images"
        )
    return with_hidden(features, width, hidden, classes)


def channels(shape: tuple[int, ...], name: str) -> int:
    """Return the number of channels of an image's shape ``[channels, height, width]``.

    Raises:
        ModelError: not the shape of an image.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise ModelError(
            f"{name} is for images [channels, height, width], got inputs of shape {list(shape)}; use 'mlp' or 'linear'"
        )
    return shape[0]


def flat(shape: tuple[int, ...]) -> int:
    """Return the number of elements of one input."""
    return math.prod(shape)


def _width(features: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the number of elements per input that come out, 0 if the input is too small.

    The pass is in eval mode, so statistics stay as they are.
    """
    was_training = features.training
    features.eval()
    try:
        with torch.no_grad():
            return int(features(torch.zeros(1, *shape)).numel())
    except RuntimeError:
        return 0
    finally:
        features.train(was_training)


def linear(shape: tuple[int, ...], classes: int) -> Classifier:
    """Softmax regression on the flattened input (CFIC's Fashion-MNIST model, inferred from FLGo)."""
    return Classifier(nn.Flatten(), flat(shape), classes)


def mlp(shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (200, 100)) -> Classifier:
    """Flattened input, hidden layers of 200 and 100 units with ReLU."""
    return with_hidden(nn.Sequential(), flat(shape), hidden, classes)


def small_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """Two 3x3 convolutions of 16 and 32 channels, for images of 4 x 4 and more such as the 8 x 8 digits."""
    features = nn.Sequential(
        nn.Conv2d(channels(shape, "small-cnn"), 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return convolutional(features, (), shape, classes, "small-cnn")
