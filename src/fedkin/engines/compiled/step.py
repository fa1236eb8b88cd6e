"""One step of SGD while its program is written."""

from __future__ import annotations

from fedkin.engines.compiled import terms
from fedkin.engines.compiled.forward import ForwardWriter, ProgramParts
from fedkin.engines.compiled.units import ConvUnit, LinearUnit, PoolUnit
from fedkin.engines.compiled.values import Memory, Value


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
