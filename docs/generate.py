"""Generates what is read off the code.

The methods by family in `methods.md` with their pictures, and in the site's navigation; `what-leaves-a-client.md`; the
table of privacy options in `robust-and-private.md`; the table of memory in `results/many-clients.md`; the page of flags
`reference/flags.md`; the pictures `choose.svg` and `rooms.svg`.
"""

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

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
from fedkin.testing.payloads import page
from fedkin.testing.toys import network

PRIVATE = ("<!-- who can be private: made by docs/generate.py -->\n", "<!-- end of what docs/generate.py makes -->\n")

KEPT = ("<!-- what methods keep: made by docs/generate.py -->\n", "<!-- end of what docs/generate.py makes -->\n")
CLIENTS = 10_000

LISTED = ("<!-- methods: made by docs/generate.py -->\n", "<!-- end of what docs/generate.py makes -->\n")
HERE = Path(__file__).parent
FAMILY_PAGES = runpy.run_path(str(HERE / "families.py"))
NAVIGATION = ("      # methods: made by docs/generate.py\n", "      # end of what docs/generate.py makes\n")


def navigation(methods: Mapping[str, Method]) -> str:
    """The pages of methods in the site's navigation, by family."""
    lines = []
    for family in FAMILIES:
        lines.append(f"      - {family[0].upper()}{family[1:]}:")
        lines += [f"          - {m.title}: methods/{n}.md" for n, m in methods.items() if m.family == family]
    return "".join(line + "\n" for line in lines)


def kept(methods: Mapping[str, Method]) -> str:
    """The table of what methods keep with many clients of Fed-CAM's LeNet, with default settings."""
    net = Net(factory("cam-lenet", (3, 32, 32), 10), (3, 32, 32), 10)
    rows = [
        "| method | server, each client | server, each pair | client | banks, disk | states, disk | pairs, memory |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for method in methods.values():
        with one_thread():
            found = needs(method, net, Training())
        assert found is not None
        sizes = (found.row, found.pair, found.state)
        large = (found.row * CLIENTS, 2 * found.state * CLIENTS, found.pair * CLIENTS**2)
        cells = [_bytes(n) for n in sizes] + [f"{n / 1e9:.2f} GB" if n >= 5e6 else "-" for n in large]
        rows.append(f"| {method.title} | {' | '.join(cells)} |")
    return "".join(row + "\n" for row in rows)


def _bytes(n: int) -> str:
    return "-" if n == 0 else f"{n / 1000:,.1f} kB" if n >= 1000 else f"{n} bytes"


def private(methods: Mapping[str, Method]) -> str:
    """The table of the privacy options of each method, with default settings."""
    rows = ["| method | `noise_multiplier` | `metadata_epsilon` |", "| --- | --- | --- |"]
    for method in methods.values():
        try:
            reported = says(method, network("mlp"))
            noise = f"yes: a client reports its {' and '.join(reported)}" if reported else "nothing is reported"
        except MethodError:
            reported, noise = [], "no: what a client reports does not follow from class counts"
        if also_sent(method):
            training = f"no: a client also sends {also_sent(method)}"
        else:
            training = "yes, with `metadata_epsilon`" if reported else "yes"
        rows.append(f"| {method.title} | {training} | {noise} |")
    return "".join(row + "\n" for row in rows)


def renewed(text: str, table: str, marks: tuple[str, str]) -> str:
    """A page with another table between its marks."""
    before, rest = text.split(marks[0])
    return before + marks[0] + table + marks[1] + rest.split(marks[1], 1)[1]


TABLES: dict[str, tuple[Callable[[Mapping[str, Method]], str], tuple[str, str]]] = {
    "methods.md": (FAMILY_PAGES["families"], LISTED),
    "../mkdocs.yml": (navigation, NAVIGATION),
    "robust-and-private.md": (private, PRIVATE),
    "results/many-clients.md": (kept, KEPT),
}
"""File -> what makes its table, and the lines around it."""


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
    leaves = page(methods)
    pictures = FAMILY_PAGES["pictures"](methods, leaves)
    return {
        "what-leaves-a-client.md": leaves,
        "reference/flags.md": runpy.run_path(str(HERE / "flag_pages.py"))["page"](methods),
        **{f"pictures/{name}": text for name, text in pictures.items()},
    }


def main() -> None:
    methods = {name: make() for name, make in METHODS.items()}
    (HERE / "pictures").mkdir(exist_ok=True)
    for path, text in pages(methods).items():
        (HERE / path).write_text(text, encoding="utf-8")
    (HERE / "choose.svg").write_text(svg(histograms()), encoding="utf-8")
    (HERE / "rooms.svg").write_text(runpy.run_path(str(HERE / "rooms.py"))["picture"](), encoding="utf-8")
    for path, (table, marks) in TABLES.items():
        text = (HERE / path).read_text(encoding="utf-8")
        (HERE / path).write_text(renewed(text, table(methods), marks), encoding="utf-8")


if __name__ == "__main__":
    main()
