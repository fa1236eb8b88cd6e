"""One step of SGD while its program is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedkin.engines.compiled import terms
from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.kernels import Kernels
from fedkin.engines.compiled.layout import Layout
from fedkin.engines.compiled.units import ConvUnit, LinearUnit, PoolUnit
from fedkin.engines.compiled.values import Memory, Value
from fedkin.engines.compiled.values import index as index_of


@dataclass(frozen=True)
class ProgramParts:
    """A program while it is written: what all its steps share.

    Attributes:
        block: samples that linear layers take at a time.
        arguments: of the program, by name.
        packed: parameters, velocity, center and linear term.
        wrong: is set to 1 at a label that is not a class.
    """

    c: Code
    layout: Layout
    block: int
    kernels: Kernels
    arguments: dict[str, Any]
    packed: dict[str, Memory]
    wrong: Memory


class StepWriter:
    """One step while it is written: forward, loss, backward, and the terms.

    Args:
        n: samples of the batch.
        index: their numbers.
        lr: step size.
    """

    def __init__(self, training: ProgramParts, n: Value, index: Memory, lr: Value) -> None:
        self.c, self.layout, self.kernels = training.c, training.layout, training.kernels
        self.a, self.packed, self.wrong, self.block = (
            training.arguments, training.packed, training.wrong, training.block
        )  # fmt: skip
        self.n, self.index = n, index
        c = self.c
        # linear layers compute whole blocks: samples that only fill them are zero, and so are their gradients
        self.filled = n if self.block == 1 else self._whole_blocks(n)
        self.rates = terms.Rates(lr, self.a["mu"], self.a["after"])
        self.momentum = self.a["has_momentum"].is_not(0)
        self.rate = c.choose(self.momentum, c.real(1.0), c.real(0.0) - lr) / n.cast("sitofp", lr.of.type)

    def _whole_blocks(self, n: Value) -> Value:
        more = n + (self.block - 1)
        return Value(more.builder, more.builder.sdiv(more.of, index_of(self.block))) * self.block

    def write(self) -> None:
        """Write the step."""
        units = self.layout.units
        self._gather()
        for i in range(len(units)):
            self._forward(i)
        logits, a = self._buffer(f"in{len(units)}"), self.a
        self.c.call(self.kernels.loss, logits, a["y"], a["offset"], a["has_offset"], self.index, self.n, self.wrong)
        self._clear_rest(logits, units[-1].out.size)
        self._backward(len(units) - 1)
        self._terms()

    def _buffer(self, name: str) -> Memory:
        found: Memory = self.a["memory"].at(self.layout[name])
        return found

    def _as_numbers(self, name: str) -> Memory:
        """Return a buffer of whole numbers of 32 bits."""
        found = self._buffer(name)
        return self.c.numbers(found)

    def _clear_rest(self, buffer: Memory, size: int) -> None:
        """Clear the samples of a buffer that only fill a block."""
        self.c.clear(buffer.at(self.n * size), (self.filled - self.n) * size)

    # ---- forward ----------------------------------------------------------------------------------------------
    def _gather(self) -> None:
        c, image = self.c, self.layout.units[0].inside
        numbers = image.height * image.width * image.channels
        with c.loop(self.n) as r:
            sample = self.a["x"].at(self.index.one(r) * numbers)
            c.call(self.kernels.gather, sample, self._buffer("in0").at(r * image.size), self.a["channels_last"])

    def _forward(self, i: int) -> None:
        c, u, k = self.c, self.layout.units[i], self.kernels.of[i]
        x, out = self._buffer(f"in{i}"), self._buffer(f"in{i + 1}")
        if isinstance(u, LinearUnit):
            if i == 0 or not isinstance(self.layout.units[i - 1], LinearUnit):
                self._clear_rest(x, u.inside.size)
            c.call(k["forward"], x, *self._parameters(i, "w"), out, self.filled)
            return
        won = self._as_numbers(f"winners{i}")
        if isinstance(u, PoolUnit):
            with c.loop(self.n) as r:
                c.call(k["forward"], x.at(r * u.inside.size), out.at(r * u.out.size), won.at(r * u.winners))
            return
        w, b = self._parameters(i, "w")
        if u.along == "channels":
            c.call(k["turn"], w, self._buffer(f"turned{i}"))
        with c.loop(self.n) as r:
            image, weight = x.at(r * u.inside.size), self._buffer(f"turned{i}")
            if u.along == "row":
                c.call(k["planes"], image, self._buffer("planes"))
                image, weight = self._buffer("planes"), w
            c.call(k["forward"], image, weight, b, out.at(r * u.out.size), won.at(r * u.winners))

    def _parameters(self, i: int, of: str) -> tuple[Memory, Memory]:
        """Return weight and bias of a unit in a packed vector."""
        weight, bias, _ = self.layout.parameters[i]
        return self.packed[of].at(weight), self.packed[of].at(bias)

    # ---- backward ---------------------------------------------------------------------------------------------
    def _backward(self, i: int) -> None:
        """Write the backward passes of a unit and of all before it, as far down as something moves."""
        c, u = self.c, self.layout.units[i]
        g = self._buffer(f"in{i + 1}" if i == len(self.layout.units) - 1 else f"gradient{i + 1}")
        if not isinstance(u, LinearUnit) and u.relu and not isinstance(self.layout.units[i + 1], LinearUnit):
            c.call(self.kernels.through_relu, self._buffer(f"in{i + 1}"), g, self.n * u.out.size)
        if i > 0 and not isinstance(u, LinearUnit):
            c.clear(self._buffer(f"gradient{i}"), self.n * u.inside.size)
        if isinstance(u, LinearUnit):
            self._backward_linear(i, u, g)
        elif isinstance(u, ConvUnit):
            self._backward_conv(i, u, g)
        else:
            self._backward_pool(i, u, g)
        below = [j for j in self.layout.weighted if j < i]
        if below:
            with c.when(self.a["first"] < i):
                self._backward(i - 1)

    def _backward_linear(self, i: int, u: LinearUnit, g: Memory) -> None:
        c, k, x = self.c, self.kernels.of[i], self._buffer(f"in{i}")
        if i > 0:  # before the weight moves
            with c.when(self.a["first"] < i):
                c.call(k["below"], g, self._parameters(i, "w")[0], x, self._buffer(f"gradient{i}"), self.filled)
        for target, (keep, keep_bias), chosen in self._targets(i):
            with c.when(chosen):
                w, b = self._parameters(i, target)
                c.call(k["update"], g, x, w, self.rate, keep, self.filled)
                if u.parameters.bias is not None:
                    c.call(k["update_bias"], g, b, self.rate, keep_bias, self.n)

    def _backward_conv(self, i: int, u: ConvUnit, g: Memory) -> None:
        c, k, x, won = self.c, self.kernels.of[i], self._buffer(f"in{i}"), self._as_numbers(f"winners{i}")
        dw = self._buffer(f"dw{i}")
        db, below = dw.at(u.weights), self._buffer(f"gradient{i}")
        c.clear(dw, u.weights + u.biases)
        with c.loop(self.n) as r:
            image, gradient, winners = x.at(r * u.inside.size), g.at(r * u.out.size), won.at(r * u.winners)
            if u.along == "row":
                c.call(k["backward"], image, gradient, winners, dw, db)
            else:
                weight, to = self._parameters(i, "w")[0], below.at(r * u.inside.size if i else 0)
                c.call(k["backward"], image, weight, gradient, winners, to, dw, db)
        for target, (keep, keep_bias), chosen in self._targets(i):
            with c.when(chosen):
                w, b = self._parameters(i, target)
                c.call(k["step"], dw, w, self.rate, keep)
                if u.parameters.bias is not None:
                    c.call(k["step_bias"], db, b, self.rate, keep_bias)

    def _backward_pool(self, i: int, u: PoolUnit, g: Memory) -> None:
        won, below = self._as_numbers(f"winners{i}"), self._buffer(f"gradient{i}")
        with self.c.loop(self.n) as r:
            to = below.at(r * u.inside.size)
            self.c.call(self.kernels.of[i]["backward"], g.at(r * u.out.size), won.at(r * u.winners), to)

    def _targets(self, i: int) -> list[tuple[str, tuple[Value, Value], Value]]:
        """Return the packed vectors that gradients may move, with the factors of weight and bias, and when."""
        c, a = self.c, self.a
        moves = (a["first"] <= i) & (c.number(i) <= a["last"])
        plain = a["has_momentum"].is_(0)
        keep = tuple(terms.keep_of(c, self.rates, a[name]) for name in ("decay", "decay_biases"))
        return [
            ("w", (keep[0], keep[1]), moves & plain),
            ("v", (a["momentum"], a["momentum"]), moves & self.momentum),
        ]

    # ---- what no batch changes --------------------------------------------------------------------------------
    def _terms(self) -> None:
        c, a, k = self.c, self.a, self.kernels
        shared = (self.packed["center"], self.packed["linear"], a["has_center"], a["has_linear"])
        rates = (self.rates.lr, self.rates.mu, self.rates.after)
        for i in self.layout.weighted:
            weight, bias, stop = self.layout.parameters[i]
            moves = (a["first"] <= i) & (c.number(i) <= a["last"])
            with c.when(moves & a["has_momentum"].is_(0)):
                c.call(k.plain, self.packed["w"], *shared, *rates, weight, stop)
            with c.when(moves & self.momentum):
                for decay, span in (("decay", (weight, bias)), ("decay_biases", (bias, stop))):
                    c.call(k.with_momentum, self.packed["w"], self.packed["v"], *shared, *rates, a[decay], *span)
