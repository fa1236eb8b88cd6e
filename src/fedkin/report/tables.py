"""The tables of a run and of a comparison: one function builds the cells, others render them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedkin.display import printable
from fedkin.evaluate import Choice, spread
from fedkin.record.figures import GROUPED, over
from fedkin.record.lines import Figures
from fedkin.record.result import Result
from fedkin.report import wording
from fedkin.report.headline import ACCURACY, NAMED, Headline, majority, rounds_of
from fedkin.report.standings import Row as Row
from fedkin.report.standings import comparison_rows as comparison_rows
from fedkin.report.standings import harmed_range
from fedkin.report.wording import DASH as DASH
from fedkin.report.wording import percent as percent
from fedkin.report.wording import say
from fedkin.report.wording import short as short

NAMES = {
    "accuracy": "accuracy, mean over clients",
    "accuracy_trained": "the same, right after the last local training",
    "accuracy_delivered": "the same, as clients would predict now",
    "majority": "always the client's most frequent class",
    "balanced": "balanced accuracy, mean over clients",
    "majority_balanced": "balanced accuracy of the most frequent class",
    "pooled": "accuracy, pooled over samples",
    "std": "std of clients' accuracies",
    "worst_decile": "accuracy of the worst 10 % of clients",
    "macro_f1": "macro-F1, mean over clients",
    "macro_f1_weighted": "macro-F1, weighted by samples",
    "few": "accuracy on few-sample classes",
    "medium": "accuracy on medium-sample classes",
    "many": "accuracy on many-sample classes",
    "unseen": "accuracy on classes a client never trained on",
    "validation": "validation accuracy",
    "ari": "adjusted Rand index of the clusters",
    "ari_evaluated": "adjusted Rand index of the clusters chosen at evaluation",
}

BOLD = {"accuracy": "accuracy %", "balanced": "balanced %"}
"""The column in which methods are marked, by headline metric."""

_MOMENTS = {
    "accuracy_trained": ("trained", "accuracy right after the last local training"),
    "accuracy_delivered": ("delivered", "accuracy as clients would predict now"),
}
WIDEST = 100
"""Columns of output at most, however wide the window is."""
_NEVER_BROKEN = 14  # characters
_MOST_CLIENTS = 25


class Screen(Console):
    """A console that shows a fingerprint's ``:AB:`` and brackets as they are, escapes what would drive a terminal, and
    whose lines are not too long to read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, markup=False, **options)
        if self._width is not None or not self.is_terminal:
            self._width = min(self._width or WIDEST, WIDEST)

    @property  # type: ignore[misc]  # only `width` is ever set
    def size(self) -> ConsoleDimensions:
        """Columns and lines; a window may get other ones while a command works."""
        result = super().size
        return result if self._width is not None else result._replace(width=min(result.width, WIDEST))

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text to print; `Text` would drop some control characters without a trace."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what goes to the terminal: rich's own commands, and texts that are none."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))


@dataclass(frozen=True, repr=False)
class Grid:
    """A table as text, the input of every renderer; shown as a table by ``print`` and in a notebook.

    Attributes:
        title: title of the table.
        columns: headings; the first ``words`` columns contain words, the others numbers (aligned right).
        rows: cells, each row as long as ``columns``.
        bold: (row, column) of the best cells.
        note: a line below it; may be empty.
        words: number of leading columns with words.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    note: str = ""
    words: int = 1

    def __repr__(self) -> str:
        console = Screen(color_system=None, force_jupyter=False)
        with console.capture() as shown:
            console.print(to_rich(self, console.width), crop=False)
        return shown.get()

    def _repr_html_(self) -> str:
        return to_html(self)


def comparison_table(rows: Sequence[Row], extra: Headline | None = None) -> Grid:
    """Return methods side by side; bold marks differences beyond an interval (see `bold_note`).

    Args:
        extra: the averaged rounds, the last round alone, runs that diverged and the headline metric, as from
            :func:`fedkin.report.headline.headline`. Default: the caption names the rule, not the rounds, and accuracy
            is the headline.
    """
    extra, reference = extra or Headline(), rows[0].reference
    moments = {m: texts for m, texts in _MOMENTS.items() if any(m in row.metrics for row in rows)}
    heads = tuple(f"{name} %" for name, _ in moments.values())
    columns = ("method", *figure_columns(extra.first, heads), "gain", "harmed", "MB")
    cells = tuple(
        (row.title, *figure_cells(row, extra, moments=tuple(moments)), percent(row.gain, sign=True),
         harmed_range(row.finding), DASH if row.megabytes is None else short(row.megabytes.mean))
        for row in rows
    )  # fmt: skip
    bold = frozenset((i, columns.index(BOLD[extra.first.metric])) for i, row in enumerate(rows) if row.best)
    note = say("comparison_note", rows, extra, over(extra.rounds), NAMED[extra.first.metric], reference, moments)
    return Grid("Comparison", columns, cells, bold, note)


def figure_columns(first: Choice, moments: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the headings of a comparison's figures in order; ``moments`` are those of accuracies at other moments.
    Where balanced accuracy is the headline it replaces macro-F1: the table still fits a screen of 80 columns."""
    rest = ("accuracy %", "last", *moments, "worst 10 %")
    return (*rest, "macro-F1 %") if first.fair else ("balanced %", *rest)


def figure_cells(row: Row, extra: Headline, decimals: int = 1, moments: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a method's figures under `figure_columns`; ``moments`` are the metrics of accuracies at other moments."""
    last = extra.last.get(row.title)
    cells = (
        percent(row.accuracy, decimals=decimals) + extra.mark(row.title),
        DASH if last is None else f"{100 * last.mean:.{decimals}f}",
        *(percent(row.metrics.get(m), decimals=decimals) for m in moments),
        percent(row.worst_decile, decimals=decimals),
    )
    other = percent(row.macro_f1 if extra.first.fair else row.metrics.get("balanced"), decimals=decimals)
    return (*cells, other) if extra.first.fair else (other, *cells)


def final_table(run: Result, first: Choice = ACCURACY) -> Grid:
    """Return a run's figures: the mean over its last rounds, the last round alone, and the best on validation data.

    Of a run whose figures are those of the best round, that round comes first, and the mean is left out. The headline
    metric ``first`` is the first row.
    """
    mean, best = rounds_of([run]), run.best
    # a mean over one round equals that round; each round has one column
    shown: dict[str, Figures] = {mean: run.final}
    if run.last is not None:
        shown.setdefault(f"round {run.last[0]}", run.last[1])
    if best is not None and best.figures is not None:
        shown.setdefault(f"round {best.round}", best.figures)
    cells = []
    for key in sorted(NAMES, key=lambda key: key != first.metric):
        name = NAMES[key]
        values = [figures.of(key) for figures in shown.values()]
        if any(v is not None for v in values):
            show = _index if key in GROUPED else _percent
            cells.append((name, *(show(v) for v in values)))
    note = say("final_note", run, first, mean, run.last and run.last[0], best and best.round)
    return Grid(f"{run.title}, seed {run.seed}", ("", *shown), tuple(cells), note=note)


def client_table(run: Result) -> Grid:
    """Return every client's final accuracy, worst first; of more than 25 clients only the worst and best ten."""
    final, names = run.by_client, run.names
    lines = {line.client: line for line in run.clients}
    shares = {c: right / n for c, line in lines.items() for right, n in [majority(line) or (0, 0)] if n}
    columns = ("client", "test samples", "accuracy %", *(("majority %",) if shares else ()))
    cells = [
        (f"{c} {names[c]}" if c < len(names) else str(c), str(lines[c].n_test or DASH), percent(spread([final[c]])),
         *([percent(spread([shares.get(c)]))] if shares else []))
        for c in sorted(final, key=lambda c: (final[c], c))
    ]  # fmt: skip
    rounds = rounds_of([run])
    note = f"accuracy: {'in' if rounds.startswith('round ') else 'mean over'} {rounds}"
    note += "; majority: accuracy of always predicting the client's most frequent training class" if shares else ""
    if len(cells) > _MOST_CLIENTS:
        note += f"; the 10 worst and 10 best of {len(cells)} clients by accuracy"
        cells = [*cells[:10], ("…",) * len(columns), *cells[-10:]]
    return Grid("Clients", columns, tuple(cells), note=note, words=0)


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def _index(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def to_rich(grid: Grid, width: int | None = None) -> Table:
    """Return the table for the console; cells are text, never markup.

    Args:
        width: characters in a line of the console; where the columns do not fit otherwise, one space separates them
            instead of two, then ± has no spaces, then headings take two lines, then long words such as paths, then "1
            of 9" is 1/9, then figures with ± take two lines. A table that is still wider stays so: print it without
            cropping.
    """
    caption = Text(printable(grid.note)) if grid.note else None
    title = Text(printable(grid.title), style="bold") if grid.title else None
    columns, *rows = (tuple(map(printable, row)) for row in (grid.columns, *grid.rows))
    grid = replace(grid, columns=columns, rows=tuple(rows))
    grid = grid if width is None else _narrowed(grid, width)
    whole, least = _widths(grid)
    needed = least + len(whole) + 1  # rich would cut figures to fit into less
    # without vertical lines a comparison over several seeds fits into 80 columns
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD,
                  padding=(0, 0 if width is not None and least + 2 * len(whole) > width else 1, 0, 0), pad_edge=False,
                  width=needed if width is not None and needed > width else None)  # fmt: skip
    for number, name in enumerate(grid.columns):
        justify: Literal["left", "right"] = "left" if number < grid.words else "right"
        table.add_column(Text(name), justify=justify, no_wrap=whole[number])
    for i, row in enumerate(grid.rows):
        table.add_row(*(Text(cell, style="bold" if (i, j) in grid.bold else "") for j, cell in enumerate(row)))
    return table


def _narrowed(grid: Grid, width: int) -> Grid:
    """Return the table for a narrow console, changed only as far as needed, so that no figure is cut."""
    steps: tuple[Callable[[Grid], Grid], ...] = (
        lambda g: _replaced(g, 0, (" ± ", "±")),
        lambda g: _folded(replace(g, columns=tuple(name.replace(" ", "\n", 1) for name in g.columns)), width),
        lambda g: _replaced(g, g.words, (" of ", "/"), ("< ", "<")),
        lambda g: _replaced(g, 0, ("±", "\n±")),
    )
    for step in steps:
        if _widths(grid)[1] + len(grid.columns) < width:
            break
        grid = step(grid)
    return grid


def _replaced(grid: Grid, first: int, *pairs: tuple[str, str]) -> Grid:
    """Return the table with texts replaced by others in the columns from ``first`` on."""
    rows = [list(row) for row in grid.rows]
    for before, after in pairs:
        rows = [[*row[:first], *(cell.replace(before, after) for cell in row[first:])] for row in rows]
    return replace(grid, rows=tuple(map(tuple, rows)))


def _folded(grid: Grid, width: int) -> Grid:
    """Return the table with words on several lines that are longer than there is room for, in columns of words."""
    longest = max((len(word) for row in grid.rows for cell in row[: grid.words] for word in cell.split()), default=0)
    folded = grid
    for most in range(longest - 1, _NEVER_BROKEN - 1, -1):
        if _widths(folded)[1] + len(grid.columns) < width:
            break
        rows = ((*(_broken(cell, most) for cell in row[: grid.words]), *row[grid.words :]) for row in grid.rows)
        folded = replace(grid, rows=tuple(rows))
    return folded


def _broken(text: str, most: int) -> str:
    """Return a text whose longer words, such as paths, go on in the next line, if possible behind a slash or dash."""

    def lines(word: re.Match[str]) -> str:
        result = [""]
        for part in re.findall(r"[^/_-]*[/_-]|[^/_-]+", word[0]):
            for piece in (part[i : i + most] for i in range(0, len(part), most)):
                result[len(result) - 1 :] = (
                    [result[-1] + piece] if len(result[-1] + piece) <= most else [result[-1], piece]
                )
        return "\n".join(filter(None, result))

    return re.sub(rf"\S{{{most + 1},}}", lines, text)


def _widths(grid: Grid) -> tuple[list[bool], int]:
    """Return the columns that are never wrapped (names and figures), and the minimum total width."""
    texts = [(name, *(row[number] for row in grid.rows)) for number, name in enumerate(grid.columns)]
    whole = [max(map(len, each)) <= _NEVER_BROKEN or not any(" " in t for t in each[1:]) for each in texts]
    least = sum(
        max(max(map(len, t.split("\n") if one else t.split()), default=0) for t in each)
        for one, each in zip(whole, texts, strict=True)
    )
    return whole, least


def to_markdown(grid: Grid) -> str:
    """Return the table in Markdown (pipes), best cells between asterisks, the note below."""

    def cell(text: str) -> str:
        return " ".join(printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())

    lines = ["| " + " | ".join(cell(name) for name in grid.columns) + " |"]
    lines.append("|" + "|".join(" :-- " if j < grid.words else " --: " for j in range(len(grid.columns))) + "|")
    for i, row in enumerate(grid.rows):
        shown = (f"**{cell(text)}**" if (i, j) in grid.bold else cell(text) for j, text in enumerate(row))
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join([*lines, *(["", grid.note] if grid.note else [])]) + "\n"


def to_html(grid: Grid) -> str:
    """Return the table as an HTML ``<table>``, every text escaped."""
    return wording.part("parts.html", "table", grid)


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def cells(row: Iterable[Any]) -> list[Any]:
    """Return a row with an apostrophe before texts that a spreadsheet would interpret as a formula.

    Names of clients, classes and columns come from data files. Numbers stay as they are, including negative ones, those
    that are written as text, and those with a standard deviation ("-7.9 ± 4.4").
    """
    return [f"'{v}" if isinstance(v, str) and v.startswith(_FORMULA) and not _is_number(v) else v for v in row]


def _is_number(text: str) -> bool:
    try:
        return bool([float(part) for part in text.split(" ± ", 1)])
    except ValueError:
        return False
