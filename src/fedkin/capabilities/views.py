"""Further models of a client to evaluate, and numbers about its prediction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedkin.core import Bundle, Client, Method
from fedkin.core.capability import Capability, has


def no_views(method: Method, c: Client) -> dict[str, Bundle]:
    """Return no further models."""
    return {}


@dataclass(frozen=True)
class Views(Capability):
    """What evaluations look at next to the result of `personalize`.

    Attributes:
        models: ``(method, client)`` -> further models by name. "trained" is the one after the last local training,
            scored in its place in runs with ``evaluate = "trained"``.
        notes: numbers in the result of `personalize` that evaluations record for each client, by name, with their
            range. ``{"share": (0.0, 1.0)}``: every result has a ``share []`` from 0 to 1. It leaves the client with the
            results of its evaluation and is the field ``note_share`` of its line in ``clients.jsonl``.
        trains: whether `personalize` requests training from some clients; None: if it is a program.
    """

    models: Callable[[Any, Client], dict[str, Bundle]] = no_views
    notes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    trains: bool | None = None


def views_of(method: Method, c: Client) -> dict[str, Bundle]:
    """Return further models of a client, by name."""
    return {} if (own := has(method, Views)) is None else own.models(method, c)


def client_notes(method: Method) -> Mapping[str, tuple[float, float]]:
    """Return the numbers that evaluations record for each client, with their ranges."""
    return {} if (own := has(method, Views)) is None else own.notes


def trains_to_predict(method: Method) -> bool:
    """Return whether `personalize` requests training from some clients."""
    own = has(method, Views)
    stated = None if own is None else own.trains
    return inspect.isgeneratorfunction(type(method).personalize) if stated is None else stated
