"""The functions of a program: one for each kernel of each unit, made for the unit's sizes."""

from __future__ import annotations

from typing import Any

from fedkin.engines.compiled import conv_channels, conv_rows, linear, loss, packing, pooling, terms
from fedkin.engines.compiled.code import Module
from fedkin.engines.compiled.layout import Layout
from fedkin.engines.compiled.units import ConvUnit, LinearUnit, PoolUnit


class Kernels:
    """The functions of a program, one for each kernel of each unit."""

    def __init__(self, module: Module, layout: Layout, block: int) -> None:
        self._module, self._vectors, self._block = module, module.target.vectors, block
        self.of: list[dict[str, Any]] = []
        for i, u in enumerate(layout.units):
            masked = i > 0 and layout.units[i - 1].relu
            self.of.append(self._linear(u, masked) if isinstance(u, LinearUnit) else
                           self._conv(u) if isinstance(u, ConvUnit) else self._pool(u))  # fmt: skip
        self.pack = module.function("ff", lambda c, *a: packing.pack(c, layout, *a))
        self.pack_some = module.function("ff", lambda c, *a: packing.pack(c, layout, *a, everything=False))
        self.unpack = module.function("ff", lambda c, *a: packing.unpack(c, layout, *a))
        self.gather = module.function("ffi", lambda c, *a: packing.gather(c, layout.units[0].inside, *a))
        head = layout.units[-1]
        classes = head.out.channels
        self.scatter = module.function("ff", lambda c, *a: packing.scatter(c, head.inside, *a))
        self.pack_head = module.function("ff", lambda c, *a: packing.pack_head(c, layout, *a))
        self.teach = module.function("ffixx", lambda c, *a: loss.teach(c, classes, *a))
        self.loss = module.function("flfifilil", lambda c, *a: loss.cross_entropy(c, classes, *a))
        self.through_relu = module.function("ffi", pooling.through_relu)
        self.plain = module.function("fffiixxxii", terms.plain)
        self.with_momentum = module.function("ffffiixxxxii", terms.with_momentum)

    def _linear(self, u: LinearUnit, masked: bool) -> dict[str, Any]:
        new, block = self._module.function, self._block
        return {
            "forward": new("ffffi", lambda c, *a: linear.forward(c, u, block, *a)),
            "below": new("ffffi", lambda c, *a: linear.below(c, u, block, masked, *a)),
            "update": new("fffxxi", lambda c, *a: linear.update(c, u, block, *a)),
            "update_bias": new("ffxxi", lambda c, *a: linear.update_bias(c, u, *a)),
        }

    def _conv(self, u: ConvUnit) -> dict[str, Any]:
        new, vectors = self._module.function, self._vectors
        bodies = {
            "step": new("ffxx", lambda c, *a: conv_channels.step(c, u, *a)),
            "step_bias": new("ffxx", lambda c, *a: conv_channels.step_bias(c, u, *a)),
        }
        if u.along == "row":
            a, b = conv_rows.block_of(u, vectors), max(1, vectors - 4)
            return bodies | {
                "planes": new("ff", lambda c, *args: conv_rows.planes(c, u, *args)),
                "forward": new("ffffn", lambda c, *args: conv_rows.forward(c, u, a, *args)),
                "backward": new("ffnff", lambda c, *args: conv_rows.backward(c, u, b, *args)),
            }
        a, b = conv_channels.block_of(u, vectors), conv_channels.backward_block(u, vectors)
        return bodies | {
            "turn": new("ff", lambda c, *args: conv_channels.turn(c, u, *args)),
            "forward": new("ffffni", lambda c, *args: conv_channels.forward(c, u, a, *args)),
            "weight": new("ffnfffi", lambda c, *args: conv_channels.backward_weight(c, u, b, *args)),
            "input": new("ffnfi", lambda c, *args: conv_channels.backward_input(c, u, b, *args)),
        }

    def _pool(self, u: PoolUnit) -> dict[str, Any]:
        new = self._module.function
        return {
            "forward": new("ffn", lambda c, *a: pooling.forward(c, u, *a)),
            "backward": new("fnf", lambda c, *a: pooling.backward(c, u, *a)),
        }
