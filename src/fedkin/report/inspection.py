"""Results of an inspection of data, as tables for the console and as a page with pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from fedkin.core.errors import counted
from fedkin.report import charts, wording
from fedkin.report.figures import different
from fedkin.report.tables import DASH, Grid
from fedkin.storage.files import write_atomic

Found = Mapping[str, Any]
"""The result of ``Inspection.to_json``."""
MOST_CLIENTS = 40
"""Rows of a histogram; more clients are combined into this number of groups with similar labels."""
MOST_CLASSES = 40
"""Columns of a histogram; more classes are combined with their neighbours."""
_LISTED = 1000  # clients in the page's table
_BARS_PER_ROW = 24  # and
_WIDEST = 32  # characters of their heading: the table fits a screen of 80 columns
_BARS = " ▁▂▃▄▅▆▇█"
_PARTS = ("train", "validation", "test")


def headline(result: Found) -> str:
    """Return one sentence with the number of findings of each kind."""
    counts = {kind: sum(f["severity"] == kind for f in result["findings"]) for kind in ("error", "warning", "note")}
    said = [counted(n, kind) for kind, n in counts.items() if n]
    name = Path(result["data"]).name or result["data"]
    if not said:
        return f"{name}: nothing looks wrong"
    return f"{name}: {', '.join(said)}" + ("; it cannot be trained on as it is" if counts["error"] else "")


def facts(result: Found) -> list[tuple[str, str]]:
    """Return how the data are understood, as names and values."""
    samples, classes = result["samples"], list(result["classes"])
    sizes = [*result["class_samples"], *[0] * 12]
    named = ", ".join(f"{name} ({n:,})" for name, n in zip(classes[:12], sizes, strict=False))
    rows = [
        ("data", result["data"]),
        ("what it is", result["kind"]),
        ("samples", _samples(samples, result["read"])),
        ("inputs", result["inputs"]),
        (counted(len(classes), "class"), named + (f" and {len(classes) - 12} more" if len(classes) > 12 else "")),
        ("clients", result["sharing"]),
    ]
    return [(name, value) for name, value in rows if value]


def _samples(used: int | None, read: int | None) -> str:
    """Return the number of samples that a run uses, and of those that were read if it is another."""
    if used is None:
        return ""
    return f"{used:,}" if read is None or read == used else f"{used:,} used of {read:,} read"


def columns_grid(result: Found) -> Grid:
    """Return the columns of a table."""
    cells = tuple(
        (c["name"], c["kind"], c["values"][:60], f"{c['distinct']:,}",
         DASH if not c["missing"] else f"{max(0.1, 100 * c['missing']):.1f}")
        for c in result["columns"]
    )  # fmt: skip
    return Grid("Columns", ("column", "kind", "values", "different", "missing %"), cells, words=3)


def clients_grid(result: Found) -> Grid:
    """Return a line per client, or per group of similar clients: its labels as a row of bars, its sizes."""
    rows = _rows(result)
    binned, names = _classes(result, _BARS_PER_ROW)
    where = f"labels {names[0]} … {names[-1]}" if len(names) > 1 else "labels"
    where = where if len(where) <= max(_WIDEST, len(names)) else "labels"
    cells = tuple(
        (name, _bars(binned[members].sum(axis=0)), *(f"{n:,}" for n in sizes), _majority(result, members))
        for name, members, sizes in rows
    )
    grouped = len(result["clients"]) > MOST_CLIENTS
    note = "a bar per class: its share of the samples, the largest at full height; · is none"
    note += "; most %: test samples of the client's most frequent training class"
    note += f"; {len(result['clients']):,} clients in groups of like labels" if grouped else ""
    heads = ("client", where, *_PARTS, "most %")
    return Grid("Labels by client", heads, cells, note=note, words=2)


def labels_chart(result: Found, *, dark: bool = False) -> charts.Spec:
    """Return a map of labels: a row per client or group, a column per class; and the rows' sizes next to it."""
    binned, names = _classes(result)
    rows = _rows(result)
    labels = different([name if len(name) <= 32 else f"{name[:31]}…" for name, _, _ in rows])
    cells, sizes = [], []
    for label, (_, members, parts) in zip(labels, rows, strict=True):
        counts = binned[members].sum(axis=0)
        total = max(1, int(counts.sum()))
        cells += [{"client": label, "class": name, "samples": n, "share": round(n / total, 4)}
                  for name, n in zip(names, counts.tolist(), strict=True)]  # fmt: skip
        sizes.append({"client": label, "samples": sum(parts)})
    shades = ["#24282d", "#0072B2", "#d8efff"] if dark else ["#f1f4f7", "#56B4E9", "#003a5d"]
    step = max(9, min(32, 620 // len(names)))
    return charts.chart("inspected-labels", cells=cells, sizes=sizes, labels=labels, classes=names,
                        shades=shades, step=step, height=16 if len(rows) > 12 else 24,
                        angle=0 if max(map(len, names)) * 7 <= step else -60)  # fmt: skip


def write_inspection(folder: Path | str, result: Found, command: str | None = None) -> Path:
    """Write ``inspect.html``, ``inspect.json`` and, if there are clients, ``labels.svg`` into a folder, and return the
    path of the page.

    Args:
        folder: folder to write to; made if it is missing, files of a former inspection are replaced.
        command: command that repeats the inspection; omitted if None.
    """
    folder = Path(folder)
    write_atomic(folder / "inspect.json", (json.dumps(result, indent=1) + "\n").encode())
    if result["clients"]:
        write_atomic(folder / "labels.svg", charts.svg(labels_chart(result)).encode())
    columns = columns_grid(result) if result["columns"] else None
    drawn = [_svg(result, dark=dark) for dark in (False, True)] if result["clients"] else []
    page = wording.page("inspection.html", found=result, title=headline(result), facts=facts(result), columns=columns,
                          drawn=drawn, grouped=len(result["clients"]) > MOST_CLIENTS, clients=_client_grid(result),
                          command=command)  # fmt: skip
    path = folder / "inspect.html"
    write_atomic(path, page.encode("utf-8", "replace"))
    return path


def _svg(result: Found, *, dark: bool) -> Markup:
    """Return the map as an element for use inside HTML, with separate names for its internal references."""
    text = charts.svg(labels_chart(result, dark=dark), dark=dark)
    text = text[text.index("<svg") :]
    return Markup(text.replace('id="', 'id="dark-').replace("url(#", "url(#dark-") if dark else text)


def _client_grid(result: Found) -> Grid:
    clients = result["clients"]
    cells = tuple(
        (c["name"], *(f"{c[part]:,}" for part in _PARTS), str(np.count_nonzero(c["counts"])), c["majority"],
         *(_share(c[f"majority_{part}"]) for part in ("train", "test")))
        for c in clients[:_LISTED]
    )  # fmt: skip
    more = len(clients) - _LISTED
    note = "most frequent: class of the training part, with its fraction of training and test samples"
    note += f"; {more:,} more are in inspect.json" if more > 0 else ""
    heads = ("client", *_PARTS, "classes", "most frequent", "in train %", "in test %")
    return Grid("", heads, cells, note=note)


def _classes(result: Found, most: int = MOST_CLASSES) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return samples per client and class ``[K, columns]``, many classes combined, and the columns' names."""
    counts = np.array([c["counts"] for c in result["clients"]], dtype=np.int64).reshape(len(result["clients"]), -1)
    names = different([str(n) for n in result["classes"]])
    if len(names) <= most:
        return counts, names
    ends = np.linspace(0, len(names), most + 1).astype(int)
    spans = list(pairwise(ends.tolist()))
    binned = np.stack([counts[:, a:b].sum(axis=1) for a, b in spans], axis=1)
    return binned, [names[a] if b - a == 1 else f"{names[a]}–{names[b - 1]}" for a, b in spans]


def _rows(result: Found) -> list[tuple[str, npt.NDArray[np.int64], tuple[int, int, int]]]:
    """Return name, clients and samples in each part, of every client or of groups with similar labels."""
    clients: Sequence[Found] = result["clients"]
    sizes = np.array([[c[part] for part in _PARTS] for c in clients]).reshape(-1, 3)
    if len(clients) <= MOST_CLIENTS:
        members = [np.array([k]) for k in range(len(clients))]
        names = [str(c["name"]) for c in clients]
    else:
        counts = np.array([c["counts"] for c in clients], dtype=np.int64)
        share = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        order = np.lexsort((-share.max(axis=1), share.argmax(axis=1)))
        members = np.array_split(order, MOST_CLIENTS)
        most = [result["classes"][int(share[group].mean(axis=0).argmax())] for group in members]
        names = [f"{i}: {counted(len(group), 'client')}, most of {name}"
                 for i, (group, name) in enumerate(zip(members, most, strict=True), 1)]  # fmt: skip
    parts = [sizes[group].sum(axis=0).tolist() for group in members]
    return [(n, m, (p[0], p[1], p[2])) for n, m, p in zip(names, members, parts, strict=True)]


def _majority(result: Found, members: npt.NDArray[np.int64]) -> str:
    """Return the fraction of the test part in the most frequent training class, mean over clients, in per cent."""
    known = [s for k in members.tolist() if (s := result["clients"][k]["majority_test"]) is not None]
    return _share(sum(known) / len(known) if known else None)


def _share(fraction: float | None) -> str:
    return DASH if fraction is None else f"{100 * fraction:.1f}"


def _bars(counts: npt.NDArray[np.int64]) -> str:
    top = max(1, int(counts.max(initial=0)))
    return "".join("·" if n == 0 else _BARS[max(1, round(8 * n / top))] for n in counts.tolist())
