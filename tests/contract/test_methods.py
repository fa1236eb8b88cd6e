"""Every method of the catalogue keeps the contract, on every engine and at every setting that changes its steps."""

from __future__ import annotations

import pytest

from contract.brief import SETTING, check_briefly, light
from fedkin.capabilities.presets import preset
from fedkin.core import Method
from fedkin.engines import Loop, Workers
from fedkin.methods import (
    CAM,
    CFL,
    IFCA,
    METHODS,
    PFA,
    FedAvg,
    FedBN,
    FedFomo,
    FedProto,
    FedSoft,
    FeSEM,
    LGFedAvg,
    Local,
    LocalFull,
    Oracle,
    PFedCS,
    Safe,
    get_method,
)
from fedkin.testing import RULES, check_method
from fedkin.testing.trial import difference, play, tensors
from thorough import thorough_except

ON_ENGINES = ("same result", "resume", "odd federations")
ON_PROCESSES = ("da-pfl", "ifca-cam")
"""Rows of a bank; a survey, and several requests with partners."""

OF_EVERY_MESSAGE = ("creff", "da-pfl", "fedavg", "fedfomo", "fedproto", "ifca-cam", "local", "pfedcs")
"""A method of each kind of message and state that processes pass on."""

IN_FULL = ("cfl", "da-pfl", "fedavg", "fedavg-safe", "fedfomo", "fedproto", "ifca-cam", "local", "pfedcs")
"""Methods of which `make test` checks every rule, one of each kind; it checks all others briefly."""

SETTINGS = """
    fedavg@after_training=true fedprox@straggler_fraction=0.5 fedper@independent_heads=true ifca@clusters=1
    ifca@clusters=8 ifca@share_body=true ifca@average=gradients ifca@clusters=2,init_min_share=0.2
    ifca@clusters=2,share_body=true,init_min_share=0.4 fesem@feature=all fesem@feature=head,lam=0.1 fesem@clusters=8
    da-pfl@variant=v1 da-pfl@variant=v2 da-pfl@variant=dynamic da-pfl@variant=v1-uniform da-pfl@sigma=median
    da-pfl@distance=l2,include_self=true,equal=one,prox=after da-pfl@single=formula,counts=proportions
    cfic@correction=false cfic@even_sampling=false cfic@register=lazy cfic@beta_decay=0.9 cfic@quota=paper
    cfic@feature=dominant pfedcs@select=kmeans pfedcs@select=hier pfedcs@select=fixed pfedcs@select=all,weights=others
    pfedcs@select=random,random_size=1 pfedcs@select=none pfedcs@beta=99,weights=literal-norm pfedcs@beta=0
    pfedcs@rho=0 pfedcs@beta=4,teacher_lr=0.05,temperature=2.0 fedrod@gamma=0.5 fedrod@personal=hyper
    fedrod@gamma=0.0,personal=hyper,hidden=3 per-fedavg@inner_lr=0.1,outer_lr=0.1,order=hessian-free
    per-fedavg@outer_lr=0.1,adapt_steps=0 ditto@coupled_steps=true apfl@adapt=round apfl@mixing=0.8,adapt=never
    fedala@layers=2,share=0.5,mix_lr=10.0,first_epochs=2 knn-per@neighbours=3,weight=0.3 fedem@components=1
    fedrep@head_epochs=2,final_head_epochs=2 fedrep@head_epochs=2,first_head=average
    fedrep@head_epochs=1,body_epochs=3 fedrep@head_epochs=2,body_epochs=1,final_head_epochs=10,first_head=average
    fedbabu@part=head fedbabu@part=body,finetune_lr=0.01 fedbabu@finetune_epochs=0 fedavg-ft@part=head,tune_lr=0.05
    fedavg-ft@tune_epochs=0 fedproto@weighted=true fedproto@restrict_classes=true fedgh@server_batch=4
    fedgh@server_lr=0.0 fedgh@clip=0.1 creff@matching_steps=0,crt_epochs=5 creff@repeats=1,real_batch=1,crt_epochs=5
    clustered-sampling@linkage_input=condensed clustered-sampling@measure=l1 clustered-sampling@measure=l2
    fedavg-ensemble@members=1 fedavg-ensemble@members=3,vote=logits feddyn@adaptive=true feddyn@eval_model=active-mean
    feddyn@adaptive=true,eval_model=all-mean pfedgraph@spread=0.01,lam=0.0 pfedgraph@lam=1.0 feddbe@kappa=0.0
    pfedme@inner_steps=1,beta=0.5 moon@mu=10.0,temperature=0.1 fednova@server_momentum=0.5
    fedadam@server_lr=0.001,beta1=0.0 fedavgm@rule=yogi,tau=1.0 scaffold@server_lr=0.5
    feddyn@reg=0.01,adaptive=true,clip=10.0,eval_model=all-mean fedmgda@eps=1.0 fedmgda@eps=0.0,lambda0=samples
    fedmgda@lambda0=samples,decay=0.5 fedmgda@eps=1.0,normalise=false fedfa@sign=plus,every=2 fedfa@accuracy_share=1.0
    fedfa@accuracy_share=0.0,eta=0.5 cfl@eps1=1e9,eps2=0.0,after=0 cfl@eps1=1e9,eps=relative,after=0
    cfl@eps1=1e9,eps2=0.0,after=1,gamma=0.1,linkage=complete cfl@eps1=1e9,eps2=0.0,after=0,split_requires=reported
    pfa@clusters=2,after=0 pfa@after=4 pfa@after=1,channels=3,grouping=kmeans pfa@clusters=9,after=1
    pacfl@vectors=1,threshold=40,measure=smallest,linkage=complete fedamp@sigma=first
    fedamp@server_step=10.0,sigma=0.1 fedamp@server_step=0.001,sigma=1.0 fedamp@over=participants
    fedamp@server_step=1.0,sigma=1.0,over=participants heur-fedamp@server_step=1e4,step_decay=0.1
    heur-fedamp@step_decay=0.5,decay_every=1,self_weight=0.1,over=participants fedfomo@norm=l1,affinity=normalised
    fedfomo@peers=9,epsilon=0.0,fallback=trained fedfomo@peers=1,epsilon=1.0,epsilon_decay=0.0,pool=bank
    fedfomo@peers=0 fedsoft@clusters=1 fedsoft@clusters=8,tau=1 fedsoft@tau=3,selection=false
    fedsoft@clusters=2,lam=0.01,per_cluster=15 ifca@choose_by=accuracy ifca@clusters=2,assign=after
    ifca-cam@warmup=0,choose_on=cluster ifca-cam-eq6@warmup=1 ifca-cam@warmup=0 ifca-cam@warmup=4
    ifca-cam@warmup=0,order=cluster-first ifca-cam@order=global-first ifca-cam-eq6@warmup=0,order=cluster-first
"""
"""Settings that change what is sent, kept or computed."""

VARIANTS: dict[str, Method] = {
    **{name: light(name) for name in METHODS if name not in IN_FULL},
    **{name: get_method(name) for name in SETTINGS.split()},
    "cam oracle": CAM(inner=Oracle()),
    "cam oracle clusters first": CAM(inner=Oracle(), warmup_of="cluster", warmup=2),
    "cam fedsoft": CAM(inner=FedSoft()),
    "cam fedsoft no selection": CAM(inner=FedSoft(selection=False), warmup=1),
    "cam cfl": CAM(inner=CFL(after=1, eps1=9.0, eps2=0.0), warmup=1),
    "cam cfl reported": CAM(inner=CFL(eps1=1e9, eps2=0.0, after=0, split_requires="reported"), warmup=1),
    "cam pfa": CAM(inner=PFA(), warmup=1),
    "cam pfa global first": CAM(inner=PFA(), warmup=0, order="global-first", update="mean"),
    "cam fedbase": preset(CAM, "fedbase-0.10.3-ifca", inner=IFCA(choose_by="accuracy", assign="after"), warmup=1),
    "cam fedbase fesem": preset(CAM, "fedbase-0.10.3-fesem", inner=FeSEM(feature="head")),
    "cam damped fesem": CAM(inner=FeSEM(), update="damped", warmup=1),
    "cam shared body": CAM(inner=IFCA(share_body=True), warmup=0),
    "cam fesem global warm-up": CAM(inner=FeSEM()),
    "cam fesem warm-up only": CAM(inner=FeSEM(), warmup_of="cluster", warmup=4),
    "safe sure": Safe(inner=FedAvg(), mode="sure"),
    "safe silent": Safe(inner=FedAvg(), send_numbers=False),
    "safe fedproto": Safe(inner=FedProto()),
    "safe fedfomo": Safe(inner=FedFomo()),
    "safe pfa": Safe(inner=PFA(after=1, clusters=2)),
    "safe cam": Safe(inner=CAM(inner=IFCA(), warmup=1)),
}

AT_OTHER_SEEDS: dict[str, Method] = {"fesem-cam": CAM(inner=FeSEM()), "pfedcs": PFedCS(beta=4)}


@pytest.mark.parametrize("name", thorough_except(METHODS, IN_FULL))
def test_a_method_keeps_every_rule_on_the_reference_engine(name: str) -> None:
    """Each method of the catalogue, as it comes, keeps all rules where clients run one after another."""
    check_method(light(name), engines=[], rules=[rule for rule in RULES if rule != "robust"])


@pytest.mark.parametrize("name", thorough_except(METHODS, OF_EVERY_MESSAGE))
def test_a_method_gives_the_same_on_two_processes(name: str) -> None:
    """On two worker processes each method gives what the reference gives, bit for bit, with drop-outs, late joiners and
    running statistics."""
    one, two = (tensors(play(light(name), SETTING, engine)) for engine in (Loop(), Workers(2)))
    assert difference(one, two) is None


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize("name", thorough_except(METHODS, ON_PROCESSES))
def test_the_rules_on_engines_hold_for_processes(name: str, workers: int) -> None:
    """The contract's own runs on worker processes, for two kinds of traffic; for all methods in `make test-all`."""
    check_method(METHODS[name](), engines=[Workers(workers)], rules=ON_ENGINES)


WRAPPED = {"cam oracle", "cam fedsoft", "cam cfl reported", "cam pfa", "cam fesem global warm-up"}
"""Methods in Fed-CAM that `make test` checks; the others are pairs with the settings of those inside."""


@pytest.mark.parametrize("name", thorough_except(VARIANTS, [v for v in VARIANTS if v[:4] != "cam " or v in WRAPPED]))
def test_a_method_keeps_the_rules_at_other_settings(name: str) -> None:
    """Settings that change what is sent, kept or computed keep the rules that they can break by themselves."""
    check_briefly(VARIANTS[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", VARIANTS)
def test_a_method_keeps_every_rule_at_other_settings(name: str) -> None:
    """All rules, each on its own runs, with two worker processes compared: `make test-all`."""
    check_method(VARIANTS[name], engines=[Workers(2)])


def test_every_method_of_the_catalogue_has_variants_or_none_to_have() -> None:
    """A method added to the catalogue must be looked at here, too: its class appears among those checked."""
    looked_at = {type(m) for m in VARIANTS.values()} | {Local, LocalFull, LGFedAvg, FedBN}
    assert {type(make()) for make in METHODS.values()} <= looked_at


@pytest.mark.parametrize("name", thorough_except(AT_OTHER_SEEDS, ["pfedcs"]))
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (3, 4))])
def test_the_rules_hold_at_other_seeds(seed: int, name: str) -> None:
    """The rules do not hold by luck of one seed: cohorts, drop-outs and batches differ with it."""
    check_method(AT_OTHER_SEEDS[name], engines=[], seed=seed)


def test_every_rule_has_a_line_in_the_documentation() -> None:
    """The page of rules that a method's author reads names each rule that is checked."""
    import fedkin.testing

    assert all(f"- ``{name}``:" in (fedkin.testing.__doc__ or "") for name in RULES)
