"""Federated learning where clients' data differ: which clients should learn from whom, and did it pay?

import fedkin

federation = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=20)
result = fedkin.run("da-pfl", federation, rounds=40, participation=0.5)
print(result.final.accuracy)
print(fedkin.compare(federation, ["da-pfl", "fedrep"], seeds=[0, 1, 2], rounds=40).table())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedkin.version import __version__

if TYPE_CHECKING:
    from fedkin import capabilities, data, methods, models
    from fedkin.core import (
        Aggregation,
        Bundle,
        Client,
        FedkinError,
        Method,
        Net,
        Round,
        Samples,
        Train,
        Training,
        Work,
        cross_entropy,
        in_range,
        to_all,
        to_each,
    )
    from fedkin.core.settings import Compute, DataSettings, ModelSettings, Privacy, RunSettings, Settings
    from fedkin.data import (
        ClassesPerClient,
        ClientData,
        ClusterClasses,
        ClusterDirichlet,
        Dataset,
        Dirichlet,
        DirichletTotal,
        ExtendedDirichlet,
        Federation,
        Natural,
        QuantitySkew,
        federate,
        load,
    )
    from fedkin.experiment.compare import Comparison, compare
    from fedkin.experiment.comparison import ComparisonResult
    from fedkin.experiment.listing import read_runs
    from fedkin.experiment.run import resume, run
    from fedkin.exporting import export, load_export
    from fedkin.inspection import inspect
    from fedkin.methods import get_method
    from fedkin.record.result import Result

__all__ = [
    "Aggregation",
    "Bundle",
    "ClassesPerClient",
    "Client",
    "ClientData",
    "ClusterClasses",
    "ClusterDirichlet",
    "Comparison",
    "ComparisonResult",
    "Compute",
    "DataSettings",
    "Dataset",
    "Dirichlet",
    "DirichletTotal",
    "ExtendedDirichlet",
    "Federation",
    "FedkinError",
    "Method",
    "ModelSettings",
    "Natural",
    "Net",
    "Privacy",
    "QuantitySkew",
    "Result",
    "Round",
    "RunSettings",
    "Samples",
    "Settings",
    "Train",
    "Training",
    "Work",
    "__version__",
    "capabilities",
    "compare",
    "cross_entropy",
    "data",
    "export",
    "federate",
    "get_method",
    "in_range",
    "inspect",
    "load",
    "load_export",
    "methods",
    "models",
    "read_runs",
    "resume",
    "run",
    "to_all",
    "to_each",
]

_FROM = {
    "fedkin": (
        "capabilities",
        "data",
        "methods",
        "models",
    ),
    "fedkin.experiment.compare": (
        "Comparison",
        "compare",
    ),
    "fedkin.experiment.comparison": ("ComparisonResult",),
    "fedkin.core": (
        "Aggregation",
        "Bundle",
        "Client",
        "Samples",
        "FedkinError",
        "Method",
        "Net",
        "Training",
        "Round",
        "Train",
        "Work",
        "cross_entropy",
        "in_range",
        "to_all",
        "to_each",
    ),
    "fedkin.data": (
        "ClassesPerClient",
        "ClusterClasses",
        "ClusterDirichlet",
        "Dataset",
        "Dirichlet",
        "DirichletTotal",
        "ExtendedDirichlet",
        "Federation",
        "Natural",
        "QuantitySkew",
        "ClientData",
        "federate",
        "load",
    ),
    "fedkin.exporting": ("export", "load_export"),
    "fedkin.inspection": ("inspect",),
    "fedkin.methods": ("get_method",),
    "fedkin.experiment.listing": ("read_runs",),
    "fedkin.core.settings": ("Compute", "DataSettings", "ModelSettings", "Privacy", "RunSettings", "Settings"),
    "fedkin.experiment.run": ("resume", "run"),
    "fedkin.record.result": ("Result",),
}


def __getattr__(name: str) -> Any:
    """Public names are fetched when first used, so that a part that needs no torch does not wait for it."""
    for module, names in _FROM.items():
        if name in names:
            result = import_module(f"fedkin.{name}") if module == "fedkin" else getattr(import_module(module), name)
            globals()[name] = result
            return result
    raise AttributeError(f"module 'fedkin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
