"""Files are whole or not there, and private where they are said to be."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkin.storage.files import for_this_user, make_private, naming, open_to_others, write_atomic


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_rights() -> Iterator[None]:
    """Files of other programs are readable by all here."""
    former = os.umask(0o022)
    yield
    os.umask(former)


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_whole(sync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle leaves the old file and nothing next to it."""
    place = tmp_path / "made" / "file"
    write_atomic(place, b"first", sync=sync)
    write_atomic(place, b"second", sync=sync)
    assert place.read_bytes() == b"second"

    def full(old: object, new: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(place, b"third", sync=sync)
    assert place.read_bytes() == b"second"
    assert os.listdir(place.parent) == ["file"]


def test_a_private_file_is_never_readable_by_others(tmp_path: Path) -> None:
    """Its mode is 0600, also where an open one was there before."""
    place = tmp_path / "file"
    write_atomic(place, b"first")
    assert (mode(place), open_to_others(place) is None) == (0o644, False)
    write_atomic(place, b"second", private=True)
    assert (mode(place), open_to_others(place)) == (0o600, None)


def test_folders_for_the_owner(tmp_path: Path) -> None:
    """All that are made have mode 0700; one that exists is tightened, and reported, unless that is not wanted."""
    made = tmp_path / "a" / "b"
    assert make_private(made, sync=True) is False
    assert (mode(made), mode(made.parent)) == (0o700, 0o700)
    there = tmp_path / "there"
    there.mkdir()
    assert make_private(there, tighten=False) is False
    assert mode(there) == 0o755
    assert make_private(there) is True
    assert make_private(there) is False
    assert mode(there) == 0o700
    (tmp_path / "file").touch(0o644)
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")
    assert mode(tmp_path / "file") == 0o644


def test_files_of_other_programs(tmp_path: Path) -> None:
    """Inside the block they are private; behind it as before."""
    with for_this_user():
        (tmp_path / "inside").touch()
    (tmp_path / "behind").touch()
    assert (mode(tmp_path / "inside"), mode(tmp_path / "behind")) == (0o600, 0o644)


def test_errors_of_writing_name_the_file(tmp_path: Path) -> None:
    """The system names it where a file is opened, not where it is written."""
    with pytest.raises(OSError) as caught, naming(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "file")
    with pytest.raises(OSError) as caught, naming(tmp_path / "file"):
        raise OSError(errno.ENOENT, "No such file", "other")
    assert caught.value.filename == "other"
