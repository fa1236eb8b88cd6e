"""Every line of a run folder, declared once.

Fields with their default are left out of a line. Fractions that are not defined (no test samples, no such classes) are
None. Nothing here needs torch.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

from fedkin.core.refusals import UNUSED, Refused, Stage

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)] | None
RandIndex: TypeAlias = Annotated[float, Meta(ge=-1, le=1)] | None
Ids: TypeAlias = tuple[Count, ...]
"""Numbers of clients."""
Pair: TypeAlias = tuple[Count, Count]
"""Correct and all test samples."""
Ended: TypeAlias = Literal["", "rounds", "early"]
"""Why a run has no further rounds; "" while it goes on."""
STAGES: tuple[Stage, ...] = get_args(Stage)


class Item(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What all lines have in common: unknown fields are errors, and a line does not change."""


class Figures(Item, frozen=True):
    """Figures of an evaluation over all clients.

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
        clients: number of clients with test samples.
        untested: number of evaluated clients without.
        unpredicted: clients whose model predicts NaN.
        only_class: the class that is predicted for all samples of all clients.
        views: mean accuracy of further models of the method: "trained" after the last local training, "delivered" what
            clients would predict with where that is another one.
        notes: numbers of the method about the answers before the evaluation.
    """

    accuracy: Fraction = None
    pooled: Fraction = None
    std: Fraction = None
    worst_decile: Fraction = None
    macro_f1: Fraction = None
    macro_f1_weighted: Fraction = None
    balanced: Fraction = None
    few: Fraction = None
    medium: Fraction = None
    many: Fraction = None
    unseen: Fraction = None
    validation: Fraction = None
    majority: Fraction = None
    majority_balanced: Fraction = None
    ari: RandIndex = None
    ari_evaluated: RandIndex = None
    clients: Count = 0
    untested: Count = 0
    unpredicted: Ids = ()
    only_class: Count | None = None
    views: dict[str, Fraction] = {}
    notes: dict[str, float | None] = {}

    def of(self, metric: str) -> float | None:
        """Return a metric by its name; ``accuracy_trained`` is the view "trained"."""
        view = metric.removeprefix("accuracy_")
        value: float | None = self.views.get(view) if view != metric else getattr(self, metric)
        return value


class FinalFigures(Figures, frozen=True):
    """Final figures of a run: the mean of each metric over the evaluated rounds in the last fifth of the run, at most
    ten (`fedkin.record.figures.window`); clients that are missing in some of them count there too.

    Attributes:
        rounds: the rounds that were averaged, ascending.
    """

    rounds: tuple[Count, ...] = ()


class RoundLine(Item, frozen=True):
    """A line of ``rounds.jsonl``.

    Attributes:
        round: from 1.
        cohort, answered: clients that were asked to train, and those whose upload was used.
        joined: clients that joined in this round.
        absent: clients that have joined and could not be reached, so they were not sampled.
        abandoned: fewer answers than the plan requires, so the state is that of the round before.
        refused: answers that were not used or did not arrive.
        bytes_up, bytes_down: bytes sent by and to clients for training, joining and queries.
        bytes_evaluation: bytes sent for the evaluation alone.
        limited: number of samples claimed and used of clients that claimed too large a share.
        private: private training by client: steps at each sampling rate.
        cluster_sizes: clients in each of the server's clusters.
        notes: numbers of the method about its state.
        figures: of the evaluation; None where the round was not evaluated.
    """

    round: Annotated[int, Meta(ge=1)]
    cohort: Ids = ()
    answered: Ids = ()
    joined: Ids = ()
    absent: Ids = ()
    abandoned: bool = False
    refused: tuple[Refused, ...] = ()
    bytes_up: Count = 0
    bytes_down: Count = 0
    bytes_evaluation: Count = 0
    limited: dict[Count, tuple[Count, Count]] = {}
    private: dict[Count, tuple[tuple[float, Count], ...]] = {}
    cluster_sizes: tuple[Count, ...] = ()
    notes: dict[str, float | None] = {}
    figures: Figures | None = None

    @property
    def accuracy(self) -> float | None:
        """Accuracy, mean over clients; None where the round was not evaluated."""
        return None if self.figures is None else self.figures.accuracy

    @property
    def bytes(self) -> int:
        """Bytes sent up and down."""
        return self.bytes_up + self.bytes_down

    def unused(self, *stages: Stage) -> list[Refused]:
        """Return the answers of these stages that clients computed and that were not used."""
        return [r for r in self.refused if r.stage in stages and r.code in UNUSED]

    def missing(self, *stages: Stage) -> list[Refused]:
        """Return the answers of these stages that did not arrive."""
        return [r for r in self.refused if r.stage in stages and r.code not in UNUSED]


class ClientLine(Item, frozen=True):
    """A line of ``clients.jsonl``: a client in an evaluated round.

    Attributes:
        round, client: when and who.
        n_test, correct: test samples, and those that are predicted correctly.
        n_validation, correct_validation: likewise of validation samples.
        majority: test samples of the client's most frequent training class, which always predicting this class gets
            right; None where the training counts are not known.
        test_classes: number of classes with test samples.
        macro_f1, balanced: macro-F1 and balanced accuracy.
        few, medium, many, unseen: correct and all test samples of classes of which the client has 1 to 29, 30 to 80,
            more than 80, or no training samples. The four totals add up to ``n_test``.
        cluster: the cluster that the client chose at the evaluation.
        labels: training samples by class, in a client's first line only.
        views: accuracy of further models of the method.
        notes: numbers of the method about the client.
        right: in the last round, a bit for each test sample, the most significant first: 1 where it is correct.
        test_part: in the last round, a digest of the test samples: equal for two runs on the same split.
        logits: in the last round, a digest of the logits for them: equal for two models that predict alike; "" if one
            is not finite.
    """

    round: Annotated[int, Meta(ge=1)]
    client: Count
    n_test: Count = 0
    correct: Count = 0
    n_validation: Count = 0
    correct_validation: Count = 0
    majority: Count | None = None
    test_classes: Count = 0
    macro_f1: Fraction = None
    balanced: Fraction = None
    few: Pair = (0, 0)
    medium: Pair = (0, 0)
    many: Pair = (0, 0)
    unseen: Pair = (0, 0)
    cluster: Count | None = None
    labels: tuple[Count, ...] = ()
    views: dict[str, Fraction] = {}
    notes: dict[str, float | None] = {}
    right: bytes = b""
    test_part: str = ""
    logits: str = ""

    @property
    def accuracy(self) -> float | None:
        """Test accuracy; None without test samples."""
        return self.correct / self.n_test if self.n_test else None

    @property
    def validation(self) -> float | None:
        """Validation accuracy; None without validation samples."""
        return self.correct_validation / self.n_validation if self.n_validation else None

    def of(self, metric: str) -> float | None:
        """Return a metric by its name; ``accuracy_trained`` is the view "trained", ``note_share`` the note "share"."""
        for kind, values in (("accuracy_", self.views), ("note_", self.notes)):
            if metric.startswith(kind):
                return values.get(metric.removeprefix(kind))
        value: float | Pair | None = getattr(self, metric)
        if isinstance(value, tuple):
            return value[0] / value[1] if value[1] else None
        return value


class RelationLine(Item, frozen=True):
    """A line of ``relations.jsonl``: who learned from whom in a round.

    Attributes:
        weights: client -> client that it learned from -> weight.
        clusters: the server's cluster of every client, -1 where none is known.
    """

    round: Annotated[int, Meta(ge=1)]
    weights: dict[Count, dict[Count, float]] = {}
    clusters: tuple[int, ...] = ()


class TimingLine(Item, frozen=True):
    """A line of ``timing.jsonl``: seconds of a round and its parts; ``training`` is the sum over clients."""

    round: Annotated[int, Meta(ge=1)]
    whole: Seconds
    exchange: Seconds = 0.0
    server: Seconds = 0.0
    evaluation: Seconds = 0.0
    training: Seconds = 0.0


class RunLine(Item, frozen=True):
    """``run.json``: what a run is, written before its first round.

    Attributes:
        fedkin: version that made it.
        title: display name of the method.
        role: what others are set against: "alone", "alone-full", "average", "safe"; "" for most methods.
        seed: seed of the run.
        clients: number of clients, over real hosts of those that have joined.
        engine: how it is computed, in words.
        gradient: how gradients are found, to go on with the same.
        command: makes the run again; "" if a program made it.
        attackers: simulated attackers.
        names, classes: names of clients and classes by number, where they have names.
        groups: true group of each client, -1 is unknown; empty where none is known.
        notes: caveats of the data and the method.
        marks: fingerprints of settings, data and networks, by which a run is recognised when it goes on.
        about: what they are of, as JSON, so that a message can say how two runs differ.
    """

    fedkin: str
    title: str
    seed: int
    clients: Count
    engine: str = ""
    gradient: str = ""
    command: str = ""
    attackers: Ids = ()
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    role: str = ""
    marks: dict[str, str] = {}
    about: dict[str, str] = {}


Line: TypeAlias = RoundLine | ClientLine | RelationLine | TimingLine
FILES: dict[str, type[Line]] = {
    "rounds": RoundLine, "clients": ClientLine, "relations": RelationLine, "timing": TimingLine,
}  # fmt: skip
"""The files of lines, ``NAME.jsonl``."""


Name: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}\Z")]
"""A digest as 40 hexadecimal digits: SHA-256, shortened, of an object; blake2b of other contents."""


class Mark(Item, frozen=True):
    """The end of a file at a commit: its size, and the digest of its content up to there."""

    bytes: Count
    digest: Name


class Snapshot(Item, frozen=True):
    """The state after a round, by the names of objects.

    Attributes:
        round: the round.
        server: what the server keeps, but for the banks named here, and the private states of clients in memory.
        clients: those that are in files.
        banks: rows of banks, by the bank's name.
    """

    round: Annotated[int, Meta(ge=1)]
    server: Name
    clients: dict[Count, Name] = {}
    banks: dict[str, Annotated[tuple[Name, ...], Meta(min_length=1)]] = {}

    def names(self) -> set[str]:
        """Return the names of all objects."""
        return {self.server, *self.clients.values()}.union(*self.banks.values())


class Commit(Item, frozen=True):
    """``commit.json``: what of a run's folder is whole; it is replaced last, after each round.

    Attributes:
        last: the state after the last whole round; None before the first.
        best: that after the round with the highest validation accuracy; None if there is none, or it was not kept.
        files: the ends of the files of lines, but for the seconds, which differ between equal runs; and of other files
            that are about to be replaced because the run gets more rounds.
        ended: why there are no further rounds: all are done, or ``stop_after`` ended the run; "" while it goes on.
    """

    last: Snapshot | None = None
    best: Snapshot | None = None
    files: dict[Annotated[str, Meta(pattern=r"\A[a-z]+\.[a-z]+\Z")], Mark] = {}
    ended: Ended = ""

    @property
    def round(self) -> int:
        """The last whole round; 0 before the first."""
        return 0 if self.last is None else self.last.round

    def best_of(self, round: int | None) -> Snapshot | None:
        """Return the state after a round, the best so far, if it is here."""
        return next((s for s in (self.last, self.best) if s is not None and s.round == round), None)

    def names(self) -> set[str]:
        """Return the names of all objects in use."""
        return set[str]().union(*(s.names() for s in (self.last, self.best) if s is not None))
