"""Forward passes by compiled programs: against float64 on random chains, row by row, and where the module is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from chains import CLASSES, SHAPE, SMALL, Make, chains, data_for, one_of_each
from fedkin.core import Bundle, ClientData, MethodError, Net, Samples, Training
from fedkin.core.samples import tally
from fedkin.core.settings import Gradient
from fedkin.engines import Engine, Job, Loop, Task, Workers
from fedkin.engines.passes import CompiledPasses, RememberingClient, compiled_passes, evaluating
from fedkin.engines.steps import layers_of
from fedkin.methods import FedAvg
from fedkin.privacy.dp_sgd import Private
from fedkin.testing.toys import federation, network

pytest.importorskip("llvmlite")

from fedkin.engines.compiled.request import CompiledChain

TOLERANCE = 1e-5
"""Largest difference to float64, as a fraction of the largest number, or of 1."""
MAKE = one_of_each(32)  # the weight of its last layer is read from the flat vector


Counted = tuple[Net, Tensor, list[int]]


def passes(net: Net, batch: int = 10) -> CompiledPasses:
    found = compiled_passes(net, batch)
    assert isinstance(found, CompiledPasses)
    return found


def program(net: Net, batch: int = 10) -> CompiledChain:
    return passes(net, batch)._program


def exact(make: Make, net: Net, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The head's input and the logits in float64."""
    module, seen = make().double(), list[Tensor]()
    module.get_submodule(net.head_name).register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    named = {name: w.double()[span].view(shape) for name, (span, shape) in net.places().items()}
    with torch.no_grad():
        logits = torch.func.functional_call(module, named, (x.double(),))
    return seen[-1], logits


def near(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= TOLERANCE * max(1.0, float(expected.abs().max())))


# ---- numbers --------------------------------------------------------------------------------------------------------
RANDOM = (
    st.booleans().flatmap(lambda images: chains(images=images)),
    st.sampled_from([1, 3, 8, 10, 16, 23]),
    st.sampled_from([1, 3, 10, 13, 37]),
)


@given(*RANDOM)
@settings(max_examples=3, deadline=None)
def test_random_chains_agree_with_float64(chain: tuple[Make, tuple[int, ...]], batch: int, n: int) -> None:
    """Logits and features of a random model; each sample's are, to the last bit, those of the sample alone."""
    check(chain, batch, n)


@pytest.mark.thorough
@given(*RANDOM)
@settings(max_examples=100, deadline=None)
def test_many_random_chains_agree_with_float64(chain: tuple[Make, tuple[int, ...]], batch: int, n: int) -> None:
    """Two programs of each chain are compiled, which takes a second: before a release."""
    check(chain, batch, n)


def check(chain: tuple[Make, tuple[int, ...]], batch: int, n: int) -> None:
    make, shape = chain
    net = Net(make, shape, CLASSES)
    w, x = net.fresh(1), data_for(shape, n).x
    logits, z = CompiledChain(layers(net), shape, batch).forward(w, net.layout(x), features=True)
    features, expected = exact(make, net, w, x)
    assert logits.shape == (n, CLASSES)
    assert z.shape == features.shape
    assert near(logits, expected)
    assert near(z, features)
    alone = [passes(net)(w, one, features=True) for one in x.split(1)]
    for i, given_ in enumerate((logits, z)):
        assert torch.equal(torch.cat([one[i] for one in alone if one is not None]), given_)  # type: ignore[misc]


def layers(net: Net) -> Any:
    found = layers_of(net)
    assert not isinstance(found, str)
    return found


# ---- numbers that are none ------------------------------------------------------------------------------------------
def test_nan_stays_with_its_sample_and_leaves_nothing_behind() -> None:
    """In a block of a linear layer and between images; the next pass and a short one find no trace of it."""
    for make, shape in ((MAKE, SHAPE), (SMALL, (6,))):
        net, x = Net(make, shape, CLASSES), data_for(shape, 13).x
        run = program(net, 5)
        clean, few = run.forward(net.w0, x)[0], run.forward(net.w0, x[:2])[0]
        bad = x.clone()
        bad[4].view(-1)[2] = float("nan")
        found = run.forward(net.w0, bad)[0]
        assert bool(found[4].isnan().all())
        others = torch.arange(13) != 4
        assert torch.equal(found[others], clean[others])
        assert bool(run.forward(torch.full_like(net.w0, float("nan")), x)[0].isnan().all())
        assert bool(run.forward(net.w0, torch.full_like(x, float("inf")))[0].isnan().any())
        assert torch.equal(run.forward(net.w0, x[:2])[0], few)
        assert torch.equal(run.forward(net.w0, x)[0], clean)


# ---- what methods see -----------------------------------------------------------------------------------------------
def shards_of(shape: tuple[int, ...], clients: int = 3) -> tuple[ClientData, ...]:
    """Clients with 12 training samples, two for validation and seven for tests."""
    every = data_for(shape, 21 * clients)
    parts = [Samples(x, y) for x, y in zip(every.x.split(21), every.y.split(21), strict=True)]

    def cut(p: Samples, a: int, b: int) -> Samples:
        return Samples(p.x[a:b], p.y[a:b])

    return tuple(ClientData(cut(p, 0, 12), cut(p, 12, 14), cut(p, 14, 21)) for p in parts)


def evaluations(
    net: Net, shards: tuple[ClientData, ...], gradient: Gradient, received: Bundle, engine: Engine | None = None
) -> list[Bundle]:
    """What each client answers to an evaluation by FedAvg."""
    job = Job(FedAvg(), net, Training(lr=0.1), shards, 0, gradient=gradient)
    session = (engine or Loop()).start(job)
    try:
        answers = session.map([Task("evaluate", i, 1, received, Bundle()) for i in range(len(shards))])
        return [b for _, b in sorted((a.client, a.reply.owned()) for a in answers)]
    finally:
        session.close()


@pytest.mark.parametrize(("make", "shape"), [(SMALL, (6,)), (MAKE, SHAPE)])
def test_engines_evaluate_alike(make: Make, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, one worker, two workers: the same counts, by programs, which agree with the module's."""
    net, shards = Net(make, shape, CLASSES), shards_of(shape)
    sent = Bundle(model=net.fresh(3))
    assert evaluating(Job(FedAvg(), net, Training(), shards, 0)) is not net  # it is compared with the module once
    asked = calls(monkeypatch)
    alone = evaluations(net, shards, "compiled", sent)
    assert asked == [7, 2] * 3  # test and validation samples of each client
    assert same(alone, evaluations(net, shards, "compiled", sent, Workers(1)))
    assert same(alone, evaluations(net, shards, "compiled", sent, Workers(2)))
    assert same(alone, evaluations(net, shards, "explicit", sent))  # no tie is near on these samples
    assert len(asked) == 6
    for b, shard in zip(alone, shards, strict=True):
        for name, data in (("test", shard.test), ("validation", shard.validation)):
            assert torch.equal(b[name], tally(data.y, exact(make, net, sent.model, data.x)[1].argmax(1), CLASSES))


def same(a: list[Bundle], b: list[Bundle]) -> bool:
    return [set(x) for x in a] == [set(x) for x in b] and all(
        torch.equal(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x
    )


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of samples of the forward passes by programs from now on, in this process."""
    asked, right = list[int](), CompiledChain.forward

    def forward(self: CompiledChain, w: Tensor, x: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        asked.append(len(x))
        return right(self, w, x, features=features)

    monkeypatch.setattr(CompiledChain, "forward", forward)
    return asked


def test_only_compiled_training_goes_with_compiled_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not private runs, networks that are no chains, other gradients, or where llvmlite is missing."""
    net = network("mlp")
    job = Job(FedAvg(), net, Training(), federation(), 1)
    assert evaluating(replace(job, gradient="compiled")) is not net
    assert evaluating(job) is evaluating(job) is not net
    for gradient in ("explicit", "autograd"):
        assert evaluating(replace(job, gradient=gradient)) is net
    assert evaluating(replace(job, private=Private(1.0))) is net
    norm = network("norm")
    assert evaluating(replace(job, net=norm)) is norm
    net = Net(SMALL, (6,), CLASSES)
    monkeypatch.setattr("fedkin.engines.native.why_not_compiled", lambda: "for this test")
    assert evaluating(Job(FedAvg(), net, Training(), (), 1)) is net


@pytest.mark.parametrize("wrong", ["logits", "features"])
def test_a_program_that_disagrees_with_the_module_is_not_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, right = Net(SMALL, (6,), CLASSES), CompiledChain.forward

    def forward(self: CompiledChain, w: Tensor, x: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        logits, z = right(self, w, x, features=True)
        return (logits + 0.1, z) if wrong == "logits" else (logits, z.flip(1))

    monkeypatch.setattr(CompiledChain, "forward", forward)
    found = compiled_passes(net, 10)
    if wrong == "logits":
        assert found == "its program does not agree with the module"
        return
    assert isinstance(found, CompiledPasses)
    assert found(net.w0, data_for((6,)).x, features=False) is not None
    assert found(net.w0, data_for((6,)).x, features=True) is None


# ---- where the module is asked after all ----------------------------------------------------------------------------
class Watching(TorchFunctionMode):
    """A mode that changes nothing and counts the calls of linear layers."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += int(func is F.linear)
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """A network whose passes are compiled, its model, and the numbers of samples that programs are asked for."""
    net = Net(SMALL, (6,), CLASSES)
    by = passes(net)
    return net.evaluated_by(by), net.w0, calls(monkeypatch)


def test_gradients_are_torchs(counted: Counted) -> None:
    """Passes with gradient, and all those inside a loss in training."""
    net, w, asked = counted
    x = data_for((6,)).x
    w.requires_grad_(True)
    (g,) = torch.autograd.grad(net(w, x).sum(), w)
    assert float(g.abs().max()) > 0
    with torch.no_grad():
        inside = net.training()
        inside(w, x), inside.frozen(w, x), inside.features_and_logits(w, x)
        assert asked == []
        net(w, x)
        assert asked == [12]


@pytest.mark.parametrize("mode", [Watching, Dispatching])
def test_a_mode_sees_every_layer(mode: Callable[[], Any], counted: Counted) -> None:
    net, w, asked = counted
    x = data_for((6,)).x
    with torch.no_grad(), mode():
        net(w, x), net.features_and_logits(w, x)
    assert asked == []


def test_other_tensors_are_left_to_the_module(counted: Counted) -> None:
    """Other types and lengths, which the module takes or refuses by itself; the vector of two models is too long."""
    net, w, asked = counted
    x = data_for((6,)).x
    module = Net(SMALL, (6,), CLASSES)
    with torch.no_grad():
        assert torch.equal(net(w.double(), x.double()), module(w.double(), x.double()))
        assert net(w.double(), x.double()).dtype == torch.float64
        for bad_w, bad_x in ((torch.cat([w, w]), x), (w, x[:, :5]), (w, x.to(torch.int64)), (w, x.to("meta"))):
            with pytest.raises((RuntimeError, ValueError, MethodError)):
                net(bad_w, bad_x)
        assert asked == []
        assert net(w, x[0]).shape == (CLASSES,)  # one sample without a batch, as a linear layer takes it
    assert asked == []


def test_a_head_that_is_not_the_last_layer_has_its_features_from_the_module() -> None:
    net, reference = (Net(SMALL, (6,), CLASSES, head="0") for _ in range(2))
    x, view = data_for((6,)).x, net.evaluated_by(passes(net))
    with torch.no_grad():
        view(net.w0, 2 * x)  # by the program, which leaves no features behind
        z, logits = view.features_and_logits(net.w0, x)
        assert torch.equal(z, x)
        assert torch.equal(logits, reference(net.w0, x))
        assert near(view(net.w0, x), logits)


# ---- what a client remembers ----------------------------------------------------------------------------------------
def client(net: Net) -> RememberingClient:
    data = data_for((6,))
    return RememberingClient(0, data, data, net, Training(), Bundle(), Bundle())


def test_logits_of_a_model_are_computed_once_in_a_step(counted: Counted) -> None:
    """For equal numbers, wherever they lie; a model that changed is evaluated anew."""
    net, w, asked = counted
    c = client(net)
    first = c.logits(w)
    expected = first.clone()
    first.zero_()
    again = c.inside("wrapped").logits(torch.stack([w, w])[1])
    assert torch.equal(again, expected)
    again.zero_()
    assert torch.equal(c.logits(w), expected)
    assert c.loss(w) == pytest.approx(float(F.cross_entropy(expected, c.data.y)))
    assert asked == [12]
    asked.clear()
    c = client(net)
    before = c.logits(w)
    w.data[0] += 1
    assert not torch.equal(c.logits(w), before)
    w.numpy()[0] -= 1
    c.logits(w)
    assert not torch.equal(c.logits(2 * w), before)
    assert len(asked) == 3 + int(not torch.equal(w, net.w0))


def test_what_is_watched_is_not_remembered(counted: Counted) -> None:
    """A mode or a hook sees the module's pass, although the logits are known; other tensors are the module's, too."""
    net, w, asked = counted
    c, seen = client(net), list[Tensor]()
    expected = c.logits(w)
    with Watching() as mode:
        assert torch.allclose(c.logits(w), expected, atol=1e-6)
    handle = net.module[1].register_forward_hook(lambda *args: seen.append(args[-1]))  # type: ignore[index]
    assert torch.allclose(c.logits(w), expected, atol=1e-6)
    handle.remove()
    assert mode.calls > 0
    assert len(seen) == 1
    many = torch.func.vmap(c.logits)(torch.stack([w, w]))
    assert torch.allclose(many[1], expected, atol=1e-6)
    with pytest.raises(MethodError):
        c.logits(w.double())
    assert torch.equal(c.logits(w), expected)
    assert asked == [12]
