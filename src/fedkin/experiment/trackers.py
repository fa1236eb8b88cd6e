"""Runs reported to experiment trackers: TensorBoard, MLflow, Weights & Biases. None of them can stop or change a run.

What is sent: the settings, every round's figures, and at the end the final figures and the report; of a trial, whose
settings must not be chosen by test figures, those of validation alone. ``trackers.json`` in a run's folder holds under
which names, so that a resumed run goes on with the same entry.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from fedkin.core import ConfigError
from fedkin.core.grammar import Fields, Table
from fedkin.experiment.listing import metric_of
from fedkin.record.figures import GROUPED, METRICS, OTHER_MOMENT
from fedkin.record.lines import Figures, RoundLine
from fedkin.record.result import Result
from fedkin.storage.files import write_atomic

TrackerName = Literal["tensorboard", "mlflow", "wandb"]
FILE = "trackers.json"
_log = logging.getLogger("fedkin.experiment.trackers")


class Tracker(Protocol):
    """One tracker's entry for one run."""

    id: str
    """By which the entry is found again."""

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""

    def end(self, figures: Mapping[str, float], report: Path | None) -> None:
        """Log the final figures, and the report if there is one; close the entry."""


class TensorBoard:
    """Event files in ``RUN/tensorboard``, by the writer that comes with torch."""

    def __init__(self, folder: Path, title: str, config: Table, known: str | None) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer: Any = writer(str(folder / "tensorboard"))
        self.id = "tensorboard"
        if known is None:
            rows = "\n".join(f"| {k} | {v} |" for k, v in config.items())
            self._writer.add_text("config", f"| setting | value |\n| :-- | :-- |\n{rows}")

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, figures: Mapping[str, float], report: Path | None) -> None:
        """Log the final figures and the path of the report."""
        for name, value in figures.items():
            self._writer.add_scalar(f"final/{name}", value, 0)
        if report is not None:
            self._writer.add_text("report", str(report))
        self._writer.close()


class MLflow:
    """An entry of the experiment "fedkin", at MLFLOW_TRACKING_URI or in the folder ``mlruns`` next to RUN."""

    def __init__(self, folder: Path, title: str, config: Table, known: str | None) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a plain folder, which newer versions ask to confirm
        place = os.environ.get("MLFLOW_TRACKING_URI") or (folder.parent / "mlruns").absolute().as_uri()
        self._client: Any = importlib.import_module("mlflow").MlflowClient(tracking_uri=place)
        if known is None:
            experiment = self._client.get_experiment_by_name("fedkin")
            number = self._client.create_experiment("fedkin") if experiment is None else experiment.experiment_id
            known = str(self._client.create_run(number, run_name=f"{title} {folder.name}").info.run_id)
            for name, value in config.items():
                self._client.log_param(known, name, value)
        else:
            self._client.update_run(known, status="RUNNING")
        self.id = known

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        for name, value in figures.items():
            self._client.log_metric(self.id, name, value, step=number)

    def end(self, figures: Mapping[str, float], report: Path | None) -> None:
        """Log the final figures and the report, and end the run."""
        for name, value in figures.items():
            self._client.log_metric(self.id, f"final_{name}", value)
        if report is not None:
            self._client.log_artifact(self.id, str(report))
        self._client.set_terminated(self.id)


class WeightsAndBiases:
    """A run of the project "fedkin" in ``RUN/wandb``: offline unless WANDB_MODE or WANDB_API_KEY is set."""

    def __init__(self, folder: Path, title: str, config: Table, known: str | None) -> None:
        wandb: Any = importlib.import_module("wandb")
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedkin"),
            name=f"{title} {folder.name}",
            dir=str(folder),
            config=dict(config),
            id=known,
            resume="allow",
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._html = wandb.Html
        self.id = str(self._run.id)

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        self._run.log(dict(figures), step=number)

    def end(self, figures: Mapping[str, float], report: Path | None) -> None:
        """Log the final figures and the report, and end the run."""
        self._run.summary.update({f"final/{name}": value for name, value in figures.items()})
        if report is not None:
            self._run.log({"report": self._html(report.read_text(encoding="utf-8"), inject=False)})
        self._run.finish()


_KINDS: dict[str, Callable[[Path, str, Mapping[str, Any], str | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class Tracking:
    """The trackers of one run; a tracker that fails is named once and left out from there on."""

    def __init__(self, names: Sequence[str], folder: Path, title: str, table: Table) -> None:
        self._names, self._folder, self._title, self._table = tuple(names), folder, title, table
        self._open: dict[str, Tracker] | None = None
        self._trial = metric_of(folder) == "validation"

    def round(self, line: RoundLine) -> None:
        """Log a round that has ended."""
        figures = {} if line.figures is None else self._shown(line.figures)
        figures |= {n: float(getattr(line, n)) for n in ("bytes_up", "bytes_down", "bytes_evaluation")}
        figures |= {n: float(len(getattr(line, n))) for n in ("answered", "refused")}
        self._tell(lambda tracker: tracker.round(line.round, figures))

    def _shown(self, figures: Figures) -> dict[str, float]:
        names = ("validation",) if self._trial else (*METRICS, *GROUPED, *OTHER_MOMENT)
        return {n: v for n in names if (v := figures.of(n)) is not None}

    def end(self) -> None:
        """Log the end of the run, after its report was written; a run that failed has no final figures."""
        if not self._names:
            return
        run = Result.open(self._folder) if (self._folder / "config.toml").is_file() else None
        figures = self._shown(run.final) if run is not None and run.ended else {}
        report = self._folder / "report.html"
        self._tell(lambda tracker: tracker.end(figures, report if report.is_file() else None))
        self._open = {}

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        trackers = self._begun()
        for name in list(trackers):
            try:
                what(trackers[name])
            except Exception as e:
                _failed(name, e)
                del trackers[name]

    def _begun(self) -> dict[str, Tracker]:
        """Opened at the first round: there is a run folder then."""
        if self._open is None:
            known, self._open = read_ids(self._folder), {}
            for name in self._names:
                try:
                    self._open[name] = _KINDS[name](self._folder, self._title, _flat(self._table), known.get(name))
                except Exception as e:
                    _failed(name, e)
            if self._names:
                ids = {name: self._open[name].id if name in self._open else known.get(name) for name in self._names}
                write_atomic(self._folder / FILE, (json.dumps(ids, indent=2) + "\n").encode())
        return self._open


class TrackedRuns:
    """The trackers of several runs, one after another; ``folder`` is that of them all."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._names, self._folder = tuple(names), folder
        self._now: tuple[Path, Tracking] | None = None

    def round(self, place: Path, title: str, table: Table, line: RoundLine) -> None:
        """Log a round of the run in ``place``."""
        if not self._names:
            return
        if self._now is None or self._now[0] != place:
            self.end()
            write_atomic(self._folder / FILE, (json.dumps(dict.fromkeys(self._names), indent=2) + "\n").encode())
            self._now = place, Tracking(self._names, place, title, table)
        self._now[1].round(line)

    def end(self) -> None:
        """Log the end of the run that began last."""
        if self._now is not None:
            self._now[1].end()
        self._now = None


def require(names: Sequence[str]) -> None:
    """Raise `ConfigError` if a tracker's package is not installed, before anything is trained."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f'--track {name} needs its package: pip install "fedkin[{name}]"')


def read_ids(folder: Path) -> dict[str, str | None]:
    """Tracker -> its entry's id, as a former life of the run left them; empty without one."""
    path = folder / FILE
    try:
        result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        return {}
    return {n: i for n, i in result.items() if n in _KINDS} if isinstance(result, dict) else {}


def _failed(name: str, error: Exception) -> None:
    what = f"{type(error).__name__}: {error}"
    _log.warning("%s does not take what it is sent (%s); the run goes on without it", name, what)


def _flat(table: Table, before: str = "") -> Fields:
    """Nested tables as names with dots."""
    result: Fields = {}
    for name, value in table.items():
        result |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return result
