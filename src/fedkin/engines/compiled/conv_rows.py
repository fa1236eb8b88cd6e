"""Kernels of a first convolution of few channels with 2 x 2 max pooling: vectors are positions of a row.

The forward pass reads the image as planes ``[C, H, W]``, so that neighbours in a row lie next to each other. It writes
where in the image ``[H, W, C]`` the window of each winner begins; the backward pass goes from winner to winner.
"""

from __future__ import annotations

from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.conv_channels import largest
from fedkin.engines.compiled.units import LANES, ConvUnit, up
from fedkin.engines.compiled.values import Memory, Value

_ACROSS = 2  # vectors of a row: 32 positions, 16 windows


def block_of(u: ConvUnit, vectors: int) -> int:
    """Return the number of channels whose sums are held in registers."""
    most = max(1, min(6, (vectors - 4) // (2 * _ACROSS)))
    return next(o for o in range(most, 0, -1) if u.out.channels % o == 0)


def planes(c: Code, u: ConvUnit, x: Memory, out: Memory) -> None:
    """Write an image as planes."""
    height, width = u.inside.plane
    with c.loop(height) as h, c.loop(width) as w:
        for channel in range(u.inside.stored):
            number = x.one(h * u.inside.row + w * u.inside.stored + channel)
            out.put(number, (h + channel * height) * width + w)


def forward(c: Code, u: ConvUnit, block: int, x: Memory, w: Memory, b: Memory, out: Memory, won: Memory) -> None:
    """Write ``out = relu(pool(conv(x)))`` and the places of the winners, ``[O, rows, windows of a row padded]``.

    Two rows x 32 positions x O channels are held in registers: a vector of the image meets the weights of all O, and
    pooling is done before anything is stored.
    """
    height, width = u.inside.plane
    padded = u.vectors * LANES
    for first in range(0, up(u.out.width), LANES):
        with c.loop(u.out.height) as ph, c.loop(u.out.channels, block) as o:
            sums = [[[c.var(c.vector(b.one(o + j))) for _ in range(_ACROSS)] for _ in range(2)] for j in range(block)]
            with c.loop(u.inside.stored) as channel, c.loop(u.kernel[0]) as h:
                row = x.at((channel * height + ph * 2 + h) * width + 2 * first)
                weights = w.at((o * u.kernel[0] + h) * padded + channel)
                for k in range(u.kernel[1]):
                    numbers = [[row.vector(r * width + k + v * LANES) for v in range(_ACROSS)] for r in range(2)]
                    for j in range(block):
                        weight = c.vector(weights.one(j * u.kernel[0] * padded + k * u.inside.stored))
                        for r in range(2):
                            for v in range(_ACROSS):
                                sums[j][r][v].set(c.fma(weight, numbers[r][v], sums[j][r][v].get()))
            for j in range(block):
                _pool(c, u, [[v.get() for v in row] for row in sums[j]], first, ph, o + j, out, won)


def _pool(
    c: Code, u: ConvUnit, rows: list[list[Value]], first: int, ph: Value, o: Value, out: Memory, won: Memory
) -> None:
    """Write the largest of each 2 x 2 positions of a channel, and where the winner's window begins."""
    right, down = u.inside.stored, u.inside.row
    window = [c.every_other(row[0], row[1], side) for row in rows for side in (0, 1)]
    best, place = largest(c, window, [0, right, down, down + right])
    best = c.relu(best) if u.relu else best
    begin = c.places([2 * right * (first + i) for i in range(LANES)]) + c.places(ph * (2 * down))
    won.put_vector(place + begin, (o * u.out.height + ph) * up(u.out.width) + first)
    row = out.at(ph * u.out.row + o + (u.out.start + first * u.out.stored))
    for i in range(min(LANES, u.out.width - first)):
        row.put(c.lane(best, i), i * u.out.stored)


def backward(c: Code, u: ConvUnit, block: int, x: Memory, g: Memory, won: Memory, dw: Memory, db: Memory) -> None:
    """Add one image's gradient of the weight and the bias, at the winners.

    The gradient of one channel's weight, or Q vectors of it, stays in registers while all its winners go by.
    """
    wide, everything = up(u.out.width), u.kernel[0] * u.vectors
    with c.loop(u.out.channels) as o:
        total = c.var(db.one(o))
        for q in range(0, everything, block):
            part = range(q, min(q + block, everything))
            at = [i // u.vectors * u.inside.row + i % u.vectors * LANES for i in part]
            to = dw.at(o * (everything * LANES) + q * LANES)
            sums = [c.var(to.vector(i * LANES, aligned=True)) for i in range(len(part))]
            with c.loop(u.out.height) as ph, c.loop(u.out.width) as p:
                gradient = g.one(ph * u.out.row + p * u.out.stored + o + u.out.start)
                window = x.at(won.one((o * u.out.height + ph) * wide + p))
                if q == 0:
                    total.set(total.get() + gradient)
                spread = c.vector(gradient)
                for total_, i in zip(sums, at, strict=True):
                    total_.set(c.fma(spread, window.vector(i), total_.get()))
            for i, one in enumerate(sums):
                to.put_vector(one.get(), i * LANES, aligned=True)
        db.put(total.get(), o)
