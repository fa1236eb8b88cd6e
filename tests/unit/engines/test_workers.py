"""Processes: the same answers as the loop, clear errors, no hang and nothing left running."""

from __future__ import annotations

import multiprocessing.util
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import nn

import fedkin.engines.workers as module
from fedkin.capabilities import Asks
from fedkin.core import (
    Bundle,
    Client,
    ClientError,
    ConfigError,
    EngineError,
    Method,
    Net,
    Train,
    Training,
    Work,
    stack,
    to_all,
)
from fedkin.core.machine import cores
from fedkin.engines import Answer, Job, Loop, Task, Workers
from fedkin.engines.orders import TOKEN_BYTES
from fedkin.engines.workers import WorkersSession
from fedkin.testing.toys import federation, network
from refusals import refuses


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """No test here may hang."""

    def late(signum: int, frame: object) -> None:
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def method(update: Callable[[Client], Any] | None = None) -> Method:
    """A method whose clients send what they trained, after ``update`` was called with them."""

    def client_update(self: Method, c: Client) -> Work:
        if update is not None:
            update(c)
        w = yield Train(c.received.get("model", c.w0))
        c.state = Bundle(model=w, times=c.state.get("times", torch.zeros(())) + 1)
        return Bundle(model=w * 2)

    body = {
        "init": lambda self, r: Bundle(),
        "distribute": lambda self, s, r: to_all(),
        "client_update": client_update,
        "aggregate": lambda self, s, r, up: s,
    }
    made: Method = type("Made", (Method,), body)()
    return made


def asks(what: Callable[[Client], Bundle]) -> Method:
    """A method whose clients train nothing and send what is asked of them."""
    body = {name: lambda self, *given: Bundle() for name in ("init", "distribute", "aggregate")}
    made: Method = type("Asks", (Method,), {**body, "client_update": lambda self, c: what(c)})()
    return made


def job(m: Method, net: Net | None = None, shards: Any = None) -> Job:
    return Job(m, net or network("mlp"), Training(epochs=1, batch_size=4, lr=0.1), shards or federation(), seed=1)


def tasks(j: Job, round: int = 1) -> list[Task]:
    """A vector for every client and a state for every second one."""
    model = j.net.w0
    states = [Bundle(times=torch.tensor(3.0)) if i % 2 else Bundle() for i in range(len(j.shards))]
    return [Task("update", i, round, Bundle(model=model), s) for i, s in enumerate(states)]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be collected by its parent has."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool], seconds: float = 300) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def pids(session: WorkersSession) -> list[int]:
    return [w.process.pid or 0 for w in session._workers]


def by_client(answers: Any) -> dict[int, Answer]:
    return {a.client: a for a in answers}


def equal(a: dict[int, Answer], b: dict[int, Answer]) -> bool:
    return set(a) == set(b) and all(
        set(x) == set(y) and all(torch.equal(x[n], y[n]) for n in x)
        for i in a
        for x, y in ((a[i].reply, b[i].reply), (a[i].state, b[i].state))
    )


# ---- answers ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [1, 2, 3, 9])
def test_any_number_of_processes_answers_like_the_loop(number: int) -> None:
    """Same replies and states bit for bit, several times over; more processes than clients are not started."""
    j = job(method())
    with closing(Workers(number).start(j)) as session:
        assert len(pids(session)) == min(number, 6)
        for t in (1, 2, 3):
            expected = by_client(Loop().start(j).map(tasks(j, t)))
            assert equal(by_client(session.map(tasks(j, t))), expected)


@pytest.mark.parametrize("size", [4096, 1 << 21])
def test_what_is_larger_than_the_shared_memory_goes_through_the_pipe(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes each way through slabs of a page (nothing fits) and of 2 MiB (one of two fits): no deadlock."""
    monkeypatch.setattr(module, "slab_bytes", lambda workers: size)
    net = Net(lambda: nn.Sequential(nn.Linear(6, 40000), nn.Linear(40000, 3)), (6,), 3)  # 1.6 MB
    j = job(method(), net)
    with closing(Workers(2).start(j)) as session:
        first = by_client(session.map(tasks(j)))
        again = [Task("update", i, 2, Bundle(model=a.reply.model), a.state) for i, a in first.items()]
        second = by_client(session.map(again))
    expected = by_client(Loop().start(j).map(tasks(j)))
    assert equal(first, expected)
    assert equal(second, by_client(Loop().start(j).map(again)))


def test_uploads_lie_side_by_side() -> None:
    j = job(method())
    with closing(Workers(2).start(j)) as session:
        kept = [by_client(session.map(tasks(j, t))) for t in range(1, 6)]
    for t, answers in enumerate(kept, 1):
        assert equal(answers, by_client(Loop().start(j).map(tasks(j, t))))
        one = stack({i: a.reply for i, a in answers.items()})
        assert (one.model.data_ptr() == answers[0].reply.model.data_ptr()) == (t in (2, 3))  # two regions, both held
    first, second = kept[1][0].reply.model, kept[2][0].reply.model
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_answers_of_changing_form_find_their_way() -> None:
    """Another form than last time, and two in one map: copied, not squeezed into places of the former form."""

    def form(c: Client) -> Bundle:
        if c.round == 3 or (c.round == 5 and c.id % 2):
            return Bundle(wide=torch.full((9,), float(c.id)), model=torch.zeros(2))
        return Bundle(model=torch.full((4,), 10.0 * c.round + c.id))

    j = job(asks(form))
    with closing(Workers(2).start(j)) as session:
        for t in range(1, 9):
            asked = [Task("update", i, t, Bundle(), Bundle()) for i in range(6)]
            assert equal(by_client(session.map(asked)), by_client(Loop().start(j).map(asked)))


def test_more_tasks_than_the_queue_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest follows as answers come: neither does a write block, nor is one so long that it may come in parts."""
    j = job(asks(lambda c: Bundle(id=torch.tensor(c.id))), shards=federation() * 400)
    session = Workers(2).start(j)
    tokens, waiting, queue = written(monkeypatch), list[int](), session._queue

    def counted(some: list[bytes]) -> None:
        waiting.append(len(session._open))
        queue(some)

    session._queue = counted  # type: ignore[method-assign]
    try:
        found = sorted(a.client for a in session.map([Task("update", i, 1, Bundle(), Bundle()) for i in range(2400)]))
    finally:
        session.close()
    assert found == list(range(2400))
    assert max(waiting) * TOKEN_BYTES <= 16384
    assert max(map(len, tokens)) <= select.PIPE_BUF
    assert sum(map(len, tokens)) == 2400 * TOKEN_BYTES
    assert len(tokens) < 1200


def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the parent writes into the queue from now on."""
    found, write, parent = list[bytes](), os.write, os.getpid()

    def noting(place: int, content: bytes) -> int:
        if os.getpid() == parent:
            found.append(content)
        return write(place, content)

    monkeypatch.setattr(module.os, "write", noting)
    return found


@pytest.mark.parametrize("heading", [1 << 16, 4], ids=["heading", "too long for one"])
def test_tasks_of_one_map_may_differ_in_all(heading: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are sent what the first is, under the same names or others, in another order or with more."""
    monkeypatch.setattr(module, "_HEADING", heading)

    def asked(c: Client) -> Bundle:
        names = torch.tensor([float(sum(map(ord, name))) for name in c.received])  # in their order
        sums = torch.stack([t.sum() for t in c.received.values()] or [torch.zeros(())])
        c.state = Bundle(seen=names, former=c.state.get("former", torch.zeros(1)) + 1)
        return Bundle(names=names, sums=sums, round=torch.tensor(c.round))

    m = asks(asked)
    answer = lambda self, c: Bundle(survey=torch.tensor(c.id + 10 * c.round))  # noqa: E731
    type(m).can = (Asks("round", lambda self, s, r: None, answer, lambda self, s, r, up: s),)  # type: ignore[method-assign,assignment]
    j = job(m)
    a, b, alone = torch.ones(40), torch.arange(30.0), torch.full((5,), 7.0)
    sent = [Bundle(a=a, b=b), Bundle(b=b, a=a), Bundle(a=a, b=b, more=alone), Bundle(a=b, b=a), Bundle(a=a), Bundle()]
    with closing(Workers(2).start(j)) as session:
        for first in range(6):
            order = [*range(first, 6), *range(first)]
            tasks = [
                Task(
                    "survey" if i == 4 else "update",
                    i,
                    1 + i % 2,
                    sent[i],
                    Bundle(former=alone[:1]) if k % 2 else Bundle(),
                )
                for k, i in enumerate(order)
            ]
            assert equal(by_client(session.map(tasks)), by_client(Loop().start(j).map(tasks)))


def test_a_task_on_its_way_does_not_disturb_the_one_at_work() -> None:
    """A worker has its next task in memory while it reads the last one, and its next answer while that is fetched."""

    def slowly(c: Client) -> Bundle:
        time.sleep(0.02)
        return Bundle(model=c.received.model + c.state.model)

    j = job(asks(slowly))
    given = [
        Task("update", i, 1, Bundle(model=torch.full((50,), 1.0 * i)), Bundle(model=torch.ones(50))) for i in range(6)
    ]
    with closing(Workers(1).start(j)) as session:
        for answer in session.map(given):
            assert torch.equal(answer.reply.model, torch.full((50,), answer.client + 1.0))
            time.sleep(0.05)


def test_workers_compute_with_one_thread() -> None:
    """Whatever the parent uses; zero are as many as cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with closing(
        Workers(2).start(job(asks(lambda c: Bundle(threads=torch.tensor(torch.get_num_threads())))))
    ) as session:
        answers = list(session.map([Task("update", i, 1, Bundle(), Bundle()) for i in range(6)]))
        torch.set_num_threads(before)
    assert [int(a.reply.threads) for a in answers] == [1] * 6
    session = Workers().start(job(method()))
    assert len(pids(session)) == min(6, cores())
    session.close()
    with refuses(ConfigError, "workers", "-1"):
        Workers(-1)


# ---- errors -------------------------------------------------------------------------------------------------------
def test_an_exception_in_a_client_names_step_client_and_round() -> None:
    """The `ClientError` of a worker is the one that the loop raises."""

    def update(c: Client) -> None:
        if c.id == 4:
            raise ValueError("a: colon")

    j = job(method(update))
    with closing(Workers(2).start(j)) as session, pytest.raises(ClientError) as caught:
        list(session.map(tasks(j, 7)))
    line = update.__code__.co_firstlineno + 2
    assert f"ValueError: a: colon (test_workers.py, line {line})" in str(caught.value)
    assert (caught.value.step, caught.value.client, caught.value.round) == ("update", 4, 7)
    with refuses(ClientError, caught.value):
        list(Loop().start(j).map(tasks(j, 7)))


@pytest.mark.parametrize(("client", "code", "workers"), [(0, 3, 1), (2, 3, 1), (5, 3, 1), (2, -9, 2)])
def test_a_worker_that_dies_is_named_with_the_order_it_was_at(client: int, code: int, workers: int) -> None:
    """By itself or killed (out of memory: -9), also where one worker has the orders of all clients before it."""

    def update(c: Client) -> None:
        if c.id == client:
            os._exit(code) if code > 0 else os.kill(os.getpid(), signal.SIGKILL)

    j = job(method(update))
    with closing(Workers(workers).start(j)) as session:
        started, model = pids(session), j.net.w0
        with refuses(EngineError, f"code {code} during update of client {client} in round 4"):
            list(session.map([Task("update", i, 4, Bundle(model=model), Bundle()) for i in range(6)]))
    assert all(gone(pid) for pid in started)


def test_after_an_error_the_session_is_over() -> None:
    """Answers of unfinished tasks must not be taken for those of the next round; nor may a closed session be silent."""

    def update(c: Client) -> None:
        if c.id == 0:
            raise ValueError("no")

    j = job(method(update))
    session = Workers(1).start(j)
    with pytest.raises(ClientError):
        list(session.map(tasks(j)))
    with pytest.raises(EngineError):
        list(session.map(tasks(j, 2)))
    session.close()
    with pytest.raises(EngineError):
        list(session.map(tasks(j, 2)))


# ---- the end ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_while_a_worker_starts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches processes whose handlers are still the command's: these never run there."""
    here, handled = os.getpid(), os.pipe()
    os.set_blocking(handled[0], False)

    def starts() -> None:
        if os.getpid() != here:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(multiprocessing.util, "_close_stdin", starts)  # what a forked process does first
    before = signal.signal(number, lambda *_: os.write(handled[1], b"x"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    j = job(method())
    with closing(Workers(2).start(j)) as session:
        if number == signal.SIGINT:
            assert len(list(session.map(tasks(j)))) == 6
        else:
            with refuses(EngineError, "code -15"):
                list(session.map(tasks(j)))
        signal.signal(number, before)
    with pytest.raises(BlockingIOError):
        os.read(handled[0], 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_closing_in_the_middle_of_a_task_does_not_wait_for_it() -> None:
    """After an error the others are stopped at once, also if this program ignores or handles SIGTERM itself."""

    def update(c: Client) -> None:
        if c.id != 0:
            time.sleep(600)
        raise ValueError("no")

    j = job(method(update))
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        session = Workers(2).start(j)
    finally:
        signal.signal(signal.SIGTERM, before)
    started = pids(session)
    with pytest.raises(ClientError):
        list(session.map(tasks(j)))
    begun = time.monotonic()
    session.close()
    assert time.monotonic() - begun < 300
    assert not any(os.path.exists(f"/proc/{pid}") for pid in started)


def test_workers_end_with_their_parent() -> None:
    """A killed program leaves no processes behind, idle or at work: their pipes end."""
    program = """
        import torch
        from fedkin.core import Training
        from fedkin.engines import Job, Workers
        from fedkin.methods import FedAvg
        from fedkin.testing.toys import federation, network
        import time
        session = Workers(3).start(Job(FedAvg(), network("mlp"), Training(), federation(), 1))
        print(*[w.process.pid for w in session._workers], flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as p:
        children = [int(pid) for pid in p.stdout.readline().split()]
        assert len(children) == 3
        assert not any(gone(pid) for pid in children)
        p.kill()
        p.wait()
        ended = until(lambda: all(gone(pid) for pid in children))
        for pid in [] if ended else children:
            os.kill(pid, signal.SIGKILL)
        assert ended
