"""Lines of made-up runs, as a run appends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKEN = "a-token"
"""The token of the page in tests."""


def append(place: Path, name: str, *lines: Mapping[str, Any]) -> None:
    """Append lines to ``NAME.jsonl`` of a run."""
    with (place / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def play(place: Path, number: int, accuracies: list[float], **more: Any) -> None:
    """Append an evaluated round."""
    mean = sum(accuracies) / len(accuracies)
    line = {"round": number, "accuracy": mean, "validation": 0.5, "bytes_up": 1_000_000, "bytes_down": 2_000_000}
    append(place, "clients", *({"round": number, "client": i, "accuracy": a, "n_test": 10, "validation_accuracy": 0.4,
                                "n_validation": 5} for i, a in enumerate(accuracies)))  # fmt: skip
    append(place, "rounds", {**line, "refused": {}, "missing": {}, **more})
    append(place, "timing", {"round": number, "round_s": 2.0})
