"""Custom Q/DQ insertion cases: placement by pattern instead of by name."""

from __future__ import annotations

from qat_lib.custom_qdq_cases.base import CustomQDQInsertionCase, check_is_quantizable_by_layer_name
from qat_lib.custom_qdq_cases.networks import (
    EfficientNetQDQCase,
    InceptionQDQCase,
    MobileNetQDQCase,
    ResNetV1QDQCase,
    ResNetV2QDQCase,
)
from qat_lib.custom_qdq_cases.patterns import BNQDQCase, MaxPoolQDQCase, ResidualConnectionQDQCase
from qat_lib.custom_qdq_cases.tensorrt import TensorRTQDQCase

__all__ = [
    "BNQDQCase",
    "CustomQDQInsertionCase",
    "EfficientNetQDQCase",
    "InceptionQDQCase",
    "MaxPoolQDQCase",
    "MobileNetQDQCase",
    "ResNetV1QDQCase",
    "ResNetV2QDQCase",
    "ResidualConnectionQDQCase",
    "TensorRTQDQCase",
    "check_is_quantizable_by_layer_name",
]
