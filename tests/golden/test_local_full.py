"""Local training at full strength: the choice on validation data by hand, and every client in every round."""

from __future__ import annotations

import pytest
import torch

import plain
from fedkin.core import Bundle, Client, Samples, Training
from fedkin.engines import Job, Loop
from fedkin.methods import Local, LocalFull
from fedkin.server import Plan, Simulation, begin, rounds
from toys import close, federation, logit_net, mlp, run

FIRST, SECOND = [2.0, 1.0], [0.0, 1.0]
"""Logits at x = 1: a model that predicts class 0, and one that predicts class 1."""


def of(*labels: int) -> Samples:
    return Samples(torch.ones(len(labels), 1), torch.tensor(labels, dtype=torch.int64))


def after(validation: Samples, *models: list[float]) -> tuple[Client, list[torch.Tensor]]:
    """A client whose trainings gave these models, one a round, and where each training started.

    Its training part says the opposite of the validation part in these tests: class 1 three times, class 0 once.
    """
    client = Client(0, of(1, 1, 1, 0), validation, logit_net(2), Training(), Bundle(), Bundle())
    starts = []
    for w in models:
        work = LocalFull().client_update(client)
        starts.append(next(work).start)  # type: ignore[union-attr]
        with pytest.raises(StopIteration) as end:
            work.send(torch.tensor(w))
        assert end.value.value == Bundle()
    return client, starts


def test_the_model_of_the_highest_validation_accuracy_is_kept() -> None:
    """Validation 0, 0, 0, 1: the class-0 model is right on 3 of 4, the class-1 model on 1 of 4. After class 0, class 1
    the first is predicted with; on the training part the second would be right on 3 of 4. Training goes on from the
    last model, never from the chosen one."""
    client, starts = after(of(0, 0, 0, 1), FIRST, SECOND, [0.0, 3.0])
    close(LocalFull().personalize(client).model, FIRST)
    close(client.state.model, [0.0, 3.0])
    close(starts[1], FIRST)
    close(starts[2], SECOND)
    assert torch.equal(starts[0], client.w0)


def test_of_equals_the_later_is_kept() -> None:
    """3 of 4, 1 of 4, 3 of 4 again: the third round's model; then 1 of 4, which changes nothing."""
    client, _ = after(of(0, 0, 0, 1), FIRST, SECOND, [9.0, 1.0], SECOND)
    close(LocalFull().personalize(client).model, [9.0, 1.0])


def test_a_later_better_model_replaces_the_chosen_one() -> None:
    """1 of 4, then 3 of 4."""
    client, _ = after(of(0, 0, 0, 1), SECOND, FIRST)
    close(LocalFull().personalize(client).model, FIRST)


def test_under_drift_the_kept_model_is_scored_on_todays_data() -> None:
    """The class-0 model is right on 3 of 4 before labels change and on 1 of 4 after it, so the class-1 model, right on
    3 of 4 then, replaces it."""
    client, _ = after(of(0, 0, 0, 1), FIRST)
    client.validation = of(1, 1, 1, 0)
    work = LocalFull().client_update(client)
    next(work)
    with pytest.raises(StopIteration):
        work.send(torch.tensor(SECOND))
    close(LocalFull().personalize(client).model, SECOND)


def test_without_validation_samples_the_last_model_is_kept() -> None:
    """All rounds are equal."""
    client, _ = after(of(), FIRST, SECOND)
    close(LocalFull().personalize(client).model, SECOND)


def test_before_its_first_training_a_client_predicts_with_the_common_start() -> None:
    client, _ = after(of(0))
    assert torch.equal(LocalFull().personalize(client).model, client.w0)


def test_every_client_trains_in_every_round() -> None:
    """Five clients at 20 % participation: all five in each of four rounds, and the models they train are those of Local
    at full participation, bit for bit. Nothing is sent but each client's size."""
    full = run(LocalFull(), mlp(), federation(), participation=0.2)
    local = run(Local(), mlp(), federation(), participation=1.0)
    assert [r.answered for r in full.reports] == [[0, 1, 2, 3, 4]] * 4
    assert all(torch.equal(full.clients[i].model, local.clients[i].model) for i in range(5))
    assert [(r.bytes_down, r.bytes_up) for r in full.reports] == [(0, 5 * 8), (0, 0), (0, 0), (0, 0)]


def test_late_joiners_and_drop_outs_miss_rounds() -> None:
    """Who is not there does not train: client 4 joins in round 3; who does not answer keeps what it had."""
    found = run(LocalFull(), mlp(), federation(), participation=0.2, joins=[1, 1, 1, 1, 3], dropout=0.4)
    assert [r.cohort for r in found.reports] == [[0, 1, 2, 3]] * 2 + [[0, 1, 2, 3, 4]] * 2
    assert any(r.refused for r in found.reports)


def test_over_selection_does_not_cut_it() -> None:
    """With more clients asked than needed, other methods take those who answer first; this one waits for all it asks,
    or clients would miss rounds at random."""
    shards, plan = federation(), Plan(3, 0.4, oversampling=1.5)

    def answered(method: Local | LocalFull) -> list[int]:
        session = Loop().start(Job(method, mlp(), Training(steps=1, batch_size=5), shards, 0))
        server = begin(method, mlp(), plan)
        return [len(r.answered) for r in rounds(method, mlp(), Training(), Simulation(session, 5), plan, server)]

    assert answered(LocalFull()) == [5, 5, 5]
    assert answered(Local()) == [2, 2, 2]


# ---- another program ------------------------------------------------------------------------------------------------
def test_an_independent_program_gives_the_same() -> None:
    """SGD in float64 on all five clients in each of six rounds; the chosen model is looked up in a list of accuracies
    at the end."""
    training = Training(epochs=2, batch_size=5, lr=0.3)
    found, shards, w0 = plain.played(LocalFull(), rounds_=6, training=training)
    early = 0
    for i, shard in enumerate(shards):
        x, y = shard.validation.x.double(), shard.validation.y
        models, right = [w0], []
        for t in range(1, 7):
            models.append(plain.descend(models[-1], shard.train, i, t, training=training)[0])
            right.append(int((plain.logits(models[-1], x).argmax(1) == y).sum()))
        best = max(t for t in range(6) if right[t] == max(right))
        early += best < 5
        kept = found.clients[i]
        assert plain.distance(kept.model, models[-1]) < 2e-6
        assert plain.distance(kept.chosen, models[1 + best]) < 2e-6
    assert 0 < early < 5
