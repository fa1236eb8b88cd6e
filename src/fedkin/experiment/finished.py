"""A run after its last round with all its clients, from which models can be exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.core import Bundle
from fedkin.data import Federation
from fedkin.engines import Job
from fedkin.experiment.prepare import Experiment
from fedkin.server import Server


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A run after its last round, all clients with it: what `fedkin.exporting` takes models from.

    Attributes:
        experiment: what stayed the same.
        job: the clients' data, and how they train.
        federation: the data as they were given: names of classes and clients.
        joins: the round in which each client came.
        server: the server after the last round.
        states: every client's private state after it.
        folder: where the run was written, or None.
    """

    experiment: Experiment
    job: Job
    federation: Federation
    joins: Sequence[int]
    server: Server
    states: Mapping[int, Bundle]
    folder: Path | None = None
