"""Evaluation of one client: its models, their predictions on its test and validation samples, the one it keeps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from fedkin.capabilities.views import client_notes, views_of
from fedkin.core import Bundle, Client, Method, MethodError, Net, Samples, Work
from fedkin.core.method import at_moment
from fedkin.core.samples import ClientData, packed, tally
from fedkin.engines.drive import check_tensors, named
from fedkin.engines.tasks import Job, Task

Pass = Callable[[Bundle, Samples], Tensor]
"""``(what is predicted with, samples) ->`` logits ``[n, C]`` or classes ``[n]`` as of `predicted`; n > 0."""
Expected = Callable[[Sequence[tuple[Bundle, Samples]]], None]
"""Is given the calls for classes that will follow, so that an engine can make those of many clients at once."""


def logits_of(method: Method, net: Net, b: Bundle, x: Tensor) -> Tensor:
    """Return the logits ``[n, C]`` of `Method.predict`.

    Raises:
        MethodError: it returned something else.
    """
    logits: object = method.predict(net, b, x)
    if not isinstance(logits, Tensor) or logits.shape != (len(x), net.classes):
        got = f"the shape {list(logits.shape)}" if isinstance(logits, Tensor) else named(logits)
        raise MethodError(
            f"predict of {type(method).__name__} must return logits [{len(x)}, {net.classes}], one row for each sample "
            f"and a column for each class; got {got}"
        )
    return logits


def predicted(logits: Tensor) -> Tensor:
    """Return the class of the largest of each row of ``logits [n, C]``; -1 where one is NaN: the model has diverged."""
    largest, at = logits.max(1)
    return torch.where(largest.isnan(), -1, at)


def evaluate(
    job: Job, task: Task, shard: ClientData, client: Client, logits: Pass, guesses: Pass, asks: Expected | None = None
) -> Work:
    """Return counts per class of each part, the class counts and the number of samples without a prediction.

    Counts of a part are int64 ``[3, C]``: for each class its samples, its predictions and the correct ones of these.
    ``unpredicted []`` is the number of test and validation samples for which the model's logits hold NaN, which count
    as predictions of class 0.

    Of what `personalize` gave, a ``cluster`` (a client that chose its cluster itself) is passed on, and the numbers in
    `fedkin.capabilities.Views.notes`, each as ``note.NAME []``, float64. From round `Job.outcomes` on, the outcome of
    every test sample is added, see `_outcomes`.

    Where the calls of ``guesses`` are to be made known, the program stops once for nothing, so that the programs of
    other clients come as far.
    """
    models = yield from _models(job, client)
    parts = (("test", shard.test), ("validation", shard.validation))
    whole = ("", "test") if job.sends_outcomes(task.round) else None  # of these the logits themselves are looked at
    if asks is not None:
        asked = [(b, data) for name, b in models.items() for part, data in parts if (name, part) != whole]
        asks([(b, data) for b, data in asked if len(data)])
        yield ()
    out, lost = Bundle(counts=client.counts()), 0
    own = models.get("delivered", models[""])
    if "cluster" in own:
        out["cluster"] = own.cluster
    out |= _notes(job.method, own)
    for name, b in models.items():
        for part, data in parts:
            numbers = logits(b, data) if (name, part) == whole and len(data) else None
            guesses_of_part = guesses(b, data) if numbers is None and len(data) else data.y
            guessed = guesses_of_part if numbers is None else predicted(numbers)
            if missing := int((guessed < 0).sum()) if len(data) else 0:
                lost += missing if not name else 0
                guessed = guessed.clamp(min=0)
            out[f"{name}.{part}" if name else part] = tally(data.y, guessed, job.net.classes)
            if (name, part) == whole:
                out |= _outcomes(guessed, numbers, data)
    return out.but(unpredicted=torch.tensor(lost))


def sent_model(method: Method, client: Client) -> Bundle | None:
    """Return the model that a client was sent, if that is all that clients predict with or show; None if it is not.

    Views of one client are enough to see: the server refuses evaluations with other ones than a synthetic client has.
    """
    if type(method).personalize is not Method.personalize or client_notes(method) or views_of(method, client):
        return None
    return Bundle(model=client.received.model)


def keep(job: Job, client: Client) -> Work:
    """Return the model that counts, for the client itself to keep."""
    models = yield from _models(job, client)
    return models[""]


def _models(job: Job, client: Client) -> Generator[Any, Any, dict[str, Bundle]]:
    """Return the model that counts, under "", and others by name; see `fedkin.core.method.at_moment`."""
    method = job.method
    result = method.personalize(client)
    own = (yield from result) if isinstance(result, Generator) else result
    own = check_tensors(own, "client code must return")
    return at_moment(own, views_of(method, client), job.evaluate)


def _notes(method: Method, own: Bundle) -> Bundle:
    """Return the numbers about the client that the method declares, of the result of its `personalize`."""
    for name in client_notes(method):
        if name not in own or own[name].dim():
            got = f"one of shape {list(own[name].shape)}" if name in own else f"{sorted(own)}"
            raise MethodError(
                f"personalize of {type(method).__name__} must return a number {name!r}, which is in client_notes; "
                f"got {got}"
            )
    return Bundle({f"note.{name}": own[name].double() for name in client_notes(method)})


def _outcomes(guessed: Tensor, logits: Tensor | None, data: Samples) -> Bundle:
    """Return which test samples were classified correctly, so that two runs can be compared sample by sample.

    Returns:
        ``right`` uint8 ``[ceil(n / 8)]``: a bit for each sample in the order of the test part, the highest bit of a
        byte first, 1 for correct; ``test_digest`` uint8 ``[16]``, which is equal where the test parts are;
        ``logits_digest`` uint8 ``[8]``, which is equal where the logits are, to the last bit: two models that are right
        about the same samples need not predict alike. Zeros where a logit is not finite: models that diverged show
        nothing.
    """
    of_logits = bytes(8)
    if logits is not None and bool(logits.isfinite().all()):
        of_logits = blake2b(logits.detach().float().contiguous().numpy().data, digest_size=8).digest()
    samples, numbers = (torch.frombuffer(bytearray(raw), dtype=torch.uint8) for raw in (data.digest(), of_logits))
    return Bundle(right=packed(guessed == data.y), test_digest=samples, logits_digest=numbers)
