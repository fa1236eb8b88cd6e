"""Small pictures inside the text: marks, intervals, bars, as inline SVG that takes its colours from the page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_PATHS = {
    "circle": "M0-4.6A4.6 4.6 0 1 1 0 4.6 4.6 4.6 0 1 1 0-4.6Z",
    "square": "M-4-4H4V4H-4Z",
    "diamond": "M0-5.6 5.6 0 0 5.6-5.6 0Z",
    "triangle-up": "M0-5 5.2 4H-5.2Z",
    "triangle-down": "M0 5 5.2-4H-5.2Z",
    "cross": "M-1.7-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",
}
MOST_MARKS = 40
"""With more clients than this the row of marks is a bar."""


def _svg(inner: str, attributes: str, says: str = "") -> str:
    label = f'role="img" aria-label="{html.escape(says)}"' if says else 'aria-hidden="true"'
    return f"<svg {attributes} {label}>{inner}</svg>"


def glyph(colour: str, shape: tuple[str, bool]) -> str:
    """Return the mark of a method: its shape in its colour, or a dash for training alone."""
    kind, filled = shape
    if kind not in _PATHS:
        inner = f'<path d="M-6 0H6" stroke="{colour}" stroke-width="2" stroke-dasharray="3 2"/>'
    else:
        fill = colour if filled else "var(--surface)"
        width = 0 if filled else 1.8
        inner = f'<path d="{_PATHS[kind]}" fill="{fill}" stroke="{colour}" stroke-width="{width}"/>'
    return _svg(inner, 'class="glyph" width="14" height="14" viewBox="-7 -7 14 14"')


def mark(kind: int, strong: bool) -> str:
    """Return the mark of a client: a disc (higher), a ring (equal) or a triangle (lower), pale unless ``strong``."""
    if kind == 0:
        inner = '<circle r="2.6" fill="var(--surface)" stroke="var(--same)" stroke-width="1.3"/>'
    else:
        name = "gain" if kind > 0 else "loss"
        look = f'fill="var(--{name}{"" if strong else "-soft"})" stroke="var(--{name})"'
        inner = (f'<circle r="4" {look} stroke-width="1.4"/>' if kind > 0 else
                 f'<path d="M0 5.2-5.4-4.2H5.4Z" {look} stroke-width="1.8" stroke-linejoin="round"/>')  # fmt: skip
    return _svg(inner, 'width="12" height="12" viewBox="-6 -6 12 12"')


def clients(found: Iterable[tuple[int, bool]], says: str) -> str:
    """Return a mark for each client, higher ones first; of many clients a bar of three parts."""
    order = sorted(found, key=lambda one: (-one[0], -one[1] * one[0]))
    if len(order) > MOST_MARKS:
        return _parts([sum(kind == k for kind, _ in order) for k in (1, 0, -1)], says)
    marks = "".join(mark(kind, strong) for kind, strong in order)
    return f'<div class="units" role="img" aria-label="{html.escape(says)}">{marks}</div>'


def _parts(counts: Sequence[int], says: str) -> str:
    inner, at, total = "", 0.0, max(1, sum(counts))
    for n, name in zip(counts, ("gain", "same-soft", "loss"), strict=True):
        inner += f'<rect x="{at:.2f}%" y="15%" width="{100 * n / total:.2f}%" height="70%" fill="var(--{name})"/>'
        at += 100 * n / total
    return _svg(inner, 'class="mini"', says)


def dumbbell(before: float | None, now: float, low: float, says: str) -> str:
    """Return two figures on a scale from ``low`` to 1: the reference's as a ring, the method's as a disc."""

    def x(value: float) -> str:
        return f"{3 + 94 * (value - low) / max(1e-9, 1 - low):.1f}%"

    inner = '<line x1="0%" x2="100%" y1="50%" y2="50%" stroke="var(--line-2)"/>'
    colour = "var(--same)" if before is None else "var(--gain)" if now >= before else "var(--loss)"
    if before is not None:
        ends = f'x1="{x(min(before, now))}" x2="{x(max(before, now))}"'
        inner += f'<line {ends} y1="50%" y2="50%" stroke="{colour}" stroke-width="4"/>'
        inner += (
            f'<circle cx="{x(before)}" cy="50%" r="4" fill="var(--surface)" stroke="var(--same)" stroke-width="2"/>'
        )
    inner += f'<circle cx="{x(now)}" cy="50%" r="5" fill="{colour}"/>'
    return _svg(inner, 'class="mini"', says)


def bar(value: float, top: float, tick: float | None, says: str) -> str:
    """Return a value of ``top`` as a bar, with a line at another value."""
    inner = '<rect y="20%" height="60%" width="100%" rx="2" fill="var(--same-soft)"/>'
    inner += f'<rect y="20%" height="60%" width="{100 * value / (top or 1):.1f}%" rx="2" fill="var(--ink-2)"/>'
    if tick is not None:
        at, colour = f"{100 * tick / (top or 1):.1f}%", "surface" if value > 1.02 * tick else "ink"
        inner += f'<line x1="{at}" x2="{at}" y1="0" y2="100%" stroke="var(--{colour})" stroke-width="2"/>'
    return _svg(inner, 'class="mini"', says)


def interval(low: float | None, mean: float | None, high: float | None, ends: tuple[float, float], word: str) -> str:
    """Return an interval with its mean on the scale of its column; without an interval the mean alone."""

    def x(value: float) -> str:
        return f"{4 + 92 * (value - ends[0]) / (ends[1] - ends[0]):.1f}%"

    inner = f'<line x1="{x(0)}" x2="{x(0)}" y1="-9" y2="29" stroke="var(--line-2)"/>'
    colour = f"var(--{({'better': 'gain', 'ahead': 'gain', 'worse': 'loss', 'behind': 'loss'}).get(word, 'same')})"
    says = "reference"
    if mean is not None:
        says = "too few figures for an interval"
        if low is not None and high is not None:
            says = f"95% interval {100 * low:+.1f} to {100 * high:+.1f} points".replace("-", "−")
            inner += f'<line x1="{x(low)}" x2="{x(high)}" y1="10" y2="10" stroke="{colour}" stroke-width="3"/>'
            inner += f"<title>{says}</title>"
        inner += f'<circle cx="{x(mean)}" cy="10" r="4.5" fill="{colour}"/>'
    return _svg(inner, 'class="interval" height="20"', says)
