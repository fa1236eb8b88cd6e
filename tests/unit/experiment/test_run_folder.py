"""`RunFolder`: what is written comes back, and what is damaged or of another run is told and left as it is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch

from fedkin.core import Bundle, RunFolderError
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.models import MODELS
from fedkin.record.files import read_commit
from fedkin.record.lines import RunLine
from fedkin.server import Server
from fedkin.storage.files import write_atomic
from folders import content, small
from refusals import refuses

MARKS = {"config": "c0ffee", "data": "da7a", "network": "ne7"}


def some_server() -> Server:
    """A server after round 3 with tensors of every kind that methods keep."""
    rows = torch.arange(12.0).view(3, 4)
    state = Bundle(
        model=torch.tensor([0.1, -0.0, 1e-42]),
        bank=rows.T,  # not contiguous
        part=rows[1],  # in the memory of another
        empty=torch.empty(0, 7),
        double=torch.tensor(1 / 3, dtype=torch.float64),
        seen=torch.tensor([True, False]),
        labels=torch.tensor([-1, 2]),
    )
    said = Bundle({"counts": torch.tensor([[1, 2], [3, 4]]), "a.dotted.name": torch.tensor([1.5, 2.5])})
    return Server(state, 3, torch.tensor([5, 6]), said, torch.tensor([3, 1]))


def some_states() -> dict[int, Bundle]:
    """One client with a state, one without, one whose names have dots."""
    return {0: Bundle(head=torch.tensor([1.0, 2.0])), 1: Bundle(), 12: Bundle({"inner.w": torch.tensor(3)})}


def saved(path: Path) -> RunFolder:
    """A folder with a commit of the above."""
    folder = RunFolder.create(path / "a", "")
    folder.describe(RunLine("", "A", 0, 13, marks=MARKS))
    folder.save(some_server(), some_states())
    return folder


def test_copies_of_code_without_a_config_do_not_take_a_folder(tmp_path: Path) -> None:
    """A kill between the two leaves them; another file, or one of other content, belongs to the user."""
    place, source = tmp_path / "a", {"mine.py": b"x = 1\n"}
    place.mkdir()
    (place / "mine.py").write_bytes(b"x = 2\n")
    with pytest.raises(RunFolderError, match="exists already"):
        RunFolder.create(place, "", source)
    assert (place / "mine.py").read_bytes() == b"x = 2\n"
    (place / "mine.py").write_bytes(b"x = 1\n")
    (place / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="exists already"):
        RunFolder.create(place, "", source)
    (place / "notes.txt").unlink()
    RunFolder.create(place, "a = 1", source)
    assert (place / "config.toml").read_text() == "a = 1"
    with pytest.raises(RunFolderError, match="exists already"):
        RunFolder.create(place, "a = 1", source)


def assert_equal(a: Bundle, b: Bundle) -> None:
    """Asserts equal names, types, shapes and bits."""
    assert a.keys() == b.keys()
    for name, t in a.items():
        assert (t.dtype, t.shape) == (b[name].dtype, b[name].shape), name
        assert t.contiguous().numpy().tobytes() == b[name].contiguous().numpy().tobytes(), name


# ---- checkpoints --------------------------------------------------------------------------------------------------
def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """Server, roster and the clients' states come back with types, shapes and bits."""
    loaded = saved(tmp_path).load(MARKS)
    assert loaded is not None
    server, states = loaded
    wanted = some_server()

    assert_equal(server.state, wanted.state)
    assert_equal(server.described, wanted.described)
    assert server.round == 3
    assert torch.equal(server.sizes, wanted.sizes)
    assert torch.equal(server.acks, wanted.acks)
    assert set(states) == {0, 12}
    for i, state in states.items():
        assert_equal(state, some_states()[i])


def test_loaded_tensors_share_no_memory(tmp_path: Path) -> None:
    """No two tensors of a loaded checkpoint lie in one storage, so that writing into one changes no other."""
    loaded = saved(tmp_path).load(MARKS)
    assert loaded is not None
    server, states = loaded
    tensors = [*server.state.values(), *server.described.values(), *(t for s in states.values() for t in s.values())]
    places = [t.untyped_storage().data_ptr() for t in tensors if t.numel()]

    assert len(set(places)) == len(places)


def test_saving_does_not_touch_the_tensors(tmp_path: Path) -> None:
    """The server's own tensors keep their memory and layout."""
    server = some_server()
    before = {n: (t.data_ptr(), t.stride()) for n, t in server.state.items()}
    RunFolder.create(tmp_path / "a", "").save(server, {})

    assert {n: (t.data_ptr(), t.stride()) for n, t in server.state.items()} == before


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    """Before the first round there is nothing to load."""
    assert RunFolder.create(tmp_path / "a", "").load(MARKS) is None


@pytest.mark.parametrize("mark", MARKS)
def test_a_checkpoint_of_another_run_is_named(mark: str, tmp_path: Path) -> None:
    """A run of another config, of other data or of another network is refused, saying which of them differs."""
    folder = saved(tmp_path)

    with pytest.raises(
        RunFolderError, match="the data have changed" if mark == "data" else f"begun with another {mark}"
    ):
        folder.load({**MARKS, mark: "other"})


@pytest.mark.parametrize("file", ["commit.json", "run.json", "an object"])
@pytest.mark.parametrize("harm", ["cut", "bit", "text", "empty", "a folder"])
def test_resume_tells_of_a_damaged_file(file: str, harm: str, tmp_path: Path) -> None:
    """resume() of such a run is refused, the file is named, and the folder stays as it was."""
    run_settings(small("fedper"), out=tmp_path / "a")
    name = f"objects/{read_commit(tmp_path / 'a').last.server}" if file == "an object" else file
    path = tmp_path / "a" / name
    whole = path.read_bytes()
    if harm == "a folder":
        path.unlink()
        path.mkdir()
    else:
        bit = whole[:-40] + bytes([whole[-40] ^ 128]) + whole[-39:]
        path.write_bytes({"cut": whole[:-3], "bit": bit, "text": b"x", "empty": b""}[harm])
    before = content(tmp_path / "a")
    with pytest.raises(RunFolderError, match=path.name):
        resume(tmp_path / "a")
    assert content(tmp_path / "a") == before


def test_one_wrong_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    """Any single bit of an object that is turned over."""
    folder = saved(tmp_path)
    path = folder.objects.folder / folder.commit.last.server
    whole, rng = path.read_bytes(), random.Random(0)
    for at in range(len(whole)):
        wrong = bytearray(whole)
        wrong[at] ^= 1 << rng.randrange(8)
        path.write_bytes(wrong)
        with pytest.raises(RunFolderError):
            folder.load(MARKS)
    path.write_bytes(whole)
    assert folder.load(MARKS) is not None


@pytest.mark.parametrize(
    "name", ["/../../others/file", "../../others/file", "/etc/passwd", "x" * 40, "0" * 39, "0" * 40 + "\n", ""]
)
def test_a_commit_names_no_other_file(name: str, tmp_path: Path) -> None:
    """Names of objects are digests, those of other files have no folders; nothing else is read."""
    folder = saved(tmp_path)
    last = json.loads((folder.path / "commit.json").read_text())["last"]
    for wrong in ({"server": name}, {"clients": {"0": name}}, {"banks": {"bank": [name]}}, {"banks": {"bank": []}}):
        (folder.path / "commit.json").write_text(json.dumps({"last": {**last, **wrong}}))
        with pytest.raises(RunFolderError):
            RunFolder(folder.path).recover()
    (folder.path / "commit.json").write_text(json.dumps({"files": {name: {"bytes": 0, "digest": "0" * 40}}}))
    with pytest.raises(RunFolderError):
        RunFolder(folder.path).recover()


def test_the_best_round_is_kept(tmp_path: Path) -> None:
    """And what no commit names is gone."""
    folder, states = saved(tmp_path), some_states()
    server = some_server()
    folder.save(server, states, best=3)
    first = folder.commit
    server.round, server.state, states[0] = 4, server.state.but(model=torch.zeros(2)), Bundle(head=torch.zeros(1))
    folder.save(server, states, best=3)
    assert folder.commit.best == first.last
    assert {p.name for p in folder.objects.folder.iterdir()} == first.names() | folder.commit.last.names()
    folder.save(server, states, best=4)
    assert {p.name for p in folder.objects.folder.iterdir()} == folder.commit.last.names()


def test_resume_tells_of_another_config(tmp_path: Path) -> None:
    """After a change of config.toml the checkpoint is no longer this run's; the folder stays as it was."""
    run_settings(small("fedper"), out=tmp_path / "a")
    config = tmp_path / "a" / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    before = content(tmp_path / "a")

    with refuses(RunFolderError, "another config"):
        resume(tmp_path / "a")
    assert content(tmp_path / "a") == before


def test_resume_tells_of_other_data(tmp_path: Path) -> None:
    """After a change of the data file the checkpoint is of other data; the folder stays as it was."""
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((90, 5)).astype(np.float32), np.arange(90) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y)
    run_settings(small("fedper", data={"data": str(tmp_path / "own.npz"), "clients": 3}), out=tmp_path / "a")
    x[7, 2] += 1e-3
    np.savez(tmp_path / "own.npz", x=x, y=y)
    before = content(tmp_path / "a")

    with refuses(RunFolderError, "the data have changed"):
        resume(tmp_path / "a")
    assert content(tmp_path / "a") == before


def test_resume_tells_of_another_second_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings name the network of FML's shared models, and a new version may have another one under this name."""
    folder = tmp_path / "a"
    run_settings(small("fml", {"meme": "mlp"}, run={"rounds": 1}), out=folder)
    before = content(folder)
    with monkeypatch.context() as other:
        other.setitem(MODELS, "mlp", MODELS["linear"])
        with refuses(RunFolderError, "another second network: layers"):
            resume(folder)
    assert content(folder) == before


# ---- the folder ---------------------------------------------------------------------------------------------------
def test_create_makes_parents_and_writes_the_config(tmp_path: Path) -> None:
    """A new folder, several levels deep, with its config in it."""
    folder = RunFolder.create(tmp_path / "a" / "b" / "c", "[run]\n")

    assert content(folder.path) == {"config.toml": b"[run]\n"}
    assert RunFolder.open(folder.path).path == folder.path


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    """A folder with nothing in it is as good as none."""
    (tmp_path / "a").mkdir()
    RunFolder.create(tmp_path / "a", "")


@pytest.mark.parametrize("kind", ["a run", "other files", "a file"])
def test_what_exists_is_not_overwritten(kind: str, tmp_path: Path) -> None:
    """A place that holds anything is refused, with the two ways to go on."""
    place = tmp_path / "a"
    if kind == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / ("config.toml" if kind == "a run" else "letter.txt")).write_text("mine")
    before = content(tmp_path)

    with refuses(RunFolderError, "exists already", "--out", "fedkin resume"):
        RunFolder.create(place, "[run]")
    assert content(tmp_path) == before


def test_a_place_where_no_folder_can_be_is_told(tmp_path: Path) -> None:
    """A folder inside a file is a RunFolderError, not a bare OSError."""
    (tmp_path / "file").write_text("")

    with pytest.raises(RunFolderError, match="no folder can be made"):
        RunFolder.create(tmp_path / "file" / "a", "")


def test_open_wants_a_run_folder(tmp_path: Path) -> None:
    """A folder without config.toml, or no folder at all, is none that a run was begun in."""
    for place, said in ((tmp_path, r"no config\.toml"), (tmp_path / "missing", "there is no folder .*missing")):
        with pytest.raises(RunFolderError, match=said):
            RunFolder.open(place)


def test_written_json_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file and nothing beside it."""
    folder = RunFolder.create(tmp_path / "a", "")
    folder.write("summary", {"a": 1})

    def failing(old: Path, new: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="No space"):
        folder.write("summary", {"a": 2})
    assert json.loads((folder.path / "summary.json").read_text()) == {"a": 1}
    assert {p.name for p in folder.path.iterdir()} == {"config.toml", "summary.json"}


def test_write_atomic_replaces_as_a_whole(tmp_path: Path) -> None:
    """An open reader of the old file goes on reading the old content."""
    path = tmp_path / "a.txt"
    write_atomic(path, b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
