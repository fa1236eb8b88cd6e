"""The page in a real browser, with real clicks: headless Chromium, driven by Playwright."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkin.report import page

CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
ROOM = 'document.querySelector("#chart-weights").chart.view.data("cells")'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, once for all tests here."""
    sync_api = pytest.importorskip("playwright.sync_api", reason='clicks need Playwright: pip install "fedkin[dev]"')
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium, or name one in the variable CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page that is open, with all it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, width: int = 1100, **how: Any) -> None:
        self.tab = browser.new_page(viewport={"width": width, "height": 900}, **how)
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.tab.on("request", lambda r: self.requests.append(r.url))
        self.tab.on("pageerror", lambda e: self.faults.append(str(e)))
        self.tab.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("html[data-ready]")

    def see(self, name: str) -> None:
        """Scrolls to a chart and waits until it is drawn."""
        self.tab.locator(f"#chart-{name}").scroll_into_view_if_needed()
        self.tab.wait_for_function(f'document.querySelector("#chart-{name}").chart.view !== null')

    def settle(self, what: str) -> None:
        """Scrolls to it and waits until nothing moves any more: charts are drawn as they come into view."""
        place, before = self.tab.locator(what).first, None
        while True:
            place.scroll_into_view_if_needed()
            self.tab.wait_for_timeout(300)
            now = place.bounding_box()
            if now == before:
                return
            before = now

    def column(self, number: int) -> list[str]:
        return [cells.nth(number).inner_text() for cells in
                (row.locator("td") for row in self.tab.locator("tr.client").all())]  # fmt: skip

    def close(self) -> None:
        """Nothing was asked of anybody, nothing went wrong."""
        self.tab.close()
        assert [url for url in self.requests if not url.startswith(("file:", "blob:", "data:"))] == []
        assert self.faults == []


@pytest.fixture
def report(folder) -> Path:
    """A run with weights that change from round to round, labels and names, against Local."""
    run = folder("m", title="M", gains={0: -0.2, 2: 0.1}, relations="weights", config={"lr": 0.1})
    lines = [{"round": r, "kind": "weights", "rows": {"0": {"1": r / 4, "0": 1 - r / 4}}} for r in (1, 2, 3)]
    (run / "relations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clients = [json.loads(line) for line in (run / "clients.jsonl").read_text().splitlines()]
    for line in clients[:4]:
        line["labels"] = [3, line["client"], 5]
    (run / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in clients))
    summary = json.loads((run / "summary.json").read_text())
    summary["clients"] = {"count": 4, "names": ["zurich", "bern", "</script><b>", "aarau"], "groups": [0, 1, 0, 1]}
    (run / "summary.json").write_text(json.dumps(summary))
    return page.write_page(run, folder("local", title="Local", top=0.7))


def test_the_slider_shows_the_weights_of_a_round(browser, report) -> None:
    """At the left the mean, then round by round; the play button walks to the end."""
    opened = Opened(browser, report)
    opened.see("weights")
    weight = f"{ROOM}.find(d => d.client === 'zurich' && d.from === 'bern').weight"
    assert opened.tab.locator("#round-says").inner_text() == "all rounds (mean)"
    assert opened.tab.evaluate(weight) == pytest.approx(0.5, abs=0.005)
    slider = opened.tab.locator("#round")
    slider.focus()
    for expected in (0.25, 0.5, 0.75):
        slider.press("ArrowRight")
        assert opened.tab.evaluate(weight) == pytest.approx(expected, abs=0.005)
    assert opened.tab.locator("#round-says").inner_text() == "round 3"
    opened.tab.locator("#play").click()
    opened.tab.wait_for_function('document.querySelector("#round-says").textContent === "round 2"')
    opened.close()


def test_the_table_is_sorted_and_filtered(browser, report) -> None:
    """By name up and down, by accuracy; a filter leaves one client; the heading says how it is sorted."""
    opened = Opened(browser, report)
    head = opened.tab.get_by_role("columnheader")
    head.filter(has_text="name").get_by_role("button").click()
    assert opened.column(0) == ["</script><b>", "aarau", "bern", "zurich"]
    head.filter(has_text="name").get_by_role("button").click()
    assert opened.column(0) == ["zurich", "bern", "aarau", "</script><b>"]
    head.filter(has_text="accuracy").get_by_role("button").press("Enter")
    assert opened.column(1) == ["0", "1", "3", "2"]
    assert head.filter(has_text="accuracy").get_attribute("aria-sort") == "ascending"
    assert head.filter(has_text="name").get_attribute("aria-sort") == "none"
    opened.tab.locator("#filter").fill("bern")
    assert opened.column(1) == ["1"]
    assert "1 of 4 clients" in opened.tab.locator("#count").inner_text()
    opened.close()


def test_a_client_is_opened_by_click_and_by_key(browser, report) -> None:
    """Its accuracy, its labels and whom it learned from; a second time closes it."""
    opened = Opened(browser, report)
    button = opened.tab.get_by_role("button", name="Client zurich: show more")
    opened.settle("tr.client")
    opened.tab.locator("tr.client").first.click()
    assert button.get_attribute("aria-expanded") == "true"
    detail = opened.tab.locator("tr.detail")
    assert detail.locator("h3").all_inner_texts() == [
        "Accuracy over rounds", "Training samples by class", "Learned most from (mean weight)",
    ]  # fmt: skip
    detail.locator("canvas").nth(2).wait_for()
    button.press("Enter")
    assert detail.count() == 0
    button.press("Enter")
    assert detail.count() == 1
    opened.close()


def test_dark_and_light(browser, report) -> None:
    """As the system wishes at first; the button changes page and charts."""
    opened = Opened(browser, report, color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened.tab.evaluate(paper) == "rgb(23, 24, 26)"
    opened.see("accuracy-over-rounds")
    chart = 'document.querySelector("#chart-accuracy-over-rounds").chart'
    assert opened.tab.evaluate(f"{chart}.view.background()") == "#17181a"
    opened.tab.get_by_role("button", name="Light").click()
    assert opened.tab.evaluate(paper) == "rgb(255, 255, 255)"
    opened.tab.wait_for_function(f'{chart}.view.background() === "#ffffff"')
    opened.close()


def test_series_are_hidden_and_files_are_saved(browser, report, tmp_path) -> None:
    """A box takes its line out of the chart; the buttons give an SVG and a CSV without a network."""
    opened = Opened(browser, report)
    opened.see("accuracy-over-rounds")
    opened.tab.get_by_label("worst 10 %").first.uncheck()
    hidden = 'document.querySelector("#chart-accuracy-over-rounds").chart.view.signal("hidden")'
    assert opened.tab.evaluate(hidden) == ["worst 10 %"]
    figure = opened.tab.locator("figure", has=opened.tab.locator("#chart-accuracy-over-rounds"))
    for button, name, start in (
        (figure.get_by_role("button", name="Save as SVG"), "accuracy-over-rounds.svg", "<svg"),
        (opened.tab.locator("#people-csv"), "clients-M.csv", "name,client,group"),
    ):
        with opened.tab.expect_download() as download:
            button.click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    opened.close()


def test_a_phone_scrolls_in_one_direction_only(browser, report) -> None:
    """390 pixels wide, every chart drawn, a client open: the page is no wider than the screen."""
    opened = Opened(browser, report, width=390)
    opened.tab.locator("tr.client button").first.click()
    for chart in opened.tab.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("canvas").wait_for()
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390
    opened.close()


def test_a_comparison_changes_its_method(browser, made, tmp_path) -> None:
    """Another method in the list: another table, its clusters; every chart of the page is drawn without a fault."""
    runs = [made("Local", s, top=0.7) for s in (0, 1)] + [made("FedAvg", s, top=0.75) for s in (0, 1)]
    runs += [made("M", s, top=0.8, relations="clusters") for s in (0, 1)]
    opened = Opened(browser, page.write_comparison(tmp_path, runs))
    assert opened.tab.locator("#chart-clusters").count() == 1
    opened.tab.locator("select.method").first.select_option("FedAvg")
    assert opened.tab.locator("#chart-clusters").count() == 0
    assert opened.tab.locator("select.method").nth(1).input_value() == "FedAvg"
    names = [head.inner_text() for head in opened.tab.get_by_role("columnheader").all()]
    assert "gain over Local" in names
    assert "gain over FedAvg" not in names
    for chart in opened.tab.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("canvas").wait_for()
    opened.close()


@pytest.fixture
def hospitals(made, tmp_path) -> Path:
    """Three methods, two seeds, the same named clients in both; M moves from seed to seed."""
    runs = [made(title, s, top=top) for title, top in (("Local", 0.7), ("FedAvg", 0.75)) for s in (0, 1)]
    runs += [made("M", s, top=0.8, gains={0: -0.2 * s}, relations="weights") for s in (0, 1)]
    names = ["zurich", "bern", "basel", "aarau"]
    for run in runs:
        run.summary["clients"] = {"count": 4, "names": names, "classes": ["well", "ill"]}
        for line in run.clients[:4]:
            line["labels"] = [3, 4 * line["client"]]
    return page.write_comparison(tmp_path, runs)


def test_seeds_are_chosen_with_keys_and_their_mean_is_shown_first(browser, hospitals) -> None:
    """The mean of both seeds with the range; a key moves to a seed, in all parts of the page."""
    opened = Opened(browser, hospitals)
    heads = [head.inner_text() for head in opened.tab.locator("#people-head th").all()]
    assert {"lowest %", "highest %", "seeds above Local"} <= set(heads)
    at = heads.index("accuracy %")
    assert opened.column(at)[0] == "70.0"
    assert (opened.column(at + 1)[0], opened.column(at + 2)[0]) == ("60.0", "80.0")
    seed = opened.tab.locator("select.seed").first
    seed.focus()
    assert seed.input_value() == "all (mean)"
    seed.press("ArrowUp")
    assert [one.input_value() for one in opened.tab.locator("select.seed").all()] == ["1"] * 3
    heads = [head.inner_text() for head in opened.tab.locator("#people-head th").all()]
    assert "lowest %" not in heads
    assert opened.column(heads.index("accuracy %"))[0] == "60.0"
    opened.close()


def test_names_stand_on_the_axes(browser, hospitals) -> None:
    """Clients and classes by name in the map, the labels and an opened client."""
    opened = Opened(browser, hospitals)
    opened.see("weights")
    cells = opened.tab.evaluate(ROOM)
    assert {cell["from"] for cell in cells} == {"zurich", "bern", "basel", "aarau"}
    opened.see("labels")
    cells = opened.tab.evaluate(ROOM.replace("weights", "labels"))
    assert {(c["client"], c["class"]): c["samples"] for c in cells}[("aarau", "ill")] == 12
    opened.settle("tr.client")
    opened.tab.get_by_role("button", name="Client bern: show more").press("Enter")
    partners = opened.tab.locator("tr.detail .chart").nth(2)
    partners.locator("canvas").wait_for()
    drawn = partners.evaluate("holder => holder.chart.spec.data.values.map(d => d.client)")
    assert drawn == ["bern", "basel"]
    opened.close()


def test_a_method_is_hidden_in_all_charts(browser, hospitals) -> None:
    """One box takes the method out of every chart of methods and sets all its other boxes; the key brings it back."""
    opened = Opened(browser, hospitals)
    charts = ["final-accuracies", "accuracy-over-rounds", "distribution", "gains", "classes", "bytes"]
    for name in charts:
        opened.see(name)
    hidden = 'name => document.querySelector(`#chart-${name}`).chart.view.signal("hidden")'
    box = opened.tab.locator("#figures-accuracy").get_by_label("M", exact=True).first
    box.uncheck()
    assert [opened.tab.evaluate(hidden, name) for name in charts] == [["M"]] * len(charts)
    others = opened.tab.get_by_label("M", exact=True)
    assert [one.is_checked() for one in others.all()] == [False] * len(charts)
    box.press("Space")
    assert [opened.tab.evaluate(hidden, name) for name in charts] == [[]] * len(charts)
    opened.close()


def test_every_chart_and_control_has_a_name_and_shows_its_focus(browser, hospitals) -> None:
    """A text for every chart, a name for every control, an outline on each that the Tab key reaches."""
    opened = Opened(browser, hospitals)
    opened.tab.wait_for_function("[...document.querySelectorAll('.chart')].every(c => c.chart.view)")
    for chart in opened.tab.locator(".chart").all():
        assert chart.get_attribute("role") == "img"
        assert len(chart.get_attribute("aria-label")) > 10
    for role in ("button", "combobox", "searchbox", "checkbox", "slider"):
        for control in opened.tab.get_by_role(role).all():
            named = control.evaluate("c => c.ariaLabel || c.labels?.length || c.textContent.trim()")
            assert named, control.evaluate("c => c.outerHTML")
    opened.tab.evaluate("document.body.focus()")
    for _ in range(25):
        opened.tab.keyboard.press("Tab")
        style = "getComputedStyle(document.activeElement)"
        assert opened.tab.evaluate(f"{style}.outlineStyle") == "solid"
        assert opened.tab.evaluate(f"{style}.outlineWidth") == "2px"
    opened.close()


def test_less_motion_is_granted(browser, report) -> None:
    """Who asked for less motion gets a step of the map no faster than one a second."""
    opened = Opened(browser, report, reduced_motion="reduce")
    opened.see("weights")
    opened.tab.locator("#play").click()
    opened.tab.wait_for_timeout(900)
    assert opened.tab.locator("#round-says").inner_text() == "all rounds (mean)"
    opened.tab.wait_for_function('document.querySelector("#round-says").textContent === "round 1"')
    opened.close()


def test_paper_is_light_and_has_every_chart(browser, hospitals, tmp_path) -> None:
    """Printed from a dark screen: charts are drawn, on white, none wider than the paper; then it is dark again."""
    opened = Opened(browser, hospitals, color_scheme="dark")
    opened.tab.emulate_media(media="print", color_scheme="dark")
    opened.tab.evaluate('dispatchEvent(new Event("beforeprint"))')
    opened.tab.wait_for_function("[...document.querySelectorAll('.chart')].every(c => c.querySelector('canvas'))")
    colours = "[...document.querySelectorAll('.chart')].map(c => c.chart.view.background())"
    opened.tab.wait_for_function(f"{colours}.every(c => c === '#ffffff')")
    assert opened.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.tab.set_viewport_size({"width": 700, "height": 900})
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 700
    opened.tab.evaluate('dispatchEvent(new Event("afterprint"))')
    assert opened.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 26)"
    opened.close()
