"""The contract can fail: for each rule a method that breaks it, and breaks nothing else on the way there."""

from __future__ import annotations

import random
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


def broken(**steps: Any) -> Method:
    """`Honest` with other steps, as a class of its own (methods are final)."""
    body = {n: v for n, v in Honest.__dict__.items() if not n.startswith("__") and n != "_abc_impl"}
    made = type("Broken", (Method,), {**body, **steps, "__module__": __name__})
    return dataclass(frozen=True)(made)()


def check(method: Method, rule: str) -> None:
    check_method(method, engines=[], rules=[rule])


def test_an_honest_method_passes() -> None:
    """The method that the broken ones differ from keeps every rule itself."""
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


@pytest.mark.parametrize("method", [Momentum(), Momentum(0.99), Momentum(0.9, lr=2.0), Momentum(0.0, lr=3.0)])
def test_momentum_at_the_server_is_no_fault(method: Method) -> None:
    """Running variances of a network may become negative by it, and no rule depends on that."""
    rules = ["runs", "resume", "odd federations", "pure steps"]
    check_method(method, engines=(Loop(),), rules=rules)


def sends(value: Any) -> Any:
    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.received.model)
        return value(c, w)

    return client_update


# ---- runs ---------------------------------------------------------------------------------------------------------


def test_nan_in_an_upload_is_found() -> None:
    """An upload that is not finite is refused by the round loop, which the contract reports with client and round."""
    method = broken(client_update=sends(lambda c, w: Bundle(model=w * float("nan"))))
    with pytest.raises(RuleBroken, match="'runs': the answer of client 1 was refused in round 1"):
        check(method, "runs")


def test_nan_in_the_server_state_is_found() -> None:
    """A server state that is not finite is named with its round."""
    method = broken(aggregate=lambda self, s, r, up: s.but(extra=torch.tensor(float("inf"))))
    with pytest.raises(RuleBroken, match="'runs': 'extra' in the server's state is not finite after round 1"):
        check(method, "runs")


def test_nan_in_a_client_state_is_found() -> None:
    """A client's state that is not finite is named with the client."""

    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.received.model)
        c.state = Bundle(model=w / 0)
        return Bundle(model=w)

    with pytest.raises(RuleBroken, match=r"'runs': 'model' in the state of client \d is not finite after round 1"):
        check(broken(client_update=client_update), "runs")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda c, w: {"model": w}, "client code must return a Bundle, got dict"),
        (lambda c, w: None, "client code must return a Bundle, got NoneType"),
        (
            lambda c, w: Bundle(model=w, n=3),
            "client code must return a Bundle of tensors; 'n' is an int; write torch.tensor",
        ),
    ],
    ids=["dict", "nothing", "a plain number"],
)
def test_returning_something_else_than_a_bundle_of_tensors_is_an_error(value: Any, message: str) -> None:
    """What leaves a client must be a bundle of tensors; the error says what came instead."""
    with pytest.raises(MethodError, match=message):
        check(broken(client_update=sends(value)), "runs")


def test_predictions_without_a_number_are_found() -> None:
    """The models are finite, the logits are not."""
    method = broken(predict=lambda self, net, b, x: net(b.model, x) / 0 * 0)
    with pytest.raises(
        RuleBroken, match=r"the logits of client \d hold NaN in round 1, for \d+ samples, though models"
    ):
        check(method, "runs")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            {"rate": 0.5},
            r"rate = 0\.5 has no type, so it is not a setting; write rate: float = 0\.5, or RATE if it is a",
        ),
        ({"family": "mixtures"}, "family = 'mixtures' is none of 'no federation', 'one global model', "),
        ({"tuned": property(lambda self: {"nu": (0.1, 1.0)})}, "tuned has 'nu', which is not a field; there are none"),
    ],
    ids=["type", "family", "tuned"],
)
def test_statements_that_have_no_effect_are_found(steps: dict[str, Any], message: str) -> None:
    """A setting that no flag has, a name that nothing knows."""
    with pytest.raises(RuleBroken, match=message):
        check(broken(scale=None, **steps), "declared")
    check(broken(scale=None, RATE=0.5, _rate=0.5, family="mixture"), "declared")


def test_a_state_that_is_no_bundle_is_an_error() -> None:
    """What stays on a client must be a bundle of tensors, too."""

    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.received.model)
        c.state = {"model": w}  # type: ignore[assignment]
        return Bundle(model=w)

    with pytest.raises(MethodError, match=r"c\.state must be a Bundle, got dict"):
        check(broken(client_update=client_update), "runs")


def test_yielding_something_else_than_train_is_an_error_with_a_note() -> None:
    """A wrong request is a `MethodError` that names client and round; a note names the rule that was being checked."""

    def client_update(self: Method, c: Client) -> Work:
        w = yield c.received.model  # type: ignore[misc]
        return Bundle(model=w)

    with pytest.raises(MethodError, match="client 1 failed in round 1: client code may yield Train") as caught:
        check(broken(client_update=client_update), "runs")
    assert "while the rule 'runs' was checked" in caught.value.__notes__[0]


def test_a_wrong_number_of_rows_is_an_error() -> None:
    """`distribute` must give one row for each receiver."""
    method = broken(distribute=lambda self, s, r: to_each(model=s.model.repeat(len(r.ids) + 1, 1)))
    with pytest.raises(MethodError, match="'model' has 5 rows for 4 clients"):
        check(method, "runs")


def test_sampling_somebody_who_is_not_there_is_an_error() -> None:
    """`sample` may choose only among the available clients."""
    with pytest.raises(MethodError, match=r"gave \[6\], which must be distinct clients out of"):
        check(broken(sample=lambda self, s, r: torch.tensor([6])), "runs")


def test_sampling_somebody_twice_is_an_error() -> None:
    """`sample` must choose distinct clients."""
    with pytest.raises(MethodError, match=r"gave \[0, 0\], which must be distinct"):
        check(broken(sample=lambda self, s, r: r.ids[[0, 0]]), "runs")


# ---- same result --------------------------------------------------------------------------------------------------


def test_torchs_global_generator_is_found() -> None:
    """A draw from torch's global generator differs from run to run."""
    method = broken(client_update=sends(lambda c, w: Bundle(model=w)), sample=_any_half)
    with pytest.raises(RuleBroken, match="'same result': the same run a second time gives another result"):
        check(method, "same result")


def _any_half(self: Method, s: Bundle, r: Round) -> Tensor:
    return r.ids[torch.randperm(len(r.ids))[:3]]


def test_torchs_global_generator_on_a_client_is_found() -> None:
    """The same on the client's side, before it trains."""

    def client_update(self: Method, c: Client) -> Work:
        noise = torch.rand(())
        w = yield Train(c.received.model + 0.01 * noise)
        return Bundle(model=w)

    with pytest.raises(RuleBroken, match="'same result': the same run a second time gives another result"):
        check(broken(client_update=client_update), "same result")


def test_pythons_global_generator_is_found() -> None:
    """So does a draw from Python's."""
    method = broken(client_update=sends(lambda c, w: Bundle(model=w + random.random())))
    with pytest.raises(RuleBroken, match="'same result': the same run a second time gives another result"):
        check(method, "same result")


def test_a_generator_of_fixed_seed_is_found() -> None:
    """Noise that comes from the code and not from the run's seed: other seeds do not change what is learned."""

    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.w0, steps=1, batch_size=100)
        c.state = Bundle()
        return Bundle(model=w * 0 + float(c.training.lr))

    method = broken(client_update=client_update)
    with pytest.raises(RuleBroken, match="'same result': another seed gives the same result"):
        check(method, "same result")


def test_memory_shared_between_clients_of_one_process_is_found_by_processes() -> None:
    """A method that counts its calls in a global gives other results where clients live in several processes."""
    SEEN.clear()

    def client_update(self: Method, c: Client) -> Work:
        key = c.round  # starts anew in each round, so that a second run in this process gives the same
        SEEN[key] = SEEN.get(key, torch.tensor(0.0)) + 1 if c.id != 0 else torch.tensor(1.0)
        w = yield Train(c.received.model, lr=0.01 * float(SEEN[key]))
        return Bundle(model=w)

    method = broken(client_update=client_update, sample=lambda self, s, r: r.ids)
    check_method(method, engines=[], rules=["runs"])
    with pytest.raises(RuleBroken, match=r"'same result': Workers\(number=2\) gives another result than Loop\(\)"):
        check_method(method, engines=[Workers(2)], rules=["same result"])


@dataclass(frozen=True)
class Alike:
    """A loss that claims to equal others of its class, so that clients share a stack who must not."""

    by: float = field(compare=False)

    def __call__(self, net: Any, w: Tensor, batch: Any, aux: Bundle) -> Tensor:
        return cross_entropy(net, w, batch, aux) * self.by


def test_a_result_that_only_stacks_change_is_found() -> None:
    """The stacked engine is one of those that must agree, in check_method as it comes, and to its tolerance."""

    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.received.model, loss=Alike(1.0 + c.id))
        return Bundle(model=w)

    method = broken(client_update=client_update)
    check_method(method, engines=[Workers(2)], rules=["same result"])
    with pytest.raises(RuleBroken, match=r"'same result': Stacked\(device='cpu'.* gives another result than Loop"):
        check_method(method, rules=["same result"])
    assert [type(engine).__name__ for engine in usual_engines()] == ["Workers", "Stacked", "Workers"]


@dataclass(frozen=True)
class OffAt:
    """An engine with a tolerance that trains otherwise than the loop in runs of some seeds."""

    seeds: tuple[int, ...]
    tolerance: float = 1e-5

    def start(self, job: Any) -> Any:
        lr = job.training.lr * (1.1 if job.seed in self.seeds else 1.0)
        return Loop().start(replace(job, training=replace(job.training, lr=lr)))


def test_rounding_that_is_magnified_at_one_seed_is_no_mistake() -> None:
    """An activation that rounding turns on moves a model far; what is wrong is so at the next seed, too."""
    check_method(Honest(), engines=[OffAt((1,))], rules=["same result"])
    with pytest.raises(RuleBroken, match=r"'same result': OffAt.* gives another result"):
        check_method(Honest(), engines=[OffAt((1, 2))], rules=["same result"])


# ---- resume -------------------------------------------------------------------------------------------------------


def test_a_server_state_hidden_in_the_method_is_found() -> None:
    """What a method keeps in itself is gone after a restart: the resumed run ends elsewhere."""

    def aggregate(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
        before = self.__dict__.get("_hidden", torch.zeros(len(s.model)))
        object.__setattr__(self, "_hidden", before + r.mean(up.model))
        return Bundle(model=self.__dict__["_hidden"] / r.index)

    with pytest.raises(RuleBroken, match="'resume': stopped after round 1 and continued from the stored states"):
        check(broken(aggregate=aggregate), "resume")


# ---- own data -----------------------------------------------------------------------------------------------------


def test_reading_other_clients_data_is_found() -> None:
    """A client that reads through a global what another one saw sends something else when only the other changes."""

    def describe(self: Method, c: Client) -> Bundle:
        SEEN[c.id] = c.data.x.mean()
        return Bundle()

    def client_update(self: Method, c: Client) -> Work:
        w = yield Train(c.received.model)
        return Bundle(model=w + sum(SEEN.values()))

    SEEN.clear()
    with pytest.raises(RuleBroken, match=r"'own data': client \d behaves differently when only the data of other"):
        check(broken(describe=describe, client_update=client_update), "own data")


# ---- odd federations ----------------------------------------------------------------------------------------------


def test_dividing_by_zero_other_clients_is_found() -> None:
    """A mean over the other clients of a round fails where there is one client; the message names the federation."""

    def aggregate(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
        return Bundle(model=s.model + (up.model.sum(0) - up.model[0] - s.model) / (len(r.ids) - 1))

    with pytest.raises(RuleBroken, match="'odd federations': with one client: 'model' in the server's state is not"):
        check(broken(aggregate=aggregate), "odd federations")


def test_forgetting_newcomers_is_found() -> None:
    """A server that makes its table once fails when clients come late; a note names the federation."""

    def admit(self: Method, s: Bundle, r: Round) -> Bundle:
        return s if "bank" in s else s.but(bank=s.model.repeat(len(r.roster), 1))

    method = broken(
        admit=admit,
        distribute=lambda self, s, r: to_each(model=s.bank[r.ids]),
        aggregate=lambda self, s, r, up: s.but(bank=s.bank.index_copy(0, r.ids, up.model)),
    )
    check(method, "runs")
    with pytest.raises(IndexError) as caught:
        check(method, "odd federations")
    assert any("late joiners" in note for note in caught.value.__notes__)


# ---- own memory ---------------------------------------------------------------------------------------------------


def test_two_names_for_one_memory_in_the_server_state_are_found() -> None:
    """A server state whose tensors are views of one another would change in two places at once."""
    method = broken(aggregate=_two_names)
    with pytest.raises(RuleBroken, match=r"'own memory': server state 'best' and server state 'model' share one stor"):
        check(method, "own memory")


def _two_names(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    mean = r.mean(up.model)
    return Bundle(model=mean, best=mean[:3])


def test_an_expanded_tensor_in_the_server_state_is_found() -> None:
    """Rows that are one row in memory would all change with one of them."""
    method = broken(aggregate=lambda self, s, r, up: s.but(bank=s.model.expand(6, -1)))
    with pytest.raises(RuleBroken, match="'own memory': server state 'bank' is an expanded tensor"):
        check(method, "own memory")


def test_keeping_what_clients_said_without_a_copy_is_found() -> None:
    """The roster's memory is the framework's, not the method's."""
    method = broken(
        describe=lambda self, c: Bundle(counts=c.counts()),
        admit=lambda self, s, r: s.but(counts=r.roster.described.counts),
        aggregate=lambda self, s, r, up: s.but(model=r.mean(up.model)),
    )
    with pytest.raises(RuleBroken, match="'own memory': what clients said of themselves, 'counts' and server state"):
        check(method, "own memory")


# ---- pure steps ---------------------------------------------------------------------------------------------------


def _client_that(writes: Any) -> Any:
    def client_update(self: Method, c: Client) -> Work:
        writes(c)
        w = yield Train(c.received.model)
        c.state = Bundle(model=w)
        return Bundle(model=w)

    return client_update


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        (lambda c: c.received.model.mul_(0.9), "client_update wrote into 'model' of c.received"),
        (lambda c: c.received.model.add_(1).sub_(1), "client_update wrote into 'model' of c.received"),
        (lambda c: c.data.x.add_(1), "client_update wrote into 'x' of c.data"),
        (lambda c: c.state.get("model", c.w0).zero_(), "client_update wrote into 'model' of the old c.state"),
        (
            lambda c: c.state.update(model=c.w0),
            r"client_update (added or removed|replaced) .*model.* in the old c.stat",
        ),
        (lambda c: c.received.update(more=c.w0), "client_update added or removed .'more'. in c.received"),
    ],
    ids=["received", "and back", "data", "state", "state's names", "received's names"],
)
def test_client_code_that_writes_into_what_it_was_given_is_found(writes: Any, message: str) -> None:
    """Downloads, data and the old state are not the client's to change, not even there and back."""
    with pytest.raises(RuleBroken, match=f"'pure steps': {message}"):
        check(broken(client_update=_client_that(writes)), "pure steps")


def _into_state(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    s.model.copy_(r.mean(up.model))
    return s


def _into_uploads(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    up.model.clamp_(-1, 1)
    return Bundle(model=r.mean(up.model))


def _into_roster(self: Method, s: Bundle, r: Round, up: Bundle) -> Bundle:
    r.roster.size.clamp_(max=5)
    return Bundle(model=r.mean(up.model))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_into_state, "aggregate wrote into 'model' of the server's state"),
        (_into_uploads, "aggregate wrote into 'model' of the uploads"),
        (_into_roster, "aggregate wrote into 'size' of the roster"),
    ],
    ids=["state", "uploads", "roster"],
)
def test_server_code_that_writes_into_what_it_was_given_is_found(step: Any, message: str) -> None:
    """The old server state, the uploads and the roster are read only."""
    with pytest.raises(RuleBroken, match=f"'pure steps': {message}"):
        check(broken(aggregate=step), "pure steps")


# ---- failed answers -----------------------------------------------------------------------------------------------


def test_old_rows_that_are_read_after_put_are_found() -> None:
    """In memory the old bank is as it was, in a file it is not: the two would come to different models."""

    def late(self: Any, s: Bundle, r: Round, up: Bundle) -> Bundle:
        bank = put(s.bank, r.ids, up.model)
        return Bundle(model=r.mean(up.model) + (bank - s.bank).mean(0), bank=bank)

    def early(self: Any, s: Bundle, r: Round, up: Bundle) -> Bundle:
        moved = (up.model - s.bank[r.ids]).sum(0) / len(s.bank)
        return Bundle(model=r.mean(up.model) + moved, bank=put(s.bank, r.ids, up.model))

    steps = {
        "init": lambda self, r: Bundle(model=r.w0, bank=torch.empty(0, r.net.size)),
        "admit": lambda self, s, r: s.but(bank=grow(s.bank, len(r.roster), r.w0)),
    }
    check(broken(**steps, aggregate=early), "banks")
    with pytest.raises(RuleBroken, match="'banks': with banks that `put` changes in place"):
        check(broken(**steps, aggregate=late), "banks")


def test_a_client_that_remembers_beside_its_state_is_found() -> None:
    """A count of rounds kept in a global is not rolled back when an answer is lost or refused, or asked for twice."""

    def client_update(self: Method, c: Client) -> Work:
        SEEN[c.id] = SEEN.get(c.id, torch.tensor(0.0)) + 1 if c.round > 1 else torch.tensor(1.0)
        w = yield Train(c.received.model)
        c.state = Bundle(times=SEEN[c.id].clone())
        return Bundle(model=w + 0.01 * SEEN[c.id])

    SEEN.clear()
    with pytest.raises(RuleBroken, match=r"'failed answers': .* ha(s|ve) another effect than"):
        check(broken(client_update=client_update), "failed answers")


def test_a_state_written_in_place_survives_a_refused_upload_and_is_found() -> None:
    """A client that writes into its old state has changed it although its upload was refused."""

    def client_update(self: Method, c: Client) -> Work:
        times = c.state.get("times", torch.zeros(1))
        w = yield Train(c.received.model)
        c.state = Bundle(times=times.add_(1))
        return Bundle(model=w)

    with pytest.raises(RuleBroken, match=r"'failed answers': the upload of client \d was lost in round 2, but its st"):
        check(broken(client_update=client_update, sample=lambda self, s, r: r.ids), "failed answers")


# ---- declared -----------------------------------------------------------------------------------------------------


def _toy(**options: Any) -> Any:
    """A class decorator that makes a method of a class with fields only, with the honest steps."""

    def make(cls: type) -> type:
        body = {n: v for n, v in Honest.__dict__.items() if callable(v) and not n.startswith("__")}
        made = type(cls.__name__, (Method,), {**dict(cls.__dict__), **body})
        return dataclass(**options)(made) if options else made

    return make


def test_a_method_that_is_not_frozen_is_found() -> None:
    """Hyperparameters do not change during a run."""

    @_toy(eq=True)
    class Loose:
        pass

    with pytest.raises(RuleBroken, match="'declared': Loose is not a frozen dataclass"):
        check(Loose(), "declared")


def test_a_method_without_dataclass_is_found() -> None:
    """A plain class has no fields, so no flags and no repr."""

    @_toy()
    class Plain:
        pass

    with pytest.raises(RuleBroken, match="'declared': Plain is not a frozen dataclass"):
        check(Plain(), "declared")


def test_a_function_that_is_nearly_called_like_a_step_is_found() -> None:
    """British spelling: the run would never call it. Helpers of other names are left alone."""

    @_toy(frozen=True)
    class British:
        def personalise(self, c: Client) -> Bundle:
            """Return the client's own model."""
            return Bundle(model=c.state.model)

        def mixture(self) -> None:
            """Do nothing."""

    with pytest.raises(RuleBroken, match=r"a function personalise, which is not a step .* rename it to personalize"):
        check(British(), "declared")


def test_a_method_cannot_inherit_from_a_method() -> None:
    """Methods are final: the class statement itself fails."""
    with pytest.raises(TypeError, match="Child inherits from the method Honest; methods are final, wrap it"):

        class Child(Honest):
            pass


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
    ("method", "message"),
    [
        (Silent(), "field rate has no docstring below it"),
        (Rich(), r"field rate holds tensor\(1.\); a setting must be a number, a text"),
        (Mute(), "its repr <.*> cannot be read as Python"),
        (Forgetful(rate=0.7), r"its repr Forgetful\(\) makes another method: Forgetful\(\)"),
        (Around(Silent()), "field rate has no docstring below it"),
    ],
    ids=["no docstring", "a tensor", "no repr", "a repr that forgets", "a wrapped one"],
)
def test_a_method_that_cannot_be_written_down_is_found(method: Method, message: str) -> None:
    """Fields need help texts and values that a config file can hold, and the repr must make the method again."""
    with pytest.raises(RuleBroken, match=f"'declared': {message}"):
        check(method, "declared")


# ---- distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"can": (Grouped(lambda m, s, r: torch.zeros(len(r.roster))),)}, "labels in round 1 must give None or int64"),
        ({"can": (Grouped(lambda m, s, r: torch.zeros(2, dtype=torch.int64)),)}, "labels in round 1 must give None or"),
        ({"can": (Grouped(lambda m, s, r: torch.full_like(r.roster.size, -3)),)}, "labels in round 1 gave the cluster"),
        ({"sample": lambda self, s, r: r.ids[:0]}, "sample in round 1 chose 0 of 4 available clients"),
        ({"sample": lambda self, s, r: r.ids[:2].float()}, "sample in round 1 must give int64"),
        ({"deliver": lambda self, s, r: Bundle(model=s.model)}, "deliver in round 1 must give what to_all or to_each"),
        (
            {"deliver": lambda self, s, r: to_all(model=s.model) | to_each(model=s.model.repeat(len(r.ids), 1))},
            r"deliver in round 1 gives \['model'\] both to all and to each",
        ),
        (
            {"distribute": lambda self, s, r: to_each(model=s.model.repeat(len(r.ids) - 1, 1))},
            r"distribute in round 1: 'model' is float32 \[1, \d+\] for 2 clients",
        ),
        (
            {"distribute": lambda self, s, r: to_each(model=s.model.repeat(len(r.ids), 1), given=torch.ones(1))},
            r"distribute in round 1: given of 'model' must be bool \[2\], is float32 \[1\]",
        ),
    ],
    ids=["float clusters", "too few", "below -1", "nobody", "float ids", "a bundle", "both", "rows", "mask"],
)
def test_downloads_and_relations_of_a_wrong_form_are_found(steps: dict[str, Any], message: str) -> None:
    """What the server's steps give has a fixed form; the message names step, round, and both forms."""
    with pytest.raises(RuleBroken, match=f"'distribution': {message}"):
        check(broken(**steps), "distribution")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda r: torch.ones(len(r.ids), len(r.roster)), "sum to 1; the least is 1, a sum is 4"),
        (lambda r: torch.full((len(r.ids), len(r.ids)), 0.5), r"weights must be float \[2, 4\], is float32 \[2, 2\]"),
        (lambda r: torch.tensor([[2.0, -1.0, 0, 0]]).repeat(len(r.ids), 1), "the least is -1"),
    ],
    ids=["sum", "shape", "negative"],
)
def test_mixing_weights_that_are_no_mixture_are_found(weights: Any, message: str) -> None:
    """The record of who learned from whom has one row per receiver, one column per client, and rows that sum to 1."""

    def distribute(self: Method, s: Bundle, r: Round) -> Download:
        return to_each(model=s.model.repeat(len(r.ids), 1), weights=weights(r))

    with pytest.raises(RuleBroken, match=f"'distribution': .*{message}"):
        check(broken(distribute=distribute), "distribution")


def test_weights_of_those_who_get_nothing_do_not_count() -> None:
    """Only those who are given a row must have weights that sum to 1."""

    def distribute(self: Method, s: Bundle, r: Round) -> Download:
        m = len(r.ids)
        given = torch.arange(m) == 0
        weights = torch.zeros(m, len(r.roster))
        weights[0, int(r.ids[0])] = 1
        return to_all(model=s.model) | to_each(teacher=s.model.repeat(m, 1), given=given, weights=weights)

    check(broken(distribute=distribute), "distribution")


# ---- check_method itself ------------------------------------------------------------------------------------------


def test_an_unknown_rule_is_an_error_with_the_nearest_name() -> None:
    """A misspelt rule is not silently skipped."""
    with pytest.raises(ConfigError, match="unknown rule 'own dat'; did you mean 'own data'"):
        check_method(Honest(), rules=["own dat"])


def test_global_generators_and_threads_are_as_before() -> None:
    """The check leaves no trace: neither in Python's and torch's generators nor in the number of threads."""
    before = torch.random.get_rng_state(), random.getstate(), torch.get_num_threads()
    check_method(Honest(), engines=[], rules=["runs", "own data", "pure steps"])
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1:] == (random.getstate(), torch.get_num_threads())


def test_a_methods_own_assertion_is_its_own_error() -> None:
    """An `assert` that fails inside client code is reported as a failing client, not as a broken rule."""

    def client_update(self: Method, c: Client) -> Work:
        assert c.id < 0, "never"
        yield Train(c.received.model)
        return Bundle()

    with pytest.raises(MethodError, match="AssertionError: never"):
        check(broken(client_update=client_update), "runs")
