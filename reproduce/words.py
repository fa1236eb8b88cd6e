"""Verdicts in words."""

from __future__ import annotations

from collections.abc import Sequence

from reproduce.tables import Table
from reproduce.verdicts import Compared, Verdict


def claim_line(table: Table, found: Verdict) -> str:
    """Return a claim with its verdict and evidence, or a question with its answers; "" for one without an answer.

    The claim's reason follows if the claim is measured and has not been found to hold.
    """
    claim, there = found.claim, [part for part in found.parts if part.found is not None]
    seeds = len(table.scales[found.scale].seeds)
    if claim.question:
        return f"{claim.text} {_answers(table, found, there, seeds)}." if there else ""
    reason = f". Reason: {claim.reason}" if claim.reason and there and found.word != "holds" else ""
    facts = f": {_facts(table, found, there, seeds)}" if there else ""
    return f"{claim.text} **{found.word.capitalize()}**{facts}{reason}."


def _answers(table: Table, asked: Verdict, there: Sequence[Compared], seeds: int) -> str:
    """Return the difference from each other row; without the column if the question has one only, and with the columns
    of a mean once if they are the same in all answers."""
    wheres = {_where(table, part) for part in there}
    means = asked.claim.pooled and len(wheres) == 1
    alone = means or len(asked.claim.columns or table.columns) == 1
    texts = (
        f"{table.rows[part.than].title if alone else _against(table, part)}: {difference_text(part, seeds)}"
        for part in there
    )
    return "; ".join(texts) + (f" ({wheres.pop()})" if means else "")


def _facts(table: Table, verdict: Verdict, there: Sequence[Compared], seeds: int) -> str:
    """Return the one comparison, or counts and the comparison that is farthest from the claim."""
    if len(verdict.parts) == 1:
        (part,) = there
        partly = f" ({_where(table, part)})" if len(part.where.split(", ")) < part.columns else ""
        return difference_text(part, seeds) + partly
    words = [part.word for part in verdict.parts]
    names = {"holds": "holds", "does not hold": "fails", "undecided": "open", "not measured yet": "not measured"}
    counts = [f"{names[word]} {words.count(word)}" for word in names if word in words]
    text = f"of {len(words)} {', '.join(counts)}"
    if verdict.claim.within:
        return text
    least = min(there, key=lambda part: part.found.mean if part.found is not None else 0.0)
    return f"{text}; least {_against(table, least)}, {difference_text(least, seeds)}"


def _against(table: Table, part: Compared) -> str:
    """Return the other row and the columns."""
    return f"{table.rows[part.than].title} ({_where(table, part)})"


def _where(table: Table, part: Compared) -> str:
    """Return the column of a comparison, or the number of columns and of those that are measured."""
    columns = part.where.split(", ")
    if part.columns == 1:
        return table.columns[columns[0]].title
    return f"mean over {len(columns)} {f'of {part.columns} ' if len(columns) < part.columns else ''}columns"


def difference_text(part: Compared, seeds: int) -> str:
    """Return the difference with its interval, or with the reason why it has none; the number of its seeds if it is not
    the one that is given."""
    found, unit = part.found, part.unit
    if found is None:
        return "not measured yet"
    if found.identical:
        return "no difference" if part.of == "rounds" else "equal to the last digit"
    mean = _fewer(found.mean, " rounds") if part.of == "rounds" else f"{unit * found.mean:+.1f}"
    if found.low is None or found.high is None:
        return f"{mean}, better in {part.ahead} of {found.seeds} seeds, too few for an interval"
    ends = (_fewer(x) if part.of == "rounds" else f"{unit * x:+.1f}" for x in (found.low, found.high))
    count = "" if found.seeds == seeds else f", {found.seeds} seed{'s' if found.seeds > 1 else ''}"
    return f"{mean} [{' to '.join(ends)}{count}]"


def _fewer(gain: float, what: str = "") -> str:
    """Return a difference in rounds, positive where the first row needs fewer."""
    return f"{abs(gain):.1f}{what} {'fewer' if gain > 0 else 'more'}"
