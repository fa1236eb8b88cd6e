"""Every method over a long odd run: sixty clients, a tenth of them per round, a third of those never answering,
newcomers on the way."""

from __future__ import annotations

import pytest

from contract.brief import light
from fedkin.core import Training
from fedkin.core.refusals import UNUSED
from fedkin.methods import METHODS
from fedkin.server import join_rounds
from thorough import thorough_except
from toys import ClientData, blobs, mlp, run


def sixty() -> list[ClientData]:
    """Four kinds of clients by dominant class and by how they number the classes; 3 to 18 samples each."""
    shards = []
    for i in range(60):
        shares = [0.15, 0.15, 0.15]
        shares[i % 3] = 0.7
        sizes = (3 + (7 * i) % 16, 2, 3)
        train, validation, test = (blobs(n, shares, 1000 + 10 * i + k, turn=i % 2) for k, n in enumerate(sizes))
        shards.append(ClientData(train, validation, test, group=i % 2))
    return shards


KEEPING = ("cfl", "clustered-sampling", "creff", "da-pfl", "fedfomo", "fedsoft", "fesem", "ifca-cam", "pfedcs")
"""Methods that keep something of each client, or choose whom to ask."""


@pytest.mark.parametrize("name", thorough_except(METHODS, KEEPING))
def test_a_method_survives_drop_outs_and_late_joiners(name: str) -> None:
    """12 rounds, 10 % participation, 30 % drop-outs, 18 clients that join in round 4 and 12 in round 8: every number
    kept is finite, no upload is refused, everybody who is there predicts, and no two stored tensors share memory."""
    stored: list[int] = []

    def check(server, simulation) -> None:
        kept = [t for b in [server.state, *simulation.states(server.acks).values()] for t in b.values() if t.numel()]
        assert all(bool(t.isfinite().all()) for t in kept if t.is_floating_point())
        pointers = [t.untyped_storage().data_ptr() for t in kept]
        assert len(set(pointers)) == len(pointers)
        stored.append(len(pointers))

    result = run(
        light(name),
        mlp(),
        sixty(),
        rounds_=12,
        participation=0.1,
        dropout=0.3,
        joins=join_rounds(60, "18@4,12@8"),
        training=Training(epochs=1, batch_size=5, lr=0.1),
        each_round=check,
    )
    assert len(stored) == 12
    assert not any(one.code in UNUSED for r in result.reports for one in r.refused)
    assert sum(len(r.cohort) - len(r.answered) for r in result.reports) > 5  # answers did get lost
    last = result.reports[-1]
    assert sorted(last.evaluation) == list(range(60))
    assert all(int(b.test[0].sum()) == 3 for b in last.evaluation.values())
    if last.clusters is not None:
        assert int(last.clusters.min()) >= -1
