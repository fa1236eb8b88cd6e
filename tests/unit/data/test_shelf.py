"""Federations on disk: the same as in memory, opened without being read, and refused when they are not whole."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin.core import DataError
from fedkin.data import write
from fedkin.data.checks import PARTS
from fedkin.data.shelf import Shelf
from refusals import refuses


def federation(clients: int = 5) -> fedkin.Federation:
    """Clients of unequal sizes with groups and names; the last one has no test samples."""
    rng, sizes, names = np.random.default_rng(0), range(9, 9 + 3 * clients, 3), [f"w{k}" for k in range(clients)]
    data = [(rng.normal(size=(n, 2, 3)), rng.integers(0, 4, n)) for n in sizes]
    made = fedkin.Federation.from_arrays(data, classes=4, groups=[k % 2 for k in range(clients)], client_names=names)
    none = fedkin.Samples(torch.zeros(0, 2, 3), torch.zeros(0, dtype=torch.int64))
    last = dataclasses.replace(made.clients[-1], test=none)
    return fedkin.Federation(
        (*made.clients[:-1], last), 4, "wards", made.groups, ("a", "b", "c", "d"), made.client_names
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every sample of every part, sizes, counts, names, groups and the fingerprint."""
    one = federation()
    one.save(tmp_path / "f")
    other = fedkin.Federation.open(tmp_path / "f", check=True)

    assert other.fingerprint() == one.fingerprint()
    assert (other.labels, other.client_names, other.classes, other.shape) == (one.labels, one.client_names, 4, (2, 3))
    assert torch.equal(other.groups, one.groups)
    assert torch.equal(other.sizes(), one.sizes())
    assert torch.equal(other.counts(), one.counts())
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        assert mine.group == theirs.group
        for part in PARTS:
            a, b = getattr(mine, part), getattr(theirs, part)
            assert len(a) == len(b)
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
            assert b.x.is_contiguous()


def test_a_run_on_it_is_the_same(tmp_path: Path) -> None:
    """To the last bit, on both engines; an interrupted run of one goes on with the other."""
    one = federation()
    one.save(tmp_path / "f")
    other = fedkin.Federation.open(tmp_path / "f")
    training = fedkin.Training(batch_size=4)
    results = [
        fedkin.run(fedkin.get_method("fedper"), data, "linear", training, rounds=3, compute=compute)
        for data in (one, other)
        for compute in (fedkin.Compute("loop"), fedkin.Compute("workers@n=2"))
    ]
    for result in results[1:]:
        assert result.rounds == results[0].rounds
        assert torch.equal(result.server.state.body, results[0].server.state.body)


def test_opening_and_choosing_read_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read at opening, and one part of one client at a time after it."""
    federation().save(tmp_path / "f")
    seen: list[tuple[str, str, int, int]] = []
    read = Shelf.read

    def watched(self: Shelf, part: str, kind: str, start: int, stop: int) -> torch.Tensor:
        seen.append((part, kind, start, stop))
        return read(self, part, kind, start, stop)

    monkeypatch.setattr(Shelf, "read", watched)
    found = fedkin.Federation.open(tmp_path / "f")
    assert len(found.clients[3].train) == int(found.sizes()[3, 0])
    assert found.shape == (2, 3)
    assert seen == []
    x = found.clients[1].test.x
    start = int(found.sizes()[0, 2])
    assert seen == [("test", "x", start, start + len(x))]
    assert found.clients[-1].group == found.clients[4].group == 0
    assert [len(s.train) for s in found.clients[1:3]] == found.sizes()[1:3, 0].tolist()
    with pytest.raises(IndexError):
        found.clients[5]


def test_clients_are_written_as_they_come(tmp_path: Path) -> None:
    """A generator will do, and no client but the present one is held."""
    one = federation()
    held = 0

    def shards() -> Iterator[fedkin.ClientData]:
        nonlocal held
        for shard in one.clients:
            held += 1
            assert os.path.getsize(tmp_path / "f" / "train.n") % 8 == 0
            yield shard

    write(tmp_path / "f", shards(), classes=4, name="wards")
    assert held == 5
    assert fedkin.Federation.open(tmp_path / "f").fingerprint() == one.fingerprint()
    assert not list((tmp_path / "f").glob(".*"))


INDEX: dict[str, dict[str, object]] = {
    "no clients": {"clients": 0}, "a text as a number": {"clients": "5"}, "more clients": {"clients": 6},
    "classes without end": {"classes": 10**12}, "no classes": {"classes": 0}, "fewer classes": {"classes": 1},
    "a huge number": {"classes": 10**400}, "no shape": {"shape": []}, "a side of 0": {"shape": [2, 0]},
    "a shape of 70 sides": {"shape": [2, 3, *[1] * 70]}, "a huge side": {"shape": [2, 10**30]},
    "another shape": {"shape": [3, 3]}, "groups as a text": {"groups": "abcde"}, "too few groups": {"groups": [0]},
    "groups beyond 64 bits": {"groups": [10**30] * 5}, "groups of truths": {"groups": [True] * 5},
    "labels as numbers": {"labels": [0, 1, 2, 3]}, "too few labels": {"labels": ["a"]},
    "names as a number": {"client_names": 7}, "one name twice": {"client_names": ["a"] * 5},
    "a name as a list": {"name": ["wards"]}, "other inputs": {"inputs": "float64"}, "more": {"more": 1},
    "whole inputs": {"inputs": "int64"}, "a preparation as a text": {"preparation": "x"},
    "an empty preparation": {"preparation": {}}, "another format": {"format": "fedkin federation 2"},
    "no fingerprint": {"fingerprint": None},
}  # fmt: skip


@pytest.mark.parametrize("case", INDEX)
def test_an_index_is_decoded_strictly(case: str, tmp_path: Path) -> None:
    """Every value has a type and fits the files: one message that names the folder, no traceback, no memory."""
    federation().save(tmp_path / "f")
    path = tmp_path / "f" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **INDEX[case]}))
    counts = {
        "one name twice": "'a' twice",
        "too few groups": "[5]",
        "fewer classes": "4 names",
        "too few labels": "1 names",
    }
    with refuses(DataError, counts.get(case, tmp_path / "f")):
        through(tmp_path / "f")


@pytest.mark.parametrize("name", [f"{part}.{kind}" for part in PARTS for kind in "xyn"])
@pytest.mark.parametrize("number", [-1, 2**62, 7.5, float("nan"), 2**63 - 1])
def test_numbers_that_cannot_be_are_refused(name: str, number: float, tmp_path: Path) -> None:
    """Numbers of samples, classes, and inputs, wherever they are read; the message names the file."""
    federation().save(tmp_path / "f")
    path = tmp_path / "f" / name
    whole = name.endswith(("y", "n"))
    raw = np.array([number if not whole or number == number else -5]).astype("<i8" if whole else "<f4").tobytes()
    found = path.read_bytes()
    path.write_bytes(raw + found[len(raw) :])
    if not whole and number == number:
        through(tmp_path / "f")  # another finite input is not known to be wrong
        return
    with refuses(DataError, name[:-1]):
        through(tmp_path / "f")


@pytest.mark.parametrize("name", ["index.json", "train.x", "test.n"])
@pytest.mark.parametrize("what", ["a link to /dev/zero", "a pipe", "a folder", "no UTF-8", "nothing", "4 bytes less"])
def test_what_is_no_file_is_refused(name: str, what: str, tmp_path: Path) -> None:
    federation().save(tmp_path / "f")
    path = tmp_path / "f" / name
    whole = path.read_bytes()
    path.unlink()
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "4 bytes less":
        path.write_bytes(whole[:-4])
    elif what == "a folder":
        path.mkdir()
    elif what == "no UTF-8":
        path.write_bytes(b"\xff\xfe")
    elif what != "nothing":
        path.symlink_to("/dev/zero")
    with refuses(DataError, name):
        through(tmp_path / "f")


def through(folder: Path) -> None:
    """Opens a federation and reads every part of it."""
    found = fedkin.Federation.open(folder)
    for shard in found.clients:
        for part in PARTS:
            samples = getattr(shard, part)
            assert len(samples.x) == len(samples.y)


def test_changed_data_are_found_when_asked_for(tmp_path: Path) -> None:
    """Opening does not read, ``check`` does."""
    federation().save(tmp_path / "f")
    path = tmp_path / "f" / "train.x"
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)

    fedkin.Federation.open(tmp_path / "f")
    with pytest.raises(DataError):
        fedkin.Federation.open(tmp_path / "f", check=True)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Whoever breaks off: a folder that was there is empty again, and the same name may be given once more."""
    one = federation()

    def shards() -> Iterator[fedkin.ClientData]:
        yield from one.clients[:2]
        raise KeyboardInterrupt

    (tmp_path / "f").mkdir()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "f", shards(), classes=4)
    assert not list((tmp_path / "f").iterdir())
    one.save(tmp_path / "f")
    assert fedkin.Federation.open(tmp_path / "f").fingerprint() == one.fingerprint()


def test_bad_data_are_refused_when_written(tmp_path: Path) -> None:
    """As in memory: a value that is not finite, a label out of range, no client; nothing half-written is left."""
    one = federation()
    bad = dataclasses.replace(one.clients[0].train, x=torch.full_like(one.clients[0].train.x, torch.nan))
    shard = dataclasses.replace(one.clients[0], train=bad)
    for shards, classes in (([one.clients[0], shard], 4), (one.clients, 2), ([], 2)):
        with pytest.raises(DataError):
            write(tmp_path / "f", shards, classes=classes)
    assert not list(tmp_path.iterdir())
