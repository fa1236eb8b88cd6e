"""ResNet-18 (He et al. 2016) with the stem for small images: one 3x3 convolution, no pooling before the blocks."""

from __future__ import annotations

from torch import Tensor, nn

from fedkin.models.build import Classifier, channels


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
