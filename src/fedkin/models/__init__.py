"""Networks: plain torch modules by name (`MODELS`) or by import path (`get_model`)."""

from __future__ import annotations

from fedkin.models.build import Classifier
from fedkin.models.registry import MODELS, get_model

__all__ = ["MODELS", "Classifier", "get_model"]
