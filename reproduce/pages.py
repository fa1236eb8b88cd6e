"""The pages: docs/results/PAPER.md with a paper's tables and claims, and docs/results/papers.md with their counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from fedkin.core import ConfigError
from fedkin.record.figures import spans
from fedkin.report.tables import Grid, to_markdown
from fedkin.storage.files import write_atomic
from reproduce.figures import NAMES, Measured, digits_of, measured, shown
from reproduce.results import Line
from reproduce.tables import HERE, Paper, Scale, Table
from reproduce.verdicts import Word, verdict
from reproduce.words import claim_line

DOCS = HERE.parent / "docs" / "results"
PLACE = re.compile(r"\{([\w-]+)/([\w.-]+)/([\w.-]+)(:printed)?\}")
"""``{TABLE/ROW/COLUMN}`` in a summary: the mean over seeds of the column's first figure; with ``:printed`` at its end
the number of the paper."""
LEGEND = "[How to read the tables and verdicts, and how to run them again](papers.md)."
OVERVIEW = """# Reproduced papers

Each page compares the tables of a paper with our runs of them and decides the paper's claims. Nothing is tuned towards
the printed numbers.

{counts}

**Tables.** A cell is the paper's figure/ours, the mean ± standard deviation over seeds, with the number of seeds in
brackets where some are missing. – is not printed or not measured, · does not exist for the method, † has a run that
diverged. Rows that the paper does not print are left out. Runs are those of the paper's protocol, unless a section says
that they are smaller.

**Verdicts.** A claim **holds** if, in every comparison that it makes, the whole 95 % interval of the paired difference
over seeds and clients is on the claimed side ([method](../compare.md#verdicts)). It **does not hold** if in one
comparison the whole interval is on the other side, at a level of 95 % for all comparisons of the claim together.
Otherwise it is **undecided**, as with a single seed. Differences are in points, with the interval in brackets and the
number of seeds where it is not that of the table; *least* is the comparison that is farthest from the claim. Questions
without a verdict are ours.

**Files.** `reproduce/PAPER/` has all settings and printed deviations, `reproduce/results/PAPER-*.jsonl` all figures.

```sh
# the tables and their measured cells
python -m reproduce
# the next missing cells; --dry lists their names
python -m reproduce run dapfl --minutes 60
# the settings of a cell, a file for fedkin run
python -m reproduce config dapfl/table1/fedavg/20-low/0 > cell.toml
# these pages
python -m reproduce table
```
"""


def write(papers: Sequence[Paper], done: Mapping[str, Line], docs: Path = DOCS) -> list[Path]:
    """Write the pages of these papers; return the written files."""
    files = [docs / f"{paper.name}.md" for paper in papers]
    for path, paper in zip(files, papers, strict=True):
        write_atomic(path, page(paper, done).encode())
    return files


def write_overview(papers: Sequence[Paper], done: Mapping[str, Line], docs: Path = DOCS) -> Path:
    """Write the page with the number of claims that have each verdict, by paper."""
    path = docs / "papers.md"
    write_atomic(path, overview(papers, done).encode())
    return path


def overview(papers: Sequence[Paper], done: Mapping[str, Line]) -> str:
    """Return the text of that page."""
    words: tuple[Word, ...] = get_args(Word)
    rows = []
    for paper in papers:
        claims = [(table, claim) for table in paper.tables for claim in table.claims if not claim.question]
        own = [verdict(table, claim, scale_of(table, done).name, done).word for table, claim in claims]
        rows.append((f"[{paper.title}]({paper.name}.md)", *(str(own.count(word)) for word in words)))
    return OVERVIEW.format(counts=to_markdown(Grid("claims", ("", *words), tuple(rows))).strip())


def scale_of(table: Table, done: Mapping[str, Line]) -> Scale:
    """Return the scale that is shown: the paper's if a cell is measured there, otherwise the table's default."""
    return table.scales["paper" if measured(table, "paper", done) else table.shown]


def page(paper: Paper, done: Mapping[str, Line]) -> str:
    """Return the page of one paper."""
    parts = [f"# {paper.title}: the paper's tables, measured", f"{paper.cite}.", summary(paper, done)]
    parts += ["## Protocol", f"{paper.text.strip()}\n\n{LEGEND}"]
    there = [table for table in paper.tables if measured(table, scale_of(table, done).name, done)]
    for table in there:
        parts += _section(table, scale_of(table, done), done)
    missing = [f"- {t.title}{f': {t.unmeasured}' if t.unmeasured else ''}." for t in paper.tables if t not in there]
    parts += ["## Not measured yet", "\n".join(missing)] if missing else []
    if paper.remarks:
        parts += ["## What does not agree in the paper", "\n".join(f"- {remark}" for remark in paper.remarks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(paper: Paper, done: Mapping[str, Line]) -> str:
    """Return the paper's summary with its figures; those that are not measured are dashes.

    Raises:
        ConfigError: the summary names a table, a row or a column that does not exist, or a number that is not printed.
    """
    return PLACE.sub(lambda place: _figure(paper, done, *place.groups()), paper.summary.strip())


def _figure(paper: Paper, done: Mapping[str, Line], name: str, row: str, column: str, printed: str | None) -> str:
    table = next((t for t in paper.tables if t.name == name), None)
    if table is None or row not in table.rows or column not in table.columns:
        raise ConfigError(f"the summary of {paper.name} names {name}/{row}/{column}; its tables have no such cell")
    metric = table.metrics_of(column)[0]
    if printed:
        number = table.numbers.get(metric, {}).get(row, {}).get(column)
        if number is None:
            raise ConfigError(f"the summary of {paper.name} names the printed {name}/{row}/{column}; there is none")
        return f"{number[0]:.{digits_of(metric, table.decimals)}f}"
    lines = measured(table, scale_of(table, done).name, done).get((row, column), {})
    mean = shown(lines, metric, len(lines), table.decimals).mean
    return "–" if mean is None else f"{mean:.{digits_of(metric, 1)}f}"


def _section(table: Table, scale: Scale, done: Mapping[str, Line]) -> Iterator[str]:
    """Yield one table and its claims."""
    yield f"## {table.title}"
    yield " ".join([table.text.strip(), f"{scale.text}"]).strip()
    if not table.claims or not all(claim.question for claim in table.claims):  # those of ours state their answers alone
        yield to_markdown(_grid(table, scale, measured(table, scale.name, done))).strip()
    lines = (claim_line(table, verdict(table, claim, scale.name, done)) for claim in table.claims)
    yield "\n".join(f"- {line}" for line in lines if line)


def _grid(table: Table, scale: Scale, lines: Measured) -> Grid:
    """Return the first figure of the measured rows and columns; of rows that are printed, where some are."""
    keys = [key for key in table.columns if any(column == key for _, column in lines)]
    printed = {row for key in keys for row in table.numbers.get(table.metrics_of(key)[0], {})}
    rows = []
    for row in table.rows.values():
        if not any(key == row.key for key, _ in lines) or (printed and row.key not in printed):
            continue
        cells = [row.title]
        for key in keys:
            metric = table.metrics_of(key)[0]
            ours = shown(lines.get((row.key, key), {}), metric, len(scale.seeds), table.decimals).text
            ours = ours.replace(" ± ", "±")  # wide tables are to stay narrow
            if metric in table.numbers:
                number = table.numbers[metric].get(row.key, {}).get(key)
                theirs = "–" if number is None else f"{number[0]:.{digits_of(metric, table.decimals)}f}"
                ours = f"{theirs}/{ours}"
            cells.append(ours)
        rows.append(tuple(cells))
    return Grid(table.title, ("", *(table.columns[key].title for key in keys)), tuple(rows), note=_note(table, lines))


def _note(table: Table, lines: Measured) -> str:
    """Return what the figures of a grid are, and of which rounds."""
    names = {table.metrics_of(key)[0] for key in table.columns}
    if all(name.startswith("rounds-to-") for name in names):
        return "The first evaluated round at or above the target, mean over seeds."
    rounds = spans({line["final"]["rounds"] for seeds in lines.values() for line in seeds.values()})
    name = NAMES.get(min(names), "accuracy") if len(names) == 1 else "accuracy"
    return f"{name[0].upper()}{name[1:]} in %, mean over {rounds}."
