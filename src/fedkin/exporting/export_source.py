"""The content of an export, from a simulated run or at the host of the client itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedkin.core import Bundle, Method, Net
from fedkin.core.samples import ClientData
from fedkin.data.preparation import Preparation


@dataclass(frozen=True)
class ExportSource:
    """The origin of exported models: the part that all exports of a run have in common.

    Attributes:
        method, net: method and network that predict.
        title: display name of the method.
        table: settings of the run.
        marks: fingerprints of the run.
        round, rounds: the last completed round, and the number of planned rounds.
        seed: seed of the run.
        data: name of the data.
        labels: names of the classes; None: their numbers.
        command: command that repeats the run; None where it is not known.
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
    """One exported model.

    Attributes:
        bundle: the tensors that the model predicts with.
        rule: the rule in the loader's terms: see `fedkin.exporting.rules`.
        preparation: preparation of raw data; None where it is not known.
        client: number of the client; None: the model of all clients.
        name: name of the client.
        shard: data of the client; None if ``client`` is None.
        ranges: ranges of the training data, see `fedkin.exporting.ranges`; None: they are not exported.
        evaluated: counts per class ``[3, C]`` on its test part from the run's evaluation of the same round; None: there
            was no such evaluation.
    """

    bundle: Bundle
    rule: Mapping[str, Any]
    preparation: Preparation | None = None
    client: int | None = None
    name: str | None = None
    shard: ClientData | None = None
    ranges: Mapping[str, Any] | None = None
    evaluated: Tensor | None = None
