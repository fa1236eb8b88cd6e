"""Colours and shapes: tokens of the page for light and dark, a slot for each method, an order for groups of clients.

A chart names a token as a page does, ``var(--gain)``; `resolved` replaces it by the colour of a theme.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

FONT = (
    '-apple-system, BlinkMacSystemFont, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", "Liberation Sans", '
    "Arial, sans-serif"
)
"""Not ``system-ui``: on many Linux systems that is DejaVu Sans, which is 15 % wider."""
_LIGHT = ("#0E7BBD", "#CF7B06", "#5B0F5B", "#307A4F", "#9162F5", "#574E00",
          "#2E37DA", "#843869", "#023D27", "#A88B7F", "#6F93CD", "#E1064C")  # fmt: skip
_DARK = ("#35A6F5", "#E87F07", "#CC75BA", "#92F052", "#7F62B0", "#D7BC66",
         "#2F66EC", "#B3456A", "#42D9B9", "#9F8774", "#D2D3FF", "#EA2413")  # fmt: skip
_GROUPS = {"light": (4, 2, 5, 1, 6, 12, 3, 10, 11, 9, 8, 7), "dark": (9, 2, 5, 1, 6, 12, 3, 10, 11, 4, 8, 7)}
SLOTS = len(_LIGHT)
"""Number of colours that can be told apart, also by colour-blind readers."""
_BASE = {
    "light": {
        "page": "#F6F7F9", "surface": "#FFFFFF", "sunken": "#F1F3F6", "ink": "#14181D", "ink-2": "#454E59",
        "ink-3": "#5C6671", "line": "#E1E5EA", "line-2": "#C3CAD2", "grid": "#EBEEF2", "gain": "#0A5AA8",
        "gain-soft": "#CBE0F5", "loss": "#B53D07", "loss-soft": "#FADCCB", "same": "#66717C", "same-soft": "#E4E8EC",
        "note": "#FFF8E5", "note-line": "#E6CE8B", "note-ink": "#5B4300", "focus": "#0A5AA8",
    },
    "dark": {
        "page": "#0D1116", "surface": "#161B21", "sunken": "#1D232A", "ink": "#E9EDF1", "ink-2": "#B6BFC9",
        "ink-3": "#939DA8", "line": "#29303A", "line-2": "#46505C", "grid": "#222932", "gain": "#6FB4F6",
        "gain-soft": "#1C4066", "loss": "#FF9B67", "loss-soft": "#5A2E17", "same": "#97A1AC", "same-soft": "#313943",
        "note": "#262113", "note-line": "#5A4B1E", "note-ink": "#F0DDA3", "focus": "#8FC5FA",
    },
}  # fmt: skip
TOKENS = {
    theme: {
        **_BASE[theme],
        **{f"m{slot}": colour for slot, colour in enumerate(colours, 1)},
        **{f"g{place}": colours[slot - 1] for place, slot in enumerate(_GROUPS[theme], 1)},
    }
    for theme, colours in (("light", _LIGHT), ("dark", _DARK))
}
"""Colour of every token by theme: ``m1`` to ``m12`` are methods, ``g1`` to ``g12`` groups of clients."""
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
"""Shapes of the slots, a second channel next to the colour: filled in slots 1 to 6, hollow in 7 to 12."""


def slots(roles: Mapping[str, str]) -> dict[str, int]:
    """Return the slot of each method, 1 to 12: its own, which follows from its title, where it is free, else the next
    that is.

    Args:
        roles: title -> role; the average has the first slot, training alone has none.
    """
    free = list(range(1, SLOTS + 1))
    result: dict[str, int] = {}
    for title in sorted(roles, key=lambda t: (roles[t] != "average", t)):
        if not roles[title].startswith("alone"):
            digest = zlib.crc32(title.encode(errors="backslashreplace"))
            own = 1 if roles[title] == "average" else 2 + digest % (SLOTS - 1)
            free = free or list(range(1, SLOTS + 1))
            result[title] = min(free, key=lambda slot: (slot - own) % SLOTS)
            free.remove(result[title])
    return result


def css() -> str:
    """Return the tokens as custom properties, as the system prefers or the reader chose."""
    light, dark = ("".join(f"--{n}:{c};" for n, c in TOKENS[theme].items()) for theme in ("light", "dark"))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f'@media (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{color-scheme:dark;{dark}}}}}\n'
        f':root[data-theme="dark"]{{color-scheme:dark;{dark}}}\n'
    )


def resolved(spec: Any, theme: str = "light") -> Any:
    """Return a specification with the colours of a theme in place of its tokens."""
    if isinstance(spec, dict):
        return {key: resolved(value, theme) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [resolved(value, theme) for value in spec]
    if isinstance(spec, str) and "var(--" in spec:
        return re.sub(r"var\(--([\w-]+)\)", lambda m: TOKENS[theme].get(m[1], m[0]), spec)
    return spec
