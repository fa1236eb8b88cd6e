"""Choice of the headline: accuracy, unless a constant answer is nearly always right at many clients.

Accuracy cannot tell a model that always gives the same answer from a good one where nearly all test samples are of one
class. Balanced accuracy (Brodersen, Ong, Stephan and Buhmann, "The balanced accuracy and its posterior distribution",
ICPR 2010) can: a constant answer has 1 / C there, C the number of classes in the test part. It is preferred to macro-F1
because of clients whose test part has a single class: a stray prediction of another class halves their macro-F1 (that
class counts with an F1 of 0), while balanced accuracy is their accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

ONE_SIDED = 0.8
"""A constant answer that is right for at least this fraction of a client's test part, but not for all of it, makes the
client one-sided. It leaves at most 20 points between a model that learned nothing and a perfect one: about
the width of the 95 % interval (Wilson's) of such an accuracy on 50 test samples."""
MANY_CLIENTS = 0.25
"""Fraction of one-sided clients from which on accuracy is not the headline. Partitions with two classes per client make
8 to 11 % of the clients one-sided by chance (digits, Fashion-MNIST): with a limit of 10 % balanced
accuracy would come first in 25 to 50 % of the seeds, with this one in 0 to 3 %."""


@dataclass(frozen=True)
class Constant:
    """Result of always predicting a client's most frequent training class on its test part.

    Attributes:
        client: name of the client in sentences, such as "switzerland" or "client 3".
        answer: name of that class; None where the training counts are not known.
        right: number of test samples of that class.
        n_test: number of all test samples, at least 1.
    """

    client: str
    answer: str | None
    right: int
    n_test: int

    @property
    def accuracy(self) -> float:
        """Accuracy of the constant answer, a fraction."""
        return self.right / self.n_test

    @property
    def one_sided(self) -> bool:
        """Whether the accuracy of this client is uninformative. Where the answer is right for all samples, the test
        part has one class, and other metrics are equally uninformative."""
        return self.accuracy >= ONE_SIDED and self.right < self.n_test

    def __str__(self) -> str:
        answer = "one class" if self.answer is None else self.answer
        return f"{self.client}: always predicting {answer} is right in {100 * self.accuracy:.3g} %"


@dataclass(frozen=True)
class Choice:
    """The headline metric.

    Attributes:
        metric: its key among the figures of a round.
        one_sided: clients at which accuracy is uninformative, the most one-sided first.
        tested: number of clients with test samples.
    """

    metric: Literal["accuracy", "balanced"]
    one_sided: tuple[Constant, ...] = ()
    tested: int = 0

    @property
    def fair(self) -> bool:
        """Whether accuracy is the headline."""
        return self.metric == "accuracy"

    @property
    def reason(self) -> str:
        """One sentence, without a full stop, why accuracy is not the headline; "" where it is."""
        if self.fair:
            return ""
        first, count = self.one_sided[0], len(self.one_sided)
        if count == 1:
            return f"accuracy is not a fair headline ({first})"
        return (
            f"accuracy is not a fair headline: at {count} of {self.tested} clients a constant answer is right in "
            f"{100 * ONE_SIDED:.0f} % or more ({first})"
        )

    @property
    def sentence(self) -> str:
        """`reason` as a whole sentence; "" where accuracy is the headline."""
        return f"{self.reason[:1].upper()}{self.reason[1:]}." if self.reason else ""


def majority_class(counts: Sequence[int]) -> int | None:
    """Return the most frequent class, the lowest of equals (as scikit-learn's ``DummyClassifier``).

    Args:
        counts: training samples by class ``[C]``.

    Returns:
        The class; None without any sample, as where a client does not report its counts.
    """
    most = max(counts, default=0)
    return counts.index(most) if most > 0 else None


def choose(clients: Iterable[Constant]) -> Choice:
    """Choose accuracy, unless `MANY_CLIENTS` or more of the clients are one-sided: then balanced accuracy.

    Args:
        clients: every client with test samples, of all seeds together where there are several.
    """
    known = list(clients)
    one_sided = sorted((c for c in known if c.one_sided), key=lambda c: -c.accuracy)
    many = bool(known) and len(one_sided) / len(known) >= MANY_CLIENTS
    return Choice("balanced" if many else "accuracy", tuple(one_sided), len(known))
