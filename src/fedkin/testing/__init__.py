"""The contract between methods and engines, executable: `check_method`, for people who write methods.

    from fedkin.testing import check_method
    check_method(MyMethod(mu=0.1))

makes a federation of six tiny clients and two tiny networks (one with batch normalisation and dropout), runs the method
through the real round loop a few dozen times, and raises at the first rule that does not hold. The rules:

- ``declared``: a frozen dataclass that inherits from no other method; its repr makes it again; every field has a
  docstring and holds a plain value or a method.
- ``runs``: four rounds with partial participation; no upload is refused; states are finite; every client that has
  joined predicts all of its test and validation samples.
- ``same result``: bit for bit the same on every engine and a second time, whatever Python's and torch's global
  generators hold; another seed gives another result. (An engine with a ``tolerance``, such as `Stacked`, may differ by
  so much.)
- ``resume``: stopped after any round and gone on from copies of the server's and the clients' states, in new objects,
  the run ends as if it had not been stopped.
- ``own data``: what a client sends and keeps does not change when other clients' data do.
- ``odd federations``: drop-outs, late joiners, rounds without an answer, one client, two, equal ones, one sample, one
  class, a large one among small ones, one client per round, one round, means without weights, training by steps.
- ``own memory``: no two stored tensors share memory: between clients, in the server's state, between the two.
- ``pure steps``: no step writes into what it is given: downloads, data, old states, uploads, the roster.
- ``banks``: the same with banks that ``put`` changes in place, as those in files: no old row is read after it.
- ``failed answers``: a lost or refused upload leaves its client's state as it was and the others' round as it is; a
  message that comes twice does what it does once; a client that drops out is a lost answer.
- ``robust``: a method that says so keeps ``runs`` under another rule of aggregation than the mean, and asks for it.
- ``secure aggregation``: a method that says so comes to the same state from the means of its pools; it keeps ``runs``.
- ``distribution``: one row for each receiver; weights of a mixture are not negative and sum to 1; relations are int64
  ``[K]`` or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fedkin.core import Aggregation, ConfigError, Method
from fedkin.core.errors import nearest
from fedkin.engines import Engine, Workers
from fedkin.testing.rules import RULES, Case
from fedkin.testing.spy import RuleBroken

__all__ = ["RULES", "Finding", "RuleBroken", "check_each", "check_method"]

_FIRST = ("declared", "runs")


@dataclass(frozen=True)
class Finding:
    """What the check of one rule found.

    Attributes:
        rule: name of `RULES`.
        error: what broke it: a `RuleBroken`, or what the method itself raised; None if it holds.
        after: a broken rule without which this one was not looked at; None if it was.
    """

    rule: str
    error: Exception | None = None
    after: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the rule was looked at and holds."""
        return self.error is None and self.after is None


def check_method(
    method: Method,
    *,
    engines: Sequence[Engine] | None = None,
    rules: Iterable[str] | None = None,
    seed: int = 1,
    rule: Aggregation | None = None,
) -> None:
    """Checks that a method keeps the contract; takes a second or two.

    Args:
        method: with the settings to check it at.
        engines: those that must agree with the reference. Default: one and two worker processes; ``[]`` where a system
            cannot fork.
        rules: names of `RULES`. Default: all.
        seed: of everything that is drawn at random.
        rule: of aggregation, under which all is to hold. Default: the mean.

    Raises:
        RuleBroken: an `AssertionError` that names the rule and carries the values.
        MethodError: the method failed; a note on it names the rule that was being checked.
    """
    case, wanted = _case(method, engines, seed, rule), _wanted(rules)
    for name in wanted:
        e = _broken(case, name)
        if isinstance(e, RuleBroken):
            raise RuleBroken(f"{type(method).__name__} breaks the rule {name!r}: {e}") from None
        if e is not None:
            e.add_note(f"fedkin.testing: while the rule {name!r} was checked on {method}")
            raise e


def check_each(
    method: Method,
    *,
    engines: Sequence[Engine] | None = None,
    rules: Iterable[str] | None = None,
    seed: int = 1,
    rule: Aggregation | None = None,
) -> Iterator[Finding]:
    """The same checks, one finding for each rule as soon as it is there, and on to the next after a broken one.

    Where ``declared`` or ``runs`` is broken the others are not looked at: they would all fail for this reason.

    Args:
        method, engines, rules, seed, rule: as of `check_method`.

    Raises:
        ConfigError: no such rule.
    """
    case, wanted = _case(method, engines, seed, rule), _wanted(rules)
    before = None
    for name in wanted:
        error = None if before else _broken(case, name)
        yield Finding(name, error, before)
        before = before or (name if error is not None and name in _FIRST else None)


def _case(method: Method, engines: Sequence[Engine] | None, seed: int, rule: Aggregation | None) -> Case:
    return Case(method, [Workers(1), Workers(2)] if engines is None else list(engines), seed, rule or Aggregation())


def _wanted(rules: Iterable[str] | None) -> list[str]:
    names = list(RULES if rules is None else rules)
    for name in names:
        if name not in RULES:
            raise ConfigError(f"unknown rule {name!r}{nearest(name, RULES)}")
    return names


def _broken(case: Case, name: str) -> Exception | None:
    """What the check of one rule raises: the broken rule itself where that is the cause."""
    try:
        RULES[name](case)
    except Exception as e:  # whatever a person's method raises
        return e.__cause__ if isinstance(e.__cause__, RuleBroken) else e
    return None
