"""Checks of image files: whether each can be read, and whether they have one size and one mode."""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedkin.core.errors import DataError, counted
from fedkin.data.dataset import Dataset
from fedkin.data.image_files import FAULTS, opened, usual_side
from fedkin.data.progress import each
from fedkin.data.sources.images import SUFFIXES, TRAIN
from fedkin.inspection.finding import EXAMPLES, Finding, first

OTHER_IMAGES = frozenset({".gif", ".tif", ".tiff", ".webp", ".dcm", ".jp2", ".heic"})
MOST_STRETCHED = 2.0  # images whose shapes differ more are no longer similar when all are made square
NARROW = 0.25  # part of the range of pixels; images in less of it are probably on another scale
_PLAIN = frozenset({"L", "RGB", "1"})


@dataclass(frozen=True)
class Picture:
    """Image file, with its path from the folder on.

    Attributes:
        path: from the folder that was named.
        size: width and height in pixels; None when it cannot be read.
        mode: Pillow's name of its colours.
        fault: why it cannot be read.
    """

    path: Path
    size: tuple[int, int] | None = None
    mode: str = ""
    fault: str = ""


def read_pictures(root: Path) -> list[Picture]:
    """Read every image file below a folder; each is decoded, since a truncated file has a whole header."""
    pillow = _pillow()
    if pillow is None:
        return []
    files = [p for p in _files(root) if p.suffix.lower() in SUFFIXES]
    return [_look(path, root, pillow) for path in each(files, "looking at images")]


def pictures(found: list[Picture], side: int | None = None) -> list[Finding]:
    """Return findings on unreadable images, mixed sizes, mixed or unusual modes; ``side`` is the side all get."""
    return [*_unreadable(found), *_sizes(found, side), *_modes(found)]


def narrow(dataset: Dataset) -> list[Finding]:
    """Return a finding on images all of whose pixels lie in a small part of the range."""
    made = dataset.preparation
    if dataset.x.dtype != torch.uint8 and (made is None or made.kind != "image"):
        return []
    scale = 255 if dataset.x.dtype == torch.uint8 else 1  # bytes become 0..1 when they are shared out
    low, high = (float(end) / scale for end in dataset.x.aminmax())
    if high - low >= NARROW:
        return []
    return [
        Finding(
            "narrow-range",
            "warning",
            f"all pixels of all images lie between {low:.3g} and {high:.3g}, of a range from 0 to 1",
            "differences that small are learned slowly; images of 10 or 12 bits in files of 16 look like this, since "
            "the upper 8 of the 16 are read",
            "stretch the values to the whole range, all images in the same way (12 bits in 16: multiply by 16)",
        )
    ]


def others(root: Path) -> list[Finding]:
    """Return findings on files that the reader passes over although they may be images."""
    left = [str(p.relative_to(root)) for p in _files(root) if p.suffix.lower() in OTHER_IMAGES]
    if not left:
        return []
    return [
        Finding(
            "files-ignored",
            "warning",
            f"{counted(len(left), 'image file')} of a kind that is not read: {first(left)}",
            f"only {', '.join(sorted(SUFFIXES))} are read; the others are missing without a word",
            "convert them",
            rows=tuple(left[:EXAMPLES]),
        )
    ]


def labels_of(found: list[Picture]) -> tuple[list[str], list[str]]:
    """Return class and client of each image by its folders, ``class/file`` or ``client/class/file``.

    There are no clients in the former.

    Both are empty if the folders do not have such a layout.
    """
    parts = [p.path.parts[:-1] for p in found]
    if any(len(p) > 1 and p[0].lower() in TRAIN for p in parts):
        parts = [p[1:] for p in parts]  # below train/, val/, test/
    depths = {len(p) for p in parts}
    if depths == {1}:
        return [p[0] for p in parts], []
    if depths == {2}:
        return [p[1] for p in parts], [p[0] for p in parts]
    return [], []


def listing(root: Path) -> tuple[str, ...]:
    """Return the folders with images, and the number of images in each."""
    counts = Counter(str(p.parent.relative_to(root)) for p in _files(root) if p.suffix.lower() in SUFFIXES)
    lines = [f"{folder}/: {counted(count, 'image')}" for folder, count in sorted(counts.items())]
    return tuple(lines[:20]) + ((f"and {len(lines) - 20} more folders",) if len(lines) > 20 else ())


def _unreadable(found: list[Picture]) -> list[Finding]:
    broken = [p for p in found if p.size is None]
    if not broken:
        return []
    return [
        Finding(
            "unreadable-image",
            "error",
            f"{counted(len(broken), 'image')} of {len(found):,} that cannot be read: {broken[0].path} "
            f"({broken[0].fault})",
            "the reader stops at the first of them",
            "copy these files anew, or remove them",
            rows=tuple(f"{p.path}: {p.fault}" for p in broken[:EXAMPLES]),
        )
    ]


def _sizes(found: list[Picture], side: int | None) -> list[Finding]:
    by_size: dict[tuple[int, int], list[Picture]] = defaultdict(list)
    for p in found:
        if p.size is not None:
            by_size[p.size].append(p)
    if len(by_size) < 2:
        return []
    order = sorted(by_size, key=lambda size: -len(by_size[size]))
    shown = [f"{w} x {h} ({len(by_size[w, h]):,})" for w, h in order]
    what = f"images of {len(order)} sizes (width x height): {first(shown)}"
    rows = tuple(str(by_size[size][0].path) for size in order[1 : EXAMPLES + 1])
    if side is None:
        smallest = min(min(size) for size in order)
        return [
            Finding(
                "mixed-image-sizes",
                "error",
                what,
                "a network takes images of one size, and the reader refuses others",
                f"let fedkin bring them to one, --image-size {usual_side(smallest)}; or crop them, or remove the odd "
                "ones",
                rows=rows,
            )
        ]
    shapes = [w / h for w, h in order]
    if max(shapes) <= MOST_STRETCHED * min(shapes):
        return []
    return [
        Finding(
            "mixed-image-sizes",
            "note",
            f"{what}; all become {side} x {side}",
            f"width by height is {min(shapes):.2g} to {max(shapes):.2g}, so some are stretched much more than others",
            "crop them to one shape first if shapes matter",
            rows=rows,
        )
    ]


def _modes(found: list[Picture]) -> list[Finding]:
    by_mode: dict[str, list[Picture]] = defaultdict(list)
    for p in found:
        if p.size is not None:
            by_mode[p.mode].append(p)
    odd = sorted(set(by_mode) - _PLAIN)
    if len(by_mode) < 2 and not odd:
        return []
    order = sorted(by_mode, key=lambda mode: -len(by_mode[mode]))
    shown = [f"{mode} ({len(by_mode[mode]):,})" for mode in order]
    return [
        Finding(
            "mixed-image-modes",
            "warning",
            f"images of modes {first(shown)}",
            "all become grey or RGB with 8 bits: transparency and finer greys are lost, grey ones among coloured ones "
            "get three equal channels; where classes or clients differ in mode, it gives them away",
            "convert all images to one mode, grey or RGB",
            rows=tuple(str(by_mode[mode][0].path) for mode in (order[1:] or order)[:EXAMPLES]),
        )
    ]


def _look(path: Path, root: Path, pillow: Any) -> Picture:
    name = path.relative_to(root)
    try:
        with opened(path, pillow) as image:
            image.load()
            return Picture(name, tuple(image.size), str(image.mode))
    except (*FAULTS, DataError) as error:
        return Picture(name, fault=str(error).replace(str(path), name.name))


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:  # the reader names the extra to install
        return None


def _files(root: Path) -> list[Path]:
    return sorted(
        p for p in root.rglob("*") if p.is_file() and not any(s.startswith(".") for s in p.relative_to(root).parts)
    )
