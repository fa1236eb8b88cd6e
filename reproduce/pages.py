"""The pages: docs/results/PAPER.md with every table, and docs/results/papers.md with every claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedkin.evaluate.rounds import spans
from fedkin.report.charts import svg
from fedkin.report.tables import Grid, to_markdown
from fedkin.storage.files import write_atomic
from reproduce.figures import Measured, digits_of, measured, name_of, shown
from reproduce.results import Line
from reproduce.scatter import scatter
from reproduce.summary import summary
from reproduce.tables import HERE, Paper, Scale, Table
from reproduce.verdicts import Verdict, verdict
from reproduce.words import answers, sentence, unmeasured

DOCS = HERE.parent / "docs" / "results"
PICTURES = "papers"
"""Folder of the figures, below the folder of the pages."""

LEGEND = (
    "Each cell contains the paper's figure and, after the slash, the measured one (a cell without a slash contains "
    "only the measured one): mean ± standard deviation over seeds, with the number of seeds in brackets if some are "
    "missing. – marks a cell that is not measured yet, or a figure that is not in the paper; · a figure that the "
    "method does not have; † a method whose training diverged. Comparisons are paired by client, and each client "
    "counts the same in them, also where the table weighs clients by their samples, so that differences need not be "
    "those of the cells. [All claims](papers.md) are listed on a separate page."
)
COMMANDS = """```sh
# the next missing cells; repeat the command to continue
python -m reproduce run {paper} --minutes 60
# a single cell; --dry lists their names
python -m reproduce run {table}/ROW/COLUMN/SEED
# its settings, a file for fedkin run
python -m reproduce config {table}/ROW/COLUMN/SEED > cell.toml
# this page
python -m reproduce table {paper}
```"""


def write(papers: Sequence[Paper], done: Mapping[str, Line], docs: Path = DOCS) -> list[Path]:
    """Write the pages of these papers.

    Returns:
        The written files, including those of figures.
    """
    files: dict[Path, str] = {}
    for paper in papers:
        for table in paper.tables:
            for scale in scales_shown(table, done):
                spec = scatter(table, measured(table, scale.name, done), len(scale.seeds))
                if spec is not None:
                    files[docs / PICTURES / f"{_picture(table, scale)}.svg"] = svg(spec)
        files[docs / f"{paper.name}.md"] = page(paper, done)
    for path, text in files.items():
        write_atomic(path, text.encode())
    return list(files)


def scales_shown(table: Table, done: Mapping[str, Line]) -> list[Scale]:
    """Return the table's default scale, and any other scale that has cells."""
    if not table.scales:
        return []
    others = [scale for name, scale in table.scales.items() if name != table.shown and measured(table, name, done)]
    return [table.scales[table.shown], *others]


def page(paper: Paper, done: Mapping[str, Line]) -> str:
    """Return the page of one paper."""
    parts = [f"# {paper.title}: the paper's tables, measured", f"{paper.cite}."]
    parts += ["## In short", summary(paper, done), "## Protocol"] if paper.summary else []
    parts += [paper.text.strip(), LEGEND, COMMANDS.format(paper=paper.name, table=paper.tables[0].path)]
    for table in paper.tables:
        parts += _table(table, done)
    if paper.remarks:
        parts += [
            "## What does not agree in the paper",
            "\n".join(f"- {remark}" for remark in paper.remarks),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table, done: Mapping[str, Line]) -> Iterator[str]:
    """Yield one table at all scales that are shown, and its claims."""
    yield f"## {table.title}"
    yield table.text.strip()
    if table.left_out is not None:
        yield f"Not measured: {table.left_out}"
    for scale in scales_shown(table, done):
        lines = measured(table, scale.name, done)
        yield f"Scale `{scale.name}`: {scale.text} Cells: `python -m reproduce run {table.path} --scale {scale.name}`."
        yield from _grids(table, scale, lines)
        if scatter(table, lines, len(scale.seeds)) is not None:
            yield f"![{table.title}: paper against measured]({PICTURES}/{_picture(table, scale)}.svg)"
        texts = [claim_line(table, one) for one in _verdicts(table, scale, done)]
        yield "\n".join(f"- {text}" for text in texts)


def _picture(table: Table, scale: Scale) -> str:
    return f"{table.paper}-{table.name}-{scale.name}"


def _verdicts(table: Table, scale: Scale, done: Mapping[str, Line]) -> list[Verdict]:
    return [verdict(table, claim, scale.name, done) for claim in table.claims]


def claim_line(table: Table, found: Verdict) -> str:
    """Return a claim with its verdict, or a question with its answers, several of them as a list."""
    if found.claim.question:
        told = [f"against {than}: {difference}" for than, difference in answers(table, found)] or [unmeasured(table)]
        between = " " if len(told) == 1 else "\n    - "
        return found.claim.text + "".join(f"{between}{one[0].upper()}{one[1:]}." for one in told)
    facts = sentence(table, found)
    return f"{found.claim.text} **{found.word.capitalize()}**{f': {facts}' if facts else ''}."


def _grids(table: Table, scale: Scale, lines: Measured) -> Iterator[str]:
    """Yield a grid per figure; one grid where columns are different figures."""
    of_columns = all(column.metric for column in table.columns.values())
    metrics: Sequence[str | None] = [None] if of_columns else table.metrics
    for metric in metrics:
        if len(metrics) > 1 and metric is not None:
            name = name_of(metric)
            yield f"*{name[0].upper()}{name[1:]}*"
        yield to_markdown(_grid(table, scale, lines, metric)).strip()


def _grid(table: Table, scale: Scale, lines: Measured, metric: str | None) -> Grid:
    keys = [key for key in table.columns if scale.columns is None or key in scale.columns]
    rows, left = [], []
    printed = {key for numbers in table.numbers.values() for key in numbers}
    for row in table.rows.values():
        if scale.rows is not None and row.key not in scale.rows:
            continue
        if (printed or lines) and row.key not in printed and not any((row.key, key) in lines for key in keys):
            left.append(row.title)
            continue
        cells = [row.title]
        for key in keys:
            which = table.metrics_of(key)[0] if metric is None else metric
            ours = shown(lines.get((row.key, key), {}), which, len(scale.seeds), table.decimals).text
            if which in table.numbers:
                number = table.numbers[which].get(row.key, {}).get(key)
                ours = f"{_printed(number, digits_of(which, table.decimals))} / {ours}"
            cells.append(ours)
        rows.append(tuple(cells))
    rounds = {line["final"]["rounds"] for seeds in lines.values() for line in seeds.values()}
    note = _when(table, metric, spans(rounds)) if rounds else unmeasured(table) + "."
    note += " One seed." if rounds and len(scale.seeds) == 1 else ""
    if left and rounds:
        note += f" Rows of ours without a measured cell: {'; '.join(left)}."
    return Grid(table.title, ("", *(table.columns[key].title for key in keys)), tuple(rows), note=note)


def _when(table: Table, metric: str | None, rounds: str) -> str:
    """Return the rounds that the figures of a grid are of."""
    which = {table.metrics_of(key)[0] for key in table.columns} if metric is None else {metric}
    if all(name.startswith("rounds-to-") for name in which):
        return "Ours: the first evaluated round at or above the target, mean over seeds."
    if which <= {"cluster-sizes", "clusters-used"}:
        return "Ours: the last round."
    if which == {"best-on-test"}:
        return "Ours: the best evaluated round of each run."
    return f"Ours: mean over {rounds}."


def _printed(number: tuple[float, float | None] | None, decimals: int) -> str:
    """Return the paper's figure in the cell."""
    if number is None:
        return "–"
    mean, std = number
    return f"{mean:.{decimals}f}" + (f" ± {std:.{decimals}f}" if std is not None else "")
