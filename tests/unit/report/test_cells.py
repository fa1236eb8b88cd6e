"""What comes from data files is text in a spreadsheet, whatever it begins with; numbers stay numbers."""

import csv
import io
from pathlib import Path

import pytest
import torch

from fedkin.evaluate import spread
from fedkin.experiment.sweep import Trial, _csv
from fedkin.exporting.model import Predicted, write_csv
from fedkin.report.content import content_of
from fedkin.report.page import write_files
from fedkin.report.tables import cells

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "=", "-", "-a", "--", "\n=1"]
FORMULAS += ["-1 ± A1", "-1 ± 2 ± 3"]
NAME = "=HYPERLINK(1)"
NUMBERS = [-0.5, -1, "-0.5", "+1e-3", "-7.9 ± 4.4", "-inf", "1"]


def rows_of(text: str) -> list[list[str]]:
    """The cells of a CSV file."""
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_text(text: str) -> None:
    """A cell that a spreadsheet would compute begins with an apostrophe."""
    assert cells([text]) == ["'" + text]


@pytest.mark.parametrize("value", [*NUMBERS, "a=b", "", None, True, "–", "a-b", "'=1"])
def test_numbers_and_other_texts_stay(value: object) -> None:
    """Negative numbers, numbers as text, and texts that begin otherwise are written as they are."""
    assert cells([value]) == [value]


def test_tables_of_a_report(made, tmp_path: Path) -> None:
    """clients.csv: the names of clients; a gain below zero stays a number."""
    run = made(names=(NAME, "b", "c", "d"))
    write_files(tmp_path, content_of([run]))
    found = rows_of((tmp_path / "clients.csv").read_bytes().decode())
    assert [row for row in found if "'" + NAME in row]
    assert not [row for row in found if NAME in row]


def test_titles_that_differ_in_signs_have_their_own_files(made, tmp_path: Path) -> None:
    """Names of files keep letters, digits and +; a number that follows is no other title's."""
    titles = ["M", "M 2", "M!", "M?", "FedAvg+"]
    written = write_files(tmp_path, content_of([made(title=title) for title in titles], "M"))
    files = [path.name for path in written if path.name.startswith("clients-") and path.suffix == ".csv"]
    assert files == [f"clients-{name}.csv" for name in ("m", "m-2", "m-3", "m-4", "fedavg+")]
    assert len(set(written)) == len(written)


def test_tables_of_a_sweep() -> None:
    """sweep.csv: values that are texts, and why a setting failed."""
    good = Trial(0, {"method.a": NAME, "training.lr": -0.5}, spread([0.5]))
    trials = [good, Trial(1, {"method.a": "b", "training.lr": 1.0}, None, NAME)]
    found = rows_of(_csv(trials, good))
    assert found[1][1:3] == ["'" + NAME, "-0.5"]
    assert found[2][-1] == "'" + NAME


def test_predictions() -> None:
    """The labels of predicted rows; a label that is a number stays one."""
    found = Predicted(("1", "2"), torch.tensor([[0.25, 0.75], [0.75, 0.25]]), (NAME, "-1"))
    assert [row[1] for row in rows_of(write_csv(found).decode())] == ["label", "-1", "'" + NAME]
