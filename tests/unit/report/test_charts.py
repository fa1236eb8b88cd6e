"""Charts are drawn without a browser and without a network."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from fedkin.core import EngineError
from fedkin.report import charts, palette

SPEC: charts.Spec = {
    "data": {"values": [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}]},
    "mark": "line",
    "encoding": {"x": {"field": "round", "type": "quantitative"}, "y": {"field": "accuracy", "type": "quantitative"}},
}


def test_a_chart_is_a_whole_svg_in_the_colours_of_all_charts() -> None:
    """Light and dark differ in ink and paper; the first colour of the palette is that of the line."""
    light, dark = charts.svg(SPEC), charts.svg(SPEC, dark=True)
    for text, paper in ((light, "#FFFFFF"), (dark, "#161B21")):
        assert ET.fromstring(text).tag.endswith("svg")
        assert paper in text
        assert "accuracy" in text


def test_nothing_is_loaded_from_an_address() -> None:
    with pytest.raises(EngineError):
        charts.svg({**SPEC, "data": {"url": "https://example.org/data.csv"}})


def test_the_script_is_put_together_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept in the user's cache folder; without one that can be written it is made anew."""
    made = iter((b"first", b"second"))
    monkeypatch.setattr(charts, "drawn", lambda *given, **more: next(made))
    (tmp_path / "file").touch()
    for folder, wanted in ((tmp_path, "first"), (tmp_path, "first"), (tmp_path / "file", "second")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        charts.script.cache_clear()
        assert charts.script() == wanted
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
    ink = palette.TOKENS[theme]
    pairs = [(text, paper) for text in ("ink", "ink-2", "ink-3") for paper in ("page", "surface", "sunken")]
    pairs += [(text, paper) for text in ("gain", "loss") for paper in ("surface", "sunken")]
    pairs += [("note-ink", "note"), ("surface", "ink")]
    for text, paper in pairs:
        assert contrast(ink[text], ink[paper]) >= 4.5, (text, paper)
    drawn = charts.config(dark=theme == "dark")
    for part, key in (("title", "color"), ("axis", "labelColor"), ("axis", "titleColor"), ("legend", "labelColor")):
        assert contrast(drawn[part][key], drawn["background"]) >= 4.5, (part, key)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_of_methods_stand_out(theme: str) -> None:
    """Twelve colours, all different, with at least 3 : 1 on the panel; groups use the same ones in another order."""
    tokens = palette.TOKENS[theme]
    methods, groups = ([tokens[f"{kind}{n}"] for n in range(1, 13)] for kind in "mg")
    assert min(contrast(colour, tokens["surface"]) for colour in methods) >= 3.0
    assert len(set(methods)) == 12
    assert sorted(groups) == sorted(methods)


def oklab(colour: str, see: list[list[float]] | None = None) -> list[float]:
    """OKLab coordinates (Ottosson, 2020) of an sRGB colour, after a change of linear RGB by a matrix."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rgb = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares])
    rgb = rgb if see is None else np.clip(np.array(see) @ rgb, 0, 1)
    to_lms = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
              [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    to_lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
              [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    return list(np.array(to_lab) @ np.cbrt(np.array(to_lms) @ rgb))


DEUTAN = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
"""Machado, Oliveira and Fernandes, 2009: deuteranopia."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("see", "least"), [(None, 0.10), (DEUTAN, 0.06)])
def test_colours_of_methods_can_be_told_apart(theme: str, see: list[list[float]] | None, least: float) -> None:
    """No two of the twelve are closer in OKLab than 0.10, nor than 0.06 as seen without green cones."""
    seen = [np.array(oklab(palette.TOKENS[theme][f"m{n}"], see)) for n in range(1, 13)]
    assert min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]) >= least


def test_a_method_keeps_its_slot() -> None:
    """It follows from the title, whatever the order; a clash takes the next free slot; training alone has none."""
    assert palette.slots({"A": "", "X": "", "Local": "alone", "FedAvg": "average"}) == palette.slots(
        {"FedAvg": "average", "X": "", "A": ""}
    )
    assert palette.slots({"X": ""})["X"] == palette.slots({"FedAvg": "average", "X": "", "A": ""})["X"]
    assert palette.slots({"FedAvg": "average"}) == {"FedAvg": 1}
    assert sorted(palette.slots({f"M{i}": "" for i in range(12)}).values()) == list(range(1, 13))


def test_tokens_become_the_colours_of_a_theme() -> None:
    """At any depth, in the middle of a text; what is no token stays."""
    spec = {"a": ["var(--gain)", 3], "b": {"c": "1px var(--ink)"}, "d": "var(--nothing)"}
    assert palette.resolved(spec, "dark") == {"a": ["#6FB4F6", 3], "b": {"c": "1px #E9EDF1"}, "d": "var(--nothing)"}
