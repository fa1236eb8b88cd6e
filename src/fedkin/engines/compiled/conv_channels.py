"""Kernels of convolutions whose vectors are output channels, on all images of a batch.

Images lie as ``[H, W, C]``, so a row of the kernel meets ``KW C`` numbers in a piece, its taps. The packed weight is
``[O, KH, taps]`` with taps padded to whole vectors; the forward pass reads it turned, ``[O / 16, KH, taps, 16]``.
Weights of wide layers exceed the processor's second cache: sixteen channels at a time meet all images, where that
changes no sum's order.
"""

from __future__ import annotations

from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.units import LANES, ConvUnit
from fedkin.engines.compiled.values import I32, I64, Memory, Value


def turn(c: Code, u: ConvUnit, w: Memory, turned: Memory) -> None:
    """Write the weight as ``[O / 16, KH, taps, 16]``; channels that only fill a vector are zero."""
    whole, of_sixteen = u.out.channels // LANES, LANES * u.kernel[0] * u.vectors * LANES
    with c.loop(whole) as o:
        _turn_channels(c, u, w.at(o * of_sixteen), turned.at(o * _turned(u)), LANES)
    if rest := u.out.channels % LANES:
        _turn_channels(c, u, w.at(whole * of_sixteen), turned.at(whole * _turned(u)), rest)


def _turned(u: ConvUnit) -> int:
    """Floats of the turned weight of 16 channels."""
    return u.kernel[0] * u.taps * LANES


def _turn_channels(c: Code, u: ConvUnit, w: Memory, turned: Memory, channels: int) -> None:
    whole, rest = u.taps // LANES * LANES, u.taps % LANES
    with c.loop(u.kernel[0]) as h:
        row, to = w.at(h * (u.vectors * LANES)), turned.at(h * (u.taps * LANES))
        with c.loop(whole, LANES) as tap:
            _turn_taps(c, u, row.at(tap), to.at(tap * LANES), channels, LANES)
        if rest:
            _turn_taps(c, u, row.at(whole), to.at(whole * LANES), channels, rest)


def _turn_taps(c: Code, u: ConvUnit, row: Memory, to: Memory, channels: int, taps: int) -> None:
    of_one = u.kernel[0] * u.vectors * LANES
    rows = [row.vector(o * of_one, aligned=True) for o in range(channels)] + [c.vector(0.0)] * (LANES - channels)
    for tap, column in enumerate(c.transposed(rows)[:taps]):
        to.put_vector(column, tap * LANES, aligned=True)


def block_of(u: ConvUnit, vectors: int) -> int:
    """Return the number of windows of pooling, side by side, whose sums are held in registers."""
    most = max(1, (vectors - 4) // u.pool**2)
    most = min(most, 5 if u.pool > 1 else 20)
    return next(p for p in range(most, 0, -1) if u.out.width % p == 0)


def forward(
    c: Code, u: ConvUnit, block: int, x: Memory, turned: Memory, b: Memory, out: Memory, won: Memory, n: Value
) -> None:
    """Write ``out = relu(pool(conv(x)))`` of n images and, with pooling, which position of each window won.

    P windows side by side are held in registers, pool x pool sums of 16 channels each: a vector of weights is loaded
    once for all of them, and multiplied by one number of each position.
    """
    side, image, outputs = u.pool, u.inside, u.out.stored
    across = block * side
    with c.loop(outputs, LANES) as o, c.loop(n) as r, c.loop(u.out.height) as ph, c.loop(u.out.width, block) as p0:
        sums = [[c.var(b.vector(o, aligned=True)) for _ in range(across)] for _ in range(side)]
        corner = x.at(r * image.size + ph * (side * u.stride[0] * image.row) + p0 * (side * u.stride[1] * image.stored))
        with c.loop(u.kernel[0]) as h:
            row, weights = corner.at(h * image.row), turned.at(o * (u.kernel[0] * u.taps) + h * (u.taps * LANES))
            with c.loop(u.taps) as tap:
                weight = weights.vector(tap * LANES, aligned=True)
                for i in range(side):
                    for j in range(across):
                        at = i * u.stride[0] * image.row + j * u.stride[1] * image.stored
                        number = c.vector(row.one(tap + at))
                        sums[i][j].set(c.fma(number, weight, sums[i][j].get()))
        for j in range(block):
            window = [sums[i][j * side + k].get() for i in range(side) for k in range(side)]
            best, place = largest(c, window, list(range(side * side)))
            to = r * u.out.size + ph * u.out.row + (p0 + j) * outputs + (o + u.out.start)
            out.put_vector(c.relu(best) if u.relu else best, to, aligned=True)
            if side > 1:
                won.put_vector(place, r * u.winners + (ph * u.out.width + p0 + j) * outputs + o)


def largest(c: Code, window: list[Value], names: list[int]) -> tuple[Value, Value]:
    """Return the largest of vectors lane by lane, and its name; the first of equals, and a NaN before all, as torch."""
    best, place = window[0], c.places(names[0])
    for value, name in zip(window[1:], names[1:], strict=True):
        more = (value > best) | value.is_not(value)
        best, place = c.choose(more, value, best), c.choose(more, c.places(name), place)
    return best, place


def backward_block(u: ConvUnit, vectors: int) -> int:
    """Return how many vectors of a window's gradient, or of a channel's, are held in registers."""
    all_of_it = u.kernel[0] * u.vectors
    most = max(1, vectors - 4)
    return next(q for q in range(min(most, all_of_it), 0, -1) if all_of_it % q == 0)


def backward_weight(
    c: Code, u: ConvUnit, block: int, x: Memory, g: Memory, won: Memory, dw: Memory, db: Memory, lists: Memory, n: Value
) -> None:
    """Add the gradient of the weight and the bias of n images, where a position won.

    ``g`` is the gradient at the output, zero where the ReLU let nothing through. Of one channel and one image, the
    windows that won are listed first; Q vectors of the channel's gradient are in registers while the list goes by.
    Sixteen channels meet all images before the next sixteen do: an image and their gradients stay in the caches.
    """
    length, outputs, positions = u.kernel[0] * u.vectors * LANES, u.out.stored, u.out.height * u.out.width
    corners, counts = _corners_of_places(c, u), c.array(I32, LANES)
    places, gradients = c.numbers(lists), lists.at(LANES * positions)
    with c.loop(outputs, LANES) as first, c.loop(n) as r:
        image, here, winners = x.at(r * u.inside.size), g.at(r * u.out.size + u.out.start), won.at(r * u.winners)
        _bias(c, u, here.at(first), db.at(first))
        _listed(c, u, here.at(first), winners.at(first), corners, places, gradients, counts)
        with c.loop(c.least(c.number(u.out.channels) - first, LANES)) as k:
            target, mine = dw.at((first + k) * length), (places.at(k * positions), gradients.at(k * positions))
            for q in range(0, length // LANES, block):
                _add_windows(c, u, range(q, q + block), image, *mine, counts.one(k), target)


def _corners_of_places(c: Code, u: ConvUnit) -> Memory:
    """Return, for each position of a pooling window, the offset of its window of the input from the first one's."""
    side, image = u.pool, u.inside
    order = c.array(I32, side * side)
    for i in range(side * side):
        at = i // side * (u.stride[0] * image.row) + i % side * (u.stride[1] * image.stored)
        order.put(c.number(at), i)
    return order


def _bias(c: Code, u: ConvUnit, here: Memory, db: Memory) -> None:
    """Add the gradients of 16 channels at all positions."""
    total = c.var(db.vector(aligned=True))
    with c.loop(u.out.height) as ph, c.loop(u.out.width) as p:
        total.set(total.get() + here.vector(ph * u.out.row + p * u.out.stored, aligned=True))
    db.put_vector(total.get(), aligned=True)


def _listed(
    c: Code, u: ConvUnit, here: Memory, won: Memory, corners: Memory, places: Memory, gradients: Memory, counts: Memory
) -> None:
    """List, for each of 16 channels, where the windows lie that have a gradient, and the gradients; and how many."""
    side, image, positions = u.pool, u.inside, u.out.height * u.out.width
    counts.put_vector(c.places(0))
    with c.loop(u.out.height) as ph, c.loop(u.out.width) as p:
        first = ph * (side * u.stride[0] * image.row) + p * (side * u.stride[1] * image.stored)
        for k in range(LANES):
            gradient = here.one(ph * u.out.row + p * u.out.stored + k)
            corner = first
            if side > 1:
                corner = corner + corners.one(won.one((ph * u.out.width + p) * u.out.stored + k))
            count = counts.one(k)
            places.put(corner, count + k * positions)
            gradients.put(gradient, count + k * positions)
            counts.put(count + gradient.is_not(0.0).cast("zext", I64), k)  # a NaN counts


def _add_windows(
    c: Code, u: ConvUnit, part: range, image: Memory, places: Memory, gradients: Memory, count: Value, dw: Memory
) -> None:
    """Add listed windows, each times its gradient, to some vectors of a channel's gradient."""
    sums = [c.var(dw.vector(q * LANES, aligned=True)) for q in part]
    with c.loop(count) as j:
        window, gradient = image.at(places.one(j)), c.vector(gradients.one(j))
        for q, total in zip(part, sums, strict=True):
            total.set(c.fma(gradient, window.vector(_in_window(u, q)), total.get()))
    for q, total in zip(part, sums, strict=True):
        dw.put_vector(total.get(), q * LANES, aligned=True)


def _in_window(u: ConvUnit, q: int) -> int:
    """Return where the q-th vector of a window lies, from the window's corner."""
    return q // u.vectors * u.inside.row + q % u.vectors * LANES


def backward_input(c: Code, u: ConvUnit, block: int, w: Memory, g: Memory, won: Memory, dx: Memory, n: Value) -> None:
    """Add the gradient at the input of n images, where a position won.

    The channels that won at the same position have the same window of the input: its gradient is loaded once for all of
    them, Q vectors at a time. So no piece of the gradient is stored and read again at once, which would stall.
    """
    side, image, outputs = u.pool, u.inside, u.out.stored
    lists, counts = c.array(I32, side * side * outputs), c.array(I32, side * side)
    with c.loop(n) as r, c.loop(u.out.height) as ph, c.loop(u.out.width) as p:
        here = g.at(r * u.out.size + ph * u.out.row + p * outputs + u.out.start)
        _group(c, u, here, won.at(r * u.winners + (ph * u.out.width + p) * outputs), lists, counts)
        for i in range(side * side):
            down, right = ph * side + i // side, p * side + i % side
            corner = r * image.size + down * (u.stride[0] * image.row) + right * (u.stride[1] * image.stored)
            chosen, count = lists.at(i * outputs), counts.one(i)
            with c.when(c.number(0) < count):
                for q in range(0, u.kernel[0] * u.vectors, block):
                    _window(c, u, range(q, q + block), w, here, chosen, count, dx.at(corner))


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
    c: Code, u: ConvUnit, part: range, w: Memory, here: Memory, chosen: Memory, count: Value, dx: Memory
) -> None:
    """Add what all channels of a list contribute to some vectors of one window's gradient."""
    below = [c.var(c.vector(0.0)) for _ in part]
    with c.loop(count) as j:
        o = chosen.one(j)
        gradient, weight = c.vector(here.one(o)), w.at(o * (u.kernel[0] * u.vectors * LANES))
        for q, total in zip(part, below, strict=True):
            total.set(c.fma(gradient, weight.vector(q * LANES, aligned=True), total.get()))
    for q, total in zip(part, below, strict=True):
        dx.put_vector(dx.vector(_in_window(u, q)) + total.get(), _in_window(u, q))


def step(c: Code, u: ConvUnit, dw: Memory, t: Memory, rate: Value, keep: Value) -> None:
    """Move a target of the weight, ``t = keep t + rate dw``; lanes of ``dw`` beyond the taps hold other positions'."""
    width = u.vectors * LANES
    inside = c.first_lanes(u.taps - (u.vectors - 1) * LANES)
    with c.loop(u.weights, width) as i:
        for v in range(0, width, LANES):
            gradient = dw.vector(i + v, aligned=True)
            if v == width - LANES:
                gradient = c.choose(inside, gradient, c.vector(0.0))
            moved = c.fma(gradient, c.vector(rate), t.vector(i + v, aligned=True) * c.vector(keep))
            t.put_vector(moved, i + v, aligned=True)


def step_bias(c: Code, u: ConvUnit, db: Memory, t: Memory, rate: Value, keep: Value) -> None:
    """Move a target of the bias, ``t = keep t + rate db``."""
    with c.loop(u.biases, LANES) as o:
        moved = c.fma(db.vector(o, aligned=True), c.vector(rate), t.vector(o, aligned=True) * c.vector(keep))
        t.put_vector(moved, o, aligned=True)
