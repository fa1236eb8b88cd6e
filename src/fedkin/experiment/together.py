"""Several runs: one after another, or on a GPU together, their clients in common stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from fedkin.core import ConfigError
from fedkin.engines.stacked_together import NotStackedError, Starter, Together
from fedkin.experiment.execute import one_thread
from fedkin.experiment.settings import Compute

T = TypeVar("T")
Run = Callable[[Starter | None], T]
"""Executes one run; given None with an engine of its own."""
_ON_GPU = 8
"""Runs that train together on a GPU by default."""


def at_once(together: int, compute: Compute) -> int:
    """Return the number of runs that train together; 1: one run after another.

    Args:
        together: the number that was asked for; 0: `_ON_GPU` where torch sees a GPU and runs may use it, else 1.
        compute: settings of all runs.

    Raises:
        ConfigError: it is negative, or the runs would not use stacks.
    """
    if together < 0:
        raise ConfigError(f"together must be a number of runs, or 0 for the default, got {together}")
    gpu = torch.cuda.is_available()
    stacks = compute.engine == "stacked" or (compute.engine == "auto" and not compute.workers and gpu)
    if together > 1 and not stacks:
        found = "workers" if compute.workers else f"{compute.engine!r}" + ("" if gpu else " and torch sees no GPU")
        raise ConfigError(
            f"together = {together} is for runs in stacks, and the engine is {found}; set engine = 'stacked', or leave "
            "together out to make one run after another"
        )
    return together or (_ON_GPU if stacks and gpu else 1)


def execute_all(runs: Sequence[Run[T]], at_once: int) -> list[T]:
    """Execute runs and return their results.

    An error ends its run. No further run begins then; those that have begun go on to their end before it is raised.

    Args:
        runs: the runs, in the order in which they begin.
        at_once: number of runs that train together. A run of another engine than the stacked one is executed by itself,
            after the others.
    """
    if at_once == 1 or len(runs) == 1:
        return [run(None) for run in runs]
    with one_thread():
        found = Together(at_once).execute(runs)
    for result in found:
        if isinstance(result, Exception) and not isinstance(result, NotStackedError):
            raise result
    made: list[T] = []
    for run, result in zip(runs, found, strict=True):
        made.append(run(None) if isinstance(result, Exception) else result)
    return made
