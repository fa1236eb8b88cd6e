"""Clients that predict with one model are evaluated together in a worker: the same answers as one after another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedkin.engines.joint_scores as module
from fedkin.core import Bundle, ClientError, Samples, Training
from fedkin.core.samples import ClientData
from fedkin.core.settings import Gradient
from fedkin.engines import Answer, Job, Loop, Task, Workers
from fedkin.engines.joint_scores import compiled_scores
from fedkin.engines.shared import Arena, layout_of
from fedkin.engines.workers import WorkersSession
from fedkin.methods import FedAvg
from fedkin.testing.toys import federation, network
from refusals import refuses


def job(gradient: Gradient = "auto") -> Job:
    """Fifteen clients, of which one has no test samples and one has validation samples."""
    shards = list(federation())
    shards = [shards[i % len(shards)] for i in range(15)]
    none = Samples(shards[0].test.x[:0], shards[0].test.y[:0])
    shards[3] = replace(shards[3], test=none)
    shards[4] = replace(shards[4], validation=shards[0].train)
    return Job(FedAvg(), network("mlp"), Training(batch_size=4), shards, seed=1, gradient=gradient)


def tasks(j: Job, round: int, model: torch.Tensor) -> list[Task]:
    return [Task("evaluate", i, round, Bundle(model=model), Bundle()) for i in range(len(j.shards))]


def same(a: Answer, b: Answer) -> bool:
    return list(a.reply) == list(b.reply) and all(
        t.dtype == b.reply[n].dtype and torch.equal(t, b.reply[n]) for n, t in a.reply.items()
    )


@pytest.mark.parametrize("gradient", ["auto", "explicit"])
def test_joint_evaluations_are_those_of_the_loop(gradient: Gradient, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round, whose answers are copied, and in the second, where they lie in shared memory."""
    together = list[int]()
    ask = WorkersSession._joint_token
    monkeypatch.setattr(
        WorkersSession, "_joint_token", lambda self, some, now: together.append(len(some)) or ask(self, some, now)
    )
    j = job(gradient)
    session, loop = Workers(2).start(j), Loop().start(j)
    for round, model in enumerate((j.net.w0, j.net.fresh(1), torch.full_like(j.net.w0, torch.nan)), 1):
        found = {a.client: a for a in session.map(tasks(j, round, model))}
        wanted = {a.client: a for a in loop.map(tasks(j, round, model))}
        assert found.keys() == wanted.keys()
        assert all(same(found[i], wanted[i]) for i in wanted)
    assert int(found[4].reply.unpredicted) == len(j.shards[4].test) + len(j.shards[4].validation) > 0
    assert together[:3] == [3, 3, 2]
    session.close()


def test_each_client_is_evaluated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where passes are not compiled, or a method has a prediction of its own."""
    j = job("explicit")
    assert compiled_scores(j, tasks(j, 1, j.net.w0)) is None
    j = job()
    scores = compiled_scores(j, tasks(j, 1, j.net.w0))
    assert [len(t) for t in scores.values()] == [15] * 4
    j = job()
    monkeypatch.setattr(FedAvg, "predict", lambda self, net, b, x: net(b.model, x), raising=False)
    assert compiled_scores(j, tasks(j, 1, j.net.w0)) is None
    assert module.common_model(j, tasks(j, 1, j.net.w0)) is not None


def test_a_failure_names_its_client() -> None:
    """A label that is not a class would count at the next client: each is evaluated alone, and the one is named."""
    j = job()
    wrong = replace(j.shards[7], test=Samples(j.shards[7].test.x, j.shards[7].test.y + j.net.classes))
    shards: list[ClientData] = [*j.shards[:7], wrong, *j.shards[8:]]
    j = replace(j, shards=shards)
    assert compiled_scores(j, tasks(j, 1, j.net.w0)) is None
    session = Workers(2).start(j)
    with refuses(ClientError, "evaluate of client 7 failed in round 1"):
        list(session.map(tasks(j, 1, j.net.w0)))
    session.close()


def test_answers_of_another_form_are_written_to_no_place() -> None:
    arena, one = Arena(1 << 20), Bundle(a=torch.arange(3), b=torch.tensor(1.5))
    arena.learn("evaluate", [layout_of(one)])
    rows = arena.rows("evaluate", 4)
    both = Bundle(a=torch.tensor([[1, 2, 3], [4, 5, 6]]), b=torch.tensor([0.5, 2.5]))
    for other in (Bundle(c=both.a, b=both.b), both.but(a=both.a[:, :2]), both.but(b=both.b.double()), Bundle(a=both.a)):
        assert not arena.fill_rows(rows.columns, [0, 1], other)
    assert arena.fill_rows(rows.columns, [3, 1], both)
    assert rows.read(3).a.tolist() == [1, 2, 3]
    assert rows.read(1).a.tolist() == [4, 5, 6]
    assert [float(rows.read(i).b) for i in (3, 1, 0)] == [0.5, 2.5, 0.0]
