"""The rooms of the code and who imports whom, as a picture: `rooms.svg`.

Rooms are the parts of `src/fedkin`, one row for each layer of pyproject.toml. An arrow is drawn where a room imports
another one and reaches it through no third: what follows from other arrows is left out.
"""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "fedkin"
WIDTH, HEIGHT, GAP, STEP = 118, 40, 26, 84  # of a room, between rooms, from row to row

Arrows = dict[str, set[str]]


def layers() -> list[list[str]]:
    """Return the rooms, a list for each layer, from the command line down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    first = next(c for c in contracts["contracts"] if c.get("containers") == ["fedkin"])
    rows = [[name.strip() for name in row.split("|")] for row in first["layers"]]
    return [rooms for row in rows if (rooms := [name for name in row if (SRC / name).is_dir()])]


def imports() -> Arrows:
    """Return each room with the rooms that its files import, inside functions as well."""
    arrows: Arrows = {path.name: set() for path in sorted(SRC.iterdir()) if (path / "__init__.py").is_file()}
    for room, others in arrows.items():
        for path in sorted((SRC / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                others |= {n.split(".")[1] for n in names if n.startswith("fedkin.")} & arrows.keys() - {room}
    return arrows


def drawn(arrows: Arrows) -> Arrows:
    """Return the arrows from which all others follow.

    Raises:
        ValueError: rooms import each other in a circle.
    """
    below: Arrows = {}

    def reached(room: str, path: tuple[str, ...] = ()) -> set[str]:
        if room in path:
            raise ValueError(f"rooms import each other in a circle: {' -> '.join((*path, room))}")
        if room not in below:
            below[room] = set().union(*({n} | reached(n, (*path, room)) for n in arrows[room]))
        return below[room]

    for room in arrows:
        reached(room)
    return {room: {n for n in to if not any(n in below[m] for m in to)} for room, to in arrows.items()}


def back(arrows: Arrows, rows: list[list[str]]) -> list[tuple[str, str]]:
    """Return the imports that do not lead to a lower layer."""
    depth = {room: i for i, row in enumerate(rows) for room in row}
    return [(room, other) for room, to in arrows.items() for other in sorted(to) if depth[other] <= depth[room]]


def picture() -> str:
    """Return the picture as SVG."""
    rows, arrows = layers(), drawn(imports())
    width = max(len(row) for row in rows) * (WIDTH + GAP) + GAP
    at = {
        room: (round((width - len(row) * (WIDTH + GAP) + GAP) / 2 + j * (WIDTH + GAP)), 14 + i * STEP)
        for i, row in enumerate(rows)
        for j, room in enumerate(row)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {14 + len(rows) * STEP - STEP + HEIGHT + 14}" '
        'font-family="system-ui, sans-serif" text-anchor="middle">',
        "<title>Rooms of the code: an arrow points to what is imported</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#8a94a6"/></marker></defs>',
    ]
    for room, to in arrows.items():
        for i, other in enumerate(sorted(to, key=lambda n: at[n])):
            (x, y), (u, v) = at[room], at[other]
            start, end = x + WIDTH * (i + 1) / (len(to) + 1), u + WIDTH / 2 + (x - u) * 0.12
            bend = (v - y - HEIGHT) / 2
            parts.append(
                f'<path d="M{start:.0f} {y + HEIGHT}C{start:.0f} {y + HEIGHT + bend:.0f} {end:.0f} {v - bend:.0f} '
                f'{end:.0f} {v}" fill="none" stroke="#8a94a6" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in at.items():
        parts.append(
            f'<g><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#eef3fb" stroke="#3b6fb6"/>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 25}" font-size="13" fill="#1c2b41">{room}</text></g>'
        )
    return "\n".join([*parts, "</svg>", ""])
