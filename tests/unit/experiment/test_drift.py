"""Clients whose data change during a run: they train and are evaluated on the data of the round."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkin import Bundle, Client, Method, Round, Train, Training, Work, run
from fedkin.core import ConfigError, DataError, PartitionError
from fedkin.data import (
    IID,
    ClientData,
    Drift,
    Federation,
    SiteData,
    add_feature_noise,
    federate,
    federation_of,
    load,
    plant,
    seeded,
)
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.settings import Compute, DataSettings, RunSettings, Settings
from fedkin.exporting import export
from fedkin.methods import FedAvg, FedPer, Oracle
from grouped import described
from refusals import refuses
from toys import Averaging

CLIENTS, GROUPS, START = 6, 3, 3
TRAINING = Training(steps=2, batch_size=5, lr=0.1)


def digits() -> Federation:
    return federate(load("digits"), IID(), clients=CLIENTS, samples_per_client=20)


def drifting(seed: int = 0) -> Federation:
    """Three groups by labels; from round 3 on half of the clients are in the next one."""
    return plant(digits(), "labels", GROUPS, drift=Drift(START), seed=seed)


@dataclass(frozen=True, eq=False)
class Counting(Averaging, Method):
    """A method whose model stays as it is; uploads contain the number of training samples by class."""

    seen: dict[int, Tensor] = field(default_factory=dict)

    def client_update(self, c: Client) -> Work:
        yield Train(c.received.model)
        return Bundle(model=c.received.model, labels=c.counts().double())

    def aggregate(self, s: Bundle, r: Round, up: Bundle) -> Bundle:
        self.seen[r.index] = up.labels
        return s


@pytest.mark.parametrize(
    "engine", ["loop", *(pytest.param(e, marks=pytest.mark.thorough) for e in ("workers@n=2", "stacked"))]
)
def test_a_round_trains_and_evaluates_on_its_own_data(engine: str) -> None:
    """Client k calls class c by (c + k mod 3) mod 10 and, if it drifts, by (c + (k + 1) mod 3) mod 10 from round 3 on;
    so its class counts are those of its plain data turned by its group, in training and in every evaluated part."""
    plain, found, method = digits(), drifting(), Counting()
    late, tested = found.groups_in(START), dict[int, list[Tensor]]()
    assert late is not None
    assert (late != torch.arange(CLIENTS) % GROUPS).sum() == 3
    run(
        method, found, "linear", TRAINING, rounds=4, eval_every=1, engine=engine,
        on_round=lambda report, _: tested.update(
            {report.round: [b[p][0] for b in report.evaluation.values() for p in ("test", "validation")]}
        ),
    )  # fmt: skip
    for t in range(1, 5):
        groups = (torch.arange(CLIENTS) % GROUPS if t < START else late).tolist()
        for k, (shard, g) in enumerate(zip(plain.clients, groups, strict=True)):
            assert method.seen[t][k].tolist() == shard.train.counts(10).roll(g).tolist()
            assert tested[t][2 * k].tolist() == shard.test.counts(10).roll(g).tolist()
            assert tested[t][2 * k + 1].tolist() == shard.validation.counts(10).roll(g).tolist()


def test_planted_groups_drift_to_the_next() -> None:
    """The drawn clients keep their inputs and are in group (g + 1) mod 3; the seed decides which they are. One client
    drifts at least, all at fraction 1; images are turned one quarter further."""
    f = drifting()
    assert f.name.endswith("3 groups by labels, 3 clients in another from round 3 on")
    for k, shard in enumerate(f.clients):
        then = shard.at(START)
        assert shard.at(START - 1) is shard
        assert shard.group == k % 3
        assert then.group == ((k + 1) % 3 if shard.drift else k % 3)
        assert torch.equal(then.train.x, shard.train.x)
    moved = [{k for k, s in enumerate(drifting(seed).clients) if s.drift} for seed in range(4)]
    assert len(set(map(frozenset, moved))) > 1
    few = plant(digits(), "rotations", 4, drift=Drift(2, 0.01))
    ((at, then),) = [s.drift for s in few.clients if s.drift]
    (before,) = [s for s in few.clients if s.drift]
    assert at == 2
    assert torch.equal(then.test.x, torch.rot90(before.test.x, 1, (-2, -1)))
    assert all(s.drift for s in plant(digits(), "labels", 2, drift=Drift(2, 1.0)).clients)


def test_a_drift_is_part_of_the_fingerprint() -> None:
    """Another round or other clients are other data; the same are the same."""
    prints = [
        drifting().fingerprint(),
        drifting(seed=1).fingerprint(),
        plant(digits(), "labels", GROUPS, drift=Drift(4)).fingerprint(),
        plant(digits(), "labels", GROUPS).fingerprint(),
    ]
    assert len(set(prints)) == 4
    assert prints[0] == drifting().fingerprint()


def test_agreement_is_with_the_groups_of_the_round() -> None:
    """Oracle keeps the groups in which clients joined: it agrees with the true ones until they change. The summary has
    those of the last round."""
    result = run(Oracle(), drifting(), "linear", TRAINING, rounds=4, eval_every=1, compute=Compute(engine="loop"))
    assert [line.figures.ari == 1 for line in result.rounds] == [True, True, False, False]
    groups = drifting().groups_in(4)
    assert groups is not None
    assert result.groups == tuple(groups.tolist())


def test_an_exported_client_is_one_of_the_last_round(tmp_path: Path) -> None:
    """Its card counts the labels of the last round; the export checks the model on that round's test samples."""
    f = drifting()
    k = next(k for k, s in enumerate(f.clients) if s.drift)
    result = run(FedPer(), f, "linear", TRAINING, rounds=3, compute=Compute(engine="loop"))
    folder = export(result, k, tmp_path / "out")
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert card["trained_on"]["per_class"] == f.clients[k].at(3).train.counts(10).tolist()


def test_later_data_are_laid_out_for_the_network_too() -> None:
    """Channels lie last for a convolution, as in the data of the first round, so no round copies them."""
    coloured = Federation.from_arrays([(torch.rand(8, 3, 8, 8), torch.arange(8) % 2)] * 2)
    f = plant(coloured, "rotations", 2, drift=Drift(2, 1.0))
    for shard in Experiment.of(FedAvg(), f, "small-cnn", Settings()).laid_out(f.clients):
        for t in (1, 2):
            assert shard.at(t).train.x.is_contiguous(memory_format=torch.channels_last)


def test_noise_is_the_same_before_and_after_a_drift() -> None:
    """A sample whose label changes keeps its noise."""
    f = add_feature_noise(drifting(), 0.1)
    for shard in f.clients:
        assert torch.equal(shard.at(1).train.x, shard.at(9).train.x)
    assert not torch.equal(f.clients[0].train.x, drifting().clients[0].train.x)


def test_a_share_of_a_data_set_drifts_as_in_the_simulation() -> None:
    """What a node with a share trains on in each round is what the simulated client does."""
    settings = DataSettings(
        data="digits",
        partition="iid",
        clients=4,
        plant="labels@drift=5,fraction=1",
        samples_per_client=9,
    )
    how, simulated = seeded(settings, 1), federation_of(settings, 1).clients[2]
    site = SiteData("digits", share=2)
    shard = site.shard(site.card(how), 0, how)
    for t in (4, 5):
        assert torch.equal(shard.at(t).train.y, simulated.at(t).train.y)
    assert not torch.equal(shard.at(4).train.y, shard.at(5).train.y)


def test_the_seed_of_the_data_draws_who_drifts() -> None:
    """By the settings, half of the clients if no fraction is given; another seed draws others."""
    settings = DataSettings(data="digits", partition="iid", clients=CLIENTS, plant="labels@groups=3,drift=3")
    plain = federate(load("digits"), IID(), clients=CLIENTS, seed=1)
    one, other = (plant(plain, "labels", 3, drift=Drift(3, 0.5), seed=seed).fingerprint() for seed in (1, 0))
    assert federation_of(settings, 1).fingerprint() == one != other


def test_what_cannot_drift_is_refused(tmp_path: Path) -> None:
    """Rounds before the second, fractions out of range, a single group, other sizes, a second drift, a folder."""
    with refuses(ConfigError, "drift_round", "got 1"):
        Drift(1)
    for fraction in (0.0, 1.1, float("nan")):
        with refuses(ConfigError, "drift_fraction", f"got {fraction}"):
            Drift(2, fraction)
    with refuses(ConfigError, "groups", "2..6", "digits", "got 1"):
        plant(digits(), "labels", 1, drift=Drift(2))
    with refuses(DataError, "drift", "a folder cannot hold"):
        drifting().save(tmp_path / "f")
    assert not (tmp_path / "f").exists()
    one, two = digits().clients[:2]
    fewer = replace(two, test=replace(two.test, x=two.test.x[:1], y=two.test.y[:1]))
    for start, then in ((2, fewer), (1, two)):
        with pytest.raises(
            DataError, match=rf"client 0 has .* and .* from round {start} on; data can drift from round 2"
        ):
            Federation((replace(one, drift=(start, then)),), classes=10)
    wrong = replace(two, test=replace(two.test, y=two.test.y * 0 + 10))
    with refuses(DataError, "from round 2 on: client 0, test part: label 10 of sample 0"):
        Federation((replace(one, drift=(2, wrong)),), classes=10)
    with refuses(PartitionError, "drift already"):
        plant(Federation((replace(one, drift=(2, two)),), classes=10), "labels", 1)


def test_any_data_of_the_same_sizes_can_follow() -> None:
    """A program gives a client other data by `ClientData`; several changes follow one another."""
    one, two, three = digits().clients[:3]
    shard = ClientData(one.train, one.validation, one.test, drift=(3, replace(two, drift=(5, three))))
    f = Federation((shard,), classes=10)
    seen = [f.clients[0].at(t).train.x for t in range(1, 7)]
    wanted = [one, one, two, two, three, three]
    assert all(torch.equal(x, s.train.x) for x, s in zip(seen, wanted, strict=True))
    ends = Federation((replace(shard, drift=(3, replace(two, drift=(5, one)))),), classes=10)
    assert f.fingerprint() != ends.fingerprint()


@pytest.mark.thorough
def test_a_resumed_run_drifts_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    """The config of a run folder has the drift; two rounds and two more after its start are the same as four."""
    data = DataSettings(
        data="digits", partition="iid", clients=4, samples_per_client=20, plant="labels@groups=2,drift=3"
    )
    settings = described("fedavg", FedAvg(), data=data, training=TRAINING, run=RunSettings(rounds=4))
    whole = run_settings(settings, out=tmp_path / "whole")
    run_settings(settings.but(run=RunSettings(rounds=2)), out=tmp_path / "cut")
    rest = resume(tmp_path / "cut", rounds=4)
    assert (rest.rounds[-1], rest.final) == (whole.rounds[-1], whole.final)
    calm = settings.but(plant="labels@groups=2")
    assert run_settings(calm).rounds[-1].accuracy != whole.rounds[-1].accuracy


@pytest.mark.parametrize(("start", "longer"), [(2, False), (3, False), (4, True)])
def test_class_counts_from_before_a_drift_are_not_moved_behind_it(start: int, longer: bool, tmp_path: Path) -> None:
    """Of three rounds all are evaluated, of 33 every third: class counts stand in the line of round 1, and would be
    moved to that of round 3, where from round 2 or 3 on others hold. Nothing is changed then."""
    data = DataSettings(clients=4, samples_per_client=24, plant=f"labels@drift={start}")
    made = described("fedavg", FedAvg(), data=data, training=TRAINING, run=RunSettings(rounds=3, eval_every=3))
    run_settings(made, out=tmp_path / "a")
    before = (tmp_path / "a" / "clients.jsonl").read_bytes()
    if not longer:
        with refuses(ConfigError, "first evaluation", "after the data drift"):
            resume(tmp_path / "a", rounds=33)
        assert (tmp_path / "a" / "clients.jsonl").read_bytes() == before
        return
    resume(tmp_path / "a", rounds=33)
    run_settings(made.but(run=RunSettings(rounds=33, eval_every=3)), out=tmp_path / "b")
    assert (tmp_path / "a" / "clients.jsonl").read_bytes() == (tmp_path / "b" / "clients.jsonl").read_bytes()
