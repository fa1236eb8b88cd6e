"""Templates: pages as HTML, in which every value is escaped, and sentences as plain text."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedkin.core.errors import counted
from fedkin.display import printable
from fedkin.report import palette, wording

_FILTERS = {"counted": counted, "listed": wording.listed, "points": wording.points, "ranged": wording.ranged,
            "share": wording.share, "short_mb": wording.short_mb, "signed": wording.signed, "spelled": wording.spelled,
            "tight": wording.tight, "cut": wording.cut, "percent": wording.percent, "short": wording.short}  # fmt: skip
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
