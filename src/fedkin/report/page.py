"""One HTML file that shows a run, or a comparison of runs: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedkin.core.errors import ConfigError
from fedkin.evaluate import against, verdict
from fedkin.report import plots, relations, style, tables
from fedkin.report.folder import Run, by_title, read_run, write_atomic

LARGEST_SVG = 300_000
"""Bytes; a figure whose SVG is larger goes in as a PNG."""

CSS = """
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #ffffff; --soft: #5f6368; --line: #dadce0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --paper: #17181a; --soft: #a5a9ae; --line: #3c4043; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.3; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.note, figcaption, footer { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: bottom; }
td:first-child { white-space: nowrap; }
.number { text-align: right; padding-left: .8rem; }
figure { margin: 1.5rem 0; }
figure svg, figure img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; padding: 6px;
                         box-sizing: border-box; }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .6rem; font-size: .85rem; }
summary { cursor: pointer; font-weight: 600; margin: .8rem 0; }
"""


def write_page(
    folder: Path | str, local: Run | Path | str | None = None, command: str | None = None, tolerance: float = 0.0
) -> Path:
    """Write ``report.html`` and ``overview.png`` into a run folder.

    Args:
        folder: the run folder; ``summary.json`` must be there.
        local: the run of the reference on the same federation and seed (Local), or its folder: adds the verdict, the
            gains and a line in the figure.
        command: how to run it again; by default ``summary.json``'s ``command``, left out if there is none.
        tolerance: gains up to this size, a fraction, count as unchanged.

    Returns:
        the path of the page.

    Raises:
        RunFolderError: the folder or its summary is missing, or a file is damaged.
    """
    run = read_run(folder)
    base = local if isinstance(local, Run) or local is None else read_run(local)
    overview = plots.accuracy_over_rounds(run, None if base is None else base.final.get("accuracy"), _name(base))
    parts = [
        _figure(overview, "The line is the mean over clients; the lower edge of the band is the worst tenth of them.")
    ]
    first, second = (base.by_client if base is not None else {}), run.by_client
    compared = base is not None and bool(first.keys() & second.keys())
    if compared:
        result = against(first, second, tolerance)
        sentence = verdict(run.title, result, _name(base))
        gains = plots.gain_per_client(run.title, first, second, tolerance, _name(base))
        parts.append(
            _figure(gains, f"Each dot is a client; below the line it would have been better off with {_name(base)}.")
        )
    else:
        sentence = _plain_headline(run)
    parts += _relations(run)
    body = [
        _html(tables.final_table(run)),
        *parts,
        _html(tables.client_table(run, first if compared else None, reference=_name(base)), heading="Clients")
        if second
        else "",
        _config([run]),
        _command(command or _written_command(run)),
    ]
    folder = Path(folder)
    style.save(overview, folder / "overview.png")
    return _write(folder / "report.html", sentence, [], body)


def write_comparison(
    folder: Path | str,
    runs: Iterable[Run | Path | str],
    command: str | None = None,
    reference: str = "Local",
    tolerance: float = 0.0,
) -> Path:
    """Write ``report.html`` and ``overview.png`` for several runs into ``folder`` (made if it is missing).

    Args:
        folder: where to write.
        runs: runs or run folders; runs of equal title are seeds of one method.
        command: how to make the comparison again; left out if None.
        reference: the title of the method that gains are counted from.
        tolerance: gains up to this size, a fraction, count as unchanged.

    Returns:
        the path of the page.

    Raises:
        ConfigError: no run was given.
        RunFolderError: a folder is missing or damaged, or two runs have the same title and seed.
    """
    read = [run if isinstance(run, Run) else read_run(run) for run in runs]
    if not read:
        raise ConfigError("a comparison needs at least one run, got none")
    groups = by_title(read)
    rows = tables.comparison_rows(groups, reference, tolerance)
    verdicts = {row.title: verdict(row.title, row.against, reference) for row in rows if row.against}
    overview = plots.final_accuracies(groups, reference)
    over_rounds = plots.accuracy_of_methods(groups, reference)
    dots = "; small dots are seeds" if len(read) > len(groups) else ""
    line = f"; the dashed line is {reference}" if reference in groups else ""
    parts = [
        _figure(overview, f"Mean accuracy over clients at the end{dots}{line}."),
        _figure(over_rounds, "How fast each method gets there; the legend is in order of the final accuracy."),
    ]
    if verdicts:
        compared = {row.title: row.against for row in rows if row.against}
        gains = plots.gains_of_methods(compared, reference)
        parts.append(
            _figure(gains, f"Each dot is a client; left of zero it would have been better off with {reference}.")
        )
    for title, seeds in groups.items():
        drawn = _relations(seeds[0])
        if drawn:
            inner = "\n".join(drawn)
            parts.append(f"<details><summary>{html.escape(title)}: who learned from whom</summary>\n{inner}</details>")
    body = [_html(tables.comparison_table(rows, reference)), *parts, _config(read), _command(command)]
    folder = Path(folder)
    style.save(overview, folder / "overview.png")
    sentence, more = _comparison_headline(rows, verdicts, reference)
    return _write(folder / "report.html", sentence, more, body)


def _name(base: Run | None) -> str:
    return "Local" if base is None else base.title


def _plain_headline(run: Run) -> str:
    accuracy, worst = run.final.get("accuracy"), run.final.get("worst_decile")
    if accuracy is None:
        return f"{run.title}: no round was evaluated"
    tail = "" if worst is None else f", {100 * worst:.1f} % for the worst tenth of them"
    return f"{run.title}: {100 * accuracy:.1f} % mean accuracy over clients{tail}"


def _comparison_headline(
    rows: Sequence[tables.Row], verdicts: Mapping[str, str], reference: str
) -> tuple[str, list[str]]:
    """The page's first sentence, and one verdict per other method, best first."""
    known = sorted((row for row in rows if row.accuracy is not None), key=lambda row: -_mean(row))
    if not known:
        return "No run was evaluated", []
    if not verdicts:
        why = (
            f"no clients in common with {reference}"
            if any(r.title == reference for r in rows)
            else f"no {reference} run"
        )
        first = f"{known[0].title} has the highest mean accuracy, {100 * _mean(known[0]):.1f} %"
        return f"{first} ({why} to compare with)", []
    order = [row.title for row in known if row.title in verdicts]
    if known[0].title == reference:
        return f"No method is above {reference} on average", [verdicts[title] for title in order]
    if known[0].title not in verdicts:
        return f"{known[0].title} has the highest mean accuracy, but no seed in common with {reference}", [
            verdicts[title] for title in order
        ]
    return verdicts[known[0].title], [verdicts[title] for title in order[1:]]


def _mean(row: tables.Row) -> float:
    return -1.0 if row.accuracy is None else row.accuracy.mean


def _relations(run: Run) -> list[str]:
    """The figures of who learned from whom that the run has lines for."""
    parts = []
    if relations.too_many(run.relations):
        fact = relations.weights_fact(run.relations, run.groups)
        parts.append(f"<p>{html.escape(run.title)}: {html.escape(fact)}. There are too many clients for a map.</p>")
    elif len(weights := relations.mean_weights(run.relations)):
        drawn = relations.weights_map(weights, run.groups, run.title)
        parts.append(
            _figure(drawn, "Row: a client; column: whom it learned from; bright is much weight, grey is unknown.")
        )
    rounds, labels = relations.cluster_table(run.relations)
    if labels.size:
        drawn = relations.cluster_map(rounds, labels, run.groups, run.title)
        parts.append(
            _figure(drawn, "Row: a client, coloured by its cluster; a change of colour is a move, grey is unknown.")
        )
    return parts


def _figure(figure: Figure, caption: str) -> str:
    """A figure with its caption: as SVG, or as PNG where the SVG would be large."""
    svg = style.inline_svg(figure)
    if len(svg.encode()) > LARGEST_SVG:
        data = base64.b64encode(style.render(figure, "png")).decode("ascii")
        width = round(96 * figure.get_figwidth())
        svg = f'<img alt="{html.escape(caption)}" width="{width}" src="data:image/png;base64,{data}">'
    else:
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}"', 1)
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _html(grid: tables.Grid, heading: str = "") -> str:
    return (f"<h2>{html.escape(heading)}</h2>\n" if heading else "") + tables.to_html(grid)


def _config(runs: Sequence[Run]) -> str:
    """The settings, folded away; of the seeds of one method those of the first."""
    parts = []
    for title, seeds in by_title(runs).items():
        config = seeds[0].summary.get("config")
        if isinstance(config, dict) and config:
            lines = "\n".join(html.escape(line) for line in _flat(config))
            others = f" (and {', '.join(str(run.seed) for run in seeds[1:])})" if len(seeds) > 1 else ""
            label = html.escape(f"Settings of {title}, seed {seeds[0].seed}{others}")
            parts.append(f"<details><summary>{label}</summary><pre>{lines}</pre></details>")
    return "\n".join(parts)


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as lines ``a.b = value``."""
    lines = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            lines += _flat(value, f"{prefix}{key}.")
        else:
            lines.append(f"{prefix}{key} = {json.dumps(value, ensure_ascii=False, default=str)}")
    return lines


def _written_command(run: Run) -> str | None:
    command = run.summary.get("command")
    return command if isinstance(command, str) and command else None


def _command(command: str | None) -> str:
    return f"<h2>Run it again</h2>\n<pre>{html.escape(command)}</pre>" if command else ""


def _write(path: Path, sentence: str, more: Sequence[str], body: Sequence[str]) -> Path:
    title = html.escape(sentence)
    others = "".join(f"<li>{html.escape(line)}</li>\n" for line in more)
    text = "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            f"<ul>\n{others}</ul>" if others else "",
            *[part for part in body if part],
            "<footer>fedkin</footer>\n</body>\n</html>\n",
        ]
    )
    write_atomic(path, text.encode("utf-8"))
    return path
