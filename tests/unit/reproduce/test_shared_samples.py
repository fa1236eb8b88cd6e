"""Logits of samples that several clients hold: the same figures, from fewer forward passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reproduce import running, shared_samples
from reproduce.cells import cells_of, chosen
from reproduce.running import Plan, make, wanted_of
from reproduce.shared_samples import KnownLogits

import papers
from fedkin.core import Bundle, Client, Net, Samples, Training
from fedkin.engines import passes
from fedkin.models.start import factory

ROWS = "fedavg = {}\nda-pfl = {}\nifca = {}\nfedsoft = {}\n"
METHODS = ("ifca", "fedsoft")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[KnownLogits]:
    """The logits of each run that shares them."""
    found: list[KnownLogits] = []

    class Counted(KnownLogits):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr(shared_samples, "KnownLogits", Counted)
    return found


def measured(folder: Path) -> dict[str, Any]:
    """Lines of the toy cells of IFCA, FedSoft and FedAvg on the partition of DA-PFL, by row."""
    text = papers.ONE.split("[numbers]")[0].replace('"dirichlet"\nsamples_per_client = 24', '"dapfl@alpha=0.5"')
    start, end = text.index("[method.da-pfl]"), text.index("[columns.few]")
    text = f"{text[:start]}[rows]\n{ROWS}\n{text[end:]}"
    toy = papers.paper(folder, one=text.replace('only_rows = ["fedavg", "da-pfl"]\n', ""))
    cells = [c for table in toy.tables for c in cells_of(table)]
    how = Plan(float("inf"), engine="loop", runs=folder / "runs", results=folder / "results", say=lambda text: None)
    wanted = [f"toy/one/{row}/many/0" for row in (*METHODS, "fedavg")]
    assert make(chosen(cells, wanted), how, wanted_of([toy])).made == 3
    return {line["cell"].split("/")[2]: line for line in running.load(folder / "results").values()}


def test_figures_are_those_of_the_loop_and_fewer_logits_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[KnownLogits]
) -> None:
    """Every figure and each client's answers are equal; the distinct samples are about half of all."""
    shared = measured(tmp_path / "shared")
    assert len(counted) == 2, "IFCA and FedSoft; FedAvg asks for no logits"
    held = sum(len(rows) for rows in counted[0].rows)
    assert counted[0].distinct < 0.7 * held
    for known in counted:
        assert 0 < known.computed <= known.distinct * 3 * 11, "3 models, of at most 5 rounds and 5 evaluations"
    monkeypatch.setattr(shared_samples, "gains", lambda settings: False)
    plain = measured(tmp_path / "plain")
    for row in (*METHODS, "fedavg"):
        assert {**shared[row], "seconds": 0} == {**plain[row], "seconds": 0}


def test_passes_of_a_module_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[KnownLogits]
) -> None:
    """Their last bits depend on the batch."""
    monkeypatch.setattr(passes, "why_not_compiled", lambda: "as on a machine without llvmlite")
    measured(tmp_path)
    assert [known.computed for known in counted] == [0, 0]


def test_logits_are_computed_once_for_a_model_and_a_sample() -> None:
    """Two clients share two of their samples; a model that was not asked for lately is computed again."""
    net = Net(factory("linear", (4,), 3), (4,), 3)
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6, dtype=torch.int64)
    parts = [Samples(x[:4], y[:4]), Samples(x[[5, 2, 3]], y[:3])]
    known = KnownLogits(parts)
    first, second = (Client(k, part, part, net, Training(), Bundle(), Bundle()) for k, part in enumerate(parts))
    assert (known.distinct, [rows.tolist() for rows in known.rows]) == (5, [[0, 1, 2, 3], [4, 2, 3]])
    models = [net.fresh(i) for i in range(17)]
    for w in models[:2]:
        for client in (first, second, first):
            torch.testing.assert_close(known.of(client, w), client.logits(w))
    assert known.computed == 2 * 5
    known.of(first, w=models[0])[:] = 0  # what is given away is a copy
    torch.testing.assert_close(known.of(first, models[0]), first.logits(models[0]))
    for w in models[1:]:
        known.of(second, w)
    before = known.computed
    torch.testing.assert_close(known.of(second, models[0]), second.logits(models[0]))
    assert known.computed == before + 3, "16 models are kept"
