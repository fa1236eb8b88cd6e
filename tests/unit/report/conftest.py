"""Small made-up runs for the report tests."""

from pathlib import Path

import numpy as np
import pytest

from fedkin.report.folder import Run
from fedkin.storage.line_files import LineFiles
from folders import sealed


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
    **summary,
) -> Run:
    """A run whose client i has accuracy top + gains[i] in all rounds, on ``samples`` test samples (10 + i).

    With ``answers``, the beginning of every client's digest, the last round has its single test samples: the first ones
    are right; ``logits`` is then the digest of every client's logits. Of two runs the better one is then right wherever
    the other is. ``right`` are the test samples of each client's most frequent class, ``balanced`` is the balanced
    accuracy.
    """
    lines, per_client, related = [], [], []
    for r in range(1, rounds + 1):
        accuracies = [(top + (gains or {}).get(i, 0.0)) for i in range(clients)]
        lines.append(
            {
                "round": r,
                "cohort": list(range(clients)),
                "answered": list(range(clients)),
                "refused": {},
                "bytes_up": 1_000_000,
                "bytes_down": 2_000_000,
                "evaluated": True,
                "accuracy": sum(accuracies) / clients,
                "pooled": sum(accuracies) / clients,
                "std": 0.05,
                "worst_decile": min(accuracies),
                "macro_f1": top - 0.1,
                **({} if balanced is None else {"balanced": balanced}),
                "few": None,
                "medium": 0.5,
                "many": 0.9,
                "validation": r / 10,
            }
        )
        per_client += [
            {
                "round": r,
                "client": i,
                "accuracy": a,
                "n_test": samples or 10 + i,
                "test_classes": 2,
                **({} if balanced is None else {"balanced": balanced}),
            }
            for i, a in enumerate(accuracies)
        ]
        if right is not None:
            for line, n in zip(per_client[-clients:], right, strict=True):
                line["majority"] = n
            lines[-1]["majority"] = sum(n / (10 + i) for i, n in enumerate(right)) / clients
        if relations == "weights":
            rows = {str(i): {str((i + 1) % clients): 0.25, str(i): 0.75} for i in range(clients)}
            related.append({"round": r, "kind": "weights", "rows": rows})
        elif relations == "clusters":
            related.append(
                {"round": r, "kind": "clusters", "labels": [-1 if r == 1 else i % 2 for i in range(clients)]}
            )
    for line in per_client[-clients:] if answers is not None else ():
        right = np.arange(line["n_test"]) < round(line["accuracy"] * line["n_test"])
        line |= {"right": np.packbits(right).tobytes().hex(), "test_digest": f"{answers}{line['client']}"}
        line |= {"logits_digest": logits} if logits else {}
    return Run(title, seed, lines, per_client, related, {"title": title, "seed": seed, **summary})


@pytest.fixture
def made():
    """The maker of runs in memory."""
    return make_run


@pytest.fixture
def folder(tmp_path):
    """The maker of run folders; ``without`` names files to leave out."""

    def write(name: str = "run", without: tuple[str, ...] = (), **settings) -> Path:
        run = make_run(**settings)
        path = tmp_path / name
        path.mkdir()
        lines = {"rounds": run.rounds, "clients": run.clients, "relations": run.relations}
        timing = [{"round": line["round"]} for line in run.rounds]
        LineFiles(path).append(
            {**{name: found for name, found in lines.items() if name not in without}, "timing": timing}
        )
        return sealed(path, {"rounds": len(timing), **run.summary})

    return write
