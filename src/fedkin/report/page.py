"""One HTML file that shows a run, or a comparison of runs: data, charts and script inside, nothing from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedkin.core.errors import ConfigError
from fedkin.evaluate import verdict
from fedkin.report import charts, island, tables
from fedkin.report.folder import Run, by_title, read_run, write_atomic

SECTIONS = {
    "accuracy": "Accuracy",
    "clients": "How it is spread over clients",
    "people": "Clients",
    "relations": "Who learned from whom",
    "labels": "What each client has",
    "classes": "Rare and common classes",
    "cost": "Bytes and time",
    "settings": "Settings",
}
SECOND = "FedAvg"
_NAMED = 12
# the browser itself refuses whatever would leave the page
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


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
    report, reference = one_run(run, local, tolerance)
    compared = report.compared.get(reference, {})
    sentence = verdict(run.title, compared[run.title], reference) if compared else _plain_headline(run)
    body = _harmed(report, reference) + _table(tables.final_table(run), "final")
    return _write(Path(folder), report, sentence, [], body, command or _written_command(run), reference)


def one_run(run: Run, local: Run | Path | str | None = None, tolerance: float = 0.0) -> tuple[island.Report, str]:
    """What the page of a run says, and the display name of its reference."""
    base = local if isinstance(local, Run) or local is None else read_run(local)
    reference = "Local" if base is None else base.title
    bases = {} if base is None else {reference: {run.seed: base.by_client}}
    return island.made({run.title: [run]}, bases, reference, tolerance, base), reference


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
    report = several_runs(runs, reference, tolerance)
    rows = tables.comparison_rows(report.runs, reference, tolerance)
    verdicts = {row.title: verdict(row.title, row.against, reference) for row in rows if row.against}
    sentence, more = _comparison_headline(rows, verdicts, reference)
    against_second = [verdict(t, seeds, SECOND) for t, seeds in report.compared.get(SECOND, {}).items()
                      if t != reference]  # fmt: skip
    body = _table(tables.comparison_table(rows, reference), "comparison")
    if against_second:
        body += f"<h3>Against {SECOND}</h3>\n{_list(against_second)}"
    body += _harmed(report, reference)
    return _write(Path(folder), report, sentence, more, body, command, reference)


def several_runs(runs: Iterable[Run | Path | str], reference: str = "Local", tolerance: float = 0.0) -> island.Report:
    """What the page of a comparison says.

    Raises:
        ConfigError: no run was given.
        RunFolderError: a folder is missing or damaged, or two runs have the same title and seed.
    """
    read = [run if isinstance(run, Run) else read_run(run) for run in runs]
    if not read:
        raise ConfigError("a comparison needs at least one run, got none")
    groups = by_title(read)
    bases = {
        t: {run.seed: run.by_client for run in groups[t]} for t in dict.fromkeys((reference, SECOND)) if t in groups
    }
    return island.made(groups, bases, reference, tolerance)


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


def _harmed(report: island.Report, reference: str) -> str:
    """Who loses, by name, worst first; of several seeds of the first."""
    lines = []
    for title, seeds in report.compared.get(reference, {}).items():
        first = seeds[0]
        losers = sorted((g, c) for c, g in first.gains.items() if g < -first.tolerance)
        if losers:
            lines.append(f"{title}: {_losers(losers, report.names(title))}")
    if not lines:
        return ""
    seed = " (first seed)" if any(len(runs) > 1 for runs in report.runs.values()) else ""
    who = f"Who is worse off than with {html.escape(reference)}{seed}"
    return f"<details><summary>{who}</summary>\n{_list(lines)}</details>"


def _losers(losers: Sequence[tuple[float, int]], names: Sequence[str]) -> str:
    said = [f"{names[c] if c < len(names) else f'client {c}'} ({100 * g:+.1f})" for g, c in losers[:_NAMED]]
    return ", ".join(said) + (f" and {len(losers) - _NAMED} more" if len(losers) > _NAMED else "")


def _list(lines: Iterable[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{html.escape(line)}</li>\n" for line in lines) + "</ul>\n"


def _table(grid: tables.Grid, name: str) -> str:
    """A table with a button that saves it as CSV."""
    drawn = tables.to_html(grid).replace("<table>", f'<table id="{name}">', 1)
    return f'{drawn}<button class="act" type="button" data-csv="{name}">CSV</button>\n'


def _config(runs: Mapping[str, Sequence[Run]]) -> str:
    """The settings, folded away; of the seeds of one method those of the first."""
    parts = []
    for title, seeds in runs.items():
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
    return f"<h3>Run it again</h3>\n<pre>{html.escape(command)}</pre>" if command else ""


def _warnings(report: island.Report) -> str:
    if not report.warnings:
        return ""
    lines = _list(w.text for w in report.warnings)
    return f'<section class="warnings" aria-label="Warnings"><h2>Before you believe it</h2>\n{lines}</section>'


def _section(name: str, inner: str) -> str:
    return f'<section id="{name}"><h2>{SECTIONS[name]}</h2>\n{inner}<div id="figures-{name}"></div></section>'


def _method(report: island.Report) -> str:
    """A choice of the method, where there are several."""
    if len(report.parts) < 2:
        return ""
    return '<p class="controls"><label>Method: <select class="method"></select></label></p>\n'


_PEOPLE = """<div class="controls">
<label>Filter: <input type="search" id="filter" placeholder="name, number, group 1"></label>
<span id="count" class="note" aria-live="polite"></span>
<button class="act" type="button" id="people-csv">CSV</button></div>
<p class="note">Click a heading to sort, a client to open it.</p>
<div class="tall" tabindex="0" role="region" aria-label="Table of clients"><table id="people">
<thead><tr id="people-head"></tr></thead><tbody id="people-rows"></tbody></table></div>
"""


def _sections(report: island.Report, command: str | None) -> list[str]:
    several = any(len(runs) > 1 for runs in report.runs.values())
    note = '<p class="note">Of several seeds, the first is shown.</p>\n' if several else ""
    inner = {"people": _method(report) + note + _PEOPLE, "relations": _method(report) + note,
             "settings": _config(report.runs) + _command(command)}  # fmt: skip
    empty = {name for name in ("classes", "cost") if not report.figures[name]}
    return [_section(name, inner.get(name, "")) for name in SECTIONS if name not in empty]


def _data(report: island.Report, reference: str) -> str:
    """The data of the page, as JSON that may stand in a script element."""
    parts = [part.island() for part in report.parts]
    related = [n for n, part in enumerate(parts) if part["frames"] or len(part["figures"]) > 1]
    data = {
        "figures": {name: [island.entry(one) for one in drawn] for name, drawn in report.figures.items() if drawn},
        "parts": parts,
        "first": related[0] if related else len(parts) - 1,
        "reference": reference,
        "seeds": max(len(runs) for runs in report.runs.values()),
        "config": {"light": charts.config(), "dark": charts.config(dark=True)},
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return files("fedkin.report").joinpath("assets", name).read_text(encoding="utf-8")


def _write(
    folder: Path,
    report: island.Report,
    sentence: str,
    more: Sequence[str],
    body: str,
    command: str | None,
    reference: str,
) -> Path:
    title = html.escape(sentence)
    links = "".join(f'<a href="#{name}">{text}</a>' for name, text in SECTIONS.items()
                    if name not in ("classes", "cost") or report.figures[name])  # fmt: skip
    text = "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{title}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>",
            f'<header><h1>{title}</h1><button class="act" type="button" id="theme">Dark</button></header>',
            f'<nav aria-label="Parts of the page">{links}</nav>\n<main>',
            _list(more) if more else "",
            body,
            _warnings(report),
            "<noscript><p>The charts and the table of clients need JavaScript, which is switched off.</p></noscript>",
            *_sections(report, command),
            "</main>\n<footer>fedkin</footer>",
            f'<script type="application/json" id="data">{_data(report, reference)}</script>',
            f'<script type="module">{_inline(charts.script())}</script>',
            f'<script type="module">{_inline(_asset("page.js"))}</script>\n</body>\n</html>\n',
        ]
    )
    write_atomic(folder / "report.html", text.encode("utf-8"))
    write_atomic(folder / "overview.png", charts.png(report.figures["accuracy"][0].titled))
    return folder / "report.html"


def _inline(script: str) -> str:
    """A script that ends where its element ends."""
    return script.replace("</script", "<\\/script")
