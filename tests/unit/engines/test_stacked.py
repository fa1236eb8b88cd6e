"""The stacked engine: what shares a stack, what does not and why, errors, memory, and where forward passes run."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedkin.engines.stacked as module
import fedkin.engines.stacked_device as device
from fedkin.core import (
    Batch,
    Bundle,
    Client,
    ClientError,
    ConfigError,
    EngineError,
    Method,
    Net,
    Samples,
    Train,
    Training,
    Work,
    stack,
)
from fedkin.core.seeds import generator
from fedkin.data.shelf import write
from fedkin.engines import Answer, Job, Loop, Stacked, Task
from fedkin.engines.forks import in_child
from fedkin.engines.stacked import StackedSession
from fedkin.engines.stacked_device import DeviceData, Place, failed, full
from fedkin.engines.stacked_eval import CommonScores, DeviceCopies, JointPasses
from fedkin.engines.stacked_graph import Graphs
from fedkin.engines.stacked_turns import naming
from fedkin.methods import CAM, FedAvg, FeSEM, get_method
from fedkin.privacy.dp_sgd import Private
from fedkin.testing.toys import CLASSES, WIDTH, ClientData, federation, network, samples
from refusals import refuses
from toys import method

CPU = Stacked(device="cpu")


def asks(*requests: Callable[[Client], Train]) -> Method:
    """A method whose clients yield these at once, or alone if it is one."""

    def client_update(self: Method, c: Client) -> Work:
        wanted = tuple(make(c) for make in requests)
        got = yield wanted if len(wanted) > 1 else wanted[0]
        return Bundle(models=torch.stack(got) if len(wanted) > 1 else got[None])

    return method(client_update=client_update)


def job(m: Method, **changes: Any) -> Job:
    return replace(Job(m, network("mlp"), Training(epochs=2, batch_size=4, lr=0.1), federation(), seed=1), **changes)


def tasks(j: Job, step: Any = "update", round: int = 1, **received: Tensor) -> list[Task]:
    return [Task(step, i, round, Bundle(received), Bundle()) for i in range(len(j.shards))]


def answered(j: Job, asked: Sequence[Task], engine: Any = CPU) -> tuple[dict[int, Answer], list[str]]:
    """The answers by client, and what the session noted."""
    session = engine.start(j)
    try:
        return {a.client: a for a in session.map(asked)}, list(getattr(session, "notes", []))
    finally:
        session.close()


def agree(j: Job, asked: Sequence[Task], engine: Any = CPU, *, exactly: bool = False) -> list[str]:
    """Asserts that the engine answers as the loop does; gives its notes."""
    got, notes = answered(j, asked, engine)
    wanted, _ = answered(j, asked, Loop())
    assert set(got) == set(wanted)
    for i, answer in wanted.items():
        for mine, theirs in ((got[i].reply, answer.reply), (got[i].state, answer.state)):
            assert set(mine) == set(theirs)
            for name, t in theirs.items():
                if name == "logits_digest":  # logits are equal to rounding
                    continue
                near = 0.0 if exactly else 1e-5
                torch.testing.assert_close(mine[name], t, rtol=near, atol=near)
        assert got[i].spent == answer.spent
    return notes


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every stack that is trained."""
    seen: list[int] = []
    train = module.train

    def watched(asked: Sequence[Any], *rest: Any, **more: Any) -> list[Tensor]:
        seen.append(len(asked))
        return train(asked, *rest, **more)

    monkeypatch.setattr(module, "train", watched)
    return seen


# ---- what shares a stack ------------------------------------------------------------------------------------------
def softened(net: Net, w: Tensor, batch: Any, aux: Bundle, by: float) -> Tensor:
    """A loss with a setting, which a method gives to it by `functools.partial`."""
    return F.cross_entropy(net(w, batch.x) / by, batch.y)


def start(net: Net) -> dict[str, Tensor]:
    return {"model": net.w0 + 0.1}


@pytest.mark.parametrize(
    ("m", "sent", "sizes"),
    [
        (FedAvg(), start, [6]),
        (get_method("ditto"), start, [12]),  # two requests of one client: its own model, pulled, and the global one
        # two models whose logits add up
        (CAM(inner=FeSEM(), warmup=0), lambda net: {"model": net.w0, "inner.model": net.fresh("inner", 0)}, [12]),
        # a head and whole models at once
        (
            asks(lambda c: Train(c.w0, only=c.net.head), lambda c: Train(c.w0), lambda c: Train(c.w0 + 1)),
            start,
            [6, 12],
        ),
        (asks(lambda c: Train(c.w0, loss=partial(softened, by=2.0))), start, [6]),
        (asks(lambda c: Train(c.w0, loss=partial(softened, by=1.0 + c.id % 2))), start, [3, 3]),
    ],
    ids=["fedavg", "ditto", "cam", "kinds", "partial", "partials"],
)
def test_requests_of_one_kind_share_a_stack(m: Method, sent: Any, sizes: list[int], stacks: list[int]) -> None:
    """Six clients of 1 to 12 samples; answers are not mixed up."""
    j = job(m)
    assert agree(j, tasks(j, **sent(j.net))) == []
    assert sorted(stacks) == sizes


@pytest.mark.parametrize("step", ["describe", "update", "evaluate", "keep"])
@pytest.mark.parametrize("name", ["fedavg-ft", "ifca", "fedfomo", "fedproto", "creff"])
def test_every_step_answers_as_the_loop(name: str, step: Any) -> None:
    """Joining, training, evaluation and what is kept, on methods that look at their data in between."""
    m = get_method(name)
    j = job(m, training=Training(epochs=2, batch_size=4, lr=0.1, schedule="step@factor=0.5"))
    w = j.net.w0
    received = {
        "fedavg-ft": {"model": w},
        "ifca": {"centres": torch.stack([w, w + 0.1, j.net.fresh(1)])},
        "fedfomo": {"models": torch.stack([w, j.net.fresh(1)]), "ids": torch.tensor([8, 9])},
        "fedproto": {"prototypes": torch.ones(3, 7), "known": torch.tensor([True, False, True])},
        "creff": {"model": w, "head": w[j.net.head]},
    }[name]
    assert agree(j, tasks(j, step, round=3, **received)) == []


def test_clients_without_training_data_keep_what_they_were_sent() -> None:
    none = samples(0, 9, "train", 0)
    empty = ClientData(none, none, none)
    for shards in ([empty, empty], [empty, *federation()[:2]]):
        j = job(FedAvg(), shards=shards)
        assert agree(j, tasks(j, model=j.net.w0)) == []
        got, _ = answered(j, tasks(j, model=j.net.w0))
        assert torch.equal(got[0].reply.model, j.net.w0)


def test_answers_of_one_stack_lie_side_by_side_and_states_alone() -> None:
    """The server takes the rows of all clients as one matrix without a copy."""
    j = job(FedAvg())
    got, _ = answered(j, tasks(j, model=j.net.w0))
    rows = stack({i: a.reply for i, a in got.items()}).model
    assert rows.data_ptr() == got[0].reply.model.data_ptr()

    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.w0)
        c.state = Bundle(model=w, received=c.received.model)
        return Bundle(model=w, again=w, part=w[:5], received=c.received.model)

    j = job(method(client_update=client_update))
    model = j.net.w0
    got, _ = answered(j, tasks(j, model=model))
    rows = [a.reply.model for a in got.values()]
    kept = [t for a in got.values() for t in (*a.state.values(), *(a.reply[n] for n in ("again", "part", "received")))]
    places = [t.untyped_storage().data_ptr() for t in (*kept, rows[0], model)]
    assert len(set(places)) == len(places)
    assert {t.untyped_storage().data_ptr() for t in rows} == {places[-2]}
    assert len({t.data_ptr() for t in rows}) == 6


# ---- what does not share a stack ----------------------------------------------------------------------------------
def by_value(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """A loss that looks at its value."""
    loss = F.cross_entropy(net(w, batch.x), batch.y)
    return loss * 2 if float(loss.detach()) > 1 else loss


def normalised(momentum: float | None = 0.1, layers: int = 1) -> Net:
    """Batch normalisation without dropout, whose draws are not the loop's."""

    def make() -> nn.Module:
        body = [m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=momentum))]
        return nn.Sequential(*body, nn.ReLU(), nn.Linear(WIDTH, CLASSES))

    return Net(make, (WIDTH,), CLASSES)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedproto"])
def test_batch_normalisation_is_stacked(name: str, stacks: list[int]) -> None:
    """Running statistics of every client are the loop's, like all else that is trained."""
    j = job(get_method(name), net=normalised(layers=2))
    received = {"fedproto": {"prototypes": torch.ones(3, WIDTH), "known": torch.tensor([True, False, True])}}
    sent = received.get(name, {"model": j.net.w0})
    assert agree(j, tasks(j, **sent)) == []
    assert stacks
    got, _ = answered(j, tasks(j, **sent))
    moved = got[0].reply.get("model", got[0].state.get("model", j.net.w0))[j.net.buffers]
    assert not torch.equal(moved, j.net.w0[j.net.buffers])
    assert all(isinstance(m.num_batches_tracked, Tensor) for m in j.net.module if isinstance(m, nn.BatchNorm1d))


def test_a_client_of_one_sample_does_not_end_stacking(stacks: list[int]) -> None:
    """Batch normalisation cannot train on its only batch, which is left out: it uploads what it received."""
    j = job(FedAvg(), net=normalised())
    few = replace(j.shards[0], train=Samples(j.shards[0].train.x[:1], j.shards[0].train.y[:1]))
    j = replace(j, shards=[few, *j.shards[1:]])
    asked, session = tasks(j, model=j.net.w0), CPU.start(j)
    first = list(session.map([t for t in asked if t.client == 0]))
    assert torch.equal(first[0].reply.model, j.net.w0)
    assert stacks == []
    rest = {a.client: a.reply.model for a in session.map([t for t in asked if t.client != 0])}
    assert session.notes == []
    assert sum(stacks) == len(rest) == len(asked) - 1


def two_networks(net: Net, v: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    """A loss of two networks, one after the other in a vector."""
    return F.cross_entropy(net(v[: net.size], batch.x) + net(v[net.size :], batch.x), batch.y)


def test_what_torch_cannot_stack_is_trained_client_by_client(stacks: list[int]) -> None:
    """Two networks with statistics in one vector; statistics that depend on a count: the loop's bits, one sentence."""
    j = job(asks(lambda c: Train(torch.cat([c.w0, c.w0 + 0.1]), loss=two_networks)), net=normalised())
    session = CPU.start(j)
    for _ in range(2):
        got = {a.client: a for a in session.map(tasks(j))}
    (note,) = session.notes
    assert "(1.running_mean, 1.running_var)" in note
    assert stacks == []
    wanted, _ = answered(j, tasks(j), Loop())
    assert all(torch.equal(got[i].reply.models, wanted[i].reply.models) for i in got)
    j = job(FedAvg(), net=normalised(momentum=None, layers=3))
    (note,) = answered(j, tasks(j, model=j.net.w0))[1]
    assert "count of batches (1.running_mean, 1.running_var and 4 more)" in note
    assert stacks == []
    j = job(FedAvg(), private=Private(1.0))
    assert len(agree(j, tasks(j, model=j.net.w0), exactly=True)) == 1
    assert stacks == []


def test_a_loss_that_looks_at_values_is_trained_client_by_client(
    caplog: pytest.LogCaptureFixture, stacks: list[int]
) -> None:
    j = job(asks(lambda c: Train(c.w0, loss=by_value)))
    with caplog.at_level(logging.WARNING, "fedkin.engines"):
        session = CPU.start(j)
        for t in (1, 2):
            found = list(session.map(tasks(j, round=t)))
            assert len(found) == 6
    assert stacks == [6]
    assert len(session.notes) == 1
    assert session.notes[0].startswith("by_value on this network is trained client by client")
    assert [r.getMessage() for r in caplog.records] == [f"stacked engine: {session.notes[0]}"]
    assert agree(j, tasks(j), exactly=True) == session.notes


# ---- errors -------------------------------------------------------------------------------------------------------
def bad_loss(net: Net, w: Tensor, batch: Batch, aux: Bundle) -> Tensor:
    raise ValueError("no such loss")


def failing(self: Method, c: Client) -> Any:
    if c.id == 3:
        raise KeyError("the reason")
    return Bundle(model=c.w0)


def after_training(self: Method, c: Client) -> Work:
    w = yield Train(c.w0)
    if c.id == 3:
        raise ValueError("later")
    return Bundle(model=w)


def wrong_request(self: Method, c: Client) -> Work:
    yield "training" if c.id == 3 else Train(c.w0)  # type: ignore[misc]
    return Bundle()


def wrong_rows(self: Method, c: Client) -> Work:
    rows = c.w0.new_zeros(len(c.data) + (c.id == 3), c.net.classes)
    w = yield Train(c.w0).add_logits(rows)
    return Bundle(model=w)


def bad_setting(self: Method, c: Client) -> Any:
    raise ConfigError("the reason")


def bad_on_one(self: Method, c: Client) -> Work:
    yield Train(c.w0, loss=bad_loss if c.id == 3 else by_value)
    return Bundle()


@pytest.mark.parametrize(
    ("step", "steps"),
    [
        ("describe", {"describe": failing}),
        ("update", {"client_update": failing}),
        ("update", {"client_update": after_training}),
        ("update", {"client_update": wrong_request}),
        ("update", {"client_update": wrong_rows}),
        ("update", {"client_update": bad_setting}),
        ("update", {"client_update": bad_on_one}),
        ("evaluate", {"personalize": failing}),
        ("evaluate", {"predict": lambda self, net, b, x: net(b.model[1:], x)}),
    ],
    ids=lambda v: getattr(next(iter(v.values())), "__name__", "views") if isinstance(v, dict) else v,
)
def test_a_failing_client_raises_what_it_raises_in_the_loop(step: Any, steps: dict[str, Any]) -> None:
    """The same kind of error with the same words: step, client, round and reason."""
    j = job(method(**steps))
    # answers come in another order than in the loop, so only one client may fail: the first is the one that does
    asked = sorted(tasks(j, step, round=5), key=lambda t: t.client != 3)
    if "predict" in steps:
        asked = asked[:1]
    raised = []
    for engine in (Loop(), CPU):
        with pytest.raises((ClientError, ConfigError)) as caught:
            answered(j, asked, engine)
        raised.append(caught.value)
    assert type(raised[0]) is type(raised[1])
    assert str(raised[0]) == str(raised[1])


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        ({"clients": -1}, ConfigError, "clients"),
        ({"memory": -1.0}, ConfigError, "memory"),
        *(({"device": name}, ConfigError, "cuda:N") for name in ("tpu", "cuda:x", "cpu:1", "")),
        ({"device": "cuda:99"}, EngineError, "cuda:99"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], kind: type[Exception], facts: str) -> None:
    """Also a GPU that is not there: no machine has a hundred."""
    with refuses(kind, facts):
        Stacked(**settings).start(job(FedAvg()))


# ---- memory -------------------------------------------------------------------------------------------------------
def test_stacks_are_as_large_as_allowed(stacks: list[int]) -> None:
    """At most four in a stack: three and three. A row takes some thousand bytes: 16 KiB hold some of six, 8 bytes
    one."""
    j = job(FedAvg())
    assert agree(j, tasks(j, model=j.net.w0), Stacked("cpu", clients=4)) == []
    assert stacks == [3, 3]
    stacks.clear()
    assert agree(j, tasks(j, model=j.net.w0), Stacked("cpu", memory=16 / 2**20)) == []
    assert sum(stacks) == 6
    assert 1 < len(stacks) < 6
    stacks.clear()
    agree(j, tasks(j, model=j.net.w0), Stacked("cpu", memory=8 / 2**30))
    assert stacks == [1] * 6


def short_of_memory(monkeypatch: pytest.MonkeyPatch, fails: Callable[[list[int]], bool]) -> list[int]:
    """The sizes of stacks that are tried; training one is out of memory where ``fails`` says so of them."""
    seen: list[int] = []
    train = module.train

    def small(asked: Sequence[Any], *rest: Any, **more: Any) -> list[Tensor]:
        seen.append(len(asked))
        if fails(seen):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(asked, *rest, **more)

    monkeypatch.setattr(module, "train", small)
    return seen


def test_a_stack_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six fail, three fail, ones are trained, and this is remembered; a client that does not fit alone is an error."""
    seen = short_of_memory(monkeypatch, lambda seen: seen[-1] > 2)
    j = job(FedAvg())
    session = CPU.start(j)
    for _ in range(2):
        assert len(list(session.map(tasks(j, model=j.net.w0)))) == 6
    assert seen == [6, 3, 1, 1, 1, 1, 1, 1] + [1] * 6
    assert session.notes == []
    short_of_memory(monkeypatch, lambda seen: True)
    with refuses(EngineError, "memory of cpu", "smaller batch"):
        answered(job(FedAvg()), tasks(job(FedAvg()), model=network("mlp").w0))


def test_recordings_are_given_up_for_a_stack_before_it_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take memory that only they can use: the same stack is tried again without, and is halved only after that."""
    seen = short_of_memory(monkeypatch, lambda seen: len(seen) < 3)
    j = job(FedAvg())
    session = CPU.start(j)
    session._run = graphs = Graphs(session._place, session.say)
    graphs._kept[()] = []
    assert len(list(session.map(tasks(j, model=j.net.w0)))) == 6
    assert seen == [6, 6, 3, 3]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate(handle)",
    ],
)
@pytest.mark.parametrize("step", ["update", "evaluate"])
def test_a_device_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch, text: str, step: Any) -> None:
    """It is no reason to go on client by client on the host, as where torch cannot stack something."""

    def fails(*given: Any, **more: Any) -> Any:
        raise RuntimeError(text)

    j = job(FedAvg())
    session = Stacked("cpu", products=False).start(j)
    session._place.cuda = True
    monkeypatch.setattr(session._place, "at_work", lambda: torch.random.fork_rng(devices=[]))
    monkeypatch.setattr(module, "train", fails)
    monkeypatch.setattr(module, "bytes_of", lambda *given, **more: 1)
    monkeypatch.setattr(session._place, "room", lambda: 100)
    monkeypatch.setattr(session._place, "outputs", fails)
    with refuses(EngineError, "cpu failed: ", text.splitlines()[0][:10]):
        list(session.map(tasks(j, step, model=j.net.w0)))
    assert session.notes == []


def test_a_library_without_memory_halves_the_stack() -> None:
    """Libraries report it in words of their own; what they do not support is no failure of the device."""
    assert full(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not failed(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not failed(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear"))
    assert not failed(RuntimeError("Batching rule not implemented for aten::_cudnn_rnn"))


# ---- the device ---------------------------------------------------------------------------------------------------
class Elsewhere(Place):
    """A device with a memory of its own: moving there makes a copy."""

    ups: list[int]

    def up(self, t: Tensor) -> Tensor:
        self.ups.append(t.numel())
        return t.clone()


def elsewhere_place() -> Elsewhere:
    place = Elsewhere("cpu", 0.0, False)
    place.ups = []
    return place


def elsewhere(j: Job) -> tuple[StackedSession, list[int]]:
    session, place = CPU.start(j), elsewhere_place()
    session._place, session._copies = place, DeviceCopies(place)
    session._joint = JointPasses(place, session._classes)
    session._scores = CommonScores(j, place, session._classes)
    return session, place.ups


@pytest.mark.parametrize("on_disk", [False, True])
def test_data_are_put_on_the_device_once(on_disk: bool, tmp_path: Path) -> None:
    shards: Sequence[ClientData] = [
        ClientData(*(samples(0, i, p, 50) for p in ("train", "validation", "test"))) for i in range(2)
    ]
    shards = write(tmp_path / "federation", shards, classes=CLASSES) if on_disk else shards
    j = job(FedAvg(), shards=shards)
    session, ups = elsewhere(j)
    inputs = 50 * WIDTH
    for step in ("update", "evaluate"):
        list(session.map(tasks(j, step, model=j.net.w0)))
    assert ups.count(inputs) == 6
    ups.clear()
    for step in ("update", "evaluate"):
        list(session.map(tasks(j, step, 2, model=j.net.w0)))
    assert inputs not in ups
    session.close()
    list(session.map(tasks(j, "evaluate", 3, model=j.net.w0)))
    assert ups.count(inputs) == 4
    assert session._place.data._named == {}


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Samples of every call of a method's `predict`."""
    seen: list[int] = []
    for kind in (FedAvg, type(get_method("ifca")), type(get_method("ditto"))):

        def watched(self: Any, net: Net, b: Bundle, x: Tensor, predict: Any = kind.predict) -> Tensor:
            seen.append(len(x))
            return predict(self, net, b, x)  # type: ignore[no-any-return]

        monkeypatch.setattr(kind, "predict", watched)
    return seen


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Clients whose programs are run."""
    seen: list[int] = []

    def watched(turn: Any) -> Work:
        seen.append(turn.task.client)
        return naming(turn)

    monkeypatch.setattr(module, "naming", watched)
    return seen


def diverged(self: Method, net: Net, b: Bundle, x: Tensor) -> Tensor:
    """Logits that are no numbers for some samples."""
    return torch.where(x[:, :1] > 0.5, float("nan"), net(b.model, x))


@pytest.mark.parametrize(
    ("m", "alone"),
    [
        (FedAvg(), False),
        (get_method("fedprox"), False),
        (method(personalize=Method.personalize, predict=diverged), False),
        (FedAvg(after_training=True), True),
        (get_method("ditto"), True),
        (method(personalize=lambda self, c: Bundle(model=c.w0 + c.id)), True),
    ],
)
def test_clients_of_one_model_are_scored_without_their_programs(m: Method, alone: bool, programs: list[int]) -> None:
    """Class counts, counts of parts, samples without a prediction and states are the loop's, of a client without
    validation samples as well; with further views, or a model of their own, clients are asked one by one."""
    j = job(m)
    asked = [replace(t, state=Bundle(model=j.net.w0 + 0.1)) for t in tasks(j, "evaluate", model=j.net.w0)]
    assert agree(j, asked, exactly=True) == []
    assert sorted(programs) == (list(range(6)) if alone else [])
    got, _ = answered(j, asked)
    assert all(set(a.reply) >= {"counts", "test", "validation", "unpredicted"} for a in got.values())


def test_clients_are_asked_where_models_or_the_round_are_of_another_kind(programs: list[int]) -> None:
    """One model differs; the outcomes of single samples are wanted."""
    j = job(FedAvg())
    one, other = tasks(j, "evaluate", model=j.net.w0)[:3], tasks(j, "evaluate", model=j.net.w0 + 1)[3:]
    assert agree(j, [*one, *other], exactly=True) == []
    assert len(programs) == 6
    programs.clear()
    assert agree(replace(j, outcomes=1), tasks(j, "evaluate", model=j.net.w0), exactly=True) == []
    assert len(programs) == 6


def test_clients_of_one_model_are_evaluated_in_one_pass(predictions: list[int]) -> None:
    """Six clients of 4 test samples, and 3 for validation of all but one; of IFCA's a pass for each cluster that
    was chosen."""
    j = job(FedAvg())
    session, ups = elsewhere(j)
    model = j.net.w0
    got = {a.client: a for a in session.map(tasks(j, "evaluate", model=model))}
    assert predictions == [6 * 4 + 5 * 3]
    assert ups.count(j.net.size) == 1
    wanted, _ = answered(j, tasks(j, "evaluate", model=j.net.w0), Loop())
    assert all(torch.equal(got[i].reply[n], t) for i, a in wanted.items() for n, t in a.reply.items())
    assert session._joint._classes == {}
    list(session.map(tasks(j, "evaluate", model=model)))
    assert ups.count(j.net.size) == 1
    assert len(session._copies._kept) == 1
    predictions.clear()
    j = job(get_method("ifca"))
    got, _ = answered(j, tasks(j, "evaluate", centres=torch.stack([j.net.fresh(i) for i in range(3)])))
    chosen = {int(a.reply.cluster) for a in got.values()}
    assert len(predictions) == len(chosen)
    assert sum(predictions) == 6 * 4 + 5 * 3


def test_a_tensor_that_changes_moves_again() -> None:
    """The device's copy is of the values at the time; what predictions were made with stays until they are taken."""
    place = elsewhere_place()
    copies, w = DeviceCopies(place), torch.zeros(9)
    first = copies.bundle(Bundle(w=w)).w
    assert copies.bundle(Bundle(w=w)).w is first
    w += 1
    assert torch.equal(copies.bundle(Bundle(w=w)).w, w)
    assert not torch.equal(first, w)
    assert place.ups == [9, 9]
    j = job(FedAvg())
    session, _ = elsewhere(j)
    model, data = j.net.w0.clone(), j.shards[0].test
    there = weakref.ref(model)
    session._joint.expect([(Bundle(model=model), data)])
    session._joint.compute()
    session._copies.forget()  # as they do of themselves where there is no room
    del model
    assert there() is not None
    assert session._joint.take(Bundle(model=there()), data) is not None
    assert there() is None


def test_samples_are_kept_by_client_and_part() -> None:
    """Other tensors of a part move no more, nor are names kept beyond a turn, or data beyond the room."""
    place = elsewhere_place()
    first, again = samples(0, 0, "train", 9), samples(0, 0, "train", 9)
    for data in (first, again):
        place.data.name(data, (0, "train", 0))
        assert torch.equal(place.data.of(data).x, data.x)
    assert place.ups.count(9 * WIDTH) == 1
    place.data.name(again, (1, "train", 0))
    place.data.unname()
    for _ in range(2):
        place.data.of(again)
    assert place.ups.count(9 * WIDTH) == 3
    place, room = elsewhere_place(), 2 * 9 * (WIDTH * 4 + 8)
    place.data = DeviceData(place.up, room + 1)
    parts = [samples(0, i, "train", 9) for i in range(3)]
    for _ in range(2):
        for i, part in enumerate(parts):
            place.data.name(part, (i, "train", 0))
            assert torch.equal(place.data.of(part).x, part.x)
    assert place.ups.count(9 * WIDTH) == 4
    assert place.data.left == 1
    place.data.forget()
    assert place.data.left == room + 1


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        # constants that a module makes on the host, for example
        (RuntimeError("Expected all tensors to be on the same device\nmore"), 3),
        # full for once: all at once, in two ways; then two parts of six clients, one without validation samples
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 13),
    ],
)
def test_a_network_that_fails_on_the_device_is_evaluated_on_the_host(
    error: Exception, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answers, and one sentence; a device that is full for once is asked again."""
    j, seen = job(FedAvg()), list[int]()
    session = CPU.start(j)
    session._place.cuda = True
    monkeypatch.setattr(session._place, "at_work", lambda: torch.random.fork_rng(devices=[]))

    def fails(*given: Any) -> Tensor:
        seen.append(1)
        raise error

    monkeypatch.setattr(session._place, "outputs", fails)
    got = {a.client: a.reply for a in session.map(tasks(j, "evaluate", model=j.net.w0))}
    wanted, _ = answered(j, tasks(j, "evaluate", model=j.net.w0), Loop())
    assert all(torch.equal(got[i].test, a.reply.test) for i, a in wanted.items())
    (note,) = session.notes
    assert note.endswith(str(error).splitlines()[0].partition(".")[0])
    assert len(seen) == asked


def precisions_are_put_back() -> bool:
    backends = torch.backends
    matmul, conv, rnn = kinds = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn

    def put_back() -> bool:
        before, inside = [k.fp32_precision for k in kinds], []
        for tf32 in (False, True):
            with Place("cpu", 0.0, tf32).at_work():
                inside += [(k.fp32_precision == "tf32") == tf32 for k in kinds]
            inside += [[k.fp32_precision for k in kinds] == before]
        return all(inside)

    backends.cuda.matmul.allow_tf32 = True
    found = [put_back()]
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = False
    found.append(put_back())
    for values in (("tf32", "tf32", rnn.fp32_precision), ("ieee",) * 3, ("none",) * 3):
        matmul.fp32_precision, conv.fp32_precision, rnn.fp32_precision = values
        if values[0] == "none":
            backends.fp32_precision = "tf32"
        found.append(put_back())
    return all(found)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older torch has one way")
def test_the_newer_settings_of_precision_are_put_back_too() -> None:
    """Set for each kind of product, or for all; in a process of its own, as torch has no way back from them."""
    assert in_child(precisions_are_put_back)


def test_the_host_computes_on_all_cores_next_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not stacked, and copies, have no worker processes to share them with; on a CPU it stays one core."""
    monkeypatch.setattr(device, "cores", lambda: 3)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    place = Place("cpu", 0.0, False)
    for cuda, threads in ((False, 1), (True, 3)):
        place.cuda = cuda
        with place.at_work():
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 1


def test_memory_that_only_a_cycle_holds_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the memory of recordings stayed for as long as no other garbage was collected."""
    place, held = Place("cpu", 0.0, False), nn.Linear(2, 2)
    held.add_module("itself", held)
    left, there = weakref.ref(held), list[bool]()
    monkeypatch.setattr(place, "cuda", True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: there.append(left() is not None))
    del held
    place.forget()
    assert there == [False]


class Ordered(nn.Sequential):
    """A convolution that notes, outside training, whether its inputs have their channels innermost."""

    def __init__(self, seen: list[bool]) -> None:
        super().__init__(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))
        self._inputs = seen

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self._inputs.append(x.is_contiguous(memory_format=torch.channels_last))
        out: Tensor = super().forward(x)
        return out


def test_single_models_see_inputs_in_the_networks_layout() -> None:
    """Stacks are gathered from inputs in torch's usual order; an evaluation and a client's logits need no stack."""
    seen: list[bool] = []
    net = Net(lambda: Ordered(seen), (2, 6, 6), CLASSES)
    x = torch.randn(5, 2, 6, 6, generator=generator(0, 0))
    part = Samples(net.layout(x), torch.zeros(5, dtype=torch.int64))

    def client_update(self: Method, c: Client) -> Bundle:
        return Bundle(logits=c.logits(c.w0))

    j = job(method(client_update=client_update), net=net, shards=[ClientData(part, part, part)])
    for step in ("update", "evaluate"):
        seen.clear()
        answered(j, tasks(j, step, model=net.w0))
        assert seen
        assert all(seen)
