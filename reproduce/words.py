"""Verdicts in words."""

from __future__ import annotations

from collections.abc import Sequence

from reproduce.tables import Table
from reproduce.verdicts import Compared, Verdict


def sentence(table: Table, verdict: Verdict) -> str:
    """Return the evidence of a verdict: its one comparison, or the number of comparisons that hold and that fail.

    Then the claim's reason, if the claim is measured and has not been found to hold. Of a claim without a measured
    comparison the table's reason for that, if it gives one.
    """
    there = [part for part in verdict.parts if part.found is not None]
    if not there:
        return table.unmeasured or ""
    reason = verdict.claim.reason if verdict.word != "holds" else None
    return _facts(table, verdict, there) + (f". Reason: {reason}" if reason else "")


def answers(table: Table, verdict: Verdict) -> list[tuple[str, str]]:
    """Return each measured comparison of a question: the other row with its column, and the difference."""
    return [(_against(table, part), difference_text(part)) for part in verdict.parts if part.found is not None]


def unmeasured(table: Table) -> str:
    """Return that the table is not measured yet, with its reason if it gives one."""
    return f"Not measured yet{f': {table.unmeasured}' if table.unmeasured else ''}"


def _facts(table: Table, verdict: Verdict, there: Sequence[Compared]) -> str:
    if len(verdict.parts) == 1:
        (part,) = there
        partly = f" ({_where(table, part)})" if len(part.where.split(", ")) < part.columns else ""
        return difference_text(part) + partly
    return _many(table, verdict, there)


def _many(table: Table, verdict: Verdict, there: Sequence[Compared]) -> str:
    """Return counts, and the comparison that is farthest from the claim."""
    words = [part.word for part in verdict.parts]
    counts = [f"holds in {words.count('holds')} of {len(words)} comparisons"] if "holds" in words else []
    counts += [f"fails in {words.count('does not hold')}"] if "does not hold" in words else []
    counts += [f"open in {words.count('undecided')}"] if "undecided" in words else []
    counts += [f"not measured in {words.count('not measured yet')}"] if "not measured yet" in words else []
    if not verdict.claim.within:
        least = min(there, key=lambda part: part.found.mean if part.found is not None else 0.0)
        counts.append(f"least against {_against(table, least)}: {difference_text(least)}")
    text = "; ".join(counts)
    return text if "holds" in words else text.replace("fails in", f"of {len(words)} comparisons fails in", 1)


def _against(table: Table, part: Compared) -> str:
    """Return the other row and the columns."""
    return f"{table.rows[part.than].title} ({_where(table, part)})"


def _where(table: Table, part: Compared) -> str:
    """Return the column of a comparison, or the number of columns and of those that are measured."""
    columns = part.where.split(", ")
    if part.columns == 1:
        return table.columns[columns[0]].title
    return f"mean over {len(columns)} {f'of {part.columns} ' if len(columns) < part.columns else ''}columns"


def difference_text(part: Compared) -> str:
    """Return the difference with its interval, or with the reason why it has none."""
    found, unit = part.found, part.unit
    if found is None:
        return "not measured yet"
    if found.identical:
        return "no difference" if part.of == "rounds" else "equal to the last digit"
    mean = _fewer(found.mean, " rounds") if part.of == "rounds" else f"{unit * found.mean:+.1f} {part.of}".rstrip()
    if found.low is None or found.high is None:
        return f"{mean}, better in {part.ahead} of {found.seeds} seeds, too few for an interval"
    ends = (_fewer(x) if part.of == "rounds" else f"{unit * x:+.1f}" for x in (found.low, found.high))
    over = f"{found.seeds} seeds" if found.seeds > 1 else "the clients of one seed"
    return f"{mean}, 95 % interval {' to '.join(ends)} over {over}"


def _fewer(gain: float, what: str = "") -> str:
    """Return a difference in rounds, positive where the first row needs fewer."""
    return f"{abs(gain):.1f}{what} {'fewer' if gain > 0 else 'more'}"
