"""Small made-up runs for the report tests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedkin.record.lines import RelationLine
from fedkin.record.result import Result
from madeup import about, client_line, round_line, written

ROLES = {"Local": "alone", "Local (full)": "alone-full", "FedAvg": "average"}


def make_run(
    title: str = "DA-PFL",
    seed: int = 0,
    clients: int = 4,
    top: float = 0.8,
    gains: dict[int, float] | None = None,
    rounds: int = 3,
    relations: str | None = None,
    samples: int | None = None,
    answers: str | None = None,
    logits: str = "",
    right: list[int] | None = None,
    balanced: float | None = None,
    config: dict[str, Any] | None = None,
    ended: str = "rounds",
    **run: Any,
) -> Result:
    """A run whose client i has accuracy top + gains[i] in all rounds, on ``samples`` test samples (10 + i).

    With ``answers``, the beginning of every client's digest, the last round has its single test samples: the first ones
    are right; ``logits`` is then the digest of every client's logits. Of two runs the better one is then right wherever
    the other is. ``right`` are the test samples of each client's most frequent class, ``balanced`` is the balanced
    accuracy. Other values are of `RunLine`.
    """
    lines, per_client, related = [], [], []
    for r in range(1, rounds + 1):
        accuracies = [(top + (gains or {}).get(i, 0.0)) for i in range(clients)]
        majority = None if right is None else sum(n / (10 + i) for i, n in enumerate(right)) / clients
        mean = sum(accuracies) / clients
        everyone = tuple(range(clients))
        lines.append(
            round_line(
                r, cohort=everyone, answered=everyone, bytes_up=1_000_000, bytes_down=2_000_000, accuracy=mean,
                pooled=mean, std=0.05, worst_decile=min(accuracies), macro_f1=top - 0.1, balanced=balanced, medium=0.5,
                many=0.9, validation=r / max(10, rounds), majority=majority, clients=clients,
            )
        )  # fmt: skip
        for i, a in enumerate(accuracies):
            line = client_line(
                r, i, a, samples or 10 + i, test_classes=2, balanced=balanced, majority=right and right[i]
            )
            if answers is not None and r == rounds:
                bits = np.arange(line.n_test) < round(a * line.n_test)
                line = replace(line, right=np.packbits(bits).tobytes(), test_part=f"{answers}{i}", logits=logits)
            per_client.append(line)
        if relations == "weights":
            rows = {i: {(i + 1) % clients: 0.25, i: 0.75} for i in everyone}
            related.append(RelationLine(r, rows))
        elif relations == "clusters":
            related.append(RelationLine(r, clusters=tuple(-1 if r == 1 else i % 2 for i in everyone)))
    role = ROLES.get(title, "safe" if "-safe" in title else "")
    return Result(
        run=about(title, seed, clients, role=role, **run), config=config or {}, rounds=lines, clients=per_client,
        relations=related, ended=ended,
    )  # fmt: skip


@pytest.fixture
def made():
    """The maker of runs in memory."""
    return make_run


@pytest.fixture
def folder(tmp_path):
    """The maker of run folders; ``without`` names files to leave out."""

    def write(name: str = "run", without: tuple[str, ...] = (), **settings) -> Path:
        return written(tmp_path / name, make_run(**settings), without=without)

    return write
