"""Federated learning where clients' data differ: which clients should learn from whom, and did it pay?

import fedkin

federation = fedkin.federate(fedkin.load("digits"), fedkin.Dirichlet(alpha=0.5), clients=20)
result = fedkin.run(fedkin.methods.DAPFL(), federation, "mlp", rounds=40, participation=0.5)
print(result.final["accuracy"])
"""

from fedkin import data, methods, models
from fedkin.compare import Plan, compare
from fedkin.core import (
    Bundle,
    Client,
    Data,
    FedkinError,
    Method,
    Net,
    Recipe,
    Round,
    Train,
    Work,
    cross_entropy,
    to_all,
    to_each,
)
from fedkin.data import (
    Classes,
    ClusterClasses,
    ClusterDirichlet,
    Dirichlet,
    DirichletTotal,
    Federation,
    Natural,
    Shard,
    federate,
    load,
)
from fedkin.methods import get_method
from fedkin.run import Result, resume, run
from fedkin.version import __version__

__all__ = [
    "Bundle",
    "Classes",
    "Client",
    "ClusterClasses",
    "ClusterDirichlet",
    "Data",
    "Dirichlet",
    "DirichletTotal",
    "Federation",
    "FedkinError",
    "Method",
    "Natural",
    "Net",
    "Plan",
    "Recipe",
    "Result",
    "Round",
    "Shard",
    "Train",
    "Work",
    "__version__",
    "compare",
    "cross_entropy",
    "data",
    "federate",
    "get_method",
    "load",
    "methods",
    "models",
    "resume",
    "run",
    "to_all",
    "to_each",
]
