"""The catalogue of methods, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedkin.capabilities.presets import preset
from fedkin.core import ConfigError, Method
from fedkin.core.errors import nearest
from fedkin.core.grammar import Fields, Value, filled, parsed, subtable
from fedkin.methods.apfl import APFL as APFL
from fedkin.methods.cam import CAM as CAM
from fedkin.methods.cfic import CFIC as CFIC
from fedkin.methods.cfl import CFL as CFL
from fedkin.methods.clustered_sampling import ClusteredSampling as ClusteredSampling
from fedkin.methods.creff import CReFF as CReFF
from fedkin.methods.dapfl import DAPFL as DAPFL
from fedkin.methods.ditto import Ditto as Ditto
from fedkin.methods.ensemble import Ensemble as Ensemble
from fedkin.methods.fedala import FedALA as FedALA
from fedkin.methods.fedamp import FedAMP as FedAMP
from fedkin.methods.fedavg import FedAvg as FedAvg
from fedkin.methods.fedavg_ft import FedAvgFT as FedAvgFT
from fedkin.methods.fedbabu import FedBABU as FedBABU
from fedkin.methods.fedbn import FedBN as FedBN
from fedkin.methods.feddbe import FedDBE as FedDBE
from fedkin.methods.feddyn import FedDyn as FedDyn
from fedkin.methods.fedem import FedEM as FedEM
from fedkin.methods.fedfa import FedFa as FedFa
from fedkin.methods.fedfomo import FedFomo as FedFomo
from fedkin.methods.fedgh import FedGH as FedGH
from fedkin.methods.fedmgda import FedMGDA as FedMGDA
from fedkin.methods.fednova import FedNova as FedNova
from fedkin.methods.fedopt import FedOpt as FedOpt
from fedkin.methods.fedpac import FedPAC as FedPAC
from fedkin.methods.fedper import FedPer as FedPer
from fedkin.methods.fedproto import FedProto as FedProto
from fedkin.methods.fedprox import FedProx as FedProx
from fedkin.methods.fedrep import FedRep as FedRep
from fedkin.methods.fedrod import FedRoD as FedRoD
from fedkin.methods.fedsoft import FedSoft as FedSoft
from fedkin.methods.fesem import FeSEM as FeSEM
from fedkin.methods.fml import FML as FML
from fedkin.methods.ifca import IFCA as IFCA
from fedkin.methods.knn_per import KNNPer as KNNPer
from fedkin.methods.lg_fedavg import LGFedAvg as LGFedAvg
from fedkin.methods.local import Local as Local
from fedkin.methods.local_full import LocalFull as LocalFull
from fedkin.methods.moon import MOON as MOON
from fedkin.methods.oracle import Oracle as Oracle
from fedkin.methods.pacfl import PACFL as PACFL
from fedkin.methods.per_fedavg import PerFedAvg as PerFedAvg
from fedkin.methods.pfa import PFA as PFA
from fedkin.methods.pfedcs import PFedCS as PFedCS
from fedkin.methods.pfedgraph import PFedGraph as PFedGraph
from fedkin.methods.pfedme import PFedMe as PFedMe
from fedkin.methods.safe import Safe as Safe
from fedkin.methods.scaffold import SCAFFOLD as SCAFFOLD
from fedkin.user_code.loading import is_import_path, plain_name, without_settings
from fedkin.user_code.method import own_method
from fedkin.user_code.reference import CodeRef

ALONE = ("local", "local-full")
"""Methods that train each client alone; comparisons are with the first unless another baseline is named."""

REFERENCES = (*ALONE, "fedavg")
"""Rows that every comparison has."""

SHOWN = (*REFERENCES, "da-pfl", "da-pfl-safe", "cfic", "pfedcs", "ifca-cam", "ifca-cam-eq6", "fesem-cam")
"""Methods of the demonstration: the four systems, the safe form of one, and their references."""

METHODS: dict[str, Callable[[], Method]] = {
    "local": Local,
    "local-full": LocalFull,
    "fedavg": FedAvg,
    "fedavg-ft": FedAvgFT,
    "fedprox": FedProx,
    "feddyn": FedDyn,
    "scaffold": SCAFFOLD,
    "fednova": FedNova,
    "fedadam": FedOpt,
    "fedyogi": lambda: FedOpt(rule="yogi"),
    "fedadagrad": lambda: FedOpt(rule="adagrad", beta1=0.0),
    "fedavgm": lambda: FedOpt(rule="momentum", server_lr=1.0),
    "moon": MOON,
    "fedmgda": FedMGDA,
    "fedfa": FedFa,
    "clustered-sampling": ClusteredSampling,
    "clustered-sampling-size": lambda: ClusteredSampling(by="size"),
    "cfic": CFIC,
    "creff": CReFF,
    "fedavg-ensemble": Ensemble,
    "fedprox-ensemble": lambda: Ensemble(mu=0.95),
    "fedper": FedPer,
    "lg-fedavg": LGFedAvg,
    "fedbn": FedBN,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedrod": FedRoD,
    "feddbe": FedDBE,
    "fedpac": FedPAC,
    "knn-per": KNNPer,
    "pfedcs": PFedCS,
    "per-fedavg": PerFedAvg,
    "ditto": Ditto,
    "pfedme": PFedMe,
    "apfl": APFL,
    "fml": FML,
    "fedala": FedALA,
    "fedamp": FedAMP,
    "heur-fedamp": lambda: FedAMP(variant="heur"),
    "fedfomo": FedFomo,
    "da-pfl": DAPFL,
    "pfedgraph": PFedGraph,
    "fedem": FedEM,
    "fedproto": FedProto,
    "fedgh": FedGH,
    "ifca": IFCA,
    "fesem": FeSEM,
    "cfl": CFL,
    "pfa": PFA,
    "pacfl": PACFL,
    "fedsoft": FedSoft,
    "ifca-cam": lambda: CAM(inner=IFCA()),
    "ifca-cam-eq6": lambda: preset(CAM, "paper", inner=IFCA()),
    "fesem-cam": lambda: preset(CAM, "paper", inner=FeSEM(lam=0.01)),
    "oracle": Oracle,
    "fedavg-safe": lambda: Safe(inner=FedAvg()),
}
"""Name -> a function that gives the method with its defaults."""

_OTHER_NAMES = {
    "fedopt": "fedadam, fedyogi, fedadagrad and fedavgm",
    "silobn": "fedbn@keep=statistics",
    "hypcluster": "ifca",
    "finetune": "fedavg-ft",
    "finetuning": "fedavg-ft",
}
"""Letters of other names in the literature -> the methods here."""


def canonical(name: str) -> str:
    """Return the catalogue's name of a method that is written as in its paper, such as "FedAvg" or "DA-PFL".

    Capitals, spaces, ``-`` and ``_`` do not matter. Any other name, that of user-defined code for example, is returned
    as it is; settings in a name (see `get_method`) are written in one way.

    Raises:
        ConfigError: settings in the name are not of the form FIELD=VALUE.
    """
    plain = plain_name(name)
    base, text = without_settings(plain)
    if text:
        listed = (f"{field}={str(v).lower() if isinstance(v, bool) else v}" for field, v in _parsed(text, name).items())
        return f"{canonical(base)}@{','.join(listed)}{name[len(plain) :]}"
    if _is_known(name.removesuffix("-safe")) or is_import_path(name) or name.endswith(".py"):
        return name
    for known, make in METHODS.items():
        if _letters(name) in (_letters(known), _letters(make().title)):
            return known
    for suffix in ("cam", "safe"):
        inner, stroke = name[: -len(suffix) - 1], name[-len(suffix) - 1 : -len(suffix)]
        if name.casefold().endswith(suffix) and stroke in ("-", "_", " ") and _is_known(inner := canonical(inner)):
            return f"{inner}-{suffix}"
    return name


def _is_known(name: str) -> bool:
    """Return whether a name is one of the catalogue, or one with the suffix of Fed-CAM."""
    return name in METHODS or name.removesuffix("-cam") in METHODS


def _letters(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum() or c == "+")


def get_method(name: str) -> Method:
    """Return the method of this name with its defaults.

    ``NAME-cam`` is Fed-CAM around any clustered method, ``NAME-safe`` the safe form of any method (`Safe`),
    ``NAME@FIELD=VALUE,...`` a method with other settings. A custom method is named ``./file.py:Class`` or
    ``package.module:Class``, its safe form ``./file.py:Class-safe``.

    Raises:
        ConfigError: there is none, with the nearest name in the message; it is not one that Fed-CAM can wrap; the class
            is not a complete method; or a setting in the name does not fit.
    """
    name = canonical(name)
    if name in METHODS:
        return METHODS[name]()
    plain = plain_name(name)
    base, text = without_settings(plain)
    if plain != name and (text or is_import_path(plain) or _is_known(plain)):
        return Safe(inner=get_method(plain))
    if text:
        return filled(get_method(base), settings_in(name), name)
    if is_import_path(name):
        return own_method(name)
    if (inner := name.removesuffix("-cam")) != name and inner in METHODS:
        wrapped = METHODS[inner]()
        # clients of FedSoft keep their models, which would overshoot if both models moved at once
        return CAM(wrapped, order="cluster-first") if inner == "fedsoft" else CAM(wrapped)
    if name.endswith(".py"):
        raise ConfigError(f"{name} is a file; add the name of the class: {name}:MyMethod")
    file, colon, of_class = name.rpartition(":")
    if colon and "/" in file:
        raise ConfigError(f"{name} is not a method: a file's name ends with .py, {file}.py:{of_class}")
    raise ConfigError(f"unknown method {name!r}{_meant(name)} (fedkin list methods; a custom one: ./file.py:MyMethod)")


def _meant(name: str) -> str:
    """Return the end of a sentence that says what an unknown name may mean."""
    parts = name.split(",")
    if len(parts) > 1 and all(map(_is_known, map(canonical, parts))):
        return f"; several are named one by one: {' '.join(parts)}"
    if here := _OTHER_NAMES.get(_letters(name)):
        return f"; here it is {here}"
    return nearest(name, METHODS)


def get_title(name: str) -> str:
    """Return the name of the method in tables, by its name on the command line.

    Raises:
        ConfigError: there is none.
    """
    plain = plain_name(name)
    base, text = without_settings(plain)
    title = CodeRef(base).attribute if is_import_path(base) else get_method(base).title
    return title + (f" ({text.replace(',', ', ')})" if text else "") + name[len(plain) :]


def settings_in(name: str) -> Fields:
    """Return the settings in a method's name: field -> value; those of a wrapped method under ``inner``.

    Raises:
        ConfigError: the method is unknown or a safe form, or its settings do not have the form FIELD=VALUE.
    """
    base, text = without_settings(plain_name(name))
    if not text:
        return {}
    if (plain := plain_name(base)) != base:
        raise ConfigError(
            f"{name}: settings in a name are those of the method, before -safe: {plain}@FIELD=VALUE-safe; fields of "
            f"the safe form are given as --set {base}.FIELD=VALUE"
        )
    method, values = get_method(base), Fields()
    for field, value in _parsed(text, name).items():
        place(values, method, field, value)
    return values


def place(table: Fields, method: Method, field: str, value: Any) -> None:
    """Set a field in a method's table; a field that only a wrapped method has is set in the table ``inner``."""
    inner = getattr(method, "inner", None)
    if not hasattr(method, field) and isinstance(inner, Method):
        within = {**subtable(table, "inner")}
        place(within, inner, field, value)
        table["inner"] = within
    else:
        table[field] = value


def _parsed(text: str, name: str) -> dict[str, Value]:
    """Return settings in the order of their text, such as "mu=0.1,epochs=2"."""
    result = parsed(f"@{text}", name)[1]
    for value in result.values():
        if set(str(value)) & set("/\\:@"):  # names are also those of folders
            raise ConfigError(
                f"{name}: a value in a name cannot contain /, \\, : or @, got {value!r}; write it into the table "
                "[method] of a file"
            )
    return result
