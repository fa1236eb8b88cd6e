"""Kernels of convolutions whose vectors are output channels, one image at a time.

Images lie as ``[H, W, C]``, so a row of the kernel meets ``KW C`` numbers in a piece, its taps. The packed weight is
``[O, KH, taps]`` with taps padded to whole vectors; the forward pass reads it turned, ``[KH, taps, O]``.
"""

from __future__ import annotations

from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.units import LANES, ConvUnit
from fedkin.engines.compiled.values import I32, Memory, Value


def turn(c: Code, u: ConvUnit, w: Memory, turned: Memory) -> None:
    """Write the weight as ``[KH, taps, O]``, channels padded to whole vectors."""
    padded, outputs = u.vectors * LANES, u.out.stored
    with c.loop(u.kernel[0]) as h, c.loop(u.out.channels) as o, c.loop(u.taps) as tap:
        turned.put(w.one((o * u.kernel[0] + h) * padded + tap), (h * u.taps + tap) * outputs + o)


def block_of(u: ConvUnit, vectors: int) -> int:
    """Return the number of windows of pooling, side by side, whose sums are held in registers."""
    most = max(1, (vectors - 4) // u.pool**2)
    most = min(most, 5 if u.pool > 1 else 20)
    return next(p for p in range(most, 0, -1) if u.out.width % p == 0)


def forward(c: Code, u: ConvUnit, block: int, x: Memory, turned: Memory, b: Memory, out: Memory, won: Memory) -> None:
    """Write ``out = relu(pool(conv(x)))`` and, with pooling, which position of each window won.

    P windows side by side are held in registers, pool x pool sums of 16 channels each: a vector of weights is loaded
    once for all of them, and multiplied by one number of each position.
    """
    side, image, outputs = u.pool, u.inside, u.out.stored
    across = block * side
    with c.loop(u.out.height) as ph, c.loop(u.out.width, block) as p0, c.loop(outputs, LANES) as o:
        sums = [[c.var(b.vector(o, aligned=True)) for _ in range(across)] for _ in range(side)]
        corner = x.at(ph * (side * u.stride[0] * image.row) + p0 * (side * u.stride[1] * image.stored))
        with c.loop(u.kernel[0]) as h:
            row, weights = corner.at(h * image.row), turned.at(h * (u.taps * outputs) + o)
            with c.loop(u.taps) as tap:
                weight = weights.vector(tap * outputs, aligned=True)
                for i in range(side):
                    for j in range(across):
                        at = i * u.stride[0] * image.row + j * u.stride[1] * image.stored
                        number = c.vector(row.one(tap + at))
                        sums[i][j].set(c.fma(number, weight, sums[i][j].get()))
        for j in range(block):
            window = [sums[i][j * side + k].get() for i in range(side) for k in range(side)]
            best, place = largest(c, window, list(range(side * side)))
            to = ph * u.out.row + (p0 + j) * outputs + (o + u.out.start)
            out.put_vector(c.relu(best) if u.relu else best, to, aligned=True)
            if side > 1:
                won.put_vector(place, (ph * u.out.width + p0 + j) * outputs + o)


def largest(c: Code, window: list[Value], names: list[int]) -> tuple[Value, Value]:
    """Return the largest of vectors lane by lane, and its name; the first of equals, and a NaN before all, as torch."""
    best, place = window[0], c.places(names[0])
    for value, name in zip(window[1:], names[1:], strict=True):
        more = (value > best) | value.is_not(value)
        best, place = c.choose(more, value, best), c.choose(more, c.places(name), place)
    return best, place


def backward_block(u: ConvUnit, vectors: int) -> int:
    """Return how many vectors of a window, and of its gradient, are held in registers."""
    all_of_it = u.kernel[0] * u.vectors
    most = max(1, (vectors - 8) // 2)
    return next(q for q in range(min(most, all_of_it), 0, -1) if all_of_it % q == 0)


def backward(
    c: Code, u: ConvUnit, block: int, onward: bool,
    x: Memory, w: Memory, g: Memory, won: Memory, dx: Memory, dw: Memory, db: Memory,
) -> None:  # fmt: skip
    """Add one image's gradient of the weight and the bias and, if ``onward``, at the input, where a position won.

    ``g`` is the gradient at the output, zero where the ReLU let nothing through. The channels that won at the same
    position have the same window of the input: it and its gradient are loaded once for all of them, Q vectors at a
    time. So no piece of the gradient is stored and read again at once, which would stall.
    """
    side, image, outputs = u.pool, u.inside, u.out.stored
    lists, counts = c.array(I32, side * side * outputs), c.array(I32, side * side)
    with c.loop(u.out.height) as ph, c.loop(u.out.width) as p:
        here = g.at(ph * u.out.row + p * outputs + u.out.start)
        _group(c, u, here, won.at((ph * u.out.width + p) * outputs), lists, counts)
        with c.loop(outputs, LANES) as o:
            db.put_vector(db.vector(o, aligned=True) + here.vector(o, aligned=True), o, aligned=True)
        for i in range(side * side):
            down, right = ph * side + i // side, p * side + i % side
            corner = down * (u.stride[0] * image.row) + right * (u.stride[1] * image.stored)
            chosen, count = lists.at(i * outputs), counts.one(i)
            with c.when(c.number(0) < count):
                for q in range(0, u.kernel[0] * u.vectors, block):
                    _window(c, u, range(q, q + block), onward, x.at(corner), w, here, chosen, count, dx.at(corner), dw)


def _group(c: Code, u: ConvUnit, here: Memory, won: Memory, lists: Memory, counts: Memory) -> None:
    """Write a list of channels for each position of a window: those that won there and have a gradient."""
    for i in range(u.pool**2):
        counts.put(c.number(0), i)
    with c.loop(u.out.channels) as o:
        place = won.one(o) if u.pool > 1 else c.number(0)
        count = counts.one(place)
        lists.put(o, place * u.out.stored + count)
        moved = here.one(o).is_not(0.0).cast("zext", count.of.type)  # a NaN counts
        counts.put(count + moved, place)


def _window(
    c: Code, u: ConvUnit, part: range, onward: bool,
    x: Memory, w: Memory, here: Memory, chosen: Memory, count: Value, dx: Memory, dw: Memory,
) -> None:  # fmt: skip
    """Add what some vectors of one window contribute, for all channels of a list."""
    at = [q // u.vectors * u.inside.row + q % u.vectors * LANES for q in part]
    inputs, below = [x.vector(i) for i in at], [c.var(c.vector(0.0)) for _ in at]
    with c.loop(count) as j:
        o = chosen.one(j)
        gradient, base = c.vector(here.one(o)), o * (u.kernel[0] * u.vectors * LANES) + part.start * LANES
        for q in range(len(part)):
            if onward:
                below[q].set(c.fma(gradient, w.vector(base + q * LANES, aligned=True), below[q].get()))
            moved = c.fma(gradient, inputs[q], dw.vector(base + q * LANES, aligned=True))
            dw.put_vector(moved, base + q * LANES, aligned=True)
    if onward:
        for q, i in enumerate(at):
            dx.put_vector(dx.vector(i) + below[q].get(), i)


def step(c: Code, u: ConvUnit, dw: Memory, t: Memory, rate: Value, keep: Value) -> None:
    """Move a target of the weight, ``t = keep t + rate dw``; lanes of ``dw`` beyond the taps hold other positions'."""
    width = u.vectors * LANES
    inside = c.first_lanes(u.taps - (u.vectors - 1) * LANES)
    with c.loop(u.weights, width) as i:
        for v in range(0, width, LANES):
            found = dw.vector(i + v, aligned=True)
            if v == width - LANES:
                found = c.choose(inside, found, c.vector(0.0))
            moved = c.fma(found, c.vector(rate), t.vector(i + v, aligned=True) * c.vector(keep))
            t.put_vector(moved, i + v, aligned=True)


def step_bias(c: Code, u: ConvUnit, db: Memory, t: Memory, rate: Value, keep: Value) -> None:
    """Move a target of the bias, ``t = keep t + rate db``."""
    with c.loop(u.biases, LANES) as o:
        moved = c.fma(db.vector(o, aligned=True), c.vector(rate), t.vector(o, aligned=True) * c.vector(keep))
        t.put_vector(moved, o, aligned=True)
