"""Numbers, short phrases and templates: pages as HTML, in which every value is escaped, and sentences as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedkin.core.errors import counted
from fedkin.display import printable
from fedkin.evaluate import Spread
from fedkin.report import palette

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


def named(title: str, role: str) -> str:
    """Return the name of a method with a role on the page."""
    return f"Alone ({title})" if role == "alone" else title


def against(reference: str, role: str) -> str:
    """Return a reference with a role in a sentence."""
    return "training alone" if role == "alone" else reference


def signed(value: float, decimals: int = 1) -> str:
    """Return a fraction in points with a sign: +6.2, −0.4, 0.0."""
    text = f"{abs(100 * value):.{decimals}f}"
    return text if float(text) == 0 else ("+" if value > 0 else "−") + text


DASH = "–"


def percent(value: Spread | None, sign: bool = False, decimals: int = 1) -> str:
    """Return a fraction as "84.2 ± 0.6" in per cent; "–" if there is none."""
    if value is None:
        return DASH
    mean = f"{100 * value.mean:+z.{decimals}f}" if sign else f"{100 * value.mean:.{decimals}f}"
    return mean if value.std is None else f"{mean} ± {100 * value.std:.{decimals}f}"


def share(value: float, decimals: int = 1) -> str:
    """Return a fraction in per cent: 95.7%."""
    return f"{100 * value:.{decimals}f}%"


def points(value: float) -> str:
    """Return the size of a fraction in whole points, below one in tenths: 6 points, 1 point, 0.4 points."""
    size = abs(100 * value)
    text = f"{size:.1f}" if size < 0.95 else f"{size:.0f}"
    return f"{text} point{'' if text == '1' else 's'}"


def short(number: float) -> str:
    """Return a number with about three digits: 1,234 · 12.3 · 0.12; very small ones are "< 0.01"."""
    if 0 < number < 0.01:
        return "< 0.01"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def spelled(count: int) -> str:
    """Return a small number as a word, a larger one in digits."""
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def ranged(counts: Sequence[int], none: str = "0") -> str:
    """Return a number, or the lowest and the highest of several seeds: 13, 41 to 45."""
    low, high = min(counts), max(counts)
    return (str(low) if low else none) if low == high else f"{low} to {high}"


def listed(items: Sequence[str], last: str = "and") -> str:
    """Return names as a list: A, B and C."""
    return f" {last} ".join(filter(None, (", ".join(items[:-1]), items[-1]))) if items else ""


def short_mb(megabytes: float) -> str:
    """Return megabytes without decimals; less than one is <1."""
    return "0" if megabytes == 0 else "<1" if megabytes < 1 else f"{megabytes:,.0f}"


def cut(name: str, most: int = 16) -> str:
    """Return a name for a chart, cut in its middle to a maximum number of characters: names often differ at the end."""
    tail = (most - 1) * 2 // 5
    return name if len(name) <= most else f"{name[: most - 1 - tail].rstrip()}…{name[-tail:].lstrip()}"


_WIDTHS = {"…@%W": 1.0, "m": 0.97, "w+=<>~_": 0.83, "MOQ": 0.83, "ilIjJ": 0.29, " .,'|": 0.32, "frt()[]-/:;!": 0.39}
"""Widths of characters of a wide sans-serif font (DejaVu Sans), as fractions of its size."""


def fitted(name: str, room: float) -> str:
    """Return a name for a chart, cut in its middle to a width, which is given as a multiple of the font's size."""
    result = name
    for most in range(len(name), 4, -1):
        result = cut(name, most)
        if sum(_width(character) for character in result) <= room:
            break
    return result


def _width(character: str) -> float:
    usual = 0.67 if character.isupper() else 0.61
    return next((width for characters, width in _WIDTHS.items() if character in characters), usual)


_FILTERS = {"counted": counted, "listed": listed, "points": points, "ranged": ranged,
            "share": share, "short_mb": short_mb, "signed": signed, "spelled": spelled,
            "cut": cut, "percent": percent, "short": short}  # fmt: skip
_HERE = files("fedkin.report")


def page(name: str, **values: Any) -> str:
    """Return a page from ``templates``: printable text, for UTF-8."""
    return printable(_environment(escaped=True).get_template(name).render(values))


def part(name: str, macro: str, *values: Any) -> str:
    """Return a part of a page: a macro of a template."""
    return printable(getattr(_environment(escaped=True).get_template(name).module, macro)(*values))


def say(name: str, *values: Any, **more: Any) -> str:
    """Return a sentence from ``templates/sentences.txt``, in one line."""
    text: str = getattr(_environment(escaped=False).get_template("sentences.txt").module, name)(*values, **more)
    return re.sub(r"[ \n]+", " ", text).strip()


def asset(name: str) -> str:
    """Return a file of ``assets``: a part of a page that has no values."""
    return _HERE.joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _environment(*, escaped: bool) -> Environment:
    # two, since a macro of plain text that is called in a page would count as escaped
    loader = PackageLoader("fedkin.report")
    made = Environment(
        loader=loader, autoescape=escaped, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {**_FILTERS, "form": _form}
    made.globals |= {"say": say, "style": _style} | ({"asset": lambda name: Markup(asset(name))} if escaped else {})
    return made


def _form(count: int, one: str = "", several: str = "s") -> str:
    """Return the form of a word for a number: ``client{{ n | form }}``, ``{{ n | form("is", "are") }}``."""
    return one if count == 1 else several


def _style(*names: str) -> Markup:
    return Markup(palette.css() + "".join(map(asset, names)).replace("FONT", palette.FONT))
