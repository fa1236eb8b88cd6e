"""The HTML of a report: its parts in order, and the data for its script."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from fedkin.report import charts, client_data, page_data, tables
from fedkin.report.figures import colours
from fedkin.report.folder import Run

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
SCRIPTS = ("tools.js", "charts.js", "clients.js", "relations.js", "page.js")
"""Scripts in the order of their dependencies; the page contains them as one."""
# so that the browser itself refuses requests that would leave the page
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def document(report: page_data.PageData, sentence: str, body: str, command: str | None, reference: str) -> str:
    """Return the whole page.

    Args:
        report: content of the page.
        sentence: its heading, as text.
        body: HTML between heading and warnings.
        command: command that repeats the run; omitted if None.
        reference: title of the method that gains are relative to.
    """
    title = html.escape(sentence)
    names = [name for name in SECTIONS if name not in ("classes", "cost") or report.figures[name]]
    links = "".join(f'<a href="#{name}">{SECTIONS[name]}</a>' for name in names)
    inner = {"people": _CHOOSER + _PEOPLE, "relations": _CHOOSER, "labels": _CHOOSER,
             "settings": _config(report.runs) + _command(command)}  # fmt: skip
    script = "\n".join(_asset(name) for name in SCRIPTS)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{title}</title>\n<style>{_colours()}{_asset('page.css')}</style>\n</head>\n<body>",
            f'<header><h1>{title}</h1><button class="act" type="button" id="theme">Dark</button></header>',
            f'<nav aria-label="Parts of the page">{links}</nav>\n<main>',
            body,
            _warnings(report),
            "<noscript><p>The charts and the table of clients need JavaScript, which is switched off.</p></noscript>",
            *(_section(name, inner.get(name, "")) for name in names),
            "</main>\n<footer>fedkin</footer>",
            f'<script type="application/json" id="data">{_data(report, reference)}</script>',
            f'<script type="module">{_inline(charts.script())}</script>',
            f'<script type="module">{_inline(script)}</script>\n</body>\n</html>\n',
        ]
    )


def _colours() -> str:
    """Return the page's colours as custom properties, as the system prefers or the reader chose."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in charts.INK[theme].items()) for theme in ("light", "dark")
    )
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f'@media (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{color-scheme:dark;{dark}}}}}\n'
        f':root[data-theme="dark"]{{color-scheme:dark;{dark}}}\n'
    )


def listed(lines: Iterable[str]) -> str:
    """Return texts as a list."""
    return "<ul>\n" + "".join(f"<li>{html.escape(line)}</li>\n" for line in lines) + "</ul>\n"


def verdicts(lists: Mapping[str, Sequence[str]]) -> str:
    """Return lists with headings, side by side where there is room; empty ones are omitted."""
    drawn = [f"<div><h3>{html.escape(title)}</h3>\n{listed(lines)}</div>" for title, lines in lists.items() if lines]
    return f'<div class="verdicts">{"".join(drawn)}</div>\n' if drawn else ""


def note(text: str) -> str:
    """Return a remark below lists and tables; empty for an empty text."""
    return f'<p class="note">{html.escape(text)}</p>\n' if text else ""


def table(grid: tables.Grid, name: str) -> str:
    """Return a table with a button that saves it as CSV."""
    drawn = tables.to_html(grid).replace("<table>", f'<table id="{name}" class="figures">', 1)
    button = f'<button class="act" type="button" data-csv="{name}" aria-label="Save this table as CSV">CSV</button>'
    return f"{drawn}<p>{button}</p>\n"


def _config(runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the settings, collapsed; for several seeds of one method those of the first."""
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
    """Return nested settings as lines ``a.b = value``."""
    lines = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            lines += _flat(value, f"{prefix}{key}.")
        else:
            lines.append(f"{prefix}{key} = {json.dumps(value, ensure_ascii=False, default=str)}")
    return lines


def _command(command: str | None) -> str:
    return f"<h3>Run it again</h3>\n<pre>{html.escape(command)}</pre>" if command else ""


def _warnings(report: page_data.PageData) -> str:
    if not report.warnings:
        return ""
    lines = listed(w.text for w in report.warnings)
    return f'<section class="warnings" aria-label="Warnings"><h2>Before you believe it</h2>\n{lines}</section>'


def _section(name: str, inner: str) -> str:
    return f'<section id="{name}"><h2>{SECTIONS[name]}</h2>\n{inner}<div id="figures-{name}"></div></section>'


_CHOOSER = """<div class="controls chooser" hidden>
<label>Method <select class="method"></select></label>
<label>Seed <select class="seed"></select></label>
<span class="note says"></span></div>
"""
_PEOPLE = """<div class="controls">
<label>Filter <input type="search" id="filter" placeholder="name, number, or group 1"></label>
<span id="count" class="note" aria-live="polite"></span>
<button class="act" type="button" id="people-csv" aria-label="Save the table of clients as CSV">CSV</button></div>
<p class="note">Click a heading to sort, a client to open it.</p>
<div class="tall" tabindex="0" role="region" aria-label="Table of clients"><table id="people">
<thead><tr id="people-head"></tr></thead><tbody id="people-rows"></tbody></table></div>
"""


def _data(report: page_data.PageData, reference: str) -> str:
    """Return the data of the page, as JSON that may stand in a script element."""
    shared = client_data.Shared()
    packed = [client_data.packed(part, shared) for part in report.parts]
    related = [one["title"] for one in packed if one["frames"] or len(one["figures"]) > 1]
    titles = list(report.runs)
    data = {
        "figures": {name: [client_data.entry(one) for one in drawn] for name, drawn in report.figures.items() if drawn},
        "parts": packed,
        "shared": shared.values,
        "classes": report.runs[titles[0]][0].classes,
        "methods": colours(titles, reference),
        "first": related[0] if related else titles[-1],
        "reference": reference,
        "joint": any(part.joint for part in report.parts),
        "config": {"light": charts.config(), "dark": charts.config(dark=True)},
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return files("fedkin.report").joinpath("assets", name).read_text(encoding="utf-8")


def _inline(script: str) -> str:
    """Return a script that cannot end its element early."""
    return script.replace("</script", "<\\/script")
