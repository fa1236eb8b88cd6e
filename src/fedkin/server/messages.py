"""What the round loop sends, the transport that carries it, and what it keeps and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from fedkin.core import Bundle, Roster
from fedkin.core.refusals import Reason, Refused
from fedkin.engines.tasks import Step
from fedkin.privacy.secure_sum import SecureGroup


@dataclass(frozen=True)
class Message:
    """Message of the server to one client.

    Attributes:
        step: the requested step.
        round: the round.
        seq: number of this message; the same number again requests the same answer again.
        ack: the number of this client's last upload that was aggregated.
        body: what ``distribute`` returned for the client.
        pool: with secure aggregation, the clients whose uploads are added up with the answer, which then has
            fixed-point numbers (`fedkin.privacy.secure_sum.fixed`).
    """

    step: Step
    round: int
    seq: int
    ack: int
    body: Bundle
    pool: SecureGroup | None = None


Outcome: TypeAlias = tuple[dict[int, Bundle], dict[int, Reason]]
"""Answers by client, and why there is none of the others."""


class Transport(Protocol):
    """Connection of the server to clients, which are numbered in the order in which they joined."""

    def available(self, round: int) -> list[int]:
        """Return the clients that can take part in this round."""

    def joiners(self, known: int, round: int) -> dict[int, Bundle]:
        """Return the descriptions (at least ``size``) of clients that join, by number from ``known`` on."""

    def exchange(self, messages: Mapping[int, Message], enough: int | None = None) -> Outcome:
        """Return answers, and why other clients sent none; no more are waited for after ``enough`` of them."""


@dataclass
class Server:
    """The server between two rounds: all that a checkpoint holds of it."""

    state: Bundle
    round: int = 0
    sizes: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    described: Bundle = field(default_factory=Bundle)
    acks: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @property
    def roster(self) -> Roster:
        """The clients that have joined: their sizes and what they described."""
        return Roster(self.sizes, self.described)


@dataclass(frozen=True)
class RoundReport:
    """Report of one round.

    Attributes:
        cohort, answered: ids of the sampled clients, and of those whose uploads were used.
        refused: answers that were not used, or did not arrive: at most one of a client for each stage of the round.
        abandoned: fewer answers than the plan requires, so the state is that of the round before.
        bytes_down, bytes_up: bytes that had to travel for training, joining and surveys included: see
            `Bundle.travelling`.
        joined: ids of the clients that joined in this round.
        absent: ids of clients that have joined and could not be reached, so they were not sampled.
        weights: ``[m, K]``, weights of all clients in the download of each sampled one; or None.
        clusters: int64 ``[K]``, the cluster of every client that the server used when the client last took part, -1
            where none is known; or None.
        notes: numbers of the method about its state.
        evaluation: result of the evaluation by client; empty if the round was not evaluated.
        seconds: wall time of the whole round and of its parts.
        cluster_count: number of clusters, including empty ones.
        bytes_evaluation: bytes that had to travel for the evaluation alone, in no other figure: to clients, and what
            they answered before it (`fedkin.capabilities.Asks`).
        limited: claimed and used number of samples of clients that claimed too large a share, by id.
    """

    round: int
    cohort: list[int]
    answered: list[int]
    abandoned: bool
    joined: list[int]
    absent: list[int]
    refused: tuple[Refused, ...]
    bytes_down: int
    bytes_up: int
    weights: Tensor | None
    clusters: Tensor | None
    notes: dict[str, float]
    evaluation: dict[int, Bundle]
    seconds: dict[str, float]
    cluster_count: int = 0
    bytes_evaluation: int = 0
    limited: dict[int, tuple[int, int]] = field(default_factory=dict)
