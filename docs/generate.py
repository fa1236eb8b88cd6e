"""Generates what is read off the code or off measurements.

A page names the program and the function that make a table, `<!-- table: bench/robust.py table -->`, and ends it with
`<!-- end of table -->`. Files that are made whole: `what-leaves-a-client.md`, the page of flags
`reference/flags.md`, the pictures of families, `choose.svg` and `rooms.svg`.
"""

import dataclasses
import re
import runpy
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedkin.capabilities.presets import presets_of
from fedkin.capabilities.uploads import also_sent
from fedkin.core import MethodError, Net, Training
from fedkin.core.method import FAMILIES, Method
from fedkin.data import ClassesPerClient, Dirichlet, federate, load
from fedkin.experiment.execute import one_thread
from fedkin.methods import METHODS
from fedkin.models.start import factory
from fedkin.privacy.noise import says
from fedkin.report.charts import Spec, svg
from fedkin.server import needs
from fedkin.testing.payloads import payloads
from fedkin.testing.toys import network

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # for programs of `bench` that import each other
FAMILY_PAGES = runpy.run_path(str(HERE / "families.py"))
MARKED = re.compile(r"(.*table: (\S+\.py) (\w+)(?: ([\w-]+))?(?: -->)?\n)(?:.*\n)*?(.*end of table.*\n)")


@cache
def every() -> Mapping[str, Method]:
    """The methods of the catalogue with default settings."""
    return {name: make() for name, make in METHODS.items()}


def families() -> str:
    """The methods by family."""
    text: str = FAMILY_PAGES["families"](every())
    return text


def navigation() -> str:
    """The pages of methods in the site's navigation, by family."""
    methods = every()
    lines = []
    for family in FAMILIES:
        lines.append(f"      - {family[0].upper()}{family[1:]}:")
        lines += [f"          - {m.title}: methods/{n}.md" for n, m in methods.items() if m.family == family]
    return "".join(line + "\n" for line in lines)


def kept() -> str:
    """The table of what methods keep with many clients of Fed-CAM's LeNet, with default settings; equal ones once."""
    net = Net(factory("cam-lenet", (3, 32, 32), 10), (3, 32, 32), 10)
    rows = ["| method | server, each client | server, each pair | client |", "| --- | --: | --: | --: |"]
    alike: dict[str, list[str]] = {}
    for method in every().values():
        with one_thread():
            found = needs(method, net, Training())
        assert found is not None
        cells = " | ".join(map(_bytes, (found.row, found.pair, found.state)))
        alike.setdefault(cells, []).append(method.title)
    rows += [f"| {', '.join(titles)} | {cells} |" for cells, titles in alike.items()]
    return "\n".join(rows)


def _bytes(n: int) -> str:
    return "" if n == 0 else f"{n / 1000:,.1f} kB" if n >= 1000 else f"{n} bytes"


def private() -> str:
    """The table of the privacy options of each method, with default settings; equal ones once."""
    rows = ["| method | `noise_multiplier` | `metadata_epsilon` |", "| --- | --- | --- |"]
    alike: dict[str, list[str]] = {}
    for method in every().values():
        try:
            reported = says(method, network("mlp"))
            noise = f"yes: its {' and '.join(reported)}" if reported else ""
        except MethodError:
            reported, noise = [], "no: its report does not follow from class counts"
        if also_sent(method):
            training = f"no: it sends {also_sent(method)}"
        else:
            training = "yes, with `metadata_epsilon`" if reported else "yes"
        alike.setdefault(f"{training} | {noise}", []).append(method.title)
    rows += [f"| {', '.join(titles)} | {cells} |" for cells, titles in alike.items()]
    return "\n".join(rows)


def method(name: str) -> str:
    """What leaves a client and the settings of a method, for its page; the site adds the texts of its fields."""
    found, kind = every()[name], type(every()[name])
    page = (HERE / "what-leaves-a-client.md").read_text(encoding="utf-8")
    joining, surveys, training, models, learns, sums = FAMILY_PAGES["cells_of"](page)[found.title]
    parts = {"at joining": joining, "in surveys": surveys, "after training": training}
    said = [f"{when} {what}" for when, what in parts.items() if what]
    sent = training if len(said) == 1 and training else "; ".join(said) or "nothing"
    lines = [
        f"{sent[0].upper()}{sent[1:]}: {models} models a round. The server learns {learns}; sums "
        f"{'suffice' if sums == 'yes' else 'do not'} ([symbols](../what-leaves-a-client.md)).",
        "## Settings",
    ]
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = [f.name for f in fields]
    own = [f"`{f.name}` is `{getattr(found, f.name)!r}`" for f in fields
           if f.name != "inner" and getattr(found, f.name) != f.default]  # fmt: skip
    if own:
        lines.append(f"In `{name}` {', '.join(own)}.")
    if presets := presets_of(found):
        lines.append(f"Presets: {', '.join(f'`{preset}`' for preset in presets)}.")
    if names:
        lines.append(
            f"::: {kind.__module__}.{kind.__qualname__}\n    options:\n      show_root_heading: false\n"
            f"      members: [{', '.join(names)}]"
        )
    else:
        lines.append("None of its own; training settings are the run's.")
    return "\n\n".join(["## What leaves a client", *lines])


def renewed(text: str) -> str:
    """A page with its tables made anew."""
    return MARKED.sub(lambda m: f"{m[1]}{made(m[2], m[3], m[4]).rstrip()}\n{m[5]}", text)


@cache
def made(program: str, function: str, of: str | None) -> str:
    """The table that a function of a program, by its path in the repository, returns."""
    names = globals() if program == "docs/generate.py" else runpy.run_path(str(HERE.parent / program))
    table: str = names[function](*([] if of is None else [of]))
    return table


def marked() -> list[Path]:
    """The files with a table that is made."""
    files = [HERE.parent / "mkdocs.yml", *sorted(HERE.rglob("*.md"))]
    return [path for path in files if MARKED.search(path.read_text(encoding="utf-8"))]


def histograms() -> Spec:
    """Label histograms of ten clients of the digits data under three partitions, as a chart."""
    shown = {
        "alike (Dirichlet 100)": Dirichlet(alpha=100.0),
        "mild skew (Dirichlet 0.5)": Dirichlet(alpha=0.5),
        "two classes per client": ClassesPerClient(classes_per_client=2),
    }
    values = []
    for title, partition in shown.items():
        for i, shard in enumerate(federate(load("digits"), partition, clients=10).clients):
            counts = shard.train.y.bincount(minlength=10)
            values += [
                {"partition": title, "client": i, "class": k, "samples": n} for k, n in enumerate(counts.tolist())
            ]
    return {
        "data": {"values": values},
        "facet": {"column": {"field": "partition", "title": None, "sort": list(shown)}},
        "spec": {
            "width": 190,
            "height": 190,
            "mark": {"type": "rect", "stroke": "#ffffff"},
            "encoding": {
                "x": {"field": "class", "type": "ordinal", "axis": {"labelAngle": 0}},
                "y": {"field": "client", "type": "ordinal"},
                "color": {"field": "samples", "type": "quantitative", "scale": {"scheme": "blues"}},
            },
        },
    }


def pages(methods: Mapping[str, Method]) -> dict[str, str]:
    """Return the files that are made whole, by their paths in this folder; all but `choose.svg` and `rooms.svg`."""
    payloads_of = {name: payloads(method) for name, method in methods.items()}
    pictures = FAMILY_PAGES["pictures"](methods, payloads_of)
    return {
        "what-leaves-a-client.md": FAMILY_PAGES["leaves"](methods, payloads_of),
        "reference/flags.md": runpy.run_path(str(HERE / "flag_pages.py"))["page"](methods),
        **{f"pictures/{name}": text for name, text in pictures.items()},
    }


def main() -> None:
    methods = every()
    (HERE / "pictures").mkdir(exist_ok=True)
    for path, text in pages(methods).items():
        (HERE / path).write_text(text, encoding="utf-8")
    (HERE / "choose.svg").write_text(svg(histograms()), encoding="utf-8")
    (HERE / "rooms.svg").write_text(runpy.run_path(str(HERE / "rooms.py"))["picture"](), encoding="utf-8")
    for page_ in marked():
        page_.write_text(renewed(page_.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
