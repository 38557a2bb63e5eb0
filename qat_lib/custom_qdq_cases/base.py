"""Interface of custom Q/DQ insertion cases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from qat_lib.core.spec import QuantizationSpec


class CustomQDQInsertionCase(ABC):
    """Decide by pattern how to quantize the layers of a model.

    Examples:
        >>> class NoHead(CustomQDQInsertionCase):
        ...     def case(self, keras_model, qspec):
        ...         return QuantizationSpec().add("head", quantize_input=False, quantize_weight=False)
    """

    def __repr__(self) -> str:
        """Return the case with its attributes; the journal of ``qat_lib.search`` stores it."""
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"

    def info(self) -> str:
        """Return a description of the case, by default the first line of its docstring."""
        return (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]

    @abstractmethod
    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return the entries of the case for its layers.

        Args:
            keras_model: the model to quantize; don't modify it.
            qspec: a copy of the user's spec, empty if there is none. Its entries take precedence
                over those of the case.
        """


def check_is_quantizable_by_layer_name(
    qspec: QuantizationSpec | None, current_layer_name: str
) -> bool:
    """Return whether a case may decide about a layer: the user's spec does not name it."""
    return qspec is None or all(entry.name != current_layer_name for entry in qspec.layers)
