"""The safe rule as a statistic: harmed clients and kept gains on small planted federations, and the page's tables."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = runpy.run_path(str(ROOT / "bench" / "no_harm.py"))


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, int, str], dict[str, Any]]:
    """Eight draws of twenty clients of each kind, by federation, held-out samples and rule."""
    lines = [x for kind in BENCH["PLANTED"] for x in BENCH["summary"](kind, 20, 8, held=(10, 100), truth=4000)]
    return {(x["federation"], x["held"], x["rule"]): x for x in lines}


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("rule", ["best", "likely", "sure"])
def test_few_clients_are_harmed(rule: str, n: int, seen: dict[tuple[str, int, str], dict[str, Any]]) -> None:
    """The method harms from none to all of the clients; under the rules at most 5 % of 160 lose half a point (best:
    at most 2.5 % in the recorded table), none where no client gains, and none under the sign test but by chance."""
    harmed = {kind: seen[kind, n, rule]["harmed"] for kind in BENCH["PLANTED"]}
    assert seen["no client gains", n, "method"]["harmed"] == 1.0
    assert max(harmed.values()) <= (0.05 if rule != "sure" else 0.01), harmed
    assert harmed["no client gains"] == 0
    assert seen["anything", n, "method"]["harmed"] > 0.5


def test_gains_are_kept(seen: dict[tuple[str, int, str], dict[str, Any]]) -> None:
    """With ten samples each, where all gain, nine tenths of the method's gain, more than by itself; where one is
    unlike, more than the method; with a hundred samples where half lose, nine tenths of the oracle's."""
    gain = {key: x["gain"] for key, x in seen.items()}
    for rule in ("best", "likely"):
        assert gain["all gain", 10, rule] > 0.9 * gain["all gain", 10, "method"] > 0.09
        assert gain["all gain", 10, rule] > gain["all gain", 10, "by itself"]
        assert gain["one unlike the others", 10, rule] > gain["one unlike the others", 10, "method"] + 0.01
        assert gain["half gain, half lose", 100, rule] > 0.85 * gain["half gain, half lose", 100, "oracle"] > 0.04
    assert gain["all gain", 100, "sure"] > 0.05 > gain["all gain", 10, "sure"]


def test_the_page_has_the_measured_tables() -> None:
    """The tables of `results/no-harm.md` are those that `bench/no_harm.py` makes of its lines, of every cell one."""
    lines = [json.loads(text) for text in BENCH["LINES"].read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 5 * 3 * len(BENCH["HELD"]) * len(BENCH["RULES"])
    page = (ROOT / "docs" / "results" / "no-harm.md").read_text(encoding="utf-8")
    assert BENCH["tables"](lines).rstrip() in page
