"""Small networks of no particular paper."""

from __future__ import annotations

from torch import nn

from fedkin.models.build import Classifier, channels, convolutional, flat, with_hidden


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
