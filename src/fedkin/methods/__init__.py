"""The catalogue of methods, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable

from fedkin.core import ConfigError, Method
from fedkin.core.errors import nearest
from fedkin.core.importing import is_import_path
from fedkin.core.sources import label
from fedkin.methods.cam import CAM
from fedkin.methods.cfic import CFIC
from fedkin.methods.cfl import CFL
from fedkin.methods.clustered_sampling import ClusteredSampling
from fedkin.methods.creff import CReFF
from fedkin.methods.dapfl import DAPFL
from fedkin.methods.ditto import Ditto
from fedkin.methods.ensemble import Ensemble
from fedkin.methods.fedamp import FedAMP
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedavg_ft import FedAvgFT
from fedkin.methods.fedbabu import FedBABU
from fedkin.methods.feddyn import FedDyn
from fedkin.methods.fedfa import FedFa
from fedkin.methods.fedfomo import FedFomo
from fedkin.methods.fedgh import FedGH
from fedkin.methods.fedmgda import FedMGDA
from fedkin.methods.fedper import FedPer
from fedkin.methods.fedproto import FedProto
from fedkin.methods.fedprox import FedProx
from fedkin.methods.fedrep import FedRep
from fedkin.methods.fedrod import FedRoD
from fedkin.methods.fedsoft import FedSoft
from fedkin.methods.fesem import FeSEM
from fedkin.methods.ifca import IFCA
from fedkin.methods.local import Local
from fedkin.methods.local_full import LocalFull
from fedkin.methods.oracle import Oracle
from fedkin.methods.own import own_method
from fedkin.methods.per_fedavg import PerFedAvg
from fedkin.methods.pfa import PFA
from fedkin.methods.pfedcs import PFedCS

METHODS: dict[str, Callable[[], Method]] = {
    "local": Local,
    "local-full": LocalFull,
    "fedavg": FedAvg,
    "fedavg-ft": FedAvgFT,
    "fedprox": FedProx,
    "feddyn": FedDyn,
    "fedmgda": FedMGDA,
    "fedfa": FedFa,
    "clustered-sampling": ClusteredSampling,
    "clustered-sampling-size": lambda: ClusteredSampling(by="size"),
    "cfic": CFIC,
    "creff": CReFF,
    "fedavg-ensemble": Ensemble,
    "fedprox-ensemble": lambda: Ensemble(mu=0.95),
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedrod": FedRoD,
    "pfedcs": PFedCS,
    "per-fedavg": PerFedAvg,
    "ditto": Ditto,
    "fedamp": FedAMP,
    "heur-fedamp": lambda: FedAMP(variant="heur"),
    "fedfomo": FedFomo,
    "da-pfl": DAPFL,
    "fedproto": FedProto,
    "fedgh": FedGH,
    "ifca": IFCA,
    "fesem": FeSEM,
    "cfl": CFL,
    "pfa": PFA,
    "fedsoft": FedSoft,
    "ifca-cam": lambda: CAM(inner=IFCA()),
    "ifca-cam-eq6": lambda: CAM.preset("paper", inner=IFCA()),
    "fesem-cam": lambda: CAM.preset("paper", inner=FeSEM(lam=0.01)),
    "oracle": Oracle,
}
"""Name -> a function that gives the method with its defaults."""

TITLES = {
    "local": "Local",
    "local-full": "Local (full)",
    "fedavg": "FedAvg",
    "fedavg-ft": "FedAvg + FT",
    "fedprox": "FedProx",
    "feddyn": "FedDyn",
    "fedmgda": "FedMGDA+",
    "fedfa": "FedFa",
    "clustered-sampling": "Clustered Sampling",
    "clustered-sampling-size": "Clustered Sampling (size)",
    "cfic": "CFIC",
    "creff": "CReFF",
    "fedavg-ensemble": "FedAvg+",
    "fedprox-ensemble": "FedProx+",
    "fedper": "FedPer",
    "fedrep": "FedRep",
    "fedbabu": "FedBABU",
    "fedrod": "FedRoD",
    "pfedcs": "PFedCS",
    "per-fedavg": "Per-FedAvg",
    "ditto": "Ditto",
    "fedamp": "FedAMP",
    "heur-fedamp": "HeurFedAMP",
    "fedfomo": "FedFomo",
    "da-pfl": "DA-PFL",
    "fedproto": "FedProto",
    "fedgh": "FedGH",
    "ifca": "IFCA",
    "fesem": "FeSEM",
    "cfl": "CFL",
    "pfa": "PFA",
    "fedsoft": "FedSoft",
    "ifca-cam": "IFCA-CAM",
    "ifca-cam-eq6": "IFCA-CAM (Eq. 6)",
    "fesem-cam": "FeSEM-CAM",
    "oracle": "Oracle clusters",
}
"""Name -> how the method is written in its paper."""

LINES = {
    "clustered-sampling": "Cohorts drawn from groups of clients with similar updates, without bias; one model.",
    "clustered-sampling-size": "Cohorts drawn from groups of clients of similar size, without bias; one model.",
    "fedavg-ensemble": "Several global models, each trained by FedAvg on its own, that vote.",
    "fedprox-ensemble": "Several global models, each trained by FedProx on its own, that vote.",
    "fedamp": "A model per client, pulled towards a mixture in which similar models attract each other.",
    "heur-fedamp": "A model per client, pulled towards a mixture by the cosines of the models.",
    "ifca-cam": "A global plus a cluster model, in the clusters of IFCA; NAME-cam: around any clustered method.",
    "ifca-cam-eq6": "The same with cluster models that move by their members' share of the samples.",
    "fesem-cam": "A global plus a cluster model whose logits add up, in the clusters of FeSEM.",
}
"""Name -> what it does, where a class has several entries; else the first line of its docstring says it."""


def get_method(name: str) -> Method:
    """The method of this name with its defaults; ``NAME-cam`` is Fed-CAM around any clustered method.

    A method of one's own goes by ``./file.py:Class`` or ``package.module:Class``.

    Raises:
        ConfigError: there is none, with the nearest name in the message; it is not one that Fed-CAM can wrap; or the
            class is no complete method.
    """
    if name in METHODS:
        return METHODS[name]()
    if is_import_path(name):
        return own_method(name)
    if (inner := name.removesuffix("-cam")) != name and inner in METHODS:
        wrapped = METHODS[inner]()
        # clients of FedSoft keep models of their own, which would overshoot if both models moved at once
        return CAM(wrapped, order="cluster-first") if inner == "fedsoft" else CAM(wrapped)
    if name.endswith(".py"):
        raise ConfigError(f"{name} is a file; name the class in it, too: {name}:MyMethod")
    raise ConfigError(
        f"unknown method {name!r}{nearest(name, METHODS)} (fedkin list methods; one of your own: ./file.py:MyMethod)"
    )


def get_title(name: str) -> str:
    """How the method of this name is written.

    Raises:
        ConfigError: there is none.
    """
    if name in TITLES:
        return TITLES[name]
    if is_import_path(name):
        return label(name)
    get_method(name)
    return f"{TITLES[name.removesuffix('-cam')]}-CAM"


__all__ = [
    "CAM",
    "CFIC",
    "CFL",
    "DAPFL",
    "IFCA",
    "LINES",
    "METHODS",
    "PFA",
    "TITLES",
    "CReFF",
    "ClusteredSampling",
    "Ditto",
    "Ensemble",
    "FeSEM",
    "FedAMP",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedDyn",
    "FedFa",
    "FedFomo",
    "FedGH",
    "FedMGDA",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSoft",
    "Local",
    "LocalFull",
    "Oracle",
    "PFedCS",
    "PerFedAvg",
    "get_method",
    "get_title",
]
