"""Kernels of pooling that is not part of a convolution, one image at a time, and of a ReLU's backward pass.

They are simple loops: positions in order, 16 channels at a time where channels fill vectors, else one by one.
"""

from __future__ import annotations

from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.units import LANES, Image, PoolUnit
from fedkin.engines.compiled.values import Memory, Value


def forward(c: Code, u: PoolUnit, x: Memory, out: Memory, won: Memory) -> None:
    """Write ``out = relu(pool(x))`` and, of max pooling, at which place of ``x`` each winner lies."""
    wide = u.out.stored % LANES == 0
    with c.loop(u.out.height) as ph, c.loop(u.out.width) as p, c.loop(u.out.stored, LANES if wide else 1) as o:
        best, place = (
            _best(c, u, x, _corner(u, ph, p) + o, wide) if u.kind == "max" else (_mean(c, u, x, ph, p, o), None)
        )
        if u.relu:
            best = c.choose(best < 0.0, c.vector(0.0) if wide else c.real(0.0), best)
        to, entry = _place(u.out, ph, p) + o, (ph * u.out.width + p) * u.out.stored + o
        if wide:
            out.put_vector(best, to)
        else:
            out.put(best, to)
        if place is not None and wide:
            won.put_vector(place, entry)
        elif place is not None:
            won.put(place, entry)


def backward(c: Code, u: PoolUnit, g: Memory, won: Memory, dx: Memory) -> None:
    """Add the gradient at the input: to each winner, or in equal parts to all positions of a window."""
    with c.loop(u.out.height) as ph, c.loop(u.out.width) as p, c.loop(u.out.stored) as o:
        gradient = g.one(_place(u.out, ph, p) + o)
        if u.kind == "max":
            at = won.one((ph * u.out.width + p) * u.out.stored + o)
            dx.put(dx.one(at) + gradient, at)
        else:
            part = gradient / float(u.kernel[0] * u.kernel[1])
            with c.loop(u.kernel[0]) as h, c.loop(u.kernel[1]) as w:
                at = _corner(u, ph, p) + h * u.inside.row + w * u.inside.stored + o
                dx.put(dx.one(at) + part, at)


def through_relu(c: Code, out: Memory, g: Memory, n: Value) -> None:
    """Set gradients to zero where the ReLU gave zero; a NaN lets them through."""
    with c.loop(n, LANES) as i:
        closed = out.vector(i, aligned=True) <= 0.0
        g.put_vector(c.choose(closed, c.vector(0.0), g.vector(i, aligned=True)), i, aligned=True)


def _place(image: Image, row: Value, column: Value) -> Value:
    return row * image.row + column * image.stored + image.start


def _corner(u: PoolUnit, row: Value, column: Value) -> Value:
    return row * (u.stride[0] * u.inside.row) + column * (u.stride[1] * u.inside.stored) + u.inside.start


def _mean(c: Code, u: PoolUnit, x: Memory, ph: Value, p: Value, o: Value) -> Value:
    wide, corner = u.out.stored % LANES == 0, _corner(u, ph, p) + o
    total = c.var(c.vector(0.0) if wide else c.real(0.0))
    with c.loop(u.kernel[0]) as h, c.loop(u.kernel[1]) as w:
        at = corner + h * u.inside.row + w * u.inside.stored
        total.set(total.get() + (x.vector(at) if wide else x.one(at)))
    return total.get() / float(u.kernel[0] * u.kernel[1])


def _best(c: Code, u: PoolUnit, x: Memory, corner: Value, wide: bool) -> tuple[Value, Value]:
    """Return the largest number of a window, lane by lane, and its place; the first of equals, a NaN before all."""

    def places(at: Value) -> Value:
        return c.places(at) + c.places(range(LANES)) if wide else at

    best = c.var(x.vector(corner) if wide else x.one(corner))
    place = c.var(places(corner))
    with c.loop(u.kernel[0]) as h, c.loop(u.kernel[1]) as w:
        at = corner + h * u.inside.row + w * u.inside.stored
        value = x.vector(at) if wide else x.one(at)
        more = (value > best.get()) | value.is_not(value)
        best.set(c.choose(more, value, best.get()))
        place.set(c.choose(more, places(at), place.get()))
    return best.get(), place.get()
