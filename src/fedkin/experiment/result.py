"""The result of a run, and the finished run from which models can be exported."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedkin.core import Bundle, RunFolderError
from fedkin.core.errors import typed
from fedkin.data import Federation
from fedkin.engines import Job
from fedkin.experiment.listing import require_run_or_comparison, run_folders
from fedkin.experiment.planned import planned_runs
from fedkin.experiment.prepare import Experiment
from fedkin.report.folder import Run, brief, read_run
from fedkin.report.frames import frame
from fedkin.server import Server
from fedkin.storage.folders import require_folder

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class FinalMetrics:
    """Final figures of a run: the mean of each metric over the evaluated rounds in the last fifth of the run, at most
    ten (`fedkin.evaluate.rounds.window`); clients that are missing in some of them count there too
    (`fedkin.evaluate.final`).

    All metrics are fractions in [0, 1], except the adjusted Rand indices, which may be slightly below 0. None: no
    evaluated round has the metric. ``dataclasses.asdict(result.final)`` makes a dictionary of it.

    Attributes:
        accuracy: test accuracy, mean over clients.
        pooled: test accuracy over the test samples of all clients together.
        std: population standard deviation of the clients' test accuracies.
        worst_decile: mean test accuracy of the worst tenth of the clients.
        macro_f1: macro-F1, mean over clients.
        macro_f1_weighted: macro-F1, mean over clients weighted by their number of test samples.
        balanced: balanced accuracy, mean over clients.
        few: accuracy on classes of which the client has 1 to 29 training samples, over all clients.
        medium: accuracy on classes of which the client has 30 to 80 training samples, over all clients.
        many: accuracy on classes of which the client has more than 80 training samples, over all clients.
        unseen: accuracy on classes of which the client has no training samples, over all clients.
        validation: validation accuracy, mean over the clients that have validation samples.
        majority: accuracy of always predicting the client's most frequent training class, mean over clients.
        majority_balanced: balanced accuracy of the same prediction, mean over clients.
        ari: adjusted Rand index between the true groups and the clusters that the server used.
        ari_evaluated: adjusted Rand index between the true groups and the clusters that clients chose at evaluation.
        accuracy_trained: test accuracy of the models after the last local training, where these are other models.
        accuracy_delivered: with ``evaluate="trained"``, test accuracy of the models that clients would predict with.
        rounds: the rounds that were averaged, as text: "rounds 81 to 100", "round 1" or "no round".
        rounds_averaged: number of rounds that were averaged.
        first_round: the first of them.
        last_round: the last of them.
    """

    accuracy: float | None
    pooled: float | None
    std: float | None
    worst_decile: float | None
    macro_f1: float | None
    macro_f1_weighted: float | None
    balanced: float | None
    few: float | None
    medium: float | None
    many: float | None
    unseen: float | None
    validation: float | None
    majority: float | None
    majority_balanced: float | None = None
    ari: float | None = None
    ari_evaluated: float | None = None
    accuracy_trained: float | None = None
    accuracy_delivered: float | None = None
    rounds: str
    rounds_averaged: int
    first_round: int | None
    last_round: int | None


@dataclass
class Result:
    """Result of a run.

    Attributes:
        title: the method's display name.
        seed: the run's seed.
        rounds, clients, relations: the lines of ``rounds.jsonl``, ``clients.jsonl`` and ``relations.jsonl``; relations
            are read from their file where there is one, and those of clients where the run keeps states in files;
            otherwise they are lists.
        final: final figures: accuracy and other metrics, averaged over the last evaluated rounds.
        best: round number and metrics of the round with the highest validation accuracy; None without validation data.
        summary: settings and figures, as in ``summary.json``; ``summary["diverged"]`` is the first round in which
            training has diverged (`fedkin.evaluate.diverged`), and is absent if it has not; ``summary["stopped"]`` says
            when and why the run ended early (``stop_after``), and is absent if it did not.
        server: the server after the last round, with all models.
        folder: the run folder, or None if the run was kept in memory.
        finished: the run with its clients, from which `fedkin.export` takes models; simulations only.
    """

    title: str
    seed: int
    rounds: list[dict[str, Any]]
    clients: Sequence[dict[str, Any]]
    relations: Sequence[dict[str, Any]]
    final: FinalMetrics
    best: dict[str, Any] | None
    summary: dict[str, Any]
    server: Server
    folder: Path | None = None
    finished: FinishedRun | None = None

    def __repr__(self) -> str:
        return f"Result({brief(self.title, self.seed, self.rounds, self.summary)})"

    def to_frame(self, kind: Literal["clients", "rounds"] = "clients") -> DataFrame:
        """Return the figures of the run as a pandas DataFrame (``pip install "fedkin[pandas]"``).

        Frames of several runs can be concatenated: their first columns are ``method`` and ``seed``.

        ``to_frame()`` has one row per evaluated round and client:

        - ``method``, ``seed``, ``round``, ``client``: display name, seed, round from 1, client from 0.
        - ``accuracy``, ``balanced``, ``macro_f1``, ``validation_accuracy``: fractions; NaN without such samples.
        - ``correct``, ``n_test``, ``n_validation``: number of correct test samples, of test and validation samples.
        - ``majority``: number of test samples of the client's most frequent training class.
        - ``few_correct``, ``few_total``, and the same of ``medium``, ``many``, ``unseen``: correct and all test samples
          of classes of which the client has 1 to 29, 30 to 80, more than 80, or no training samples.
        - Where the run has them: ``client_name``; ``n_train``, number of training samples (not with privacy options);
          ``group``, the true group, -1 if unknown; ``cluster``, the cluster that the client chose at the evaluation;
          ``accuracy_trained`` and the like, accuracy of further models of the method; ``note_share``, the share of the
          method in a safe form's prediction, and other numbers that a method notes on a client.

        ``to_frame("rounds")`` has one row per round:

        - ``method``, ``seed``, ``round``, ``evaluated``, ``abandoned``.
        - The metrics of `FinalMetrics` in this round; NaN where it was not evaluated.
        - ``cohort``, ``answered``, ``joined``, ``absent``, ``refused``, ``missing``: number of clients that were asked
          to train, whose update was used, that joined, could not be reached, whose update or evaluation was refused,
          and that sent no update.
        - ``bytes_up``, ``bytes_down``, ``bytes_evaluation``: bytes sent by and to all clients.
        - ``clients``, ``clients_without_test``: number of evaluated clients with and without test samples.
        - ``clusters``: number of clusters, where the method has them.

        Args:
            kind: "clients" or "rounds".

        Raises:
            ConfigError: another kind, or pandas is not installed.
        """
        return frame(kind, self.title, self.seed, self.rounds, self.clients, self.summary)


def read_runs(folder: Path | str) -> list[Run]:
    """Read the finished runs of a comparison, or a single run.

    Runs that are not finished are omitted, with a warning.

    Args:
        folder: a run folder, or the folder of a comparison.

    Returns:
        the runs, in the order of their folders' names; `Run.to_frame` makes DataFrames of them.

    Raises:
        RunFolderError: the folder does not exist, is neither a run nor a comparison, or has no finished run; or a file
            is damaged.
    """
    folder = Path(folder)
    require_folder(folder)
    require_run_or_comparison(folder)
    if not (folder / "compare.toml").is_file():
        return [read_run(folder)]
    places = list(run_folders(folder))
    done = [place for place in places if (place / "summary.json").is_file()]
    again = f"go on with: fedkin resume {typed(folder)}"
    if not done:
        raise RunFolderError(f"{folder} has no finished run; {again}")
    if len(done) < (planned := planned_runs(folder) or len(places)):
        warnings.warn(f"{len(done)} of {planned} runs in {folder} are finished; {again}", stacklevel=2)
    return [read_run(place) for place in done]


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A run after its last round, all clients with it: what `fedkin.exporting` takes models from.

    Attributes:
        experiment: what stayed the same.
        job: the clients' data, and how they train.
        federation: the data as they were given: names of classes and clients.
        joins: the round in which each client came.
        server: the server after the last round.
        states: every client's private state after it.
        folder: where the run was written, or None.
    """

    experiment: Experiment
    job: Job
    federation: Federation
    joins: Sequence[int]
    server: Server
    states: Mapping[int, Bundle]
    folder: Path | None = None
