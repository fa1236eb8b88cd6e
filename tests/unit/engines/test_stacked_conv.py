"""Convolutions as products of matrices: torch's own results, for one batch and for a stack, forward and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from counted import Counted
from fedkin.core.seeds import generator
from fedkin.engines.stacked_conv import ConvLayer, Products, parts_of, product

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "uneven": {"stride": (2, 1), "padding": (0, 2)},
}


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(0, *shape))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_product_is_the_convolution(name: str, bias: bool) -> None:
    """Inputs of 9 x 7, kernels of 3 x 2, some strides and margins."""
    x, w, b = made(4, 3, 9, 7), made(5, 3, 3, 2), made(5) if bias else None
    layer = ConvLayer.of(x, w, b, **SETTINGS[name])
    assert layer is not None
    got = product(layer, x, w, b)
    torch.testing.assert_close(got, torch.conv2d(x, w, b, **SETTINGS[name]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_of_a_stack_are_the_convolutions(name: str) -> None:
    """Three weights and inputs at once, through vmap: gradients in both."""

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return torch.conv2d(x, w, **SETTINGS[name]).square().sum()

    def as_product(w: Tensor, x: Tensor) -> Tensor:
        with Products():
            return loss(w, x)

    w, x = made(3, 5, 3, 3, 2), made(3, 4, 3, 9, 7)
    for got, wanted in zip(*(vmap(grad(f, argnums=(0, 1)))(w, x) for f in (as_product, loss)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "other", [{"dilation": 2}, {"padding": "same"}, {"groups": 3}, {"dilation": (1, 2), "stride": (1, 1)}], ids=str
)
def test_other_convolutions_are_left_to_torch(other: dict[str, Any]) -> None:
    """Dilation, groups, margins by name: no product is made, and inside the mode torch's own result comes out."""
    x, w = made(4, 3, 9, 7), made(6, 3 // other.get("groups", 1), 3, 3)
    assert ConvLayer.of(x, w, None, **other) is None
    with Products():
        assert torch.equal(torch.conv2d(x, w, None, **other), torch.conv2d(x, w, None, **other))
    assert ConvLayer.of(x[0], w, None) is None


def test_inputs_of_a_stack_are_unfolded_by_one_copy() -> None:
    """Three clients' batches: the view is copied once, for the weights' gradient the copy is used again."""

    def loss(w: Tensor, x: Tensor) -> Tensor:
        with Products():
            return torch.conv2d(x, w).square().sum()

    w, x = made(3, 5, 3, 3, 2), made(3, 4, 3, 9, 7)
    with Counted() as counted:
        vmap(grad(loss))(w, x)
    assert "im2col" not in counted.calls
    assert "convolution" not in counted.calls
    unfolded = 3 * 4 * (3 * 3 * 2) * (7 * 6)
    assert [size for size in counted.copied if size >= unfolded] == [unfolded]
    assert sum(counted.copied) <= unfolded + 3 * 4 * 5 * 3 * 3 * 2  # and the weights, for each sample


def test_gradients_in_the_inputs_of_a_stack_are_added_up_by_two_kernels() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        with Products():
            return torch.conv2d(x, w).view(len(x), -1).square().sum()  # as many networks do: of the usual order

    w, x = made(3, 64, 128, 5, 5), made(3, 2, 128, 6, 6)
    with Counted() as counted:
        got = vmap(grad(loss, argnums=(0, 1)))(x, w)
    assert counted.calls["unfold_backward"] == 2
    assert counted.calls["bmm"] == 3
    assert sorted(counted.copied) == sorted(
        [3 * 2 * (2 * 2) * (5 * 5 * 128), 3 * 2 * 64 * (2 * 2), 3 * 2 * 64 * (2 * 2)]
    )

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x, w).square().sum()

    for a, b in zip(got, vmap(grad(plain, argnums=(0, 1)))(x, w), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-2)


def test_a_batch_in_two_parts_gives_the_convolution() -> None:
    """Four samples of each of three clients; 25 tiles of weights: forward, and gradients in both."""

    def loss(w: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.conv2d(x, w, stride=(1, 2))
        return (out * scale).sum(), out

    def as_product(w: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        with Products():
            return loss(w, x, scale)

    w, x, scale = made(3, 64, 64, 5, 5), made(3, 4, 64, 6, 7), made(3, 4, 64, 2, 2)
    assert parts_of(4, 64, 64 * 25, 4) == 2
    found, wanted = (vmap(grad(f, argnums=(0, 1), has_aux=True))(w, x, scale) for f in (as_product, loss))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", SETTINGS)
def test_second_derivatives_of_a_stack_are_the_convolutions(name: str) -> None:
    """The gradient of a function of gradients in weights and inputs."""

    def change(w: Tensor, x: Tensor) -> Tensor:
        dw, dx = grad(lambda w, x: torch.conv2d(x, w, **SETTINGS[name]).sin().sum(), argnums=(0, 1))(w, x)
        return dw.square().sum() + dx.square().sum()

    def as_product(w: Tensor, x: Tensor) -> Tensor:
        with Products():
            return change(w, x)

    w, x = made(3, 5, 3, 3, 2), made(3, 4, 3, 9, 7)
    for got, wanted in zip(*(vmap(grad(f, argnums=(0, 1)))(w, x) for f in (as_product, change)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("batch", "outputs", "inputs", "places", "parts"),
    [
        (10, 128, 1600, 100, 1),  # 2 x 25 tiles
        (100, 64, 800, 100, 4),  # 13 tiles
        (7, 64, 800, 100, 7),  # parts are equally large
        (10, 16, 150, 100, 10),
        (10, 64, 800, 800, 5),
        (10, 64, 800, 801, 10),
        (1, 6, 75, 49, 1),
    ],
)
def test_small_gradients_of_weights_are_sums_over_parts_of_the_batch(
    batch: int, outputs: int, inputs: int, places: int, parts: int
) -> None:
    """Enough tiles of 64 x 64 for a GPU's processors; a part for each sample if results are larger than gradients."""
    assert parts_of(batch, outputs, inputs, places) == parts
