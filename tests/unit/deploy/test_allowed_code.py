"""A message names code; a node imports what its owner allows, and nothing else."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedkin.core import ConfigError
from fedkin.data import SiteData, seeded
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.settings import settings_from, table_of
from fedkin_hosts.allowed_code import Allowed, NotAllowed, settings_of
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import WireMessage
from fedkin_hosts.node import Node
from hosttoys import Direct, altered, greeting, of_worker, on_hosts, settings, sites, with_setup
from owncode import CAUTIOUS
from refusals import refuses
from thorough import thorough_except

CLEANUP = """from pathlib import Path
from torch import nn

(Path(__file__).parent / "imported").touch()


def main(shape, classes):
    (Path(__file__).parent / "called").touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


def hello(folder: Path, **tables: Mapping[str, Any]) -> WireMessage:
    """A greeting whose settings have been changed by a server that lies."""
    of = altered(greeting(folder), **tables)
    inline = of.head["inline"]
    told = {**inline["settings"], "method": tables.get("method", inline["settings"]["method"])}
    return with_setup(of, {**inline, "settings": told})


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node's working folder with a script in it that leaves traces when it is imported and when it is called."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "cleanup.py").write_text(CLEANUP)
    monkeypatch.chdir(place)
    yield place
    sys.modules.pop("cleanup", None)


def asked(folder: Path, of: WireMessage, *allow: str) -> str:
    """The code of a real worker's answer, "" if it answers."""
    return str(of_worker(folder / "disk", of, share=0, allow_code=allow).head.get("code", ""))


def traces(place: Path) -> list[str]:
    return sorted(p.name for p in place.iterdir() if p.suffix != ".py" and p.is_file())


# ---- what is not allowed -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("allow", thorough_except(["nothing", "cleanup"], ["cleanup"]))
def test_nothing_in_the_working_folder_is_imported(allow: str, work: Path, tmp_path: Path) -> None:
    """A script in the working folder of a real worker is neither imported nor called, even where a module of its name
    is allowed."""
    code = asked(tmp_path, hello(tmp_path, model={"model": "cleanup:main"}), *([allow] if allow == "cleanup" else []))
    assert code == ("settings" if allow == "cleanup" else "code")
    assert traces(work) == []


@pytest.mark.parametrize(
    ("part", "entry", "name"),
    [
        ("model", "model", "cleanup:main"),
        ("method", "name", "cleanup:main"),
        ("method", "name", "cleanup:main-safe"),
        ("method", "name", "cleanup:main@a=1"),
        ("method", "name", "cleanup:main@a=1-safe"),
        ("method", "name", "cleanup:main-safe@a=1"),
        ("method", "name", "cleanup:main-safe@a=1-safe"),
        ("method", "name", "cleanup:main@a=1@b=2"),
        ("model", "model", "antigravity:fly"),
        ("model", "model", "fedkin.testing.payloads:page"),
    ],
)
def test_code_that_was_not_allowed_is_not_imported(
    part: str, entry: str, name: str, tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A site refuses a message before it imports the module, and its log names the module and the flag."""
    sys.modules.pop(module := name.partition(":")[0], None)
    site = ClientService("c0", SiteData("digits", share=0), tmp_path / "disk")
    assert site.answer(hello(tmp_path, **{part: {entry: name}})).head["code"] == "code"
    assert module not in sys.modules
    assert f"module {module} was not imported" in caplog.text
    assert f"start the node with --allow-code {module}" in caplog.text
    assert traces(work) == []


def test_every_kind_of_message_is_looked_at(tmp_path: Path, work: Path) -> None:
    """A server that greets with a network of the catalogue and trains with another one is refused at every step."""
    found: dict[str, str] = {}

    def lie(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if of.head["kind"] == "hello":
            return post.ask(client, of)
        bad = post.altered(of, model={"model": "cleanup:main"})
        for kind in ("describe", "survey", "consult", "update", "evaluate", "keep"):
            found[kind] = str(post.ask(client, WireMessage({**bad.head, "kind": kind}, of.body)).head["code"])
        return post.ask(client, of)

    on_hosts(settings("fedavg", run={"rounds": 1}), tmp_path, Direct(sites(tmp_path), touch=lie))
    assert found == dict.fromkeys(("describe", "survey", "consult", "update", "evaluate", "keep"), "code")
    assert traces(work) == []


TEAM = """
import os, functools
from subprocess import run
from torch import nn

things, partial, hidden = {"a": 1}, functools.partial(run, "true"), run

def a(shape, classes): ...

def _own(): ...

class Net(nn.Module):
    run = staticmethod(run)
    os = os

    class Inner: ...

    @classmethod
    def small(cls, shape, classes): ...
"""
NOT_DEFINED = (
    "os.system run nn.Linear nn.Module hidden partial partial.func things things.clear a.__globals__.popitem "
    "a.__globals__ a.__code__.replace a.__class__ a.__call__ a.__builtins__ Net.__init__ Net.__init__.__globals__.x "
    "Net.mro Net.run Net.os.system Net.register_forward_hook Net.__subclasses__ Net.Inner.__dict__ _own __builtins__ "
    "__loader__.load_module nothing Net.nothing"
)


def test_what_was_only_imported_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allowed module is no way to what it imports: not through a module, nor to a function from elsewhere, nor
    through the insides of what it defines; what it defines is allowed."""
    (tmp_path / "nets_of_a_team.py").write_text(TEAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    allowed = Allowed(("nets_of_a_team",))
    for name in NOT_DEFINED.split():
        with refuses(NotAllowed, f"nets_of_a_team:{name}"):
            settings_of({"method": {"name": "fedavg"}, "model": {"model": f"nets_of_a_team:{name}"}}, allowed)
    for name in ("a", "Net", "Net.Inner", "Net.small"):
        settings_of({"method": {"name": "fedavg"}, "model": {"model": f"nets_of_a_team:{name}"}}, allowed)
    sys.modules.pop("nets_of_a_team")


def test_a_message_does_not_look_around_on_the_disk(tmp_path: Path) -> None:
    """What a run calls its data is nothing to a site: it answers alike whether such a folder exists here or not."""
    folder = tmp_path / "patients"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("x,target\n1,2\n")
    site = ClientService("c0", SiteData("digits", share=0), tmp_path / "disk")
    answers = []
    of = hello(tmp_path)
    for place in (folder, tmp_path / "nowhere"):
        told = {**of.head["inline"]["settings"], "data": {"data": str(place), "clients": 3}}
        answers.append(site.answer(with_setup(of, {**of.head["inline"], "settings": told})))
    assert answers[0].head == answers[1].head
    assert answers[0].head["ok"] is True


# ---- what is allowed ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", thorough_except(["file", "package"], ["file"]))
def test_what_the_owner_allows_is_used(where: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real worker takes a network and a method from a file that its owner names, or from an installed package."""
    place = tmp_path / "placed"
    place.mkdir()
    (place / "mynets.py").write_text(CLEANUP)
    (place / "mymethods.py").write_text(CAUTIOUS)
    allow = tuple(str(place / f"{n}.py") if where == "file" else n for n in ("mynets", "mymethods"))
    if where == "package":
        path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
        monkeypatch.setenv("PYTHONPATH", path)
    of = hello(tmp_path, model={"model": "mynets:main"}, method={"name": "mymethods:Cautious"})
    assert asked(tmp_path, of, *allow) == ""


def test_modules_inside_what_is_allowed() -> None:
    """A package stands for its modules, a module for itself; equal beginnings do not count."""
    allowed = Allowed(("team", "other.nets"))
    assert [allowed.covers(m) for m in ("team", "team.nets", "other.nets", "other.nets.deep")] == [True] * 4
    assert [allowed.covers(m) for m in ("teams", "other", "other.cleanup", "other.nets2", "os")] == [False] * 5
    assert Allowed(everything=True).covers("os")


def test_a_file_is_found_without_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beside an allowed file cannot be imported; two allowed files find each other."""
    (tmp_path / "nets_a.py").write_text("def build(): return 1\n")
    (tmp_path / "nets_b.py").write_text("from nets_a import build\n")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    Allowed.of([str(tmp_path / "nets_a.py"), str(tmp_path / "nets_b.py")]).findable()
    assert importlib.import_module("nets_b").build() == 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("beside")
    for name in ("nets_a", "nets_b"):
        del sys.modules[name]


# ---- the flag ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("word", "facts"),
    [
        ("my-team", ["package", "(team.nets)"]),
        ("team..nets", ["package"]),
        ("", ["package"]),
        ("missing.py", ["no file"]),
        ("my-nets.py", ["my-nets,"]),
        ("json.py", ["module json"]),
        ("torch.py", ["module torch"]),
        ("__main__.py", ["module __main__"]),
    ],
)
def test_a_flag_that_cannot_be(word: str, facts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node says at its start which value of --allow-code cannot be used, and why."""
    monkeypatch.chdir(tmp_path)
    for name in ("my-nets.py", "json.py", "torch.py", "__main__.py"):
        (tmp_path / name).touch()
    with refuses(ConfigError, f"--allow-code {word}", *facts):
        Node(data="digits", client_id="c0", allow_code=(word,), insecure_test=True)


def test_a_node_hands_on_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files go to the worker by their absolute paths; two files of one name are refused."""
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nets.py").touch()
    node = Node(data="digits", client_id="c0", allow_code=("team", "a/nets.py"), insecure_test=True)
    assert node.resolved().allow_code == ("team", str(tmp_path / "a" / "nets.py"))
    with refuses(ConfigError, tmp_path / "a" / "nets.py"):
        Node(data="digits", client_id="c0", allow_code=("a/nets.py", "b/nets.py"), insecure_test=True)


def test_no_message_chooses_initial_weights_on_a_nodes_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that name a file of weights are refused at the node; a network on hosts never reads one."""
    weights = tmp_path / "own.safetensors"
    weights.write_bytes(b"of this hospital alone")
    table = table_of(settings("fedavg"))
    table["model"]["init_weights"] = str(weights)
    with refuses(ConfigError, "[model] init_weights"):
        settings_of(table)
    opened = list[object]()
    monkeypatch.setattr("fedkin.models.start.started", lambda make, file: opened.append(file) or make)
    card = next(iter(sites(tmp_path).values())).data.card(seeded(settings("fedavg").data, 0))
    Experiment.on_hosts(settings_from(table), card, "run")
    assert opened == []
