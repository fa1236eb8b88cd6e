"""The program of a chain: a client's whole local training as one function, all its steps without Python between."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedkin.engines.compiled import conv_channels, conv_rows, linear, loss, packing, pooling, terms
from fedkin.engines.compiled.code import Code, Memory, Module, Value
from fedkin.engines.compiled.layout import Layout
from fedkin.engines.compiled.target import Target
from fedkin.engines.compiled.units import ConvUnit, LinearUnit, PoolUnit

ARGUMENTS = {
    "x": "f", "y": "l", "offset": "f", "index": "l", "rows": "l", "lr": "f",
    "start": "f", "out": "f", "center": "f", "linear": "f", "memory": "f",
    "steps": "i", "first": "i", "last": "i", "channels_last": "i",
    "has_offset": "i", "has_center": "i", "has_linear": "i", "has_momentum": "i",
    "mu": "x", "after": "x", "decay": "x", "decay_biases": "x", "momentum": "x",
}  # fmt: skip
"""Arguments of the program and their letters in `Module.function`.

``index`` names the samples of all batches, ``rows`` and ``lr`` have a number for each step; ``first`` and ``last`` are
the units that move. An array that its ``has_`` denies may be null. The result is 1 if a label is not a class.
"""


def block_of(batch: int, target: Target) -> int:
    """Return how many samples linear layers take at a time."""
    return linear.block_of(batch, target.vectors)


def write(layout: Layout, block: int, target: Target) -> str:
    """Return the program of a chain as LLVM IR.

    Args:
        layout: of its memory.
        block: samples that linear layers take at a time.
    """
    module = Module(target)
    kernels = _Kernels(module, layout, block)
    module.function("".join(ARGUMENTS.values()), partial(_train, layout=layout, block=block, kernels=kernels), "train")
    return module.text()


class _Kernels:
    """The functions of a program, one for each kernel of each unit."""

    def __init__(self, module: Module, layout: Layout, block: int) -> None:
        self._module, self._vectors, self._block = module, module.target.vectors, block
        self.of: list[dict[str, Any]] = []
        for i, u in enumerate(layout.units):
            masked = i > 0 and layout.units[i - 1].relu
            self.of.append(self._linear(u, masked) if isinstance(u, LinearUnit) else
                           self._conv(u, i > 0) if isinstance(u, ConvUnit) else self._pool(u))  # fmt: skip
        self.pack = module.function("ff", lambda c, *a: packing.pack(c, layout, *a))
        self.unpack = module.function("ff", lambda c, *a: packing.unpack(c, layout, *a))
        self.gather = module.function("ffi", lambda c, *a: packing.gather(c, layout.units[0].inside, *a))
        classes = layout.units[-1].out.channels
        self.loss = module.function("flfilil", lambda c, *a: loss.cross_entropy(c, classes, *a))
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

    def _conv(self, u: ConvUnit, onward: bool) -> dict[str, Any]:
        new, vectors = self._module.function, self._vectors
        found = {
            "step": new("ffxx", lambda c, *a: conv_channels.step(c, u, *a)),
            "step_bias": new("ffxx", lambda c, *a: conv_channels.step_bias(c, u, *a)),
        }
        if u.along == "row":
            a, b = conv_rows.block_of(u, vectors), max(1, vectors - 4)
            return found | {
                "planes": new("ff", lambda c, *args: conv_rows.planes(c, u, *args)),
                "forward": new("ffffn", lambda c, *args: conv_rows.forward(c, u, a, *args)),
                "backward": new("ffnff", lambda c, *args: conv_rows.backward(c, u, b, *args)),
            }
        a, b = conv_channels.block_of(u, vectors), conv_channels.backward_block(u, vectors)
        return found | {
            "turn": new("ff", lambda c, *args: conv_channels.turn(c, u, *args)),
            "forward": new("ffffn", lambda c, *args: conv_channels.forward(c, u, a, *args)),
            "backward": new("fffnfff", lambda c, *args: conv_channels.backward(c, u, b, onward, *args)),
        }

    def _pool(self, u: PoolUnit) -> dict[str, Any]:
        new = self._module.function
        return {
            "forward": new("ffn", lambda c, *a: pooling.forward(c, u, *a)),
            "backward": new("fnf", lambda c, *a: pooling.backward(c, u, *a)),
        }


def _train(c: Code, *values: Value | Memory, layout: Layout, block: int, kernels: _Kernels) -> Value:
    """Write the program: pack, all steps, unpack."""
    a: dict[str, Any] = dict(zip(ARGUMENTS, values, strict=True))
    memory, wrong = a["memory"], c.array(a["index"].kind, 1)
    wrong.put(c.number(0))
    packed = {name: memory.at(layout[name]) for name in ("w", "v", "center", "linear")}
    c.call(kernels.pack, a["start"], packed["w"])
    c.clear(packed["v"], c.choose(a["has_momentum"].is_not(0), c.number(layout.packed), c.number(0)))
    for name in ("center", "linear"):
        with c.when(a[f"has_{name}"].is_not(0)):
            c.call(kernels.pack, a[name], packed[name])
    begun = c.var(c.number(0))
    with c.loop(a["steps"]) as step:
        n = a["rows"].one(step)
        _Step(c, layout, block, kernels, a, packed, wrong, n, a["index"].at(begun.get()), a["lr"].one(step)).write()
        begun.set(begun.get() + n)
    c.call(kernels.unpack, packed["w"], a["out"])
    return wrong.one()


class _Step:
    """One step while it is written: forward, loss, backward, and the terms.

    Args:
        a: the program's arguments by name.
        packed: parameters, velocity, center and linear term.
        wrong: is set to 1 at a label that is not a class.
        n: samples of the batch, ``index`` their numbers.
    """

    def __init__(
        self, c: Code, layout: Layout, block: int, kernels: _Kernels, a: dict[str, Any], packed: dict[str, Memory],
        wrong: Memory, n: Value, index: Memory, lr: Value,
    ) -> None:  # fmt: skip
        self.c, self.layout, self.block, self.kernels, self.a, self.packed = c, layout, block, kernels, a, packed
        self.wrong, self.n, self.index = wrong, n, index
        # linear layers compute whole blocks: samples that only fill them are zero, and so are their gradients
        self.filled = n if block == 1 else self._whole_blocks(n)
        self.rates = terms.Rates(lr, a["mu"], a["after"])
        self.momentum = a["has_momentum"].is_not(0)
        self.rate = c.choose(self.momentum, c.real(1.0), c.real(0.0) - lr) / n.cast("sitofp", lr.of.type)

    def _whole_blocks(self, n: Value) -> Value:
        more = n + (self.block - 1)
        return Value(more.builder, more.builder.sdiv(more.of, self.c.index(self.block))) * self.block

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
