"""Runs give the same results in threads, and inside of torch's modes, as alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

from fedkin import Training, run
from fedkin.data import planted_groups
from fedkin.methods import DAPFL, IFCA, FedAvg, FedPer, PerFedAvg
from fedkin.record.result import Result


def played(method: Any, engine: Any = "loop", model: Any = "mlp", on_round: Any = None) -> Result:
    """Three rounds of four clients, whose data are made here."""
    federation = planted_groups(clients=4, groups=2, samples=30)
    training = Training(steps=2, batch_size=5, lr=0.1)
    return run(method, federation, model, training, rounds=3, engine=engine, on_round=on_round)


def same(a: Result, b: Result) -> bool:
    """Whether lines and the server's tensors are equal to the last bit."""
    states = a.server.state, b.server.state
    return (a.rounds, a.clients) == (b.rounds, b.clients) and all(
        torch.equal(states[0][n], states[1][n]) for n in states[0]
    )


def dropping() -> nn.Module:
    """A network that draws random numbers when it trains."""
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


@pytest.mark.parametrize(("engine", "model"), [("loop", dropping), ("workers", "mlp"), ("stacked", "mlp")])
def test_runs_in_threads_are_those_one_after_another(engine: str, model: Any) -> None:
    """Of several methods, begun at the same moment; threads first, so that nothing has been compiled yet."""
    methods = [FedAvg(), FedPer(), IFCA(clusters=2), DAPFL()]
    begin = Barrier(len(methods))

    def threaded(method: Any) -> Result:
        begin.wait()
        return played(method, engine, model)

    with ThreadPoolExecutor(len(methods)) as pool:
        found = list(pool.map(threaded, methods))
    assert all(same(a, played(m, engine, model)) for a, m in zip(found, methods, strict=True))


def test_a_run_may_make_another_run() -> None:
    """After a round, in the same thread: it does not wait for the first one to end."""
    inner: list[Result] = []
    played(FedAvg(), on_round=lambda *_: inner.append(played(FedPer())))
    assert len(inner) == 3
    assert all(same(one, played(FedPer())) for one in inner)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Another type of new tensors."""
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("engine", ["loop", "workers", "stacked"])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_does_not_depend_on_the_modes_around_it(mode: str, engine: str) -> None:
    """Nor where its data are made inside of the mode; a method that takes gradients itself is among them."""
    for method in (FedAvg(), PerFedAvg()):
        results = []
        for context in (nullcontext, MODES[mode]):
            with context():
                results.append(played(method, engine))
        assert same(*results)
