"""The faster way of computing each convolution of a stack: timed once on the device that it runs on.

It depends on the device, its libraries, the layer and the number of clients: a grouped convolution starts fewer kernels
and takes less memory, products of matrices (`stacked_conv`) come closer to a GPU's peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from fedkin.core import Net
from fedkin.engines.stacked_conv import AsProducts, ConvLayer, Products
from fedkin.engines.stacked_device import Place, failed, full
from fedkin.engines.stacked_train import Kind, StackRequest, one_batch

_ROWS = 64  # most rows that are timed: from there on times grow with their number


@dataclass(frozen=True)
class ConvTimes:
    """Milliseconds that the device takes for a layer's passes forward and back of a stack.

    Attributes:
        rows, batch: number of clients, and samples in the batch of each.
        grouped: as one grouped convolution.
        products: as products of matrices.
    """

    layer: ConvLayer
    rows: int
    batch: int
    grouped: float
    products: float


class ConvolutionChoice:
    """Choice between the two ways for the layers of stacks, made once for each layer and doubling of the rows.

    Args:
        wanted: all convolutions as products, none, or None: on a GPU those that are faster so, on a CPU none.
        say: called if a layer cannot be timed; it is then a grouped convolution.

    Attributes:
        times: what was measured.
    """

    def __init__(self, place: Place, wanted: bool | None, say: Callable[[str], None]) -> None:
        self._place, self._wanted, self._say = place, wanted, say
        self._layers: dict[Kind, dict[ConvLayer, bool]] = {}
        self._known: dict[tuple[ConvLayer, int, int], bool] = {}
        self.times: list[ConvTimes] = []

    def of(self, kind: Kind, a: StackRequest, net: Net, rows: int, longest: int | None = None) -> AsProducts:
        """Return what to compute as products in a stack of a number of requests of one kind, like ``a``.

        Args:
            longest: samples of the largest client among them, where that is less than a batch.
        """
        if self._wanted is not None or not self._place.cuda or not a.steps:
            return bool(self._wanted)
        if kind not in self._layers:
            with LayersMet() as layers:
                one_batch(a, net, self._place)
            self._layers[kind] = layers.met
        batch = a.training.batch_size if longest is None else min(a.training.batch_size, longest)
        return frozenset(
            layer for layer, inner in self._layers[kind].items() if self._faster(layer, rows, batch, inner)
        )

    def _faster(self, layer: ConvLayer, rows: int, batch: int, inner: bool) -> bool:
        key = layer, min(rows, _ROWS).bit_length(), batch
        if key not in self._known:
            self._known[key] = False
            try:
                times = timed(layer, min(rows, _ROWS), batch, inner, self._place)
            except Exception as e:  # as a grouped convolution it is trained all the same
                if failed(e):
                    raise
                self._say(f"the convolution {layer} is computed as a grouped one, as it could not be timed: {e}")
                return False
            if times is not None:
                self.times.append(times)
                self._known[key] = times.products < times.grouped
        return self._known[key]


class LayersMet(TorchFunctionMode):
    """Mode that notes convolutional layers.

    Attributes:
        met: each layer, and whether its inputs have a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.met: dict[ConvLayer, bool] = {}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        layer = ConvLayer.of(*args, **kwargs) if func is torch.conv2d else None
        if layer is not None:
            input: Tensor = args[0] if args else kwargs["input"]
            self.met[layer] = self.met.get(layer, False) or input.requires_grad
        return func(*args, **kwargs)


def timed(layer: ConvLayer, rows: int, batch: int, inner: bool, place: Place) -> ConvTimes | None:
    """Return the times of both ways of computing a layer, with half the rows while they do not fit into memory.

    None if a single row does not fit.

    Args:
        inner: its inputs have a gradient.
    """
    while rows:
        try:
            grouped, products = (place.milliseconds(f) for f in passes(layer, rows, batch, inner, place.device))
            return ConvTimes(layer, rows, batch, grouped, products)
        except Exception as e:
            if not full(e):
                raise
        rows //= 2
    return None


def passes(
    layer: ConvLayer, rows: int, batch: int, inner: bool, device: torch.device
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return calls of a layer's passes forward and back of a stack: as a grouped convolution, as products."""
    x = torch.randn(rows, batch, *layer.input, device=device)
    w = torch.randn(rows, *layer.weight, device=device)
    b = torch.randn(rows, layer.weight[0], device=device) if layer.bias else None
    back = torch.randn_like(torch.conv2d(x[0], w[0], None, layer.stride, layer.padding))

    def value(w: Tensor, x: Tensor, b: Tensor | None) -> Tensor:
        return (torch.conv2d(x, w, b, layer.stride, layer.padding) * back).sum()

    step = vmap(grad(value, argnums=(0, 1) if inner else 0), in_dims=(0, 0, None if b is None else 0))

    def as_products() -> Any:
        with Products():
            return step(w, x, b)

    return lambda: step(w, x, b), as_products
