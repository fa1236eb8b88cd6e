"""One client's step, whatever the engine: what client code sees, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedkin.capabilities import Views
from fedkin.core import Bundle, Client, ClientError, ConfigError, Method, Net, Samples, Train, Training, Work
from fedkin.core.settings import Moment
from fedkin.engines import Answer, Job, Task
from fedkin.engines.loop import sgd
from fedkin.engines.scoring import predicted
from fedkin.engines.turns import perform
from fedkin.server.upload_checks import scored
from fedkin.testing.toys import federation, network
from refusals import refuses
from toys import method

PARTS = ("test", "validation")


def job(m: Method, **changes: Any) -> Job:
    made = Job(m, network("mlp"), Training(epochs=2, batch_size=4, lr=0.1), federation(), seed=1)
    return replace(made, **changes)


def step(j: Job, kind: Any = "update", client: int = 0, round: int = 1, **given: Bundle) -> Answer:
    task = Task(kind, client, round, given.get("received", Bundle()), given.get("state", Bundle()))
    return perform(j, task, sgd)


# ---- what client code sees ----------------------------------------------------------------------------------------
def test_the_step_size_falls_with_the_rounds() -> None:
    """Steps multiply once per round after the first: 0.1, 0.05, 0.025; a cosine ends with the job's rounds."""
    seen: list[float] = []

    def client_update(self: Method, c: Client) -> Work:
        seen.append(c.training.lr)
        yield Train(c.w0)
        return Bundle()

    j = job(method(client_update=client_update), training=Training(lr=0.1, schedule="step@factor=0.5"))
    for t in (1, 2, 3):
        step(j, round=t)
    assert seen == pytest.approx([0.1, 0.05, 0.025])
    cosine = replace(j, training=Training(lr=0.1, schedule="cosine"), rounds=2)
    for t in (1, 2):
        step(cosine, round=t)
    assert seen[3:] == pytest.approx([0.1, 0.05])


# ---- draws --------------------------------------------------------------------------------------------------------
def test_draws_are_keyed() -> None:
    """By seed, round, client and request; dropout leaves torch's generator alone."""

    def client_update(self: Method, c: Client) -> Work:
        a, b, again = yield (Train(c.w0), Train(c.w0), Train(c.w0, batches=0))
        return Bundle(a=a, b=b, c=again)

    j = job(method(client_update=client_update), shards=[federation()[0]] * 2)
    first = step(j).reply
    torch.manual_seed(99)
    assert torch.equal(step(j).reply.a, first.a)
    assert not torch.equal(first.a, first.b)
    assert torch.equal(first.a, first.c)
    assert not torch.equal(step(j, round=2).reply.a, first.a)
    assert not torch.equal(step(j, client=1).reply.a, first.a)
    assert not torch.equal(step(replace(j, seed=2)).reply.a, first.a)
    j = job(method(), net=network("norm"))
    torch.manual_seed(1)
    first, after = step(j).reply.model, torch.rand(1)
    torch.manual_seed(2)
    second = step(j).reply.model
    torch.manual_seed(1)
    assert torch.equal(first, second)
    assert torch.equal(after, torch.rand(1))


# ---- errors -------------------------------------------------------------------------------------------------------
def failing(kind: type[Exception]) -> Callable[..., Any]:
    def fails(*args: Any) -> Any:
        raise kind("the reason")

    return fails


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("describe", "describe"),
        ("client_update", "update"),
        ("personalize", "evaluate"),
        ("can", "evaluate"),
        ("predict", "evaluate"),
    ],
)
def test_an_exception_in_client_code_names_step_client_and_round(name: str, kind: Any) -> None:
    """Whatever client code raises comes out as a `ClientError` with the original as its cause."""
    fails = failing(ValueError)
    made = method(can=(Views(fails),)) if name == "can" else method(**{name: fails})
    with pytest.raises(ClientError) as caught:
        step(job(made), kind, client=3, round=5)
    assert (caught.value.step, caught.value.client, caught.value.round) == (kind, 3, 5)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_bad_setting_found_by_client_code_stays_what_it_is() -> None:
    """An error that fedkin raises on purpose is the user's to see, not a failing client."""
    with refuses(ConfigError, "the reason"):
        step(job(method(client_update=failing(ConfigError))))


@pytest.mark.parametrize("value", [{"a": torch.ones(1)}, Bundle(a=1.5), None])  # type: ignore[arg-type]
def test_what_is_kept_must_be_a_bundle_of_tensors(value: Any) -> None:
    """It is checked where it is made, so that the message names the client."""

    def keeps(self: Method, c: Client) -> Work:
        yield Train(c.w0)
        c.state = value
        return Bundle()

    with refuses(ClientError, "client 0 failed in round 1", "c.state must be a Bundle"):
        step(job(method(client_update=keeps)))


@pytest.mark.parametrize("surplus", [-1, 1])
def test_rows_for_the_loss_fit_the_training_samples(surplus: int) -> None:
    """With more rows a batch would be given the right ones by one client alone and those of others in a stack."""

    def update(self: Method, c: Client) -> Work:
        w = yield Train(c.w0).add_logits(c.w0.new_zeros(len(c.data) + surplus, c.net.classes))
        return Bundle(model=w)

    n = len(federation()[0].train)
    with refuses(ClientError, "update of client 0", f"{n} training samples", f"'offset' has {n + surplus}"):
        step(job(method(client_update=update)))


# ---- answers ------------------------------------------------------------------------------------------------------
def test_a_client_says_its_size_and_its_class_counts() -> None:
    """``describe`` comes with the number of samples; a model that always says 1 is right about class 1."""
    said = step(job(method(describe=lambda self, c: Bundle(counts=c.counts()))), "describe", client=2).reply
    assert said.size.dtype == torch.int64
    assert said.size == 9
    assert said.counts.tolist() == [9, 0, 0]

    def always_one(self: Method, net: Net, b: Bundle, x: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.ones(len(x), dtype=torch.int64), 3).float()

    found = step(job(method(predict=always_one)), "evaluate", client=0).reply
    y = federation()[0].test.y
    one = int((y == 1).sum())
    assert found.test.tolist() == [torch.bincount(y, minlength=3).tolist(), [0, len(y), 0], [0, one, 0]]
    assert found.validation[:2].sum(1).tolist() == [3, 3]
    assert torch.equal(found.counts, torch.bincount(federation()[0].train.y, minlength=3))
    assert {t.dtype for t in found.values()} == {torch.int64}


@pytest.mark.parametrize(
    "given",
    [lambda n: torch.zeros(n, 2), lambda n: torch.zeros(n), lambda n: torch.zeros(1, 3), lambda n: None],
    ids=["classes", "vector", "samples", "nothing"],
)
def test_a_prediction_is_logits_of_every_class(given: Callable[[int], Any]) -> None:
    """Two columns for three classes passed for predictions of the first two."""
    j = job(method(predict=lambda self, net, b, x: given(len(x))))
    n = len(j.shards[0].test)
    got = given(n)
    with refuses(ClientError, f"logits [{n}, 3]", "NoneType" if got is None else f"the shape {list(got.shape)}"):
        step(j, "evaluate")


def test_a_model_whose_logits_hold_nan_predicts_nothing() -> None:
    """The largest logit's class, infinite ones included; -1 for a row with a NaN, wherever it is."""
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, nan, 2.0], [nan, 1.0, 2.0], [0.0, 1.0, inf], [nan, nan, nan]])
    assert predicted(logits).tolist() == [1, -1, -1, 2, -1]
    lost = {"personalize": lambda self, c: Bundle(model=torch.full_like(c.w0, nan))}
    j = job(method(**lost))
    out = step(j, "evaluate").reply
    further = method(**lost, can=(Views(lambda self, c: {"more": self.personalize(c)}),))
    assert step(job(further), "evaluate").reply.unpredicted == out.unpredicted
    assert int(out.unpredicted) == sum(len(getattr(j.shards[0], part)) for part in PARTS)
    assert out.test[1].tolist() == [len(j.shards[0].test), 0, 0]


def test_outcomes_of_test_samples_from_their_round_on() -> None:
    """Ten test samples of which the model, which says the class that the input's first entry is, gets all but the third
    and the last right: 11011111 10 and six bits of padding. From the round on that the job names."""
    said, true = [0, 1, 0, 2, 1, 1, 0, 2, 2, 1], [0, 1, 2, 2, 1, 1, 0, 2, 2, 0]
    test = Samples(torch.tensor(said).float()[:, None] * torch.ones(6), torch.tensor(true))

    def first_entry(self: Method, net: Net, b: Bundle, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x[:, 0].long(), 3).float()

    j = job(method(predict=first_entry), shards=[replace(federation()[0], validation=test, test=test)], outcomes=3)
    found = step(j, "evaluate", round=3).reply
    assert found.right.tolist() == [0b11011111, 0b10000000]
    assert (found.right.dtype, found.test_digest.dtype, found.test_digest.shape) == (torch.uint8, torch.uint8, (16,))
    assert torch.equal(step(j, "evaluate", round=4).reply.right, found.right)
    assert {"right", "test_digest", "logits_digest"}.isdisjoint(step(j, "evaluate", round=2).reply)
    assert {"right", "test_digest", "logits_digest"}.isdisjoint(
        step(replace(j, outcomes=None), "evaluate", round=3).reply
    )


def test_digests_of_logits_and_samples() -> None:
    """Equal for equal content in other memory; another one for a last bit, an order, a label, an input or a shape."""
    table = torch.rand(4, 3)
    given = [table, table.clone().t().contiguous().t(), table, table.double(), table, table, table]
    given[2] = torch.nextafter(table, torch.full_like(table, 9.0)).where(torch.arange(12).view(4, 3) == 11, table)
    given[4], given[5], given[6] = (table.masked_fill(table == table[1, 1], v) for v in (torch.inf, torch.nan, 0.0))

    def digest(logits: Tensor) -> list[int]:
        m = method(predict=lambda self, net, b, x: logits[: len(x)])
        return list(step(job(m, outcomes=1), "evaluate").reply.logits_digest.tolist())

    first, *found = [digest(logits) for logits in given]
    assert len(first) == 8
    assert found[0] == found[2] == first
    assert found[3] == found[4] == [0] * 8
    assert len({tuple(one) for one in (first, found[1], found[5], [0] * 8)}) == 4
    data = Samples(torch.arange(48.0).view(3, 2, 2, 4), torch.tensor([2, 0, 1]))
    spread = Samples(data.x.to(memory_format=torch.channels_last), data.y.clone())
    assert not spread.x.is_contiguous()
    assert spread.digest() == data.digest()
    assert len(data.digest()) == 16
    others = [
        Samples(data.x.flip(0), data.y.flip(0)),
        Samples(data.x, torch.tensor([2, 0, 0])),
        Samples(data.x + 1, data.y),
        Samples(data.x.view(3, 4, 2, 2), data.y),
        Samples(data.x[:2], data.y[:2]),
    ]
    assert len({data.digest(), *(other.digest() for other in others)}) == 6


def noting(**share: Tensor) -> Method:
    """A method that declares a number of each client, with what `personalize` gives in addition to a model."""
    return method(
        personalize=lambda self, c: Bundle(model=c.w0, **share),
        can=(Views(lambda self, c: {"trained": Bundle(model=c.w0)}, {"share": (0.0, 1.0)}),),
    )


@pytest.mark.parametrize("moment", ["delivered", "trained"])
def test_numbers_of_a_client_are_passed_on(moment: Moment) -> None:
    """Those that the method declares, of what the client would predict with, whichever model is scored."""
    m = noting(share=torch.tensor(0.25))
    found = step(job(m, evaluate=moment), "evaluate").reply
    assert (found["note.share"].dtype, found["note.share"].item()) == (torch.float64, 0.25)
    assert scored(m, network("mlp"), Training(), Bundle(), moment) == set(found)


def test_a_declared_number_must_be_there() -> None:
    """The error names the number and what there is instead: other names, or a tensor of another shape."""
    for m, got in ((noting(), "['model']"), (noting(share=torch.zeros(2)), "shape [2]")):
        with refuses(ClientError, "'share'", got):
            step(job(m), "evaluate")


def test_the_moment_that_is_scored() -> None:
    """At "trained" the view of this name is scored and kept, and what `personalize` gave is the view "delivered"."""
    zero = torch.zeros(network("mlp").size)
    m = method(
        personalize=lambda self, c: Bundle(model=c.w0, cluster=torch.tensor(2)),
        can=(Views(lambda self, c: {"trained": Bundle(model=zero), "more": Bundle(model=c.w0)}),),
    )
    now, then = (step(job(m, evaluate=moment), "evaluate").reply for moment in ("delivered", "trained"))
    for found, other in ((now, "trained."), (then, "delivered.")):
        views = {f"{v}{p}" for v in ("", other, "more.") for p in PARTS}
        assert set(found) == {"counts", "unpredicted", "cluster"} | views
    assert now.cluster == then.cluster == 2
    for part in PARTS:
        assert torch.equal(now[part], then[f"delivered.{part}"])
        assert torch.equal(now[f"trained.{part}"], then[part])
        assert not torch.equal(now[part], then[part])
    kept = [step(job(m, evaluate=moment), "keep").reply.model for moment in ("delivered", "trained")]
    assert torch.equal(kept[0], network("mlp").w0)
    assert torch.equal(kept[1], zero)
    net = network("mlp")
    for moment, found in (("delivered", now), ("trained", then)):
        assert scored(m, net, Training(), Bundle(), moment) == set(found)
    without = [dict(step(job(method(), evaluate=moment), "evaluate").reply) for moment in ("delivered", "trained")]
    assert without[0].keys() == without[1].keys()
    assert all(torch.equal(t, without[1][n]) for n, t in without[0].items())
