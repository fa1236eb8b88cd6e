"""Attackers in the simulator: who they are, what they send, and that nothing else is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedkin
from fedkin.core import Bundle, ConfigError
from fedkin.data import Dirichlet, federate, load
from fedkin.engines import Job, Loop
from fedkin.methods import FedAvg, FedProto
from fedkin.server import Attack, Message, Simulation
from fedkin.testing.toys import federation, network
from refusals import refuses
from toys import close


def falsified(kind: Any, received: Bundle, upload: Bundle, *, client: int = 0, round: int = 1, seed: int = 0) -> Bundle:
    return Attack(kind, 0.2).falsified(client, round, received, upload, seed)


# ---- what is sent -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "received", "upload", "sent"),
    [
        ("sign-flip", {"model": [1.0, 2]}, {"model": [4.0, 0]}, [-2, 4]),  # (1, 2) - (3, -2)
        ("scale", {"model": [1.0, 2]}, {"model": [4.0, 0]}, [301, -198]),  # (1, 2) + (300, -200)
        # IFCA sends a stack and gets back one model: measured is from the nearest, (10, 10), not from 0
        ("sign-flip", {"centres": [[0.0, 0], [10, 10]], "mask": [9, 9]}, {"model": [9.0, 12]}, [11, 8]),
        # a tensor of another shape is no start: there is nothing to measure from but 0
        ("scale", {"model": [1.0, 1, 1], "pull": 2.0}, {"model": [1.0, 1]}, [100, 100]),
        # FedNova's clients send changes: the model that they received has the same shape, and 0 is nearer
        ("sign-flip", {"model": [9.0, 10]}, {"change": [1.0, -2]}, [-1, 2]),
        ("scale", {"model": [9.0, 10]}, {"change": [1.0, -2]}, [100, -200]),
        # models of a stack have their own starts; one that was not received is 0 in the upload, and stays so
        ("sign-flip", {"model0": [9.0, 10], "model2": [-5.0, 0]}, {"models": [[9.0, 12], [0, 0], [-6, 0]]},
         [[9, 8], [0, 0], [-4, 0]]),
    ],
)  # fmt: skip
def test_what_is_sent_by_hand(kind: Any, received: dict[str, Any], upload: dict[str, Any], sent: list[Any]) -> None:
    """The update is turned round, or a hundredfold, around the model that it began with."""
    there, up = (Bundle({n: torch.tensor(v) for n, v in b.items()}) for b in (received, upload))
    close(next(iter(falsified(kind, there, up).values())), sent)


def test_noise_is_as_long_as_the_update() -> None:
    """Around what was sent: its root mean square is 3; drawn anew for client, round and seed."""
    start = torch.full((40_000,), 7.0)
    sent = falsified("random", Bundle(model=start), Bundle(model=start - 3))
    noise = (sent.model - start).double()
    close(noise.square().mean().sqrt(), 3, 0.05)
    close(noise.mean(), 0, 0.05)
    start, upload = Bundle(model=torch.zeros(9)), Bundle(model=torch.ones(9))
    first = falsified("random", start, upload).model
    assert torch.equal(first, falsified("random", start, upload).model)
    for other in ({"client": 1}, {"round": 2}, {"seed": 1}):
        assert not torch.equal(first, falsified("random", start, upload, **other).model)


def test_numbers_that_are_no_models_stay() -> None:
    """Single ones and whole ones; nothing is written into; names, shapes and types stay."""
    received, upload = Bundle(model=torch.ones(3)), Bundle(model=torch.zeros(3), accuracy=torch.tensor(0.5))
    for kind in ("sign-flip", "scale", "random"):
        found = falsified(kind, received, upload)
        assert float(found.accuracy) == 0.5
        assert not torch.equal(found.model, upload.model)
    received = Bundle(model=torch.ones(2))
    upload = Bundle(model=torch.zeros(2, dtype=torch.float64), cluster=torch.tensor(1), empty=torch.zeros(0))
    for kind in ("sign-flip", "scale", "random"):
        sent = falsified(kind, received, upload)
        assert int(sent.cluster) == 1
        assert {n: (t.shape, t.dtype) for n, t in sent.items()} == {n: (t.shape, t.dtype) for n, t in upload.items()}
        assert not bool(upload.model.any())
        assert bool((received.model == 1).all())


# ---- who attacks --------------------------------------------------------------------------------------------------
def test_attackers_are_drawn_by_the_seed() -> None:
    """As many as the share makes, rounded down, the same for every method of a seed; a share of nobody is refused."""
    for total, share, count in ((20, 0.1, 2), (20, 0.3, 6), (10, 0.29, 2), (7, 0.5, 3)):
        ids = Attack("scale", share).clients(total, 4)
        assert len(set(ids)) == count
        assert ids == sorted(ids)
        assert set(ids) <= set(range(total))
    assert Attack("scale", 0.3).clients(20, 1) != Attack("scale", 0.3).clients(20, 2)
    assert Attack("scale", 0.3).clients(20, 1) == Attack("random", 0.3).clients(20, 1)
    assert Attack().clients(20, 0) == []
    with refuses(ConfigError, "the attacking fraction 0.05 of 10 clients is none; one would be 1/10"):
        Attack("scale", 0.05).clients(10, 0)


# ---- in the simulator ---------------------------------------------------------------------------------------------
def simulation(method: Any = None, **more: Any) -> Simulation:
    job = Job(method or FedAvg(), network("mlp"), fedkin.Training(epochs=1, batch_size=4, lr=0.1), federation(), seed=1)
    return Simulation(Loop().start(job), 6, **more)


def test_only_attackers_uploads_are_changed() -> None:
    """Two of six clients: theirs are turned round, the others' are what they are without an attack."""
    model = network("mlp").w0
    messages = {i: Message("update", 1, 1, 0, Bundle(model=model)) for i in range(6)}
    honest, _ = simulation().exchange(messages)
    s = simulation(attack=Attack("sign-flip", 0.34), seed=3)
    sent, _ = s.exchange(messages)
    assert len(s.attackers) == 2
    for i in range(6):
        close(sent[i].model, 2 * model - honest[i].model if i in s.attackers else honest[i].model, 1e-6)
    again, _ = s.exchange(messages)  # answered from memory: the same once more, not turned back
    assert all(torch.equal(again[i].model, sent[i].model) for i in range(6))


def test_attackers_predict_like_everybody() -> None:
    """Evaluations are not falsified: figures of attackers are theirs."""
    s, messages = simulation(attack=Attack("scale", 0.5)), {}
    for i in range(6):
        messages[i] = Message("evaluate", 1, 1, 0, Bundle(model=network("mlp").w0))
    wanted, _ = simulation().exchange(messages)
    got, _ = s.exchange(messages)
    assert all(torch.equal(got[i].test, wanted[i].test) for i in range(6))


# ---- in a run -----------------------------------------------------------------------------------------------------
def digits(method: Any, **more: Any) -> fedkin.Result:
    data = federate(load("digits"), Dirichlet(alpha=0.5), clients=10, seed=0, samples_per_client=60)
    how = {"rounds": 8, "engine": "loop", "eval_every": 8, **more}
    return fedkin.run(method, data, "mlp", fedkin.Training(epochs=2, batch_size=10, lr=0.2), **how)


def honest(result: fedkin.Result) -> float:
    values = [v for i, v in result.by_client.items() if i not in result.run.attackers]
    return sum(values) / len(values)


def test_the_mean_breaks_and_the_rules_hold() -> None:
    """Three of ten clients send 100 times their update: chance under the mean, near the run without attackers else."""
    clean = honest(digits(FedAvg()))
    broken = digits(FedAvg(), attack="scale@fraction=0.3")
    assert honest(broken) < 0.25 < 0.5 < clean
    for rule in ("median", "trimmed@fraction=0.3", "krum@fraction=0.3", "norm"):
        held = digits(FedAvg(), attack="scale@fraction=0.3", rule=rule)
        assert honest(held) > clean - 0.1, rule


def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A rule for a method it does not cover, a share of nobody, a rule out of range: no folder is left behind."""
    for method, how, message in (
        (FedProto(), {"rule": "median"}, "rule = 'median': the server of FedProto"),
        (FedAvg(), {"attack": "scale@fraction=0.05"}, "the attacking fraction 0.05 of 10 clients is none"),
        (FedAvg(), {"rule": "trimmed@fraction=0.5"}, "trimmed"),
    ):
        with refuses(ConfigError, message):
            digits(method, out=tmp_path / "run", **how)
        assert not (tmp_path / "run").exists()
