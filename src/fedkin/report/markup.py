"""The HTML of a report: its parts in order, and the data for its script."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from fedkin.core.errors import counted
from fedkin.display import printable, printable_parts
from fedkin.report import board, charts, client_data, curves, palette, result, settings, tables
from fedkin.report.figures import dashes, prominent, shades, shapes
from fedkin.report.page_data import PageData
from fedkin.report.result import Scene
from fedkin.report.wording import named, tight

SCRIPTS = ("tools.js", "charts.js", "clients.js", "drawer.js", "relations.js", "page.js")
"""Scripts in the order of their dependencies; the page contains them as one."""
STYLES = ("page.css", "parts.css")
# so that the browser itself refuses requests that would leave the page
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def document(scene: Scene, body: str, command: str | None) -> str:
    """Return the whole page.

    Args:
        scene: content of the page, and the order of its methods.
        body: HTML below the board: all verdicts in sentences and the complete table.
        command: command that repeats the run; omitted if None.
    """
    report = scene.report
    first, second = result.sentences(scene, scene.first)
    title = html.escape("".join(text for text, _ in first) + f" {second}".rstrip() + " – fedkin report")
    script = "\n".join(_asset(name) for name in SCRIPTS)
    style = palette.css() + "".join(_asset(name) for name in STYLES).replace("FONT", palette.FONT)
    order = [scene.first, *(t for t in report.runs if t != scene.first)]
    blocks = "".join(result.block(scene, t) for t in order)
    parts = {
        "rounds": ("Over rounds", _rounds(report)),
        "learned": ("Who learned from whom", _asset("learned.html")),
        "clients": ("Clients", _asset("clients.html")),
        "more": ("More figures", _more(report)),
        "settings": ("Settings", settings.section(report.runs, scene.first, command)),
    }
    names = {"result": "Result", **{name: said for name, (said, _) in parts.items() if name != "more"}}
    links = "".join(f'<a href="#{name}">{said}</a>' for name, said in names.items())
    page = "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>",
            '<a class="skip" href="#result">Skip to the result</a>',
            _bar(report, links),
            f'<main class="wrap">\n<section id="result" aria-label="Result">\n{blocks}',
            board.caveats(report.warnings, list(report.runs)),
            board.board(scene),
            '<details class="panel plain sentences"><summary>All verdicts in sentences; the complete table</summary>'
            f'<div class="inner">{body}</div></details>\n</section>',
            "<noscript><p>The charts and the table of clients need JavaScript, which is switched off.</p></noscript>",
            *(_section(name, *part) for name, part in parts.items()),
            "<footer>Written by fedkin. One file with charts, data and script; nothing leaves this page.</footer>",
            f"</main>\n{_asset('drawer.html')}",
            f'<script type="application/json" id="data">{_data(scene)}</script>',
        ]
    )
    scripts = (f'<script type="module">{_inline(code)}</script>' for code in (charts.script(), script))
    return "\n".join([printable(page), *scripts]) + "\n</body>\n</html>\n"


def _bar(report: PageData, links: str) -> str:
    """Return the bar: what was run, contents, one picker of the method and one of the seed, the theme."""
    seeds = len({run.seed for runs in report.runs.values() for run in runs})
    count = max((len(run.by_client) for runs in report.runs.values() for run in runs), default=0)
    known = [run.summary.get("clients", {}).get("count") or 0 for runs in report.runs.values() for run in runs]
    config = next(iter(report.runs.values()))[0].summary.get("config")
    data = config.get("data") if isinstance(config, dict) else None
    name = Path(str(data["data"])).name if isinstance(data, dict) and data.get("data") else ""
    what = ["Comparison" if len(report.runs) > 1 else "Run", name, counted(max(count, *known), "client"),
            curves.rounds_text(report.runs), f"{seeds} seeds" if seeds > 1 else "one seed"]  # fmt: skip
    options = "".join(f'<option value="{html.escape(t)}">{html.escape(named(t))}</option>' for t in report.runs)
    many = "" if len(report.runs) > 1 else " hidden"
    return (
        f'<header class="bar"><div class="wrap"><span class="brand">{_asset("logo.html")}fedkin</span>'
        f'<span class="runid">{html.escape(" · ".join(filter(None, what)))}</span>'
        f'<nav class="toc" aria-label="On this page">{links}</nav>'
        f'<label class="pick"{many}><span>Method</span><select id="method" aria-label="Method shown on the whole page">'
        f'{options}</select></label><label class="pick" hidden><span>Seed</span><select id="seed" aria-label="Seed of '
        f'the parts about single clients"></select></label>{_asset("theme.html")}</div></header>'
    )


def _rounds(report: PageData) -> str:
    drawn = report.figures["rounds"]
    buttons = "".join(
        f'<button type="button" data-show="{n}" aria-pressed="{"true" if n == 0 else "false"}">'
        f"{html.escape(one.fact.partition(':')[0])}</button>"
        for n, one in enumerate(drawn)
    )
    switch = f'<span class="seg push" role="group" aria-label="Curve">{buttons}</span>' if len(drawn) > 1 else ""
    holders = "".join(
        f'<div class="measure" data-measure="{n}"{" hidden" if n else ""}>{_chart("rounds", n)}'
        f"{_foot(one.caption, 'rounds', n)}</div>"
        for n, one in enumerate(drawn)
    )
    head = f'<div class="head"><h3>Accuracy over rounds</h3>{switch}</div>'
    left = f'<figure class="panel fig" id="curves">{head}{holders}</figure>'
    right = "".join(figure(report, "traffic", n) for n in range(len(report.figures["traffic"])))
    return f'<div class="{"two" if right else ""}">{left}{right}</div>'


def _more(report: PageData) -> str:
    inner = "".join(figure(report, "more", n) for n in range(len(report.figures["more"])))
    return f'<div class="half">{inner}<div id="more-labels" class="panel fig" hidden></div></div>'


def figure(report: PageData, section: str, number: int) -> str:
    """Return a chart of a section with its heading, its caption and its buttons."""
    one = report.figures[section][number]
    return (
        f'<figure class="panel fig"><div class="head"><h3>{html.escape(tight(one.fact))}</h3></div>'
        f"{_chart(section, number)}{_foot(one.caption, section, number)}</figure>"
    )


def _chart(section: str, number: int) -> str:
    return f'<div class="chart" data-chart="{section}" data-number="{number}"></div>'


def _foot(caption: str, section: str, number: int) -> str:
    where = f'data-number="{number}"'
    return (
        f'<div class="foot"><p class="note">{html.escape(tight(caption))}</p><span class="links">'
        f'<button type="button" class="link" data-values="{section}" {where} aria-label="Save the figures of this '
        f'chart as CSV">CSV</button><button type="button" class="link" data-svg="{section}" {where} aria-label="Save '
        'this chart as SVG">SVG</button></span></div>'
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


def _section(name: str, title: str, inner: str) -> str:
    return (
        f'<section class="s" id="{name}"><div class="head"><h2 class="sec" id="{name}-fact">{title}</h2></div>\n'
        f"{inner}</section>"
    )


def _data(scene: Scene) -> str:
    """Return the data of the page, as JSON that may stand in a script element."""
    report, shared = scene.report, client_data.Shared()
    titles = list(report.runs)
    colour, kinds, dash = shades(report.runs), shapes(report.runs), dashes(titles)
    data = {
        "figures": {name: [client_data.entry(one) for one in drawn] for name, drawn in report.figures.items()},
        "parts": [client_data.packed(part, shared) for part in report.parts],
        "shared": shared.values,
        "classes": report.runs[titles[0]][0].classes,
        "methods": {t: {"name": named(t), "colour": colour[t], "shape": kinds[t][0], "filled": kinds[t][1],
                        "dash": dash[t]} for t in titles},
        "order": [*scene.order, *(t for t in titles if t not in scene.order)],
        "shown": prominent(report.runs),
        "course": curves.course(report.runs),
        "first": scene.first,
        "reference": scene.reference,
        "joint": any(part.joint for part in report.parts),
        "config": {"light": charts.config(), "dark": charts.config(dark=True)},
    }  # fmt: skip
    text = json.dumps(printable_parts(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("fedkin.report").joinpath("assets", name).read_text(encoding="utf-8")


def _inline(script: str) -> str:
    """Return a script that cannot end its element early."""
    return script.replace("</script", "<\\/script")
