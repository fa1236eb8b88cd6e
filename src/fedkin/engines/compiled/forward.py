"""The forward pass of a batch while its program is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.kernels import Kernels
from fedkin.engines.compiled.layout import Layout
from fedkin.engines.compiled.units import ConvUnit, LinearUnit, PoolUnit
from fedkin.engines.compiled.values import Memory, Value
from fedkin.engines.compiled.values import index as index_of


@dataclass(frozen=True)
class ProgramParts:
    """A program while it is written: what all its batches share.

    Attributes:
        block: samples that linear layers take at a time.
        arguments: of the program, by name.
        packed: packed vectors by name, at least the parameters ``w``.
        flat: the parameters as they are given, if weights that need no packing are read from there.
    """

    c: Code
    layout: Layout
    block: int
    kernels: Kernels
    arguments: dict[str, Any]
    packed: dict[str, Memory]
    flat: Memory | None = None

    def buffer(self, name: str) -> Memory:
        """Return a buffer of the program's memory."""
        memory: Memory = self.arguments["memory"].at(self.layout[name])
        return memory

    def numbers(self, name: str) -> Memory:
        """Return a buffer of whole numbers of 32 bits."""
        return self.c.numbers(self.buffer(name))

    def parameters(self, i: int, of: str = "w") -> tuple[Memory, Memory]:
        """Return weight and bias of a unit in a packed vector."""
        (weight, bias, _), u = self.layout.parameters[i], self.layout.units[i]
        if self.flat is not None and isinstance(u, LinearUnit) and u.unpacked:
            return self.flat.at(u.parameters.weight[0]), self.packed[of].at(bias)
        return self.packed[of].at(weight), self.packed[of].at(bias)

    def turn(self) -> None:
        """Write the weights of convolutions as their forward kernels read them."""
        for i, u in enumerate(self.layout.units):
            if isinstance(u, ConvUnit) and u.along == "channels":
                self.c.call(self.kernels.of[i]["turn"], self.parameters(i)[0], self.buffer(f"turned{i}"))


class ForwardWriter:
    """Forward pass of one batch while it is written.

    Args:
        parts: of the program.
        n: samples of the batch.

    Attributes:
        filled: samples that linear layers compute, which are whole blocks; those beyond the batch are zero.
    """

    def __init__(self, parts: ProgramParts, n: Value) -> None:
        self.parts, self.n = parts, n
        self.filled = n if parts.block == 1 else self._whole_blocks(n)

    def _whole_blocks(self, n: Value) -> Value:
        block = self.parts.block
        more = n + (block - 1)
        return Value(more.builder, more.builder.sdiv(more.of, index_of(block))) * block

    def write(self, number: Callable[[Value], Value]) -> None:
        """Write the pass; the logits are in the last buffer.

        Args:
            number: of the r-th sample of the batch among those of the client.
        """
        self._gather(number)
        for i in range(len(self.parts.layout.units)):
            self._unit(i)

    def clear_rest(self, buffer: Memory, size: int) -> None:
        """Clear the samples of a buffer that only fill a block."""
        self.parts.c.clear(buffer.at(self.n * size), (self.filled - self.n) * size)

    def _gather(self, number: Callable[[Value], Value]) -> None:
        p = self.parts
        c, image, a = p.c, p.layout.units[0].inside, p.arguments
        with c.loop(self.n) as r:
            sample, to = a["x"].at(number(r) * image.numbers), p.buffer("in0").at(r * image.size)
            c.call(p.kernels.gather, sample, to, a["channels_last"])

    def _unit(self, i: int) -> None:
        p = self.parts
        c, u, k = p.c, p.layout.units[i], p.kernels.of[i]
        x, out = p.buffer(f"in{i}"), p.buffer(f"in{i + 1}")
        if isinstance(u, LinearUnit):
            if i == 0 or not isinstance(p.layout.units[i - 1], LinearUnit):
                self.clear_rest(x, u.inside.size)
            c.call(k["forward"], x, *p.parameters(i), out, self.filled)
            return
        won = p.numbers(f"winners{i}")
        if isinstance(u, PoolUnit):
            with c.loop(self.n) as r:
                c.call(k["forward"], x.at(r * u.inside.size), out.at(r * u.out.size), won.at(r * u.winners))
            return
        w, b = p.parameters(i)
        if u.along == "channels":
            c.call(k["forward"], x, p.buffer(f"turned{i}"), b, out, won, self.n)
            return
        with c.loop(self.n) as r:
            c.call(k["planes"], x.at(r * u.inside.size), p.buffer("planes"))
            c.call(k["forward"], p.buffer("planes"), w, b, out.at(r * u.out.size), won.at(r * u.winners))
