"""The rules of the contract, one function each; `fedkin.testing` describes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fedkin.capabilities.means import RobustMeans
from fedkin.capabilities.sums import sums_suffice
from fedkin.core import Aggregation, Bundle, ClientData, Method, Net, Round, Samples, Training, stack
from fedkin.core import robust as means
from fedkin.core.capability import has, wrapped
from fedkin.core.refusals import UNUSED
from fedkin.core.rows import kept_by
from fedkin.engines import Engine, Job, Loop, Task
from fedkin.privacy.secure_sum import fixed, pooled, summed
from fedkin.server import Message, Outcome, Plan, join_rounds
from fedkin.testing.declaration import check_declaration
from fedkin.testing.spy import RuleBroken, Spy, unwritten
from fedkin.testing.step_values import check_step_value
from fedkin.testing.toys import KINDS, InPlace, Kind, federation, others_changed, samples
from fedkin.testing.trial import (
    Exchange,
    Moment,
    Setting,
    Touch,
    TrialRun,
    calm,
    difference,
    lose,
    play,
    tensors,
    twice,
)


@dataclass
class Case:
    """One method under test, with the runs that several rules use."""

    method: Method
    engines: Sequence[Engine]
    seed: int
    aggregation: Aggregation = field(default_factory=Aggregation)
    ambient: itertools.count[int] = field(default_factory=itertools.count)
    """Seeds of the global generators, a different one for each run."""
    remarks: dict[str, None] = field(default_factory=dict)
    """What engines said of runs that are right all the same, in order and each once."""
    _kept: dict[Kind, TrialRun] = field(default_factory=dict)
    _nets: dict[Kind, Net] = field(default_factory=dict)

    def anew(self) -> Method:
        """Return the method as a new object, without anything that the former one may have stored in itself."""
        copied: Method = replace(self.method)  # type: ignore[type-var]
        return copied

    def setting(self, kind: Kind, seed: int | None = None) -> Setting:
        """Return the setting of an ordinary run of four rounds."""
        plan = Plan(rounds=4, participation=0.7, seed=self.seed if seed is None else seed, aggregation=self.aggregation)
        return Setting(kind, plan=plan)

    def play(
        self, setting: Setting, engine: Engine | None = None, *, touch: Touch | None = None, since: Moment | None = None
    ) -> TrialRun:
        """Run a new copy of the method, with new seeds of the global generators; a resumed run has a new network."""
        net = self.net(setting) if since is None else None
        return play(self.anew(), setting, engine, touch=touch, since=since, ambient=next(self.ambient), net=net)

    def spied(self, setting: Setting, **watch: Any) -> TrialRun:
        """Run a new copy of the method inside a `Spy` with these ``guard``, ``look`` or ``merged``."""
        return play(Spy(self.anew(), **watch), setting, net=self.net(setting))

    def net(self, setting: Setting) -> Net:
        """Return the network of all runs at settings with this one's kind: engines examine a network once."""
        if setting.kind not in self._nets:
            self._nets[setting.kind] = setting.network()
        return self._nets[setting.kind]

    def usual(self, kind: Kind) -> TrialRun:
        """Return the run that many rules compare with: four rounds, four of six clients, the reference engine."""
        if kind not in self._kept:
            self._kept[kind] = self.play(self.setting(kind))
        return self._kept[kind]


# ---- runs ---------------------------------------------------------------------------------------------------------


def runs(case: Case) -> None:
    """Check that no upload is refused, states are finite and all who have joined predict, on both networks."""
    for kind in KINDS:
        _healthy(case.usual(kind), case.setting(kind))


def _healthy(trial: TrialRun, setting: Setting) -> None:
    """Check that no upload was refused, everything is finite, and all clients that have joined predicted."""
    _sound(trial.moments[0])
    for after, report in zip(trial.moments[1:], trial.reports, strict=True):
        at = f"in round {report.round}"
        for why in (r for r in report.refused if r.code in UNUSED):
            raise RuleBroken(f"the answer of client {why.client} was refused {at} ({why.stage}): {why}")
        _sound(after)
        known = sum(1 for t in setting.joins or [1] * len(setting.shards) if t <= report.round)
        if sorted(report.evaluation) != list(range(known)):
            raise RuleBroken(f"{at} {known} clients had joined, evaluated were {sorted(report.evaluation)}")
        for i, counts_of in report.evaluation.items():
            if lost := int(counts_of.get("unpredicted", 0)):
                raise RuleBroken(
                    f"the logits of client {i} hold NaN {at}, for {lost} samples, though models are finite"
                )
            for name, counts in counts_of.items():
                part = name.rpartition(".")[2]
                if part not in ("test", "validation"):
                    continue
                n = len(getattr(setting.shards[i], part))
                if counts[:2].sum(1).tolist() != [n, n] or bool((counts < 0).any()):
                    raise RuleBroken(f"client {i} has {n} {part} samples {at}, {int(counts[1].sum())} were predicted")


def _sound(m: Moment) -> None:
    _finite("the server's state", m.server.state, m.server.round)
    for i, state in m.states.items():
        _finite(f"the state of client {i}", state, m.server.round)


def _finite(what: str, b: Bundle, round: int) -> None:
    for name, t in b.items():
        if t.is_floating_point() and not bool(t.isfinite().all()):
            raise RuleBroken(f"{name!r} in {what} is not finite after round {round}")


# ---- same result --------------------------------------------------------------------------------------------------


def same_result(case: Case) -> None:
    """Check that engines and repeated runs agree, and that another seed gives another result."""
    for kind in KINDS:
        usual = tensors(case.usual(kind))
        _equal(usual, tensors(case.play(case.setting(kind))), "the same run a second time gives another result")
        for engine in case.engines:
            _agrees(case, engine, case.setting(_comparable(kind, engine)))
    if _trains(case.usual("mlp"), case):
        other = case.play(case.setting("mlp", seed=case.seed + 1))
        if difference(_learned(case.usual("mlp")), _learned(other)) is None:
            raise RuleBroken("another seed gives the same result: a random draw is not keyed by the run's seed")


def _agrees(case: Case, engine: Engine, setting: Setting) -> None:
    """Check that an engine agrees with the reference at a setting.

    One with a tolerance may disagree at one seed: rounding that turns an activation on or off is magnified. What is
    wrong disagrees at the next seed as well.
    """
    run = case.play(setting, engine)
    case.remarks |= dict.fromkeys(run.notes)
    what = f"{engine} gives another result than {Loop()}"
    try:
        _equal(tensors(case.usual(setting.kind)), tensors(run), what, engine, setting.kind)
    except RuleBroken:
        if _tolerance(engine):
            other = case.setting(setting.kind, seed=case.seed + 1)
            reference, again = (tensors(case.play(other, e)) for e in (None, engine))
            if difference(reference, again, _margin(engine, setting.kind)) is None:
                return
        raise


def _comparable(kind: Kind, engine: Engine) -> Kind:
    """Return the network on which an engine can be compared: one with a tolerance draws other numbers for dropout."""
    return "norm without dropout" if kind == "norm" and _tolerance(engine) else kind


def _tolerance(engine: Engine | None) -> float:
    return float(getattr(engine, "tolerance", 0.0))


def _equal(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], what: str, engine: Engine | None = None, kind: Kind = "mlp"
) -> None:
    if (apart := difference(a, b, _margin(engine, kind))) is not None:
        raise RuleBroken(f"{what}: {apart}")


def _margin(engine: Engine | None, kind: Kind) -> float:
    """Return how far numbers of an engine may be from the reference's, relative to their size if above 1."""
    # a batch of two samples with almost equal features: normalised, their difference is 1, and its error as magnified.
    # Without it a method of its own may magnify rounding, such as by dividing by small distances; the tests of engines
    # are stricter on methods that are known
    return _tolerance(engine) * (10 if kind == "mlp" else 100)


def _learned(trial: TrialRun) -> dict[str, Tensor]:
    return {name: t for name, t in tensors(trial, rounds=()).items() if "state" in name}


def _trains(usual: TrialRun, case: Case) -> bool:
    """Return whether the result depends on training at all, that is, on the step size."""
    setting = case.setting("mlp")
    slower = case.play(replace(setting, training=setting.training.but(lr=setting.training.lr / 2)))
    return difference(_learned(usual), _learned(slower)) is not None


# ---- resume -------------------------------------------------------------------------------------------------------


def resume(case: Case) -> None:
    """Check that a run continued after any of its rounds ends as one that was not stopped."""
    whole = case.usual("norm")
    setting = case.setting("norm")
    for t in range(1, setting.plan.rounds):
        _resumed(case, setting, whole, t, None)
    for engine in case.engines[:1]:
        same = _comparable("norm", engine)
        _resumed(case, case.setting(same), case.usual(same), setting.plan.rounds // 2, engine)
    faulty = replace(setting, dropout=0.4, joins=join_rounds(len(setting.shards), "2@3"))
    whole = case.play(faulty)
    _resumed(case, faulty, whole, 2, None)


def _resumed(case: Case, setting: Setting, whole: TrialRun, t: int, engine: Engine | None) -> None:
    rest = case.play(setting, engine, since=whole.moments[t])
    left = range(t + 1, setting.plan.rounds + 1)
    what = f"stopped after round {t} and continued from the stored states, the run ends differently"
    _equal(tensors(whole, left), tensors(rest, left), what, engine, setting.kind)


# ---- own data -----------------------------------------------------------------------------------------------------


def own_data(case: Case) -> None:
    """Check that a client's answers and states depend on its own data and downloads only."""
    setting = case.setting("mlp")
    usual = case.usual("mlp")
    start, messages = usual.moments[-2], usual.messages[-1]
    for i in messages:
        with calm(next(case.ambient)):
            first = _alone(case, setting, setting.shards, start, messages, i)
            other = _alone(case, setting, others_changed(setting.shards, i), start, messages, i)
        what = f"client {i} behaves differently when only the data of other clients change, with the same downloads"
        _equal(first, other, what)


def _alone(
    case: Case,
    setting: Setting,
    shards: tuple[ClientData, ...],
    start: Moment,
    messages: Mapping[int, Message],
    last: int,
) -> dict[str, Tensor]:
    """Return a client's answer, state and prediction after all others were processed by the same process."""
    net = setting.network()
    session = Loop().start(Job(case.anew(), net, setting.training, shards, setting.plan.seed))
    order = [i for i in messages if i != last] + [last]
    list(session.map([Task("describe", i, 1, Bundle(), Bundle()) for i in range(len(shards))]))
    tensors_of: dict[str, Tensor] = {}
    for i in order:
        received, state = messages[i].body.owned(), start.states[i].owned()
        (answer,) = session.map([Task("update", i, messages[i].round, received, state)])
        tensors_of = {f"the upload's {n!r}": t for n, t in answer.reply.items()}
        tensors_of |= {f"the state's {n!r}": t for n, t in answer.state.items()}
    return {name: t.detach().clone() for name, t in tensors_of.items()}


# ---- odd federations ----------------------------------------------------------------------------------------------


def odd_federations(case: Case) -> None:
    """Check that the method runs on unusual federations, and that engines agree on some of them."""
    for name, (setting, touch) in _odd(case).items():
        try:
            trial = case.play(setting, touch=touch)
            _healthy(trial, setting)
            if touch is not None:
                _unmoved(trial)
            for engine in case.engines[-1:] if name in _ON_ENGINES else ():
                again = case.play(setting, engine, touch=touch)
                _equal(tensors(trial), tensors(again), f"{engine} gives another result than {Loop()}", engine)
        except RuleBroken as e:
            raise RuleBroken(f"with {name}: {e}") from None
        except Exception as e:
            e.add_note(f"fedkin.testing: in the odd federation {name!r}")
            raise


def _unmoved(trial: TrialRun) -> None:
    """Check that a round without an answer leaves the server unchanged."""
    for before, after, report in zip(trial.moments, trial.moments[1:], trial.reports, strict=False):
        if not report.answered and not report.joined:
            what = f"no client answered in round {report.round}, yet the server changed"
            _equal(dict(before.server.state), dict(after.server.state), what)


_ON_ENGINES = ("drop-outs", "late joiners", "rounds without an answer", "one sample")


def _odd(case: Case) -> dict[str, tuple[Setting, Touch | None]]:
    plan = Plan(rounds=3, participation=0.7, seed=case.seed, aggregation=case.aggregation)
    usual = replace(case.setting("mlp"), plan=plan)
    shards, everyone = federation(), range(6)
    one_class = replace(shards[0], train=Samples(shards[0].train.x, torch.ones_like(shards[0].train.y)))
    many, held = (samples(5, 0, part, 100) for part in ("train", "test"))
    large = ClientData(many, samples(5, 0, "validation", 3), held, group=0)
    by_steps = Training(steps=3, batch_size=4, lr=0.1, weight_decay=0.01, decay_biases=False)
    changed = {
        "drop-outs": replace(usual, dropout=0.4),
        "late joiners": replace(usual, joins=join_rounds(6, "2@3")),
        "one client": replace(usual, shards=shards[:1]),
        "one sample": replace(usual, shards=shards[3:4], kind="norm"),
        "two clients": replace(usual, shards=shards[:2]),
        "equal clients": replace(usual, shards=shards[:1] * 4),
        "one class each": replace(usual, shards=(shards[2], one_class, shards[2])),
        "one large client": replace(usual, shards=(large, *shards[1:3])),
        "one client per round": replace(usual, plan=usual.plan.but(participation=0.01)),
        "one round": replace(usual, plan=Plan(rounds=1, seed=case.seed, aggregation=case.aggregation)),
        "means without weights": replace(usual, plan=usual.plan.but(weighting="uniform")),
        "training by steps": replace(usual, training=by_steps),
    }
    cases: dict[str, tuple[Setting, Touch | None]] = {name: (setting, None) for name, setting in changed.items()}
    cases["rounds without an answer"] = (usual, lose({1: everyone, 3: everyone}))
    return cases


# ---- own memory ---------------------------------------------------------------------------------------------------


def own_memory(case: Case) -> None:
    """Check that no two stored tensors share memory."""
    trial = case.usual("norm")
    stored: list[tuple[str, str, Tensor]] = []
    for i, ledger in enumerate(trial.simulation.ledgers):
        bundles = {"state": ledger.committed, "new state": ledger.pending, "answer": ledger.answer}
        for what, b in bundles.items():
            stored += [(f"client {i}", f"{what} {n!r} of client {i}", t) for n, t in (b or Bundle()).items()]
    for n, t in trial.server.state.items():
        stored.append((f"server {n}", f"server state {n!r}", t))
        if any(size > 1 and stride == 0 for size, stride in zip(t.shape, t.stride(), strict=True)):
            raise RuleBroken(f"server state {n!r} is an expanded tensor whose entries share memory; clone it")
    stored += [("roster", f"what clients said of themselves, {n!r}", t) for n, t in trial.server.described.items()]
    stored.append(("roster", "the clients' sizes", trial.server.sizes))
    owner: dict[int, tuple[str, str]] = {}
    for who, what, t in stored:
        if t.numel() == 0:
            continue
        first = owner.setdefault(t.untyped_storage().data_ptr(), (who, what))
        if first[0] != who:
            raise RuleBroken(f"{what} and {first[1]} share one storage; clone one of them")


# ---- pure steps ---------------------------------------------------------------------------------------------------


def pure_steps(case: Case) -> None:
    """Check that no step writes into its arguments."""
    for kind in KINDS:
        watched = case.spied(case.setting(kind), guard=unwritten)
        _equal(tensors(case.usual(kind)), tensors(watched), "observed step by step, the method gives another result")


# ---- banks --------------------------------------------------------------------------------------------------------


def banks(case: Case) -> None:
    """Check that the method gives the same result with banks that change in place."""
    setting, keeper = replace(case.setting("mlp"), joins=join_rounds(6, "2@3")), InPlace()
    with kept_by(keeper):
        first = case.play(setting)
    if keeper.banks:
        _equal(tensors(case.play(setting)), tensors(first), "with banks that `put` changes in place, as files do")


# ---- answers that fail --------------------------------------------------------------------------------------------


def failed_answers(case: Case) -> None:
    """Check that lost, refused and repeated answers have no further effect."""
    setting = case.setting("mlp")
    usual = case.usual("mlp")
    victim = usual.reports[1].answered[0]  # of round 2
    lost = case.play(setting, touch=_uploads(lose({2: [victim]})))
    refused = case.play(setting, touch=_uploads(_spoil(2, victim)))
    if victim not in [r.client for r in refused.reports[1].refused]:
        raise RuleBroken(f"the spoilt upload of client {victim} in round 2 was not refused")
    for what, trial in (("lost", lost), ("refused", refused)):
        before, after = trial.moments[1].states[victim], trial.moments[2].states[victim]
        _equal(before, after, f"the upload of client {victim} was {what} in round 2, but its state changed")
        if [i for i in usual.reports[1].answered if i != victim] != trial.reports[1].answered:
            raise RuleBroken(f"the upload of client {victim} was {what} in round 2, and others were left out as well")
    _equal(tensors(lost), tensors(refused), "a refused upload has another effect than a lost one")
    again = case.play(setting, touch=twice)
    _equal(tensors(usual), tensors(again), "messages sent twice have another effect than messages sent once")
    dropping = replace(setting, dropout=0.4)
    dropped = case.play(dropping)
    gone = {r.round: [x.client for x in r.refused if x.stage in ("query", "update")] for r in dropped.reports}
    asked = case.play(setting, touch=lose(gone))
    _equal(tensors(dropped), tensors(asked), "a client that drops out has another effect than a lost answer")


def _uploads(touch: Touch) -> Touch:
    """Restrict a change to uploads: an answer to a survey may change which clients are drawn."""

    def at_uploads(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        train = all(m.step == "update" for m in messages.values())
        return touch(messages, pass_on) if train else pass_on(messages)

    return at_uploads


def _spoil(round: int, client: int) -> Touch:
    """Return a change of one client's upload in one round: a NaN in it, or another name if it holds no float."""

    def touch(messages: Mapping[int, Message], pass_on: Exchange) -> Outcome:
        answers, missing = pass_on(messages)
        if client in answers and messages[client].round == round:
            b = answers[client]
            spoilt = {n: torch.full_like(t, math.nan) for n, t in b.items() if t.is_floating_point() and t.numel()}
            answers[client] = b.but(**(spoilt or {"not_asked_for": torch.tensor(math.nan)}))
        return answers, missing

    return touch


# ---- declared -----------------------------------------------------------------------------------------------------


def declared(case: Case) -> None:
    """Check the declaration of the method, see `check_declaration`."""
    check_declaration(case.method)


# ---- robust -------------------------------------------------------------------------------------------------------


def robust(case: Case) -> None:
    """Check that a method with ``robust = True`` runs under the median and uses it."""
    rule = Aggregation("median")
    if any(has(method, RobustMeans) is None for method in wrapped(case.method)):
        return
    setting = case.setting("norm")
    setting = replace(setting, plan=setting.plan.but(aggregation=rule))
    with mock.patch.object(means, "combined", wraps=means.combined) as asked:
        _healthy(case.play(setting), setting)
    if not asked.called:  # results of the mean may be equal, as those of the median of two are
        raise RuleBroken("it declares robust = True, but its server never uses r.mean, r.group_mean or r.mix")


# ---- secure aggregation -------------------------------------------------------------------------------------------


def secure_aggregation(case: Case) -> None:
    """Check that a method with ``secure_aggregation = True`` needs no more than the means of its pools."""
    method = case.method
    if not sums_suffice(method) or case.aggregation != Aggregation():  # sums go with the mean only
        return

    def compare(s: Bundle, r: Round, up: Bundle, new: Bundle) -> None:
        part, pools, _ = pooled(method, s, r, least=1)
        single = {i: Bundle({n: rows[k] for n, rows in up.items()}) for k, i in enumerate(r.ids.tolist()) if i in pools}
        if not single:
            return
        means, why = summed(pools, {i: fixed(b, pools[i]) for i, b in single.items()}, next(iter(single.values())), 1e8)
        again = method.aggregate(s, part, stack(means)) if not why else Bundle()
        _near(new, again, r.index)

    setting = replace(case.setting("norm"), joins=join_rounds(6, "2@3"))
    case.spied(setting, merged=compare)
    everyone = replace(setting, plan=setting.plan.but(participation=1.0, aggregation=Aggregation(secure=True)))
    _healthy(case.play(everyone), everyone)


def _near(a: Bundle, b: Bundle, round: int) -> None:
    """Check that two states agree up to the rounding of sums."""
    for name in sorted(set(a) | set(b)):
        there = name in a and name in b and a[name].shape == b[name].shape
        if not there or not torch.allclose(a[name].double(), b[name].double(), rtol=1e-5, atol=1e-6):
            raise RuleBroken(
                "it declares secure_aggregation = True, but its server ends differently when every upload is replaced "
                f"by the mean of its pool: {name!r} of the state differs in round {round}"
            )


# ---- distribution -------------------------------------------------------------------------------------------------


def distribution(case: Case) -> None:
    """Check the values that the server's steps return, see `check_step_value`."""
    setting = replace(case.setting("mlp"), joins=join_rounds(6, "2@3"))
    case.spied(setting, look=check_step_value)


RULES: dict[str, Callable[[Case], None]] = {
    "declared": declared,
    "runs": runs,
    "same result": same_result,
    "resume": resume,
    "own data": own_data,
    "odd federations": odd_federations,
    "own memory": own_memory,
    "pure steps": pure_steps,
    "banks": banks,
    "failed answers": failed_answers,
    "robust": robust,
    "secure aggregation": secure_aggregation,
    "distribution": distribution,
}
"""Rules by name, in the order of their checks."""
