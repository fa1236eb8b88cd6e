"""Tuning of a comparison's methods: what was chosen on validation data and at what cost, as a file and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedkin.core.errors import RunFolderError, counted, typed
from fedkin.evaluate import spread
from fedkin.report.tables import DASH, Grid, percent, short
from fedkin.report.wording import say
from fedkin.storage.files import write_atomic

FILE = "tuning.json"
"""File of a comparison's folder with a `Tuned` for each method."""


@dataclass(frozen=True)
class Tuned:
    """How a method of a comparison was tuned.

    Attributes:
        method: its name, of user-defined code that of the class.
        title: its name in tables.
        seed: the seed of all trials.
        trials: number of settings that were tried; the first is the comparison's own.
        failed: number of those that failed or diverged.
        trial: number of the chosen one, from 1; 0 if all failed, the comparison's own setting is then used.
        chosen: setting, such as ``training.lr`` -> its value.
        validation: validation accuracy of the chosen setting, a fraction; None if all failed.
        untuned: that of the first trial; None if it failed.
        seconds: seconds of all trials, rounds and evaluations.
        ends: a clause for each chosen number that lies at an end of its range.
        megabytes: sent up and down in the chosen trial.
    """

    method: str
    title: str
    seed: int
    trials: int
    failed: int
    trial: int
    chosen: Mapping[str, int | float | bool | str]
    validation: float | None
    untuned: float | None
    seconds: float
    ends: Sequence[str] = ()
    megabytes: float | None = None

    @property
    def text(self) -> str:
        """The chosen settings, as "lr 0.0316, mu 0.1"."""
        return setting_text(self.chosen)


def plain_setting(name: str) -> str:
    """Return a setting's name without its table: "lr" of ``training.lr``."""
    return name.rpartition(".")[2]


def setting_text(values: Mapping[str, int | float | bool | str]) -> str:
    """Return settings as "lr 0.0316, mu 0.1", without their tables."""
    return ", ".join(f"{plain_setting(name)} {value}" for name, value in values.items())


def write_tuned(folder: Path, tuned: Sequence[Tuned]) -> None:
    """Write the file of a comparison's folder."""
    write_atomic(folder / FILE, (json.dumps([asdict(one) for one in tuned], indent=2) + "\n").encode())


def read_tuned(folder: Path) -> list[Tuned]:
    """Return how the methods of a comparison were tuned; empty if they were not, or not all of them yet.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = folder / FILE
    try:
        return [Tuned(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, OSError) as e:
        raise RunFolderError(
            f"{path} cannot be read ({e}); remove it, then make it again: fedkin resume {typed(folder)}"
        ) from e


def tuning_note(tuned: Sequence[Tuned]) -> str:
    """Return a clause for captions; empty if no method was tuned."""
    if not tuned:
        return ""
    one = tuned[0]
    return f"every method with the best of {counted(one.trials, 'setting')} on validation data of seed {one.seed}"


def tuning_table(tuned: Sequence[Tuned]) -> Grid:
    """Return a table of what was chosen for each method, and the seconds that it took."""
    rows = tuple(
        (one.title, one.text, str(one.trial or DASH), percent(spread([one.validation])),
         percent(spread([one.untuned])), DASH if one.megabytes is None else short(one.megabytes),
         f"{one.seconds:,.1f}")
        for one in tuned
    )  # fmt: skip
    trials, seed = (tuned[0].trials, tuned[0].seed) if tuned else (0, 0)
    failed = [f"{one.failed} of {one.title}" for one in tuned if one.failed]
    note = say("tuning_note", trials, seed, failed)
    columns = ("method", "chosen", "trial", "validation %", "untuned %", "MB", "seconds")
    return Grid("Tuning", columns, rows, note=note, words=2)


def tuning_warnings(
    tuned: Sequence[Tuned], private: bool = False, fair: bool = True
) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return caveats on what was chosen: kind, text, methods; ``private``: the runs have privacy options, ``fair``:
    accuracy is the headline of the comparison."""
    warnings: list[tuple[str, str, tuple[str, ...]]] = []
    warnings += [("end of range", f"{end}.", (one.title,)) for one in tuned for end in one.ends]
    failed = "all {} trials failed or diverged; it has its own setting."
    warnings += [("tuning failed", failed.format(one.trials), (one.title,)) for one in tuned if not one.trial]
    if tuned and not fair:
        warnings.append(("tuned by accuracy", "Settings were chosen by validation accuracy, which a constant answer "
                         "can lead here: look at their balanced accuracy before relying on them.", ()))  # fmt: skip
    if private and tuned:
        runs = counted(tuned[0].trials, "further run")
        warnings.append(("privacy of tuning", f"The privacy that is stated is that of one run. Tuning made {runs} of "
                         "each method on the same training data, which count as well.", ()))  # fmt: skip
    return warnings
