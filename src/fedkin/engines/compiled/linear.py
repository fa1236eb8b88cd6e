"""Kernels of linear layers, on all samples of a batch: ``x [B, I]``, ``w [O, I]``, rows padded to 16 floats.

A block of R samples and two neurons, or two vectors of inputs, is held in registers: each number that is loaded takes
part in several products. R divides the batch, and 2 R sums and the operands fit into the registers.
"""

from __future__ import annotations

from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.units import LANES, LinearUnit
from fedkin.engines.compiled.values import F32, Memory, Value


def forward(c: Code, u: LinearUnit, block: int, x: Memory, w: Memory, b: Memory, y: Memory, rows: Value) -> None:
    """Write ``y = relu(x w^T + b)``; lanes beyond the last neuron become zero, as the next unit needs them.

    R samples x two neurons; the 16 lanes of each sum are kept until 16 neurons are done, and added up together. The
    weight may lie at any place, so that forward passes read one that needs no packing from where it is.
    """
    width, outputs = u.inside.size, u.outputs
    lanes = c.array(F32, block * LANES * LANES)  # [sample of the block, neuron of sixteen, lane]
    with c.loop(rows, block) as r, c.loop(outputs, LANES) as first:
        left = c.least(outputs - first, LANES)
        with c.loop(left, 2) as n:
            a, b_ = first + n, c.least(first + n + 1, outputs - 1)
            sums = [[c.var(c.vector(0.0)) for _ in range(block)] for _ in range(2)]
            with c.loop(width, LANES) as k:
                weights = [w.vector(neuron * width + k) for neuron in (a, b_)]
                for i in range(block):
                    inputs = x.vector((r + i) * width + k, aligned=True)
                    for j in range(2):
                        sums[j][i].set(c.fma(weights[j], inputs, sums[j][i].get()))
            for i in range(block):
                for j in range(2):
                    lanes.put_vector(sums[j][i].get(), (n + (i * LANES + j)) * LANES, aligned=True)
        there = c.places(range(LANES)) < c.places(left)
        for i in range(block):
            total = c.sums([lanes.vector((i * LANES + k) * LANES, aligned=True) for k in range(LANES)])
            total = c.choose(there, total + b.vector(first, aligned=True), c.vector(0.0))
            y.put_vector(c.relu(total) if u.relu else total, (r + i) * u.out.size + first, aligned=True)


def below(
    c: Code, u: LinearUnit, block: int, masked: bool, g: Memory, w: Memory, x: Memory, dx: Memory, rows: Value
) -> None:
    """Write the gradient at the input, ``g w``; if ``masked``, only where the ReLU that made the input let it through.

    R samples x two vectors of inputs.
    """
    width = u.inside.size
    with c.loop(rows, block) as r, c.loop(width, 2 * LANES) as k:
        columns = (k, c.least(k + LANES, width - LANES))
        sums = [[c.var(c.vector(0.0)) for _ in columns] for _ in range(block)]
        with c.loop(u.outputs) as n:
            weights = [w.vector(n * width + column, aligned=True) for column in columns]
            for i in range(block):
                gradient = c.vector(g.one((r + i) * u.out.size + n))
                for j in range(2):
                    sums[i][j].set(c.fma(weights[j], gradient, sums[i][j].get()))
        for i in range(block):
            for j, column in enumerate(columns):
                at, gradient = (r + i) * width + column, sums[i][j].get()
                if masked:
                    gradient = c.choose(x.vector(at, aligned=True) <= 0.0, c.vector(0.0), gradient)
                dx.put_vector(gradient, at, aligned=True)


def update(
    c: Code, u: LinearUnit, block: int, g: Memory, x: Memory, t: Memory, rate: Value, keep: Value, rows: Value
) -> None:
    """Move a target of the weight, ``t = keep t + rate g^T x``: gradient and step are one pass over it.

    Two neurons x R samples: the factors of a block stay in registers while the two rows of the target go by.
    """
    width, outputs = u.inside.size, u.outputs
    with c.loop(outputs, 2) as n, c.loop(rows, block) as r:
        neurons = (n, c.least(n + 1, outputs - 1))
        factors = [[c.vector(rate * g.one((r + i) * u.out.size + n)) for i in range(block)] for n in neurons]
        kept = c.vector(c.choose(r.is_(0), keep, c.real(1.0)))
        with c.loop(width, LANES) as k:
            weights = [t.vector(n * width + k, aligned=True) * kept for n in neurons]
            for i in range(block):
                inputs = x.vector((r + i) * width + k, aligned=True)
                weights = [c.fma(factors[j][i], inputs, weights[j]) for j in range(2)]
            for j in (1, 0):  # of an odd number of neurons the last is both
                t.put_vector(weights[j], neurons[j] * width + k, aligned=True)


def update_bias(c: Code, u: LinearUnit, g: Memory, t: Memory, rate: Value, keep: Value, rows: Value) -> None:
    """Move a target of the bias, ``t = keep t + rate sum(g)``."""
    with c.loop(u.biases, LANES) as n:
        total = c.var(c.vector(0.0))
        with c.loop(rows) as r:
            total.set(total.get() + g.vector(r * u.out.size + n, aligned=True))
        moved = c.fma(total.get(), c.vector(rate), t.vector(n, aligned=True) * c.vector(keep))
        t.put_vector(moved, n, aligned=True)
