"""What an export is made of, wherever it is written: at a simulated run, or at the host of the client itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedkin.core import Bundle, Method, Net
from fedkin.core.samples import ClientData
from fedkin.data.preparation import Preparation


@dataclass(frozen=True)
class Origin:
    """Where models are from: what all exports of a run have in common.

    Attributes:
        method, net: what predicts.
        title: the method's display name.
        table: the run's settings.
        marks: fingerprints of the run.
        round, rounds: the last one that was done, and how many were planned.
        seed: the run's.
        data: what the data are called.
        labels: names of the classes; None: their numbers.
        command: what makes the run again; None where that is not known.
        chosen: figures of the round, where validation chose it; None: it is the last.
    """

    method: Method
    net: Net
    title: str
    table: Mapping[str, Any]
    marks: Mapping[str, str]
    round: int
    rounds: int
    seed: int
    data: str
    labels: tuple[str, ...] | None = None
    command: str | None = None
    chosen: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Taken:
    """One model that is taken home.

    Attributes:
        bundle: what is predicted with.
        rule: how, in the loader's words: see `fedkin.exporting.rules`.
        preparation: how raw data become inputs; None where that is not known.
        client: whose it is, the client's number; None: that of all clients.
        name: what the client is called.
        shard: the client's data; None with ``client``.
        ranges: what training had, see `fedkin.exporting.ranges`; None: nothing is told.
        evaluated: the confusion matrix ``[C, C]`` on its test part that the run's evaluation of the same round gave,
            rows true classes; None: there was no such evaluation.
    """

    bundle: Bundle
    rule: Mapping[str, Any]
    preparation: Preparation | None = None
    client: int | None = None
    name: str | None = None
    shard: ClientData | None = None
    ranges: Mapping[str, Any] | None = None
    evaluated: Tensor | None = None
