"""The contract between methods and engines as a program: `check_method`, for authors of methods.

    from fedkin.testing import check_method
    check_method(MyMethod(mu=0.1))

builds a federation of six tiny clients and two tiny networks (one with batch normalisation and dropout), runs the
method through the actual round loop a few dozen times, and raises at the first rule that does not hold. The rules:

- ``declared``: a frozen dataclass that inherits from no other method; evaluating its repr gives an equal method; every
  field has a docstring and holds a plain value or a method.
- ``runs``: four rounds with partial participation; no upload is refused; states are finite; every client that has
  joined predicts all of its test and validation samples.
- ``same result``: equal bit for bit on every engine and in a second run, whatever the state of Python's and torch's
  global generators; another seed gives another result. (An engine with a ``tolerance``, such as `Stacked`, may differ
  by ten times this tolerance, with batch normalisation by a hundred times, and by more at one seed if not at the next.
  A loss that cannot be stacked is trained client by client; this is reported as a remark, not as an error.)
- ``resume``: stopped after any round and continued from copies of the server's and the clients' states, in new objects,
  the run ends as if it had not been stopped.
- ``own data``: what a client sends and keeps does not change when other clients' data do.
- ``odd federations``: drop-outs, late joiners, rounds without an answer, one client, two, equal ones, one sample, one
  class, a large one among small ones, one client per round, one round, means without weights, training by steps.
- ``own memory``: no two stored tensors share memory: between clients, in the server's state, or between the two.
- ``pure steps``: no step writes into its arguments: downloads, data, old states, uploads, the roster.
- ``banks``: the same with banks that ``put`` changes in place, as those in files: no old row is read afterwards.
- ``failed answers``: a lost or refused upload leaves its client's state and the others' round unchanged; a message that
  arrives twice has the effect of one; a client that drops out equals a lost answer.
- ``robust``: a method that declares it keeps ``runs`` under an aggregation rule other than the mean, and uses the rule.
- ``secure aggregation``: a method that declares it reaches the same state from the means of its pools, and keeps
  ``runs``.
- ``distribution``: one row for each receiver; weights of a mixture are not negative and sum to 1; relations are int64
  ``[K]`` or None.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fedkin.core import Aggregation, ConfigError, Method
from fedkin.core.errors import nearest
from fedkin.engines import Engine, Stacked, Workers
from fedkin.testing.rules import RULES, Case
from fedkin.testing.spy import RuleBroken

__all__ = ["RULES", "RuleBroken", "RuleResult", "check_each", "check_method", "usual_engines"]

_FIRST = ("declared", "runs")


@dataclass(frozen=True)
class RuleResult:
    """Result of the check of one rule.

    Attributes:
        rule: a name of `RULES`.
        error: the error that broke it: a `RuleBroken`, or an error raised by the method; None if the rule holds.
        after: a broken rule because of which this one was not checked; None if it was.
        remarks: what engines said of its runs though the rule may hold, such as that a loss could not be stacked.
    """

    rule: str
    error: Exception | None = None
    after: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the rule was checked and holds."""
        return self.error is None and self.after is None


def usual_engines() -> list[Engine]:
    """Return the engines that must agree with the reference: stacks on the CPU, and worker processes where they fork.

    The rules ``resume`` and ``odd federations`` are checked on the first and on the last of them.
    """
    stacks: list[Engine] = [Stacked(device="cpu")]
    return [Workers(1), *stacks, Workers(2)] if hasattr(os, "fork") else stacks


def check_method(
    method: Method,
    *,
    engines: Sequence[Engine] | None = None,
    rules: Iterable[str] | None = None,
    seed: int = 1,
    aggregation: Aggregation | None = None,
) -> None:
    """Check that a method keeps the contract; takes some seconds.

    Args:
        method: method with the settings to check.
        engines: engines that must agree with the reference. Default: `usual_engines`.
        rules: names of `RULES`. Default: all.
        seed: seed of all random draws.
        aggregation: the rule under which everything is to hold. Default: the mean.

    Raises:
        RuleBroken: an `AssertionError` that names the rule and carries the values.
        MethodError: the method failed; a note on it names the rule that was being checked.
    """
    case, wanted = _case(method, engines, seed, aggregation), _wanted(rules)
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
    aggregation: Aggregation | None = None,
) -> Iterator[RuleResult]:
    """Run the same checks and yield a finding for each rule as soon as it is known, continuing after a broken one.

    Where ``declared`` or ``runs`` is broken, the other rules are not checked: they would all fail for this reason.

    Args:
        method, engines, rules, seed, aggregation: as for `check_method`.

    Raises:
        ConfigError: no such rule.
    """
    case, wanted = _case(method, engines, seed, aggregation), _wanted(rules)
    before = None
    for name in wanted:
        case.remarks.clear()
        error = None if before else _broken(case, name)
        yield RuleResult(name, error, before, tuple(case.remarks))
        before = before or (name if error is not None and name in _FIRST else None)


def _case(method: Method, engines: Sequence[Engine] | None, seed: int, aggregation: Aggregation | None) -> Case:
    agreeing = usual_engines() if engines is None else list(engines)
    return Case(method, agreeing, seed, aggregation or Aggregation())


def _wanted(rules: Iterable[str] | None) -> list[str]:
    names = list(RULES if rules is None else rules)
    for name in names:
        if name not in RULES:
            raise ConfigError(f"unknown rule {name!r}{nearest(name, RULES)}")
    return names


def _broken(case: Case, name: str) -> Exception | None:
    """Return the exception that the check of one rule raises: the broken rule itself where that is the cause."""
    try:
        RULES[name](case)
    except Exception as e:  # a user-defined method may raise anything
        return e.__cause__ if isinstance(e.__cause__, RuleBroken) else e
    return None
