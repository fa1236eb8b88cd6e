"""Print name, version and licence of every package in this environment, as the packages themselves state it."""

from __future__ import annotations

from importlib.metadata import Distribution, distributions

_OF_CLASSIFIER = "License :: "


def licence(package: Distribution) -> str:
    """The licence: an SPDX expression where the package has one, else its classifiers, else its own words."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    kinds = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or [] if c.startswith(_OF_CLASSIFIER)]
    words = str(about.get("License") or "").strip().splitlines()
    return ", ".join(kinds) or (words[0][:80] if words else "not stated")


def main() -> None:
    """A line for each package, by name."""
    found = {str(p.metadata["Name"]): p for p in distributions()}
    width = max(map(len, found))
    for name in sorted(found, key=str.lower):
        print(f"{name:<{width}}  {found[name].version:<16}  {licence(found[name])}")


if __name__ == "__main__":
    main()
