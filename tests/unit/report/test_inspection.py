"""What an inspection found, on the screen and as a page."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedkin.report import charts, inspection
from fedkin.report.tables import to_rich


def found(clients: int = 3, classes: int = 4, **changed: Any) -> dict[str, Any]:
    """Client k has most of class k."""
    counts = [[30 if c == k % classes else (k + c) % 3 for c in range(classes)] for k in range(clients)]
    return {
        "data": "<b>/own",
        "kind": "a table",
        "seen": ["a,b", "1,<i>"],
        "samples": sum(map(sum, counts)),
        "read": sum(map(sum, counts)),
        "inputs": "2 numbers",
        "classes": [f"class {c}" for c in range(classes)],
        "class_samples": np.sum(counts, axis=0).tolist(),
        "sharing": "natural",
        "clients": [
            {
                "name": f"client {k}", "train": sum(row) - 3, "validation": 1, "test": 2, "counts": row,
                "majority": f"class {k % classes}", "majority_train": 0.75, "majority_test": 0.5 + k % 2 / 2,
            }
            for k, row in enumerate(counts)
        ],
        "columns": [
            {"name": "a", "kind": "number", "distinct": 7, "missing": 0.25, "values": "1 to 9"}
        ],
        "findings": [
            {
                "code": "missing-values", "severity": "warning", "what": "a <script> is 25 % empty", "why": "it tells",
                "todo": "fill it", "columns": ["a"], "clients": ["client 1"], "rows": ["a.csv, line 3"],
            }
        ],
        "advice": ["Read macro-F1."],
        **changed,
    }  # fmt: skip


def test_the_first_sentence_counts() -> None:
    assert inspection.headline(found()) == "own: 1 warning"
    assert inspection.headline(found(findings=[])) == "own: nothing looks wrong"
    error = {**found()["findings"][0], "severity": "error"}
    several = inspection.headline(found(findings=[error, error, found()["findings"][0]]))
    assert several == "own: 2 errors, 1 warning; it cannot be trained on as it is"


@pytest.mark.parametrize("clients", [3, 60])
def test_many_classes_fit_80_columns(clients: int) -> None:
    console = Console(file=io.StringIO(), width=80)
    grid = inspection.clients_grid(found(clients, 1000))
    console.print(to_rich(grid))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(cell in "\n".join(lines) for row in grid.rows for cell in row[1:])


@pytest.mark.parametrize(("clients", "rows"), [(40, 40), (41, 40), (10_000, 40)])
def test_many_clients_are_grouped(clients: int, rows: int) -> None:
    """Beyond some dozens in groups of like labels, in which every client and sample is counted once."""
    table = found(clients)
    grid = inspection.clients_grid(table)
    assert len(grid.rows) == rows
    whole = sum(c["train"] for c in table["clients"])
    assert sum(int(row[2].replace(",", "")) for row in grid.rows) == whole
    spec = inspection.labels_chart(table)
    values = spec["hconcat"][0]["data"]["values"]
    assert len(values) == rows * 4
    assert sum(v["samples"] for v in values) == table["samples"]
    if rows < clients:
        named = "\n".join(row[0] for row in grid.rows)
        bound = [int(n.replace(",", "")) for n in re.findall(r": ([\d,]+) clients?, most of", named)]
        assert sum(bound) == clients
        assert all(v["share"] > 0.8 for v in values if f"most of {v['class']}" in v["client"])


def test_rows_stand_in_order_and_apart() -> None:
    """Client 10 stands behind client 9; two clients of one name are two rows."""
    table = found(12)
    assert inspection.labels_chart(table)["hconcat"][0]["encoding"]["y"]["sort"][9:] == [
        "client 9",
        "client 10",
        "client 11",
    ]
    for client in table["clients"]:
        client["name"] = "same"
    svg = charts.svg(inspection.labels_chart(table))
    assert all(f"same ({k})" in svg for k in range(1, 12))


def test_many_classes_are_put_together() -> None:
    table = found(5, 1000)
    values = inspection.labels_chart(table)["hconcat"][0]["data"]["values"]
    assert len({v["class"] for v in values}) == 40
    assert sum(v["samples"] for v in values) == table["samples"]
    assert len(charts.svg(inspection.labels_chart(table))) < 500_000


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    """Texts of the data are shown as they are; both colourings are there; nothing refers to elsewhere."""
    path = inspection.write_inspection(tmp_path / "new", found(), "fedkin inspect '<b>/own'")
    text = path.read_text(encoding="utf-8")
    assert sorted(p.name for p in path.parent.iterdir()) == ["inspect.html", "inspect.json", "labels.svg"]
    assert "a &lt;script&gt; is 25 % empty" in text
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!#)', text)
    assert text.count("<svg") == 3  # the logo, and the map for light and dark
    assert "fedkin inspect &#39;&lt;b&gt;/own&#39;" in text
    names = re.findall(r' id="([^"]+)"', text)
    assert len(set(names)) == len(names)
    assert json.loads((path.parent / "inspect.json").read_text()) == found()
    assert ET.parse(path.parent / "labels.svg").getroot().tag.endswith("svg")
