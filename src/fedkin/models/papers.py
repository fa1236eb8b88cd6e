"""The networks of the papers; the width of the first linear layer follows from the size of the input.

None has dropout or a softmax at the end: all return logits.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedkin.models.build import Classifier, channels, convolutional, flat, with_hidden


def dapfl_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """DA-PFL's CIFAR-10 network: 5x5 convolutions of 64 and 64 channels, linear layers of 120 and 64 units.

    The authors' code puts dropout 0.6 on the *logits* and a log-softmax before the cross entropy. Both are left out:
    a dropped logit is a class whose score is 0 by chance, which the paper does not mention, and the cross entropy has
    its own log-softmax, so a second one changes nothing. 307,842 parameters at 3 x 32 x 32 and 10 classes.
    """
    return _dapfl(shape, classes, (64, 64), (120, 64), "dapfl-cnn")


def dapfl_cnn100(shape: tuple[int, ...], classes: int) -> Classifier:
    """DA-PFL's CIFAR-100 network: 5x5 convolutions of 64 and 128 channels, linear layers of 256 and 128 units.

    The code's dropout 0.6 before the last layer, which the paper does not mention, is left out. 1,064,724 parameters at
    3 x 32 x 32 and 20 classes.
    """
    return _dapfl(shape, classes, (64, 128), (256, 128), "dapfl-cnn100")


def _dapfl(
    shape: tuple[int, ...], classes: int, widths: tuple[int, int], hidden: tuple[int, int], name: str
) -> Classifier:
    features = nn.Sequential(
        nn.Conv2d(channels(shape, name), widths[0], 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(widths[0], widths[1], 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return convolutional(features, hidden, shape, classes, name)


def dapfl_mlp(shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (512, 128)) -> Classifier:
    """DA-PFL's FEMNIST network as in the paper: two hidden layers, of 512 and 128 units.

    468,874 parameters at 784 inputs and 10 classes. Without the code's softmax before the cross entropy, which
    flattens the gradient.
    """
    return with_hidden(nn.Sequential(), flat(shape), hidden, classes)


def dapfl_mlp_code(shape: tuple[int, ...], classes: int) -> Classifier:
    """DA-PFL's FEMNIST network as in the authors' code: three hidden layers, of 512, 256 and 64 units.

    550,346 parameters at 784 inputs and 10 classes.
    """
    return dapfl_mlp(shape, classes, (512, 256, 64))


def pfedcs_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """PFedCS's CIFAR network: 5x5 convolutions of 32 and 64 channels, one linear layer of 512 units.

    The paper says "two convolutional and two fully connected layers"; the widths are PFLlib's, which fit.
    """
    features = nn.Sequential(
        nn.Conv2d(channels(shape, "pfedcs-cnn"), 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return convolutional(features, (512,), shape, classes, "pfedcs-cnn")


def cfic_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """CFIC's MNIST network: padded 5x5 convolutions of 32 and 64 channels, one linear layer of 512 units."""
    features = nn.Sequential(
        nn.Conv2d(channels(shape, "cfic-cnn"), 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return convolutional(features, (512,), shape, classes, "cfic-cnn")


def cfic_cnn_cifar(shape: tuple[int, ...], classes: int) -> Classifier:
    """CFIC's CIFAR and SVHN network: 5x5 convolutions of 64 and 64 channels, linear layers of 384 and 192 units."""
    features = nn.Sequential(
        nn.Conv2d(channels(shape, "cfic-cnn-cifar"), 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return convolutional(features, (384, 192), shape, classes, "cfic-cnn-cifar")


def cfic_cnn_emnist(shape: tuple[int, ...], classes: int) -> Classifier:
    """CFIC's EMNIST network: 5x5 convolutions of 32, 32 and 64 channels, pooling before ReLU, 256 units."""
    features = nn.Sequential(
        nn.Conv2d(channels(shape, "cfic-cnn-emnist"), 32, 5),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
    )
    return convolutional(features, (256,), shape, classes, "cfic-cnn-emnist")


def cam_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """Fed-CAM's Fashion-MNIST network: padded 5x5 convolutions of 16 and 32 channels, each with BatchNorm."""
    features = nn.Sequential(
        nn.Conv2d(channels(shape, "cam-cnn"), 16, 5, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return convolutional(features, (), shape, classes, "cam-cnn")


def cam_lenet(shape: tuple[int, ...], classes: int) -> Classifier:
    """Fed-CAM's CIFAR-10 network: 5x5 convolutions of 6 and 16 channels, linear layers of 120 and 84 units."""
    features = nn.Sequential(
        nn.Conv2d(channels(shape, "cam-lenet"), 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return convolutional(features, (120, 84), shape, classes, "cam-lenet")


class Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm, and a shortcut around them.

    Args:
        before: channels coming in.
        after: channels going out.
        stride: of the first convolution; 2 halves the image.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for inputs ``x [B, C, H, W]``."""
        out: Tensor = self.relu(self.main(x) + self.around(x))
        return out


def resnet18(shape: tuple[int, ...], classes: int) -> Classifier:
    """ResNet-18 with BatchNorm for small images, 32 x 32 to 64 x 64 (PFedCS uses it on Tiny-ImageNet).

    11,173,962 parameters at 3 channels and 10 classes.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(channels(shape, "resnet18"), 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
        before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*layers), before, classes)
