"""What a run gives, and what can be asked of its clients afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkin.core import Bundle
from fedkin.data import Federation
from fedkin.engines import Job, Server
from fedkin.experiment.prepare import Experiment


@dataclass
class Result:
    """What a run gave.

    Attributes:
        title: the method's display name.
        seed: the run's seed.
        rounds, clients, relations: the lines of the files of the same names; those of clients are read from their file
            where the run keeps states in files, and are a list otherwise.
        final: mean over the rounds of `fedkin.evaluate.rounds.window`, which ``final["rounds"]`` names.
        best: the round that validation chose.
        summary: everything in short, as in ``summary.json``; ``diverged`` in it is the round from which on training
            has diverged (`fedkin.evaluate.diverged`), and is absent where it has not.
        server: the server after the last round, with all models.
        folder: where it was written, or None.
        finished: what can be asked of the clients afterwards, in a simulation.
    """

    title: str
    seed: int
    rounds: list[dict[str, Any]]
    clients: Sequence[dict[str, Any]]
    relations: list[dict[str, Any]]
    final: dict[str, Any]
    best: dict[str, Any] | None
    summary: dict[str, Any]
    server: Server
    folder: Path | None = None
    finished: FinishedRun | None = field(default=None, repr=False)


@dataclass(frozen=True)
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
