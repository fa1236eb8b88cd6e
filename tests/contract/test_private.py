"""What a method says of its clients, `also_sends`, is what they do: the ground on which an epsilon is stated.

Client programs are run on two data sets that differ in one sample, with the same trained vectors put in by hand. Where
nothing but trained vectors may tell of the data, both must then do and answer the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.capabilities.uploads import also_sent
from fedkin.core import Batch, Bundle, Method, Net, Samples, Train, Training
from fedkin.engines import Answer, Job, Task
from fedkin.engines.turns import perform
from fedkin.methods import APFL, CAM, CFIC, FedAvg, FedRep, FeSEM, LocalFull, get_method
from fedkin.privacy.noise import says
from fedkin.server import Plan
from fedkin.testing.toys import CLASSES, ClientData, network
from fedkin.testing.trial import Setting, play
from refusals import refuses

PRIVATE: dict[str, Method] = {
    name: get_method(name)
    for name in (
        *("local", "local-full", "fedavg", "fedavg-ft", "fedprox", "feddyn", "fedmgda", "clustered-sampling"),
        *("scaffold", "fednova", "fedadam", "fedyogi", "fedadagrad", "fedavgm", "moon", "lg-fedavg", "pfedgraph"),
        "fedavg-ensemble",
        *("cfic", "fedper", "fedbn", "fedrep", "fedbabu", "pfedcs", "ditto", "apfl", "fml", "fedala", "fedamp"),
        *("heur-fedamp", "da-pfl", "fesem", "cfl"),
        "fesem-cam",
    )
} | {
    "fedavg after training": FedAvg(after_training=True),
    "apfl round": APFL(adapt="round"),
    "apfl fixed": APFL(adapt="never"),
    "fedrep all": FedRep(first_head="average", final_head_epochs=2),
    "cam in turns": CAM(inner=FeSEM(), warmup=1, order="global-first"),
}
TELL = (
    *("fedfa", "creff", "fedrod", "feddbe", "fedpac", "knn-per", "fedem", "per-fedavg", "fedfomo", "fedproto"),
    *("fedgh", "ifca", "pfa", "fedsoft", "ifca-cam"),
)


class Different(Exception):
    """Two data sets led to something else than other trained vectors."""


@dataclass
class Both:
    """An engine that carries out every task on the data and on those with one other sample, and compares."""

    net: Net
    held: bool = True  # the validation part is another one, too

    def start(self, job: Job) -> Both:
        self.jobs = (job, replace(job, shards=[_other(s, self.held) for s in job.shards]))
        return self

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        for task in tasks:
            asked: tuple[list[Train], list[Train]] = ([], [])
            answers = [perform(job, task, _by_hand(a)) for job, a in zip(self.jobs, asked, strict=True)]
            for a, b in zip(*asked, strict=True):
                _compare(a, b)
                _is_a_mean(a, self.jobs[0].shards[task.client].train, self.net)
            if task.step in ("update", "survey"):
                _equal(answers[0].reply, answers[1].reply, "its answer")
                _equal(answers[0].state, answers[1].state, "its state")
            if task.step == "evaluate":  # what it says of the training samples' classes real hosts keep back
                told = [{n: t for n, t in a.reply.items() if n.endswith(("test", "cluster"))} for a in answers]
                _equal(Bundle(told[0]), Bundle(told[1]), "its predictions")
            yield answers[0]

    def close(self) -> None:
        pass


def _other(shard: Any, held: bool) -> ClientData:
    """The same client with another first sample, of another class; and, if ``held``, another validation part."""
    x, y = shard.train.x.clone(), shard.train.y.clone()
    x[0], y[0] = 3 - x[0], (y[0] + 1) % CLASSES
    if not held:
        return ClientData(Samples(x, y), shard.validation, shard.test, shard.group)
    x_held, y_held = shard.validation.x.clone() + 1, (shard.validation.y + 1) % CLASSES
    return ClientData(Samples(x, y), Samples(x_held, y_held), shard.test, shard.group)


def _by_hand(asked: list[Train]) -> Any:
    """Puts in vectors that depend on no data, and remembers what was asked for."""

    def train(request: Train, data: Samples, of: Net, run: Training, rng: torch.Generator) -> Tensor:
        asked.append(request)
        return request.start + 0.1 * torch.randn(
            len(request.start), generator=torch.Generator().manual_seed(len(asked))
        )

    return train


def _is_a_mean(request: Train, data: Samples, net: Net) -> None:
    """A loss of a batch is the mean of its samples' losses."""

    def loss(rows: Tensor) -> float:
        aux = request.aux.but(**{name: t[rows] for name, t in request.per_sample.items()})
        return float(
            request.loss(net.training(), request.start.clone(), Batch(data.x[rows], data.y[rows]), aux).detach()
        )

    rows = torch.arange(min(5, len(data)))
    if abs(loss(rows) - sum(loss(rows[i : i + 1]) for i in rows.tolist()) / len(rows)) > 1e-4:
        raise Different("its loss")


def _compare(a: Train, b: Train) -> None:
    for f in fields(Train):
        mine, other = getattr(a, f.name), getattr(b, f.name)
        if f.name == "per_sample":  # rows belong to samples: that of another sample may be another
            _equal(*(Bundle({n: t[1:] for n, t in rows.items()}) for rows in (mine, other)), "a row of another sample")
        elif isinstance(mine, Bundle):
            _equal(mine, other, f.name)
        elif isinstance(mine, Tensor):
            _equal(Bundle(t=mine), Bundle(t=other), f.name)
        elif mine != other:
            raise Different(f.name)


def _equal(a: Bundle, b: Bundle, what: str) -> None:
    if a.keys() != b.keys() or not all(torch.equal(t, b[name]) for name, t in a.items()):
        raise Different(what)


def watch(method: Method) -> None:
    """Six rounds, with evaluations, a newcomer and a client that is not always there."""
    setting = Setting(plan=Plan(rounds=6, participation=0.7, seed=1), joins=[1, 1, 1, 1, 1, 3])
    # Local (full) chooses by validation samples, which no epsilon is stated for; a choice by training samples shows
    play(method, setting, Both(network("mlp"), held=not isinstance(method, LocalFull)))


@pytest.mark.parametrize("name", PRIVATE)
def test_nothing_but_trained_vectors_tells_of_the_data(name: str) -> None:
    """Uploads, states and requests are the same on both data sets, and losses are means over samples."""
    method = PRIVATE[name]
    assert also_sent(method) == ""
    watch(method)


@pytest.mark.parametrize("name", TELL)
def test_who_tells_more_is_seen(name: str) -> None:
    """Nobody is refused for nothing: of every method that says so, something else depends on the data."""
    method = get_method(name)
    assert also_sent(method)
    with pytest.raises(Different):
        watch(method)


def test_a_label_with_the_first_model_is_seen() -> None:
    """CFIC's lazy clients are told from eager ones, whose label is said at joining, where noise can cover it."""
    assert also_sent(CFIC(register="lazy"))
    with refuses(Different, "its answer"):
        watch(CFIC(register="lazy"))
    assert says(CFIC(), network("mlp")) == ["label"]
