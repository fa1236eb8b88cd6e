"""Many clients trained at once, their parameters the rows of one matrix ``[clients, P]``: the engine for GPUs.

The programs of many clients are advanced together. Requests of one kind (equal loss, shapes and settings) form a stack,
and one step of all of them is one call of ``vmap(grad(loss))``: as many kernels as one client's step needs, each with
the work of all. On a CPU this is slower than `Workers`, which it is tested on.

The results are the loop's to float tolerance: batches and their order are the same, sums are taken in another order.
With dropout they are other draws than the loop's, and depend on which clients share a stack.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedkin.capabilities import RobustMeans, has
from fedkin.core import Bundle, ConfigError, EngineError, Samples, Train
from fedkin.core.machine import memory
from fedkin.core.sides import chunked
from fedkin.engines.drive import lockstep
from fedkin.engines.loop import trainer
from fedkin.engines.scoring import logits_of, predicted
from fedkin.engines.stacked_choice import ConvolutionChoice
from fedkin.engines.stacked_conv import AsProducts
from fedkin.engines.stacked_device import Place, failed, full
from fedkin.engines.stacked_eval import CommonScores, DeviceCopies, JointPasses
from fedkin.engines.stacked_graph import Graphs
from fedkin.engines.stacked_train import Kind, SegmentRunner, StackRequest, bytes_of, eagerly, train
from fedkin.engines.stacked_turns import DeviceTurn, naming, require_as_trained
from fedkin.engines.tasks import Answer, Job, Task
from fedkin.engines.turns import Turn, named

_log = logging.getLogger("fedkin.engines")
_PROGRAMS = 256  # client programs under way at a time, if their vectors fit
_VECTORS = 8  # that a program holds on the host: what it was sent, its state, what it trains and answers
_HOST = 4  # part of the host's memory that they may take all together
_LEAST = 4 << 30  # bytes of it that they may in any case
_UPLOADS = 4  # part of the room for a stack that uploads may take on the device until their mean is taken


@dataclass(frozen=True)
class Stacked:
    """Engine that trains clients in stacks, on a GPU if there is one.

    A request that cannot be stacked is trained by itself as in the loop, and the session notes why, once, in its
    ``notes`` and in the log: layers and losses that ``torch.func.vmap`` refuses (LSTM, decisions by value), several
    networks with running statistics (batch normalisation) in one vector, and private training.

    On a GPU sums of gradients may be taken in another order each time, so that two equal runs can differ in the last
    bits; convolutions there differ from a CPU's by about 1e-4, relative to their size.

    Raises:
        ConfigError: a setting is out of range.
        EngineError: the device does not exist, one client does not fit into its memory, or the device failed.
    """

    device: str = "auto"
    """"auto": a GPU if there is one; or "cpu", "cuda", "cuda:1"."""
    clients: int = 0
    """Maximum number of requests in a stack; 0: all that fit."""
    memory: float = 0.0
    """GiB on the device that a stack may take; 0: most of what is free."""
    tf32: bool = False
    """A GPU may round the factors of products to 10 bits: faster, and further from the loop's results."""
    graphs: bool = True
    """On a GPU, steps of one shape are recorded and replayed (CUDA graphs)."""
    products: bool | None = None
    """Convolutions as products of matrices instead of grouped convolutions; None: on a GPU each layer in the way that
    is faster there, which is timed once, on a CPU none, as products are slower there."""

    tolerance: ClassVar[float] = 1e-5
    """Maximum difference of a number from the loop's, relative to its size if above 1, over the rounds of the tests.

    With batch normalisation of few samples, which magnifies all differences, a hundred times as much."""

    def __post_init__(self) -> None:
        if self.clients < 0:
            raise ConfigError(f"clients must be 0 (as many as fit) or more, got {self.clients}")
        if not 0 <= self.memory < float("inf"):
            raise ConfigError(f"memory must be GiB, such as 4.0, or 0 (what is free), got {self.memory}")

    def start(self, job: Job) -> StackedSession:
        """Return a session on a job."""
        return StackedSession(job, self)


class StackedSession:
    """Stacks at work on one job.

    Attributes:
        notes: what was not stacked, and why; each sentence once.
        convolutions: the ways of computing them, with the times by which they were chosen.
    """

    def __init__(self, job: Job, engine: Stacked) -> None:
        self._job, self._engine = job, engine
        self.notes: list[str] = []
        self._place = Place(engine.device, engine.memory, engine.tf32)
        self._run: SegmentRunner = Graphs(self._place, self.say) if engine.graphs and self._place.cuda else eagerly
        self.convolutions = ConvolutionChoice(self._place, engine.products, self.say)
        self._refused: set[Kind] = set()  # kinds without their step sizes
        self._most: dict[Kind, int] = {}
        self._copies = DeviceCopies(self._place)
        self._trained: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # results of stacks
        self._joint = JointPasses(self._place, self._classes)
        self._scores = CommonScores(job, self._place, self._classes)
        self._left = self._room_for_uploads()  # bytes of them that may stay on the device
        self._stay, self._upload = False, 0  # whether those of this map do; bytes of one, once the program was checked
        self._here = False

    def map(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Yield answers as stacks are done.

        Clients with many samples come first, so that clients of a stack take similar times.
        """
        todo = sorted(tasks, key=lambda t: -len(self._job.shards[t.client].train))
        at_once, self._stay = _at_once(self._job.net.size), self._may_stay(todo)
        try:
            for i in range(0, len(todo), at_once):
                yield from self._together(todo[i : i + at_once])
        finally:
            self._copies.forget(but=1)  # the model of a part of the clients may be that of the next part

    def close(self) -> None:
        """Free recordings and the device's memory."""
        if isinstance(self._run, Graphs):
            self._run.forget()
        self._copies.forget()
        self._place.forget()

    def say(self, note: str) -> None:
        """Note a sentence, if it is new."""
        if note not in self.notes:
            self.notes.append(note)
            _log.warning("stacked engine: %s", note)

    # ---- forward passes ---------------------------------------------------------------------------------------------
    def outputs(self, f: Callable[[Bundle, Tensor], Tensor], given: Bundle, data: Samples) -> Tensor:
        """Return ``f(given, inputs)`` of all samples without gradient, computed on the device; on the host.

        Raises:
            EngineError: the device failed.
        """
        if not self._here:
            try:
                return self._place.down(self._there(f, given, self._place.data.of(data).x))
            except RuntimeError as e:
                self._stop_if_failed(e)
                if not self._place.cuda:
                    raise
                self._here = not isinstance(e, torch.OutOfMemoryError)  # that may pass
                self.say(f"the network is evaluated on the host, as it fails on {self._place.device}: {_why(e)}")
        return chunked(lambda x: f(given, x), self._job.net.layout(data.x))

    def guesses(self, b: Bundle, data: Samples) -> Tensor:
        """Return the class that the method predicts for each sample, on the host; n > 0."""
        classes = self._joint.take(b, data)
        return self.outputs(self._predicted, b, data) if classes is None else classes

    def expect(self, asked: Sequence[tuple[Bundle, Samples]]) -> None:
        """Note calls of `guesses` that will follow."""
        self._joint.expect(asked)

    def _predicted(self, b: Bundle, x: Tensor) -> Tensor:
        return predicted(logits_of(self._job.method, self._job.net, b, x))

    def _classes(self, b: Bundle, x: Tensor) -> Tensor:
        return self._there(self._predicted, b, x)

    def _there(self, f: Callable[[Bundle, Tensor], Tensor], given: Bundle, x: Tensor) -> Tensor:
        # stacks need torch's usual order of inputs; single models are fastest in the network's, as on the host
        there = self._copies.bundle(given)
        layout = self._job.net.layout
        return self._place.outputs(lambda part: f(there, layout(part)), x)

    def _foresee(self) -> None:
        """Make the predictions that all clients that have come so far are about to ask for."""
        try:
            if not self._here:
                self._joint.compute()
        except Exception as e:  # of whichever client: each will meet it when it asks, with its number
            self._stop_if_failed(e)
            self._joint.forget()

    def _stop_if_failed(self, e: Exception) -> None:
        if self._place.cuda and failed(e):
            raise EngineError(f"{self._place.device} failed: {_why(e)}") from e

    def _common(self, tasks: Sequence[Task]) -> list[Answer] | None:
        """Return the evaluations of clients that share a model; None where each has to be asked."""
        try:
            with self._place.at_work():
                return None if self._here else self._scores.answers(tasks)
        except Exception as e:  # of whichever client: each will meet it when it is asked, with its number
            self._stop_if_failed(e)
            return None
        finally:
            self._job.net.release()
            self._place.data.unname()

    def _together(self, tasks: Sequence[Task]) -> list[Answer]:
        """Carry out the steps of some clients, their programs advanced together."""
        if tasks[0].step == "evaluate" and (answers := self._common(tasks)) is not None:
            return answers
        turns = [DeviceTurn(self._job, task, self) for task in tasks]
        for turn in turns:
            for part, data in turn.parts():
                self._place.data.name(data, (turn.task.client, part, turn.changes))
        try:
            with self._place.at_work():
                replies = lockstep([naming(turn) for turn in turns], lambda asked: self._train(turns, asked))
        finally:
            self._place.data.unname()
        self._job.net.release()
        self._joint.forget()
        return [self._answer(turn, reply) for turn, reply in zip(turns, replies, strict=True)]

    # ---- uploads ----------------------------------------------------------------------------------------------------
    def _room_for_uploads(self) -> int:
        """Return the bytes of uploads that may stay on the device; 0 where the host has to see single ones."""
        job = self._job
        fits = (
            job.means_only
            and (means := has(job.method, RobustMeans)) is not None
            and means.alone
            and job.private is None
        )
        return self._place.room() // _UPLOADS if fits else 0

    def _may_stay(self, tasks: Sequence[Task]) -> bool:
        """Return whether the uploads of these tasks stay on the device, where their mean is taken."""
        if not self._left or not tasks or any(task.step != "update" for task in tasks):
            return False
        if not self._upload:
            self._upload = require_as_trained(self._job, tasks[0])
        return len(tasks) * self._upload <= self._left

    def _answer(self, turn: Turn, reply: Bundle) -> Answer:
        """Return an answer whose tensors are not written to elsewhere.

        A trained vector stays the row of its stack that it is, so that the server finds those of all clients side by
        side. A state is copied: it is kept for long, and one row would keep the whole stack.
        """
        state, sent = turn.client.state.owned(), Bundle()
        turn.client.state = Bundle({name: t.cpu() for name, t in state.items()})
        for name, t in reply.items():
            stack = t._base
            whole = stack is not None and stack in self._trained and t.shape == stack.shape[1:]
            alone = all(t.data_ptr() != other.data_ptr() for other in sent.values())
            if whole and alone:
                sent[name] = t
            else:
                own = Bundle({name: t}).owned()[name]
                sent[name] = self._place.up(own) if self._stay else own  # with those of the others
        return turn.answer(sent)

    # ---- training -----------------------------------------------------------------------------------------------
    def _train(self, turns: Sequence[Turn], asked: Sequence[tuple[int, Train]]) -> list[Tensor]:
        """Return the results of all these requests, in their order; requests of one kind share stacks."""
        self._foresee()
        todo: list[_One] = []
        kinds: dict[Kind, list[int]] = {}
        for i, request in asked:
            c = turns[i].client
            with named(turns[i].task):
                draws = turns[i].draws(request)
            one = _One(turns[i], StackRequest(request, c.data, c.training, draws))
            kinds.setdefault(one.asked.kind(), []).append(len(todo))
            todo.append(one)
        trained: list[Tensor] = [torch.empty(0)] * len(todo)
        for kind, places in kinds.items():
            places.sort(key=lambda at: -todo[at].asked.steps)
            vectors = self._of_a_kind(kind[:-1], [todo[at] for at in places])
            for at, w in zip(places, vectors, strict=True):
                trained[at] = w
        return trained

    def _of_a_kind(self, kind: Kind, ones: Sequence[_One]) -> list[Tensor]:
        done: list[Tensor] = []
        if (why := self._unfit(ones[0].asked)) is not None:
            self.say(why)
            return [self._alone(one) for one in ones]
        while len(done) < len(ones):
            left = ones[len(done) :]
            if kind in self._refused:
                done += [self._alone(one) for one in left]
                break
            size, short, why = 0, False, None
            try:
                size = self._stack_of(kind, left)
                done += self._stack(kind, left[:size])
            except Exception as e:  # a failure of one client recurs, with its number, when it is trained alone
                short = full(e)
                if not short:
                    self._stop_if_failed(e)
                    why = _why(e)
            self._job.net.release()
            if short:  # by now nothing holds what the failed stack had taken
                self._shrink(kind, size)
            elif why is not None:
                done.append(self._alone(left[0]))
                if self._job.net.batchnorm and len(left[0].asked.data) == 1:
                    continue  # its only batch is left out; torch can stack those of others
                self._refused.add(kind)
                name = getattr(left[0].asked.request.loss, "__name__", "the loss")
                self.say(f"{name} on this network is trained client by client, as torch cannot stack it: {why}")
        return done

    def _unfit(self, a: StackRequest) -> str | None:
        """Return why no such request may be stacked, if that is known beforehand."""
        net = self._job.net
        if a.draws.private is not None:
            return "private training takes the gradients of single samples, client by client"
        several = len(a.request.start) > net.size
        names = net.statistics
        if not names or not (several or net.cumulative):
            return None
        few = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        if several:
            return f"a vector of several networks with running statistics ({few}) is trained client by client"
        return f"running statistics that depend on a count of batches ({few}) are trained client by client"

    def _stack_of(self, kind: Kind, ones: Sequence[_One]) -> int:
        """Return the number of these requests in the next stack: what fits, without a small rest."""
        most = self._most.get(kind) if ones[0].asked.steps else len(ones)  # without data there is nothing to measure
        if most is None:
            products = self._products(kind, ones[: self._engine.clients or None])
            largest = bytes_of(ones[0].asked, self._job.net, self._place, longest=_longest(ones), products=products)
            most = self._most[kind] = max(1, (self._place.room() - self._left) // max(1, largest))
        most = min(most, self._engine.clients or most)
        stacks = math.ceil(len(ones) / most)
        return math.ceil(len(ones) / stacks)

    def _shrink(self, kind: Kind, size: int) -> None:
        """Halve the stacks of a kind, which do not fit, unless recordings can be given up for them."""
        self._copies.forget()
        if isinstance(self._run, Graphs) and self._run.give_up():
            self._place.forget()
            return
        if size < 2:
            raise EngineError(
                f"one client's training does not fit into the memory of {self._place.device}; use a smaller batch, or "
                "the engine workers"
            )
        self._most[kind] = size // 2
        self._place.forget()

    def _products(self, kind: Kind, ones: Sequence[_One]) -> AsProducts:
        return self.convolutions.of(kind, ones[0].asked, self._job.net, len(ones), _longest(ones))

    def _stack(self, kind: Kind, ones: Sequence[_One]) -> list[Tensor]:
        """Train requests in one stack; the rows of the result lie in the order of the clients."""
        started, products = time.perf_counter(), self._products(kind, ones)
        order = sorted(range(len(ones)), key=lambda i: ones[i].turn.task.client)
        asked = [ones[i].asked for i in order]
        rows = train(asked, self._job.net, self._place, self._run, products=products, stay=self._stay)
        if rows[0]._base is not None:
            self._trained[rows[0]._base] = True
        trained = [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]
        seconds, steps = time.perf_counter() - started, max(1, sum(one.asked.steps for one in ones))
        for one in ones:
            one.turn.seconds += seconds * one.asked.steps / steps
        return trained

    def _alone(self, one: _One) -> Tensor:
        """Train one request as in the loop, errors included."""
        with named(one.turn.task):
            return one.turn.train(one.asked.request, one.asked.draws, trainer(self._job))


@dataclass(frozen=True)
class _One:
    """Request of one client."""

    turn: Turn
    asked: StackRequest


def _at_once(parameters: int) -> int:
    """Return the number of client programs that may be under way at a time."""
    return max(1, min(_PROGRAMS, max(_LEAST, memory() // _HOST) // (_VECTORS * 4 * parameters)))


def _why(e: Exception) -> str:
    """Return an error's first sentence."""
    text = str(e).strip()
    return text.splitlines()[0].split(". ")[0] if text else type(e).__name__


def _longest(ones: Sequence[_One]) -> int:
    """Return the number of samples of the largest client, beyond which no batch goes."""
    return max(len(one.asked.data) for one in ones)
