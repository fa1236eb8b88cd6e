"""How well a federation did, and whether it paid: pure functions on counts and numbers, no models and no files.

``scores``  one client in one round (from confusion matrices), and the summary over clients
``choice``  which figure comes first: accuracy, or balanced accuracy where a constant answer is nearly always right
``rounds``  the final figures of a run: mean over its last fifth, last round, best round by validation, cost to a target
``intervals`` how sure a figure is, and what a paired difference over seeds and clients says
``divergence`` whether training diverged, and when
``verdict`` a method against a reference (Local), client by client, in one sentence
``warnings`` what to know before the figures are believed
"""

from fedkin.evaluate.choice import Choice, Constant, choose, majority_class
from fedkin.evaluate.divergence import diverged
from fedkin.evaluate.intervals import Difference, difference, interval
from fedkin.evaluate.rounds import GROUPED, METRICS, Reached, best, final, final_by_client, latest, to_target
from fedkin.evaluate.scores import ClientScore, adjusted_rand, confusion, score, summarise
from fedkin.evaluate.verdict import Against, Spread, against, spread, verdict

__all__ = [
    "GROUPED",
    "METRICS",
    "Against",
    "Choice",
    "ClientScore",
    "Constant",
    "Difference",
    "Reached",
    "Spread",
    "adjusted_rand",
    "against",
    "best",
    "choose",
    "confusion",
    "difference",
    "diverged",
    "final",
    "final_by_client",
    "interval",
    "latest",
    "majority_class",
    "score",
    "spread",
    "summarise",
    "to_target",
    "verdict",
]
