"""Training of two models whose logits add up (Fed-CAM, Ma et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, TypeAlias

from torch import Tensor

from fedkin.core import Bundle, Client, MethodError, Recipe, Train, Work, cross_entropy, finish, first

Order = Literal["simultaneous", "cluster-first", "global-first"]
Both: TypeAlias = Generator[Train | tuple[Train, ...], Any, tuple[Tensor, Tensor, Bundle]]


def train_both(
    c: Client, h: Tensor, work: Work, order: Order, *, start: Tensor | None = None, alone: Train | None = None
) -> Both:
    """Train two models, each with the other's logits added: for ``yield from`` in a client's program.

    Eq. 5 of the paper trains the cluster model f next to h, Eq. 8 the global model h next to f. The partner stands
    still, so its logits on the training data are computed once. Simultaneous: both partners are as they were received.
    Otherwise the second model is trained next to the trained first.

    Args:
        c: the client, without an `offset` of its own.
        h: the global model ``[P]``.
        work: the program that trains the cluster model f; it asks for one training.
        order: which model is trained first.
        start: where f starts, if not where its program says.
        alone: carried out instead of what the program asks for, without a partner; h is then trained next to it.

    Returns:
        The trained h, the trained f and what the program returned.

    Raises:
        MethodError: the program asks for more than one training, or trains by a loss of its own, to which a partner's
            logits cannot be added.
    """
    f = first(work)
    if f.loss is not cross_entropy:
        name = getattr(f.loss, "__name__", str(f.loss))
        raise MethodError(f"a method that trains by {name} cannot be wrapped; the wrapped one must use cross-entropy")
    f = f if start is None else f.but(start=start)
    if alone is not None:
        w = yield alone
        g = yield Train(h).beside(c.logits(w))  # Eq. 8
    elif order == "simultaneous":  # Eqs. 8 and 5
        g, w = yield (Train(h).beside(c.logits(f.start)), f.beside(c.logits(h)))
    elif order == "cluster-first":
        w = yield f.beside(c.logits(h))  # Eq. 5
        g = yield Train(h).beside(c.logits(w))  # Eq. 8
    else:
        g = yield Train(h).beside(c.logits(f.start))  # Eq. 8
        w = yield f.beside(c.logits(g))  # Eq. 5
    return g, w, finish(work, w)


def for_rounds(start: Tensor, rounds: int, recipe: Recipe) -> Train:
    """Return one request for as much training from ``start [P]`` as the recipe asks for in ``rounds`` rounds."""
    if recipe.steps is not None:
        return Train(start, steps=rounds * recipe.steps)
    return Train(start, epochs=rounds * recipe.epochs)
