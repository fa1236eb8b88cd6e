"""Results of an inspection of data, as tables for the console and as a page with pictures."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.core.errors import counted
from fedkin.display import printable
from fedkin.report import charts, palette, tables
from fedkin.report.naming import different
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

_ASSETS = Path(__file__).parent / "assets"


def headline(found: Found) -> str:
    """Return one sentence with the number of findings of each kind."""
    counts = {kind: sum(f["severity"] == kind for f in found["findings"]) for kind in ("error", "warning", "note")}
    said = [counted(n, kind) for kind, n in counts.items() if n]
    name = Path(found["data"]).name or found["data"]
    if not said:
        return f"{name}: nothing looks wrong"
    return f"{name}: {', '.join(said)}" + ("; it cannot be trained on as it is" if counts["error"] else "")


def facts(found: Found) -> list[tuple[str, str]]:
    """Return how the data are understood, as names and values."""
    samples, classes = found["samples"], list(found["classes"])
    named = ", ".join(
        f"{name} ({n:,})" for name, n in zip(classes[:12], [*found["class_samples"], *[0] * 12], strict=False)
    )
    rows = [
        ("data", found["data"]),
        ("what it is", found["kind"]),
        ("samples", _samples(samples, found["read"])),
        ("inputs", found["inputs"]),
        (counted(len(classes), "class"), named + (f" and {len(classes) - 12} more" if len(classes) > 12 else "")),
        ("clients", found["sharing"]),
    ]
    return [(name, value) for name, value in rows if value]


def _samples(used: int | None, read: int | None) -> str:
    """Return the number of samples that a run uses, and of those that were read if it is another."""
    if used is None:
        return ""
    return f"{used:,}" if read is None or read == used else f"{used:,} used of {read:,} read"


def columns_grid(found: Found) -> Grid:
    """Return the columns of a table."""
    cells = tuple(
        (
            c["name"],
            c["kind"],
            c["values"][:60],
            f"{c['distinct']:,}",
            DASH if not c["missing"] else f"{max(0.1, 100 * c['missing']):.1f}",
        )
        for c in found["columns"]
    )
    return Grid("Columns", ("column", "kind", "values", "different", "missing %"), cells, words=3)


def clients_grid(found: Found) -> Grid:
    """Return a line per client, or per group of similar clients: its labels as a row of bars, its sizes."""
    rows = _rows(found)
    binned, names = _classes(found, _BARS_PER_ROW)
    where = f"labels {names[0]} … {names[-1]}" if len(names) > 1 else "labels"
    where = where if len(where) <= max(_WIDEST, len(names)) else "labels"
    cells = tuple(
        (name, _bars(binned[members].sum(axis=0)), *(f"{n:,}" for n in sizes), _majority(found, members))
        for name, members, sizes in rows
    )
    grouped = len(found["clients"]) > MOST_CLIENTS
    note = "a bar per class: its share of the samples, the largest at full height; · is none"
    note += "; most %: test samples of the client's most frequent training class"
    note += f"; {len(found['clients']):,} clients in groups of like labels" if grouped else ""
    return Grid(
        "Labels by client", ("client", where, "train", "validation", "test", "most %"), cells, note=note, words=2
    )


def labels_chart(found: Found, *, dark: bool = False) -> charts.Spec:
    """Return a map of labels: a row per client or group, a column per class; and the rows' sizes next to it."""
    binned, names = _classes(found)
    rows = _rows(found)
    labels = different([_short(name) for name, _, _ in rows])
    cells, sizes = [], []
    for label, (_, members, parts) in zip(labels, rows, strict=True):
        counts = binned[members].sum(axis=0)
        total = max(1, int(counts.sum()))
        cells += [
            {
                "client": label,
                "class": names[c],
                "samples": int(n),
                "share": round(n / total, 4),
            }
            for c, n in enumerate(counts.tolist())
        ]
        sizes.append({"client": label, "samples": sum(parts)})
    shades = ["#24282d", "#0072B2", "#d8efff"] if dark else ["#f1f4f7", "#56B4E9", "#003a5d"]
    y = {
        "field": "client", "type": "nominal", "sort": labels, "title": None, "axis": {"labelLimit": 220},
    }  # fmt: skip
    step, height = max(9, min(32, 620 // len(names))), 16 if len(rows) > 12 else 24
    heat = {
        "data": {"values": cells},
        "mark": {"type": "rect", "tooltip": True},
        "width": {"step": step},
        "height": {"step": height},
        "encoding": {
            "y": y,
            "x": {
                "field": "class", "type": "nominal", "sort": names, "title": "class",
                "axis": {"labelAngle": 0 if max(map(len, names)) * 7 <= step else -60, "labelLimit": 90},
            },
            "color": {
                "field": "share", "type": "quantitative", "scale": {"range": shades, "domainMin": 0},
                "legend": {"title": "share of the client's samples", "format": ".0%", "orient": "top"},
            },
        },
    }  # fmt: skip
    bars = {
        "data": {"values": sizes},
        "mark": {"type": "bar", "color": "var(--m1)", "tooltip": True},
        "width": 110,
        "height": {"step": height},
        "encoding": {
            "y": {**y, "axis": None},
            "x": {"field": "samples", "type": "quantitative", "title": "samples", "axis": {"tickCount": 3}},
        },
    }
    return {
        "hconcat": [heat, bars],
        "spacing": 12,
        "padding": {"left": 16, "right": 8, "top": 5, "bottom": 5},
        "resolve": {"scale": {"y": "shared"}},
    }


def write_inspection(folder: Path | str, found: Found, command: str | None = None) -> Path:
    """Write ``inspect.html``, ``inspect.json`` and, if there are clients, ``labels.svg`` into a folder.

    Args:
        folder: folder to write to; made if it is missing, files of a former inspection are replaced.
        found: result of ``Inspection.to_json``.
        command: command that repeats the inspection; omitted if None.

    Returns:
        The path of the page.
    """
    folder = Path(folder)
    write_atomic(folder / "inspect.json", (json.dumps(found, indent=1) + "\n").encode())
    if found["clients"]:
        write_atomic(folder / "labels.svg", charts.svg(labels_chart(found)).encode())
    path = folder / "inspect.html"
    write_atomic(path, _page(found, command).encode("utf-8", "replace"))
    return path


def _page(found: Found, command: str | None) -> str:
    title = html.escape(headline(found))
    terms = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts(found))
    style = palette.css() + _asset("inspect.css").replace("FONT", palette.FONT)
    findings = "".join(_article(f) for f in found["findings"])
    columns = f"<div class='panel wide'>{tables.to_html(columns_grid(found))}</div>" if found["columns"] else ""
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>",
        f'<header class="bar"><div class="wrap"><span class="brand">{_asset("logo.html")}fedkin</span>',
        f'<span class="soft">Inspection of data</span></div></header>\n<main class="wrap">\n<h1>{title}</h1>',
        "".join(f"<p>{html.escape(line)}</p>" for line in found["advice"]),
        f'<dl class="panel">{terms}</dl>',
        f'<h2>Findings</h2>\n<div class="findings">{findings}</div>' if findings else "",
        _figure(found),
        f"<h2>Columns</h2>\n{columns}" if columns else "",
        _client_table(found),
        _lines("First lines", "\n".join(found["seen"])),
        _lines("Repeat this inspection", command or ""),
        "<footer>Written by fedkin.</footer>\n</main>\n</body>\n</html>\n",
    ]
    return printable("\n".join(part for part in parts if part))


def _lines(title: str, text: str) -> str:
    return f'<h2>{title}</h2>\n<pre class="panel">{html.escape(text)}</pre>' if text else ""


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _article(f: Mapping[str, Any]) -> str:
    where = [f"{name}: {', '.join(f[name][:12])}" for name in ("columns", "clients") if f[name]]
    where += [f"for example {'; '.join(f['rows'])}"] if f["rows"] else []
    return (
        f'<article class="{f["severity"]}"><h3><span class="kind">{f["severity"]}</span> {html.escape(f["what"])}</h3>'
        f"<p>{html.escape(_sentence(f['why']))}</p><p><b>What to do:</b> {html.escape(f['todo'])}</p>"
        f'<p class="soft">{html.escape(" · ".join([f["code"], *where]))}</p></article>'
    )


def _figure(found: Found) -> str:
    if not found["clients"]:
        return ""
    grouped = len(found["clients"]) > MOST_CLIENTS
    caption = "A row per client, a column per class, coloured by the class's share of the client's samples. " + (
        f"{len(found['clients']):,} clients are put together in groups of like labels. " if grouped else ""
    )
    said = f'role="img" aria-label="{html.escape(caption)}"'
    drawn = "".join(
        f'<div class="{name} wide" {said}>{_svg(found, dark=name == "dark")}</div>' for name in ("light", "dark")
    )
    under = f"<figcaption>{html.escape(caption)}</figcaption>"
    return f'<h2>Labels by client</h2>\n<figure class="panel">{drawn}{under}</figure>'


def _svg(found: Found, *, dark: bool) -> str:
    """Return the map as an element for use inside HTML, with separate names for its internal references."""
    text = charts.svg(labels_chart(found, dark=dark), dark=dark)
    text = text[text.index("<svg") :]
    return text.replace('id="', 'id="dark-').replace("url(#", "url(#dark-") if dark else text


def _client_table(found: Found) -> str:
    clients = found["clients"]
    if not clients:
        return ""
    cells = tuple(
        (
            c["name"],
            *(f"{c[part]:,}" for part in ("train", "validation", "test")),
            str(np.count_nonzero(c["counts"])),
            c["majority"],
            *(_share(c[f"majority_{part}"]) for part in ("train", "test")),
        )
        for c in clients[:_LISTED]
    )
    more = len(clients) - _LISTED
    note = "most frequent: class of the training part, with its fraction of training and test samples"
    note += f"; {more:,} more are in inspect.json" if more > 0 else ""
    heads = ("client", "train", "validation", "test", "classes", "most frequent", "in train %", "in test %")
    grid = Grid("", heads, cells, note=note)
    return (
        f"<details class='panel'><summary>The {counted(len(clients), 'client')} and their samples</summary>"
        f"<div class='wide'>{tables.to_html(grid)}</div></details>"
    )


def _classes(found: Found, most: int = MOST_CLASSES) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return samples per client and class ``[K, columns]``, many classes combined, and the columns' names."""
    counts = np.array([c["counts"] for c in found["clients"]], dtype=np.int64).reshape(len(found["clients"]), -1)
    names = different([str(n) for n in found["classes"]])
    if len(names) <= most:
        return counts, names
    ends = np.linspace(0, len(names), most + 1).astype(int)
    spans = list(pairwise(ends.tolist()))
    binned = np.stack([counts[:, a:b].sum(axis=1) for a, b in spans], axis=1)
    return binned, [names[a] if b - a == 1 else f"{names[a]}–{names[b - 1]}" for a, b in spans]


def _rows(found: Found) -> list[tuple[str, npt.NDArray[np.int64], tuple[int, int, int]]]:
    """Return name, clients and samples in each part, of every client or of groups with similar labels."""
    clients: Sequence[Mapping[str, Any]] = found["clients"]
    sizes = np.array([[c[part] for part in ("train", "validation", "test")] for c in clients]).reshape(-1, 3)
    if len(clients) <= MOST_CLIENTS:
        members = [np.array([k]) for k in range(len(clients))]
        names = [str(c["name"]) for c in clients]
    else:
        counts = np.array([c["counts"] for c in clients], dtype=np.int64)
        share = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        order = np.lexsort((-share.max(axis=1), share.argmax(axis=1)))
        members = np.array_split(order, MOST_CLIENTS)
        names = []
        for group in members:
            most = found["classes"][int(share[group].mean(axis=0).argmax())]
            names.append(f"{counted(len(group), 'client')}, most of {most}")
        names = [f"{i + 1}: {name}" for i, name in enumerate(names)]
    parts = [sizes[group].sum(axis=0).tolist() for group in members]
    return [(n, m, (p[0], p[1], p[2])) for n, m, p in zip(names, members, parts, strict=True)]


def _majority(found: Found, members: npt.NDArray[np.int64]) -> str:
    """Return the fraction of the test part in the most frequent training class, mean over clients, in per cent."""
    known = [s for k in members.tolist() if (s := found["clients"][k]["majority_test"]) is not None]
    return _share(sum(known) / len(known) if known else None)


def _share(fraction: float | None) -> str:
    return DASH if fraction is None else f"{100 * fraction:.1f}"


def _bars(counts: npt.NDArray[np.int64]) -> str:
    top = max(1, int(counts.max(initial=0)))
    return "".join("·" if n == 0 else _BARS[max(1, round(8 * n / top))] for n in counts.tolist())


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:31]}…"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
