"""Runs of networks of which a part is fixed: on every engine, resumed, on hosts, and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedkin
from fedkin.core import RunFolderError
from fedkin.engines.stacked import Stacked
from fedkin.exporting import export, load_export
from fedkin_hosts.allowed_code import Allowed
from hosttoys import Direct, on_hosts, same_server, settings, simulated, sites

NETWORK = """
import torch
from torch import nn

def tuned(shape, classes):
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(body.requires_grad_(False), nn.Linear(12, classes))
"""
TRAINING = fedkin.Training(epochs=1, batch_size=10, lr=0.3)


class Adapted(nn.Module):
    """A fixed layer with a trained change of low rank, which no list of layers describes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(64, 16).requires_grad_(False), nn.Linear(16, 10)
        for p in self.parameters():  # all alike but the base, by the seed
            nn.init.normal_(p, std=0.2, generator=torch.Generator().manual_seed(0 if p.requires_grad else seed))
        self.a, self.b = nn.Parameter(torch.ones(2, 64) / 9), nn.Parameter(torch.ones(16, 2) / 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.head((self.base(x) + x @ self.a.T @ self.b.T).relu() if len(x) else x)


def trained(model: object, method: str = "fedavg", **more: Any) -> fedkin.Result:
    digits = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=3, samples_per_client=40)
    how: dict[str, Any] = {"rounds": 2, "engine": "loop"} | more
    return fedkin.run(fedkin.get_method(method), digits, model, TRAINING, **how)


@pytest.fixture
def tuned(tmp_path: Path) -> str:
    (tmp_path / "tuned_here.py").write_text(NETWORK)
    return f"{tmp_path / 'tuned_here.py'}:tuned"


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ifca"])
def test_engines_agree_and_only_what_is_trained_is_sent(method: str, tuned: str) -> None:
    """The vectors of a run are those of the last layer; in workers they are the loop's, in stacks to rounding."""
    found = trained(tuned, method)
    if method == "fedavg":
        assert found.server.state.model.shape == (12 * 10 + 10,)
        assert found.rounds[0].bytes_up < 4 * (4 * 130 + 40)
    for engine in (
        {"engine": "workers@n=2"},
        {"engine": Stacked("cpu")},
    ):
        other = trained(tuned, method, **engine)
        assert [c.correct for c in other.clients] == [c.correct for c in found.clients]
        for name, t in found.server.state.items():
            torch.testing.assert_close(other.server.state[name], t)


def test_a_run_goes_on_with_the_same_constants(tmp_path: Path) -> None:
    """To the state of a run without a break; other constants under the same trained values are another network."""

    def stop(report: Any, line: Any) -> None:
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(Adapted(), out=tmp_path / "run", rounds=3, on_round=stop)
    with pytest.raises(RunFolderError, match="network"):
        trained(Adapted(1), out=tmp_path / "run", rounds=3, resume=True)
    found = trained(Adapted(), out=tmp_path / "run", rounds=3, resume=True).server.state.model
    assert torch.equal(found, trained(Adapted(), rounds=3).server.state.model)


def test_an_export_has_the_constants(tmp_path: Path) -> None:
    """It predicts what the run does."""
    result = trained(Adapted(), "fedper")
    found = load_export(export(result, 2, tmp_path / "own"))
    assert found.card.test.as_evaluated is True
    assert found.probabilities(torch.rand(5, 1, 8, 8)).shape == (5, 10)
    assert found.card.test.correct == next(c.correct for c in result.clients[::-1] if c.client == 2)


def test_hosts_build_the_same_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is the simulator's."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tuned_on_hosts.py").write_text(NETWORK)
    s = settings("fedavg", model={"model": "tuned_on_hosts:tuned"})
    allowed = Allowed(("tuned_on_hosts",))
    assert same_server(on_hosts(s, tmp_path / "a", Direct(sites(tmp_path / "a", allowed=allowed))), simulated(s))
