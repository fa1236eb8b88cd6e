"""References to user-defined code: files by place, names that a run folder can keep, fingerprints, copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.core import ConfigError
from fedkin.user_code.reference import CodeRef, copies


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file with a method, which imports a module next to it and one that is installed."""
    (tmp_path / "helpers.py").write_text("STEP = 1\n")
    file = tmp_path / "own.py"
    file.write_text("import json\n\nfrom helpers import STEP\n\nclass Mine:\n    step = STEP\n")
    return file


@pytest.mark.parametrize(
    ("name", "user", "attribute", "portable"),
    [
        ("fedavg", False, "fedavg", "fedavg"),
        ("json:loads", True, "loads", "json:loads"),
        ("some/place/own.py:Mine.Inner", True, "Mine.Inner", "./own.py:Mine.Inner"),
        ("own.py", False, "own.py", "own.py"),
    ],
)
def test_parts_of_a_name(name: str, user: bool, attribute: str, portable: str) -> None:
    """Names of a catalogue, of a module and of a file."""
    code = CodeRef(name)
    assert (code.is_user_code, code.attribute, code.portable) == (user, attribute, portable)
    assert (code.file is not None) == name.startswith("some/")


def test_a_file_is_looked_for_where_its_name_was_written(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then in the working folder; other names are as they are."""
    monkeypatch.chdir(own.parent)
    (own.parent / "sub").mkdir()
    assert CodeRef.read("./own.py:Mine").name == f"{own}:Mine"
    assert CodeRef.read("./own.py:Mine", own.parent / "sub").name == f"{own}:Mine"
    (own.parent / "sub" / "own.py").write_text("class Mine: ...\n")
    assert CodeRef.read("./own.py:Mine", own.parent / "sub").name == f"{own.parent / 'sub' / 'own.py'}:Mine"
    assert CodeRef.read("fedavg").name == "fedavg"
    assert CodeRef.read("json:loads").name == "json:loads"


def test_a_fingerprint_follows_the_text_and_what_it_imports(own: Path) -> None:
    """Of the file and the modules next to it, wherever both are; never of installed ones."""
    code = CodeRef(f"{own}:Mine")
    before = code.fingerprint()
    assert before == CodeRef(f"{own}:Other").fingerprint()
    (own.parent / "helpers.py").write_text("STEP = 2\n")
    changed = code.fingerprint()
    assert changed != before
    own.write_text(own.read_text() + "\n")
    assert len({before, changed, code.fingerprint()}) == 3
    assert sorted(copies([code])) == ["helpers.py", "own.py"]
    assert copies([code])["helpers.py"] == b"STEP = 2\n"


def test_what_a_config_keeps(own: Path) -> None:
    """Nothing of a catalogue's method; of a module's network nothing either, which is installed by its version."""
    assert CodeRef("fedavg").entry() == {}
    assert set(CodeRef("json:loads").entry()) == {"code"}
    assert CodeRef("json:loads").entry(files_only=True) == {}
    code = CodeRef(f"{own}:Mine")
    assert code.entry(files_only=True) == code.entry() == {"code": code.fingerprint()}


def test_changed_code_is_refused(own: Path) -> None:
    """The message says where it was noticed, and what to do."""
    code = CodeRef(f"{own}:Mine")
    mark = code.fingerprint()
    code.require_same(mark, "[method]")
    code.require_same(None, "[method]")
    own.write_text("class Mine: ...\n")
    with pytest.raises(ConfigError, match=r"^\[method\]: .*own\.py:Mine has changed since .* start a new run"):
        code.require_same(mark, "[method]")


def test_two_files_of_one_name(own: Path) -> None:
    """A folder cannot keep both, unless they are equal."""
    other = own.parent / "sub"
    other.mkdir()
    (other / "own.py").write_bytes(own.read_bytes())
    both = [CodeRef(f"{own}:Mine"), CodeRef(f"{other / 'own.py'}:Mine"), CodeRef("fedavg")]
    assert sorted(copies(both)) == ["helpers.py", "own.py"]
    (other / "own.py").write_text("class Mine: ...\n")
    with pytest.raises(ConfigError, match=r"two different files are called own\.py"):
        copies(both)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """By an error of the kind that is asked for."""
    with pytest.raises(ConfigError, match=r"gone\.py cannot be read"):
        copies([CodeRef(f"{tmp_path}/gone.py:Mine")])
    with pytest.raises(ConfigError, match=r"cannot be read \(.*\); code that .* named \./mine\.py:sqrt"):
        CodeRef("math:sqrt").fingerprint()
