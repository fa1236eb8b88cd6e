"""Charts as Vega-Lite specifications: drawn to SVG or PNG without a browser, or live in a page, by the same library.

A chart is a plain ``dict`` (https://vega.github.io/vega-lite/docs/spec.html) with its data inside. The common part of
all charts is `config`: plain axes, one for light and one for dark; colours are tokens of `fedkin.report.palette`.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fedkin.display import printable_parts
from fedkin.report import palette
from fedkin.report.drawing import drawn
from fedkin.storage.files import cache_folder, write_atomic

Spec = dict[str, Any]
"""A chart, or a part of one, as Vega-Lite's JSON."""
Datum = dict[str, Any]
"""A row of a chart's data: plain values by field."""
MAP = {
    "light": ("#e4edf4", "#a4cbe8", "#4f9dd0", "#176a9f", "#002c47"),
    "dark": ("#28313a", "#1d567d", "#2f8ac2", "#86c3ec", "#e2f3ff"),
}
"""From low to high in a map, one hue: low is close to the colour of the paper, which stands for unknown."""
VERSION = "6.4"
"""Version of Vega-Lite: a newer one may draw differently, so it is changed together with a check of the pictures."""
_ALL = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"
_WIDE = 560  # pixels of plots that may be narrower: in others marks have places of their own


def chart(name: str, **values: object) -> Spec:
    """Return a chart of ``specs``, with values in place of its texts ``"$name"``.

    A file has Vega-Lite's own JSON, and next to it ``let``, names for what occurs several times; ``like``, an object
    whose other keys replace those of a name; and ``if``, an object that is left out where a value is none.
    """
    template = _template(name)
    for name, part in {**_template("common"), **template.pop("let", {})}.items():
        values[name] = _filled(part, values)
    spec: Spec = _filled(template, values)
    return spec


def _filled(part: Any, values: Spec) -> Any:
    if isinstance(part, str):
        return values[part[1:]] if part.startswith("$") else part
    if isinstance(part, list):
        return [_filled(one, values) for one in part if not (isinstance(one, dict) and _left_out(one, values))]
    if isinstance(part, dict):
        base = _filled(part["like"], values) if "like" in part else {}
        return base | {key: _filled(one, values) for key, one in part.items() if key not in ("like", "if")}
    return part


def _left_out(part: Spec, values: Spec) -> bool:
    value = values[part["if"][1:]] if "if" in part else True
    return value is None or value is False or value in ("", [])


def _template(name: str) -> Spec:
    template: Spec = json.loads(files("fedkin.report").joinpath(f"specs/{name}.json").read_text(encoding="utf-8"))
    return template


def config(*, dark: bool = False) -> Spec:
    """Return the common configuration of all charts, for Vega-Lite together with the chart."""
    theme = "dark" if dark else "light"
    plain = {"labelColor": "var(--ink-2)", "titleColor": "var(--ink-2)", "labelFontSize": 12, "titleFontSize": 12}
    made: Spec = palette.resolved({
        "background": "var(--surface)",
        "font": palette.FONT,
        "range": {"category": [f"var(--g{n})" for n in range(1, palette.SLOTS + 1)], "heatmap": list(MAP[theme])},
        "view": {"stroke": None},
        "title": {"anchor": "start", "color": "var(--ink)", "fontSize": 14, "offset": 12},
        "axis": {**plain, "titleFontWeight": "normal", "gridColor": "var(--grid)", "domain": False, "ticks": False,
                 "labelPadding": 6},
        "legend": {**plain, "titleFontWeight": "normal", "symbolStrokeWidth": 2},
        "text": {"color": "var(--ink)", "fontSize": 12},
        "rect": {"stroke": None},
    }, theme)  # fmt: skip
    return made


def svg(spec: Spec, *, dark: bool = False) -> str:
    """Return the chart as an SVG image."""
    return _drawn("svg", spec, dark).decode()


def pdf(spec: Spec, inches: float, plot: int) -> bytes:
    """Return the chart for a paper, as a PDF of a page with the size of the chart.

    Args:
        plot: pixels between the ends of the horizontal axis at most, from which the size of the letters follows.
    """
    width = spec.get("width")
    text = svg({**spec, "width": min(width, plot)} if isinstance(width, int) and width >= _WIDE else spec)

    def scaled(drawn: re.Match[str]) -> str:
        factor = 72 * inches / float(drawn[1])
        return f' width="{72 * inches:.2f}" height="{factor * float(drawn[2]):.2f}"'

    return drawn("svg_to_pdf", svg=re.sub(r' width="([\d.]+)" height="([\d.]+)"', scaled, text, count=1))


def png(spec: Spec, *, dark: bool = False, scale: float = 2.0) -> bytes:
    """Return the chart as a PNG image, with a number of pixels for each of the specification's."""
    return _drawn("png", spec, dark, scale=scale)


def _drawn(kind: str, spec: Spec, dark: bool, **options: float) -> bytes:
    themed = palette.resolved(printable_parts(spec), "dark" if dark else "light")
    common = {"vl_version": VERSION, "config": config(dark=dark), "allowed_base_urls": []}  # nothing is loaded
    return drawn(f"vegalite_to_{kind}", vl_spec=themed, **common, **options)


@cache
def script() -> str:
    """Return JavaScript that draws charts in a page: ``vegaEmbed``, ``vega`` and ``vegaLite``, 0.9 MB, without network.

    Assembling it takes seconds, so it is kept in the user's cache folder.
    """
    kept = cache_folder() / f"vega-{version('vl-convert-python')}-{VERSION}.js"
    with contextlib.suppress(OSError):
        return kept.read_text(encoding="utf-8")
    made = drawn("javascript_bundle", snippet=_ALL, vl_version=VERSION)
    with contextlib.suppress(OSError):  # the cache folder cannot be written: it is assembled each time
        write_atomic(kept, made)
    return made.decode()
