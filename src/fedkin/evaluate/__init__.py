"""Quality of a federation's models, and comparison with a reference: pure functions on counts and numbers.

``scores``  one client in one round (from counts per class), and the summary over clients
``choice``  the headline metric: accuracy, or balanced accuracy where a constant answer is nearly always right
``intervals`` confidence interval of a single accuracy
``paired``  the mean of paired differences over seeds and clients, with an interval
``answers``, ``harm``  single test samples: which clients gain or lose, how many are harmed
``marks``   the methods of a table that are marked as the best
``verdict`` a method against a reference (Local), client by client, in one sentence
``warnings`` caveats to read before trusting the results
"""

from fedkin.evaluate.choice import Choice, Constant, choose, majority_class
from fedkin.evaluate.harm import Counts, Harmed, clear_clients, client_p, counts, harmed, harmed_range, most_differing
from fedkin.evaluate.paired import Changed, Difference, changed, difference, gain_over, interval, seed_effect
from fedkin.evaluate.scores import adjusted_rand, only_class, score, scores
from fedkin.evaluate.verdict import (
    Against,
    Conclusion,
    Spread,
    against,
    details,
    judge,
    judge_all,
    marked,
    not_below,
    spread,
    verdict,
)

__all__ = [
    "Against",
    "Changed",
    "Choice",
    "Conclusion",
    "Constant",
    "Counts",
    "Difference",
    "Harmed",
    "Spread",
    "adjusted_rand",
    "against",
    "changed",
    "choose",
    "clear_clients",
    "client_p",
    "counts",
    "details",
    "difference",
    "gain_over",
    "harmed",
    "harmed_range",
    "interval",
    "judge",
    "judge_all",
    "majority_class",
    "marked",
    "most_differing",
    "not_below",
    "only_class",
    "score",
    "scores",
    "seed_effect",
    "spread",
    "verdict",
]
