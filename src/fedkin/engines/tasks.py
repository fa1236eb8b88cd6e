"""What an engine is asked to do for one client, and what comes back: the seam under which engines are exchanged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedkin.core import Bundle, Client, ClientError, Data, FedkinError, Method, MethodError, Net, Recipe, Train
from fedkin.core.samples import Shard
from fedkin.core.seeds import generator, key
from fedkin.core.sides import chunked
from fedkin.engines.drive import check_tensors, drive
from fedkin.engines.noise import Hidden
from fedkin.engines.private import Private, PrivateSteps
from fedkin.engines.steps import Gradient

Step = Literal["describe", "survey", "update", "evaluate", "keep"]
Told = Callable[[int, Tensor], Tensor]
"""``(client, its class counts) -> those it tells``. The same ones whenever it is asked: a second draw of noise would
undo a part of what the first one hides."""


class Trainer(Protocol):
    """Local training; ``private``, if given, draws the batches and takes the gradients."""

    def __call__(
        self,
        request: Train,
        data: Data,
        net: Net,
        run: Recipe,
        rng: torch.Generator,
        private: PrivateSteps | None = ...,
        /,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Job:
    """All that stays the same during a run: what an engine's processes are made with.

    Attributes:
        told: noise on the class counts that clients know of themselves when they join; then they know no more.
        private: local training hides single samples.
        gradient: how gradients are found, see `fedkin.engines.steps`.
    """

    method: Method
    net: Net
    recipe: Recipe
    shards: Sequence[Shard]
    seed: int
    told: Told | None = None
    private: Private | None = None
    gradient: Gradient = "auto"


@dataclass(frozen=True)
class Task:
    """One step of one client: what it was sent and the state it keeps."""

    step: Step
    client: int
    round: int
    received: Bundle
    state: Bundle


@dataclass(frozen=True)
class Answer:
    """What a client's step gave: what leaves it, its proposed new state, and the seconds spent in local training.

    Attributes:
        spent: private training: steps taken at each sampling rate.
    """

    client: int
    reply: Bundle
    state: Bundle
    training_s: float = 0.0
    spent: dict[float, int] = field(default_factory=dict)


class Session(Protocol):
    """An engine at work on one job."""

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Carries out the tasks, in any order. The tensors of an answer own their memory, detached from all else."""

    def close(self) -> None:
        """Ends processes and frees memory; may be called twice."""


class Engine(Protocol):
    """How local training is carried out: how many clients at once, in which process, on which device."""

    def start(self, job: Job) -> Session:
        """Makes everything ready for a job."""


def perform(job: Job, task: Task, train: Trainer) -> Answer:
    """One client's step, whatever the engine.

    Raises:
        ClientError: client code failed; it names step, client and round.
    """
    shard = job.shards[task.client]
    recipe = _recipe_of(job.recipe, task.round)
    client = Client(
        id=task.client,
        data=Data(job.net.layout(shard.train.x), shard.train.y),
        validation=Data(job.net.layout(shard.validation.x), shard.validation.y),
        net=job.net,
        recipe=recipe,
        received=_aligned(task.received),
        state=_aligned(task.state),
        seed=job.seed,
        round=task.round,
        group=int(getattr(shard, "group", -1)),
    )
    trainer = _Counted(job, task, client, train)
    before = torch.random.get_rng_state()
    try:
        reply = _STEPS[task.step](job, client, shard, trainer)
        check_tensors(reply, "client code must return")
        check_tensors(client.state, "c.state must be")
    except MethodError as e:
        raise ClientError(task.step, task.client, task.round, str(e)) from e
    except FedkinError:  # a setting or a network that cannot be used, which only a client's data show
        raise
    except Exception as e:
        raise ClientError(task.step, task.client, task.round, f"{type(e).__name__}: {e}") from e
    finally:
        torch.random.set_rng_state(before)
    return Answer(task.client, reply, client.state, trainer.seconds, trainer.spent)


def _aligned(bundle: Bundle) -> Bundle:
    """The tensors, copied where their memory does not start on a boundary of 64 bytes, as a row of a matrix may.

    The last bit of a matrix product depends on it, so without this a client would compute something else on a row in
    place than another engine does on a copy.
    """
    return Bundle({name: t if t.data_ptr() % 64 == 0 else t.clone() for name, t in bundle.items()})


class _Counted:
    """Trains with a generator of its own per request, or that of another if it asks for the same batches, so that a
    request's batches depend on nothing before it."""

    def __init__(self, job: Job, task: Task, client: Client, train: Trainer) -> None:
        self.job, self.task, self.client, self.train = job, task, client, train
        self.count, self.seconds, self.spent = 0, 0.0, dict[float, int]()

    def __call__(self, request: Train) -> Tensor:
        number = self.count if request.batches is None else request.batches
        step = "evaluate" if self.task.step == "keep" else self.task.step  # what is kept is what was evaluated
        stream = (step, self.task.round, self.task.client, number)
        private = None
        if self.job.private is not None:  # by its count, never the number: no noise may be used twice
            private = self.job.private.steps(self.job.seed, *stream[:-1], self.count)
        self.count += 1
        # dropout draws from the global generator; torch.manual_seed would format a stack trace per absent kind of GPU
        torch.default_generator.manual_seed(key(self.job.seed, "noise", *stream))
        started = time.perf_counter()
        c = self.client
        rng = generator(self.job.seed, "batches", *stream)
        if private is None:
            w = self.train(request, c.data, c.net, c.recipe, rng)
        else:
            w = self.train(request, c.data, c.net, c.recipe, rng, private)
            self.spent[private.rate] = self.spent.get(private.rate, 0) + private.taken
        self.seconds += time.perf_counter() - started
        return w


def _recipe_of(recipe: Recipe, round: int) -> Recipe:
    if recipe.lr_decay == 1.0:
        return recipe
    return Recipe(**{**recipe.__dict__, "lr": recipe.lr * recipe.lr_decay ** max(0, round - 1)})


def _describe(job: Job, client: Client, shard: Shard, train: _Counted) -> Bundle:
    size = torch.tensor(len(shard.train))
    if job.told is not None:
        told, hidden = job.told(client.id, client.counts()), Hidden()
        client = replace(client, data=hidden, validation=hidden, group=-1, told=told)
    return Bundle(size=size, **job.method.describe(client))


def _survey(job: Job, client: Client, shard: Shard, train: _Counted) -> Bundle:
    return job.method.answer(client)


def _update(job: Job, client: Client, shard: Shard, train: _Counted) -> Bundle:
    return drive(job.method.client_update(client), train)


def _evaluate(job: Job, client: Client, shard: Shard, train: _Counted) -> Bundle:
    """Confusion matrices, int64 ``[C, C]``: rows are true classes, columns predicted ones; and the class counts.

    A ``cluster`` among what `personalize` gave (a client that chose its cluster itself) is passed on.
    """
    models = {"": drive(job.method.personalize(client), train)}
    models |= {f"{name}.": b for name, b in job.method.views(client).items()}
    out = Bundle(counts=client.counts())
    if "cluster" in models[""]:
        out["cluster"] = models[""].cluster
    for name, b in models.items():
        for part, data in (("test", shard.test), ("validation", shard.validation)):
            out[name + part] = _confusion(job, b, data)
    return out


def _keep(job: Job, client: Client, shard: Shard, train: _Counted) -> Bundle:
    """What the client predicts with, for itself to keep."""
    return drive(job.method.personalize(client), train)


def _confusion(job: Job, b: Bundle, data: Data) -> Tensor:
    c = job.net.classes
    if len(data) == 0:
        return torch.zeros(c, c, dtype=torch.int64)
    guessed = chunked(lambda x: job.method.predict(job.net, b, x), job.net.layout(data.x)).argmax(1)
    return torch.bincount(data.y * c + guessed, minlength=c * c).view(c, c)


_STEPS: dict[Step, Callable[[Job, Client, Shard, _Counted], Bundle]] = {
    "describe": _describe,
    "survey": _survey,
    "update": _update,
    "evaluate": _evaluate,
    "keep": _keep,
}
