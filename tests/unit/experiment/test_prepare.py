"""One object for a run: however it is made, of the same settings it is the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import fedkin
from fedkin.core import ConfigError, DataError
from fedkin.data import Federation, federation_of
from fedkin.experiment.prepare import Experiment, plan_of
from fedkin.experiment.settings import DataSettings, HostSettings, ModelSettings, RunSettings, Settings
from fedkin.methods import DAPFL
from fedkin.privacy.budget import Privacy
from grouped import described


@dataclass(frozen=True)
class Card:
    """What a server knows of data that are elsewhere."""

    shape: tuple[int, ...] = (1, 8, 8)
    classes: int = 10


@pytest.fixture(scope="module")
def settings() -> Settings:
    """A small run."""
    data = DataSettings(clients=4, samples_per_client=30)
    run = RunSettings(rounds=30, seed=3, evaluate="trained", weighting="uniform")
    privacy, hosts = Privacy(metadata_epsilon=1.0), HostSettings(max_share=0.25)
    return described("da-pfl", data=data, model=ModelSettings("linear"), run=run, privacy=privacy, hosts=hosts)


@pytest.fixture(scope="module")
def federation(settings: Settings) -> Federation:
    """Its data."""
    return federation_of(settings.data, settings.run.seed)


def test_batches_of_one_sample_are_refused_with_batch_normalisation(settings: Settings, federation: Federation) -> None:
    """Before anything is trained; without batch normalisation they are fine."""
    one = settings.but(training=settings.training.but(batch_size=1))
    assert Experiment.prepare(one, federation).settings.training.batch_size == 1
    with pytest.raises(ConfigError, match="batch_size = 1: batch normalisation cannot train"):
        Experiment.prepare(one.but(model="cam-cnn"), federation)


def test_a_choice_in_the_last_round_needs_a_last_round(settings: Settings, federation: Federation) -> None:
    """A run that ends early has no round that is known to be the last; methods without scores have nothing to send."""
    early = settings.but(run=settings.run.but(stop_after=2))
    assert Experiment.prepare(early, federation).plan.stop_after == 2
    with pytest.raises(ConfigError, match="stop_after = 2: clients of Safe report their choice in the last round"):
        Experiment.prepare(early.but(method="fedavg-safe"), federation)


def test_the_same_run_on_one_machine_and_on_hosts(settings: Settings, federation: Federation) -> None:
    """Network, plan and promises are equal; the data's fingerprint is the run's name there, and claims are limited."""
    here = Experiment.prepare(settings, federation)
    there = Experiment.on_hosts(settings, Card(), "run 7")
    assert torch.equal(here.net.w0, there.net.w0)
    assert here.settings == there.settings == settings
    assert here.title == there.title == "DA-PFL"
    assert here.plan.but(max_share=0.25, max_samples=10_000_000) == there.plan
    assert (here.plan.max_share, here.plan.weighting, here.plan.interval) == (1.0, "uniform", 1)
    assert here.marks == {**there.marks, "data": federation.fingerprint()}
    assert there.marks["data"] == "run 7"
    assert sorted(here.about) == sorted(there.about) == ["config", "data", "network"]
    assert '"clients": 4' in here.about["data"]


def test_the_same_run_of_objects(settings: Settings, federation: Federation) -> None:
    """A program's run starts from the same values; its table says that it was made by a program."""
    here = Experiment.prepare(settings, federation)
    made = Experiment.of(DAPFL(), federation, "linear", settings)
    assert torch.equal(here.net.w0, made.net.w0)
    assert (here.plan, here.title) == (made.plan, made.title)
    assert here.marks["network"] == made.marks["network"]
    assert "made_by" in made.table
    assert "made_by" not in here.table


def test_what_an_engine_gets(settings: Settings, federation: Federation) -> None:
    """Noise by the run's seed in a simulation; at a client's host none that others could know."""
    e = Experiment.prepare(settings, federation)
    clients = e.laid_out(federation.clients)
    job = e.job(clients)
    assert (job.seed, job.evaluate, job.gradient, job.outcomes, job.rounds) == (3, "trained", "auto", None, 30)
    assert job.count_noise is not None
    assert e.job(clients, secret=True).count_noise is None
    plain = Experiment.prepare(settings.but(privacy=Privacy()), federation)
    assert plain.job(clients).count_noise is None
    assert plain.job(clients).outcomes == 30
    assert plain.job(clients, outcomes=False).outcomes is None


def test_private_training_is_secret_on_hosts(settings: Settings) -> None:
    """The noise of a simulation can be repeated, that of a host cannot."""
    pytest.importorskip("opacus", reason="private training needs fedkin[dp]")
    privacy = Privacy(noise_multiplier=1.0)
    e = Experiment.on_hosts(settings.but(method="fedavg", privacy=privacy), Card(), "run 7")
    private = [e.job([], secret=secret).private for secret in (False, True)]
    assert [p is not None and p.secret for p in private] == [False, True]


def test_what_cannot_be_done_is_refused_before_anything_is_made(settings: Settings, federation: Federation) -> None:
    """By every way to make a run."""
    fedproto = settings.but(method="fedproto", privacy=Privacy(), rule="krum")
    with pytest.raises(ConfigError, match="rule = 'krum': the server of FedProto"):
        Experiment.prepare(fedproto, federation)
    with pytest.raises(ConfigError, match="rule = 'krum': the server of FedProto"):
        Experiment.on_hosts(fedproto, Card(), "run 7")
    with pytest.raises(ConfigError, match="rule = 'krum': the server of FedProto"):
        Experiment.of("fedproto", federation, "linear", fedproto)
    few = settings.but(method="fedavg", privacy=Privacy(), run=RunSettings(participation=0.5), secure=True)
    with pytest.raises(ConfigError, match="secure = True: it needs at least 3 uploads"):
        Experiment.prepare(few, federation)


def test_one_class_is_refused(settings: Settings, federation: Federation) -> None:
    """There would be nothing to tell apart."""
    same = [replace(c, train=_of_class_1(c.train), validation=_of_class_1(c.validation), test=_of_class_1(c.test))
            for c in federation.clients]  # fmt: skip
    with pytest.raises(DataError, match="all 120 samples are of the class 1"):
        Experiment.prepare(settings, Federation(same, federation.classes))


def _of_class_1(part: fedkin.Samples) -> fedkin.Samples:
    return fedkin.Samples(part.x, torch.ones_like(part.y))


def test_evaluations_of_a_plan() -> None:
    """About 25 in a run, unless the settings say how often."""
    assert [plan_of(Settings().but(rounds=n)).interval for n in (5, 50, 500)] == [1, 2, 20]
    assert plan_of(Settings().but(rounds=500, eval_every=7)).interval == 7
