"""Cases for network families, as in NVIDIA's toolkit: unions of the general cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from qat_lib.core.spec import QuantizationSpec
from qat_lib.custom_qdq_cases.base import CustomQDQInsertionCase, check_is_quantizable_by_layer_name
from qat_lib.custom_qdq_cases.patterns import (
    BNQDQCase,
    MaxPoolQDQCase,
    ResidualConnectionQDQCase,
    is_supported,
)
from qat_lib.graph.reading import read_graph


class _UnionCase(CustomQDQInsertionCase):
    parts: ClassVar[Sequence[type[CustomQDQInsertionCase]]] = ()

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return the entries of all parts."""
        found = QuantizationSpec()
        for part in self.parts:
            found.layers.extend(part().case(keras_model, qspec).layers)
        return found


class ResNetV1QDQCase(_UnionCase):
    """ResNet v1: residual connections."""

    parts: ClassVar[Sequence[type[CustomQDQInsertionCase]]] = (ResidualConnectionQDQCase,)


class MobileNetQDQCase(_UnionCase):
    """MobileNet: residual connections."""

    parts: ClassVar[Sequence[type[CustomQDQInsertionCase]]] = (ResidualConnectionQDQCase,)


class ResNetV2QDQCase(_UnionCase):
    """ResNet v2: residual connections, free batch normalization, max pooling."""

    parts: ClassVar[Sequence[type[CustomQDQInsertionCase]]] = (
        ResidualConnectionQDQCase,
        BNQDQCase,
        MaxPoolQDQCase,
    )


class InceptionQDQCase(_UnionCase):
    """Inception: max pooling, parallel to quantized convolutions on one tensor."""

    parts: ClassVar[Sequence[type[CustomQDQInsertionCase]]] = (MaxPoolQDQCase,)


class EfficientNetQDQCase(_UnionCase):
    """EfficientNet: residual connections and the gates of squeeze-and-excite blocks."""

    parts: ClassVar[Sequence[type[CustomQDQInsertionCase]]] = (ResidualConnectionQDQCase,)

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return entries for residual Adds and gates."""
        found = super().case(keras_model, qspec)
        for call in read_graph(keras_model).first_calls():
            is_gate = is_supported(call.traits, "Multiply")
            if is_gate and check_is_quantizable_by_layer_name(qspec, call.layer):
                # Both the tensor and its gate: a Multiply runs in INT8 only if all inputs are
                # quantized.
                found.add(call.layer, quantize_weight=False, quantization_index=[0, 1])
        return found
