"""The tables of a comparison for publications: Markdown, LaTeX (booktabs) and CSV, all figures traceable.

They contain the figures on the screen, the paired difference with its interval, and the mean rank.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.core.errors import ConfigError
from fedkin.display import printable
from fedkin.record.figures import over
from fedkin.report.headline import NAMED, Headline
from fedkin.report.tables import BOLD, DASH, Grid, Row, cells, figure_cells, figure_columns, short, to_markdown
from fedkin.report.tuning import Tuned, tuning_table
from fedkin.report.wording import say
from fedkin.storage.files import write_atomic
from fedkin.storage.folders import room

MOST_DECIMALS = 6

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "±": r"$\pm$", "†": r"$\dagger$", "–": "--", "…": r"\dots{}",
    "<": "$<$", ">": "$>$",
})  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """The source of the figures: the command that repeats them, (title, seed, digest of the config) of every run, and
    how the methods were tuned."""

    command: str
    runs: tuple[tuple[str, int, str], ...] = ()
    tuned: Sequence[Tuned] = ()

    def lines(self) -> list[str]:
        """Return the lines of a comment."""
        chosen = (f"{one.title}, trial {one.trial} of {one.trials}: {one.text}" for one in self.tuned)
        runs = (f"{t}, seed {s}: config {digest}" for t, s, digest in self.runs)
        return [f"made by: {self.command}", *runs, *chosen]


def require_decimals(decimals: int) -> None:
    """Raise `ConfigError` if tables cannot have this number of decimal places."""
    if not 0 <= decimals <= MOST_DECIMALS:
        raise ConfigError(f"decimals must be 0 to {MOST_DECIMALS}, digits behind the point, got {decimals}")


def write_tables(
    folder: Path, rows: Sequence[Row], origin: Origin, decimals: int = 1, text: str = "", extra: Headline | None = None
) -> None:
    """Write ``table.md``, ``table.tex`` and ``table.csv`` into a folder, each whole or not at all.

    Args:
        text: what stands below the table in Markdown, such as verdicts.
    """
    grid = paper_table(rows, decimals, extra)
    comment = "".join(f"{line}\n" for line in origin.lines()).replace("--", "- -")  # "--" is not allowed in a comment
    tuned = f"\n{to_markdown(tuning_table(origin.tuned))}" if origin.tuned else ""
    markdown = f"{to_markdown(grid)}{tuned}\n{text}\n<!--\n{comment}-->\n"
    with room(folder, "fedkin report"):
        write_atomic(folder / "table.md", printable(markdown).encode())
        write_atomic(folder / "table.tex", printable(to_latex(grid, origin)).encode())
        write_atomic(folder / "table.csv", to_csv(rows, origin, extra).encode(errors="backslashreplace"))


def paper_table(rows: Sequence[Row], decimals: int = 1, extra: Headline | None = None) -> Grid:
    """Return methods side by side: mean ± std over seeds, difference to the reference with its interval, mean rank. The
    title is a caption, the note says what every column is.

    Args:
        decimals: decimal places of per cents and points.
    """
    extra, reference = extra or Headline(), rows[0].reference
    level = next((row.difference.level for row in rows if row.difference), 0.95)
    columns = ("method", *figure_columns(extra.first), f"difference to {reference}", "rank", "MB")
    cells = tuple(
        (row.title, *figure_cells(row, extra, decimals), _difference(row, decimals),
         DASH if row.rank is None else f"{row.rank:.3g}",
         DASH if row.megabytes is None else short(row.megabytes.mean))
        for row in rows
    )  # fmt: skip
    bold = frozenset((i, columns.index(BOLD[extra.first.metric])) for i, row in enumerate(rows) if row.best)
    seeds = sorted({row.seeds for row in rows})
    # a reference may lack runs
    common = {row.difference.seeds for row in rows if row.difference} or set(seeds)
    facts = rows, extra, over(extra.rounds), NAMED[extra.first.metric], reference, level, seeds
    caption = say("paper_note", *facts, common)
    return Grid(say("paper_caption", *facts), columns, cells, bold, caption[:1].upper() + caption[1:])


def _difference(row: Row, decimals: int) -> str:
    result = row.difference
    if result is None:
        return DASH
    mean = f"{100 * result.mean:+z.{decimals}f}"
    ends = [f"{100 * v:+.{decimals}f}" for v in (result.low, result.high) if v is not None]  # -0.0: it contains zero
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped; a minus before a number becomes a minus sign."""
    escaped = printable(text).translate(_LATEX)
    if escaped.startswith(("[", "*")):  # after the end of a row these would be read as its options
        escaped = f"{{{escaped[0]}}}{escaped[1:]}"
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def to_latex(grid: Grid, origin: Origin | None = None, label: str = "tab:comparison") -> str:
    """Return the table as a LaTeX ``table`` (packages: booktabs), its title as caption, note and origin in comments."""

    def cell(text: str, bold: bool) -> str:
        return f"\\textbf{{{latex(text)}}}" if bold else latex(text)

    lines = [f"% {' '.join(line.split())}" for line in (origin.lines() if origin else ())]
    lines += [f"% {part}" for part in grid.note.split("; ")]
    lines += ["% needs \\usepackage{booktabs}", r"\begin{table}[t]"]
    lines += [r"\centering\scriptsize\setlength{\tabcolsep}{3pt}"]  # eight columns fit a page of LaTeX's article
    lines += [f"\\caption{{{latex(grid.title)}.}}", f"\\label{{{label}}}"]
    lines += [f"\\begin{{tabular}}{{{'l' * grid.words}{'r' * (len(grid.columns) - grid.words)}}}", r"\toprule"]
    lines += [" & ".join(map(latex, grid.columns)) + r" \\", r"\midrule"]
    for i, row in enumerate(grid.rows):
        lines.append(" & ".join(cell(text, (i, j) in grid.bold) for j, text in enumerate(row)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def to_csv(rows: Sequence[Row], origin: Origin, extra: Headline | None = None) -> str:
    """Return one line per method under one header: fractions in full precision, empty where a figure is missing."""
    extra, reference = extra or Headline(), rows[0].reference
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    spread = [f"{name}_{part}" for name in (*metrics, "last_accuracy", "megabytes") for part in ("mean", "std")]
    differs = ["reference", "difference", "difference_low", "difference_high", "level", "verdict"]
    counts = ["harmed_low", "harmed_high", "harmed_of", "harmed_level", "rank", "best"]
    tuned = {one.title: one for one in origin.tuned}
    tuning = ["trials", "trial", "chosen", "validation", "untuned", "tuning_seconds"] if tuned else []
    heads = ["method", "seeds", "rounds", *spread, *differs, *counts, "diverged", *tuning, "configs", "command"]
    writer.writerow(heads)
    for row in rows:
        values: list[object] = []
        for value in (*(row.metrics.get(name) for name in metrics), extra.last.get(row.title), row.megabytes):
            values += [None, None] if value is None else [value.mean, value.std]
        d = row.difference
        values += [None] * 6 if d is None else [reference, d.mean, d.low, d.high, d.level, d.word]
        h = None if row.finding is None else row.finding.harmed
        values += [None] * 4 if h is None else [h.low, h.high, h.of, h.level]
        configs = " ".join(digest for title, _, digest in origin.runs if title == row.title)
        values += [row.rank, str(row.best).lower(), min(extra.diverged.get(row.title, {}).values(), default=None)]
        if one := tuned.get(row.title):
            values += [one.trials, one.trial, one.text, one.validation, one.untuned, round(one.seconds, 3)]
        values += [None] * (len(heads) - 5 - len(values))
        writer.writerow(cells([row.title, row.seeds, extra.rounds, *values, configs, origin.command]))
    return out.getvalue()
