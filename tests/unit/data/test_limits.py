"""Files that promise or unpack to more memory than the limit are refused before this memory is taken."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commandline import Command
from fedkin.core.errors import ConfigError, DataError
from fedkin.data import limits, load
from fedkin.data.sources.leaf import read_leaf
from fedkin.data.sources.npz import read_array
from fedkin.data.sources.upstream import Files
from fedkin.experiment.settings import settings_from

MB = 1_000_000
ADVICE = r"the limit is 0\.02 GB\. If the file is meant to be that large: --max-data-gb \d"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 20 MB, so that files that exceed it are made fast."""
    monkeypatch.setenv(limits.ENV, "0.02")


@pytest.fixture
def little() -> Iterator[None]:
    """What the test allocates in Python and numpy stays below 60 MB."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 60 * MB


def npy(shape: tuple[int, ...], dtype: str = "<f4", there: int = 0, version: tuple[int, int] = (1, 0)) -> bytes:
    """A header of this shape, and as many zeros as are there."""
    raw = io.BytesIO()
    write = np.lib.format.write_array_header_1_0 if version == (1, 0) else np.lib.format.write_array_header_2_0
    write(raw, {"descr": dtype, "fortran_order": False, "shape": shape})
    return b"\x93NUMPY" + bytes(version) + raw.getvalue()[8:] + bytes(there)


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def idx(shape: tuple[int, ...], there: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(there)


def zeros(mb: int) -> bytes:
    return bytes(mb * MB)


# ---- npz and npy --------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("little")
def test_an_npz_that_unpacks_to_more(tmp_path: Path) -> None:
    """A small file full of zeros: the message names it, both sizes, the limit and the flag."""
    path = npz(tmp_path / "a.npz", x=npy((10 * MB,), "|u1", 10 * MB), y=npy((10,), "<i8", 80))
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match=rf"a\.npz: \d+\.\d kB on disk, 50\.0 MB in memory; {ADVICE}"):
        load(path)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("shape", [(10**12,), (2**62, 2**62), (10**6, 10**6, 10**6), (2**63, 2)])
@pytest.mark.parametrize("dtype", ["<f4", "|u1", "<U0", "|V0"])
def test_an_npz_header_that_promises_more_than_there_is(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    """A header of 10^12 values, also where their product wraps or a value has no bytes: refused by its numbers."""
    path = npz(tmp_path / "a.npz", x=npy(shape, dtype, 100), y=npy((10,), "<i8", 80))
    with pytest.raises(DataError, match=r"a\.npz: the header of x\.npy promises .*damaged, fetch it again"):
        load(path)


def test_an_npz_header_of_10_12_on_the_command_line(fedkin: Command) -> None:
    """No traceback and exit code 2, for run, inspect and predict alike."""
    npz(Path("a.npz"), x=npy((10**12, 4)), y=npy((10,), "<i8", 80))
    for command in ("run fedavg --data a.npz --clients 2", "inspect a.npz"):
        done = fedkin(command)
        assert (done.code, "Traceback" in done.err) == (2, False)
        assert "promises 1000000000000 x 4 values" in " ".join((done.out + done.err).split())


@pytest.mark.usefixtures("little")
def test_zip_members_that_lie_about_their_sizes(tmp_path: Path) -> None:
    """A directory that states fewer bytes than a member unpacks to: no more than stated is unpacked."""
    path = npz(tmp_path / "a.npz", x=npy((15 * MB,), "|u1", 15 * MB))
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        true = archive.infolist()[0].file_size
    path.write_bytes(raw.replace(struct.pack("<I", true), struct.pack("<I", 5000)))
    with pytest.raises(DataError, match=r"promises 15000000 values of uint8, 15\.0 MB; there are 4\.9 kB"):
        load(path)


def test_a_single_array(tmp_path: Path) -> None:
    """An npy file to predict is checked in the same way; its values are as numpy reads them."""
    (tmp_path / "a.npy").write_bytes(npy((10**12,)))
    with pytest.raises(DataError, match="promises 1000000000000 values"):
        read_array(tmp_path / "a.npy")
    for version in ((1, 0), (2, 0), (3, 0)):
        (tmp_path / "b.npy").write_bytes(npy((3, 2), "<f4", 24, version))
        assert read_array(tmp_path / "b.npy").tolist() == [[0, 0]] * 3


# ---- idx and gz ---------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("little")
def test_idx_files(tmp_path: Path) -> None:
    """A gzip'd file that unpacks to more than the limit; shapes whose product wraps at 64 bits are not 0 bytes."""
    images, labels = tmp_path / "train-images-idx3-ubyte.gz", tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx((10,), 10))
    images.write_bytes(gzip.compress(idx((10 * MB, 1, 1), 10 * MB)))
    with pytest.raises(DataError, match=rf"idx3-ubyte\.gz: \d+\.\d kB on disk, more than 20\.0 MB in memory; {ADVICE}"):
        load(tmp_path)
    images.write_bytes(gzip.compress(idx((2**31, 2**31, 4), 0)))  # 2^64
    with pytest.raises(DataError, match=r"the header says 2147483648 x 2147483648 x 4 = 18446744073709551616 bytes"):
        load(tmp_path)


def test_archives_of_known_data(tmp_path: Path) -> None:
    """Members of archives, and gzip'd files in them, are unpacked no further than the limit."""
    for name, content in (("m", zeros(30)), ("n.gz", gzip.compress(zeros(30)))):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
        with pytest.raises(DataError, match=rf"a\.zip: {name}: .*; {ADVICE}"):
            Files(tmp_path).content(name.removesuffix(".gz"))


# ---- images -------------------------------------------------------------------------------------------------------
def png(width: int, height: int) -> bytes:
    """A PNG file of these sides whose pixels are missing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("sides", [(2000, 2000), (30_000, 30_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_too_many_pixels(sides: tuple[int, int], tmp_path: Path) -> None:
    """Refused by its header, by the reader; no pixel is decoded."""
    pytest.importorskip("PIL")
    (tmp_path / "p" / "cat").mkdir(parents=True)
    (tmp_path / "p" / "cat" / "a.png").write_bytes(png(*sides))
    with pytest.raises(DataError, match=rf"a\.png: \d+ bytes on disk, .* in memory; {ADVICE}"):
        load(tmp_path / "p")


def test_many_images(tmp_path: Path) -> None:
    """Each is small, all of them together take more than the limit."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "p" / "cat").mkdir(parents=True)
    for i in range(30):
        image.new("L", (400, 400)).save(tmp_path / "p" / "cat" / f"{i:02}.png")
    with pytest.raises(DataError, match=rf"25\.png: .* after 20\.0 MB of other files; {ADVICE}"):
        load(tmp_path / "p")


def test_formats_that_are_programs(tmp_path: Path) -> None:
    """Another format under the name of an image is not opened: Pillow would hand PostScript to Ghostscript."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "p" / "cat").mkdir(parents=True)
    image.new("L", (4, 4)).save(tmp_path / "p" / "cat" / "a.png", format="EPS")
    with pytest.raises(DataError, match=r"a\.png: not a readable image \(cannot identify"):
        load(tmp_path / "p")


# ---- tables -------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("little")
def test_a_long_csv(tmp_path: Path) -> None:
    """Counted as the texts that its fields become, before the first of them is made; files of one table together.

    What is counted is about what reading takes.
    """
    row = "1,0\n"
    (tmp_path / "t.csv").write_text("x,y\n" + row * 100_000)
    with pytest.raises(DataError, match=rf"t\.csv: 400\.0 kB on disk, 37\.2 MB in memory; {ADVICE}"):
        load(tmp_path / "t.csv", target="y")
    (tmp_path / "d").mkdir()
    for name in "abc":
        (tmp_path / "d" / f"{name}.csv").write_text("x,y\n" + row * 25_000)
    with pytest.raises(DataError, match=rf"c\.csv: .* after 18\.6 MB of other files; {ADVICE}"):
        load(tmp_path / "d", target="y")


def test_parquet(tmp_path: Path) -> None:
    """Many equal rows in a small file, and one long text that stands for many."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"x": np.zeros(MB), "y": np.zeros(MB)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"a\.parquet: \d+\.\d kB on disk, 12\d\.\d MB in memory; {ADVICE}"):
        load(tmp_path / "a.parquet", target="y")
    texts = arrow.table({"x": ["a" * 100_000] * 3000, "y": [0, 1] * 1500})
    parquet.write_table(texts, tmp_path / "b.parquet")
    assert (tmp_path / "b.parquet").stat().st_size < 200_000
    with pytest.raises(DataError, match=rf"b\.parquet: .*kB on disk, 102\.\d MB in memory.*; {ADVICE}"):
        load(tmp_path / "b.parquet", target="y")


def test_leaf(tmp_path: Path) -> None:
    """A JSON file of numbers counts as the objects that they become."""
    told = {"users": ["a"], "user_data": {"a": {"x": [[0.25] * 784] * 800, "y": [0] * 800}}}
    (tmp_path / "a.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match=rf"a\.json: 3\.8 MB on disk, 30\.\d MB in memory; {ADVICE}"):
        read_leaf(tmp_path)


# ---- the limit ----------------------------------------------------------------------------------------------------
def test_a_flag_raises_the_limit(fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works for each command that reads data, holds for this command alone, and is no part of the run's settings."""
    monkeypatch.setenv(limits.ENV, "0.0001")
    rng = np.random.default_rng(0)
    rows = "".join(f"{v:.6f},{i % 2}\n" for i, v in enumerate(rng.random(2000)))
    Path("t.csv").write_text("x,y\n" + rows)
    run = "run fedavg --data t.csv --target y --clients 3 --model linear --rounds 1 --engine loop --quiet --out"
    refused = fedkin(f"{run} a")
    assert refused.code == 2
    assert "the limit is 0.0001 GB. If the file is meant to be that large: --max-data-gb 0.1" in refused.err
    assert fedkin(f"{run} a --max-data-gb 1").code == 0
    assert fedkin(f"--max-data-gb=1 {run} b").code == 0
    assert Path("a/config.toml").read_text() == Path("b/config.toml").read_text()
    assert "max_data" not in Path("a/config.toml").read_text()
    assert fedkin("inspect t.csv --target y").code == 2
    assert fedkin("inspect t.csv --target y --max-data-gb 1").code == 0
    assert fedkin("export a --client 0 --out home").code == 2
    assert fedkin("export a --client 0 --out home --max-data-gb 1").code == 0
    assert fedkin("predict home t.csv").code == 2
    assert fedkin("predict home t.csv --max-data-gb 1").code == 0
    assert fedkin(f"{run} c").code == 2


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "much"])
def test_a_limit_that_is_none(value: str, fedkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag and the variable are checked, with their names in the message."""
    done = fedkin(f"list data --max-data-gb={value}")
    assert (done.code, done.out) == (2, "")
    assert f"--max-data-gb must be a number of GB above 0, such as 16, got '{value}'" in done.err
    monkeypatch.setenv(limits.ENV, value)
    with pytest.raises(ConfigError, match=f"{limits.ENV} must be a number of GB above 0"):
        limits.limit_gb()
    assert "--max-data-gb needs a number of GB" in fedkin("list data --max-data-gb").err


def test_the_encoding_is_part_of_the_digest() -> None:
    """Where it is set; a run without it does not mention it."""
    table: dict[str, Any] = {"method": {"name": "da-pfl"}, "data": {"data": "digits", "clients": 7}}
    without = settings_from(table)
    assert "encoding" not in without.table()["data"]
    table["data"]["encoding"] = "cp1252"
    assert settings_from(table).digest() != without.digest()


SIZES: list[tuple[int, str]] = [
    (12, "12 bytes"), (949_000, "949.0 kB"), (8 * 10**9, "8.0 GB"), (10**30, "1e+21 GB"), (1234 * 10**9, "1,234.0 GB"),
]  # fmt: skip


@pytest.mark.parametrize(("count", "text"), SIZES)
def test_sizes_for_people(count: int, text: str) -> None:
    """In units of 1000, however large a header claims to be."""
    assert limits.size_of(count) == text
