"""docs/results/papers.md: every claim of every paper with its verdict, on one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from fedkin.report.tables import Grid, to_markdown
from fedkin.storage.files import write_atomic
from reproduce.pages import scales_shown
from reproduce.results import Line
from reproduce.summary import summary
from reproduce.tables import Paper, Table
from reproduce.verdicts import Verdict, Word, verdict
from reproduce.words import answers, sentence, unmeasured

INTRO = """# Reproduced papers: claims

This page lists the claims that each paper makes about its tables, and the results of our runs of these tables. A claim
**holds** if, in every comparison that it makes, the whole 95 % interval of the paired difference over seeds and clients
is on the claimed side ([method](../compare.md#verdicts)). It **does not hold** if in one comparison the whole interval
is on the other side, at a level of 95 % for all comparisons of the claim together. Otherwise it is **undecided**, as
with a single seed. Each client counts the same in a comparison, also where a table weighs clients by their samples. The
papers' pages show the printed numbers next to ours; nothing is tuned towards them."""
CLOSING = (
    "`python -m reproduce` lists the tables and their measured cells, `python -m reproduce run` computes missing "
    "cells, `python -m reproduce table` writes these pages."
)


def write_claims(papers: Sequence[Paper], done: Mapping[str, Line], docs: Path) -> Path:
    """Write the page."""
    path = docs / "papers.md"
    write_atomic(path, claims_page(papers, done).encode())
    return path


def claims_page(papers: Sequence[Paper], done: Mapping[str, Line]) -> str:
    """Return the number of claims that hold, then by paper all claims with verdicts and our own questions."""
    found = {paper.name: list(_found(paper, done)) for paper in papers}
    parts = [INTRO, to_markdown(_counts(papers, found)).strip()]
    for paper in papers:
        rows = [(v.claim.text, _word(v), sentence(t, v) or "–") for t, v in found[paper.name] if not v.claim.question]
        if rows:
            head = f"## {paper.title}\n\n[Tables, settings and figures]({paper.name}.md). {paper.cite}."
            parts += [head, *filter(None, [summary(paper, done)])]
            parts += [to_markdown(Grid(paper.title, ("claim", "verdict", "found"), tuple(rows), words=3)).strip()]
        asked = [row for t, v in found[paper.name] if v.claim.question for row in _answered(t, v)]
        if asked:
            parts += ["Further questions of ours:"]
            parts += [to_markdown(Grid(paper.title, ("question", "against", "found"), tuple(asked), words=3)).strip()]
    return "\n\n".join([*parts, CLOSING]) + "\n"


def _found(paper: Paper, done: Mapping[str, Line]) -> Iterator[tuple[Table, Verdict]]:
    """Yield each claim and question of a paper with its verdict or answer."""
    for table in paper.tables:
        for claim in table.claims:
            best = _best([verdict(table, claim, scale.name, done) for scale in scales_shown(table, done)])
            if best is not None:
                yield table, best


def _answered(table: Table, asked: Verdict) -> list[tuple[str, str, str]]:
    """Return a row for each comparison of a question, which the first of them names."""
    found = answers(table, asked)
    if not found:
        reason = unmeasured(table)
        return [(asked.claim.text, "–", reason[0].lower() + reason[1:])]
    return [("" if i else asked.claim.text, *one) for i, one in enumerate(found)]


def _counts(papers: Sequence[Paper], found: Mapping[str, Sequence[tuple[Table, Verdict]]]) -> Grid:
    """Return the number of claims with each verdict, by paper."""
    words: tuple[Word, ...] = get_args(Word)
    rows = []
    for paper in papers:
        own = [v.word for _, v in found[paper.name] if not v.claim.question]
        rows.append((f"[{paper.title}]({paper.name}.md)", *(str(own.count(word)) for word in words)))
    return Grid("claims", ("", *words), tuple(rows))


def _best(found: Sequence[Verdict]) -> Verdict | None:
    """Return the verdict at the paper's own scale if there is one, else at the measured scale."""
    told = [one for one in found if one.word != "not measured yet"]
    full = [one for one in told if one.scale == "paper"]
    return next(iter([*full, *told, *found]), None)


def _word(found: Verdict) -> str:
    if found.word == "not measured yet":
        return found.word
    return f"**{found.word}**" + (" (small scale)" if found.scale == "small" else "")
