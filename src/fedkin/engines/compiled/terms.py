"""What a step adds to the loss's gradient: weight decay, proximal and linear term, momentum."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from fedkin.engines.compiled.code import Code
from fedkin.engines.compiled.units import LANES
from fedkin.engines.compiled.values import Memory, Value


@dataclass(frozen=True)
class Rates:
    """Numbers of one step.

    Without momentum a step is ``w = keep w + rate gradient + pull center - lr linear`` and the first two terms are part
    of the gradient's pass over w. With momentum that pass makes ``v = momentum v + gradient``, and the rest follows.

    Attributes:
        lr: step size.
        mu: weight of the proximal term in the gradient.
        after: step size times weight of a separate proximal step.
    """

    lr: Value
    mu: Value
    after: Value


def keep_of(c: Code, rates: Rates, decay: Value) -> Value:
    """Return the factor of the weights in a step without momentum."""
    return c.real(1.0) - (rates.lr * (decay + rates.mu) + rates.after)


def plain(
    c: Code, w: Memory, center: Memory, linear: Memory, has_center: Value, has_linear: Value,
    lr: Value, mu: Value, after: Value, start: Value, stop: Value,
) -> None:  # fmt: skip
    """Add what a step without momentum lacks, ``pull center - lr linear``, to a span of the packed weights."""
    pull = c.vector(lr * mu + after)
    for centered, linear_too in ((True, True), (True, False), (False, True)):
        with c.when(_exactly(c, (has_center, centered), (has_linear, linear_too))), c.loop(stop, LANES, start) as i:
            moved = w.vector(i, aligned=True)
            if centered:
                moved = c.fma(pull, center.vector(i, aligned=True), moved)
            if linear_too:
                moved = c.fma(c.vector(c.real(0.0) - lr), linear.vector(i, aligned=True), moved)
            w.put_vector(moved, i, aligned=True)


def with_momentum(
    c: Code, w: Memory, v: Memory, center: Memory, linear: Memory, has_center: Value, has_linear: Value,
    lr: Value, mu: Value, after: Value, decay: Value, start: Value, stop: Value,
) -> None:  # fmt: skip
    """Finish a step with momentum on a span: add all other terms to the velocity, and move the weights by it."""
    for centered, linear_too in product((True, False), repeat=2):
        with c.when(_exactly(c, (has_center, centered), (has_linear, linear_too))), c.loop(stop, LANES, start) as i:
            weights = w.vector(i, aligned=True)
            velocity = c.fma(c.vector(decay), weights, v.vector(i, aligned=True))
            if linear_too:
                velocity = velocity + linear.vector(i, aligned=True)
            pull = None
            if centered:
                pull = weights - center.vector(i, aligned=True)
                velocity = c.fma(c.vector(mu), pull, velocity)
            moved = c.fma(c.vector(c.real(0.0) - lr), velocity, weights)
            if pull is not None:
                moved = c.fma(c.vector(c.real(0.0) - after), pull, moved)
            v.put_vector(velocity, i, aligned=True)
            w.put_vector(moved, i, aligned=True)


def _exactly(c: Code, *flags: tuple[Value, bool]) -> Value:
    """Return whether each flag, a number that is zero or not, is as given."""
    conditions = [flag.is_not(0) if wanted else flag.is_(0) for flag, wanted in flags]
    both = conditions[0]
    for one in conditions[1:]:
        both = both & one
    return both
