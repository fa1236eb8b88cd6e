"""Logits of samples that several clients hold, computed once for each model.

The partition of DA-PFL's authors draws the samples of each client from the whole pool, so that of 100 clients ten hold
the same image. IFCA and FedSoft ask every client for the losses of all cluster models on its training samples. Compiled
forward passes give a sample the same logits in any batch, so these runs have the figures of any other engine, bit for
bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedkin.core import Client, Samples
from fedkin.engines.loop import Loop, LoopSession
from fedkin.engines.passes import RememberingClient
from fedkin.engines.tasks import Job
from fedkin.engines.turns import Turn
from fedkin.experiment.settings import Settings

_KEPT = 16  # models whose logits are kept: more than the clusters of any table
_ASKED = ("ifca", "fedsoft")


def gains(settings: Settings) -> bool:
    """Return whether clients of a run hold the same samples, and are asked for the logits of several models on them."""
    alone = settings.compute.engine in ("auto", "loop", "workers@n=1")
    return alone and (settings.data.partition or "").startswith("dapfl") and settings.method["name"] in _ASKED


class SharedLogits(Loop):
    """The engine `Loop`, but that logits of shared samples are computed once; summaries call it the same."""

    def __str__(self) -> str:
        return "one client after another"

    def start(self, job: Job) -> LoopSession:
        """Return a session on a job."""
        return LoopSession(job, partial(_Turn, known=KnownLogits([shard.train for shard in job.shards])))


class _Turn(Turn):
    """A client's step with the logits that are known."""

    def __init__(self, *args: Any, known: KnownLogits) -> None:
        self._known = known
        super().__init__(*args)

    def seat(self, **known: Any) -> Client:
        client = super().seat(**known)
        if type(client) is not RememberingClient:  # passes are the module's, whose last bits depend on the batch
            return client
        return _Client(**known, known=self._known)


@dataclass(kw_only=True)
class _Client(Client):
    """A client that asks `KnownLogits` for logits."""

    known: KnownLogits

    def logits(self, w: Tensor) -> Tensor:
        """Return logits ``[n, C]`` of the model ``w [P]`` on the training data, in evaluation mode."""
        return self.known.of(self, w)


class KnownLogits:
    """Logits of several models on the distinct samples of all clients, each computed when it is first asked for.

    Args:
        parts: each client's training samples.

    Attributes:
        rows: number of each client's samples among the distinct ones, int64 ``[n]``.
        distinct: how many there are.
        computed: how many rows of logits have been computed.
    """

    def __init__(self, parts: Sequence[Samples]) -> None:
        numbers: dict[bytes, int] = {}
        self.rows = [_numbered(part.x, numbers) for part in parts]
        self.distinct, self.computed = len(numbers), 0
        self._models: list[tuple[Tensor, Tensor, Tensor]] = []  # model, logits [distinct, C], which of them are there

    def of(self, client: Client, w: Tensor) -> Tensor:
        """Return the logits ``[n, C]`` of a model ``w [P]`` on a client's training samples."""
        logits, there = self._table(w, client.net.classes)
        rows = self.rows[client.id]
        missing = (~there[rows]).nonzero().flatten()
        if len(missing):
            some = Samples(client.net.layout(client.data.x[missing]), client.data.y[missing])
            logits[rows[missing]] = Client.logits(replace(client, data=some), w)
            there[rows[missing]] = True
            self.computed += len(missing)
        return logits[rows]

    def _table(self, w: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        for model, logits, there in self._models:
            if torch.equal(model, w):
                return logits, there
        made = torch.empty(self.distinct, classes), torch.zeros(self.distinct, dtype=torch.bool)
        self._models = [*self._models[1 - _KEPT :], (w.detach().clone(), *made)]
        return made


def _numbered(x: Tensor, numbers: dict[bytes, int]) -> Tensor:
    """Return the number of each input, new ones after all others; equal inputs have equal numbers."""
    rows = x.contiguous().reshape(len(x), -1).numpy()
    found = [numbers.setdefault(hashlib.blake2b(row.data, digest_size=16).digest(), len(numbers)) for row in rows]
    return torch.tensor(found, dtype=torch.int64)
