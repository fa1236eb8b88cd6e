"""Runs that train together: each gives what it gives alone, and their clients share stacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedkin.engines.stacked as module
from fedkin.core import Bundle, Client, ClientError, Method, MethodError, Net, Samples, Train, Training, Work, to_all
from fedkin.engines import Engine, Job, Loop, Session, Stacked
from fedkin.engines.stacked_data import DeviceData
from fedkin.engines.stacked_device import Place
from fedkin.engines.stacked_together import NotStackedError, Starter, Together, _alike, _JointStacks
from fedkin.engines.stacked_train import StackRequest, Steps
from fedkin.engines.turns import Draws
from fedkin.methods import FedAvg, get_method
from fedkin.privacy.dp_sgd import Private
from fedkin.server import Plan
from fedkin.testing.toys import CLASSES, federation, network
from fedkin.testing.trial import Setting, difference, play, tensors
from thorough import thorough_except
from toys import method

CPU = Stacked(device="cpu")
Results = dict[str, Tensor]


@dataclass(frozen=True)
class Started:
    """Engine of one of the runs; ``changes`` of its job."""

    starter: Starter
    engine: Engine = CPU
    changes: Any = None

    def start(self, job: Job) -> Session:
        return self.starter(self.engine, replace(job, **(self.changes or {})))


def setting(seed: int = 0, lr: float = 0.1, rounds: int = 3, **more: Any) -> Setting:
    training = Training(epochs=2, batch_size=4, lr=lr, momentum=0.5)
    return Setting(training=training, plan=Plan(rounds=rounds, participation=0.7, seed=seed), **more)


def run(m: Any, how: Setting, **started: Any) -> Callable[[Starter], Results]:
    return lambda start: tensors(play(m, how, Started(start, **started)))


def agree(runs: list[tuple[Any, Setting]], most: int = 9) -> None:
    """Asserts that runs together give what each gives alone."""
    got = Together(most).execute([run(m, how) for m, how in runs])
    assert len(got) == len(runs)
    for (m, how), found in zip(runs, got, strict=True):
        assert not isinstance(found, Exception), found
        assert difference(tensors(play(m, how, CPU)), found, CPU.tolerance / 10) is None


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every stack that is trained."""
    seen: list[int] = []
    train = module.train

    def watched(asked: Any, *rest: Any, **more: Any) -> list[Tensor]:
        seen.append(len(asked))
        return train(asked, *rest, **more)

    monkeypatch.setattr(module, "train", watched)
    return seen


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every step."""
    seen: list[int] = []
    step = Steps.__call__

    def watched(self: Steps, rows: Any, *rest: Any) -> None:
        seen.append(len(rows.w))
        step(self, rows, *rest)

    monkeypatch.setattr(Steps, "__call__", watched)
    return seen


@pytest.mark.parametrize("name", thorough_except(["fedavg", "ditto", "pfedcs", "feddyn", "da-pfl"], ["ditto"]))
def test_seeds_take_the_steps_of_one(name: str, steps: list[int]) -> None:
    """Three seeds with all clients in each round: each gives what it gives alone, in as many steps as one of them."""
    everyone = [replace(setting(seed), plan=Plan(rounds=2, seed=seed)) for seed in range(3)]
    alone = [tensors(play(get_method(name), how, CPU)) for how in everyone]
    each, rows = len(steps) // 3, sum(steps)
    steps.clear()
    got = Together(3).execute([run(get_method(name), how) for how in everyone])
    assert len(steps) == each
    assert sum(steps) == rows
    for found, wanted in zip(got, alone, strict=True):
        assert not isinstance(found, Exception)
        assert difference(wanted, found, CPU.tolerance / 10) is None


def test_methods_and_settings_share_stacks(stacks: list[int]) -> None:
    """Step sizes, strengths of proximal terms and cohorts differ, a run has no proximal term: one stack a round."""
    prox = get_method("fedprox")
    two = [(FedAvg(), setting(rounds=2)), (FedAvg(), setting(1, 0.05, 2))]
    agree([*two, (prox, setting(2, rounds=2)), (replace(prox, mu=0.7), setting(rounds=2))])
    together, alone = [n for n in stacks if n > 6], [n for n in stacks if n <= 6]
    assert len(together) == 2
    assert len(alone) == 2 * 4


def test_other_settings_have_stacks_of_their_own(stacks: list[int]) -> None:
    """Another size of batches, and another step size where a separate proximal step has it as well."""
    other = replace(setting(1, rounds=1), training=replace(setting().training, batch_size=3))
    agree([(FedAvg(), setting(rounds=1)), (FedAvg(), other)])
    pulled = averaging(lambda c: Train(c.w0 + 1, center=c.w0, mu=0.3, prox_after=True))
    agree([(pulled, setting(rounds=1)), (pulled, setting(0, 0.05, rounds=1))])
    assert max(stacks) <= 6


def averaging(request: Callable[[Client], Train]) -> Method:
    """A method whose clients train what they ask for, and whose server takes the mean."""

    def client_update(self: Method, c: Client) -> Work:
        w = yield request(c)
        return Bundle(model=w)

    return method(
        init=lambda self, r: Bundle(model=r.net.w0),
        distribute=lambda self, s, r: to_all(model=s.model),
        client_update=client_update,
        aggregate=lambda self, s, r, up: Bundle(model=r.mean(up.model)),
    )


def test_one_run_after_another_begins_where_one_has_ended(stacks: list[int]) -> None:
    """Runs of 1, 2 and 1 rounds, two at a time."""
    agree([(FedAvg(), setting(i, rounds=n)) for i, n in enumerate((1, 2, 1))], most=2)
    together = len([n for n in stacks if n > 6])
    assert together == 2


def fails(c: Client) -> Train:
    if c.round == 2 and c.id in (4, 5):
        raise MethodError("as planned")
    return Train(c.received.model)


def mislabelled() -> Setting:
    shards = list(federation())
    shards[4] = replace(shards[4], train=Samples(shards[4].train.x, shards[4].train.y + CLASSES))
    return setting(3, shards=tuple(shards))


def wrong_rows(c: Client) -> Train:
    """One row too few from the second round on."""
    rows = c.data.x[:, :CLASSES]
    return Train(c.received.model).add_logits(rows if c.round == 1 else rows[1:])


@pytest.mark.parametrize(
    ("bad", "how", "said"),
    [
        (averaging(lambda c: Train(c.received.model).add_logits(c.data.x[:, :CLASSES])), mislabelled(), "client 4"),
        (averaging(wrong_rows), setting(3), "in round 2: per_sample needs one row for each"),
    ],
    ids=["labels", "rows"],
)
def test_a_run_that_fails_ends_alone(bad: Method, how: Setting, said: str, stacks: list[int]) -> None:
    """In training that shares a stack, and by rows that do not fit the samples: its error names the client, and the
    others train together from then on, as if it had not been there."""
    good = averaging(lambda c: Train(c.received.model).add_logits(c.data.x[:, :CLASSES]))
    first, failed, last = Together(3).execute([run(good, setting()), run(bad, how), run(good, setting(1))])
    assert isinstance(failed, ClientError)
    assert said in str(failed)
    assert len([n for n in stacks if n > 6]) == 3
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert difference(tensors(play(good, setting(1), CPU)), last, CPU.tolerance / 10) is None


def test_after_an_error_no_further_run_begins() -> None:
    """Those under way go on to their end; their results are there."""
    begun: list[int] = []

    def one(i: int) -> Callable[[Starter], Results]:
        def made(start: Starter) -> Results:
            begun.append(i)
            return run(averaging(fails) if i == 0 else FedAvg(), setting(3, rounds=3))(start)

        return made

    found = Together(2).execute([one(i) for i in range(4)])
    assert begun == [0, 1]
    assert isinstance(found[0], ClientError)
    assert isinstance(found[1], dict)


def test_an_interrupt_stops_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while stacks are trained: every run ends where it waits, and closes what it has open."""
    closed: list[int] = []

    def waits(i: int) -> Callable[[Starter], Results]:
        def made(start: Starter) -> Results:
            try:
                return run(FedAvg(), setting(i))(start)
            finally:
                closed.append(i)

        return made

    monkeypatch.setattr(module, "train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Together(3).execute([waits(i) for i in range(3)])
    assert sorted(closed) == [0, 1, 2]


def test_runs_of_other_engines_are_left_out() -> None:
    """A loop, and a stacked engine with other settings than that of the first run: nothing is executed; others are."""
    others: list[Engine] = [CPU, Loop(), replace(CPU, clients=2), CPU]
    found = Together(2).execute([run(FedAvg(), setting(i), engine=engine) for i, engine in enumerate(others)])
    assert [isinstance(one, NotStackedError) for one in found] == [False, True, True, False]
    assert isinstance(found[3], dict)


def test_random_draws_are_those_of_the_run_alone(stacks: list[int]) -> None:
    """Dropout's masks depend on who shares a stack, so runs with dropout have stacks of their own."""
    agree([(FedAvg(), setting(i, rounds=2, kind="norm")) for i in range(2)])
    assert [n for n in stacks if n > 6] == stacks[:1]


@pytest.mark.thorough
def test_running_statistics_share_stacks(stacks: list[int]) -> None:
    """Batch normalisation without dropout: each row has its own."""
    agree([(FedAvg(), setting(i, kind="norm without dropout")) for i in range(2)])
    assert len([n for n in stacks if n > 6]) == 3


def test_private_training_is_counted_once() -> None:
    """It is not stacked: noise is drawn and steps are counted as in the run alone, also where another run fails."""

    def spent(start: Starter | None) -> Results:
        engine: Any = CPU if start is None else Started(start)
        made = play(FedAvg(), setting(rounds=1), Secret(engine))
        return {**tensors(made), "spent": torch.tensor([sum(s.values()) for s in made.simulation.spent.values()])}

    def failing(start: Starter) -> Results:
        return tensors(play(FedAvg(), mislabelled(), Secret(Started(start))))

    found, failed = Together(2).execute([spent, failing])
    assert isinstance(failed, ClientError)
    assert isinstance(found, dict)
    assert difference(spent(None), found) is None


@dataclass(frozen=True)
class Secret:
    """Engine of a private run."""

    engine: Any

    def start(self, job: Job) -> Session:
        session: Session = self.engine.start(replace(job, private=Private(1.0)))
        return session


def test_networks_of_one_kind_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other values are the same network; another layer, setting of a layer, input or fixed buffer is another one."""

    def net(*layers: nn.Module, seed: int = 0, inputs: int = 4) -> Net:
        return Net(lambda: nn.Sequential(*layers, nn.Linear(4, 3)), (inputs,), 3, seed=seed)

    class Fixed(nn.Linear):
        def __init__(self, number: Any) -> None:
            super().__init__(4, 4)
            self.number = number

    def drawn(seed: int) -> Net:
        return Net(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (4,), 3, seed=seed)

    one, other = drawn(0), drawn(1)
    assert not torch.equal(one.w0, other.w0)
    one.training()(one.w0, torch.randn(5, 4))  # counts batches
    assert _alike(one, other)
    assert _alike(net(Fixed(torch.ones(2))), net(Fixed(torch.ones(2)), seed=1))
    assert _alike(net(nn.Dropout(0.1)), net(nn.Dropout(0.1)))
    for a, b in (
        (net(nn.ReLU()), net(nn.Tanh())),
        (net(nn.Dropout(0.1)), net(nn.Dropout(0.2))),
        (net(nn.Linear(4, 4)), net(nn.Linear(4, 4, bias=False))),
        (net(Fixed(torch.ones(2))), net(Fixed(torch.zeros(2)))),
        (net(Fixed([torch.ones(2)])), net(Fixed([torch.ones(2)]))),
        (net(Fixed(lambda x: x)), net(Fixed(lambda x: x))),
        (one, net(nn.Linear(4, 4))),
    ):
        assert not _alike(a, b)


def test_networks_of_two_kinds_have_stacks_of_their_own(stacks: list[int]) -> None:
    """Two activations, the same parameters: runs do not share stacks."""

    @dataclass(frozen=True)
    class Activated(Setting):
        layer: Any = nn.ReLU

        def network(self) -> Net:
            return Net(lambda: nn.Sequential(nn.Linear(6, 5), self.layer(), nn.Linear(5, CLASSES)), (6,), CLASSES)

    how = vars(setting(rounds=1))
    agree([(FedAvg(), Activated(**how)), (FedAvg(), Activated(**how, layer=nn.Tanh))])
    assert max(stacks) <= 6


def test_recordings_are_of_one_network() -> None:
    """Steps on equal networks of two runs are those of one network, which are recorded once; of another one they have
    another key, also if the vectors are as long."""
    stacks, request = (
        _JointStacks(3),
        StackRequest(Train(network("mlp").w0), Samples(*[torch.zeros(0)] * 2), Training(), Draws(0, ())),
    )
    jobs = [Job(FedAvg(), net, Training(), federation(), seed=1) for net in (network("mlp"), network("mlp", 5))]
    sessions: list[Any] = [stacks.start(i, lambda question: None, CPU, j) for i, j in enumerate(jobs)]
    assert sessions[0]._net is sessions[1]._net
    assert sessions[1]._job.net is not sessions[1]._net
    place = sessions[0]._place
    keys = [Steps(request, net, place).key for net in (sessions[0]._net, sessions[1]._net, network("mlp"))]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


def test_equal_data_are_on_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one federation share its copies, which stay until all runs have ended; those of another one are apart."""
    monkeypatch.setattr(Place, "up", lambda self, t: t.clone())
    kept: list[tuple[str, Any]] = []
    forget = DeviceData.forget

    def noting(self: DeviceData) -> None:
        kept.extend(self._kept)
        assert not self._named
        forget(self)

    monkeypatch.setattr(DeviceData, "forget", noting)
    runs = [run(FedAvg(), setting(i, rounds=1 + i), changes={"data": name}) for i, name in enumerate("aab")]
    Together(3).execute(runs)
    trained = [(mark, client) for mark, (client, part, _) in kept if part == "train"]
    assert len(trained) == len(set(trained))
    assert {mark for mark, _ in trained} == {"a", "b"}


def test_uploads_stay_where_their_run_needs_no_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stack of two runs, rows of the one whose server takes means stay on the device, the others come down. Both
    runs' uploads have room: an eighth of that of a stack each."""
    moved: list[int] = []

    def down(self: Place, t: Tensor) -> Tensor:
        if t.dim() == 2 and t.is_floating_point():
            moved.append(len(t))
        return t.clone()

    monkeypatch.setattr(Place, "down", down)
    monkeypatch.setattr(Place, "room", lambda self: 1 << 20)
    runs = [run(FedAvg(), setting(i, rounds=2), changes={"means_only": i == 0}) for i in range(2)]
    found = Together(2).execute(runs)
    assert len(moved) == 2
    assert max(moved) <= 6
    for i, got in enumerate(found):
        assert not isinstance(got, Exception), got
        assert difference(tensors(play(FedAvg(), setting(i, rounds=2), CPU)), got, CPU.tolerance / 10) is None


def test_settings_of_torch_are_put_back_where_a_run_goes_on() -> None:
    """Threads, generators and the precision of products, which other runs change meanwhile."""
    place, before = Place("cpu", 0.0, False), torch.get_num_threads()
    switch = torch.backends.cudnn
    with place.at_work():
        torch.set_num_threads(1)
        wanted = torch.get_rng_state(), switch.allow_tf32
        restore = place.settings()
        torch.set_num_threads(2)
        torch.rand(3)
        switch.allow_tf32 = not wanted[1]
        restore()
        assert torch.get_num_threads() == 1
        assert torch.equal(torch.get_rng_state(), wanted[0])
        assert switch.allow_tf32 == wanted[1]
    torch.set_num_threads(before)


def test_a_run_goes_on_with_its_own_settings_of_torch() -> None:
    """Clients' programs of three runs set the precision of products differently: each finds its own after training."""
    found: list[bool] = []

    def rounding(tf32: bool) -> Method:
        def client_update(self: Method, c: Client) -> Work:
            torch.backends.cudnn.allow_tf32 = tf32
            w = yield Train(c.w0)
            found.append(torch.backends.cudnn.allow_tf32 == tf32)
            return Bundle(model=w)

        return method(client_update=client_update)

    before = torch.backends.cudnn.allow_tf32
    try:
        Together(3).execute([run(rounding(tf32), setting(rounds=1)) for tf32 in (True, False, True)])
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert set(found) == {True}


def test_runs_share_the_room_for_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a stack's room, an equal part for each run that may be there; stacks leave that of all open runs."""
    monkeypatch.setattr(Place, "room", lambda self: 800)
    stacks = _JointStacks(2)
    j = Job(FedAvg(), network("mlp"), Training(), federation(), seed=1, means_only=True)
    sessions: list[Any] = [stacks.start(i, lambda question: None, CPU, j) for i in range(2)]
    assert [session._left for session in sessions] == [100, 100]
    assert [session._for_uploads() for session in sessions] == [200, 200]
    sessions[0].close()
    assert sessions[1]._for_uploads() == 100


def test_runs_share_the_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight runs have an eighth of the programs each, where memory limits them."""
    monkeypatch.setattr(module, "memory", lambda: 64 << 30)
    assert module._at_once(11_000_000) == 48
    assert module._at_once(11_000_000, 8) == 6
    assert module._at_once(1000, 8) == module._PROGRAMS
