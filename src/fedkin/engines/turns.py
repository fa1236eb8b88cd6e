"""One client's step on any engine: its program, its random draws, and errors that name the client."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedkin.capabilities.asks import asks
from fedkin.capabilities.needs import needs_of
from fedkin.core import (
    Bundle,
    Client,
    ClientError,
    ConfigError,
    FedkinError,
    MethodError,
    ModelError,
    Net,
    Samples,
    Train,
    Work,
)
from fedkin.core.errors import user_line
from fedkin.core.seeds import generator, key
from fedkin.core.sides import chunked
from fedkin.engines.drive import check_tensors, drive
from fedkin.engines.passes import RememberingClient, evaluating
from fedkin.engines.scoring import Expected, evaluate, keep, logits_of, predicted
from fedkin.engines.tasks import Answer, Job, Step, Task, Trainer
from fedkin.privacy.dp_sgd import PrivateSteps
from fedkin.privacy.noise import Hidden

Begin: TypeAlias = "Callable[[Job, Task, Net], Turn]"
"""Makes a client's step; the network is the job's, as it is evaluated."""


def perform(job: Job, task: Task, train: Trainer, begin: Begin | None = None) -> Answer:
    """Return the answer of one client's step.

    Args:
        begin: makes the step; None: as a `Turn`.

    Raises:
        ClientError: client code failed; it names step, client and round.
    """
    turn = (begin or Turn)(job, task, evaluating(job))
    before = torch.random.get_rng_state()
    try:
        with named(task):
            reply = drive(turn.program(), lambda request: turn.train(request, turn.draws(request), train))
    finally:
        torch.random.set_rng_state(before)
    return turn.answer(reply)


@contextmanager
def named(task: Task) -> Iterator[None]:
    """Add step, client, round and the line of a user's file to errors of client code inside this context.

    Raises:
        ClientError: instead of any other error than those that fedkin raises on purpose.
        ModelError: the network failed.
    """
    try:
        yield
    except ClientError:
        raise
    except MethodError as e:
        raise ClientError(task.step, task.client, task.round, f"{e}{user_line(e)}") from e
    except ModelError as e:  # a network that cannot be used, which only a client's data show
        raise ModelError(f"{task.step} of client {task.client} failed in round {task.round}: {e}") from e
    except FedkinError:  # a setting
        raise
    except Exception as e:
        raise ClientError(task.step, task.client, task.round, f"{type(e).__name__}: {e}{user_line(e)}") from e


@dataclass(frozen=True)
class Draws:
    """Random draws of one request: the same numbers on every use.

    Attributes:
        noise: seed of the draws inside a network (dropout).
        private: the steps of private training.
    """

    seed: int
    stream: tuple[int | str, ...]
    private: PrivateSteps | None = None

    @property
    def noise(self) -> int:
        """Seed of the draws inside a network (dropout)."""
        return key(self.seed, "noise", *self.stream)

    def rng(self) -> torch.Generator:
        """Return a new generator for the order of the samples."""
        return generator(self.seed, "batches", *self.stream)


class Turn:
    """One client's step under way: the client, its program, and its requests in the order of their numbers.

    Args:
        net: the job's network, as it is evaluated here; by default as it is.

    Attributes:
        client: what client code sees.
        expected: is given the calls of `guesses` that evaluation will make; None: nothing is.
        seconds: spent in local training so far.
        spent: private training: steps taken at each sampling rate.
    """

    expected: Expected | None = None

    def __init__(self, job: Job, task: Task, net: Net | None = None) -> None:
        self.job, self.task, self._net = job, task, net or job.net
        shard = job.shards[task.client]
        self.shard, self.changes = shard.at(task.round), shard.changes(task.round)
        held = self.shard.validation
        if not needs_of(job.method).validation:
            held = held.every(1, first=len(held))  # none of it
        self.client = self.seat(
            id=task.client,
            data=Samples(job.net.layout(self.shard.train.x), self.shard.train.y),
            validation=Samples(job.net.layout(held.x), held.y),
            net=self._net,
            training=job.training.in_round(task.round, job.rounds),
            received=_aligned(task.received),
            state=_aligned(task.state),
            seed=job.seed,
            round=task.round,
            group=int(getattr(self.shard, "group", -1)),
            choice_noise=None if job.choice_noise is None else partial(job.choice_noise, task.client),
        )
        self.seconds, self.spent = 0.0, dict[float, int]()
        self._count = 0

    def seat(self, **known: Any) -> Client:
        """Return the client; an engine may give one that computes elsewhere."""
        return Client(**known) if self._net is self.job.net else RememberingClient(**known)

    def logits(self, b: Bundle, data: Samples) -> Tensor:
        """Return the logits by which the method predicts ``[n, C]``, n > 0, on the host."""
        net, method = self._net, self.job.method
        return chunked(lambda x: logits_of(method, net, b, x), net.layout(data.x))

    def guesses(self, b: Bundle, data: Samples) -> Tensor:
        """Return the class that the method predicts for each sample, as `predicted` gives it, ``[n]``, n > 0."""
        return predicted(self.logits(b, data))

    def program(self) -> Work:
        """Run the step, with requests for training as client code makes them; return what leaves the client.

        Raises:
            MethodError: client code returned or kept something else than it may.
        """
        result = _STEPS[self.task.step](self)
        reply = (yield from result) if isinstance(result, Generator) else result
        check_tensors(reply, "client code must return")
        check_tensors(self.client.state, "c.state must be")
        return reply

    def draws(self, request: Train) -> Draws:
        """Return the draws of the next request, or those of an earlier one if it asks for the same batches.

        So a request's batches depend on nothing before it.

        Raises:
            MethodError: a tensor of ``per_sample`` has another number of rows than there are training samples.
        """
        for name, rows in request.per_sample.items():
            if len(rows) != len(self.client.data):
                raise MethodError(
                    f"per_sample needs one row for each of the {len(self.client.data)} training samples; "
                    f"{name!r} has {len(rows)}"
                )
        number = self._count if request.batches is None else request.batches
        # names of streams: what is kept is what was evaluated, and both questions draw from one
        step = {"keep": "evaluate", "consult": "survey"}.get(self.task.step, self.task.step)
        stream = (step, self.task.round, self.task.client, number)
        private = None
        if self.job.private is not None:  # by its count, never the number: no noise may be used twice
            private = self.job.private.steps(self.job.seed, *stream[:-1], self._count)
        self._count += 1
        return Draws(self.job.seed, stream, private)

    def train(self, request: Train, draws: Draws, train: Trainer) -> Tensor:
        """Return the trained vector ``[P]``; torch's global generator is changed."""
        # dropout draws from the global generator; torch.manual_seed would format a stack trace per absent kind of GPU
        torch.default_generator.manual_seed(draws.noise)
        started = time.perf_counter()
        c, private = self.client, draws.private
        if private is None:
            w = train(request, c.data, c.net, c.training, draws.rng())
        else:
            w = train(request, c.data, c.net, c.training, draws.rng(), private)
            self.spent[private.rate] = self.spent.get(private.rate, 0) + private.taken
        self.seconds += time.perf_counter() - started
        return w

    def answer(self, reply: Bundle) -> Answer:
        """Return the answer with what leaves the client, its new state, and the seconds and steps of training."""
        return Answer(self.task.client, reply, self.client.state, self.seconds, self.spent)


def _aligned(bundle: Bundle) -> Bundle:
    """Return the tensors, copied if their memory does not start on a boundary of 64 bytes, as a row of a matrix may.

    The last bit of a matrix product depends on it, so without this a client would compute something else on a row in
    place than another engine does on a copy.
    """
    return Bundle({name: t if t.data_ptr() % 64 == 0 else t.clone() for name, t in bundle.items()})


def _describe(turn: Turn) -> Bundle:
    job, client = turn.job, turn.client
    size = torch.tensor(len(turn.shard.train))
    if job.count_noise is not None:
        hidden = Hidden(job.count_noise(client.id, client.counts()))
        client = replace(client, data=hidden, validation=hidden, group=-1)
    return Bundle(size=size, **check_tensors(job.method.describe(client), "describe must return"))


def _survey(turn: Turn) -> Work | Bundle:
    question = asks(turn.job.method, "round" if turn.task.step == "survey" else "evaluation")
    if question is None:
        raise ConfigError(f"{turn.job.method.title} has no question of the kind {turn.task.step!r}")
    return question.answer(turn.job.method, turn.client)


_STEPS: dict[Step, Callable[[Turn], Work | Bundle]] = {
    "describe": _describe,
    "survey": _survey,
    "consult": _survey,
    "update": lambda turn: turn.job.method.client_update(turn.client),
    "evaluate": lambda turn: evaluate(
        turn.job, turn.task, turn.shard, turn.client, turn.logits, turn.guesses, turn.expected
    ),
    "keep": lambda turn: keep(turn.job, turn.client),
}
