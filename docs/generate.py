"""Makes what is read off the code: `what-leaves-a-client.md`, and who can be private, in `robust-and-private.md`."""

from collections.abc import Mapping
from pathlib import Path

from fedkin.core import MethodError
from fedkin.core.method import Method
from fedkin.engines.noise import says
from fedkin.methods import METHODS, TITLES
from fedkin.testing.payloads import page
from fedkin.testing.toys import network

PRIVATE = ("<!-- who can be private: made by docs/generate.py -->\n", "<!-- end of what docs/generate.py makes -->\n")


def private(methods: Mapping[str, Method], titles: Mapping[str, str]) -> str:
    """The table of who can have which privacy option, with default settings."""
    rows = ["| method | `dp_noise` | `describe_epsilon` |", "| --- | --- | --- |"]
    for name, method in methods.items():
        try:
            said = says(method, network("mlp"))
            noise = f"yes: a client says its {' and '.join(said)}" if said else "nothing is said"
        except MethodError:
            said, noise = [], "no: what it says does not follow from class counts"
        beside = method.beside_training
        training = f"no: a client also tells {beside}" if beside else "yes, with `describe_epsilon`" if said else "yes"
        rows.append(f"| {titles[name]} | {training} | {noise} |")
    return "".join(row + "\n" for row in rows)


def renewed(text: str, table: str) -> str:
    """The page ``robust-and-private.md`` with another table."""
    before, rest = text.split(PRIVATE[0])
    return before + PRIVATE[0] + table + PRIVATE[1] + rest.split(PRIVATE[1])[1]


def main() -> None:
    here, methods = Path(__file__).parent, {name: make() for name, make in METHODS.items()}
    (here / "what-leaves-a-client.md").write_text(page(methods, TITLES), encoding="utf-8")
    path = here / "robust-and-private.md"
    path.write_text(renewed(path.read_text(encoding="utf-8"), private(methods, TITLES)), encoding="utf-8")


if __name__ == "__main__":
    main()
