"""Writes what clients and server exchange, by runs of each method: the page, the list and a picture of each family."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from fedkin.capabilities import Uploads, has
from fedkin.capabilities.sums import sums_suffice
from fedkin.core.method import FAMILIES, Method
from fedkin.testing.payloads import CLIENTS, ROUNDS, Payloads, Way

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
_HEADS = ("stays at the client", "leaves the client", "comes from the server")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.h{fill:#57606a}.c{fill:#fff;stroke:#d0d7de}.l{stroke:#d8dee4}"
    ".b{fill:#2a9d8f}.k{fill:#e9a03b}.o{fill:#eaeef2;stroke:#afb8c1}.s{font-size:10px}.d{opacity:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.h{fill:#9da7b3}.c{fill:#161b22;stroke:#3d444d}"
    ".l{stroke:#30363d}.o{fill:#2d333b;stroke:#656c76}}"
)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a message: its name, its shape, and whether only some messages contain it."""

    name: str
    shape: str
    sometimes: bool


def tensors(found: Payloads, *ways: Way) -> list[Tensor]:
    """Return the tensors of some ways, each once, in some messages only if it is so in every way.

    Numbered models (``model0``, ``model1``) become one stack.
    """
    joined: dict[tuple[str, str], bool] = {}
    for way in ways:
        for name, shape in found.seen.get(way, {}).items():
            if name[:-1] == "model" and name[-1].isdigit():
                name, shape, sometimes = "models", "[several, P]", True
            else:
                sometimes = found.times[way, name] < found.messages[way]
            joined[name, shape] = sometimes and joined.get((name, shape), True)
    return [Tensor(name, shape, sometimes) for (name, shape), sometimes in joined.items()]


def columns_of(found: Payloads) -> tuple[list[Tensor], ...]:
    """Return what stays at a client, leaves it and comes from the server."""
    return (
        tensors(found, "keeps"),
        tensors(found, "says", "answers", "sends"),
        tensors(found, "sent", "asked", "shown"),
    )


def picture(family: str, methods: Iterable[Method], rows: Mapping[str, Payloads]) -> str:
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
        for column, shown in enumerate(columns_of(rows[title])):
            parts += _chips(shown, _NAME + column * _COLUMN, y + 9)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts, x = list[str](), 14
    for words, kind, wide, round_ in (
        ("body", "b", 46, ""),
        ("head (classifier)", "k", 14, ""),
        ("other values", "o", 30, ' rx="7"'),
        ("pale: in some rounds only", "b d", 24, ""),
    ):
        mark = f'<rect class="{kind}" x="{x}" y="11" width="{wide}" height="14"{round_}/>'
        parts += [mark, f'<text class="h" x="{x + wide + 6}" y="22">{words}</text>']
        x += wide + 30 + 6 * len(words)
    return parts


def _chips(found: Iterable[Tensor], x: int, y: int) -> list[str]:
    """Return the tensors of one cell side by side; a dash for none."""
    parts = []
    for t in found:
        sides = t.shape.partition("]")[0].strip("[").split(", ")
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


def pictures(methods: Mapping[str, Method], payloads_of: Mapping[str, Payloads]) -> dict[str, str]:
    """Return the pictures by the names of their files."""
    rows = {methods[name].title: found for name, found in payloads_of.items()}
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
        lines += ["| method | idea |", "| --- | --- |"]
        for name, m in methods.items():
            if m.family == family:
                lines.append(f"| [`{name}`](methods/{name}.md) | {m.summary} |")
        lines.append("")
    return "\n".join(lines)


def leaves(methods: Mapping[str, Method], payloads_of: Mapping[str, Payloads]) -> str:
    """Return the page ``what-leaves-a-client.md``: methods with equal rows share one."""
    rows: dict[str, list[str]] = {}
    for name, m in methods.items():
        found, shown = payloads_of[name], has(m, Uploads)
        sends = [found.cell(way) for way in ("says", "answers", "sends")]
        more = [f"{found.models('sends'):.2f}", shown.reveals if shown else "", "yes" if sums_suffice(m) else "no"]
        rows.setdefault(" | ".join([*sends, *more]), []).append(m.title)
    return _INTRODUCTION + _table(_SENT, rows)


def _table(heads: tuple[str, ...], rows: Mapping[str, list[str]]) -> str:
    """Return a table of methods: its heads, and for each row of cells the methods that have it."""
    lines = [" | ".join(("method", *heads)), " | ".join("---" for _ in range(1 + len(heads)))]
    lines += [f"{', '.join(titles)} | {cells}" for cells, titles in rows.items()]
    return "".join(f"| {line} |\n" for line in lines)


def cells_of(page: str) -> dict[str, list[str]]:
    """Return the row of each method on the page ``what-leaves-a-client.md``: title -> cells."""
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| ")
    return {title: cells for titles, *cells in rows for title in titles.split(", ")}


_SENT = (
    "sends at joining",
    "sends in surveys",
    "sends after training",
    "size in models",
    "the server learns",
    "sums suffice",
)
_INTRODUCTION = f"""# What leaves a client

This page is made from runs of every method of the catalogue on a small federation ({CLIENTS} clients, three quarters of
them in each of {ROUNDS} rounds), which a test repeats. An empty cell means nothing. [Methods by family](methods.md) has
pictures of what a client receives and keeps as well.

Symbols: P is the number of parameters of the model, H of its head (the last linear layer), B of its body, C the number
of classes, d of features before the head, K of clients, n of training samples of a client; other words are settings of
the method. Tensors in brackets are not in every message. Every client also sends its number of training samples once.

*Size in models* is the average number of values that a participant sends back, as a multiple of one model, without rows
of zeros. *Sums suffice* means that the server needs only one weighted mean of the uploads, or one for each of fixed
groups, so that [secure aggregation](robust-and-private.md#secure-aggregation) can hide single uploads from it.

In evaluated rounds a client also sends, of its validation and of its test part, the numbers of samples, predictions and
correct predictions of each class [3, C], and its class counts [C], its choice of a cluster, and the numbers that the
method notes on each client. In the last round it sends one bit for each test sample (correct or not), a digest of 16
bytes of the test part, and one of 8 bytes of its logits. In runs with
[privacy options](robust-and-private.md#privacy), and where the owner of a host limits reports of counts, neither these
bits and digests nor exact class counts are sent.

"""
