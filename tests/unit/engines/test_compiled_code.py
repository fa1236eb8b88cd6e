"""What surrounds compiled training: its cache, processors with less, what it leaves to others, labels it refuses."""

from __future__ import annotations

import os
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chains import CLASSES, SHAPE, SMALL, data_for, made, one_of_each, reference, sequence
from fedkin.core import Bundle, ConfigError, Net, Samples, Train, Training
from fedkin.core.parts import Spans
from fedkin.core.seeds import generator
from fedkin.engines import Job, Loop, gradients, resolved, why_not_compiled
from fedkin.engines.chain import Layer
from fedkin.engines.loop import sgd
from fedkin.engines.native import native
from fedkin.engines.steps import layers_of
from fedkin.methods import FedAvg
from fedkin.testing.toys import federation, network
from refusals import refuses

pytest.importorskip("llvmlite")

from fedkin.engines.compiled import machine_code
from fedkin.engines.compiled.code import host
from fedkin.engines.compiled.layout import Layout
from fedkin.engines.compiled.request import CompiledChain, RequestTerms
from fedkin.engines.compiled.units import units_of

MAKE = one_of_each(9)


GROUPS, DILATED = made(nn.Conv2d, 2, 4, 3, groups=2), made(nn.Conv2d, 1, 4, 2, dilation=2)
CUT = made(nn.MaxPool2d, 2, ceil_mode=True)


def layers(net: Net) -> tuple[Layer, ...]:
    found = layers_of(net)
    assert not isinstance(found, str)
    return found


def trained(program: CompiledChain, net: Net, data: Samples, batch: int = 5) -> Tensor:
    """Two epochs by a program, with all terms."""
    terms = RequestTerms(
        center=net.fresh(1), linear=0.1 * net.fresh(2), mu=0.5, decay=0.1, decay_biases=0.1, momentum=0.5
    )  # fmt: skip
    rng = generator(1)
    epochs = [(torch.randperm(len(data), generator=rng), lr) for lr in (0.05, 0.03)]
    part = program.moving(Spans.of(None, net.size))
    assert part is not None
    return program(net.w0, net.layout(data.x), data.y, epochs, batch, part, terms)


# ---- the cache ------------------------------------------------------------------------------------------------------
@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedkin" / "compiled"


def test_code_is_made_once_and_kept_for_this_user_alone(cache: Path) -> None:
    """The second program comes from the file of the first, and computes the same."""
    net, data = Net(SMALL, (6,), CLASSES), data_for((6,))
    first = CompiledChain(layers(net), (6,), 5)
    (file,) = cache.iterdir()
    second = CompiledChain(layers(net), (6,), 5)
    assert (first.code.made, second.code.made) == (True, False)
    assert torch.equal(trained(first, net, data), trained(second, net, data))
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:100] + b"x" + b[101:], lambda b: b"", lambda b: b[:20]]
)
def test_a_damaged_file_is_made_again(damage: Any, cache: Path) -> None:
    net, data = Net(SMALL, (6,), CLASSES), data_for((6,))
    whole = trained(CompiledChain(layers(net), (6,), 5), net, data)
    (file,) = cache.iterdir()
    before = file.read_bytes()
    file.write_bytes(damage(before))
    again = CompiledChain(layers(net), (6,), 5)
    assert again.code.made
    assert torch.equal(trained(again, net, data), whole)
    assert file.read_bytes()[:32] == machine_code.hashlib.sha256(file.read_bytes()[32:]).digest()


def test_cached_code_of_others_is_not_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that others can write to is made private; an old llvmlite counts as none."""
    net = Net(SMALL, (6,), CLASSES)
    CompiledChain(layers(net), (6,), 5)
    cache.chmod(0o777)
    assert CompiledChain(layers(net), (6,), 5).code.made
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setattr("llvmlite.__version__", "0.44.1")
    assert why_not_compiled() == "llvmlite 0.44.1 is too old: pip install 'fedkin[fast]'"
    assert resolved("auto") == "explicit"


def test_files_are_deleted_half_a_year_after_their_last_use(cache: Path) -> None:
    """When one is added: those of networks and versions that nothing uses any more. Reading one is a use."""
    net, day, now = Net(SMALL, (6,), CLASSES), 86_400, time.time()
    CompiledChain(layers(net), (6,), 5)
    (used,) = cache.iterdir()
    unused, recent = cache / "unused.o", cache / "recent.o"
    for path, days in ((used, 300), (unused, 181), (recent, 179)):
        path.write_bytes(used.read_bytes())
        os.utime(path, (now - days * day, now - days * day))
    assert not CompiledChain(layers(net), (6,), 5).code.made
    assert unused.exists()
    other = Net(sequence(made(nn.Linear, 6, CLASSES)), (6,), CLASSES)
    assert CompiledChain(layers(other), (6,), 5).code.made
    assert {used, recent} < set(cache.iterdir())
    assert len([*cache.iterdir()]) == 3


def test_the_name_of_a_file_depends_on_all_that_decides_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    net, target = Net(SMALL, (6,), CLASSES), host()
    units = units_of(layers(net), (6,))
    other = units_of(layers(Net(sequence(made(nn.Linear, 6, CLASSES)), (6,), CLASSES)), (6,))
    names = [
        machine_code.fingerprint(Layout(units, 10), 10, target),
        machine_code.fingerprint(Layout(units, 20), 10, target),
        machine_code.fingerprint(Layout(units, 10), 5, target),
        machine_code.fingerprint(Layout(other, 10), 10, target),
        machine_code.fingerprint(Layout(units, 10), 10, replace(target, features=target.features + ",-avx512f")),
        machine_code.fingerprint(Layout(units, 10), 10, replace(target, cpu="generic")),
    ]
    monkeypatch.setattr(machine_code, "_generator", lambda: "another version of these files")
    names.append(machine_code.fingerprint(Layout(units, 10), 10, target))
    monkeypatch.setattr(machine_code.llvmlite, "__version__", "9.9")
    names.append(machine_code.fingerprint(Layout(units, 10), 10, target))
    assert len(set(names)) == len(names)


# ---- processors -----------------------------------------------------------------------------------------------------
X86 = pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="features of x86 processors")


@X86
@pytest.mark.parametrize("batch", [5, 8])
def test_avx2_gives_the_bits_of_avx512(batch: int) -> None:
    """Other widths and other blocks, but the same sums in the same order."""
    if not host().can("avx512f"):
        pytest.skip("this processor has no AVX512 to compare with")
    net, data = Net(MAKE, SHAPE, CLASSES), data_for(SHAPE)
    here, there = (
        CompiledChain(layers(net), SHAPE, batch, target)
        for target in (host(), host().without("avx512", "evex512", "avx10"))
    )
    assert here.code.target.vectors > there.code.target.vectors
    assert torch.equal(trained(here, net, data, batch), trained(there, net, data, batch))


@X86
@pytest.mark.parametrize(
    "without", [("avx512", "evex512", "avx10"), ("avx", "evex512", "fma", "f16c", "vaes", "vpcl", "xop")]
)
def test_lesser_processors_agree_with_float64(without: tuple[str, ...]) -> None:
    """AVX2, and SSE4, which rounds products and sums apart."""
    net, data, target = Net(MAKE, SHAPE, CLASSES), data_for(SHAPE), host().without(*without)
    assert target.fma == ("fma" not in without)
    program = CompiledChain(layers(net), SHAPE, 5, target)
    part = program.moving(Spans.of(None, net.size))
    assert part is not None
    order = torch.randperm(len(data), generator=generator(0, "x"))
    found = program(net.w0, net.layout(data.x), data.y, [(order, 0.05)], 5, part, RequestTerms())
    expected = reference(MAKE, net, Train(net.w0), data, Training(batch_size=5, lr=0.05), generator(0, "x"))
    assert float((found - expected).abs().max()) <= 1e-6


# ---- numbers that are none, and state from before ------------------------------------------------------------------
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_diverged_model_looks_diverged_and_leaves_nothing_behind(poison: float) -> None:
    """NaN goes through ReLU and pooling; the next client, with a short batch, finds no trace of it."""
    net, data = Net(MAKE, SHAPE, CLASSES), data_for(SHAPE, 13)
    program = CompiledChain(layers(net), SHAPE, 5)
    few = data_for(SHAPE, 3)  # less than the block of a linear layer
    clean, small = trained(program, net, data), trained(program, net, few)
    bad = Samples(data.x.clone(), data.y)
    bad.x[4, 1, 7, 7] = poison
    lost = trained(program, net, bad)
    first = net.places()["0.weight"][0]
    assert bool(lost[first].isnan().all())
    assert bool(lost[net.head].isnan().all())
    assert torch.equal(trained(program, net, few), small)
    assert torch.equal(trained(program, net, data), clean)


def test_a_label_that_is_no_class_is_refused() -> None:
    """Also in the last, short batch; autograd and passes written out refuse it as well."""
    net = Net(SMALL, (6,), CLASSES)
    for wrong in (CLASSES, -1):
        data = data_for((6,))
        data.y[int(torch.randperm(12, generator=generator(0))[-1])] = wrong
        with refuses(IndexError, "0 to 3"):
            sgd(Train(net.w0), data, net, Training(batch_size=5), generator(0), gradient="compiled")


def test_the_layout_of_samples_does_not_matter() -> None:
    """Images by planes and by positions give the same bits, and slices that lie in neither way."""
    net, data = Net(MAKE, SHAPE, CLASSES), data_for(SHAPE)
    wide = torch.randn(12, 2, 15, 24)
    wide[..., ::2] = data.x
    forms = [data.x, data.x.contiguous(memory_format=torch.channels_last), wide[..., ::2]]
    a, b, c = (
        sgd(Train(net.w0), Samples(x, data.y), net, Training(), generator(0), gradient="compiled") for x in forms
    )
    assert torch.equal(a, b)
    assert torch.equal(a, c)


def test_a_batch_of_all_samples_makes_no_program_for_each_client() -> None:
    """A batch size in the millions is for the samples that there are."""
    net, training = Net(SMALL, (6,), CLASSES), Training(batch_size=1_000_000, lr=0.1, epochs=3)
    found = set()
    for n in (30, 300, 400):
        data = data_for((6,), n)
        chosen = native(Train(net.w0), training, data, net)
        assert not isinstance(chosen, str)
        found.add(chosen.program.batch)
        w = sgd(Train(net.w0), data, net, training, generator(0), gradient="compiled")
        expected = reference(SMALL, net, Train(net.w0), data, training, generator(0))
        assert float((w - expected).abs().max()) < 1e-6
    assert found == {256, 512}


# ---- what is left to others -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "shape", "why"),
    [
        (sequence(made(nn.ReLU), made(nn.Linear, 6, 4)), (6,), "begins with a ReLU"),
        (sequence(made(nn.Linear, 6, 4), made(nn.ReLU)), (6,), "does not end with a linear layer"),
        (sequence(made(nn.MaxPool2d, 2), made(nn.Flatten), made(nn.Linear, 4, 4)), (1, 4, 4), "begins with a pooling"),
        (sequence(GROUPS, made(nn.Flatten), made(nn.Linear, 16, 4)), (2, 4, 4), "groups"),
        (sequence(DILATED, made(nn.Flatten), made(nn.Linear, 16, 4)), (1, 4, 4), "dilation"),
        (sequence(made(nn.Conv2d, 1, 4, 1), made(nn.MaxPool2d, 3, 2, 1), made(nn.Flatten), made(nn.Linear, 16, 4)),
         (1, 4, 4), "pooling with padding"),
        (sequence(made(nn.Conv2d, 1, 4, 1), CUT, made(nn.Flatten), made(nn.Linear, 36, 4)),
         (1, 5, 5), "windows are cut"),
    ],
)  # fmt: skip
def test_chains_that_are_not_compiled(make: Any, shape: tuple[int, ...], why: str) -> None:
    """Their passes are written out, bit for bit as without llvmlite, and the summary says why."""
    net, data = Net(make, shape, CLASSES), data_for(shape)
    assert why in str(native(Train(net.w0), Training(), data, net))
    a, b = (sgd(Train(net.w0), data, net, Training(), generator(0), gradient=g) for g in ("compiled", "explicit"))
    assert torch.equal(a, b)


def test_requests_that_are_not_compiled() -> None:
    net, data = Net(SMALL, (6,), CLASSES), data_for((6,))
    one = net.places()["0.weight"][0]
    for request, why in (
        (Train(net.w0, clip=1.0), "clipped"),
        (Train(net.w0, optimizer="adam"), "the optimizer is adam"),
        (Train(net.w0, only=one), "a part of a layer, or a layer between others, stands still"),
        (Train(net.w0.double()), "float32"),
        (Train(net.w0, linear=torch.zeros_like(net.w0, dtype=torch.float64)), "not float32"),
        (Train(net.w0, per_sample=Bundle(offset=torch.zeros(3, CLASSES))), "expected shape"),
    ):
        assert why in str(native(request, request.training(Training()), data, net))


def test_a_program_that_disagrees_with_autograd_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason is: here the program trains towards another linear term than it was given."""
    net, data = Net(SMALL, (6,), CLASSES), data_for((6,))
    module = sys.modules["fedkin.engines.native"]
    right = module._terms  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "_terms", lambda *a: replace(right(*a), decay=0.1))
    assert "does not agree with autograd" in str(native(Train(net.w0), Training(), data, net))


def job(gradient: Any) -> Job:
    return Job(FedAvg(), network("mlp"), Training(), federation(), 1, gradient=gradient)


def test_without_llvmlite_everything_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto takes the passes written out, says why, and how to get the other; asking for it is an error."""
    net, data = Net(SMALL, (6,), CLASSES), data_for((6,))
    explicit = sgd(Train(net.w0), data, net, Training(), generator(0), gradient="explicit")
    compiled = "training compiled (a chain of 3 layers; a method's own losses by autograd)"
    assert compiled in gradients(Loop(), job("auto"))
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert "pip install 'fedkin[fast]'" in why_not_compiled()
    assert resolved("auto") == "explicit"
    said = gradients(Loop(), job("auto"))
    assert "gradients written out" in said
    assert "llvmlite is not installed" in said
    assert torch.equal(sgd(Train(net.w0), data, net, Training(), generator(0)), explicit)
    with refuses(ConfigError, "llvmlite", "pip install"):
        sgd(Train(net.w0), data, net, Training(), generator(0), gradient="compiled")
