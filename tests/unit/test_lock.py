"""The lock files hold what pyproject.toml asks for, nothing else, and each package with its hashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "lock"
NAME = "fedkin"
AGAIN = "pyproject.toml or constraints.txt has changed since lock/ was made: make lock"


def entries(file: str) -> dict[str, list[tuple[str, str]]]:
    """Versions of each package of a lock file, and the text of each entry."""
    found: dict[str, list[tuple[str, str]]] = {}
    for text in re.split(r"\n(?=\S)", (LOCK / file).read_text()):
        if match := re.match(r"([a-z0-9.-]+)==([^ ;\\]+)", text):
            found.setdefault(match[1], []).append((match[2], text))
    return found


def needed() -> list[Requirement]:
    """What the environment of `make` asks for directly: dependencies, the extra dev and all extras that it names."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, found, todo = about["optional-dependencies"], list(map(Requirement, about["dependencies"])), ["dev"]
    while todo:
        for requirement in map(Requirement, extras[todo.pop()]):
            if requirement.name == NAME:
                todo += requirement.extras
            else:
                found.append(requirement)
    return found


def of_build() -> list[Requirement]:
    lines = (LOCK / "build.in").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def names(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(r.name) for r in requirements}


def test_the_lock_holds_what_is_needed_and_nothing_else() -> None:
    """The packages that the lock names as needed by fedkin itself are those of pyproject.toml, in versions that it and
    constraints.txt allow; each of the others is needed by one of them."""
    base, cuda = entries("base.txt"), entries("cuda.txt")
    roots = {name for name, found in base.items() for _, text in found if f"via {NAME} " in " ".join(text.split("#"))
             or f"#   {NAME} (pyproject.toml)" in text}  # fmt: skip
    assert roots == names(needed()), AGAIN
    for requirement in (*needed(), *of_build()):
        for version, _ in base[canonicalize_name(requirement.name)]:
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: {version}. {AGAIN}"
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if not line.startswith("#") and canonicalize_name(name) in base:
            assert [v for v, _ in base[canonicalize_name(name)]] == [version], f"{line}. {AGAIN}"
    known = {**base, **cuda}
    for name, found in known.items():
        for _, text in found:
            found_by = re.findall(r"# +(?:via )?([A-Za-z0-9._-]+)", text)
            by = {canonicalize_name(n) for n in found_by if n not in ("via", "-r")}
            assert by & (known.keys() | {NAME, "lock-build.in"}) or "lock/build.in" in text, f"nothing needs {name}"


def test_every_package_has_hashes() -> None:
    """SHA-256 of each file; the build of torch without CUDA is of the version that the others go with."""
    for file in ("base.txt", "cpu.txt", "cuda.txt"):
        for name, found in entries(file).items():
            for _, text in found:
                assert re.search(r"--hash=sha256:[0-9a-f]{64}", text), f"{file}: {name}"
    ((cpu, _),), ((torch, _),) = entries("cpu.txt")["torch"], entries("base.txt")["torch"]
    assert (Version(cpu).public, Version(cpu).local) == (torch, "cpu")
    assert not [name for name in entries("base.txt") if name.startswith(("nvidia-", "cuda-", "triton"))]


def test_what_builds_fedkin_is_locked() -> None:
    """`make` installs fedkin without a build environment of its own, by the backend that pyproject.toml names."""
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(map(str, map(Requirement, backend))) <= set(map(str, of_build()))
