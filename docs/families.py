"""Writes the list of methods by family, and a picture of each family: what stays at a client, leaves it and comes back.

Pictures are drawn from the tables of `what-leaves-a-client.md`, which record a run of each method.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape

from fedkin.core.method import FAMILIES, Method

ABOUT = {
    "no federation": "Clients train alone. These are the references of every comparison.",
    "one global model": (
        "All clients receive the same model. The methods differ in the clients that are sampled, in the loss that "
        "clients minimise, and in how the server combines their models. FedAvg+ and FedProx+ have several models, "
        "which vote."
    ),
    "personal part": (
        "Clients share a body, the layers that compute features. The head (classifier), or a second head, is personal."
    ),
    "personal model": (
        "Clients train a global model together, and each client also has a model that is adapted to its data."
    ),
    "mixture": "The server mixes a model for every client from the models of clients that appear similar.",
    "clusters": (
        "The server keeps one model per cluster of clients, and finds the clusters during training. Methods with the "
        "suffix CAM add the logits of a cluster model and of a global model."
    ),
    "knowledge": (
        "Clients have models of their own and exchange something smaller, such as the mean features of each class."
    ),
}
"""Family -> what its methods have in common."""

_NAME, _COLUMN, _ROW, _TOP = 186, 216, 32, 56
_STAYS, _LEAVES, _COMES = range(3)
_HEADS = ("stays at the client", "leaves the client", "comes from the server")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.h{fill:#57606a}.c{fill:#fff;stroke:#d0d7de}.l{stroke:#d8dee4}"
    ".b{fill:#2a9d8f}.k{fill:#e9a03b}.o{fill:#eaeef2;stroke:#afb8c1}.s{font-size:10px}.d{opacity:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.h{fill:#9da7b3}.c{fill:#161b22;stroke:#3d444d}"
    ".l{stroke:#30363d}.o{fill:#2d333b;stroke:#656c76}}"
)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a cell: its name, its shape, and whether only some messages contain it."""

    name: str
    shape: str
    sometimes: bool


def tensors(cell: str) -> list[Tensor]:
    """Return the tensors of a cell of the tables; numbered models (``model0``, ``model1``) become one stack."""
    found = re.findall(r"(\()?`([\w.]+)`(?: (\[[^\]]*\]))?", cell)
    listed = [Tensor(name, shape, bool(bracket)) for bracket, name, shape in found]
    numbered = [t for t in listed if re.fullmatch(r"model\d", t.name)]
    return [t for t in listed if t not in numbered] + ([Tensor("models", "[several, P]", True)] if numbered else [])


def rows_of(page: str) -> dict[str, tuple[list[Tensor], ...]]:
    """Return, by title of a method, what stays, leaves and comes, from the text of `what-leaves-a-client.md`."""
    found: dict[str, tuple[list[Tensor], ...]] = {}
    leaving, reaching = page.split("## What a client receives")
    sent = {cells[0]: _joined(cells[1:4]) for cells in _cells(leaving)}
    for title, *received, kept in _cells(reaching):
        found[title] = (tensors(kept), sent[title], _joined(received))
    return found


def _cells(text: str) -> list[list[str]]:
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return rows[2:]


def _joined(cells: Iterable[str]) -> list[Tensor]:
    """Return the tensors of several messages, each once; in some rounds only if it is so in every message."""
    found: dict[tuple[str, str], Tensor] = {}
    for t in (t for cell in cells for t in tensors(cell)):
        earlier = found.get((t.name, t.shape), t)
        found[t.name, t.shape] = replace(t, sometimes=t.sometimes and earlier.sometimes)
    return list(found.values())


def picture(family: str, methods: Iterable[Method], rows: Mapping[str, tuple[list[Tensor], ...]]) -> str:
    """Return the picture of a family as SVG."""
    titles = [m.title for m in methods]
    width, height = _NAME + 3 * _COLUMN + 16, _TOP + _ROW * len(titles) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(family)}: what stays at a client, leaves it and comes back</title><style>{_STYLE}</style>",
        f'<rect class="c" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *_legend(),
    ]
    for column, head in enumerate(_HEADS):
        parts.append(f'<text class="h" x="{_NAME + column * _COLUMN}" y="44">{head}</text>')
    for number, title in enumerate(titles):
        y = _TOP + number * _ROW
        parts.append(f'<line class="l" x1="12" x2="{width - 12}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="14" y="{y + 21}">{escape(title)}</text>')
        for column in (_STAYS, _LEAVES, _COMES):
            parts += _chips(rows[title][column], _NAME + column * _COLUMN, y + 9)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts, x = list[str](), 14
    for words, mark in (
        ("body", '<rect class="b" x="{x}" y="11" width="46" height="14"/>'),
        ("head (classifier)", '<rect class="k" x="{x}" y="11" width="14" height="14"/>'),
        ("other values", '<rect class="o" x="{x}" y="11" width="30" height="14" rx="7"/>'),
        ("pale: in some rounds only", '<rect class="b d" x="{x}" y="11" width="24" height="14"/>'),
    ):
        wide = int(re.findall(r'width="(\d+)"', mark)[0])
        parts += [mark.format(x=x), f'<text class="h" x="{x + wide + 6}" y="22">{words}</text>']
        x += wide + 30 + 6 * len(words)
    return parts


def _chips(found: Iterable[Tensor], x: int, y: int) -> list[str]:
    """Return the tensors of one cell side by side; a dash for none."""
    parts = []
    for t in found:
        sides = t.shape.strip("[]").split(", ")
        blocks = {"P": (("b", 0, 44), ("k", 46, 14)), "B": (("b", 0, 44),), "H": (("k", 0, 14),)}.get(sides[-1])
        pale, word = " d" if t.sometimes else "", t.name.removeprefix("inner.")
        if blocks is None:
            wide = 6 * len(word) + 12
            parts.append(f'<rect class="o{pale}" x="{x}" y="{y}" width="{wide}" height="15" rx="7.5"/>')
            parts.append(f'<text class="s" x="{x + wide / 2:g}" y="{y + 11}" text-anchor="middle">{word}</text>')
        else:
            heights = ((0, 4), (5, 4), (10, 4)) if len(sides) > 1 else ((0, 14),)  # several models: three thin bars
            wide = blocks[-1][1] + blocks[-1][2]
            for top, tall in heights:
                for kind, left, across in blocks:
                    parts.append(
                        f'<rect class="{kind}{pale}" x="{x + left}" y="{y + top}" width="{across}" height="{tall}"/>'
                    )
        x += wide + 6
    return parts or [f'<text class="h" x="{x}" y="{y + 12}">–</text>']


def pictures(methods: Mapping[str, Method], page: str) -> dict[str, str]:
    """Return the pictures by the names of their files."""
    rows = rows_of(page)
    return {
        file_of(family): picture(family, [m for m in methods.values() if m.family == family], rows)
        for family in FAMILIES
    }


def file_of(family: str) -> str:
    """Return the name of the file of a family's picture."""
    return f"{family.replace(' ', '-')}.svg"


def families(methods: Mapping[str, Method]) -> str:
    """Return the sections of `methods.md`: a text, a picture and a table for each family."""
    lines = list[str]()
    for family in FAMILIES:
        title = family[0].upper() + family[1:]
        lines += [f"## {title}", "", ABOUT[family], "", f"![{title}: what is shared](pictures/{file_of(family)})", ""]
        lines += ["| method | name | idea |", "| --- | --- | --- |"]
        for name, m in methods.items():
            if m.family == family:
                lines.append(f"| [{m.title}](methods/{name}.md) | `{name}` | {m.summary} |")
        lines.append("")
    return "\n".join(lines)
