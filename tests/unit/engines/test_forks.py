"""Worker processes beside a GPU: no gradient before the fork, and a way on where there was one.

Torch's rule is imitated: once a process has taken a gradient, those that are forked from it cannot.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedkin.engines.forks as module
from fedkin.core import Bundle, EngineError, Training
from fedkin.engines import Answer, Engine, Job, Loop, Task, Workers, choose, gradients, why_not_compiled
from fedkin.engines.forks import children_can_train, in_child
from fedkin.methods import FedAvg
from fedkin.testing.toys import federation, network
from refusals import refuses


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process that took a gradient first, of this one and those it was forked from; torch sees a GPU."""
    first: list[int] = []
    grad = torch.autograd.grad

    def watched(*given: Any, **more: Any) -> Any:
        if first and first[0] != os.getpid():
            raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")
        first[:] = [os.getpid()]
        return grad(*given, **more)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    monkeypatch.setattr(module, "sees_gpu", lambda: True)
    return first


def job(**changes: Any) -> Job:
    return Job(FedAvg(), network("mlp"), Training(batch_size=4, lr=0.1), federation(), seed=1, **changes)


def answers(engine: Engine, j: Job) -> dict[int, Answer]:
    session = engine.start(j)
    try:
        model = Bundle(model=j.net.w0)
        return {a.client: a for a in session.map([Task("update", i, 1, model, Bundle()) for i in range(6)])}
    finally:
        session.close()


@pytest.mark.parametrize(
    ("gradient", "found"),
    [("explicit", "gradients written out"), ("auto", "training compiled"), ("autograd", "gradients")],
)
def test_workers_can_train_where_a_run_comes_first(took: list[int], gradient: Any, found: str) -> None:
    """A run says how gradients are found, for which the network's are tried, and then starts its workers."""
    j = job(gradient=gradient)
    way = gradients(Workers(2), j)
    assert took == []
    if gradient != "auto" or not why_not_compiled():
        assert way.startswith(found)
    got, wanted = answers(Workers(2), j), answers(Loop(), j)
    assert all(torch.equal(got[i].reply.model, wanted[i].reply.model) for i in wanted)


def test_whether_the_passes_agree_is_found_out_in_a_child(took: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer counts; only where it has none is the gradient taken here."""
    here = os.getpid()
    for answer, found in ((False, "its forward pass does more than its layers"), (True, "a chain of 3 layers")):
        monkeypatch.setattr("fedkin.engines.steps._agrees", lambda *given, it=answer: (os.getpid() != here) == it)
        assert found in gradients(Workers(2), job())


def test_after_a_gradient_workers_are_refused_and_auto_takes_the_loop(took: list[int]) -> None:
    """An earlier run in this process trained in it: the message says what to do, and `auto` does it."""
    answers(Loop(), job(gradient="autograd"))
    assert took == [os.getpid()]
    assert not children_can_train()
    with refuses(EngineError, "GPU", "--engine loop"):
        Workers(2).start(job())
    chosen, why = choose("auto", job())
    assert chosen == Loop()
    assert "this process took gradients where torch sees a GPU" in why
    assert isinstance(choose("workers@n=2", job())[0], Workers)


def test_a_process_of_a_pool_has_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not have processes: `auto` takes the loop, and workers are refused by name."""
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    chosen, why = choose("auto", job())
    assert chosen == Loop()
    assert "this process is a daemon" in why
    with refuses(EngineError, "multiprocessing.Pool", "--engine loop"):
        Workers(2).start(job())


def test_what_a_child_returns() -> None:
    """Its answer; nothing, where it fails or does not come to an end; what it changes stays its own."""
    seen: list[int] = []
    assert in_child(lambda: not seen.append(1))  # type: ignore[func-returns-value]
    assert in_child(lambda: False) is False
    assert seen == []
    assert in_child(lambda: bool(1 // 0)) is None
    assert in_child(lambda: time.sleep(60) is None, seconds=1) is None
