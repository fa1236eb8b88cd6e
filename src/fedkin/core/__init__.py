"""The contract between methods and engines, and the settings of a run: torch, msgspec and the standard library only.

Names are fetched when first used, so that settings and errors do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkin.core.bundle import (
        Bundle,
        Download,
        stack,
        to_all,
        to_each,
    )
    from fedkin.core.errors import (
        ClientError,
        ConfigError,
        DataError,
        EngineError,
        FedkinError,
        MethodError,
        ModelError,
        PartitionError,
        RunFolderError,
    )
    from fedkin.core.method import (
        Method,
        Work,
        finish,
        first,
        in_range,
        ready,
        uniform_cohort,
    )
    from fedkin.core.net import (
        Net,
    )
    from fedkin.core.samples import (
        Batch,
        ClientData,
        Samples,
    )
    from fedkin.core.settings import (
        Aggregation,
        Training,
    )
    from fedkin.core.sides import (
        Client,
        Roster,
        Round,
    )
    from fedkin.core.train import (
        Train,
        cross_entropy,
        distillation,
        head_loss,
    )

__all__ = [
    "Aggregation",
    "Batch",
    "Bundle",
    "Client",
    "ClientData",
    "ClientError",
    "ConfigError",
    "DataError",
    "Download",
    "EngineError",
    "FedkinError",
    "Method",
    "MethodError",
    "ModelError",
    "Net",
    "PartitionError",
    "Roster",
    "Round",
    "RunFolderError",
    "Samples",
    "Train",
    "Training",
    "Work",
    "cross_entropy",
    "distillation",
    "finish",
    "first",
    "head_loss",
    "in_range",
    "ready",
    "stack",
    "to_all",
    "to_each",
    "uniform_cohort",
]

_FROM = {
    "bundle": "Bundle Download stack to_all to_each",
    "errors": "ClientError ConfigError DataError EngineError FedkinError MethodError ModelError PartitionError "
    "RunFolderError",
    "method": "Method Work finish first in_range ready uniform_cohort",
    "net": "Net",
    "samples": "Batch ClientData Samples",
    "settings": "Aggregation Training",
    "sides": "Client Roster Round",
    "train": "Train cross_entropy distillation head_loss",
}


def __getattr__(name: str) -> Any:
    for module, names in _FROM.items():
        if name in names.split():
            return globals().setdefault(name, getattr(import_module(f"fedkin.core.{module}"), name))
    raise AttributeError(f"module 'fedkin.core' has no attribute {name!r}")
