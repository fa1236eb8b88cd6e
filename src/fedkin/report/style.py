"""How every figure looks: colours that colour-blind readers can tell apart, quiet axes, files written whole.

Figures are made with matplotlib's objects only (no ``pyplot``): no display, no global state, nothing to close.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedkin.report.folder import write_atomic

# Okabe and Ito's palette without its yellow, which vanishes on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", "--", (0, (1, 1)), (0, (5, 1, 1, 1)))
HELPED, HARMED, UNCHANGED = "#0072B2", "#D55E00", "#8C8C8C"
REFERENCE = "#4D4D4D"
UNKNOWN = "#E6E6E6"
INK, GRID = "#222222", "#E3E3E3"
DPI = 150


@dataclass(frozen=True)
class Style:
    """Colour and line of one method, the same in every figure of a report."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]] = "-"


def styles(titles: Iterable[str], reference: str = "Local") -> dict[str, Style]:
    """A style per method, in the order given; the reference is always dashed grey."""
    result: dict[str, Style] = {}
    others = 0
    for title in titles:
        if title == reference:
            result[title] = Style(REFERENCE, (0, (4, 2)))
            continue
        dash = DASHES[others // len(PALETTE) % len(DASHES)]
        result[title] = Style(PALETTE[others % len(PALETTE)], dash)
        others += 1
    return result


def new_figure(width: float = 7.0, height: float = 4.0) -> Figure:
    """An empty figure of that size in inches, ready to be drawn without a display."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def quiet(axes: Axes, *, grid: str | None = "y") -> None:
    """Only the lines a reader needs: left and bottom spine, a light grid along one axis behind the data."""
    axes.set_facecolor("white")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(UNCHANGED)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.xaxis.label.set(color=INK, size=10)
    axes.yaxis.label.set(color=INK, size=10)
    axes.set_axisbelow(True)
    if grid == "x":
        axes.grid(True, axis="x", color=GRID, linewidth=0.8)
    elif grid == "y":
        axes.grid(True, axis="y", color=GRID, linewidth=0.8)


def headline(figure: Figure, text: str) -> None:
    """The figure's title: a fact, left-aligned over the whole width."""
    figure.suptitle(plain(text), x=0.01, ha="left", fontsize=11, color=INK, fontweight="bold", wrap=True)


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def percents(values: Sequence[float | None]) -> np.ndarray:
    """Fractions as per cent, float64 ``[n]``; None becomes NaN, which leaves a gap."""
    return np.array([np.nan if v is None else 100.0 * v for v in values], dtype=np.float64)


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure, whole or not at all; the suffix (``.png``, ``.svg``, ``.pdf``) says how."""
    path = Path(path)
    kind = path.suffix.lstrip(".").lower() or "png"
    write_atomic(path if path.suffix else path.with_suffix(".png"), render(figure, kind))
    return path if path.suffix else path.with_suffix(".png")


def render(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a file of that kind; SVG is the same on every call and carries no date."""
    buffer = io.BytesIO()
    if kind == "svg":
        bare = {"Date": None, "Creator": None, "Format": None, "Type": None}
        with matplotlib.rc_context({"svg.hashsalt": "fedkin"}):
            figure.savefig(buffer, format="svg", metadata=bare)
    else:
        figure.savefig(buffer, format=kind, dpi=DPI)
    return buffer.getvalue()


def inline_svg(figure: Figure) -> str:
    """A figure as an ``<svg>`` element to stand inside HTML: no prologue, comments or namespace addresses."""
    text = render(figure, "svg").decode("utf-8")
    text = re.sub(r"<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).strip()
