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
- ``banks``: the same with banks that ``put`` changes in place, as those in files: nobody reads old rows after it.
- ``failed answers``: a lost or refused upload leaves its client's state as it was and the others' round as it is; a
  message that comes twice does what it does once; a client that drops out is a lost answer.
- ``robust``: a method that says so keeps ``runs`` under another rule of aggregation than the mean, and asks for it.
- ``secure aggregation``: a method that says so comes to the same state from the means of its pools; it keeps ``runs``.
- ``distribution``: one row for each receiver; weights of a mixture are not negative and sum to 1; relations are int64
  ``[K]`` or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedkin.core import ConfigError, Method, Rule
from fedkin.core.errors import nearest
from fedkin.engines import Engine, Workers
from fedkin.testing.rules import RULES, Case
from fedkin.testing.spy import RuleBroken

__all__ = ["RULES", "RuleBroken", "check_method"]


def check_method(
    method: Method,
    *,
    engines: Sequence[Engine] | None = None,
    rules: Iterable[str] | None = None,
    seed: int = 1,
    rule: Rule | None = None,
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
    case = Case(method, [Workers(1), Workers(2)] if engines is None else list(engines), seed, rule or Rule())
    for name in RULES if rules is None else rules:
        if name not in RULES:
            raise ConfigError(f"unknown rule {name!r}{nearest(name, RULES)}")
        try:
            RULES[name](case)
        except Exception as e:
            broken = e if isinstance(e, RuleBroken) else e.__cause__
            if isinstance(broken, RuleBroken):
                raise RuleBroken(f"{type(method).__name__} breaks the rule {name!r}: {broken}") from None
            e.add_note(f"fedkin.testing: while the rule {name!r} was checked on {method}")
            raise
