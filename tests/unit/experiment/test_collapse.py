"""Which methods are said to equal local training: those that predict with its numbers, not those with its answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from fedkin import Federation, Method, Training, run
from fedkin.core.samples import ClientData, Samples
from fedkin.methods import Ditto, FedAvg, FedPer, Local
from fedkin.report.content import content_of
from toys import draw


def rare(sizes: tuple[int, ...] = (60, 60, 60), events: int = 2) -> Federation:
    """Clients with ``events`` events each, which their inputs do not show."""

    def part(n: int, seed: int) -> Samples:
        return Samples(draw(n, 3, seed=seed), (torch.arange(n) < events).long())

    shards = [ClientData(part(n, i), part(0, 0), part(max(n // 3, 1), 10 + i)) for i, n in enumerate(sizes)]
    return Federation(shards, 2)


def tiny() -> Federation:
    """Tests of one to three samples: of few right answers, some are the same by chance."""
    return rare((3, 3, 6, 9), 1)


def opposed() -> Federation:
    """Two clients with opposite labels, so that each learns its own or nothing."""
    x = draw(40, 3)
    y = (x[:, 0] > 0).long()
    parts = [Samples(x, labels) for labels in (y, 1 - y)]
    return Federation([ClientData(p, p.every(8), p.every(4, 1)) for p in parts], 2)


def collapsed(method: Method, federation: Federation, lr: float = 0.1, **how: object) -> list[str]:
    """Run a method and Local; return the warnings of a collapse."""
    training = Training(steps=3, batch_size=10, lr=lr)
    made = [run(m, federation, "mlp", training, rounds=3, **{"engine": "loop", **how}) for m in (method, Local())]
    data = content_of(made)
    (found,) = data.compared["Local"].values()
    accuracies = [[line.accuracy for line in r.clients] for r in made]
    assert accuracies[0] == accuracies[1], "the case is one of equal accuracies"
    assert found[0].same_answers == sum(len(c.test) for c in federation.clients)
    return [w.text for w in data.caveats if w.kind == "collapse"]


@pytest.mark.parametrize("federation", [rare, partial(rare, events=1), tiny], ids=["rare", "rarer", "tiny"])
@pytest.mark.parametrize("method", [FedAvg(), FedPer()], ids=["fedavg", "fedper"])
def test_equal_answers_of_other_models_are_no_collapse(method: Method, federation: Callable[[], Federation]) -> None:
    """Both predict the frequent class for every sample, with models that differ."""
    assert collapsed(method, federation()) == []


@pytest.mark.parametrize("engine", ["loop", "workers", "stacked"])
@pytest.mark.parametrize("federation", [rare, opposed])
def test_a_method_that_trains_alone_has_collapsed(federation: Callable[[], Federation], engine: str) -> None:
    """Ditto without its proximal term predicts with the local model, on whatever engine."""
    (said,) = collapsed(Ditto(lam=0), federation(), engine=engine)
    assert said.startswith("Ditto equals Local for every client: no client learns from another")


def test_digests_do_not_depend_on_processes() -> None:
    """The same digests in this process and in two others; another method has other ones."""
    training = Training(steps=3, batch_size=10, lr=0.1)
    lines = [
        [line.logits for line in run(m, rare(), "mlp", training, rounds=2, engine=e).clients if line.right]
        for m, e in ((FedAvg(), "loop"), (FedAvg(), "workers"), (Local(), "loop"))
    ]
    assert lines[0] == lines[1]
    assert {*lines[0]}.isdisjoint(lines[2])
    assert all(len(digest) == 16 for digest in lines[0])
