"""Charts are drawn without a browser and without a network."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fedkin.report import charts

SPEC: charts.Spec = {
    "data": {"values": [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}]},
    "mark": "line",
    "encoding": {
        "x": {"field": "round", "type": "quantitative"},
        "y": {"field": "accuracy", "type": "quantitative"},
    },
}


def test_a_chart_is_a_whole_svg_in_the_colours_of_all_charts() -> None:
    """Light and dark differ in ink and paper; the first colour of the palette is that of the line."""
    light, dark = charts.svg(SPEC), charts.svg(SPEC, dark=True)
    for text, paper in ((light, "#ffffff"), (dark, "#17181a")):
        assert ET.fromstring(text).tag.endswith("svg")
        assert paper in text
        assert "accuracy" in text


def test_a_png_has_so_many_pixels() -> None:
    sizes = [int.from_bytes(charts.png(SPEC, scale=s)[16:20], "big") for s in (1.0, 2.0)]
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=2)


def test_nothing_is_loaded_from_an_address() -> None:
    with pytest.raises(ValueError, match="External data url not allowed"):
        charts.svg({**SPEC, "data": {"url": "https://example.org/data.csv"}})


def test_the_script_is_put_together_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept in the user's cache folder; without one that can be written it is made anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    charts.script.cache_clear()
    made = charts.script()
    (kept,) = (tmp_path / "fedkin").iterdir()
    assert all(f"window.{name}" in made for name in ("vegaEmbed", "vega", "vegaLite"))
    kept.write_text("kept")
    charts.script.cache_clear()
    assert charts.script() == "kept"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    charts.script.cache_clear()
    assert charts.script() == made
    charts.script.cache_clear()


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.1: (L1 + 0.05) / (L2 + 0.05), L the relative luminance of an sRGB colour."""

    def luminance(colour: str) -> float:
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read(theme: str) -> None:
    """4.5 : 1 for every text on what it stands on, page and charts; black on white is 21."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    ink = charts.INK[theme]
    pairs = [(text, paper) for text in ("ink", "soft", "link") for paper in ("paper", "shade")]
    pairs += [("warn", "warn-paper"), ("ink", "warn-paper")]
    for text, paper in pairs:
        assert contrast(ink[text], ink[paper]) >= 4.5, (text, paper)
    drawn = charts.config(dark=theme == "dark")
    for part, key in (("title", "color"), ("axis", "labelColor"), ("axis", "titleColor"), ("legend", "labelColor")):
        assert contrast(drawn[part][key], drawn["background"]) >= 4.5, (part, key)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_map_grows_away_from_the_paper(theme: str) -> None:
    """Every step of the map's colours stands out more than the one before; the least is not the paper."""
    paper = charts.INK[theme]["paper"]
    steps = [contrast(colour, paper) for colour in charts.MAP[theme]]
    assert steps == sorted(steps)
    assert steps[0] > 1.1
    assert steps[-1] > 12
