"""Noise on what clients say: the right law, once for each client, and nothing said beside it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.core import Bundle, Client, ClientError, ConfigError, Method, Training
from fedkin.core.seeds import generator
from fedkin.core.settings import Settings
from fedkin.engines import Engine, Job, Loop, Task, Workers
from fedkin.methods import CAM, CFIC, DAPFL, METHODS, Oracle
from fedkin.privacy.noise import (
    Keyed,
    KeyedReports,
    Secret,
    Source,
    checked_epsilon,
    discrete_laplace,
    noisy_choice,
    noisy_counts,
    says,
)
from fedkin.server.requirements import require
from refusals import refuses
from toys import Averaging, federation, mlp

COUNTS = torch.tensor([40, 0, 3])
TRAINING = Training()


# ---- the sampler ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scale", [Fraction(2), Fraction(1, 3), Fraction(10, 7)], ids=str)
def test_the_law_of_discrete_laplace(scale: Fraction) -> None:
    """P(x) = tanh(1/2s) exp(-|x|/s): shares of 0, 1, -1 and 2 within four standard deviations, and the mean is 0."""
    n = 4000
    x = discrete_laplace(n, scale, Keyed(generator(1)))
    for value in (0, 1, -1, 2):
        p = math.tanh(1 / (2 * scale)) * math.exp(-abs(value) / scale)
        assert abs(int((x == value).sum()) - n * p) <= 4 * math.sqrt(n * p) + 2
    decay = math.exp(-1 / scale)
    variance = 2 * decay / (1 - decay) ** 2
    assert abs(float(x.double().mean())) <= 4 * math.sqrt(variance / n)


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 2.5])
def test_the_law_of_a_noisy_choice(epsilon: float) -> None:
    """Of five, the true one has the share e^epsilon / (e^epsilon + 4) and each other an equal one, within four standard
    deviations."""
    n, source = 4000, Keyed(generator(3))
    drawn = torch.tensor([noisy_choice(2, 5, epsilon, source) for _ in range(n)])
    for value in range(5):
        p = (math.exp(epsilon) if value == 2 else 1.0) / (math.exp(epsilon) + 4)
        assert abs(int((drawn == value).sum()) - n * p) <= 4 * math.sqrt(n * p * (1 - p))


def test_a_choice_almost_without_noise_and_one_of_noise_alone() -> None:
    """With a large epsilon the true one, also from the operating system's numbers; with a tiny one any."""
    assert {noisy_choice(j, 5, 50.0) == j for j in range(5)} == {True}
    assert {noisy_choice(0, 3, 1e-6) for _ in range(100)} == {0, 1, 2}


def test_far_tails_are_drawn() -> None:
    """At a scale of a million draws are about that far from 0, and not multiples of anything."""
    x = discrete_laplace(300, Fraction(10**6), Keyed(generator(2)))
    assert 8e5 < float(x.abs().double().mean()) < 1.2e6
    assert math.gcd(*x.tolist()) == 1


@given(n=st.integers(1, 1 << 80), seed=st.integers(0, 9))
def test_whole_numbers_stay_below(n: int, seed: int) -> None:
    assert 0 <= Keyed(generator(seed)).below(n) < n
    assert 0 <= Secret().below(n) < n


@pytest.mark.parametrize("source", [Keyed(generator(4)), Secret()], ids=["keyed", "secret"])
def test_uniform_and_normal(source: Source) -> None:
    """Means and variances of 20,000 draws within 6 standard deviations (the secret ones come anew in every test)."""
    n = 20_000
    u, z = source.uniform(n), source.normal(n)
    assert u.dtype == z.dtype == torch.float64
    assert 0 <= float(u.min()) <= float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 6 / math.sqrt(12 * n)
    assert abs(float(z.mean())) < 6 / math.sqrt(n)
    assert abs(float(z.var()) - 1) < 6 * math.sqrt(2 / n)
    assert abs(float((z.abs() > 1.96).double().mean()) - 0.05) < 6 * math.sqrt(0.05 * 0.95 / n)
    assert len(source.uniform(0)) == len(source.normal(0)) == 0


def test_secret_numbers_do_not_come_again() -> None:
    """No seed repeats them; those of a generator are repeated by its seed."""
    assert not torch.equal(Secret().normal(4), Secret().normal(4))
    assert torch.equal(Keyed(generator(5)).normal(4), Keyed(generator(5)).normal(4))


# ---- counts --------------------------------------------------------------------------------------------------------
def test_an_epsilon_is_what_is_written() -> None:
    """0.1 is a tenth, not the nearest sum of powers of two; what is no epsilon is refused."""
    assert checked_epsilon(0.1) == Fraction(1, 10)
    assert checked_epsilon(1e-5) == Fraction(1, 100_000)
    for bad in (0.0, -1.0, math.nan, math.inf, 1e-7):
        with refuses(ConfigError, "metadata_epsilon", bad):
            checked_epsilon(bad)


def test_counts_stay_counts() -> None:
    """Whole, never negative; next to no noise at a huge epsilon; much of it at a small one."""
    noisy = noisy_counts(COUNTS, 0.05, Keyed(generator(6)))
    assert noisy.dtype == torch.int64
    assert int(noisy.min()) >= 0
    assert not torch.equal(noisy, COUNTS)
    assert torch.equal(noisy_counts(COUNTS, 1000.0), COUNTS)


def test_a_client_says_the_same_whenever_it_is_asked() -> None:
    """A second draw would undo a part of the first; another client or seed has other noise."""
    told, counts = KeyedReports(0.1, seed=0).counts, torch.full((10,), 100)
    assert torch.equal(told(3, counts), told(3, counts))
    assert not torch.equal(told(3, counts), told(4, counts))
    assert not torch.equal(told(3, counts), KeyedReports(0.1, seed=1).counts(3, counts))


# ---- joining -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Asks(Averaging, Method):
    """Says a part of its data at joining."""

    what: str = "y"

    def describe(self, c: Client) -> Bundle:
        return Bundle(first=getattr(c.data, self.what)[:1], counts=c.counts())


def said(method: Method, engine: Engine, round: int = 1) -> dict[int, Bundle]:
    """What every client says at joining with noise of epsilon 0.02."""
    job = Job(method, mlp(), TRAINING, federation(), 7, count_noise=KeyedReports(0.02, 7).counts)
    session = engine.start(job)
    try:
        tasks = [Task("describe", i, round, Bundle(), Bundle()) for i in range(5)]
        return {a.client: a.reply for a in session.map(tasks)}
    finally:
        session.close()


@pytest.mark.parametrize("engine", [Loop(), Workers(2)], ids=["loop", "workers"])
def test_clients_say_noisy_counts(engine: Engine) -> None:
    """DA-PFL's clients say the noisy counts, in whatever round they come; the number of samples is exact."""
    for round in (1, 5):
        for i, b in said(DAPFL(), engine, round).items():
            data = federation()[i].train
            assert torch.equal(b.counts, KeyedReports(0.02, 7).counts(i, data.counts(3)))
            assert int(b.size) == len(data)


def test_what_follows_from_counts_follows_from_the_noisy_ones() -> None:
    """CFIC's label is that of the noisy counts: of five clients at epsilon 0.02 some say another than their own."""
    noisy = {i: int(b.label) for i, b in said(CFIC(feature="dominant"), Loop()).items()}
    assert noisy == {
        i: int(KeyedReports(0.02, 7).counts(i, s.train.counts(3)).argmax()) for i, s in enumerate(federation())
    }
    assert noisy != {i: int(s.train.counts(3).argmax()) for i, s in enumerate(federation())}


@pytest.mark.parametrize("what", ["x", "y"])
def test_nothing_else_can_be_said(what: str) -> None:
    """While joining a run with noise a client's data cannot be read at all."""
    with refuses(ClientError, "describe of client 0", "reads the client's data"):
        said(Asks(what=what), Loop())


def test_training_sees_the_data_as_they_are() -> None:
    job = Job(DAPFL(), mlp(), TRAINING, federation(), 7, count_noise=KeyedReports(0.01, 7).counts)
    (answer,) = Loop().start(job).map([Task("evaluate", 1, 1, Bundle(), Bundle())])
    assert torch.equal(answer.reply.counts, federation()[1].train.counts(3))


# ---- who can be protected ------------------------------------------------------------------------------------------
def test_who_says_counts() -> None:
    """Methods that send counts with uploads (FedProto, CReFF), or train by them (FedRoD), are not protected by it."""

    found = dict[str, list[str]]()
    for name in METHODS:
        with contextlib.suppress(ConfigError):
            require(Settings().but(metadata_epsilon=1.0), METHODS[name](), mlp())
            if said_at_joining := says(METHODS[name](), mlp()):
                found[name] = said_at_joining
    assert found == {"da-pfl": ["counts"], "cfic": ["label"]}


@pytest.mark.parametrize(
    ("method", "facts"),
    [
        (CAM(inner=Oracle()), ("CAM", "its group")),  # a wrapped one
        (METHODS["pacfl"](), ("reads the client's data",)),
        (CFIC(register="lazy"), ("CFIC", "say nothing of their classes")),  # its label comes with a model
        (Asks(), ("Asks", "describe reads")),
    ],
)
def test_refusals_name_the_method(method: Method, facts: tuple[str, ...]) -> None:
    with refuses(ConfigError, *facts):
        require(Settings().but(metadata_epsilon=1.0), method, mlp())
