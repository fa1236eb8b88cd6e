"""Quality of a federation's models, and comparison with a reference: pure functions on counts and numbers.

``scores``  one client in one round (from counts per class), and the summary over clients
``choice``  the headline metric: accuracy, or balanced accuracy where a constant answer is nearly always right
``rounds``  the final figures of a run: mean over its last fifth, last round, best round by validation, cost to a target
``intervals`` confidence interval of a single accuracy
``paired``  the mean of paired differences over seeds and clients, with an interval
``answers``, ``harm``  single test samples: which clients gain or lose, how many are harmed
``marks``   the methods of a table that are marked as the best
``divergence`` whether training diverged, and when
``verdict`` a method against a reference (Local), client by client, in one sentence
``warnings`` caveats to read before trusting the results
"""

from fedkin.evaluate.answers import Answers, Changed, answers_of, changed
from fedkin.evaluate.choice import Choice, Constant, choose, majority_class
from fedkin.evaluate.divergence import diverged
from fedkin.evaluate.harm import Counts, Harmed, clear_clients, client_p, counts, harmed, harmed_range, most_differing
from fedkin.evaluate.intervals import interval
from fedkin.evaluate.marks import marked, not_below
from fedkin.evaluate.paired import Difference, difference, gain_over, seed_effect
from fedkin.evaluate.rounds import (
    GROUPED,
    METRICS,
    OTHER_MOMENT,
    TargetReached,
    best,
    final,
    final_by_client,
    latest,
    stop_round,
    to_target,
)
from fedkin.evaluate.scores import ClientScore, adjusted_rand, only_class, score, scores, summarise
from fedkin.evaluate.verdict import Against, Conclusion, Spread, against, details, judge, judge_all, spread, verdict

__all__ = [
    "GROUPED",
    "METRICS",
    "OTHER_MOMENT",
    "Against",
    "Answers",
    "Changed",
    "Choice",
    "ClientScore",
    "Conclusion",
    "Constant",
    "Counts",
    "Difference",
    "Harmed",
    "Spread",
    "TargetReached",
    "adjusted_rand",
    "against",
    "answers_of",
    "best",
    "changed",
    "choose",
    "clear_clients",
    "client_p",
    "counts",
    "details",
    "difference",
    "diverged",
    "final",
    "final_by_client",
    "gain_over",
    "harmed",
    "harmed_range",
    "interval",
    "judge",
    "judge_all",
    "latest",
    "majority_class",
    "marked",
    "most_differing",
    "not_below",
    "only_class",
    "score",
    "scores",
    "seed_effect",
    "spread",
    "stop_round",
    "summarise",
    "to_target",
    "verdict",
]
