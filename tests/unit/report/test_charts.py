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
