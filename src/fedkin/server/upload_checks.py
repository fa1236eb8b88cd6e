"""Checks of uploads before they are aggregated: names, shapes, dtypes, finite, within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from fedkin.capabilities import Asks
from fedkin.capabilities.views import client_notes, views_of
from fedkin.core import Bundle, Client, Download, Method, MethodError, Net, Samples, Training, stack
from fedkin.core.bundle import norms, require_tensors
from fedkin.core.method import at_moment
from fedkin.core.refusals import Reason, outside
from fedkin.core.samples import unpacked
from fedkin.core.settings import Moment
from fedkin.engines.drive import drive, named

T = TypeVar("T")
TIMES = 1000
"""An upload may be at most this many times as large as the median of its round. Models of honest clients are about
equally large, and their changes differ by their data and step sizes, a hundred times at most."""
_COUNTS, _CLUSTERS = 10**12, 10**6  # no client can have more
OUTCOMES = ("right", "test_digest", "logits_digest")
"""Names of the outcomes of single test samples, which an evaluation adds in a run's last round."""


def bundled(method: Method, step: str, value: Bundle) -> Bundle:
    """Return the result of a step of the server, if it is a bundle of tensors.

    Raises:
        MethodError: it is not; the message names the step.
    """
    _instance(method, step, value, Bundle, "a Bundle")
    require_tensors(f"{type(method).__name__}.{step} must return a Bundle of tensors;", value)
    return value


def handed_out(method: Method, step: str, value: Download) -> Download:
    """Return the result of a step that gives a download, if it is one."""
    return _instance(method, step, value, Download, "what to_all or to_each gives")


def _instance(method: Method, step: str, value: T, kind: type[T], wanted: str) -> T:
    if not isinstance(value, kind):
        raise MethodError(f"{type(method).__name__}.{step} must return {wanted}, got {named(value)}")
    return value


def probe(method: Method, net: Net, training: Training, received: Bundle, *, question: Asks | None = None) -> Bundle:
    """Return an example of an honest client's answer: its program, run on synthetic data without training.

    The synthetic client has one blank sample per class and no history. Only names, shapes and dtypes of the result are
    meaningful.

    Args:
        question: whose answer it is; None: an upload.
    """
    return _answered(method, net, training, received, question)[0]


def too_large(uploads: Mapping[int, Bundle], sent: Mapping[int, Bundle]) -> dict[int, Reason]:
    """Return why uploads cannot be used whose length or largest number is more than `TIMES` times the round's median.

    The median is the larger of two middle values, so two uploads are both used: which of them is false is unknown. An
    upload that is not larger than what its client was sent is used as well: once most clients have nothing left to
    change, an honest change can be any number of times theirs.

    Args:
        uploads: uploads of one round that fit their schema.
        sent: what each client was sent.
    """
    result: dict[int, Reason] = {}
    for what, order in (("length", 2.0), ("largest number", math.inf)):
        size = norms(uploads, order)
        median = sorted(size.values())[len(size) // 2] if size else 0.0
        for i, n in size.items():
            if n > TIMES * median > 0 and n > norms({i: sent[i]}, order)[i]:
                result[i] = Reason("outlier", what, float(f"{n / median:.3g}"), str(TIMES))
    return result


def keeps(method: Method, net: Net, training: Training, received: Bundle) -> Bundle:
    """Return an example of what an honest client keeps after its first round, as in `probe`."""
    return _answered(method, net, training, received)[1].state


def _answered(
    method: Method, net: Net, training: Training, received: Bundle, question: Asks | None = None
) -> tuple[Bundle, Client]:
    data = Samples(net.inputs(net.classes), torch.arange(net.classes))
    client = Client(0, data, data, net, training, received, Bundle())
    work = method.client_update(client) if question is None else question.answer(method, client)
    return drive(work, lambda request: request.start.detach().clone()), client


def described(method: Method, net: Net, training: Training) -> Bundle:
    """Return an example of what an honest client sends when it joins, as in `probe`."""
    data = Samples(net.inputs(net.classes), torch.arange(net.classes))
    client = Client(0, data, data, net, training, Bundle(), Bundle(), group=0)
    return Bundle(size=torch.tensor(net.classes), **method.describe(client))


def scored(method: Method, net: Net, training: Training, received: Bundle, moment: Moment = "delivered") -> set[str]:
    """Return the names in an honest client's evaluation, as in `probe`; without `OUTCOMES`."""
    data = Samples(net.inputs(net.classes), torch.arange(net.classes))
    client = Client(0, data, data, net, training, received, Bundle())
    model = drive(method.personalize(client), lambda request: request.start.detach().clone())
    views = [f"{name}." if name else "" for name in at_moment(model, views_of(method, client), moment)]
    parts = {view + part for view in views for part in ("test", "validation")}
    notes = {f"note.{name}" for name in client_notes(method)}
    return {"counts", "unpredicted", *parts, *notes, *({"cluster"} & set(model))}


@dataclass(frozen=True)
class ScoreForm:
    """What evaluations of a round hold, and between which numbers.

    Attributes:
        names: of its tensors, see `scored`; class counts ``[C]``, counts of parts ``[3, C]``, samples without a
            prediction ``[]`` and a cluster ``[]``, all int64; notes ``[]``, float64.
        classes: C.
        notes: `fedkin.capabilities.Views`: the range of each note.
        outcomes: whether they may hold `OUTCOMES`; a client whose owner hides them leaves both out.
        most: samples of an evaluation at most.
    """

    names: set[str]
    classes: int
    notes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    outcomes: bool = False
    most: int = _COUNTS

    @cached_property
    def tensors(self) -> dict[str, tuple[torch.dtype, torch.Size, float, float]]:
        """Type, shape, least and largest number of each tensor, in the same order in every process."""
        one = torch.Size([])
        shapes = {"counts": torch.Size([self.classes]), "cluster": one, "unpredicted": one}
        most = {"cluster": _CLUSTERS, "unpredicted": self.most}
        notes = {f"note.{name}": range for name, range in sorted(self.notes.items())}
        result = {n: (torch.float64, one, *range) for n, range in notes.items()}
        for name in sorted(self.names - {*notes}):
            shape = shapes.get(name, torch.Size([3, self.classes]))
            result[name] = (torch.int64, shape, 0, most.get(name, _COUNTS))
        return result

    @cached_property
    def parts(self) -> list[str]:
        """Names of the counts of parts."""
        return [n for n in self.tensors if n not in ("counts", "cluster", "unpredicted") and not n.startswith("note.")]


def false_scores(answers: Mapping[int, Bundle], form: ScoreForm, sizes: Mapping[int, int] | None) -> dict[int, Reason]:
    """Return why evaluations cannot be used, by client; all are looked at together before each is.

    Args:
        sizes: training samples that each client joined with, which its class counts must add up to unless its owner
            hides them (all are 0); None: they may hold noise.
    """
    if answers and not form.outcomes and _plausible(answers, form, sizes):
        return {}
    whys = {i: false_score(b, form, None if sizes is None else sizes[i]) for i, b in answers.items()}
    return {i: why for i, why in whys.items() if why is not None}


def _plausible(answers: Mapping[int, Bundle], form: ScoreForm, sizes: Mapping[int, int] | None) -> bool:
    for b in answers.values():
        if b.keys() != form.names or any(
            b[n].dtype != dtype or b[n].shape != shape for n, (dtype, shape, *_) in form.tensors.items()
        ):
            return False
    together = stack(answers)
    for name, (*_, low, high) in form.tensors.items():
        least, largest = torch.aminmax(together[name])
        if not (low <= float(least) and float(largest) <= high):
            return False
    if any(_false_part(n, together[n], form.most) for n in form.parts):
        return False
    counted = together["counts"].sum(1).tolist()
    return sizes is None or all(n in (0, sizes[i]) for i, n in zip(sorted(answers), counted, strict=True))


def false_score(answer: Bundle, form: ScoreForm, size: int | None = None) -> Reason | None:
    """Return why an evaluation cannot be used, or None if it can.

    Args:
        size: the training samples that the client joined with, as in `false_scores`.
    """
    reported = set(OUTCOMES) if form.outcomes and not set(OUTCOMES).isdisjoint(answer) else set[str]()
    if set(answer) != form.names | reported:
        return Reason("names", expected=", ".join(sorted(form.names | reported)))
    for name, (dtype, shape, low, high) in form.tensors.items():
        t = answer[name]
        if t.dtype != dtype or t.shape != shape:
            return Reason("shape", name, f"{t.dtype} {list(t.shape)}", f"{dtype} {list(shape)}")
        if why := outside(name, float(t.min()), low, high) or outside(name, float(t.max()), low, high):
            return why
        if name in form.parts and (why := _false_part(name, t, form.most)):
            return why
    told_of = int(answer.counts.sum())
    if size is not None and told_of not in (0, size):
        return Reason("mismatch", "counts", told_of, f"{size} training samples, as at joining")
    return _false_outcomes(answer) if reported else None


def _false_part(name: str, part: Tensor, most: int) -> Reason | None:
    """Return what is wrong with the counts of a part ``[..., 3, C]``, or of one of several; None if nothing is."""
    samples, said, right = part.unbind(-2)
    if (n := int(samples.sum(-1).max())) > most:
        return Reason("out-of-range", name, f"{n} samples", f"at most {most}")
    if not torch.equal(samples.sum(-1), said.sum(-1)):
        return Reason("mismatch", name, f"{int(said.sum())} predictions", "one for each sample")
    if bool((right > torch.minimum(samples, said)).any()):
        most_right = "at most as many of a class as samples and predictions"
        return Reason("mismatch", name, f"{int(right.sum())} correct predictions", most_right)
    return None


def _false_outcomes(answer: Bundle) -> Reason | None:
    """Return why the outcomes of single test samples do not fit the counts per class, or None if they do."""
    n, _, correct = answer.test.sum(1).tolist()
    for name, size in zip(OUTCOMES, (-(-n // 8), 16, 8), strict=True):
        t = answer[name]
        if t.dtype != torch.uint8 or list(t.shape) != [size]:
            return Reason("shape", name, f"{t.dtype} {list(t.shape)}", f"torch.uint8 [{size}]")
    bits = unpacked(answer.right)
    if bits[n:].any() or int(bits.sum()) != correct:
        return Reason("mismatch", "right", f"{int(bits[:n].sum())} of {n} bits set", f"{correct}, as in the counts")
    return None
