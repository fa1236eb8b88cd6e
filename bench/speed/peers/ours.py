"""A method by `fedkin.run`: whole rounds, evaluated each or only the last, with a run folder or without."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import arrays, settings, tell

import fedkin
from fedkin.core import Samples


class _Enough(Exception):
    """Ends a run from its callback: it is given ten rounds more than it plays, since the last ten are evaluated."""


def federation(s: dict[str, Any]) -> fedkin.Federation:
    (x, y), (test_x, test_y) = ((t.clone() for t in arrays(s, part)) for part in ("train", "test"))
    none = Samples(x[0, :0], y[0, :0])
    shards = [fedkin.ClientData(Samples(x[i], y[i]), none, Samples(test_x[i], test_y[i])) for i in range(s["clients"])]
    return fedkin.Federation(tuple(shards), s["classes"], name="bench")


def play(s: dict[str, Any]) -> tuple[list[float], list[dict[str, float]], list[float]]:
    """When the first round began and each ended; the seconds of its parts; accuracies of evaluated rounds."""
    ends: list[float] = []
    parts: list[dict[str, float]] = []
    lines: list[dict[str, Any]] = []

    def on_round(report: Any, line: dict[str, Any]) -> None:
        now = time.time()
        unasked = 0.0 if s["evaluate"] else report.seconds["evaluation"]
        if not ends:
            ends.append(now - report.seconds["round"] - report.seconds["evaluation"])
        ends.append(now - unasked)
        parts.append(dict(report.seconds))
        lines.append(line)
        if report.round == s["rounds"]:
            raise _Enough

    made: Any = fedkin.get_method(s["method"])
    method = replace(made, **s["fields"])
    given = {name: s[name] for name in ("engine", "gradient", "workers") if s.get(name) is not None}
    out = Path(s["place"]) / "run" if s["written"] else None
    with contextlib.suppress(_Enough):
        fedkin.run(
            method, federation(s), s["model"], fedkin.Training(batch_size=s["batch"], lr=s["lr"]),
            rounds=s["rounds"] + 10,
            participation=s["cohort"] / s["clients"], eval_every=1 if s["evaluate"] else s["rounds"], out=out,
            on_round=on_round, compute=fedkin.Compute(**given),
        )  # fmt: skip
    if out is not None:
        timing = [json.loads(text) for text in (out / "timing.jsonl").read_text(encoding="utf-8").splitlines()]
        parts = [{**part, "training": line["training"]} for part, line in zip(parts, timing, strict=True)]
    return ends, parts, [line["pooled"] for line in lines if line["evaluated"]]


def main() -> None:
    s = settings()
    ends, parts, accuracies = play(s)
    curve = {"times": ends, "accuracies": accuracies} if s.get("target") else {}
    tell(ends, (), accuracy=accuracies[-1], parts=parts[1:-1], **curve)


if __name__ == "__main__":
    main()
