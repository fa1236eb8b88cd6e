"""The board of the first screen, gains of all clients and the table of methods in the same rows; caveats above it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from fedkin.evaluate import warnings as careful
from fedkin.report import pictures, tables
from fedkin.report.dots import ONE_ROW, WORDS
from fedkin.report.figures import prominent, shades, shapes
from fedkin.report.first import NAMED
from fedkin.report.headline import MARK, rounds_of
from fedkin.report.references import FEDAVG, LOCAL, alone
from fedkin.report.result import Scene, diverged, harmed_range, lowest
from fedkin.report.standings import Standing
from fedkin.report.wording import SIGNS, against, cut, listed, named, share, short_mb, signed, tight

_HEADS = {
    "one seed": "one seed", "small tests": "small test parts", "rising": "still rising", "unsteady": "unlike seeds",
    "constant": "no better than a constant", "never": "clients without training", "refused": "refused uploads",
    "abandoned": "abandoned rounds", "diverged": "diverged", "smaller cohorts": "smaller cohorts",
    "one cluster": "one group for nearly all", "data": "remark on the data",
    "end of range": "tuned to the end of a range", "tuning failed": "not tuned: all trials failed",
    "privacy of tuning": "privacy without tuning",
}  # fmt: skip
_BY_NAME = ("rising", "unsteady", "diverged", "one cluster", "end of range", "tuning failed")
_MOST_HEADS = 4


def caveats(found: Sequence[careful.Warning], methods: Sequence[str]) -> str:
    """Return the caveats as one line that opens; empty if there are none.

    Args:
        found: the caveats.
        methods: titles of the methods, with which their caveats begin.
    """
    if not found:
        return ""
    heads = [_head(w, methods) for w in found]
    kinds = list(dict.fromkeys(heads))
    line = " · ".join(kinds[:_MOST_HEADS]) + (f" · {len(kinds) - _MOST_HEADS} more" if len(kinds) > _MOST_HEADS else "")
    items = "".join(
        f"<li><b>{html.escape(head[0].upper() + head[1:])}</b>{html.escape(tight(w.text))}</li>\n"
        for head, w in zip(heads, found, strict=True)
    )
    count = f"{len(found)} caveat{'' if len(found) == 1 else 's'}:"
    sign = ('<svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d="M8 1.5 15 14H1z" fill="none" '
            'stroke="currentColor" stroke-width="1.5" stroke-linejoin="round"/><path d="M8 6v4M8 11.2v1.4" '
            'stroke="currentColor" stroke-width="1.5"/></svg>')  # fmt: skip
    return (
        f'<details class="caveats" id="caveats"><summary>{sign}<span><b>{count}</b> {html.escape(line)}</span>'
        f'<span class="more"><span class="o">What they mean</span><span class="c">Close</span></span></summary>\n'
        f"<ul>{items}</ul></details>\n"
    )


def _head(warning: careful.Warning, methods: Sequence[str]) -> str:
    """Return two to four words for a caveat, with the methods that it is about."""
    if warning.kind == "collapse":
        return warning.text.partition(" for every client")[0]
    head = _HEADS.get(warning.kind, warning.kind)
    several = warning.text.partition(": ")[0].split(", ")
    if warning.kind not in _BY_NAME or not set(several) <= set(methods):
        return head
    return f"{several[0]} and {len(several) - 1} more {head}" if len(several) > 2 else f"{listed(several)} {head}"


def board(scene: Scene) -> str:
    """Return the board: for each reference the dots and the table, and a switch between them."""
    found = {name: s for name, s in scene.report.standings.items() if s}
    references = list(found) or [""]
    buttons = "".join(
        f'<button type="button" data-ref="{n}" aria-pressed="{"true" if n == 0 else "false"}">vs '
        f"{_versus(name)}</button>"
        for n, name in enumerate(references)
        if name
    )
    switch = f'<span class="seg push" role="group" aria-label="Compared with" id="ref">{buttons}</span>'
    questions = "".join(
        f'<span data-board="{n}"{" hidden" if n else ""}>{html.escape(_question(name, n == 0))}</span>'
        for n, name in enumerate(references)
    )
    says = "".join(
        f'<span class="t14 mut hp" data-board="{n}"{" hidden" if n else ""}>Each mark is one client: '
        f"{html.escape(_measured(scene, name))}</span>"
        for n, name in enumerate(references)
    )
    parts = "".join(_split(scene, name, found.get(name, {}), n) for n, name in enumerate(references))
    return (
        f'<div class="panel board"><div class="head"><h2 class="sec">{questions}</h2>{says}'
        f"{switch if len(references) > 1 else ''}</div>\n{parts}"
        f'<div class="foot"><p class="note">{html.escape(_note(scene))}</p></div></div>\n'
    )


def _question(reference: str, first: bool) -> str:
    """Return the heading of the board for a reference."""
    if not reference or alone(reference):
        return "For whom did it pay?" if reference else "Every client"
    plain = "plain " * (reference == FEDAVG)
    return f"Every client against {plain}{reference}" if first else f"And against {plain}{reference}?"


def _measured(scene: Scene, reference: str) -> str:
    what = NAMED[scene.report.first.metric]
    return f"its gain in points of {what} over {against(reference)}, last round" if reference else "its accuracy"


def _versus(reference: str) -> str:
    """Return a reference on its button, shorter on a phone."""
    return '<span class="hp">training </span>alone' if reference == LOCAL else html.escape(reference)


def _split(scene: Scene, reference: str, found: Mapping[str, Standing], number: int) -> str:
    """Return the dots and the table against one reference."""
    hidden = " hidden" if number else ""
    big = scene.report.figures["gains"][number].spec["height"]["step"] == ONE_ROW
    return (
        f'<div class="split{" single" if big else ""}" data-board="{number}"{hidden}>'
        f'<figure><div class="key">{_key(scene, reference)}</div>'
        f'<div class="chart" data-chart="gains" data-number="{number}"></div>'
        f'</figure>\n<div class="side">{_table(scene, reference, found, number)}'
        f'<span class="links"><button type="button" class="link" data-csv="methods-{number}" aria-label="Save this '
        f'table as CSV">CSV</button><button type="button" class="link" data-svg="gains" data-number="{number}" '
        f'aria-label="Save the chart of clients as SVG">SVG</button></span></div></div>\n'
    )


def _key(scene: Scene, reference: str) -> str:
    rounds = rounds_of(run for runs in scene.report.runs.values() for run in runs)
    mean = ('<span class="hp"><svg width="8" height="14" aria-hidden="true"><line x1="4" x2="4" y1="0" y2="14" '
            f'stroke="var(--ink)" stroke-width="2"/></svg>mean{f", {rounds}" if rounds.startswith("round") else ""}'
            "</span>")  # fmt: skip
    if not reference:
        return f"<span>{pictures.mark(0, False)}a client</span>{mean}"
    return (
        f"<span>{pictures.mark(1, True)}{WORDS[1]}</span><span>{pictures.mark(-1, True)}{WORDS[-1]}</span>"
        f"<span>{pictures.mark(0, False)}{WORDS[0]}</span>"
        f"<span>{pictures.mark(1, False)}{pictures.mark(-1, False)}pale: may be chance</span>{mean}"
    )


def _table(scene: Scene, reference: str, found: Mapping[str, Standing], number: int) -> str:
    report, fair = scene.report, scene.report.first.fair
    shown = [t for t in prominent(report.runs) if t in scene.order]
    titles = [*shown, *(t for t in scene.order if t not in shown)]
    titles = sorted(titles, key=list(scene.order).index)
    lows = [v for s in found.values() for v in (s.difference.low, s.difference.mean) if v is not None]
    highs = [v for s in found.values() for v in (s.difference.high, s.difference.mean) if v is not None]
    ends = (min([-0.05, *lows]), max([0.05, *highs]))
    head = _cell("th", "Method") + _cell("th", "Verdict", "hp") * bool(reference)
    head += '<th scope="col" colspan="2">Mean gain, 95% interval</th>' * bool(reference)
    head += ("" if fair else _cell("th", "Balanced %", "n")) + _cell("th", "Accuracy %", "n" if fair else "n hp")
    head += _cell("th", "Worst %", "n hp hs") if fair else ""
    head += _cell("th", "Harmed", "n") * bool(reference) + _cell("th", "MB", "n hp")
    rows = "".join(_row(scene, title, reference, found.get(title), ends, title not in shown) for title in titles)
    more = len(titles) - len(shown)
    button = f'<button type="button" class="btn rows">Show all {len(titles)}</button>' if more else ""
    return (
        f'<table id="methods-{number}"><caption class="vh">All methods, by accuracy</caption><thead><tr>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table>{button}"
    )


def _cell(tag: str, text: str, kind: str = "", value: str | None = None) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    kind = f' class="{kind}"' if kind else ""
    kept = "" if value is None else f' data-value="{html.escape(value)}"'
    return f"<{tag}{scope}{kind}{kept}>{text}</{tag}>"


def _row(
    scene: Scene, title: str, reference: str, standing: Standing | None, ends: tuple[float, float], rest: bool
) -> str:
    runs, fair = scene.report.runs, scene.report.first.fair
    word = "reference" if title == reference else standing.difference.word if standing else "–"
    kind = word.partition(" ")[0]
    shown = "unclear" if word == "no clear difference" else word
    sign = f'<span class="v {kind}"><span aria-hidden="true">{SIGNS.get(word, "")}</span>{shown}</span>'
    picked = title == scene.first
    cells = (
        f'<th scope="row" data-value="{html.escape(title)}"><button type="button" class="mbtn" data-pick="'
        f'{html.escape(title)}" aria-pressed="{"true" if picked else "false"}">'
        f"{pictures.glyph(shades(runs)[title], shapes(runs)[title])}"
        f'<span><span class="nm" title="{html.escape(named(title))}">'
        f"{html.escape(cut(named(title), 20))}</span>"
        f"{f'<span class=ph>{sign}</span>' if reference else ''}</span></button></th>"
    )
    if reference:
        found = None if standing is None else standing.difference
        mean = None if found is None else found.mean
        low, high = (None, None) if found is None or found.identical else (found.low, found.high)
        text = "" if low is None or high is None else f"{signed(low)} to {signed(high)}"
        cells += _cell("td", sign, "hp", word) + _cell("td", "–" if mean is None else signed(mean), "n g")
        cells += _cell("td", pictures.interval(low, mean, high, ends, word), "i", text)
    worst = lowest(scene, title)
    accuracy = _with_std(scene, title, "accuracy")
    cells += ("" if fair else _cell("td", _with_std(scene, title, "balanced"), "n")) + _cell(
        "td", accuracy, "n" if fair else "n hp"
    )
    cells += _cell("td", "–" if worst is None else share(worst[0])[:-1], "n hp hs") if fair else ""
    cells += _cell("td", harmed_range(standing) if standing else "–", "n") if reference else ""
    sent = scene.megabytes(title)
    cells += _cell("td", "–" if sent is None else html.escape(short_mb(sent)), "n hp")
    kinds = " ".join(filter(None, ("on" * picked, "rest" * rest)))
    mark = f' class="{kinds}"' if kinds else ""
    return f'<tr data-method="{html.escape(title)}"{mark}{" hidden" if rest and not picked else ""}>{cells}</tr>\n'


def _with_std(scene: Scene, title: str, metric: str) -> str:
    return tables.percent(scene.final(title, metric)) + (f" {MARK}" if diverged(scene, title) else "")


def _note(scene: Scene) -> str:
    pick = "Pick a method in the table to show it on the whole page." if len(scene.order) > 1 else ""
    pick = f"{MARK} Training diverged: figures of the last usable models. {pick}" if any(
        diverged(scene, title) for title in scene.report.runs
    ) else pick  # fmt: skip
    if not scene.tied or not scene.order:
        return pick
    tied = [named(t) if t == LOCAL else t for t in scene.tied]
    rest = f"{', '.join(tied[:5])} and {len(tied) - 5} more" if len(tied) > 6 else listed(tied, "or")
    return f"{scene.order[0]} is not clearly above {rest}. {pick}"
