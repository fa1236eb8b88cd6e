"""Uploads that stay on the device until their mean is taken: when they do, what moves, and equal results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedkin.engines.stacked as module
from fedkin.capabilities import RobustMeans, has
from fedkin.core import Aggregation, Bundle, Client, Method, MethodError, Roster, Round, Samples, Train, Training, Work
from fedkin.core.rows import _mixed_there, mix
from fedkin.core.seeds import generator
from fedkin.core.settings import Settings
from fedkin.engines import Job, Loop, Session, Stacked, Task
from fedkin.engines.stacked import StackedSession
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_turns import SealedVector, require_as_trained
from fedkin.experiment.run import _means_only
from fedkin.methods import METHODS, FedAvg
from fedkin.privacy.dp_sgd import Private
from fedkin.server import Plan
from fedkin.testing.toys import federation, network
from fedkin.testing.trial import Setting, difference, play, tensors
from refusals import refuses
from remote import Moves, Remote, there
from thorough import thorough_except
from toys import method

AS_TRAINED = sorted(name for name in METHODS if (has(METHODS[name](), RobustMeans) or RobustMeans()).alone)


class Watched(Place):
    """Host that counts the numbers which a device would send back, and keeps uploads apart if `apart`."""

    downs: list[int]
    apart: bool

    def down(self, t: Tensor) -> Tensor:
        self.downs.append(t.numel())
        return super().down(t)

    def done(self, t: Tensor) -> Tensor:
        found = super().done(t)
        return there(found) if self.apart else found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Staying(Stacked):
    """The stacked engine in a run that needs means alone; uploads are `Remote` if ``apart``."""

    device: str = "cpu"
    means_only: bool = True
    apart: bool = False
    downs: list[int] = field(default_factory=list)

    def start(self, job: Job) -> StackedSession:
        session = StackedSession(replace(job, means_only=self.means_only), self)
        place = Watched(self.device, 0.0, False)
        place.downs, place.apart = self.downs, self.apart
        session._place = place
        return session


def job(m: Method, **changes: Any) -> Job:
    return replace(Job(m, network("mlp"), Training(epochs=2, batch_size=4, lr=0.1), federation(), seed=1), **changes)


def updates(j: Job, session: Session, **received: Tensor) -> dict[int, Bundle]:
    given = Bundle(received or {"model": j.net.w0})
    return {a.client: a.reply for a in session.map([Task("update", i, 1, given, Bundle()) for i in range(6)])}


@pytest.mark.parametrize("name", thorough_except(AS_TRAINED, ["fedavg"]))
def test_rounds_on_a_device_are_those_of_the_host(name: str) -> None:
    """Four rounds with drop-outs, and a client whose numbers are not finite."""
    shards = list(federation())
    shards[1] = replace(shards[1], train=Samples(shards[1].train.x * float("inf"), shards[1].train.y))
    setting = Setting(shards=tuple(shards), dropout=0.2, plan=Plan(rounds=4, participation=0.9, seed=3))
    wanted = play(METHODS[name](), setting, Stacked(device="cpu"))
    with Moves():
        got = play(METHODS[name](), setting, Staying(apart=True))
    assert difference(tensors(wanted), tensors(got), 1e-6) is None
    assert [r.refused for r in got.reports] == [r.refused for r in wanted.reports]
    assert [r.bytes_up for r in got.reports] == [r.bytes_up for r in wanted.reports]
    assert any(one.code == "not-finite" for r in got.reports for one in r.refused)
    assert all(isinstance(b.model, Remote) for sent in got.uploads for b in sent.values())
    assert all(type(t) is Tensor for t in got.server.state.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="rounds on a GPU need one, this machine has none")
@pytest.mark.parametrize("name", AS_TRAINED)
def test_rounds_on_a_gpu_are_those_of_the_host(name: str) -> None:
    setting = Setting(dropout=0.2, plan=Plan(rounds=4, participation=0.9, seed=3))
    wanted, got = (play(METHODS[name](), setting, engine) for engine in (Loop(), Staying("cuda")))
    assert difference(tensors(wanted), tensors(got), Stacked.tolerance) is None
    assert all(b.model.is_cuda for sent in got.uploads for b in sent.values())


@pytest.mark.parametrize(("means_only", "downs"), [(True, []), (False, [6 * 73])])
def test_uploads_come_down_only_where_single_ones_are_looked_at(means_only: bool, downs: list[int]) -> None:
    """Six vectors of 73 numbers, or none; on a CPU the bits are the same."""
    j, engine = job(FedAvg()), Staying(means_only=means_only)
    got, wanted = updates(j, engine.start(j)), updates(j, Stacked(device="cpu").start(j))
    assert engine.downs == downs
    assert all(torch.equal(got[i].model, wanted[i].model) for i in range(6))


def test_vectors_that_are_looked_at_are_on_the_host() -> None:
    """What clients keep, and what a prediction trains."""
    j, engine = job(METHODS["fedavg-ft"]()), Staying()
    asked = [Task("evaluate", i, 1, Bundle(model=j.net.w0), Bundle()) for i in range(6)]
    list(engine.start(j).map(asked))
    assert 6 * 73 in engine.downs
    j = job(FedAvg(after_training=True))
    with Moves():
        found = list(
            Staying(apart=True).start(j).map([Task("update", i, 1, Bundle(model=j.net.w0), Bundle()) for i in range(6)])
        )
    assert all(type(a.state.local) is Tensor for a in found)
    assert all(torch.equal(a.state.local, a.reply.model.cpu()) for a in found)


def test_uploads_that_do_not_fit_come_down() -> None:
    """A quarter of a stack's room is theirs: six vectors of 292 bytes do not fit into 1,751 bytes."""
    for left, downs in ((6 * 292 - 1, [6 * 73]), (6 * 292, [])):
        j, engine = job(FedAvg()), Staying()
        session = engine.start(j)
        session._left = left
        updates(j, session)
        assert engine.downs == downs


def test_stacks_leave_room_for_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 bytes a quarter is for uploads."""
    monkeypatch.setattr(Place, "room", lambda self: 1000)
    monkeypatch.setattr(module, "bytes_of", lambda *given, **more: 130)
    train, sizes = module.train, list[int]()

    def watched(asked: Any, *rest: Any, **more: Any) -> list[Tensor]:
        sizes.append(len(asked))
        return train(asked, *rest, **more)

    monkeypatch.setattr(module, "train", watched)
    for means_only, private, left, wanted in (
        (False, None, 0, [6]), (True, None, 250, [3, 3]), (True, Private(1.0), 0, []),
    ):  # fmt: skip
        sizes.clear()
        j = job(FedAvg(), means_only=means_only, private=private)
        session = Stacked("cpu").start(j)
        assert session._left == left
        updates(j, session)
        assert sizes == wanted


def test_a_vector_that_was_trained_alone_joins_the_others() -> None:
    """Where torch cannot stack a network, uploads are moved to the device one by one: they lie in one place."""
    j = job(FedAvg())
    session = Staying().start(j)
    moved: list[Tensor] = []

    def up(t: Tensor) -> Tensor:
        moved.append(t)
        return t

    session._place.up = up  # type: ignore[method-assign]
    session._unfit = lambda a: "for a test"  # type: ignore[method-assign]
    got = updates(j, session)
    assert {id(t) for t in moved} == {id(b.model) for b in got.values()}


# ---- what a method declares ---------------------------------------------------------------------------------------
def adds(self: Method, c: Client) -> Work:
    w = yield Train(c.received.model)
    return Bundle(model=w + 1)


def measures(self: Method, c: Client) -> Work:
    w = yield Train(c.received.model)
    c.state = Bundle(model=w) if w.shape[0] else Bundle()
    return Bundle(model=w)


def trains_on(self: Method, c: Client) -> Work:
    w = yield Train(c.received.model)
    w = yield Train(w)
    return Bundle(model=w)


def sends_more(self: Method, c: Client) -> Work:
    w = yield Train(c.received.model)
    return Bundle(model=w, counts=c.counts())


def keeps_more(self: Method, c: Client) -> Work:
    w = yield Train(c.received.model)
    c.state = Bundle(sent=c.received.model)
    return Bundle(model=w)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (adds, "torch.Tensor.add"),
        (measures, "torch.Tensor.shape"),
        (trains_on, "torch.Tensor.__len__"),
        (sends_more, "another tensor"),
        (keeps_more, "another tensor"),
    ],
)
def test_a_method_that_declares_more_than_it_keeps_is_refused(program: Callable[..., Work], why: str) -> None:
    """Before anything is trained, in words that name what it declares and what it does."""
    j = job(method(client_update=program, can=(RobustMeans(alone=True),)))
    with refuses(MethodError, "RobustMeans(alone=True)", "client_update", why):
        updates(j, Staying().start(j))


@pytest.mark.parametrize("name", AS_TRAINED)
def test_methods_keep_what_they_declare(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients pass vectors on; the server reads uploads by `r.mean` alone."""
    m, net = METHODS[name](), network("mlp")

    def unread(how: Aggregation, rows: Tensor, weights: Tensor) -> Tensor:
        assert isinstance(rows, SealedVector)
        return torch.zeros(net.size)

    monkeypatch.setattr("fedkin.core.robust.mean", unread)
    r = Round(1, 4, net, Roster(torch.tensor([3, 4])), torch.tensor([0, 1]))
    state = m.init(r)
    sent = m.distribute(state, r).row(0)
    assert require_as_trained(job(m), Task("update", 0, 1, sent, Bundle())) == 4 * net.size
    sealed = torch.empty(0).as_subclass(SealedVector)
    assert set(m.aggregate(state, r, Bundle(model=sealed))) == set(state)


@pytest.mark.parametrize(
    ("changes", "only"),
    [
        ({}, True),
        ({"attack": "sign-flip@fraction=0.3"}, False),
        ({"aggregation": Aggregation("median")}, False),
        ({"aggregation": Aggregation(secure=True)}, False),
    ],
)
def test_means_are_all_that_a_plain_run_needs(changes: dict[str, Any], only: bool) -> None:
    """Attacks, other rules and secure aggregation look at single uploads."""
    assert _means_only(Settings().but(**changes)) is only


# ---- the mean -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("held", [7, 1 << 24])
def test_rows_elsewhere_are_mixed_as_here(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of one column or all at once; the result is on the host."""
    monkeypatch.setattr("fedkin.core.rows._THERE", held)
    rows = torch.randn(7, 31, generator=generator(1, "rows"))
    weights = torch.rand(2, 7, generator=generator(1, "weights"), dtype=torch.float64)
    with Moves():
        found = mix(weights, there(rows))
    assert type(found) is Tensor
    torch.testing.assert_close(found, mix(weights, rows), rtol=1e-6, atol=1e-6)
    assert torch.equal(found, _mixed_there(weights, rows))
