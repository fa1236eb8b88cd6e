"""The page in a real browser, with real clicks: headless Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedkin.record.lines import RelationLine
from fedkin.report.content import content_of
from fedkin.report.page import write_page
from madeup import edit

ROOM = 'document.querySelector("#chart-weights").chart.view.data("cells")'


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
        rows = self.tab.locator("tr.client").all()
        return [row.locator("th, td").nth(number).inner_text() for row in rows]

    def heads(self) -> list[str]:
        return [head.inner_text().split(" ↑")[0] for head in self.tab.locator("#people-head th").all()]

    def pick(self, method: str) -> None:
        self.tab.locator("#method").select_option(method)

    def close(self) -> None:
        """Nothing was asked of anybody, nothing went wrong."""
        self.tab.close()
        assert [url for url in self.requests if not url.startswith(("file:", "blob:", "data:"))] == []
        assert self.faults == []


Open = Callable[..., Opened]


@pytest.fixture
def opened_page(browser) -> Iterator[Open]:
    """Opens pages, and closes them at the end."""
    pages: list[Opened] = []

    def open_page(*given: Any, **how: Any) -> Opened:
        pages.append(Opened(browser, *given, **how))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


@pytest.fixture
def report(made, tmp_path) -> Path:
    """A run with weights that change from round to round, labels and names, against Local."""
    names = ("zurich", "bern", "</script><b>", "aarau")
    run = made("M", gains={0: -0.2, 2: 0.1}, config={"lr": 0.1}, names=names, groups=(0, 1, 0, 1), samples=10)
    edit(run, clients=lambda line: {"labels": (3, line.client, 5)} if line.round == 1 else None)
    lines = [RelationLine(r, {0: {1: r / 4, 0: 1 - r / 4}}) for r in (1, 2, 3)]
    base = made("Local", top=0.7, samples=10)
    return write_page(tmp_path, content_of([replace(run, relations=lines)], base=base))


def test_the_slider_shows_the_weights_of_a_round(opened_page: Open, report) -> None:
    """At first the mean of all rounds, then round by round; the play button walks to the end."""
    opened = opened_page(report)
    opened.see("weights")
    weight = f"{ROOM}.find(d => d.client === 'zurich' && d.from === 'bern').weight"
    assert opened.tab.locator("#round-says").inner_text() == "All rounds"
    assert opened.tab.evaluate(weight) == pytest.approx(0.5, abs=0.005)
    slider = opened.tab.locator("#round")
    slider.focus()
    for key, expected in (("Home", 0.25), ("ArrowRight", 0.5), ("ArrowRight", 0.75)):
        slider.press(key)
        assert opened.tab.evaluate(weight) == pytest.approx(expected, abs=0.005)
    assert opened.tab.locator("#round-says").inner_text() == "Round 3"
    assert opened.tab.get_by_role("button", name="One round").get_attribute("aria-pressed") == "true"
    opened.tab.locator("#play").click()
    opened.tab.wait_for_function('document.querySelector("#round-says").textContent === "Round 2"')
    opened.tab.get_by_role("button", name="All rounds").click()
    assert opened.tab.evaluate(weight) == pytest.approx(0.5, abs=0.005)


def test_the_table_is_sorted_and_filtered(opened_page: Open, report) -> None:
    """By name up and down, by samples; a filter leaves one client, a group, or those lower; heads say the order."""
    opened = opened_page(report)
    head = opened.tab.locator("#people-head th")
    assert opened.column(0) == ["zurich", "bern", "aarau", "</script><b>"]  # the worst gain first
    head.filter(has_text="Client").get_by_role("button").click()
    assert opened.column(0) == ["</script><b>", "aarau", "bern", "zurich"]
    head.filter(has_text="Client").get_by_role("button").click()
    assert opened.column(0) == ["zurich", "bern", "aarau", "</script><b>"]
    head.filter(has_text="Training").get_by_role("button").press("Enter")
    assert opened.column(0) == ["zurich", "bern", "</script><b>", "aarau"]
    assert head.filter(has_text="Training").get_attribute("aria-sort") == "ascending"
    assert head.filter(has_text="Client").get_attribute("aria-sort") == "none"
    opened.tab.locator("#filter").fill("bern")
    assert opened.column(0) == ["bern"]
    assert "1 of 4 clients" in opened.tab.locator("#count").inner_text()
    opened.tab.locator("#filter").fill("lower")
    assert opened.column(0) == ["zurich"]
    opened.tab.locator("#filter").fill("group 1")
    assert sorted(opened.column(0)) == ["aarau", "bern"]


def test_a_client_is_opened_by_click_and_by_key(opened_page: Open, report) -> None:
    """A drawer with its sentence, its accuracy, its labels and whom it learned from; arrows walk, Escape closes it."""
    opened = opened_page(report)
    opened.settle("tr.client")
    opened.tab.locator("tr.client").first.click()
    drawer = opened.tab.locator("#drawer")
    assert drawer.get_by_role("heading").all_inner_texts() == [
        "zurich", "Over rounds: M", "Learned most from (mean weight)", "Training samples by class",
    ]  # fmt: skip
    assert drawer.locator("p").first.inner_text() == (
        "Lost 10.0 points with M: 60.0%, against 70.0% alone. With 10 test samples that is about one answer."
    )
    drawer.locator("canvas").nth(2).wait_for()
    opened.tab.keyboard.press("ArrowRight")
    assert opened.tab.locator("#drawer-title").inner_text() == "bern"
    opened.tab.keyboard.press("Escape")
    assert not drawer.is_visible()
    opened.tab.get_by_role("button", name="Open aarau").press("Enter")
    assert opened.tab.locator("#drawer-title").inner_text() == "aarau"


def test_dark_and_light(opened_page: Open, report) -> None:
    """As the system wishes at first; the button changes page and charts."""
    opened = opened_page(report, color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened.tab.evaluate(paper) == "rgb(13, 17, 22)"
    opened.see("accuracy-over-rounds")
    chart = 'document.querySelector("#chart-accuracy-over-rounds").chart'
    assert opened.tab.evaluate(f"{chart}.view.background()") == "#161B21"
    opened.tab.get_by_role("button", name="Light").click()
    assert opened.tab.evaluate(paper) == "rgb(246, 247, 249)"
    opened.tab.wait_for_function(f'{chart}.view.background() === "#FFFFFF"')


def test_files_are_saved(opened_page: Open, report, tmp_path) -> None:
    """The buttons give an SVG and CSVs without a network; a table's figures are plain."""
    opened = opened_page(report)
    opened.see("accuracy-over-rounds")
    curves = opened.tab.locator("#curves")
    for button, name, start in (
        (curves.get_by_role("button", name="SVG"), "accuracy-over-rounds.svg", "<svg"),
        (curves.get_by_role("button", name="CSV"), "accuracy-over-rounds.csv", "round,series,value"),
        (opened.tab.locator("#people-csv"), "clients-M.csv", "name,client,group"),
        (opened.tab.locator("button[data-csv=methods-0]"), "methods-0.csv",
         "Method,Verdict,\"Mean gain, 95% interval\",Accuracy %,Worst %,Harmed,MB\r\nM,too few,+7.5,,77.5,60.0,–,9"),
    ):  # fmt: skip
        with opened.tab.expect_download() as download:
            button.click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().decode().startswith(start)


def test_a_phone_scrolls_in_one_direction_only(opened_page: Open, report) -> None:
    """390 pixels wide, every chart drawn, a client open: the page is no wider than the screen."""
    opened = opened_page(report, width=390)
    for chart in opened.tab.locator(".chart:visible").all():
        chart.scroll_into_view_if_needed()
        chart.locator("canvas").wait_for()
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390
    opened.tab.locator("tr.client button").first.click()
    opened.tab.locator("#drawer canvas").first.wait_for()
    assert opened.tab.evaluate("document.querySelector('#drawer').scrollWidth") <= 390


def test_a_comparison_changes_its_method(opened_page: Open, made, tmp_path) -> None:
    """One list for the whole page: headline, board, groups, clients, settings; every chart is drawn without a fault."""
    runs = [made("Local", s, top=0.7) for s in (0, 1)] + [made("FedAvg", s, top=0.75) for s in (0, 1)]
    runs += [made("M", s, top=0.8, relations="clusters") for s in (0, 1)]
    opened = opened_page(write_page(tmp_path, content_of(runs)))
    shown = opened.tab.locator("h1:visible")
    assert shown.inner_text().startswith("M: better than training alone by 10 points")
    assert opened.tab.locator("#chart-circle").count() == 1
    opened.pick("FedAvg")
    assert shown.inner_text().startswith("FedAvg: better than training alone by 5 points")
    assert opened.tab.locator("tr.on:visible").get_attribute("data-method") == "FedAvg"
    assert opened.tab.locator("#learned-fact").inner_text() == "With FedAvg, every client learns from all others"
    assert opened.tab.locator("#chart-circle").count() == 0
    assert opened.tab.locator("#clients-fact").inner_text() == "No clients measured lower with FedAvg than alone"
    assert "Clients have no names: client 3 of one seed" in opened.tab.locator("#count").inner_text()
    opened.see("gains")
    signal = 'document.querySelector("#chart-gains").chart.view.signal("method")'
    assert opened.tab.evaluate(signal) == "FedAvg"
    opened.tab.locator("#methods-0").get_by_role("button", name="M", exact=True).click()
    assert shown.inner_text().startswith("M: better than training alone")
    opened.tab.get_by_role("button", name="vs FedAvg").click()
    assert opened.tab.locator("#methods-1").is_visible()
    assert opened.tab.locator(".board h2").inner_text() == "And against plain FedAvg?"
    assert not opened.tab.locator("#methods-0").is_visible()
    for chart in opened.tab.locator(".chart:visible").all():
        chart.scroll_into_view_if_needed()
        chart.locator("canvas").wait_for()


def test_two_methods_are_compared_client_by_client(opened_page: Open, made, tmp_path) -> None:
    """M against FedAvg, which it was chosen for: client 0 loses 5 points, the heading says so, and a chart shows it."""
    runs = [made("Local", top=0.7), made("FedAvg", top=0.75), made("A", top=0.72), made("M", top=0.8, gains={0: -0.13})]
    opened = opened_page(write_page(tmp_path, content_of(runs)))
    opened.tab.locator("#other").select_option("A")
    assert opened.tab.locator("#clients-fact").inner_text() == "1 client measured lower with M than with A"
    gain = opened.heads().index("Gain, points")
    assert opened.column(gain) == ["−5.0", "+8.0", "+8.0", "+8.0"]
    opened.tab.locator("#pairs summary").click()
    opened.tab.locator("#pairs canvas").wait_for()
    drawn = opened.tab.evaluate(
        "document.querySelector('#pairs .chart').chart.spec.data.values.map(d => [d.over, d.with])"
    )
    assert drawn[0] == [72, 67]


@pytest.mark.thorough
def test_of_many_methods_the_best_are_shown_until_all_are_asked_for(opened_page: Open, made, tmp_path) -> None:
    """Of 15 methods the best eight and the references; one more while it is picked; all on demand, chart and table."""
    runs = [made(f"M{i}", top=0.7 + i / 100) for i in range(13)] + [made("Local", top=0.65), made("FedAvg", top=0.6)]
    opened = opened_page(write_page(tmp_path, content_of(runs)))
    opened.see("gains")
    rows = opened.tab.locator("#methods-0 tbody tr:visible")
    domain = 'document.querySelector("#chart-gains").chart.spec.layer[0].encoding.y.scale.domain'
    assert (rows.count(), len(opened.tab.evaluate(domain))) == (10, 10)
    opened.pick("M0")
    assert (rows.count(), len(opened.tab.evaluate(domain))) == (11, 11)
    opened.tab.get_by_role("button", name="Show all 15").click()
    assert (rows.count(), len(opened.tab.evaluate(domain))) == (15, 15)
    signal = 'document.querySelector("#chart-gains").chart.view.signal("shown").length === 15'
    opened.tab.wait_for_function(signal)


@pytest.fixture
def hospitals(made, tmp_path) -> Path:
    """Three methods, two seeds, the same named clients in both; M moves from seed to seed."""
    runs = [made(title, s, top=top) for title, top in (("Local", 0.7), ("FedAvg", 0.75)) for s in (0, 1)]
    runs += [made("M", s, top=0.8, gains={0: -0.2 * s}, relations="weights") for s in (0, 1)]
    names = ("zurich", "bern", "basel", "aarau")
    for run in runs:
        edit(run, clients=lambda line: {"labels": (3, 4 * line.client)} if line.round == 1 else None,
             names=names, classes=("well", "ill"))  # fmt: skip
    return write_page(tmp_path, content_of(runs))


def test_seeds_are_chosen_with_keys_and_their_mean_is_shown_first(opened_page: Open, hospitals) -> None:
    """The mean of both seeds with the range; a key moves to a seed."""
    opened = opened_page(hospitals)
    assert opened.tab.locator("h1:visible").inner_text().startswith("M: no clear difference from training alone")
    opened.tab.get_by_role("button", name="Open zurich").click()
    facts = opened.tab.locator("#drawer dl").inner_text()
    assert "60.0 to 80.0%" in facts
    opened.tab.keyboard.press("Escape")
    at = opened.heads().index("Local → M".replace("Local", "Alone"))
    assert opened.column(at)[0].split() == ["70.0", "70.0"]
    assert opened.column(at + 2)[0] == "above in 1 of 2"
    seed = opened.tab.locator("#seed")
    seed.focus()
    assert seed.input_value() == "all (mean)"
    seed.press("ArrowUp")
    assert seed.input_value() == "1"
    assert opened.column(at)[0].split() == ["70.0", "60.0"]


def test_names_stand_on_the_axes(opened_page: Open, hospitals) -> None:
    """Clients and classes by name in the map, the circle, the labels and an opened client."""
    opened = opened_page(hospitals)
    opened.see("weights")
    cells = opened.tab.evaluate(ROOM)
    assert {cell["from"] for cell in cells} == {"zurich", "bern", "basel", "aarau"}
    opened.see("labels")
    cells = opened.tab.evaluate(ROOM.replace("weights", "labels"))
    assert {(c["client"], c["class"]): c["samples"] for c in cells}[("aarau", "ill")] == 12
    opened.see("circle")
    nodes = opened.tab.evaluate(ROOM.replace("weights", "circle").replace("cells", "nodes"))
    assert {node["label"]: node["samples"] for node in nodes} == {"zurich": 3, "bern": 7, "basel": 11, "aarau": 15}
    opened.settle("tr.client")
    opened.tab.get_by_role("button", name="Open bern").press("Enter")
    partners = opened.tab.locator("#drawer .chart").nth(2)
    partners.locator("canvas").wait_for()
    drawn = partners.evaluate("holder => holder.chart.spec.data.values.map(d => d.client)")
    assert drawn == ["bern", "basel"]


def test_every_chart_and_control_has_a_name_and_shows_its_focus(opened_page: Open, hospitals) -> None:
    """A text for every chart, a name for every control, an outline on each that the Tab key reaches."""
    opened = opened_page(hospitals)
    opened.tab.wait_for_function("[...document.querySelectorAll('.chart')].every(c => !c.clientWidth || c.chart.view)")
    for chart in opened.tab.locator(".chart:visible").all():
        assert chart.get_attribute("role") == "img"
        assert len(chart.get_attribute("aria-label")) > 10
    for role in ("button", "combobox", "searchbox", "slider"):
        for control in opened.tab.get_by_role(role).all():
            named = control.evaluate("c => c.ariaLabel || c.labels?.length || c.textContent.trim()")
            assert named, control.evaluate("c => c.outerHTML")
    opened.tab.evaluate("document.body.focus()")
    for _ in range(25):
        opened.tab.keyboard.press("Tab")
        style = "getComputedStyle(document.activeElement)"
        assert opened.tab.evaluate(f"{style}.outlineStyle") == "solid"
        assert opened.tab.evaluate(f"{style}.outlineWidth") == "2px"


@pytest.mark.thorough
def test_less_motion_is_granted(opened_page: Open, report) -> None:
    """Who asked for less motion gets no step of the map within the first second after the first round."""
    opened = opened_page(report, reduced_motion="reduce")
    opened.see("weights")
    opened.tab.locator("#play").click()
    assert opened.tab.locator("#round-says").inner_text() == "Round 1"
    opened.tab.wait_for_timeout(900)
    assert opened.tab.locator("#round-says").inner_text() == "Round 1"
    opened.tab.wait_for_function('document.querySelector("#round-says").textContent === "Round 2"')


@pytest.mark.thorough
def test_paper_is_light_and_has_every_chart(opened_page: Open, hospitals, tmp_path) -> None:
    """Printed from a dark screen: charts are drawn, on white, none wider than the paper; then it is dark again."""
    opened = opened_page(hospitals, color_scheme="dark")
    opened.tab.emulate_media(media="print", color_scheme="dark")
    opened.tab.evaluate('dispatchEvent(new Event("beforeprint"))')
    opened.tab.wait_for_function(
        "[...document.querySelectorAll('.chart')].every(c => !c.clientWidth || c.querySelector('canvas'))"
    )
    colours = "[...document.querySelectorAll('.chart')].filter(c => c.clientWidth).map(c => c.chart.view.background())"
    opened.tab.wait_for_function(f"{colours}.every(c => c === '#FFFFFF')")
    assert opened.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.tab.set_viewport_size({"width": 700, "height": 900})
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 700
    opened.tab.emulate_media(media="screen", color_scheme="dark")
    opened.tab.evaluate('dispatchEvent(new Event("afterprint"))')
    assert opened.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 22)"
