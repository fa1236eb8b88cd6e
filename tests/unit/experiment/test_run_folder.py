"""`RunFolder`: what is written comes back, and what is damaged or of another run is told and left as it is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedkin.core import Bundle, RunFolderError
from fedkin.experiment.run import resume, run_settings
from fedkin.experiment.run_folder import RunFolder
from fedkin.models import MODELS
from fedkin.server import Server
from fedkin.storage.files import write_atomic
from folders import content, small

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
    """A folder with a checkpoint of the above."""
    folder = RunFolder.create(path / "a", "")
    folder.save(some_server(), some_states(), MARKS)
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
    RunFolder.create(tmp_path / "a", "").save(server, {}, MARKS)

    assert {n: (t.data_ptr(), t.stride()) for n, t in server.state.items()} == before


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    """Before the first round there is nothing to load."""
    assert RunFolder.create(tmp_path / "a", "").load(MARKS) is None


@pytest.mark.parametrize("mark", MARKS)
def test_a_checkpoint_of_another_run_is_named(mark: str, tmp_path: Path) -> None:
    """A checkpoint of another config, of other data or of another network is refused, saying which of them differs."""
    folder = saved(tmp_path)

    with pytest.raises(
        RunFolderError, match="the data have changed" if mark == "data" else f"a run with another {mark}"
    ):
        folder.load({**MARKS, mark: "other"})


def assert_refused(folder: RunFolder, message: str = "damaged") -> None:
    """Asserts that loading fails with a message that names the file, and changes nothing."""
    before = content(folder.path)
    with pytest.raises(RunFolderError, match=message) as caught:
        folder.load(MARKS)
    assert str(folder.checkpoint.path) in str(caught.value)
    assert content(folder.path) == before


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_checkpoint_is_refused(share: float, tmp_path: Path) -> None:
    """A file cut off anywhere, an empty one too, is damaged."""
    folder = saved(tmp_path)
    whole = folder.checkpoint.path.read_bytes()
    folder.checkpoint.path.write_bytes(whole[: int(share * len(whole))])

    assert_refused(folder)


def test_one_wrong_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    """Any single bit that is turned over, in the header or in a tensor, is noticed."""
    folder = saved(tmp_path)
    whole = folder.checkpoint.path.read_bytes()
    rng = random.Random(0)
    for at in range(len(whole)):
        wrong = bytearray(whole)
        wrong[at] ^= 1 << rng.randrange(8)
        folder.checkpoint.path.write_bytes(wrong)
        with pytest.raises(RunFolderError, match="damaged"):
            folder.load(MARKS)
    folder.checkpoint.path.write_bytes(whole)
    assert folder.load(MARKS) is not None


@pytest.mark.parametrize("text", [b"no tensors", b"\x00" * 64, b"{}", b"\xff" * 4096])
def test_another_kind_of_file_is_refused(text: bytes, tmp_path: Path) -> None:
    """A file that is no safetensors file is damaged, whatever it is."""
    folder = saved(tmp_path)
    folder.checkpoint.path.write_bytes(text)

    assert_refused(folder)


def test_tensors_that_someone_else_wrote_are_refused(tmp_path: Path) -> None:
    """A valid safetensors file that fedkin has not written has no checksum that fits."""
    folder = saved(tmp_path)
    save_file(load_file(folder.checkpoint.path), folder.checkpoint.path)

    assert_refused(folder, "checksum")


def test_a_checkpoint_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    """What cannot be read as a file is told as such."""
    folder = saved(tmp_path)
    folder.checkpoint.path.unlink()
    folder.checkpoint.path.mkdir()

    assert_refused(folder)


@pytest.mark.parametrize("harm", ["cut", "bit", "text", "empty"])
def test_resume_tells_of_a_damaged_checkpoint(harm: str, tmp_path: Path) -> None:
    """resume() of a run with a damaged checkpoint is refused and leaves the folder as it was."""
    run_settings(small("fedper"), out=tmp_path / "a")
    path = tmp_path / "a" / "checkpoint.safetensors"
    whole = path.read_bytes()
    wrong = {"cut": whole[:-1], "bit": whole[:-40] + bytes([whole[-40] ^ 16]) + whole[-39:], "text": b"x", "empty": b""}
    path.write_bytes(wrong[harm])
    before = content(tmp_path / "a")

    with pytest.raises(RunFolderError, match="is damaged"):
        resume(tmp_path / "a")
    assert content(tmp_path / "a") == before


def test_resume_tells_of_another_config(tmp_path: Path) -> None:
    """After a change of config.toml the checkpoint is no longer this run's; the folder stays as it was."""
    run_settings(small("fedper"), out=tmp_path / "a")
    config = tmp_path / "a" / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    before = content(tmp_path / "a")

    with pytest.raises(RunFolderError, match="another config"):
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

    with pytest.raises(RunFolderError, match="the data have changed"):
        resume(tmp_path / "a")
    assert content(tmp_path / "a") == before


def test_resume_tells_of_another_second_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings name the network of FML's shared models, and a new version may have another one under this name."""
    folder = tmp_path / "a"
    run_settings(small("fml", {"meme": "mlp"}, run={"rounds": 1}), out=folder)
    before = content(folder)
    with monkeypatch.context() as other:
        other.setitem(MODELS, "mlp", MODELS["linear"])
        with pytest.raises(RunFolderError, match="another second network: layers"):
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

    with pytest.raises(RunFolderError, match=r"exists already.*--out.*fedkin resume"):
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
