"""Makes what is read off the code: `what-leaves-a-client.md`; who can be private, in `robust-and-private.md`; what
methods keep, in `results/many-clients.md`; and the picture of label histograms, `choose.svg`."""

from collections.abc import Mapping
from pathlib import Path

from fedkin.core import MethodError, Net, Training
from fedkin.core.method import Method
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
    """The table of who can have which privacy option, with default settings."""
    rows = ["| method | `noise_multiplier` | `metadata_epsilon` |", "| --- | --- | --- |"]
    for method in methods.values():
        try:
            said = says(method, network("mlp"))
            noise = f"yes: a client says its {' and '.join(said)}" if said else "nothing is said"
        except MethodError:
            said, noise = [], "no: what it says does not follow from class counts"
        beside = method.also_sends
        training = f"no: a client also sends {beside}" if beside else "yes, with `metadata_epsilon`" if said else "yes"
        rows.append(f"| {method.title} | {training} | {noise} |")
    return "".join(row + "\n" for row in rows)


def renewed(text: str, table: str, marks: tuple[str, str] = PRIVATE) -> str:
    """A page with another table between its marks."""
    before, rest = text.split(marks[0])
    return before + marks[0] + table + marks[1] + rest.split(marks[1])[1]


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


def main() -> None:
    here, methods = Path(__file__).parent, {name: make() for name, make in METHODS.items()}
    (here / "what-leaves-a-client.md").write_text(page(methods), encoding="utf-8")
    (here / "choose.svg").write_text(svg(histograms()), encoding="utf-8")
    path = here / "robust-and-private.md"
    path.write_text(renewed(path.read_text(encoding="utf-8"), private(methods)), encoding="utf-8")
    path = here / "results" / "many-clients.md"
    path.write_text(renewed(path.read_text(encoding="utf-8"), kept(methods), KEPT), encoding="utf-8")


if __name__ == "__main__":
    main()
