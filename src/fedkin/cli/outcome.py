"""Shared endings of commands: the place of a new folder, and the output of a comparison."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedkin.cli import screen
from fedkin.core.errors import ConfigError, counted, typed
from fedkin.core.settings import DataSettings
from fedkin.data import SOURCES, Dataset, Federation, OnData, is_shelf, resolved
from fedkin.data.sites import DEFAULT_CLIENTS
from fedkin.data.sources.npz import likely_clients_of
from fedkin.evaluate import Conclusion
from fedkin.experiment.compare import result_of
from fedkin.experiment.settings import digest
from fedkin.inspection import glance
from fedkin.record.files import read_commit
from fedkin.record.result import Result
from fedkin.report.content import Content
from fedkin.report.page import write_page
from fedkin.report.publication_tables import Origin, write_tables

_FILES = (".csv", ".htm", ".html", ".json", ".jsonl", ".md", ".parquet", ".pdf", ".png", ".safetensors", ".svg",
          ".tex", ".toml", ".tsv", ".txt", ".xlsx", ".zip")  # fmt: skip


def chosen_folder(out: Path | None, name: str) -> Path:
    """Return the folder of ``--out``, or a place for a run without one.

    Raises:
        ConfigError: ``out`` has the name of a file.
    """
    return new_folder(name) if out is None else require_folder_name(out)


def require_folder_name(out: Path, flag: str = "--out") -> Path:
    """Return the path that a flag gives, which names a folder.

    Raises:
        ConfigError: it is a file, or looks like one, such as ``table.csv``, and is not a folder that exists.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} exists already and is a file; {flag} names a folder: choose another")
    if out.suffix.lower() in _FILES and not out.is_dir():
        raise ConfigError(
            f"{flag} names a folder, and {out} looks like a file; for example: {flag} {out.with_suffix('')}"
        )
    return out


def base_of(run: Result) -> Result | None:
    """Return the run that a run is compared with: the Local of its comparison; None if it is alone."""
    result = None if run.folder is None else _sibling(run.folder)
    return None if result is None else replace(Result.finished_in(result), at_best=run.at_best)


def _sibling(folder: Path) -> Path | None:
    """Return the Local of the same seed, where the run is one of a comparison."""
    place = folder.absolute()
    if not (place.parent / "compare.toml").is_file() or "-seed" not in place.name:
        return None
    local = place.parent / f"local-seed{place.name.rpartition('-seed')[2]}"
    return local if local != place and read_commit(local).ended else None


def new_folder(name: str) -> Path:
    """Return a place for a run without a name: ``runs/NAME-TIME``."""
    stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, n = stem, 1
    while folder.exists():
        n += 1
        folder = stem.with_name(f"{stem.name}-{n}")
    return folder


def tell_clients(data: DataSettings) -> None:
    """Report on standard error how a user's data were assigned to clients, unless a setting determines it.

    Arrays of an npz file that may name the clients are named as well, unless clients or a partition are chosen by name.
    """
    path = Path(data.data)
    asks = data.partition is None and data.client_column is None and path.suffix.lower() == ".npz" and path.is_file()
    if asks and (ids := likely_clients_of(path)):
        screen.note(
            f"{path.name}: the array {ids[0]} has a value for each sample and is not used; if it names the clients: "
            f"--client-column {ids[0]}"
        )
    if data.partition is not None or data.clients is not None or not path.exists():
        return
    if is_shelf(path):
        there = Federation.open(path)
        screen.note(f"clients: the {len(there)} of the saved federation {typed(path)} ({there.name})")
        return
    chosen = resolved(data).partition
    if chosen == "natural":
        screen.note("clients: as given by the data (partition natural); --partition chooses another")
    elif chosen == "dirichlet":
        screen.note(
            f"clients: {DEFAULT_CLIENTS} simulated ones, among which samples are distributed (partition dirichlet); "
            "--client-column COLUMN, or one file or folder per client, names the clients of the data"
        )


def tell_findings(data: DataSettings, seed: int) -> OnData:
    """Return a callback that reports the errors and warnings of a quick inspection, as one line on standard error;
    silent for built-in data.
    """

    def tell(dataset: Dataset | Federation, federation: Federation) -> None:
        _tell_merged(dataset, data.split)
        findings = () if data.data in SOURCES else glance(dataset, federation)
        codes = list(dict.fromkeys(f.code for f in findings if f.severity != "note"))
        if codes:
            counts = [counted(n, kind) for kind in ("error", "warning")
                      if (n := sum(f.severity == kind for f in findings))]  # fmt: skip
            screen.note(
                f"inspect: {', '.join(counts)} in what was read ({', '.join(codes)}); all of them: "
                f"{inspect_line(data, seed)}"
            )

    return tell


def inspect_line(data: DataSettings, seed: int) -> str:
    """Return the command that inspects data as a run shares them out; it needs no run folder, which may never exist
    if the run is refused."""
    place, here = Path(data.data), Path.cwd()
    shown = str(place.relative_to(here)) if place.exists() and place.is_relative_to(here) else data.data
    words, usual = ["fedkin", "inspect", shown], DataSettings()
    for name in DataSettings.__struct_fields__:
        value = getattr(data, name)
        if name != "data" and value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(map(typed, words + (["--seed", str(seed)] if seed and data.data_seed is None else [])))


def _tell_merged(data: Dataset | Federation, split: str) -> None:
    """Report on standard error that the official test part of the data is not what clients are tested on."""
    test = None if isinstance(data, Federation) else data.official_test
    if test is not None and split == "pooled":
        screen.note(
            f"the official test part ({counted(len(test), 'sample')}) is merged with the rest, and each client's "
            "samples are split anew (--split pooled); --split official tests on it"
        )


@dataclass(frozen=True)
class Outcome:
    """Results of a comparison.

    Attributes:
        verdicts: a line for every method but the reference.
        styles: how a terminal shows each of them, as from `style_of`.
        report: content of the page; page: its path.
    """

    verdicts: tuple[str, ...]
    styles: tuple[str, ...]
    report: Content
    page: Path


def write_outcome(baseline: str, folder: Path, runs: Sequence[Result], decimals: int = 1) -> Outcome:
    """Write the tables and the page of a comparison into its folder; ``baseline`` names a method."""
    made = result_of(baseline, runs, folder)
    reference, report = made.reference, made.content
    command = f"fedkin compare {typed(folder / 'compare.toml')}"
    judged = [row for row in report.rows if row.finding is not None]
    verdicts = tuple(filter(None, (report.verdict(row.title, reference) for row in judged)))
    styles = tuple(style_of(row.finding) for row in judged if row.finding is not None)
    origin = Origin(command, tuple((run.title, run.seed, digest(run.config)) for run in runs), made.tuned)
    others = _judged_by(report)
    sentences = [s for row in judged for name in others if (s := report.sentence(row.title, name))]
    text = f"{' '.join(report.unlearned)}\n\n" if report.unlearned else ""
    text += "".join(f"- {sentence}\n" for sentence in sentences)
    text += f"\n{which}\n" if (which := report.which_is_which) else ""
    write_tables(folder, report.rows, origin, decimals, text, report.lead)
    page = write_page(folder, report, command)
    return Outcome(verdicts, styles, report, page)


def _judged_by(report: Content) -> list[str]:
    """Return the references of the sentences in ``table.md``: the stronger kind of training alone as well, unless it is
    identical to the other."""
    reference, findings = report.reference, report.findings.get(report.reference, {})
    full = [name for name in report.findings if report.role(name) == "alone-full"] * (report.role(reference) == "alone")
    # then the second sentence would repeat the first
    return [reference, *(name for name in full if name not in findings or not findings[name].difference.identical)]


def style_of(conclusion: Conclusion) -> str:
    """Return the style of a verdict on a terminal; the sentence says the same in words.

    Green and red are for "better" and "worse" alone, which need two seeds or more. What is seen in a single run is
    plain, and what remains unclear is dim.
    """
    return {"better": "green", "worse": "red", "ahead": "", "behind": ""}.get(conclusion.difference.word, "dim")


def tell_verdicts(outcome: Outcome) -> None:
    """Print whether anything was learned, the verdicts of a comparison, in colours on a terminal, and how Local and
    Local (full) differ."""
    screen.say("")
    if outcome.report.unlearned:
        screen.paragraph(" ".join(outcome.report.unlearned) + "\n")
    for text, style in zip(outcome.verdicts, outcome.styles, strict=True):
        screen.paragraph(text, style)
    if outcome.report.which_is_which:
        screen.paragraph(f"\n{outcome.report.which_is_which}")


def tell_warnings(report: Content) -> None:
    """Print the caveats of the page, which are to be read before the results."""
    if report.caveats:
        screen.say("\nCaveats:")
        for caveat in report.caveats:
            screen.paragraph(f"- {caveat.text}")
