"""Conversion of raw rows to inputs of a network, and checks for unusual values; needs numpy and nothing of fedkin.

Every export contains it as ``prepare.py``, where ``load.py`` uses it. Files are read as text, nothing in them is run.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Fields of a table, in lower case, that hold no value."""
FAR = 3.0  # widths of the training range beyond its ends; values further out are probably on another scale
FAR_PIXELS = 0.25  # the same for images, whose range is bounded
TINY = 1 / 50  # inputs all below this fraction of the training's magnitude are probably on another scale
SOME = 16  # number of values from which TINY is applied
ROUNDED = 1e-4  # part of a column's deviation by which rounding may have moved the ends of its range
ALL_OUTSIDE = 5  # number of rows from which a warning says that all lie outside the training range
_TRUTH = {"true": "1", "false": "0", "1": "1", "0": "0"}
_DECIMAL = re.compile(r"^(\s*[-+]?\d+),(\d+(?:[eE][-+]?\d+)?\s*)$")
_SHOWN = 5

Raw = npt.NDArray[np.float64]
"""Rows of a table ``[n, inputs]`` before scaling: a number or NaN, or the place of a text among the categories and -1
for one that is not among them."""
Row = Mapping[str, object]
"""The fields of a row by column, as texts or numbers."""
Seen = Mapping[str, Any]
"""Ranges and texts of the training data in one column, or in all inputs: see ``ranges.json``."""


class RawError(ValueError):
    """Raised for a file or a row that cannot become an input; the message names the place."""


@dataclass(frozen=True)
class Input:
    """Column of a table as inputs of a network.

    A number becomes ``(value - mean) / std``, an empty field the mean, and with ``gaps`` a second input is 1 where the
    field was empty. A column that had one value or none in training (``std`` 0) gives 0: nothing could be learnt from
    it. A text becomes one input per category, all 0 for a text that is not among them.

    Attributes:
        name: as in the header.
        kind: the kind of its values.
        gaps: numbers: whether training rows had empty fields; texts: whether the empty text is a category.
        categories: texts that training rows had, sorted; an empty field is the text ``""``.
        mean, std: of the training rows: one value for all clients, or one per client; none for texts.
    """

    name: str
    kind: Literal["number", "text"]
    gaps: bool = False
    categories: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Number of inputs of a network that it becomes."""
        return len(self.categories) if self.kind == "text" else 1 + self.gaps


# ---- files ----------------------------------------------------------------------------------------------------------
def read_lines(
    path: Path, encoding: str | None = None, content: bytes | None = None
) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    """Return the header of a csv file, and its rows with the numbers of their lines.

    Fields are separated by commas, semicolons or tabs; with semicolons, decimal commas are read.

    Args:
        path: the file.
        encoding: of its text, such as ``cp1252``; None: UTF-8.
        content: its bytes, where they have been read already.

    Raises:
        RawError: the file cannot be read, has no row, or columns without a distinct name.
    """
    try:
        content = path.read_bytes() if content is None else content
        if encoding is None:
            _require_utf8(path, content[:4096])
        utf8 = encoding is None or codecs.lookup(encoding).name == "utf-8"
        file = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig" if utf8 else encoding, newline="")
        delimiter = _delimiter(next((line for line in file if line.strip()), ""))
        file.seek(0)
        lines = list(_rows(file, delimiter, path))
    except UnicodeError as error:
        raise RawError(_undecodable(path, content or b"", encoding, error)) from error
    except LookupError as error:
        raise RawError(f"{path}: there is no encoding {encoding!r} ({error}); usual ones: {_ENCODINGS}") from error
    except (OSError, csv.Error) as error:
        raise RawError(f"{path}: cannot be read as a csv file ({error})") from error
    if len(lines) < 2:
        raise RawError(f"{path}: expected a header line and at least one row, got {len(lines)} lines")
    header = tuple(field.strip().removeprefix(chr(0xFEFF)) for field in lines[0][1])
    if len(set(header)) < len(header) or "" in header:
        raise RawError(f"{path}: every column needs a name of its own, the header is {_listed(header, 20)}")
    if delimiter == ";":  # as spreadsheets write where 1,5 is one and a half
        return header, [(n, [_DECIMAL.sub(r"\1.\2", field) for field in row]) for n, row in lines[1:]]
    return header, lines[1:]


def _delimiter(line: str) -> str:
    """Return what separates the fields of a line; within quotes it is a part of a field."""
    return max(",;\t", key=re.sub(r'"[^"]*"', "", line).count)


def read_records(path: Path, encoding: str | None = None) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of a csv file by column, and the place of each for messages.

    Arguments and errors are those of `read_lines`.
    """
    header, body = read_lines(path, encoding)
    for line, row in body:
        if len(row) != len(header):
            raise RawError(f"{path}, line {line}: {len(row)} fields, the header has {len(header)}")
    return [dict(zip(header, row, strict=True)) for _, row in body], [f"{path.name}, line {n}" for n, _ in body]


def _rows(file: Iterable[str], delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the numbers of their last lines.

    A quote that is not closed would swallow the rows after it.
    """
    text: list[str] = []  # lines of the row that is being read
    last: list[str] = []  # and of the one before it

    def lines() -> Iterator[str]:
        for line in file:
            text.append(line)
            yield line

    reader, start = csv.reader(lines(), delimiter=delimiter), 1
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            fault = f"{path}, line {start}: cannot be read as a row of a csv file ({error})"
            raise RawError(_unclosed(path, start, reader.line_num) if len(text) > 1 else fault) from error
        if len(text) > 1 and _fault(text, delimiter):
            raise RawError(_unclosed(path, start, reader.line_num))
        if row is None:
            if _CUT in _fault(last, delimiter):
                raise RawError(_unclosed(path, reader.line_num, reader.line_num))
            return
        if row:
            yield reader.line_num, row
        last, start = text[:], reader.line_num + 1
        text.clear()


_CUT = "unexpected end of data"  # message of the csv module for a quote that is not closed
_ENCODINGS = "utf-8, cp1252 (Windows), latin1, utf-16"


def _fault(lines: Sequence[str], delimiter: str) -> str:
    """Return why these lines are not a well-formed row; empty if they are one. Rows of one line may be sloppy."""
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        return str(error)
    return ""


def _unclosed(path: Path, start: int, end: int) -> str:
    if end <= start:
        return f'{path}, line {start}: a quote (") opens in this line and is not closed; close it, or remove it'
    return (
        f'{path}, line {start}: a quote (") opens in the row that begins here and is not closed where its field ends '
        f"(the row would go on to line {end}); close it, or remove it"
    )


def _require_utf8(path: Path, begin: bytes) -> None:
    """Raise `RawError` for UTF-16, which may pass for UTF-8 with zero bytes between its letters."""
    marked = begin[:2] in (b"\xff\xfe", b"\xfe\xff")
    if marked or b"\0" in begin:
        what = f"begins with the bytes {begin[:2].hex(' ')}" if marked else "holds zero bytes"
        name = "utf-16" if marked else "utf-16-be" if begin[:1] == b"\0" else "utf-16-le"
        raise RawError(f"{path}, line 1: {what}, as UTF-16 text does, not UTF-8; {_save_as(name)}")


def _undecodable(path: Path, content: bytes, encoding: str | None, error: UnicodeError) -> str:
    """Return where the text of a file is not of its encoding, and what to do."""
    if encoding is not None:
        return f"{path}: is not {encoding} text ({error}); state another --encoding, usual ones: {_ENCODINGS}"
    header = ""
    for n, line in enumerate(io.BytesIO(content), start=1):
        try:
            text = line.decode("utf-8")
            header = header or text
        except UnicodeDecodeError as wrong:
            byte, before = line[wrong.start], line[: wrong.start].decode("utf-8")
            place = f"{path}, line {n}, character {len(before) + 1}{_column_at(before, header)}"
            letter = bytes([byte]).decode("cp1252", errors="ignore")
            meant = f" (in Windows-1252 it is {letter!r})" if letter.isprintable() and letter else ""
            return f"{place}: the byte 0x{byte:02x} is not UTF-8{meant}; {_save_as('cp1252' if letter else 'latin1')}"
    return f"{path}: is not UTF-8 text ({error}); {_save_as('cp1252')}"


def _column_at(before: str, header: str) -> str:
    """Return the name of the column that a line has come to."""
    delimiter = _delimiter(header or before)
    try:
        names = next(csv.reader([header], delimiter=delimiter), [])
        at = len(next(csv.reader([before + "x"], delimiter=delimiter))) - 1
    except csv.Error:  # the file is not only of another encoding
        return ""
    return f" (column {names[at].lstrip(chr(0xFEFF)).strip()!r})" if at < len(names) else ""


def _save_as(encoding: str) -> str:
    return (
        "in Excel save the file as 'CSV UTF-8', or state its encoding: "
        f"--encoding {encoding} (in Python encoding={encoding!r})"
    )


# ---- rows -----------------------------------------------------------------------------------------------------------
def raw_rows(rows: Sequence[Row], columns: Sequence[Input], places: Sequence[str] | None = None) -> Raw:
    """Return rows of a table before scaling; see `Raw`.

    Args:
        rows: the fields by column.
        columns: the inputs.
        places: where each row is from, for messages; None: its number, from 1.

    Raises:
        RawError: a column is not there, or a field of a column of numbers is not a number; the message names the row.
    """
    where = [f"row {i + 1}" for i in range(len(rows))] if places is None else places
    for place, row in zip(where, rows, strict=True):
        lacking = [c.name for c in columns if c.name not in row]
        if lacking:  # rows of a file all have the columns of its header
            raise RawError(
                f"{place if places is None else place.rpartition(', ')[0]}: {_lacking(lacking, row, columns)}"
            )
    out = np.empty((len(rows), len(columns)), dtype=np.float64)
    for j, column in enumerate(columns):
        out[:, j] = raw_column([text_of(row[column.name]) for row in rows], column, where)
    return out


def raw_column(texts: Sequence[str], column: Input, places: Sequence[str]) -> Raw:
    """Return one column before scaling, ``[n]``; see `Raw`.

    True and false may be written out or as 1 and 0, since csv files and parquet files differ in it.
    """
    if column.kind == "text":
        place_of = {category: float(i) for i, category in enumerate(column.categories)}
        if all(category.lower() in _TRUTH or not category for category in column.categories):
            named = {_TRUTH[c.lower()]: at for c, at in place_of.items() if c}
            place_of = {text: named[truth] for text, truth in _TRUTH.items() if truth in named} | place_of
            texts = [t.lower() if t not in place_of else t for t in texts]
        return np.array([place_of.get("" if t.lower() in MISSING else t, -1.0) for t in texts], dtype=np.float64)
    out = np.empty(len(texts), dtype=np.float64)
    for i, text in enumerate(texts):
        try:
            out[i] = math.nan if text.lower() in MISSING else number_of(_TRUTH.get(text.lower(), text))
        except ValueError:
            out[i] = math.inf
        if math.isinf(out[i]):
            raise RawError(
                f"{places[i]}: '{column.name}' is {text!r}; expected a finite number, or nothing where it is not known"
            )
    return out


def number_of(text: str) -> float:
    """Return a field as a number.

    Raises:
        ValueError: it is none. Python alone reads 1_000 as one, which is a code elsewhere.
    """
    if "_" in text:
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def text_of(value: object) -> str:
    """Return a field as the text that a csv file would hold: nothing for None, 1 and 0 for true and false."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value).strip()


def scaled(raw: Raw, columns: Sequence[Input]) -> npt.NDArray[np.float32]:
    """Return rows that `raw_rows` read as inputs, ``[n, inputs]``; each column has one mean and deviation."""
    out = np.zeros((len(raw), sum(column.width for column in columns)), dtype=np.float32)
    at = 0
    for values, column in zip(raw.T, columns, strict=True):
        if column.kind == "text":
            known = np.flatnonzero(values >= 0)
            out[known, at + values[known].astype(np.int64)] = 1.0
        else:
            if len(column.mean) > 1:
                raise RawError("each client has its own means and deviations; these are of several clients")
            mean, std = column.mean[0], column.std[0]
            missing = np.isnan(values)
            if std > 0:
                out[:, at] = (np.where(missing, mean, values) - mean) / std
            if column.gaps:
                out[:, at + 1] = missing
        at += column.width
    return out


def columns_of(preparation: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the columns of a ``preparation.json``."""
    lists = ("categories", "mean", "std")
    return tuple(Input(**{**entry, **{n: tuple(entry[n]) for n in lists}}) for entry in preparation["columns"])


# ---- what training did not have -------------------------------------------------------------------------------------
def unusual_rows(
    rows: Sequence[Row], raw: Raw, columns: Sequence[Input], seen: Mapping[str, Seen], unused: Collection[str | None]
) -> list[str]:
    """Compare these rows with the training rows: a sentence per column with other values, with counts.

    Args:
        rows: the fields by column.
        raw: the same rows from `raw_rows`.
        columns: the inputs.
        seen: the training data's ranges and texts, by column; columns that are not in it are not compared.
        unused: columns that training data may have and the network does not use: the class, the client.
    """
    found = []
    for values, column in zip(raw.T, columns, strict=True):
        of = seen.get(column.name, {})
        if column.kind == "text":
            warned = _texts([text_of(row[column.name]) for row in rows], values, column, of)
        else:
            warned = _numbers(values, column, of)
        found += [f"{column.name}: {text}" for text in warned]
    known = {*unused, *(column.name for column in columns)}
    new = list(dict.fromkeys(name for row in rows for name in row if name not in known))
    if new:
        found.append(f"not looked at, since the model does not know {_those(new)}: {_listed(new, 10)}")
    return found


def unusual_inputs(x: npt.NDArray[Any], seen: Seen) -> str | None:
    """Return a sentence if inputs ``[n, ...]`` seem to be on another scale than those of training, else None."""
    if not x.size or "low" not in seen:
        return None
    least, most = float(x.min()), float(x.max())
    low, high = _limits(seen, FAR_PIXELS if seen.get("pixels") else FAR)
    start, end = _ends(seen)
    if seen.get("pixels") and start >= 0:  # pixels have two usual scales, of which training images may use a part
        low, high = min(low, 0.0), max(high, 1.0 if end <= 1 else 255.0 if end <= 255 else high)
    size = max(abs(start), abs(end))
    small = x.size >= SOME and least < most and max(abs(least), abs(most)) <= TINY * size <= seen["std"]
    if low <= least and most <= high and not small:
        return None
    return (
        f"the inputs lie in {_short(least)}..{_short(most)}, those of training in {_range(seen)}: another scale? "
        "Prepare them as the training data were"
    )


def _numbers(values: Raw, column: Input, of: Seen) -> list[str]:
    there, n, found = values[~np.isnan(values)], len(values), []
    if len(there) < n and not column.gaps:
        found.append(f"empty in {n - len(there)} of {n} rows, and in no training row; the training mean is taken")
    if not len(there) or not of:
        return found
    if "low" not in of:
        return [*found, f"filled in {len(there)} of {n} rows, and in no training row"]
    low, high = _limits(of, FAR, *column.std[:1])
    start, end = _ends(of)
    rounded = ROUNDED * max(column.std, default=0.0) or 1e-12 * max(abs(start), abs(end))
    low, high, start, end = low - rounded, high + rounded, start - rounded, end + rounded
    far = (there < low) | (there > high)
    beyond = np.unique(there[(there < start) | (there > end)])
    if far.any():
        odd = np.unique(there[far])
        found.append(f"{int(far.sum())} of {n} rows outside {_range(of)} ({_some(odd)}): another scale?")
    elif len(there) >= ALL_OUTSIDE and ((there < start).all() or (there > end).all()):
        found.append(f"all {len(there)} rows outside {_range(of)} ({_some(beyond)}): another scale?")
    elif "values" in of:
        new = there[~np.isclose(there[:, None], np.array(of["values"])[None]).any(axis=1)]
        if len(new):
            known = ", ".join(map(_short, of["values"]))
            found.append(f"{_some(np.unique(new))} in {len(new)} of {n} rows; training had {known}")
    return found


def _texts(texts: Sequence[str], values: Raw, column: Input, of: Seen) -> list[str]:
    """Return texts that no training row had, or none of this client's: none of the column's inputs is 1 then."""
    found, n = [], len(values)
    new = np.flatnonzero(values < 0).tolist()
    if new:
        odd = sorted({texts[i] for i in new})
        known = _listed([c or "nothing" for c in column.categories], 8)
        found.append(
            f"{_listed([repr(t) for t in odd], _SHOWN)} in {len(new)} of {n} rows; training had {known}. Such a field "
            f"carries no information for the model{_alike(odd, column.categories)}"
        )
    if "texts" in of:
        own = [at for at, text in enumerate(column.categories) if text not in of["texts"]]
        others = np.flatnonzero(np.isin(values, own))
        if len(others):
            odd = sorted({column.categories[int(values[i])] for i in others})
            listed = _listed([repr(t) if t else "nothing" for t in odd], _SHOWN)
            found.append(f"{listed} in {len(others)} of {n} rows; no training row of this client had it")
    return found


def _alike(texts: Sequence[str], known: Sequence[str]) -> str:
    """Return which texts are known ones in other capitals, or with letters that are composed in another way."""
    usual = {_folded(text): text for text in known}
    pairs = [f"{text!r} is {usual[_folded(text)]!r}" for text in texts if _folded(text) in usual]
    if not pairs:
        return ""
    return f"; {_listed(pairs, _SHOWN)} but for capitals or the form of its letters (Unicode): write it in the same way"


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _limits(of: Seen, far: float, std: float = 0.0) -> tuple[float, float]:
    """Return bounds beyond which values are far from all training values; infinite if the range is not informative."""
    start, end = _ends(of)
    width = max(of["high"] - of["low"] or end - start, std)
    if not width and "min" not in of:
        return -math.inf, math.inf
    return min(start, of["low"] - far * width), max(end, of["high"] + far * width)


def _ends(of: Seen) -> tuple[float, float]:
    return float(of.get("min", of["low"])), float(of.get("max", of["high"]))


def _range(of: Seen) -> str:
    return "..".join(map(_short, _ends(of)))


def _lacking(names: Sequence[str], row: Row, columns: Sequence[Input]) -> str:
    those = f"column {names[0]!r}" if len(names) == 1 else f"columns {', '.join(map(repr, names))}"
    given = {str(name).lower().strip(): str(name) for name in row}
    close = [(name, get_close_matches(name.lower(), given, n=1, cutoff=0.8)) for name in names]
    meant = [f"{given[found[0]]!r} for {name!r}" for name, found in close if found]
    return (
        f"no {those}; needed are {', '.join(c.name for c in columns)}, given are {', '.join(map(str, row)) or 'none'}"
        + (f"; did you write {', '.join(meant)}?" if meant else "")
    )


def _those(names: Sequence[str]) -> str:
    return "this column" if len(names) == 1 else "these columns"


def _some(values: Raw) -> str:
    if len(values) <= 3:
        return ", ".join(_short(v) for v in values)
    return f"{_short(values[0])} to {_short(values[-1])}"


def _short(value: float) -> str:
    return f"{value:.6g}" if abs(value) < 1e6 and not float(value).is_integer() else f"{value:.15g}"


def _listed(names: Sequence[str], limit: int) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
