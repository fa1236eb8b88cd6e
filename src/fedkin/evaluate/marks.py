"""The methods of a table that are marked (bold): the best one is among them with 90 % probability."""

from __future__ import annotations

from collections.abc import Mapping

LEAST = 0.025
"""A method differs from the highest where the tail of their difference is below this, as in a verdict ..."""
WRONG = 0.10
"""... and below this, divided by the number of comparisons: the probability that the best method is not marked."""


def marked(means: Mapping[str, float], tails: Mapping[str, float | None]) -> set[str]:
    """Choose the methods to mark in a table.

    Methods are compared with that of the highest mean and kept unless they are significantly below it (Bonferroni's
    correction for the number of comparisons). Every method with a mean at or above the lowest mean kept is marked, so
    that no method stays plain while a lower one is marked. Closing upwards only adds methods: where the interval holds
    its size, the truly best method is marked with a probability of at least 90 % (97.5 % for two methods).

    Args:
        means: method -> the mean that the table shows.
        tails: method -> tail of the difference of the highest minus this method (`Difference.tail`); None or missing
            where there is no interval, which keeps the method.

    Returns:
        The marked methods; empty if all of them would be marked.
    """
    least = min((means[title] for title in not_below(means, tails)), default=0.0)
    found = {title for title, mean in means.items() if mean >= least}
    return found if len(found) < len(means) else set()


def not_below(means: Mapping[str, float], tails: Mapping[str, float | None]) -> set[str]:
    """Return the methods that are not significantly below the highest, which is one of them; as for `marked`."""
    limit = min(LEAST, WRONG / max(1, len(means) - 1))
    below = {title for title, tail in tails.items() if tail is not None and tail < limit}
    return {title for title, mean in means.items() if mean == max(means.values()) or title not in below}
