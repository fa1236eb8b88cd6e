"""A chain as the units that programs are made of, and the shapes of what flows between them.

A unit is a convolution or a linear layer or a pooling, with the ReLU that follows it; non-overlapping max pooling is
part of the convolution before it. Units know their sizes and their parameters' places in the flat vector, no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedkin.core.parts import Spans
from fedkin.engines.chain import AvgPool, Conv, GlobalPool, Layer, Linear, MaxPool, Relu

LANES = 16
"""Floats in a vector, on every processor; LLVM splits them into registers of the processor's own width."""
_LARGEST_POOL = 4  # windows whose positions are compared in registers


def up(n: int, multiple: int = LANES) -> int:
    """Return the smallest multiple that is ``n`` or more."""
    return -(-n // multiple) * multiple


class NotCovered(Exception):
    """Something that programs are not made for; the text is the reason."""


@dataclass(frozen=True)
class Image:
    """Layout in memory of what flows between two units, for one sample: rows of positions, each with its channels.

    Rows are padded to 16 floats with zeros. A vector of features is an image of one position.

    Attributes:
        height, width, channels: its shape.
        stored: channels that each position has in memory, those beyond ``channels`` being zero.
        margin: rows above and below, and positions left and right, of zeros: the padding of a convolution.
    """

    height: int
    width: int
    channels: int
    stored: int
    margin: tuple[int, int] = (0, 0)

    @property
    def row(self) -> int:
        """Floats from one row to the next."""
        return up((self.width + 2 * self.margin[1]) * self.stored)

    @property
    def size(self) -> int:
        """Floats of the whole image."""
        return (self.height + 2 * self.margin[0]) * self.row

    @property
    def numbers(self) -> int:
        """Numbers of the image, without what is padding."""
        return self.height * self.width * self.channels

    @property
    def plane(self) -> tuple[int, int]:
        """Height and width with the margin."""
        return self.height + 2 * self.margin[0], self.width + 2 * self.margin[1]

    @property
    def start(self) -> int:
        """Place of the first position inside the margin."""
        return self.margin[0] * self.row + self.margin[1] * self.stored


@dataclass(frozen=True)
class Parameters:
    """Weight and bias of a unit in the flat vector: where they begin and end; a bias of None is not there."""

    weight: tuple[int, int]
    bias: tuple[int, int] | None

    @classmethod
    def of(cls, layer: Linear | Conv) -> Parameters:
        """Return those of a layer."""
        bias = layer.bias
        return cls((layer.weight.start, layer.weight.stop), None if bias is None else (bias.start, bias.stop))

    def moves(self, part: Spans) -> bool | None:
        """Return whether they lie in a part of the flat vector; None: some do and some do not."""
        spans = [self.weight] if self.bias is None else [self.weight, self.bias]
        held = {part.holds(slice(a, b)) for a, b in spans}
        return held.pop() if len(held) == 1 else None


@dataclass(frozen=True)
class LinearUnit:
    """Linear layer, perhaps with a ReLU."""

    inside: Image
    out: Image
    parameters: Parameters
    relu: bool = False

    @property
    def outputs(self) -> int:
        """Number of neurons."""
        return self.out.channels

    @property
    def in_rows(self) -> bool:
        """Whether a row of the weight is packed in a piece: that of a linear layer on a vector of features."""
        return self.inside.height == self.inside.width == 1

    @property
    def unpacked(self) -> bool:
        """Whether the packed weight is the weight as it lies in the flat vector."""
        return self.in_rows and self.inside.size == self.inside.channels

    @property
    def weights(self) -> int:
        """Floats of the packed weight ``[outputs, inputs as they lie in memory]``."""
        return self.outputs * self.inside.size

    @property
    def biases(self) -> int:
        """Floats of the packed bias."""
        return self.out.size


@dataclass(frozen=True)
class ConvUnit:
    """Convolution, perhaps with non-overlapping max pooling, perhaps with a ReLU.

    Attributes:
        kernel: height and width.
        pool: side of the windows of max pooling; 1: none.
        along: what a vector of the forward pass is: positions of a row, or channels.
    """

    inside: Image
    out: Image
    parameters: Parameters
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pool: int = 1
    relu: bool = False
    along: Literal["row", "channels"] = "channels"

    @property
    def taps(self) -> int:
        """Numbers that one row of the kernel meets: positions times channels as stored."""
        return self.kernel[1] * self.inside.stored

    @property
    def vectors(self) -> int:
        """Vectors of one row of the kernel."""
        return up(self.taps) // LANES

    @property
    def weights(self) -> int:
        """Floats of the packed weight ``[channels, kernel height, taps padded]``."""
        return self.out.channels * self.kernel[0] * self.vectors * LANES

    @property
    def biases(self) -> int:
        """Floats of the packed bias."""
        return up(self.out.channels)

    @property
    def winners(self) -> int:
        """Whole numbers that say which position won each window of one image."""
        if self.along == "row":
            return self.out.channels * self.out.height * up(self.out.width)
        return self.out.height * self.out.width * self.out.stored if self.pool > 1 else 0


@dataclass(frozen=True)
class PoolUnit:
    """Pooling that is not part of a convolution, perhaps with a ReLU; windows may overlap."""

    inside: Image
    out: Image
    kernel: tuple[int, int]
    stride: tuple[int, int]
    kind: Literal["max", "mean"]
    relu: bool = False

    @property
    def winners(self) -> int:
        """Whole numbers that say which position won each window of one image."""
        return self.out.height * self.out.width * self.out.stored if self.kind == "max" else 0


Unit = LinearUnit | ConvUnit | PoolUnit


def units_of(layers: Sequence[Layer], shape: Sequence[int]) -> tuple[Unit, ...]:
    """Return the units of a chain on inputs of a shape, ``[C, H, W]`` or ``[d]``.

    Raises:
        NotCovered: a layer that programs are not made for.
    """
    units = list[Unit]()
    at = _input(layers, shape)
    for layer in layers:
        if isinstance(layer, Relu):
            if not units:
                raise NotCovered("it begins with a ReLU")
            units[-1] = replace(units[-1], relu=True)
        elif isinstance(layer, Linear):
            units.append(_linear(layer, at))
        elif isinstance(layer, Conv):
            if units:
                units[-1] = _with_margin(units[-1], layer)
            margin = (layer.padding[0], layer.padding[1])
            units.append(_conv(layer, replace(at, margin=margin)))
        elif isinstance(layer, MaxPool) and units and (fitting := _fitting(layer, units[-1])):
            units[-1] = _pooled(fitting, layer.kernel[0], first=len(units) == 1)
        elif isinstance(layer, (MaxPool, AvgPool, GlobalPool)):
            if not units:
                raise NotCovered("it begins with a pooling")
            units.append(_pool(layer, at))
        at = units[-1].out if units else at
    if not isinstance(units[-1], LinearUnit) or units[-1].relu:
        raise NotCovered("it does not end with a linear layer")
    return tuple(units)


def _input(layers: Sequence[Layer], shape: Sequence[int]) -> Image:
    if any(isinstance(layer, Conv) for layer in layers):
        if len(shape) != 3:
            raise NotCovered("its inputs are not images")
        channels, height, width = shape
        return Image(height, width, channels, channels)
    features = 1
    for n in shape:
        features *= n
    return _vector(features)


def _vector(features: int) -> Image:
    return Image(1, 1, features, up(features))


def _linear(layer: Linear, at: Image) -> LinearUnit:
    if layer.shape[1] != at.height * at.width * at.channels:
        raise NotCovered("it has a linear layer on a part of its input")
    return LinearUnit(at, _vector(layer.shape[0]), Parameters.of(layer))


def _conv(layer: Conv, inside: Image) -> ConvUnit:
    if layer.groups != 1 or layer.dilation != [1, 1]:
        raise NotCovered("it has a convolution with groups or dilation")
    outputs, _, kh, kw = layer.shape
    height = (inside.height + 2 * inside.margin[0] - kh) // layer.stride[0] + 1
    width = (inside.width + 2 * inside.margin[1] - kw) // layer.stride[1] + 1
    out, stride = Image(height, width, outputs, up(outputs)), (layer.stride[0], layer.stride[1])
    return ConvUnit(inside, out, Parameters.of(layer), (kh, kw), stride)


def _fitting(layer: MaxPool, unit: Unit) -> ConvUnit | None:
    """Return the unit if a max pooling after it can be part of it."""
    k = layer.kernel[0]
    fits = (
        isinstance(unit, ConvUnit)
        and unit.pool == 1
        and not unit.relu
        and 1 < k <= _LARGEST_POOL
        and layer.kernel == layer.stride == [k, k]
        and layer.padding == [0, 0]
        and layer.dilation == [1, 1]
        and (not layer.ceil or (unit.out.height % k == 0 and unit.out.width % k == 0))
        and min(unit.out.height, unit.out.width) >= k
    )
    return unit if fits and isinstance(unit, ConvUnit) else None


def _pooled(unit: ConvUnit, k: int, *, first: bool) -> ConvUnit:
    out = replace(unit.out, height=unit.out.height // k, width=unit.out.width // k)
    # vectors along the row waste less where the channels fill less than three quarters of theirs; they need the image
    # in planes, which the first unit has, and give no gradient at their input, which it need not
    if first and k == 2 and unit.stride == (1, 1) and 4 * out.channels < 3 * out.stored:
        return replace(unit, out=replace(out, stored=out.channels), pool=k, along="row")
    return replace(unit, out=out, pool=k)


def _pool(layer: MaxPool | AvgPool | GlobalPool, at: Image) -> PoolUnit:
    if isinstance(layer, GlobalPool):
        kernel = stride = [at.height, at.width]
    else:
        kernel, stride = layer.kernel, layer.stride
        if layer.padding != [0, 0] or getattr(layer, "dilation", [1, 1]) != [1, 1]:
            raise NotCovered("it has a pooling with padding or dilation")
        if layer.ceil and ((at.height - kernel[0]) % stride[0] or (at.width - kernel[1]) % stride[1]):
            raise NotCovered("it has a pooling whose last windows are cut")
    height, width = (at.height - kernel[0]) // stride[0] + 1, (at.width - kernel[1]) // stride[1] + 1
    out = replace(at, height=height, width=width, margin=(0, 0))
    kind: Literal["max", "mean"] = "max" if isinstance(layer, MaxPool) else "mean"
    return PoolUnit(at, out, (kernel[0], kernel[1]), (stride[0], stride[1]), kind)


def _with_margin(unit: Unit, after: Conv) -> Unit:
    margin = (after.padding[0], after.padding[1])
    return replace(unit, out=replace(unit.out, margin=margin))
