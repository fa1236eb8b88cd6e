"""`python -m reproduce`: list, measure and write the tables of four papers."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedkin.core import ConfigError
from reproduce.cells import Cell, cells_of, chosen, in_order
from reproduce.listing import listing
from reproduce.pages import DOCS, write, write_overview
from reproduce.reading import papers
from reproduce.results import RESULTS, adoptable, append, file_of, load
from reproduce.running import RUNS, Plan, make, wanted_of
from reproduce.tables import Paper

ABOUT = """Measure the tables of the papers again, cell by cell.

Without a command: list all tables, the number of measured cells and the time for the rest.
A cell has the name PAPER/TABLE/ROW/COLUMN/SEED; the beginning of a name stands for all cells below it."""


ADOPT = """Take over cells that are missing only because a version of fedkin has new settings or other defaults.

Their written settings are the same and only the digest differs. Check that their figures are the same, for example by a
run of one of them. Lines keep the version that measured them."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser("python -m reproduce", description=ABOUT, formatter_class=_AsWritten)
    made.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    commands = made.add_subparsers(dest="command")
    run = commands.add_parser("run", help="measure missing cells, by priority", formatter_class=_AsWritten)
    run.add_argument("names", nargs="*", metavar="NAME", help="tables or cells; all without any")
    run.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="stop after the round in which this time ends",
    )
    run.add_argument("--scale", choices=("paper", "small"), help="default: each table's first choice")
    run.add_argument("--engine", default="workers@n=1", help="as of fedkin run (default: workers@n=1)")
    run.add_argument("--data-root", type=Path, help="folder with the data sets, one folder or .npz file each "
                     "(default: $FEDKIN_DATA, else ~/.cache/fedkin/data)")  # fmt: skip
    run.add_argument("--runs", type=Path, default=RUNS, help="folder of runs in progress (default: runs/reproduce)")
    run.add_argument("--keep", action="store_true", help="keep a run's folder when its line is written")
    run.add_argument("--dry", action="store_true", help="only list the cells that would be measured, in their order")
    adopt = commands.add_parser("adopt", formatter_class=_AsWritten, help="take over cells of an earlier version",
                                description=ADOPT)  # fmt: skip
    adopt.add_argument("names", nargs="*", metavar="NAME", help="tables or cells; all without any")
    adopt.add_argument("--scale", choices=("paper", "small"))
    adopt.add_argument("--yes", action="store_true", help="take them over; otherwise they are only listed")
    config = commands.add_parser("config", help="print a cell's settings as a file for fedkin run")
    config.add_argument("names", nargs="+", metavar="CELL")
    config.add_argument("--scale", choices=("paper", "small"))
    config.add_argument("--data-root", type=Path)
    table = commands.add_parser("table", help="write docs/results/PAPER.md and papers.md from what is measured")
    table.add_argument("names", nargs="*", metavar="PAPER", help="all without any")
    table.add_argument("--docs", type=Path, default=DOCS, help=argparse.SUPPRESS)
    return made


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps the lines of the description."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return 0: done, 1: a cell failed or the output was cut off, 2: bad input, 130: interrupted."""
    args = parser().parse_args(words)
    try:
        code = _COMMANDS[args.command](args)
        sys.stdout.flush()  # now, where a closed reader can be told from other errors
        return code
    except BrokenPipeError:  # the reader of the output has closed it, as in `run --dry | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ConfigError as e:
        print(e, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130


def _list(args: argparse.Namespace) -> int:
    print(listing(papers(), load(args.results)))
    return 0


def _asked(args: argparse.Namespace, there: Sequence[Paper]) -> list[Cell]:
    """Return the named cells, at the given scale, or each table's own."""
    all_cells = [cell for paper in there for table in paper.tables for cell in cells_of(table, args.scale)]
    return chosen(all_cells, args.names)


def _run(args: argparse.Namespace) -> int:
    there = papers()
    cells = _asked(args, there)
    if args.dry:
        done = load(args.results)
        for cell in in_order(cells):
            if cell.digest not in done:
                print(f"{cell.priority:>4} {cell.scale.name:<6} {cell.path}")
        return 0
    until = time.monotonic() + 60 * args.minutes
    how = Plan(until, args.data_root, args.engine, args.keep, args.runs, args.results)
    outcome = make(cells, how, wanted_of(there))
    end = "the time is over; the same command continues" if outcome.stopped else "no other cell is missing"
    print(f"{outcome.made} cells measured, {outcome.failed} failed, {outcome.without_data} without data; {end}")
    return 1 if outcome.failed else 0


def _adopt(args: argparse.Namespace) -> int:
    found = adoptable(_asked(args, papers()), load(args.results))
    for cell, line in found:
        if args.yes:
            append(file_of(cell.table, args.results), {**line, "digest": cell.digest, "adopted": line["digest"]})
        print(f"{cell.path}, measured by fedkin {line['fedkin']}")
    print(f"{len(found)} cells{' taken over' if args.yes else '; --yes takes them over'}")
    return 0


def _config(args: argparse.Namespace) -> int:
    cells = _asked(args, papers())
    if len(cells) != 1:
        raise ConfigError(f"{' '.join(args.names)} are {len(cells)} cells; name one: PAPER/TABLE/ROW/COLUMN/SEED")
    print(cells[0].toml(args.data_root), end="")
    return 0


def _table(args: argparse.Namespace) -> int:
    done, there = load(args.results), papers()
    if unknown := set(args.names) - {paper.name for paper in there}:
        raise ConfigError(f"unknown papers {', '.join(unknown)}; there are {', '.join(paper.name for paper in there)}")
    written = write([paper for paper in there if not args.names or paper.name in args.names], done, args.docs)
    written.append(write_overview(there, done, args.docs))
    print("\n".join(str(path) for path in written))
    return 0


_COMMANDS = {None: _list, "run": _run, "config": _config, "table": _table, "adopt": _adopt}

if __name__ == "__main__":
    raise SystemExit(main())
