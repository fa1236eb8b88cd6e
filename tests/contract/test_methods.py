"""Every method of the catalogue keeps the contract, on every engine and at every setting that changes its steps."""

from __future__ import annotations

import pytest

from contract.brief import SETTING, check_briefly, light
from fedkin.capabilities.presets import preset
from fedkin.core import Method
from fedkin.engines import Loop, Workers
from fedkin.methods import (
    APFL,
    CAM,
    CFIC,
    CFL,
    DAPFL,
    IFCA,
    METHODS,
    MOON,
    PACFL,
    PFA,
    SCAFFOLD,
    ClusteredSampling,
    CReFF,
    Ditto,
    Ensemble,
    FedALA,
    FedAMP,
    FedAvg,
    FedAvgFT,
    FedBABU,
    FedBN,
    FedDBE,
    FedDyn,
    FedEM,
    FedFa,
    FedFomo,
    FedGH,
    FedMGDA,
    FedNova,
    FedOpt,
    FedPer,
    FedProto,
    FedProx,
    FedRep,
    FedRoD,
    FedSoft,
    FeSEM,
    KNNPer,
    LGFedAvg,
    Local,
    LocalFull,
    Oracle,
    PerFedAvg,
    PFedCS,
    PFedGraph,
    PFedMe,
    Safe,
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

VARIANTS: dict[str, Method] = {
    **{name: light(name) for name in METHODS if name not in IN_FULL},
    "fedavg after training": FedAvg(after_training=True),
    "fedprox stragglers": FedProx(straggler_fraction=0.5),
    "fedper independent heads": FedPer(independent_heads=True),
    "ifca one cluster": IFCA(clusters=1),
    "ifca more clusters than clients": IFCA(clusters=8),
    "ifca share body": IFCA(share_body=True),
    "ifca gradients": IFCA(average="gradients"),
    "ifca redraws": IFCA(clusters=2, init_min_share=0.2),
    "ifca redraws shared body": IFCA(clusters=2, init_min_share=0.4, share_body=True),
    "fesem all": FeSEM(feature="all"),
    "fesem head": FeSEM(feature="head", lam=0.1),
    "fesem more clusters than clients": FeSEM(clusters=8),
    "da-pfl v1": DAPFL(variant="v1"),
    "da-pfl v2": DAPFL(variant="v2"),
    "da-pfl dynamic": DAPFL(variant="dynamic"),
    "da-pfl v1-uniform": DAPFL(variant="v1-uniform"),
    "da-pfl median": DAPFL(sigma="median"),
    "da-pfl code": preset(DAPFL, "code"),
    "da-pfl proportions": DAPFL(counts="proportions", single="formula"),
    "cfic plain mean": CFIC(correction=False),
    "cfic uniform cohorts": CFIC(even_sampling=False),
    "cfic lazy": CFIC(register="lazy"),
    "cfic decay": CFIC(beta_decay=0.9),
    "cfic paper quota": CFIC(quota="paper"),
    "cfic dominant": CFIC(feature="dominant"),
    "pfedcs kmeans": PFedCS(select="kmeans"),
    "pfedcs hier": PFedCS(select="hier"),
    "pfedcs fixed": PFedCS(select="fixed"),
    "pfedcs all": PFedCS(select="all", weights="others"),
    "pfedcs random": PFedCS(select="random", random_size=1),
    "pfedcs none": PFedCS(select="none"),
    "pfedcs stage 1 only": PFedCS(beta=99, weights="literal-norm"),
    "pfedcs stage 2 only": PFedCS(beta=0),
    "pfedcs untuned": PFedCS(rho=0),
    "pfedcs own step size": PFedCS(beta=4, teacher_lr=0.05, temperature=2.0),
    "fedrod gamma": FedRoD(gamma=0.5),
    "fedrod hyper": FedRoD(personal="hyper"),
    "fedrod small hyper": FedRoD(personal="hyper", gamma=0.0, hidden=3),
    "per-fedavg hessian-free": PerFedAvg(order="hessian-free", inner_lr=0.1, outer_lr=0.1),
    "per-fedavg unadapted": PerFedAvg(adapt_steps=0, outer_lr=0.1),
    "ditto coupled": Ditto(coupled_steps=True),
    "apfl once per round": APFL(adapt="round"),
    "apfl fixed weight": APFL(adapt="never", mixing=0.8),
    "fedala two layers": FedALA(layers=2, share=0.5, mix_lr=10.0, first_epochs=2),
    "knn-per fixed weight": KNNPer(weight=0.3, neighbours=3),
    "fedem one component": FedEM(components=1),
    "fedrep tuned heads": FedRep(head_epochs=2, final_head_epochs=2),
    "fedrep averaged heads": FedRep(head_epochs=2, first_head="average"),
    "fedrep more body": FedRep(head_epochs=1, body_epochs=3),
    "fedrep code": preset(FedRep, "code", head_epochs=2),
    "fedbabu head": FedBABU(part="head"),
    "fedbabu body": FedBABU(part="body", finetune_lr=0.01),
    "fedbabu untuned": FedBABU(finetune_epochs=0),
    "fedavg-ft head": FedAvgFT(part="head", tune_lr=0.05),
    "fedavg-ft untuned": FedAvgFT(tune_epochs=0),
    "fedproto weighted": FedProto(weighted=True),
    "fedproto own classes": FedProto(restrict_classes=True),
    "fedgh minibatch": FedGH(server_batch=4),
    "fedgh fixed header": FedGH(server_lr=0.0),
    "fedgh clip": FedGH(clip=0.1),
    "creff no matching": CReFF(matching_steps=0, crt_epochs=5),
    "creff one sample": CReFF(repeats=1, real_batch=1, crt_epochs=5),
    "clustered sampling condensed": ClusteredSampling(linkage_input="condensed"),
    "clustered sampling l1": ClusteredSampling(measure="l1"),
    "clustered sampling l2": ClusteredSampling(measure="l2"),
    "ensemble of one": Ensemble(members=1),
    "ensemble logits": Ensemble(members=3, vote="logits"),
    "feddyn adaptive": FedDyn(adaptive=True),
    "feddyn active mean": FedDyn(eval_model="active-mean", clip=0.0),
    "feddyn all mean": FedDyn(eval_model="all-mean", adaptive=True),
    "pfedgraph alone": PFedGraph(spread=0.01, lam=0.0),
    "pfedgraph strong pull": PFedGraph(lam=1.0),
    "feddbe no pull": FedDBE(kappa=0.0),
    "pfedme one inner step": PFedMe(inner_steps=1, beta=0.5),
    "moon strong": MOON(mu=10.0, temperature=0.1),
    "fednova momentum": FedNova(server_momentum=0.5),
    "fedopt adam alone": FedOpt(beta1=0.0, server_lr=0.001),
    "fedopt yogi large tau": FedOpt(rule="yogi", tau=1.0, server_lr=1.0),
    "scaffold short steps": SCAFFOLD(server_lr=0.5),
    "feddyn code": preset(FedDyn, "code"),
    "fedmgda no box": FedMGDA(eps=1.0),
    "fedmgda fixed weights": FedMGDA(eps=0.0, lambda0="samples"),
    "fedmgda by samples": FedMGDA(lambda0="samples", decay=0.5),
    "fedmgda not normalised": FedMGDA(normalise=False, eps=1.0),
    "fedfa heavy ball": FedFa(sign="plus", every=2),
    "fedfa by accuracy": FedFa(accuracy_share=1.0),
    "fedfa by participation": FedFa(accuracy_share=0.0, eta=0.5),
    "cfl divides": CFL(eps1=1e9, eps2=0.0, after=0),
    "cfl relative": CFL(eps="relative", eps1=1e9, after=0),
    "cfl complete": CFL(eps1=1e9, eps2=0.0, after=1, linkage="complete", gamma=0.1),
    "cfl reported": CFL(eps1=1e9, eps2=0.0, after=0, split_requires="reported"),
    "pfa at once": PFA(after=0, clusters=2),
    "pfa never": PFA(after=4),
    "pfa kmeans": PFA(after=1, grouping="kmeans", channels=3),
    "pfa many": PFA(clusters=9, after=1),
    "pacfl spans": PACFL(measure="smallest", vectors=1, threshold=40, linkage="complete"),
    "fedamp first": FedAMP(sigma="first"),
    "fedamp guarded": FedAMP(sigma=0.1, server_step=10.0),
    "fedamp clamped": FedAMP(sigma=1.0, server_step=0.001),
    "fedamp participants": FedAMP(over="participants"),
    "fedamp pfllib": preset(FedAMP, "pfllib"),
    "heur-fedamp flgo": preset(FedAMP, "flgo", variant="heur"),
    "heur-fedamp decay": FedAMP(variant="heur", self_weight=0.1, over="participants", step_decay=0.5, decay_every=1),
    "fedfomo code": preset(FedFomo, "code"),
    "fedfomo keep": FedFomo(fallback="trained", peers=9, epsilon=0.0),
    "fedfomo bank": FedFomo(pool="bank", peers=1, epsilon=1.0, epsilon_decay=0.0),
    "fedfomo no peers": FedFomo(peers=0),
    "fedsoft one cluster": FedSoft(clusters=1),
    "fedsoft more clusters than clients": FedSoft(clusters=8, tau=1),
    "fedsoft no selection": FedSoft(selection=False, tau=3),
    "fedsoft code": preset(FedSoft, "code"),
    "ifca accuracy": IFCA(choose_by="accuracy"),
    "ifca after": IFCA(clusters=2, assign="after"),
    "cam oracle": CAM(inner=Oracle()),
    "cam oracle clusters first": CAM(inner=Oracle(), warmup_of="cluster", warmup=2),
    "cam fedsoft": CAM(inner=FedSoft()),
    "cam fedsoft no selection": CAM(inner=FedSoft(selection=False), warmup=1),
    "cam cfl": CAM(inner=CFL(after=1, eps1=9.0, eps2=0.0), warmup=1),
    "cam cfl reported": CAM(inner=CFL(eps1=1e9, eps2=0.0, after=0, split_requires="reported"), warmup=1),
    "cam pfa": CAM(inner=PFA(), warmup=1),
    "cam pfa global first": CAM(inner=PFA(), warmup=0, order="global-first", update="mean"),
    "cam choice alone": CAM(inner=IFCA(), warmup=0, choose_on="cluster"),
    "cam fedbase": preset(CAM, "fedbase-0.10.3-ifca", inner=IFCA(choose_by="accuracy", assign="after"), warmup=1),
    "cam fedbase fesem": preset(CAM, "fedbase-0.10.3-fesem", inner=FeSEM(feature="head")),
    "cam paper ifca": preset(CAM, "paper", inner=IFCA(), warmup=1),
    "cam damped fesem": CAM(inner=FeSEM(), update="damped", warmup=1),
    "cam no warm-up": CAM(inner=IFCA(), warmup=0),
    "cam warm-up only": CAM(inner=IFCA(), warmup=4),
    "cam cluster first": CAM(inner=IFCA(), order="cluster-first", warmup=0),
    "cam global first": CAM(inner=IFCA(), order="global-first"),
    "cam cluster first damped": CAM(inner=IFCA(), order="cluster-first", update="damped", warmup=0),
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


WRAPPED = (
    "cam oracle",
    "cam fedsoft",
    "cam cfl reported",
    "cam pfa",
    "cam paper ifca",
    "cam global first",
    "cam fesem global warm-up",
)
"""Settings of Fed-CAM that `make test` checks; the others are pairs with those of the methods inside."""


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
