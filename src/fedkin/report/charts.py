"""Charts as Vega-Lite specifications: drawn to SVG or PNG without a browser, or live in a page, by the same library.

A chart is a plain ``dict`` (https://vega.github.io/vega-lite/docs/spec.html) with its data inside. The common part of
all charts is `config`: colours that colour-blind readers can distinguish, plain axes, one for light and one for dark.
"""

from __future__ import annotations

import contextlib
from functools import cache
from importlib.metadata import version
from typing import Any

import vl_convert

from fedkin.storage.files import cache_folder, write_atomic

Spec = dict[str, Any]
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette without its yellow, which is invisible on white, and its black."""
MAP = {
    "light": ("#e4edf4", "#a4cbe8", "#4f9dd0", "#176a9f", "#002c47"),
    "dark": ("#28313a", "#1d567d", "#2f8ac2", "#86c3ec", "#e2f3ff"),
}
"""From low to high in a map, one hue: low is close to the colour of the paper, which stands for unknown."""
INK = {
    "light": {"ink": "#1d1d1f", "paper": "#ffffff", "soft": "#5f6368", "line": "#dadce0", "shade": "#f1f3f4",
              "link": "#0b57d0", "warn": "#8a4b00", "warn-paper": "#fff4e5"},
    "dark": {"ink": "#e8eaed", "paper": "#17181a", "soft": "#a5a9ae", "line": "#3c4043", "shade": "#232529",
             "link": "#8ab4f8", "warn": "#ffcc80", "warn-paper": "#33280f"},
}  # fmt: skip
"""Colours of the page and of its charts; texts have a contrast of at least 4.5 : 1 to their background."""
VERSION = "6.4"
"""Version of Vega-Lite: a newer one may draw differently, so it is changed together with a check of the pictures."""
_ALL = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"
_NOWHERE: list[str] = []  # data lie inside a chart: nothing is loaded from an address


def config(*, dark: bool = False) -> Spec:
    """Return the common configuration of all charts, for Vega-Lite together with the chart."""
    colours = INK["dark" if dark else "light"]
    ink, soft, line = colours["ink"], colours["soft"], colours["line"]
    return {
        "background": colours["paper"],
        "font": "system-ui, sans-serif",
        "range": {"category": list(PALETTE), "heatmap": list(MAP["dark" if dark else "light"])},
        "view": {"stroke": None},
        "title": {"anchor": "start", "color": ink, "fontSize": 14, "offset": 12},
        "axis": {
            "labelColor": ink, "titleColor": ink, "gridColor": line, "domainColor": soft, "tickColor": soft,
            "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal",
        },
        "legend": {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12},
        "text": {"color": ink},
    }  # fmt: skip


def svg(spec: Spec, *, dark: bool = False) -> str:
    """Return the chart as an SVG image."""
    made: str = vl_convert.vegalite_to_svg(
        spec, vl_version=VERSION, config=config(dark=dark), allowed_base_urls=_NOWHERE
    )
    return made


def png(spec: Spec, *, dark: bool = False, scale: float = 2.0) -> bytes:
    """Return the chart as a PNG image, with a number of pixels for each of the specification's."""
    made: bytes = vl_convert.vegalite_to_png(
        spec, vl_version=VERSION, config=config(dark=dark), allowed_base_urls=_NOWHERE, scale=scale
    )
    return made


@cache
def script() -> str:
    """Return JavaScript that draws charts in a page: ``vegaEmbed``, ``vega`` and ``vegaLite``, 0.9 MB, without network.

    Assembling it takes seconds, so it is kept in the user's cache folder.
    """
    kept = cache_folder() / f"vega-{version('vl-convert-python')}-{VERSION}.js"
    with contextlib.suppress(OSError):
        return kept.read_text(encoding="utf-8")
    made: str = vl_convert.javascript_bundle(_ALL, vl_version=VERSION)
    with contextlib.suppress(OSError):  # the cache folder cannot be written: it is assembled each time
        write_atomic(kept, made.encode())
    return made
