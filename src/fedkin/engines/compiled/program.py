"""The program of a chain: a client's whole local training as one function, and forward passes as another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedkin.engines.compiled import conv_channels, conv_rows, linear, loss, packing, pooling, terms
from fedkin.engines.compiled.code import Code, Module, Target
from fedkin.engines.compiled.layout import FORWARD, TRAIN, Layout
from fedkin.engines.compiled.units import ConvUnit, LinearUnit, PoolUnit
from fedkin.engines.compiled.values import I64, Memory, Value
from fedkin.engines.compiled.values import index as index_of


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


# ---- forward passes ---------------------------------------------------------------------------------------------
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


# ---- local training ---------------------------------------------------------------------------------------------
class StepWriter:
    """One step while it is written: forward, loss, backward, and the terms.

    Args:
        parts: of the program.
        n: samples of the batch.
        index: their numbers.
        lr: step size.
        wrong: is set to 1 at a label that is not a class.
    """

    def __init__(self, parts: ProgramParts, n: Value, index: Memory, lr: Value, wrong: Memory) -> None:
        self.parts, self.c, self.layout, self.kernels = parts, parts.c, parts.layout, parts.kernels
        self.a, self.packed, self.wrong = parts.arguments, parts.packed, wrong
        self.n, self.index = n, index
        self.forward = ForwardWriter(parts, n)  # samples that only fill a block are zero, and so are their gradients
        self.filled = self.forward.filled
        c = self.c
        self.rates = terms.Rates(lr, self.a["mu"], self.a["after"])
        self.momentum = self.a["has_momentum"].is_not(0)
        self.rate = c.choose(self.momentum, c.real(1.0), c.real(0.0) - lr) / n.cast("sitofp", lr.of.type)

    def write(self) -> None:
        """Write the step."""
        units = self.layout.units
        self.parts.turn()
        self.forward.write(self.index.one)
        logits, a = self.parts.buffer(f"in{len(units)}"), self.a
        self._teach(logits)
        added = (a["offset"], a["has_offset"], self.parts.buffer("taught"), a["has_teacher"])
        self.c.call(self.kernels.loss, logits, a["y"], *added, self.index, self.n, self.wrong)
        self.forward.clear_rest(logits, units[-1].out.size)
        self._backward(len(units) - 1)
        self._terms()

    def _teach(self, logits: Memory) -> None:
        """Write what a teacher adds to the gradient at the logits, if there is one."""
        c, a, last = self.c, self.a, len(self.layout.units) - 1
        head, z = self.layout.units[last], self.parts.buffer(f"in{last}")
        w, taught = self.parts.buffer("teacher"), self.parts.buffer("taught")
        assert isinstance(head, LinearUnit)
        with c.when(a["has_teacher"].is_not(0)):
            c.call(self.kernels.of[last]["forward"], z, w, w.at(head.weights), taught, self.filled)
            c.call(self.kernels.teach, logits, taught, self.n, a["pull"], a["inverse"])

    # ---- backward ---------------------------------------------------------------------------------------------
    def _backward(self, i: int) -> None:
        """Write the backward passes of a unit and of all before it, as far down as something moves."""
        c, u = self.c, self.layout.units[i]
        g = self.parts.buffer(f"in{i + 1}" if i == len(self.layout.units) - 1 else f"gradient{i + 1}")
        if not isinstance(u, LinearUnit) and u.relu and not isinstance(self.layout.units[i + 1], LinearUnit):
            c.call(self.kernels.through_relu, self.parts.buffer(f"in{i + 1}"), g, self.n * u.out.size)
        if i > 0 and not isinstance(u, LinearUnit):
            c.clear(self.parts.buffer(f"gradient{i}"), self.n * u.inside.size)
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
        c, k, x = self.c, self.kernels.of[i], self.parts.buffer(f"in{i}")
        if i > 0:  # before the weight moves
            with c.when(self.a["first"] < i):
                w, below = self.parts.parameters(i)[0], self.parts.buffer(f"gradient{i}")
                c.call(k["below"], g, w, x, below, self.filled)
        for target, (keep, keep_bias), chosen in self._targets(i):
            with c.when(chosen):
                w, b = self.parts.parameters(i, target)
                c.call(k["update"], g, x, w, self.rate, keep, self.filled)
                if u.parameters.bias is not None:
                    c.call(k["update_bias"], g, b, self.rate, keep_bias, self.n)

    def _backward_conv(self, i: int, u: ConvUnit, g: Memory) -> None:
        c, k, x, won = self.c, self.kernels.of[i], self.parts.buffer(f"in{i}"), self.parts.numbers(f"winners{i}")
        dw = self.parts.buffer(f"dw{i}")
        db = dw.at(u.weights)
        c.clear(dw, u.weights + u.biases)
        if u.along == "row":
            with c.loop(self.n) as r:
                image, gradient, winners = x.at(r * u.inside.size), g.at(r * u.out.size), won.at(r * u.winners)
                c.call(k["backward"], image, gradient, winners, dw, db)
        else:
            c.call(k["weight"], x, g, won, dw, db, self.parts.buffer("lists"), self.n)
            if i > 0:
                with c.when(self.a["first"] < i):  # before the weight moves
                    c.call(k["input"], self.parts.parameters(i)[0], g, won, self.parts.buffer(f"gradient{i}"), self.n)
        for target, (keep, keep_bias), chosen in self._targets(i):
            with c.when(chosen):
                w, b = self.parts.parameters(i, target)
                c.call(k["step"], dw, w, self.rate, keep)
                if u.parameters.bias is not None:
                    c.call(k["step_bias"], db, b, self.rate, keep_bias)

    def _backward_pool(self, i: int, u: PoolUnit, g: Memory) -> None:
        won, below = self.parts.numbers(f"winners{i}"), self.parts.buffer(f"gradient{i}")
        with self.c.loop(self.n) as r:
            to = below.at(r * u.inside.size)
            self.c.call(self.kernels.of[i]["backward"], g.at(r * u.out.size), won.at(r * u.winners), to)

    def _targets(self, i: int) -> list[tuple[str, tuple[Value, Value], Value]]:
        """Return the packed vectors that gradients may move, with the factors of weight and bias, and when."""
        c, a = self.c, self.a
        moves = (a["first"] <= i) & (c.number(i) <= a["last"])
        plain = a["has_momentum"].is_(0)
        keep = tuple(terms.keep_of(c, self.rates, a[name]) for name in ("decay", "decay_biases"))
        return [("w", (keep[0], keep[1]), moves & plain), ("v", (a["momentum"], a["momentum"]), moves & self.momentum)]

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


# ---- programs ---------------------------------------------------------------------------------------------------
def write(layout: Layout, block: int, target: Target) -> str:
    """Return the program of a chain as LLVM IR.

    Args:
        layout: of its memory.
        block: samples that linear layers take at a time.
    """
    module = Module(target)
    kernels = Kernels(module, layout, block)
    for name, arguments, body in (("train", TRAIN, _train), ("forward", FORWARD, _forward)):
        module.function("".join(arguments.values()), partial(body, layout=layout, block=block, kernels=kernels), name)
    return module.text()


def _train(c: Code, *values: Value | Memory, layout: Layout, block: int, kernels: Kernels) -> Value:
    """Write local training: pack, all steps, unpack."""
    a: dict[str, Any] = dict(zip(TRAIN, values, strict=True))
    memory, wrong = a["memory"], c.array(I64, 1)
    wrong.put(c.number(0))
    packed = {name: memory.at(layout[name]) for name in ("w", "v", "center", "linear")}
    c.call(kernels.pack, a["start"], packed["w"])
    c.clear(packed["v"], c.choose(a["has_momentum"].is_not(0), c.number(layout.packed), c.number(0)))
    for name in ("center", "linear"):
        with c.when(a[f"has_{name}"].is_not(0)):
            c.call(kernels.pack, a[name], packed[name])
    with c.when(a["has_teacher"].is_not(0)):
        c.call(kernels.pack_head, a["teacher"], memory.at(layout["teacher"]))
    parts = ProgramParts(c, layout, block, kernels, a, packed)
    begun = c.var(c.number(0))
    with c.loop(a["steps"]) as step:
        n = a["rows"].one(step)
        StepWriter(parts, n, a["index"].at(begun.get()), a["lr"].one(step), wrong).write()
        begun.set(begun.get() + n)
    c.call(kernels.unpack, packed["w"], a["out"])
    return wrong.one()


def _forward(c: Code, *values: Value | Memory, layout: Layout, block: int, kernels: Kernels) -> Value:
    """Write forward passes: pack, then one block of samples after another, and what is asked of each.

    A block's activations stay in the processor's caches.
    """
    a: dict[str, Any] = dict(zip(FORWARD, values, strict=True))
    parts = ProgramParts(c, layout, block, kernels, a, {"w": a["memory"].at(layout["w"])}, flat=a["start"])
    c.call(kernels.pack_some, a["start"], parts.packed["w"])
    parts.turn()
    head = layout.units[-1]
    z, out = parts.buffer(f"in{len(layout.units) - 1}"), parts.buffer(f"in{len(layout.units)}")
    with c.loop(a["samples"], block) as first:
        n = c.least(a["samples"] - first, block)
        ForwardWriter(parts, n).write(partial(Value.__add__, first))
        with c.loop(n) as r:
            to = a["logits"].at((first + r) * head.out.channels)
            c.copy(to, out.at(r * head.out.size), head.out.channels)
        with c.when(a["has_features"].is_not(0)), c.loop(n) as r:
            to = a["features"].at((first + r) * head.inside.numbers)
            c.call(kernels.scatter, z.at(r * head.inside.size), to)
    return c.number(0)
