"""The house stands: who may import whom, and what exists once."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import fedkin
from fedkin.methods import METHODS

SOURCE = Path(fedkin.__file__).parent
ROOT = Path(__file__).parents[2]
HOSTS = ROOT / "packages" / "fedkin-hosts" / "src"
FILES = [*sorted(SOURCE.rglob("*.py")), *sorted(HOSTS.rglob("*.py"))]

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
TORCH_PICKLES = {"torch.load", "torch.save", "torch.jit.load", "torch.hub.load", "torch.package"}


def name(path: Path) -> str:
    return path.relative_to(HOSTS if path.is_relative_to(HOSTS) else SOURCE).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, wherever in it."""
    found: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: imports are absolute"
            found.append(node.module or "")
    return tuple(found)


@cache
def calls(path: Path) -> frozenset[str]:
    """What a file calls or names with dots, as written: ``torch.autograd.grad``."""
    return frozenset(ast.unparse(node) for node in nodes(path) if isinstance(node, ast.Attribute))


def files_that_call(ending: str, *folders: str) -> list[str]:
    found = [p for p in FILES if name(p).startswith(folders or ("",))]
    return [name(p) for p in found if any(("." + c).endswith(ending) for c in calls(p))]


def lines_of_code(path: Path) -> int:
    """The number of lines that are not of a docstring."""
    tree, lines = ast.parse(path.read_text(encoding="utf-8")), path.read_text(encoding="utf-8").splitlines()
    documented = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    texts = (node.body[0] for node in documented if ast.get_docstring(node))
    return len(lines) - sum((text.end_lineno or text.lineno) - text.lineno + 1 for text in texts)


def test_the_layers_hold() -> None:
    """import-linter keeps every contract of pyproject.toml: what each part may import, directly or by way of others."""
    run = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(HOSTS)])}
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 kept, 0 broken" in done.stdout


@cache
def module(path: Path) -> str:
    parts = Path(name(path)).with_suffix("").parts
    return ".".join(parts if path.is_relative_to(HOSTS) else ["fedkin", *parts]).removesuffix(".__init__")


def modules_needed(path: Path) -> set[str]:
    """The modules of fedkin that a file imports, wherever in it: inside functions and under TYPE_CHECKING as well.

    Importing a module runs the packages that it lies in; those that the file itself lies in are running already.
    """
    known, here, found = {module(p) for p in FILES}, module(path), set[str]()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # `from fedkin.cli import screen` needs a module, `from fedkin.core import Net` the package
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {one if one in known else node.module or "" for one in full}
    parts = {".".join(one.split(".")[:n]) for one in found for n in range(2, one.count(".") + 2)}
    return {one for one in parts & known if one in found or not here.startswith(one + ".")} - {here}


def test_no_modules_import_each_other() -> None:
    """No circle among modules, however long, imports inside functions and those for types alone included: what two
    modules share is in a third, which imports neither."""
    needed = {module(p): modules_needed(p) for p in FILES}
    assert needed["fedkin.engines.turns"] >= {"fedkin.engines.scoring", "fedkin.core"}
    while lowest := {one for one, others in needed.items() if not others & needed.keys()}:
        needed = {one: others for one, others in needed.items() if one not in lowest}
    while above := needed.keys() - set().union(*needed.values()):
        needed = {one: others for one, others in needed.items() if one not in above}
    assert {one: sorted(others & needed.keys()) for one, others in needed.items()} == {}


ROOMS = {"core": {"torch", "msgspec"}, "functional": {"torch"}, "methods": {"torch"}, "engines": {"torch"},
         "testing": {"torch"}}  # fmt: skip


@pytest.mark.parametrize("folder", ROOMS)
def test_methods_and_engines_need_no_more_at_import(folder: str) -> None:
    """The contract can be read, and a method written, with torch alone: nothing of data files, reports or the command
    line comes in with a method or an engine. The core imports nothing else of fedkin."""
    for path in (p for p in FILES if name(p).startswith(folder + "/")):
        outside = {i.partition(".")[0] for i in imports(path)} - set(sys.stdlib_module_names)
        allowed = {"fedkin", *ROOMS[folder]} | ({"scipy"} if name(path) == "functional/grouping.py" else set())
        allowed |= {"llvmlite"} if name(path).startswith(("engines/compiled/", "engines/native.py")) else set()
        assert outside <= allowed, name(path)
        own = [i for i in imports(path) if i.startswith("fedkin")]
        assert folder != "core" or all(i.startswith("fedkin.core") for i in own), name(path)


def test_nothing_is_stored_or_read_by_pickle() -> None:
    """A file of somebody else's must not be able to run code."""
    for path in FILES:
        assert not {i.partition(".")[0] for i in imports(path)} & PICKLES, name(path)
        assert not calls(path) & TORCH_PICKLES, name(path)
        for node in nodes(path):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), name(path)
                assert node.value.value is False, name(path)


def test_a_method_is_one_file() -> None:
    """Read top to bottom: what a method needs of others is in the core, in `capabilities` or in `functional`, and only
    the catalogue imports methods."""
    wanted = ("fedkin.core", "fedkin.capabilities", "fedkin.functional")
    for path in (p for p in FILES if name(p).startswith("methods/") and p.stem != "__init__"):
        assert all(i.startswith(wanted) for i in imports(path) if i.startswith("fedkin")), name(path)
        assert lines_of_code(path) <= 280, name(path)  # without docstrings; the longest are Safe and Fed-CAM


def test_no_file_outside_methods_names_a_method() -> None:
    """References and the methods of the demonstration are constants of the catalogue; settings have one default."""
    named = {
        (name(path), node.value)
        for path in FILES
        if not name(path).startswith("methods/")
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in METHODS
    }
    assert named == {("core/settings.py", "fedavg")}


def test_local_sgd_exists_once() -> None:
    """Gradients are taken in one file of each engine, nowhere in methods or networks; inside one loss, that of a
    meta-step, whose value depends on a gradient; and of one number, to see whether a forked process can."""
    assert files_that_call(".autograd.grad") == ["engines/forks.py", "engines/steps.py", "methods/per_fedavg.py"]
    # the passes that are written out, and the two places that walk them; and those of the compiled program
    passes = ["engines/compiled/program.py", "engines/explicit.py", "engines/steps.py"]
    assert files_that_call(".backward") == passes
    # a sample's own gradient for private training, a stack of clients' for GPUs, whose convolutions are timed alone;
    # the step is that of terms.py
    stacks = ["engines/stacked_choice.py", "engines/stacked_train.py", "privacy/dp_sgd.py"]
    assert [name(p) for p in FILES if "torch.func" in set(imports(p))] == stacks
    assert files_that_call(".optim.SGD") == []


def test_the_round_loop_exists_once() -> None:
    """`aggregate`, `distribute`, `sample` and `admit` of a method are called by the loop alone.

    A method may call those of one it wraps, and the testing room looks on at a method through a wrapper of its own.
    What a method keeps of each client is found by letting it admit made-up ones.
    """
    for step in ("aggregate", "distribute", "sample", "admit", "deliver"):
        called = set(files_that_call(f"method.{step}")) - (
            {"server/memory_estimate.py"} if step in ("admit", "distribute") else set()
        )
        found = sorted(f for f in called if not f.startswith("testing/"))
        assert found == ["server/rounds.py"], step
        wrappers = [f for f in files_that_call(f"inner.{step}") if not f.startswith("methods/")]
        assert wrappers == ["testing/spy.py"], step
    for step in ("question", "collect"):
        assert files_that_call(f"question.{step}", "engines/", "server/") == ["server/rounds.py"], step


def test_client_programs_are_run_in_one_place() -> None:
    """Every engine goes through `Turn.program`; beside it only the probe of an upload's form runs a client program."""
    assert files_that_call(".client_update", "engines/", "server/") == ["engines/turns.py", "server/upload_checks.py"]
    assert files_that_call("question.answer", "engines/", "server/") == ["engines/turns.py", "server/upload_checks.py"]
    assert files_that_call(".personalize", "engines/", "server/") == ["engines/scoring.py", "server/upload_checks.py"]


def test_global_generators_are_not_used() -> None:
    """Every draw comes from a generator keyed by seed and purpose: no `random` or `numpy.random` functions, and torch's
    default generator only where networks are built and dropout is seeded. Not by `torch.manual_seed`, which formats a
    stack trace for each absent kind of GPU: 0.3 ms, as much as a step of a small network.
    """
    assert files_that_call("torch.manual_seed") == []
    keyed = {"core/net.py", "engines/stacked_device.py", "engines/turns.py", "testing/trial.py"}
    assert set(files_that_call("torch.default_generator.manual_seed")) <= keyed
    for path in FILES:
        assert "random" not in set(imports(path)) or name(path) == "testing/trial.py"
        drawn = {c for c in calls(path) if c.startswith(("np.random.", "numpy.random."))}
        assert drawn <= {"np.random.default_rng", "np.random.Generator", "np.random.PCG64", "np.random.SeedSequence"}


OTHER_NAMES = {"sklearn": "scikit-learn", "PIL": "pillow", "vl_convert": "vl-convert-python"}
"""Packages whose import name is not that of their distribution."""


@cache
def declared() -> frozenset[str]:
    """The distributions that pyproject.toml names, for fedkin itself or in an extra that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    lines = [*project["dependencies"], *(line for of in extras.values() for line in of)]
    return frozenset(re.split(r"[\[<>=!~;\s]", line, maxsplit=1)[0].lower().replace("_", "-") for line in lines)


def test_every_package_that_is_imported_is_declared() -> None:
    """A module imports the standard library, fedkin, and distributions that pyproject.toml names; none that only comes
    with another by chance."""
    for path in FILES:
        tops = {module.partition(".")[0] for module in imports(path)} - set(sys.stdlib_module_names)
        wanted = {OTHER_NAMES.get(top, top).lower().replace("_", "-") for top in tops - {"fedkin", "fedkin_hosts"}}
        assert wanted <= declared(), f"declare in pyproject.toml, with the reason: {sorted(wanted - declared())}"


def test_nobody_but_the_front_imports_the_front() -> None:
    """The package's own `__init__` collects the public names; no part reaches others through it."""
    for path in FILES:
        if name(path) not in ("__init__.py", "cli/commands.py"):
            assert "fedkin" not in set(imports(path)), name(path)


def test_no_two_classes_share_a_name() -> None:
    """Anywhere in the package, so that a name in an error or a page leads to one class."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name(path))
    assert len(found) > 300
    assert {title: where for title, where in found.items() if len(where) > 1} == {}
