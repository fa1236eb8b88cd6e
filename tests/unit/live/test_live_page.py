"""The live page in a real browser, with real clicks, while runs grow: headless Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedkin.report.palette import TOKENS
from fedkin.storage.lock import writing
from liveruns import play


@pytest.fixture
def visit(browser: Any, page: str) -> Iterator[Callable[..., Any]]:
    """Opens the live page; in the end nothing was asked of anybody else, and nothing went wrong."""
    requests, faults, contexts = list[str](), list[str](), list[Any]()

    def go(width: int = 1100, **how: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **how))
        tab = contexts[-1].new_page()
        tab.on("request", lambda r: requests.append(r.url))
        tab.on("pageerror", lambda e: faults.append(str(e)))
        tab.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        tab.goto(page)
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield go
    for context in contexts:
        context.close()
    assert [url for url in requests if not url.startswith((page, "data:"))] == []
    assert faults == []


@pytest.fixture
def four(begun) -> None:
    """FedAvg and DA-PFL with two seeds each and two evaluated rounds, three clients."""
    for name, method, seed, top in (("a0", "fedavg", 0, 0.5), ("a1", "fedavg", 1, 0.7), ("d0", "da-pfl", 0, 0.8),
                                    ("d1", "da-pfl", 1, 0.9)):  # fmt: skip
        place = begun(f"several/{name}", method, seed, lr=0.1 if seed else 0.5)
        for number in (1, 2):
            play(place, number, [top, top - 0.1 * number, top - 0.4])


def now(tab: Any) -> None:
    """Let the page ask at once, as it does when it comes into view, instead of after two seconds."""
    tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def shown(tab: Any) -> list[str]:
    """The runs in the table."""
    return tab.locator("#runs .open").all_inner_texts()


def names(tab: Any) -> list[str]:
    """The names at the ends of the curves."""
    return tab.locator("#curves text.name").all_text_contents()


def test_curves_and_clients_grow(visit, begun) -> None:
    """Lines that are appended move curve, counter and dots, without a reload; a new run comes in."""
    place = begun("a")
    with writing(place):
        tab = visit()
        assert tab.locator("#round").inner_text() == "Round 0 of 4"
        assert tab.locator("#curves .line").count() == 0
        play(place, 1, [0.2, 0.4])
        play(place, 2, [0.5, 0.3])
        now(tab)
        tab.locator("#round", has_text="Round 2 of 4").wait_for()
        tab.locator("#facts", has_text="about 4 s left").wait_for()
        assert tab.locator("#curves .line").get_attribute("d").count("L") == 1
        tab.locator("circle.dot").nth(1).wait_for()
        left = tab.locator("circle.dot").first.bounding_box()["x"]
        tab.evaluate("document.querySelector('circle.dot').marked = true")
        play(place, 3, [0.5, 0.9], refused={"0": "not finite"})
        begun("b", "da-pfl")
        now(tab)
        tab.locator("#round", has_text="Round 3 of 4").wait_for()
        tab.locator("#trouble", has_text="Round 3: 1 refused (client 0: not finite).").wait_for()
        assert tab.locator("#curves .line").get_attribute("d").count("L") == 2
        assert tab.locator("circle.dot").count() == 2
        assert tab.evaluate("document.querySelector('circle.dot').marked")  # the same dot
        assert tab.locator("circle.dot").first.bounding_box()["x"] > left + 100  # from the best to the worst
        assert "best client 1, 90.0%" in tab.locator("#clients").get_attribute("aria-label")
        assert shown(tab) == ["a", "b"]


def test_the_filter_and_the_checkboxes(visit, four) -> None:
    """Table and curves show the runs that match; a checkbox hides a curve; both survive a reload."""
    tab = visit()
    assert shown(tab) == ["several/a0", "several/a1", "several/d0", "several/d1"]
    tab.locator("#filter").fill("da-pfl lr=0.5")
    assert (shown(tab), names(tab)) == (["several/d0"], ["DA-PFL"])
    assert tab.locator("#count").inner_text() == "1 of 4 runs"
    tab.locator("#filter").fill("several")
    assert names(tab) == ["DA-PFL", "FedAvg"]
    tab.get_by_label("Show the curves of DA-PFL").uncheck()
    assert names(tab) == ["FedAvg"]
    tab.get_by_label("Show the curve of several/d1").check()
    assert names(tab) == ["DA-PFL", "FedAvg"]
    assert tab.get_by_label("Show the curves of DA-PFL").evaluate("box => box.indeterminate")
    tab.reload()
    tab.wait_for_selector("html[data-ready]")
    assert not tab.get_by_label("Show the curve of several/d0").is_checked()
    assert tab.locator("#filter").input_value() == "several"
    tab.get_by_role("button", name="Hide all").click()
    assert names(tab) == []
    tab.get_by_role("button", name="Show all").click()
    assert names(tab) == ["DA-PFL", "FedAvg"]


def test_methods_have_no_mean_over_other_data(visit, begun) -> None:
    """FedAvg on two data sets: two groups, of one colour."""
    for name, data, top in (("a", "digits", 0.5), ("b", "synthetic", 0.9)):
        place = begun(f"several/{name}", "fedavg", 0, data=data)
        for number in (1, 2):
            play(place, number, [top, top])
    tab = visit()
    assert sorted(names(tab)) == ["FedAvg, digits", "FedAvg, synthetic"]
    assert tab.locator("#curves .line").count() == 2


def test_groups_and_their_means(visit, four) -> None:
    """By method: a thick mean over thin seeds, or all runs; by a setting that differs: its values."""
    tab = visit()
    assert (tab.locator(".line.mean").count(), tab.locator(".line.thin").count()) == (2, 4)
    assert tab.locator("tr.group").all_inner_texts()[0].strip() == "FedAvg: 2 runs, mean 40.0%"
    tab.locator("#lines").select_option("all")
    assert (tab.locator(".line.mean").count(), tab.locator("#curves .line").count()) == (0, 4)
    tab.locator("#group").select_option(label="training.lr")
    assert sorted(names(tab)) == ["training.lr 0.1", "training.lr 0.5"]
    tab.locator("#group").select_option("none")
    assert len(names(tab)) == 4
    tab.locator("#curves").focus()
    tab.locator("#curves").press("ArrowRight")
    assert "Round 2: several/d1 70.0%, several/d0 60.0%" in tab.locator("#curves-say").inner_text()


def test_a_run_is_selected_and_kept(visit, four, begun) -> None:
    """Its clients replace the others; the page no longer follows the running run, until it is asked to."""
    tab = visit()
    tab.get_by_role("button", name="several/d1").click()
    tab.locator("#h-clients", has_text="3 clients in round 2").wait_for()
    assert tab.locator("#h-run").inner_text() == "DA-PFL, several/d1"
    running = begun("z")
    with writing(running):
        now(tab)
        tab.locator("#runs .open", has_text="z").wait_for()
        assert tab.locator("#h-run").inner_text() == "DA-PFL, several/d1"
        tab.locator("#follow").check()
        assert tab.locator("#h-run").inner_text() == "FedAvg, z"


def test_a_client_by_pointer_and_by_key(visit, four) -> None:
    """Named under the pointer; kept by a click; arrow keys walk from the best to the worst, and draw its curve."""
    tab = visit()
    dots = tab.locator("circle.dot")
    dots.nth(2).wait_for()
    tab.locator("#clients").hover(position={"x": 60, "y": 60})
    assert tab.locator("#tip").inner_text() == "client 0: 50.0% of 10 samples, 1 of 3"
    tab.locator("#clients").click(position={"x": 60, "y": 60})
    tab.mouse.move(5, 5)
    assert tab.locator("#tip").is_hidden()
    assert tab.locator("#clients-say").inner_text().startswith("client 0: ")
    tab.locator("#clients").press("ArrowRight")
    assert tab.locator("#clients-say").inner_text() == "client 1: 30.0% of 10 samples, 2 of 3"
    tab.locator("#client .line").wait_for()
    assert tab.locator("circle.dot.picked").count() == 1


@pytest.mark.thorough
def test_dark_and_light(visit, four) -> None:
    """As the system wishes at first; the button changes it, also for the next visit."""
    tab = visit(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = {theme: tuple(int(TOKENS[theme]["page"][i : i + 2], 16) for i in (1, 3, 5)) for theme in TOKENS}
    assert tab.evaluate(paper) == f"rgb{colours['dark']}"
    tab.locator("#theme").click()
    assert tab.evaluate(paper) == f"rgb{colours['light']}"
    tab.reload()
    assert tab.evaluate(paper) == f"rgb{colours['light']}"


@pytest.mark.thorough
def test_a_phone(visit, four) -> None:
    """Nothing is wider than the screen, and what is pressed is at least 40 pixels high."""
    tab = visit(width=360, is_mobile=True)
    tab.locator("circle.dot").nth(2).wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    pressed = ".btn, select, input[type=search], td label, .open"
    assert min(box["height"] for one in tab.locator(pressed).all() if (box := one.bounding_box())) >= 40


@pytest.mark.thorough
def test_names_are_text(visit, begun) -> None:
    """A folder's name that looks like markup is shown as it is."""
    play(begun("<b onclick=x>&"), 1, [0.5])
    tab = visit()
    assert shown(tab) == ["<b onclick=x>&"]
    assert tab.locator("#runs b").count() == 0
