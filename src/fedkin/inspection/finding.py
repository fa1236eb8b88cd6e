"""Result of an inspection: findings, and what was understood of the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
EXAMPLES = 5  # places that a finding names


@dataclass(frozen=True)
class Finding:
    """Something in the data that looks wrong.

    Attributes:
        code: kind of finding, in words joined by dashes, such as ``constant-at-client``; it stays the same.
        severity: ``error``: cannot be trained on; ``warning``: results will mislead or suffer; ``note``: worth knowing.
        what: what was seen, with its figures.
        why: why it matters.
        todo: what to do about it.
        columns: the columns concerned.
        clients: names of the clients concerned, perhaps only the first.
        rows: where the first cases are: lines of files, names of files, samples of clients.
    """

    code: str
    severity: Severity
    what: str
    why: str
    todo: str
    columns: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of one input column of a table: its name, kind (``number`` or ``text``), number of different values,
    share of the rows without one, and the range of numbers or the first texts."""

    name: str
    kind: str
    distinct: int
    missing: float
    values: str


@dataclass(frozen=True)
class ClientSummary:
    """Summary of one client: its samples in each part, and of each class.

    Attributes:
        name: the client's name, or "client 3".
        train, validation, test: number of samples in each part.
        counts: samples of each class, all parts together, one for each of the inspection's ``classes``.
        majority: name of the most frequent class of the training part, the first of equals.
        majority_train: fraction of the training part that is of this class.
        majority_test: the same of the test part: the accuracy of always predicting it; None without a test part.
    """

    name: str
    train: int
    validation: int
    test: int
    counts: tuple[int, ...]
    majority: str = ""
    majority_train: float | None = None
    majority_test: float | None = None


@dataclass(frozen=True)
class Inspection:
    """Result of an inspection: a description of the data, and findings. Parts that could not be read are empty.

    Attributes:
        data: name or path of the data.
        kind: what kind of source, in words.
        seen: first lines of a file, or names of files or arrays, even where these cannot be read.
        samples: number of samples that a run uses, all parts of all clients together; None when the data cannot be
            read.
        read: number of samples in the data: larger where the partition or ``samples_per_client`` leaves samples out,
            smaller where clients share samples; None where ``samples`` is, and for a federation.
        inputs: shape and type of one input, in words.
        classes: names of the classes.
        class_samples: samples of each class, as many as ``classes``.
        sharing: how samples were shared out to clients, in words.
        clients: the clients.
        columns: the columns of a table.
        findings: possible problems, errors first.
        advice: recommended settings, in sentences.
    """

    data: str
    kind: str
    seen: tuple[str, ...] = ()
    samples: int | None = None
    read: int | None = None
    inputs: str = ""
    classes: tuple[str, ...] = ()
    class_samples: tuple[int, ...] = ()
    sharing: str = ""
    clients: tuple[ClientSummary, ...] = ()
    columns: tuple[ColumnSummary, ...] = ()
    findings: tuple[Finding, ...] = ()
    advice: tuple[str, ...] = ()

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(f for f in self.findings if f.severity == severity)

    def usable(self, *, strict: bool = False) -> bool:
        """Return whether there is no error and, with ``strict``, no warning either."""
        return not self.of("error") and not (strict and self.of("warning"))

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a JSON text."""
        return asdict(self)


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return errors first, then warnings, then notes; otherwise in their order."""
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity)))


def first(names: Sequence[str], limit: int = EXAMPLES) -> str:
    """Return the first names, the rest counted."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def percent(share: float) -> str:
    """Return a fraction as "12 %"; a fraction above 0 is not shown as 0."""
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.3g} %"
