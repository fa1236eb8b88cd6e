"""Damage data files of every kind: the readers and the inspection read them, or refuse them; none takes much memory.

python -m tests.fuzz --minutes 2 readers
"""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from damage import confined, raw, tree
from PIL import Image

from fedkin.core.settings import DataSettings
from fedkin.data import load
from fedkin.data.sites import SiteData
from fedkin.data.sources.upstream import read_leaf
from fedkin.inspection import look

Make = Callable[[random.Random, Path], tuple[Path, dict[str, str]]]
"""Writes damaged data; gives the path and settings to read it with."""
TABLE = {"target": "y", "client": "c"}


def run(seed: int, seconds: float) -> None:
    """Damages data files for a time, at least once.

    Raises:
        AssertionError: something other than a refusal came out.
    """
    confined("readers", case, seed, seconds)


def case(rng: random.Random, place: Path) -> None:
    """One damaged file, read, inspected, or read as that of a site."""
    path, how = rng.choice(KINDS)(rng, place)
    if how.pop("leaf", None):
        read_leaf(path)
        return
    what = rng.randrange(4)
    if what == 0:
        sharing = DataSettings(
            partition="natural@min_samples=1", target=how.get("target"), client_column=how.get("client")
        )
        look(path, sharing)  # bad data are findings there, and no exceptions
    elif what == 1:
        sharing = DataSettings(
            partition="natural@min_samples=1", target=how.get("target"), scaling="client" if how else "pooled"
        )
        site = SiteData(path)
        site.shard(site.card(sharing), 0, sharing)
    else:
        load(path, **how)  # type: ignore[arg-type]


# ---- kinds of files -----------------------------------------------------------------------------------------------
def table(rng: random.Random, place: Path) -> tuple[Path, dict[str, str]]:
    """A csv file, perhaps packed: bytes changed, other encodings, odd fields, quotes and numbers."""
    odd = [
        "",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1,5",
        '"',
        '""',
        '"a\nb"',
        "ä",
        "\0",
        "9" * 400,
        "x" * 3000,
        "2020-01-01",
    ]
    rows = [[f"{rng.gauss(0, 1):.3f}", rng.choice("uv"), str(rng.randrange(3)), str(i % 4)] for i in range(40)]
    for _ in range(rng.choice([0, 0, 1, 3])):
        rng.choice(rows)[rng.randrange(4)] = rng.choice(odd)
    sign = rng.choice(",,,;\t")
    text = "\n".join(sign.join(row) for row in [["x", "t", "y", "c"], *rows]) + "\n"
    content = text.encode(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252", "utf-32"]), errors="replace")
    content = raw(rng, content) if rng.random() < 0.7 else content
    name, how = rng.choice(["t.csv", "t.txt", "t.tsv.gz", "t.zip"]), dict(TABLE)
    if name == "t.tsv.gz":
        content = gzip.compress(content)
    elif name == "t.zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])) as file:
            file.writestr(rng.choice(["t.csv", "a/t.txt", "t", "../t.csv"]), content)
        content = archive.getvalue()
    (place / name).write_bytes(raw(rng, content) if name.endswith(("gz", "zip")) and rng.random() < 0.5 else content)
    if rng.random() < 0.3:
        how["encoding"] = rng.choice(
            ["cp1252", "latin1", "utf-16", "utf-8", "nothing", "hex", "idna", "utf-7", "punycode"]
        )
    return place / name, how


def parquet(rng: random.Random, place: Path) -> tuple[Path, dict[str, str]]:
    """A parquet file, perhaps of few bytes and many rows, with bytes changed."""
    n = rng.choice([20, 20, 2000, 300_000])
    long = rng.choice(["a", "b" * 20_000])
    columns = {
        "x": np.zeros(n),
        "t": [long] * n if n <= 2000 else np.zeros(n),
        "y": np.arange(n) % 2,
        "c": np.arange(n) % 3,
    }
    if rng.random() < 0.2:
        columns["z"] = [{"a": [1]}] * n if n <= 2000 else np.zeros(n)
    found = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table(columns), found, compression=rng.choice(["snappy", "gzip", "none", "zstd"])
    )
    content = found.getvalue()
    if rng.random() < 0.3:  # the metadata lie at the end
        content = content[:-200] + raw(rng, content[-200:])
    elif rng.random() < 0.7:
        content = raw(rng, content)
    (place / "t.parquet").write_bytes(content)
    return place / "t.parquet", dict(TABLE)


def array(rng: random.Random, plain: bool = False) -> bytes:
    """An npy file, perhaps with a header that lies."""
    n = 24
    shape = rng.choice([(n, 4), (n, 3, 3), (n, 8, 8, 3), (n,), (), (0, 4)])
    kind = rng.choice(["<f4", "|u1", "<f8", "<i8", "|b1", "<U3", "<M8[D]", "<c8", "|S2"])
    found = io.BytesIO()
    np.save(found, np.zeros(shape, kind) if plain or rng.random() < 0.9 else np.array([None] * n), allow_pickle=True)
    content = found.getvalue()
    if rng.random() < 0.5:
        sides = ", ".join(
            str(rng.choice([0, 1, 4, n, 10**6, 2**31, 2**62, 2**63, 10**30, -1])) for _ in range(rng.randint(1, 4))
        )
        old = content[content.index(b"'shape': (") + 10 : content.index(b")", content.index(b"'shape': ("))]
        content = content.replace(old, sides.encode(), 1) if old else content
    return raw(rng, content) if rng.random() < 0.4 else content


def npz(rng: random.Random, place: Path) -> tuple[Path, dict[str, str]]:
    """An npz file with members of all kinds, some of them bombs."""
    found = io.BytesIO()
    with zipfile.ZipFile(
        found, "w", rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA])
    ) as archive:
        for name in rng.choice([("x", "y"), ("x", "y", "client"), ("x_train", "y_train", "x_test", "y_test"),
                                ("train_images", "train_labels"), ("x", "y", "scale", "label_names")]):  # fmt: skip
            content = array(rng)
            if name.startswith(("y", "train_l", "client")) and rng.random() < 0.8:
                labels = io.BytesIO()
                np.save(labels, np.arange(24) % 3)
                content = labels.getvalue()
            archive.writestr(f"{name}.npy", content)
        if rng.random() < 0.1:
            archive.writestr("more.npy", bytes(60_000_000) if rng.random() < 0.2 else b"")
    content = found.getvalue()
    (place / "a.npz").write_bytes(raw(rng, content) if rng.random() < 0.5 else content)
    return place / "a.npz", {"client": "client"} if rng.random() < 0.1 else {}


def idx(rng: random.Random, place: Path) -> tuple[Path, dict[str, str]]:
    """A folder of idx files, plain or packed, with other sides and bytes."""
    for what, sides in (("train-images-idx3-ubyte", (24, 4, 4)), ("train-labels-idx1-ubyte", (24,))):
        shape = [rng.choice([s, s, s, 0, 2**31, 2**32 - 1]) for s in sides]
        content = bytes([0, 0, 8, len(sides)]) + struct.pack(f">{len(sides)}I", *shape)
        content += bytes(rng.randrange(3) for _ in range(int(np.prod(sides))))
        content = raw(rng, content) if rng.random() < 0.4 else content
        if rng.random() < 0.5:
            content = content + bytes(rng.choice([0, 0, 60_000_000]))
            content = gzip.compress(content, 1)
            content = raw(rng, content) if rng.random() < 0.3 else content
            what += ".gz"
        (place / what).write_bytes(content)
    return place, {}


def images(rng: random.Random, place: Path) -> tuple[Path, dict[str, str]]:
    """A folder of images of all formats, some with sides that they do not have."""
    for label in ("cat", "dog"):
        (place / "p" / label).mkdir(parents=True)
        for i in range(2):
            found = io.BytesIO()
            mode = rng.choice(["L", "RGB", "RGBA", "P", "1", "I;16", "LA", "CMYK", "F"])
            kind = rng.choice(["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "EPS", "PPM", "ICO"])
            try:
                Image.new(mode, rng.choice([(6, 6), (6, 6), (5, 7)])).save(found, format=kind)
            except (OSError, ValueError, KeyError):
                Image.new("L", (6, 6)).save(found, format="PNG")
            content = found.getvalue()
            if rng.random() < 0.2:
                content = png(rng)
            (place / "p" / label / f"{i}{rng.choice(['.png', '.jpg', '.bmp'])}").write_bytes(
                raw(rng, content) if rng.random() < 0.5 else content
            )
    return place / "p", {}


def png(rng: random.Random) -> bytes:
    """A PNG file that claims to be large, with whole checksums."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    side = [rng.choice([1, 6, 1000, 60_000, 2**31 - 1]) for _ in range(2)]
    head = struct.pack(">IIBBBBB", *side, rng.choice([1, 8, 16]), rng.choice([0, 2, 3, 4, 6]), 0, 0, rng.choice([0, 1]))
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10_000_000)))
    pixels = chunk(b"IDAT", zlib.compress(bytes(rng.choice([10, 1_000_000]))))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + rng.choice([b"", text]) + pixels + chunk(b"IEND", b"")


def leaf(rng: random.Random, place: Path) -> tuple[Path, dict[str, str]]:
    """A JSON file of LEAF."""
    told = {"users": ["a", "b"], "user_data": {u: {"x": [[0.5] * 784] * 2, "y": [1, 2]} for u in "ab"}}
    content = json.dumps(tree(rng, told)).encode()
    (place / "a.json").write_bytes(raw(rng, content) if rng.random() < 0.3 else content)
    return place, {"leaf": "yes"}


KINDS: list[Make] = [table, table, parquet, npz, npz, idx, images, leaf]
