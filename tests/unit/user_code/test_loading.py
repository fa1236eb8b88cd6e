"""People's own things by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.core.errors import ConfigError, DataError
from fedkin.user_code.loading import find, is_import_path


@pytest.mark.parametrize(
    ("spec", "yes"),
    [
        ("package.module:thing", True),
        ("module:thing.inner", True),
        ("./mine.py:Thing", True),
        ("/a b/mine.py:Thing", True),
        ("hf:mnist", True),
        ("module", False),
        ("module:", False),
        (":thing", False),
        ("hf:me/data", False),
        ("cifar10:/data/cifar", False),
        ("./mine.txt:Thing", False),
    ],
)
def test_form(spec: str, yes: bool) -> None:
    """Dots and a colon, or a file of Python."""
    assert is_import_path(spec) is yes


def test_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is run once, again when it changed; dataclasses and modules beside it work; two of one name are two."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_it.py").write_text("FIVE = 5\n")
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom beside_it import FIVE\n"
    text += "@dataclass(frozen=True)\nclass Thing:\n    n: int = FIVE\n    def get(self): return self.n\n"
    (tmp_path / "mine.py").write_text(text)
    thing = find("./mine.py:Thing")
    assert thing().n == 5
    assert find("mine.py:Thing") is thing
    assert find(f"{tmp_path}/mine.py:Thing.get") is thing.get
    (tmp_path / "mine.py").write_text(text.replace("FIVE\n    def", "6\n    def"))
    assert find("./mine.py:Thing")().n == 6
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text("Thing = 'another'\n")
    assert find("other/mine.py:Thing") == "another"
    assert find("./mine.py:Thing")().n == 6


def test_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed modules, and those of the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_mine.py").write_text("def thing(): return 3\n")
    assert find("module_of_mine:thing")() == 3
    assert find("math:pi") > 3


def test_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names what was asked for and what is wrong, as an error of the asker's class."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("Thing = 1\n")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    for spec, message in (
        ("mine", "'mine' is not an import path; write package.module:attribute or ./file.py:attribute"),
        ("./min.py:Thing", "there is no file ./min.py; did you mean 'mine.py'"),
        ("./mine.py:Think", "file './mine.py' has no attribute 'Think'; did you mean 'Thing'"),
        ("./bad.py:Thing", "running ./bad.py failed in line 1: ZeroDivisionError: division by zero"),
        ("no_such_module_here:x", "importing 'no_such_module_here' failed: ModuleNotFoundError"),
    ):
        with pytest.raises(DataError, match=message.replace(".", r"\.")):
            find(spec, DataError)
    with pytest.raises(ConfigError):
        find("mine")
