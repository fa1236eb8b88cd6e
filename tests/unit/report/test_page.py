"""The page stands alone, says the verdict, and shows the numbers of the run."""

import html
import json
import re
from dataclasses import replace

import pytest
from markupsafe import escape

from fedkin.record.lines import RelationLine
from fedkin.report import charts, client_data
from fedkin.report.content import content_of
from fedkin.report.page import write_page
from madeup import edit
from pages import comparison_page, run_page


def heading(text: str) -> str:
    """The first heading, as a reader sees it."""
    found = re.search(r"<h1>(.*?)</h1>", text, re.DOTALL)
    assert found
    return html.unescape(re.sub(r"<[^>]+>", "", found[1]))


def data(text: str) -> dict:
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def without_library(text: str) -> str:
    """The page without the library that draws."""
    assert text.count(charts.script()) == 1
    return text.replace(charts.script(), "")


def test_the_page_of_a_run_with_local_starts_with_the_verdict(folder):
    """10 points above Local, one client of four below it: said first, shown in the table, drawn."""
    run = folder("m", title="M", top=0.8, gains={0: -0.2}, relations="weights", samples=100)
    local = folder("local", title="Local", top=0.65, samples=100)
    text = run_page(run, local)
    assert heading(text) == ("M: 10 points above training alone; that is too few clients and seeds for more.")
    assert "M: too few figures to tell it from Local (+10.0 points)" in text
    assert "Clearly worse off" not in text
    assert '<td class="number">75.0 %</td>' in text
    (part,) = data(text)["parts"]
    assert part["columns"]["gain over Local"] == [-5.0, 15.0, 15.0, 15.0]
    assert [one["id"] for one in data(text)["figures"]["gains"]] == ["gains"]
    assert list(part["figures"]) == ["weights", "circle"]
    assert (run / "overview.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("clients", [1, 2, 150])
@pytest.mark.parametrize("kind", ["weights", "clusters"])
def test_any_number_of_clients(folder, clients, kind):
    """One, two or 150 clients make a page."""
    assert run_page(folder(clients=clients, relations=kind))


def test_everything_is_escaped_and_nothing_comes_from_elsewhere(folder):
    """Methods and clients named like markup stay text, in the page, its data, the settings and the command."""
    name = '<script>"M" & $x$</script><!--'
    run = folder("m", title=name, relations="clusters", config={"method": {"name": name}}, names=(name,) * 4)
    local = folder("local", title="Local", top=0.7)
    command = "fedkin run 'a<b' && echo"
    text = without_library(run_page(run, local, command=command))
    assert text.count("<script") == text.count("</script") == 3
    assert "<!--" not in text
    assert escape(name) in text
    assert escape(command) in text
    assert data(text)["parts"][0]["columns"]["name"] == [name] * 4
    assert "http:" not in text
    assert "https:" not in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert "default-src 'none'" in text
    assert not re.findall(r"url\((?!#)", text)


def test_a_page_of_100_clients_and_200_rounds_stays_small(made, tmp_path):
    """Weights of all clients in all rounds: all rounds are on the slider, and the page is below 5 MB."""
    everybody = dict.fromkeys(range(100), 0.01)
    lines = [RelationLine(r, dict.fromkeys(range(r % 3, 100, 3), everybody)) for r in range(1, 201)]
    written = write_page(tmp_path, content_of([replace(made(clients=100, rounds=200), relations=lines)]))
    assert written.stat().st_size < 5_000_000
    (part,) = data(written.read_text(encoding="utf-8"))["parts"]
    assert (part["frames"]["rounds"][0][0], part["frames"]["rounds"][-1][1]) == (1, 200)
    assert len(part["frames"]["rounds"]) == 150
    assert len(part["series"]) == 100


def test_warnings_stand_before_the_charts(made, tmp_path):
    """One seed, one cluster for all, the predictions of Local: said, each once."""
    alike = {"top": 0.7, "rounds": 2, "answers": "d", "logits": "a1"}
    lines = [RelationLine(r, clusters=(1, 1, 1, 1)) for r in (1, 2)]
    content = content_of([replace(made("M", **alike), relations=lines)], base=made("Local", **alike))
    text = without_library(write_page(tmp_path, content).read_text(encoding="utf-8"))
    (caveats,) = re.findall(r'<details class="caveats".*?</details>', text, re.DOTALL)
    for said in ("M equals Local for every client", "Cluster 1 holds 4 of 4 clients", "One seed only"):
        assert caveats.count(said) == 1
    assert "caveats:</b> M equals Local" in caveats
    assert text.index("One seed only") < text.index('data-chart="gains"')


# ---- comparisons


def test_a_comparison_says_the_best_methods_verdict_first(made, tmp_path):
    """M above Local above N, two seeds: M's verdict is the heading, N's follows; the table has all three."""
    runs = [made(t, s, top=a) for t, a in (("Local", 0.7), ("M", 0.8), ("N", 0.6)) for s in (0, 1)]
    path = write_page(tmp_path / "out", content_of(runs), "fedkin compare")
    text = path.read_text(encoding="utf-8")
    assert heading(text) == ("M: better than training alone by 10 points. Likely +10.0 to +10.0 over 2 seeds.")
    assert "<li>M: better than Local by 10.0 points (likely +" in text
    assert "<li>N: worse than Local by 10.0 points" in text
    assert "<strong>80.0 ± 0.0</strong>" in text
    assert "<pre>fedkin compare</pre>" in text
    assert [(part["title"], part["seed"]) for part in data(text)["parts"]] == [
        ("Local", 0), ("Local", 1), ("M", 0), ("M", 1), ("N", 0), ("N", 1),
    ]  # fmt: skip
    assert "One seed only" not in text
    assert (tmp_path / "out" / "overview.png").exists()


def test_a_comparison_admits_that_local_is_best(made, tmp_path):
    text = comparison_page(tmp_path, [made("Local", top=0.9), made("M")])
    assert heading(text) == (
        "No method is above training alone on average. The highest, M: 10 points below training alone; that is too few "
        "clients and seeds for more."
    )
    assert "<li>M: too few figures to tell it from Local (-10.0 points" in text


def named(runs: list, names: list[str]) -> list:
    """The same runs of clients that are called so."""
    for run in runs:
        edit(run, names=tuple(names))
    return runs


def test_seeds_of_the_same_clients_have_a_mean(made, tmp_path):
    """Client a: 80 and 60 %, so 70, from 60 to 80; +10 and -10 over Local's 70, so 0, above it in one of two seeds."""
    runs = [made("Local", s, top=0.7) for s in (0, 1)] + [made("M", s, top=0.8, gains={0: -0.2 * s}) for s in (0, 1)]
    text = comparison_page(tmp_path, named(runs, ["a", "b", "c", "d"]))
    found = [part for part in data(text)["parts"] if part["title"] == "M"]
    assert [part["seed"] for part in found] == [0, 1, None]
    columns = found[2]["columns"]
    assert columns["name"] == ["a", "b", "c", "d"]
    assert [columns[name][0] for name in ("accuracy %", "lowest %", "highest %")] == [70.0, 60.0, 80.0]
    assert (columns["gain over Local"], columns["seeds above Local"][0]) == ([0.0, 10.0, 10.0, 10.0], "1 of 2")
    assert [found[2][key][0] for key in ("low", "series", "high")] == [[600] * 3, [700] * 3, [800] * 3]
    assert data(text)["joint"] is True


def test_who_clearly_loses_is_named(made, tmp_path):
    """Client a loses in one seed and gains more in the other: it is not named."""
    for answers in ("x", None):
        more = {"clients": 8, "samples": 200}
        each = [answers and f"{answers}{s}" for s in (0, 1)]
        runs = [made("Local", s, top=0.7, answers=each[s], **more) for s in (0, 1)]
        for s, up in ((0, 0.3), (1, -0.1)):
            runs.append(made("M", s, top=0.7, gains={0: up, 1: -0.1}, answers=each[s], **more))
        text = comparison_page(tmp_path, named(runs, list("abcdefgh")))
        said = "Clearly worse off than with Local (points in the last round, mean over seeds)"
        assert (said in text) == (answers is not None)
        assert ("<li>M: b (-10.0)</li>" in text) == (answers is not None)
        assert bool(re.search("of 8 clients (is|are) harmed", text)) == (answers is not None)


def test_a_warning_says_of_which_seeds_it_is(made, tmp_path):
    """In seed 1 of three all clients are in one cluster; Local has no gains over itself to warn of."""
    runs = [made(t, s, top=a, relations="clusters") for t, a in (("Local", 0.7), ("M", 0.8)) for s in (0, 1, 2)]
    runs[4].relations[:] = [RelationLine(line.round, clusters=(1, 1, 1, 1)) for line in runs[4].relations]
    text = comparison_page(tmp_path, runs)
    (line,) = re.findall(r"</b>([^<]*Cluster 1 holds[^<]*)</li>", text)
    assert line.startswith("M: Cluster 1 holds 4 of 4 clients")
    assert line.endswith("(seed 1).")
    assert not re.findall(r"</b>[^<]*Local[^<]*gains are smaller", text)


def test_more_seeds_than_there_is_room_for_are_left_out_and_said(made, tmp_path, monkeypatch):
    """Room for eight rows: two methods of four clients have one seed each; the page says so."""
    monkeypatch.setattr(client_data, "ROWS", 8)
    runs = [made(t, s) for t in ("Local", "M") for s in (0, 1, 2)]
    found = data(comparison_page(tmp_path, runs))["parts"]
    assert [(part["title"], part["seed"]) for part in found] == [("Local", 0), ("M", 0)]
    assert found[0]["note"] == "Of 3 seeds only the first is shown here, so that the page stays small."


def test_a_reference_that_lacks_a_seed_is_shown_over_the_seeds_in_common(made, tmp_path):
    """M is 10 points above Local in the only seed that Local has, and lower in the others."""
    runs = [made("Local", 0, top=0.6), made("M", 0, top=0.7), made("M", 1, top=0.4), made("M", 2, top=0.4)]
    text = comparison_page(tmp_path, runs)
    assert "No method is above" not in text
    assert 'class="cap">alone 60.0% · +10.0 points in 1 seed in common</div>' in text
    assert "alone, worst 60.0% (client 0) in 1 seed in common" in text
    text = comparison_page(tmp_path, runs[:2])
    assert 'class="cap">alone 60.0% · +10.0 points</div>' in text


def test_equal_means_share_a_rank(made, tmp_path):
    runs = [made(t, top=top) for t, top in (("A", 0.8), ("B", 0.7), ("C", 0.7), ("D", 0.6))]
    text = comparison_page(tmp_path, runs)
    ranks = re.findall(r'class="eyebrow">(Rank \d of 4(?:, shared)?|Highest mean)', text)
    assert sorted(ranks) == ["Highest mean", "Rank 2 of 4, shared", "Rank 2 of 4, shared", "Rank 4 of 4"]


def test_a_verdict_says_that_training_diverged(made, tmp_path):
    """All clients predict NaN in the last rounds of one seed."""
    runs = [made(t, s, clients=8) for t in ("Local", "M", "N") for s in (0, 1)]
    lost = {"refused": dict.fromkeys(range(8), "not-finite"), "answered": (), "abandoned": True}
    edit(runs[3], lambda line: {**lost, "unpredicted": tuple(range(8))})
    assert runs[3].diverged is not None, "what this test is about"
    text = comparison_page(tmp_path, runs)
    said = re.findall(r"<li>((?:M|N): [^<]*Local[^<]*)</li>", text)
    assert [one.endswith("; its training diverged") for one in said] == [one.startswith("M") for one in said]
    assert {one[0] for one in said} == {"M", "N"}
