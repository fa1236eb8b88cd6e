"""Tables for papers: what is in them, and that LaTeX and a CSV reader take them."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from fedkin.evaluate import difference, spread
from fedkin.record.result import by_title
from fedkin.report.headline import Headline
from fedkin.report.publication_tables import Origin, paper_table, to_csv, to_latex, write_tables
from fedkin.report.standings import comparison_rows

NASTY = r"[re]d_M & 50% #1 {x} ~a^b \o $5 <|>"
ORIGIN = Origin("fedkin compare runs/c/compare.toml", (("Local", 0, "aa11"), ("Local", 1, "bb22"), (NASTY, 0, "cc33")))
KNOWN = {
    *("begin", "end", "centering", "caption", "label", "toprule", "midrule", "bottomrule", "textbf", "pm", "dots"),
    *("textbackslash", "textasciitilde", "textasciicircum", "textbar", "scriptsize", "setlength", "tabcolsep"),
    "dagger",
}


@pytest.fixture
def rows(made):
    """Local at 70 %, a method with a nasty name 10 points above, six clients, three seeds."""
    gains = {i: 0.01 * (i % 3) for i in range(6)}
    runs = [made("Local", s, clients=6, top=0.7) for s in range(3)]
    runs += [made(NASTY, s, clients=6, top=0.8, gains=gains) for s in range(3)]
    return comparison_rows(by_title(runs))


def check_latex(text: str) -> list[list[str]]:
    """A strict reader of what is made here: gives the cells of every row, commands and all."""
    body = re.sub(r"(?m)^%.*\n", "", text)
    assert set(re.findall(r"\\([a-zA-Z]+)", body)) <= KNOWN
    assert set(re.findall(r"\\([^a-zA-Z\s])", body)) <= set("&%$#_{}\\")
    plain = re.sub(r"\\\\|\\[&%$#_{}]", "", body)
    assert not re.search(r"[%#~^]", plain)
    assert not re.search("[^\x00-\x7f]", plain)
    assert plain.count("$") % 2 == 0
    assert "_" not in re.sub(r"\\label\{[^}]*\}", "", plain)
    depth = 0
    for sign in plain:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    stack: list[str] = []
    for which, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        assert which == "begin" or stack.pop() == name
        stack += [name] * (which == "begin")
    assert not stack
    found = re.search(r"\\begin\{tabular\}\{([lrc]+)\}(.*?)\\end\{tabular\}", body, re.S)
    assert found
    lines = [line for line in found[2].splitlines() if line.endswith(r"\\")]
    table = [[c.strip() for c in re.split(r"(?<!\\)&", line.removesuffix(r"\\"))] for line in lines]
    assert all(len(row) == len(found[1]) for row in table)
    assert not any(row[0].startswith(("[", "*")) for row in table)
    return table


def test_a_table_for_papers(rows):
    """Mean ± std, the paired difference with its interval, mean rank; the clear winner bold; the caption says how."""
    last = {"Local": spread([0.7, 0.71]), NASTY: spread([0.6])}
    grid = paper_table(rows, decimals=2, extra=Headline("rounds 81 to 100", last))
    d = difference([a.gains for a in rows[1].against])
    assert grid.rows[0][1:] == ("70.00 ± 0.00", "70.50", "70.00 ± 0.00", "60.00 ± 0.00", "–", "2", "9")
    assert grid.rows[1][1:3] == ("81.00 ± 0.00", "60.00")
    assert grid.rows[1][5:] == (f"+11.00 [{100 * d.low:+.2f}, {100 * d.high:+.2f}]", "1", "9")
    assert grid.bold == {(1, 1)}
    assert grid.note.startswith("Accuracy: mean over clients and rounds 81 to 100, 3 seeds (")
    for fact in (
        "3 seeds",
        "points of accuracy above Local",
        "95 % interval over seeds and clients (half-Cauchy prior on the seed effect, its scale from all methods)",
        "bold: the highest",
    ):
        assert fact in grid.note


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("rounds", ["round 5", "rounds 811 to 1000"])
def test_a_caption_has_two_lines_at_most(several, rounds, made):
    """Of 90 characters, "Table 1: " among them; what the columns are stands in comments."""
    seeds = range(12 if several else 1)
    found = [made(t, s, clients=8, top=top) for t, top in (("Local (full)", 0.7), ("M", 0.9)) for s in seeds]
    text = to_latex(paper_table(comparison_rows(by_title(found), "Local (full)"), 1, Headline(rounds)))
    (caption,) = re.findall(r"\\caption\{(.*)\}\n", text)
    shown = re.sub(r"\$.*?\$", "x", caption.replace("\\", ""))
    assert len(shown) + len("Table 1: ") <= 2 * 90
    assert "95 % interval" in shown
    assert "% MB: sent up and down in training" in text.splitlines()


@pytest.mark.parametrize("title", ["FeSEM-CAM", NASTY])
def test_latex_makes_a_page_of_it(title, rows, tmp_path):
    """LaTeX itself takes it, with names of every sign; with usual names nothing runs over the margin."""
    if shutil.which("pdflatex") is None:
        pytest.skip("needs LaTeX: apt-get install texlive-latex-recommended")
    rows = [replace(row, title=title) if row.title == NASTY else row for row in rows]
    text = to_latex(paper_table(rows), ORIGIN)
    page = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + text + "\\end{document}\n"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert title == NASTY or "Overfull" not in done.stdout
    assert (tmp_path / "page.pdf").stat().st_size > 0


def test_latex_is_sound_and_says_where_it_is_from(rows):
    """Names full of special characters are text; the best is bold; command and digests stand in comments."""
    text = to_latex(paper_table(rows), ORIGIN)
    table = check_latex(text)
    assert table[2][0] == (
        r"{[}re]d\_M \& 50\% \#1 \{x\} \textasciitilde{}a\textasciicircum{}b \textbackslash{}o \$5 $<$\textbar{}$>$"
    )
    assert table[2][1] == r"\textbf{81.0 $\pm$ 0.0}"
    assert "% made by: fedkin compare runs/c/compare.toml\n% Local, seed 0: config aa11\n" in text
    assert "booktabs" in text


def test_a_diverged_method_is_marked_in_every_form(rows):
    """A dagger at its accuracy and the round in the caption, as LaTeX too; CSV has the first such round."""
    beside = Headline("rounds 81 to 100", {"Local": spread([0.7])}, {"Local": {0: 12, 2: 9}}, several=True)
    grid = paper_table(rows, extra=beside)
    assert grid.rows[0][1:3] == ("70.0 ± 0.0 †", "70.0")
    assert "†" not in grid.rows[1][1]
    assert grid.note.endswith("† Local: diverged from round 12 on (seed 0), round 9 on (seed 2)")
    assert check_latex(to_latex(grid))[1][1] == r"70.0 $\pm$ 0.0 $\dagger$"
    local, other = csv.DictReader(io.StringIO(to_csv(rows, ORIGIN, extra=beside)))
    assert (local["diverged"], other["diverged"]) == ("9", "")
    assert (local["rounds"], local["last_accuracy_mean"], other["last_accuracy_mean"]) == (
        "rounds 81 to 100",
        "0.7",
        "",
    )


def test_a_line_break_in_a_name_stays_in_its_comment(rows):
    origin = Origin("fedkin compare a\n\\input{x}")
    check_latex(to_latex(paper_table(rows), origin))


def test_csv_holds_full_precision_under_one_header(rows):
    """Every figure as a fraction that reads back to the same number; empty where there is nothing."""
    local, other = csv.DictReader(io.StringIO(to_csv(rows, ORIGIN)))
    d = rows[1].difference
    assert other["method"] == NASTY
    assert [float(other[k]) for k in ("difference", "difference_low", "difference_high")] == [d.mean, d.low, d.high]
    assert float(other["accuracy_mean"]) == rows[1].accuracy.mean
    assert (other["harmed_low"], other["harmed_high"], other["harmed_of"], other["harmed_level"]) == ("", "", "", "")
    assert (other["verdict"], other["best"], other["rank"], other["configs"]) == ("better", "true", "1.0", "cc33")
    assert (local["difference"], local["verdict"], local["configs"]) == ("", "", "aa11 bb22")
    assert None not in other.values()


def test_the_three_files(rows, tmp_path):
    """Markdown with the verdicts and the origin in a comment that ends where it should."""
    origin = replace(ORIGIN, command="fedkin compare a-->b --x")
    write_tables(tmp_path, rows, origin, decimals=0, text="- M: better")
    text = (tmp_path / "table.md").read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"table.md", "table.tex", "table.csv"}
    assert "| **81 ± 0** |" in text
    assert "\n- M: better\n" in text
    assert text.count("-->") == 1
    assert text.endswith("-->\n")
    assert "cc33" in text
    check_latex((tmp_path / "table.tex").read_text())
