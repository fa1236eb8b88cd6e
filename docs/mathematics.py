"""Mathematics of the site: `$...$` in a page becomes MathML, which browsers draw without a script or a network.

An extension of Python-Markdown, which `mkdocs.yml` names. GitHub reads the same source.
"""

from __future__ import annotations

import re

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor


class _Formula(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(m[1])), m.start(0), m.end(0)


class Mathematics(Extension):
    """Formulas between dollar signs, in one line."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the pattern behind code spans (190) and before escapes (180) and emphasis."""
        md.inlinePatterns.register(_Formula(r"\$([^$\n]+)\$", md), "mathematics", 185)


def makeExtension(**_: object) -> Mathematics:
    """Return the extension; the name is Python-Markdown's."""
    return Mathematics()
