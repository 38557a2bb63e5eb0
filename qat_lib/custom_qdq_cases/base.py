"""What a custom Q/DQ insertion case is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from qat_lib.core.spec import QuantizationSpec


class CustomQDQInsertionCase(ABC):
    """Decide by pattern how layers of a model are quantized.

    Examples:
        >>> class NoHead(CustomQDQInsertionCase):
        ...     def case(self, keras_model, qspec):
        ...         return QuantizationSpec().add("head", quantize_input=False, quantize_weight=False)
    """

    def info(self) -> str:
        """Describe the case, by default with its docstring's first line."""
        return (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]

    @abstractmethod
    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return the case's entries for the layers it decides about.

        Args:
            keras_model: the model to be quantized; don't change it.
            qspec: a copy of the user's spec, empty if there is none. Its entries win over the
                case's anyway.
        """


def check_is_quantizable_by_layer_name(
    qspec: QuantizationSpec | None, current_layer_name: str
) -> bool:
    """Return whether a case may decide about a layer.

    True unless the user's spec names it.
    """
    return qspec is None or all(entry.name != current_layer_name for entry in qspec.layers)
