"""The contract can fail: for each rule methods that break it, and break nothing else on the way there."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.capabilities import Grouped
from fedkin.core import (
    Bundle,
    Client,
    ConfigError,
    Download,
    Method,
    MethodError,
    Round,
    Train,
    Work,
    cross_entropy,
    to_all,
    to_each,
)
from fedkin.core.rows import grow, put
from fedkin.engines import Loop, Workers
from fedkin.testing import RuleBroken, check_method, usual_engines
from refusals import refuses

FROZEN = dataclass(frozen=True)
SEEN: dict[int, Tensor] = {}  # what the dishonest methods below pass from client to client, or from round to round


@dataclass(frozen=True)
class Honest(Method):
    """FedAvg with a state on the client, from which the broken methods differ in one step each."""

    scale: float = 1.0
    """Factor on what is sent."""

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0)

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.model)
        c.state = Bundle(model=w)
        return Bundle(model=w * self.scale)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=r.mean(up.model))


def toy(decorate: Callable[[type], type] = FROZEN, **steps: Any) -> Any:
    """`Honest` with other steps, as a class of its own (methods are final)."""
    body = {n: v for n, v in Honest.__dict__.items() if not n.startswith("__") and n != "_abc_impl"}
    return decorate(type("Broken", (Method,), {**body, **steps, "__module__": __name__}))


def broken(**steps: Any) -> Method:
    made: Method = toy(**steps)()
    return made


def check(method: Method, rule: str) -> None:
    check_method(method, engines=[], rules=[rule])


def test_an_honest_method_passes() -> None:
    check_method(Honest(), engines=[Workers(2)])


@dataclass(frozen=True)
class Momentum(Method):
    """FedAvg with momentum at the server (Hsu et al. 2019), which goes further than the mean: also with statistics."""

    beta: float = 0.9
    """Part of the last step that is repeated."""
    lr: float = 1.0
    """Factor on the step."""

    def init(self, r: Round) -> Bundle:
        return Bundle(model=r.w0, velocity=torch.zeros_like(r.w0))

    def distribute(self, s: Bundle, r: Round) -> Download:
        return to_all(model=s.model)

    def client_update(self, c: Client) -> Work:
        w = yield Train(c.received.model)
        return Bundle(model=w)

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        v = self.beta * s.velocity + s.model - r.mean(up.model)
        return Bundle(model=s.model - self.lr * v, velocity=v)


@pytest.mark.parametrize("method", [Momentum(0.99), Momentum(0.0, lr=3.0)])
def test_momentum_at_the_server_is_no_fault(method: Method) -> None:
    """Running variances of a network may become negative by it, and no rule depends on that."""
    check_method(method, engines=(Loop(),), rules=["runs", "resume", "odd federations", "pure steps"])


# ---- one step that breaks a rule ----------------------------------------------------------------------------------


def trains(
    sent: Callable[[Client, Tensor], Any] = lambda c, w: Bundle(model=w),
    kept: Callable[[Client, Tensor], Any] | None = None,
    before: Callable[[Client], Any] = lambda c: None,
) -> Any:
    """A client's program: ``before`` training, the state ``kept``, what is ``sent``."""

    def client_update(self: Method, c: Client) -> Work:
        before(c)
        w = yield Train(c.received.model)
        if kept:
            c.state = kept(c, w)
        return sent(c, w)

    return client_update


def yields_a_tensor(self: Method, c: Client) -> Work:
    w = yield c.received.model  # type: ignore[misc]
    return Bundle(model=w)


def draws_globally(self: Method, c: Client) -> Work:
    w = yield Train(c.received.model + 0.01 * torch.rand(()))
    return Bundle(model=w)


def ignores_the_seed(self: Method, c: Client) -> Work:
    w = yield Train(c.w0, steps=1, batch_size=100)
    c.state = Bundle()
    return Bundle(model=w * 0 + float(c.training.lr))


def hides_a_sum(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    before = self.__dict__.get("_hidden", torch.zeros(len(s.model)))
    object.__setattr__(self, "_hidden", before + r.mean(up.model))
    return Bundle(model=self.__dict__["_hidden"] / r.index)


def divides_by_the_others(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    return Bundle(model=s.model + (up.model.sum(0) - up.model[0] - s.model) / (len(r.ids) - 1))


def two_names(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    mean = r.mean(up.model)
    return Bundle(model=mean, best=mean[:3])


def writes(into: Callable[[Bundle, Round, Bundle], Any]) -> Any:
    """An aggregation that writes into what it was given."""

    def aggregate(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
        into(s, r, up)
        return s.but(model=r.mean(up.model))

    return aggregate


def reads_old_rows(self: Any, s: Bundle, r: Round, up: Bundle) -> Bundle:
    bank = put(s.bank, r.ids, up.model)
    return Bundle(model=r.mean(up.model) + (bank - s.bank).mean(0), bank=bank)


def reads_rows_in_time(self: Any, s: Bundle, r: Round, up: Bundle) -> Bundle:
    moved = (up.model - s.bank[r.ids]).sum(0) / len(s.bank)
    return Bundle(model=r.mean(up.model) + moved, bank=put(s.bank, r.ids, up.model))


BANK: dict[str, Any] = {
    "init": lambda self, r: Bundle(model=r.w0, bank=torch.empty(0, r.net.size)),
    "admit": lambda self, s, r: s.but(bank=grow(s.bank, len(r.roster), r.w0)),
}
NEWCOMERS: dict[str, Any] = {
    "admit": lambda self, s, r: s if "bank" in s else s.but(bank=s.model.repeat(len(r.roster), 1)),
    "distribute": lambda self, s, r: to_each(model=s.bank[r.ids]),
    "aggregate": lambda self, s, r, up: s.but(bank=s.bank.index_copy(0, r.ids, up.model)),
}


def remembers(c: Client, w: Tensor) -> Bundle:
    SEEN[c.id] = SEEN.get(c.id, torch.tensor(0.0)) + 1 if c.round > 1 else torch.tensor(1.0)
    return Bundle(times=SEEN[c.id].clone())


def says_its_mean(self: Method, c: Client) -> Bundle:
    SEEN[c.id] = c.data.x.mean()
    return Bundle()


def never(c: Client) -> None:
    assert c.id < 0, "never"


def states(c: Client, w: Tensor) -> Bundle:
    return Bundle(model=w)


def sends_to_each(rows: Callable[[Bundle, Round], Tensor], **more: Callable[[Round], Tensor]) -> Any:
    return lambda self, s, r: to_each(model=rows(s, r), **{n: f(r) for n, f in more.items()})


def copies(s: Bundle, r: Round) -> Tensor:
    return s.model.repeat(len(r.ids), 1)


def weighs(weights: Callable[[Round], Tensor]) -> dict[str, Any]:
    return {"distribute": sends_to_each(copies, weights=weights)}


def groups(labels: Callable[[Round], Tensor]) -> dict[str, Any]:
    return {"can": (Grouped(lambda m, s, r: labels(r)),)}


@pytest.mark.parametrize(
    ("rule", "facts", "steps"),
    [
        ("runs", "client 1, refused, round 1", {"client_update": trains(lambda c, w: Bundle(model=w * float("nan")))}),
        (
            "runs",
            "'extra' in the server's state, round 1",
            {"aggregate": lambda self, s, r, up: s.but(extra=torch.tensor(float("inf")))},
        ),
        (
            "runs",
            "'model' in the state of client, round 1",
            {"client_update": trains(kept=lambda c, w: Bundle(model=w / 0))},
        ),
        ("runs", "logits of client, NaN, round 1", {"predict": lambda self, net, b, x: net(b.model, x) / 0 * 0}),
        ("same result", "a second time", {"sample": lambda self, s, r: r.ids[torch.randperm(len(r.ids))[:3]]}),
        ("same result", "a second time", {"client_update": draws_globally}),
        (
            "same result",
            "a second time",
            {"client_update": trains(lambda c, w: Bundle(model=w + random.random()))},
        ),
        ("same result", "another seed", {"client_update": ignores_the_seed}),
        ("resume", "after round 1", {"aggregate": hides_a_sum}),
        (
            "own data",
            "client, data of other",
            {"describe": says_its_mean, "client_update": trains(lambda c, w: Bundle(model=w + sum(SEEN.values())))},
        ),
        ("odd federations", "with one client, 'model' in the server's state", {"aggregate": divides_by_the_others}),
        ("own memory", "server state 'best', server state 'model'", {"aggregate": two_names}),
        (
            "own memory",
            "server state 'bank', expanded",
            {"aggregate": lambda self, s, r, up: s.but(bank=s.model.expand(6, -1))},
        ),
        (
            "own memory",
            "clients said of themselves, 'counts', server state",
            {
                "describe": lambda self, c: Bundle(counts=c.counts()),
                "admit": lambda self, s, r: s.but(counts=r.roster.described.counts),
                "aggregate": lambda self, s, r, up: s.but(model=r.mean(up.model)),
            },
        ),
        *(
            ("pure steps", f"client_update, {fact}", {"client_update": trains(kept=states, before=before)})
            for fact, before in (
                ("'model' of c.received", lambda c: c.received.model.mul_(0.9)),
                ("'model' of c.received", lambda c: c.received.model.add_(1).sub_(1)),
                ("'x' of c.data", lambda c: c.data.x.add_(1)),
                ("'model' of the old c.state", lambda c: c.state.get("model", c.w0).zero_()),
                ("model, in the old c.state", lambda c: c.state.update(model=c.w0)),
                ("'more', in c.received", lambda c: c.received.update(more=c.w0)),
            )
        ),
        *(
            ("pure steps", f"aggregate, {fact}", {"aggregate": writes(into)})
            for fact, into in (
                ("'model' of the server's state", lambda s, r, up: s.model.copy_(r.mean(up.model))),
                ("'model' of the uploads", lambda s, r, up: up.model.clamp_(-1, 1)),
                ("'size' of the roster", lambda s, r, up: r.roster.size.clamp_(max=5)),
            )
        ),
        ("banks", "`put`", {**BANK, "aggregate": reads_old_rows}),
        (
            "failed answers",
            "another effect",
            {"client_update": trains(lambda c, w: Bundle(model=w + 0.01 * SEEN[c.id]), kept=remembers)},
        ),
        (
            "failed answers",
            "lost in round 2",
            {
                "client_update": trains(
                    kept=lambda c, w: Bundle(times=c.state.get("times", torch.zeros(1)).add_(1)),
                ),
                "sample": lambda self, s, r: r.ids,
            },
        ),
        ("declared", "rate = 0.5, rate: float, RATE", {"scale": None, "rate": 0.5}),
        ("declared", "family = 'mixtures', 'one global model'", {"scale": None, "family": "mixtures"}),
        ("declared", "tuned, 'nu'", {"scale": None, "tuned": property(lambda self: {"nu": (0.1, 1.0)})}),
        ("declared", "personalise, personalize", {"personalise": lambda self, c: Bundle(), "mixture": lambda self: 1}),
        ("distribution", "labels in round 1, int64", groups(lambda r: torch.zeros(len(r.roster)))),
        ("distribution", "labels in round 1", groups(lambda r: torch.zeros(2, dtype=torch.int64))),
        ("distribution", "labels in round 1, cluster, -3", groups(lambda r: torch.full_like(r.roster.size, -3))),
        ("distribution", "sample in round 1, 0 of 4", {"sample": lambda self, s, r: r.ids[:0]}),
        ("distribution", "sample in round 1, int64", {"sample": lambda self, s, r: r.ids[:2].float()}),
        ("distribution", "deliver in round 1, to_all, to_each", {"deliver": lambda self, s, r: Bundle(model=s.model)}),
        (
            "distribution",
            "deliver in round 1, ['model'], both",
            {"deliver": lambda self, s, r: to_all(model=s.model) | to_each(model=copies(s, r))},
        ),
        (
            "distribution",
            "distribute in round 1, 'model' is float32 [1, for 2 clients",
            {"distribute": sends_to_each(lambda s, r: copies(s, r)[1:])},
        ),
        (
            "distribution",
            "distribute in round 1, given of 'model', bool [2], float32 [1]",
            {"distribute": sends_to_each(copies, given=lambda r: torch.ones(1))},
        ),
        (
            "distribution",
            "sum to 1, the least is 1, a sum is 4",
            weighs(lambda r: torch.ones(len(r.ids), len(r.roster))),
        ),
        ("distribution", "float [2, 4], float32 [2, 2]", weighs(lambda r: torch.full((len(r.ids), len(r.ids)), 0.5))),
        (
            "distribution",
            "the least is -1",
            weighs(lambda r: torch.tensor([[2.0, -1.0, 0, 0]]).repeat(len(r.ids), 1)),
        ),
    ],
)
def test_a_step_that_breaks_a_rule_is_found(rule: str, facts: str, steps: dict[str, Any]) -> None:
    SEEN.clear()
    with refuses(RuleBroken, f"'{rule}': ", *facts.split(", ")):
        check(broken(**steps), rule)


@pytest.mark.parametrize(
    ("rule", "kind", "facts", "steps"),
    [
        ("runs", MethodError, "Bundle, dict", {"client_update": trains(lambda c, w: {"model": w})}),
        ("runs", MethodError, "Bundle, NoneType", {"client_update": trains(lambda c, w: None)}),
        ("runs", MethodError, "'n' is an int", {"client_update": trains(lambda c, w: Bundle(model=w, n=3))}),
        ("runs", MethodError, "c.state, Bundle, dict", {"client_update": trains(kept=lambda c, w: {"model": w})}),
        ("runs", MethodError, "client 1, round 1, Train", {"client_update": yields_a_tensor}),
        (
            "runs",
            MethodError,
            "'model' has 5 rows for 4 clients",
            {"distribute": sends_to_each(lambda s, r: s.model.repeat(len(r.ids) + 1, 1))},
        ),
        ("runs", MethodError, "[6], distinct", {"sample": lambda self, s, r: torch.tensor([6])}),
        ("runs", MethodError, "[0, 0], distinct", {"sample": lambda self, s, r: r.ids[[0, 0]]}),
        ("runs", MethodError, "AssertionError: never", {"client_update": trains(before=never)}),
        ("odd federations", IndexError, "", NEWCOMERS),
    ],
)
def test_an_error_of_the_method_is_raised_with_a_note(
    rule: str, kind: type[Exception], facts: str, steps: dict[str, Any]
) -> None:
    """What fails by itself keeps its class; the note names the rule, and the federation where that is the reason."""
    with pytest.raises(kind) as caught:
        check(broken(**steps), rule)
    assert all(fact in str(caught.value) for fact in facts.split(", "))
    assert f"while the rule '{rule}' was checked" in " ".join(caught.value.__notes__)
    assert ("late joiners" in " ".join(caught.value.__notes__)) == (rule == "odd federations")


def first_alone(self: Method, s: Bundle, r: Round) -> Download:
    m = len(r.ids)
    weights = torch.zeros(m, len(r.roster))
    weights[0, int(r.ids[0])] = 1
    return to_all(model=s.model) | to_each(teacher=copies(s, r), given=torch.arange(m) == 0, weights=weights)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("declared", {"scale": None, "RATE": 0.5, "_rate": 0.5, "family": "mixture"}),
        ("banks", {**BANK, "aggregate": reads_rows_in_time}),
        ("distribution", {"distribute": first_alone}),
        ("runs", NEWCOMERS),
    ],
    ids=["constants", "rows read before put", "weights of those who get nothing", "a table made once"],
)
def test_what_looks_like_a_fault_is_none(rule: str, steps: dict[str, Any]) -> None:
    check(broken(**steps), rule)


# ---- engines ------------------------------------------------------------------------------------------------------


def counts_calls(self: Method, c: Client) -> Work:
    SEEN[c.round] = SEEN.get(c.round, torch.tensor(0.0)) + 1 if c.id != 0 else torch.tensor(1.0)
    w = yield Train(c.received.model, lr=0.01 * float(SEEN[c.round]))
    return Bundle(model=w)


@dataclass(frozen=True)
class Alike:
    """A loss that claims to equal others of its class, so that clients share a stack who must not."""

    by: float = field(compare=False)

    def __call__(self, net: Any, w: Tensor, batch: Any, aux: Bundle) -> Tensor:
        return cross_entropy(net, w, batch, aux) * self.by


def scales_its_loss(self: Method, c: Client) -> Work:
    w = yield Train(c.received.model, loss=Alike(1.0 + c.id))
    return Bundle(model=w)


def test_results_that_only_an_engine_changes_are_found() -> None:
    """Memory shared in one process, and requests that share a stack, in the engines that are usual."""
    SEEN.clear()
    method = broken(client_update=counts_calls, sample=lambda self, s, r: r.ids)
    check_method(method, engines=[], rules=["runs"])
    with refuses(RuleBroken, "'same result': Workers(number=2)", "Loop()"):
        check_method(method, engines=[Workers(2)], rules=["same result"])
    method = broken(client_update=scales_its_loss)
    with refuses(RuleBroken, "'same result': Stacked(device='cpu'", "Loop()"):
        check_method(method, rules=["same result"])
    assert [type(engine).__name__ for engine in usual_engines()] == ["Workers", "Stacked", "Workers"]


@dataclass(frozen=True)
class OffAt:
    """An engine with a tolerance that trains otherwise than the loop in runs of some seeds."""

    seeds: tuple[int, ...]
    tolerance: float = 1e-5

    def start(self, job: Any) -> Any:
        lr = job.training.lr * (1.1 if job.seed in self.seeds else 1.0)
        return Loop().start(replace(job, training=job.training.but(lr=lr)))


def test_rounding_that_is_magnified_at_one_seed_is_no_mistake() -> None:
    """An activation that rounding turns on moves a model far; what is wrong is so at the next seed, too."""
    check_method(Honest(), engines=[OffAt((1,))], rules=["same result"])
    with refuses(RuleBroken, "'same result': OffAt"):
        check_method(Honest(), engines=[OffAt((1, 2))], rules=["same result"])


# ---- declarations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Silent(Method):
    rate: float = 0.5
    size: int = 2
    """Said."""
    init = distribute = client_update = aggregate = Honest.init  # type: ignore[assignment]


@dataclass(frozen=True)
class Rich(Method):
    rate: Any = field(default_factory=lambda: torch.tensor(1.0))
    """A tensor."""
    init = distribute = client_update = aggregate = Honest.init  # type: ignore[assignment]


@dataclass(frozen=True, repr=False)
class Mute(Method):
    rate: float = 0.5
    """Not shown."""
    init = distribute = client_update = aggregate = Honest.init  # type: ignore[assignment]


@dataclass(frozen=True)
class Forgetful(Method):
    rate: float = field(default=0.5, repr=False)
    """Not shown."""
    init = distribute = client_update = aggregate = Honest.init  # type: ignore[assignment]


@dataclass(frozen=True)
class Around(Method):
    inner: Method
    """Another method."""
    init = distribute = client_update = aggregate = Honest.init  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("method", "facts"),
    [
        (Silent(), "field rate, docstring"),
        (Rich(), "field rate, tensor(1.)"),
        (Mute(), "repr, cannot be read as Python"),
        (Forgetful(rate=0.7), "repr, makes another method: Forgetful()"),
        (Around(Silent()), "field rate, docstring"),
        (toy(dataclass(eq=True), scale=None)(), "frozen dataclass"),
        (toy(lambda cls: cls, scale=None)(), "frozen dataclass"),
    ],
    ids=["no docstring", "a tensor", "no repr", "a repr that forgets", "a wrapped one", "not frozen", "no dataclass"],
)
def test_a_method_that_cannot_be_written_down_is_found(method: Method, facts: str) -> None:
    """Fields need help texts and values that a config file can hold, and the repr must make the method again."""
    with refuses(RuleBroken, "'declared': ", *facts.split(", ")):
        check(method, "declared")


def test_a_method_cannot_inherit_from_a_method() -> None:
    """Methods are final: the class statement itself fails."""
    with refuses(TypeError, "Child", "Honest", "final"):

        class Child(Honest):
            pass


# ---- check_method itself ------------------------------------------------------------------------------------------


def test_an_unknown_rule_is_an_error_with_the_nearest_name() -> None:
    with refuses(ConfigError, "'own dat'", "'own data'"):
        check_method(Honest(), rules=["own dat"])


def test_global_generators_and_threads_are_as_before() -> None:
    before = torch.random.get_rng_state(), random.getstate(), torch.get_num_threads()
    check_method(Honest(), engines=[], rules=["runs", "own data", "pure steps"])
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1:] == (random.getstate(), torch.get_num_threads())
