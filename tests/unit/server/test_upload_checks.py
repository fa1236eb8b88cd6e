"""Uploads are compared with what an honest client would send."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedkin.core import Bundle, Training
from fedkin.core.bundle import refusal, refusals
from fedkin.core.refusals import Reason, outside
from fedkin.methods import CAM, CFIC, DAPFL, IFCA, METHODS, FedPer, PFedCS
from fedkin.server.upload_checks import ScoreForm, false_score, false_scores, probe, too_large
from fedkin.testing.toys import network

HONEST = Bundle(model=torch.zeros(3), cluster=torch.tensor(1))


def test_an_honest_upload_is_not_refused() -> None:
    """Values do not matter up to the bound; less than an honest one is refused."""
    assert refusal(Bundle(cluster=torch.tensor(0), model=torch.full((3,), -1e8)), HONEST, 1e8) is None
    assert refusal(Bundle(), Bundle(), 1e8) is None
    assert refusal(Bundle(model=torch.zeros(0)), Bundle(model=torch.zeros(0)), 1e8) is None
    assert refusal(Bundle(model=torch.zeros(3)), HONEST, 1e8) == Reason("names", expected="cluster, model")
    honest = Bundle(model=torch.zeros(1))
    assert refusal(Bundle(model=torch.tensor([5.0])), honest, 5.0) is None
    assert refusal(Bundle(model=torch.tensor([5.1])), honest, 5.0) is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"more": torch.zeros(1)}, Reason("names", expected="cluster, model")),
        ({"model": torch.zeros(4)}, Reason("shape", "model", "torch.float32 [4]", "torch.float32 [3]")),
        ({"model": torch.zeros(3, 1)}, Reason("shape", "model", "torch.float32 [3, 1]", "torch.float32 [3]")),
        ({"model": torch.zeros(3).double()}, Reason("shape", "model", "torch.float64 [3]", "torch.float32 [3]")),
        ({"cluster": torch.tensor(1.0)}, Reason("shape", "cluster", "torch.float32 []", "torch.int64 []")),
        ({"model": torch.tensor([0.0, float("nan"), 1.0])}, Reason("not-finite", "model")),
        ({"model": torch.tensor([0.0, -float("inf"), 1.0])}, Reason("not-finite", "model")),
        ({"model": torch.tensor([0.0, -(2.0**90), 1.0])}, Reason("too-large", "model", 2.0**90, "1e+08")),
    ],
)
def test_why_an_upload_is_refused(change: dict[str, Tensor], why: Reason) -> None:
    """Names, shapes, types, finite, within bounds: the first that does not fit, with both sides; a name that only the
    client knows is not kept."""
    assert refusal(HONEST.but(**change), HONEST, 1e8) == why


def side_by_side(count: int) -> dict[int, Bundle]:
    """Uploads of clients 3, 4, ..., whose tensors are the rows of two matrices."""
    model, cluster = torch.arange(3.0 * count).view(count, 3), torch.arange(count)
    return {3 + i: Bundle(model=model[i], cluster=cluster[i]) for i in range(count)}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": torch.tensor([0.0, float("nan"), 1.0])},
        {"model": torch.tensor([0.0, 1.0, -float("inf")])},
        {"model": torch.tensor([0.0, -1e9, 1.0])},
        {"model": torch.zeros(4)},
        {"model": torch.zeros(3).double()},
        {"cluster": torch.tensor(1.0)},
        {"more": torch.zeros(1)},
    ],
)
def test_uploads_together_are_refused_as_each_alone(change: dict[str, Tensor], apart: bool) -> None:
    """The same clients for the same reasons: a false number in the middle of a matrix, or another form."""
    uploads = side_by_side(4)
    if apart:
        uploads = {i: upload.owned() for i, upload in uploads.items()}
    for name, t in change.items():
        if name in uploads[5] and t.shape == uploads[5][name].shape and t.dtype == uploads[5][name].dtype:
            uploads[5][name].copy_(t)  # in place: still side by side with the others
        else:
            uploads[5] = uploads[5].but(**{name: t})
    alone = {i: why for i, upload in uploads.items() if (why := refusal(upload, HONEST, 1e8))}
    assert list(alone) == ([5] if change else [])
    assert refusals(uploads, HONEST, 1e8) == alone


def test_a_probe_has_the_form_of_an_upload() -> None:
    """The client program itself, run without training on made-up data, for every method of the catalogue."""
    net = network("norm")
    p, head, body = net.size, net.w0[net.head].shape, net.w0[net.body].shape
    model = Bundle(model=net.w0)
    forms = [
        (METHODS["fedavg"](), model, {"model": (p,)}),
        (METHODS["local"](), Bundle(), {}),
        (FedPer(), Bundle(body=net.w0[net.body]), {"body": body}),
        (IFCA(clusters=2), Bundle(centres=net.w0.repeat(2, 1)), {"model": (p,), "cluster": ()}),
        (CFIC(register="lazy"), model, {"model": (p,), "label": ()}),
        (DAPFL(variant="v1"), model, {"model": (p,)}),
        (PFedCS(), Bundle(body=net.w0[net.body], collect=torch.tensor(True)), {"body": body, "head": head}),
        (PFedCS(), Bundle(body=net.w0[net.body]), {"body": body}),
        (CAM(inner=IFCA()), model, {"model": (p,)}),
    ]
    for method, received, shapes in forms:
        found = probe(method, net, Training(), received)
        assert {n: tuple(t.shape) for n, t in found.items()} == {n: tuple(s) for n, s in shapes.items()}, method


SCORE = Bundle(
    counts=torch.tensor([4, 5]),
    test=torch.tensor([[6, 3], [7, 2], [5, 1]]),
    validation=torch.zeros(3, 2, dtype=torch.int64),
    right=torch.tensor([0b11101100, 0b10000000], dtype=torch.uint8),
    test_digest=torch.zeros(16, dtype=torch.uint8),
    logits_digest=torch.zeros(8, dtype=torch.uint8),
)
SCORED = {"counts", "test", "validation"}
PLAIN = Bundle({name: SCORE[name] for name in SCORED})
EARLIER, LAST = ScoreForm(SCORED, 2), ScoreForm(SCORED, 2, outcomes=True)


def test_honest_outcomes_are_not_refused() -> None:
    """Six of nine right, in two bytes; unasked or without digests they are; at most as many samples as the plan
    takes."""
    assert false_score(SCORE, LAST) is None
    assert false_score(PLAIN, LAST) is None
    assert false_score(PLAIN, EARLIER) is None
    assert false_score(SCORE, EARLIER) == Reason("names", expected="counts, test, validation")
    assert false_score(PLAIN, ScoreForm(SCORED, 2, most=9)) is None
    assert false_score(PLAIN, ScoreForm(SCORED, 2, most=8)) == Reason("out-of-range", "test", "9 samples", "at most 8")
    expected = "counts, logits_digest, right, test, test_digest, validation"
    assert false_score(PLAIN.but(right=SCORE.right), LAST) == Reason("names", expected=expected)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("right", torch.tensor([0b11111100], dtype=torch.uint8), "shape"),
        ("right", torch.tensor([0b11101100, 0b10000000]), "shape"),
        ("right", torch.tensor([0b11101100, 0], dtype=torch.uint8), "mismatch"),
        ("right", torch.tensor([0b11101100, 0b01000000], dtype=torch.uint8), "mismatch"),
        ("right", torch.tensor([0b11101100, 0b11000000], dtype=torch.uint8), "mismatch"),
        ("test_digest", torch.zeros(8, dtype=torch.uint8), "shape"),
        ("logits_digest", torch.zeros(16, dtype=torch.uint8), "shape"),
    ],
)
def test_false_outcomes_are_refused(name: str, value: Tensor, code: str) -> None:
    """Bits that do not fit the test part or its counts, and a digest of another length."""
    why = false_score(SCORE.but(**{name: value}), LAST)
    assert why is not None
    assert (why.code, why.tensor) == (code, name)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.tensor(0.0).double(), None),
        (torch.tensor(1.0).double(), None),
        (torch.tensor(1.25).double(), outside("note.share", 1.25, 0, 1)),
        (torch.tensor(-0.25).double(), outside("note.share", -0.25, 0, 1)),
        (torch.tensor(torch.nan).double(), outside("note.share", torch.nan, 0, 1)),
        (torch.tensor(1.0), Reason("shape", "note.share", "torch.float32 []", "torch.float64 []")),
        (torch.ones(2).double(), Reason("shape", "note.share", "torch.float64 [2]", "torch.float64 []")),
    ],
)
def test_numbers_of_a_client_are_in_their_range(value: Tensor, why: Reason | None) -> None:
    """A note outside of the range that the method declares is refused, and so is an evaluation without it."""
    noted = Bundle({**PLAIN, "note.share": value})
    form = ScoreForm({*SCORED, "note.share"}, 2, notes={"share": (0.0, 1.0)})
    assert false_score(noted, form) == why
    assert false_score(PLAIN, form) == Reason("names", expected="counts, note.share, test, validation")


NOTED = PLAIN.but(**{"note.share": torch.tensor(0.5).double(), "cluster": torch.tensor(2)})
WRONG: dict[str, tuple[str, Tensor]] = {
    "a count below 0": ("test", torch.tensor([[6, 3], [10, -1], [5, -1]])),
    "a large count": ("counts", torch.tensor([10**12 + 9, 0])),
    "a large cluster": ("cluster", torch.tensor(10**6 + 1)),
    "too many samples": ("validation", torch.tensor([[9, 1], [9, 1], [9, 1]])),
    "a prediction too many": ("test", torch.tensor([[6, 3], [7, 3], [5, 1]])),
    "more correct ones than samples": ("test", torch.tensor([[6, 3], [7, 2], [7, 1]])),
    "more correct ones than predictions": ("validation", torch.tensor([[1, 0], [0, 1], [1, 0]])),
    "other counts": ("counts", torch.tensor([4, 6])),
    "another shape": ("test", torch.zeros(3, 3, dtype=torch.int64)),
    "another type": ("cluster", torch.tensor(2, dtype=torch.int32)),
    "a note out of range": ("note.share", torch.tensor(1.5).double()),
    "a note that is no number": ("note.share", torch.tensor(torch.nan).double()),
}


@pytest.mark.parametrize("what", WRONG)
def test_evaluations_together_are_refused_as_each_alone(what: str) -> None:
    """One false one among three is named with the reason that it has alone; the others are used."""
    form = ScoreForm(set(NOTED), 2, notes={"share": (0.0, 1.0)}, most=9)
    name, value = WRONG[what]
    false, sizes = NOTED.but(**{name: value}), {1: 9, 4: 9, 7: 9}
    why = false_score(false, form, 9)
    assert why is not None
    assert false_scores({1: NOTED, 4: false, 7: NOTED}, form, sizes) == {4: why}
    assert (false_scores({1: NOTED, 4: false, 7: NOTED}, form, None) == {}) == (what == "other counts")


# ---- uploads that are too long -------------------------------------------------------------------------------------
def uploads(*lengths: float) -> dict[int, Bundle]:
    """Uploads of these lengths, of two tensors of floating-point numbers and a whole number that is none of it."""
    one = Bundle(a=torch.full((4,), 0.4), b=torch.tensor(0.6))
    return {i: Bundle(n=torch.tensor(10**9), **{k: t * n for k, t in one.items()}) for i, n in enumerate(lengths)}


@pytest.mark.parametrize(
    ("lengths", "refused"),
    [
        ((1.0, 1.0, 999.0), []),
        ((1.0, 1.0, 1e4), [2]),
        ((1e4, 1.0, 1.0, 1e4, 1.0), [0, 3]),
        ((1.0,), []),
        ((1.0, 1e6), []),
        ((1.0, 1e6, 1e6), []),
        ((0.0, 0.0, 1.0), []),
        ((), []),
    ],
    ids=["a thousand", "one", "two", "alone", "two clients", "a majority", "others without a change", "none"],
)
def test_uploads_that_are_too_large(lengths: tuple[float, ...], refused: list[int]) -> None:
    """More than a thousand times the median; only a majority can tell which is false."""
    sent = dict.fromkeys(range(5), Bundle(a=torch.zeros(4)))
    found = too_large(uploads(*lengths), sent)
    assert list(found) == refused
    assert all(why == Reason("outlier", why.tensor, 1e4, "1000") for why in found.values())


@pytest.mark.parametrize("on_device", [False, True], ids=["apart", "side by side"])
def test_one_number_that_is_too_large(on_device: bool) -> None:
    """In a model of a million numbers it hardly makes a difference to the length."""
    rows = torch.full((3, 10**6), 0.5)
    rows[1, 7] = -4e3
    found = too_large(
        {i: Bundle(w=rows[i] if on_device else rows[i].clone()) for i in range(3)}, dict.fromkeys(range(3), Bundle())
    )
    assert found == {1: Reason("outlier", "largest number", 8000, "1000")}


def test_what_counts_as_long() -> None:
    """No longer than what was sent is used; tensors without numbers have no size."""
    sent = dict.fromkeys(range(3), Bundle(model=torch.full((16,), 2.0)))
    assert too_large(uploads(1e-6, 1e-6, 1.0), sent) == {}
    assert list(too_large(uploads(1e-6, 1e-6, 9.0), sent)) == [2]
    sizes = {i: Bundle(body=torch.zeros(0), model=torch.full((2,), size)) for i, size in ((0, 1.0), (1, 1.0), (2, 1e4))}
    assert sorted(too_large(sizes, {i: Bundle(model=torch.ones(2)) for i in sizes})) == [2]
