"""Build models of quantized modules by temporarily patching the names in ``torch.nn``.

``initialize`` and ``deactivate`` come from pytorch-quantization; ``quantized_modules`` does the
same within a block and always restores the names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from qat_lib.errors import SpecError
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.export_mode import enable_onnx_export

REPLACED = (
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Linear",
    "LSTM",
    "LSTMCell",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
)
"""Replaced names in ``torch.nn``. Max pooling only moves values and needs no quantizer; instance
normalization is better in floating point."""

__all__ = [
    "QuantModuleReplacementHelper",
    "deactivate",
    "enable_onnx_export",
    "initialize",
    "quantized_modules",
]

Replacement = tuple[Any, str, type]
_originals: dict[tuple[int, str], Replacement] = {}


def initialize(
    float_module_list: Iterable[str] | None = None,
    custom_quant_modules: Iterable[Replacement] | None = None,
) -> None:
    """Replace the modules in ``torch.nn`` by quantized ones until ``deactivate()``.

    New models consist of quantized modules; existing models do not change (use
    ``quantize_model``). Names imported earlier, as in ``from torch.nn import Conv2d``, are not
    replaced.

    Args:
        float_module_list: names in ``torch.nn`` to keep, such as ``["Linear"]``. Default: none.
        custom_quant_modules: further replacements: module or package, name, class. Default: none.

    Raises:
        SpecError: a name in ``float_module_list`` is not in ``REPLACED``, or a module lacks a
            replaced name.
    """
    left = set(float_module_list or ())
    if unknown := sorted(left - set(REPLACED)):
        raise SpecError(f"Expected names among {', '.join(REPLACED)}. Received: {unknown[0]!r}.")
    replacements: list[Replacement] = [
        (torch.nn, name, getattr(quant_nn, name)) for name in REPLACED if name not in left
    ]
    replacements.extend(custom_quant_modules or ())
    for place, name, _ in replacements:
        if not hasattr(place, name):
            raise SpecError(f"Expected a class of {place.__name__!r}. Received: {name!r}.")
    # All names are checked before the first replacement: an error leaves torch.nn unchanged.
    for place, name, quantized in replacements:
        # setdefault: a second call must not record a quantized class as the original.
        _originals.setdefault((id(place), name), (place, name, getattr(place, name)))
        setattr(place, name, quantized)


class QuantModuleReplacementHelper:
    """``initialize`` and ``deactivate`` in three steps, as in pytorch-quantization.

    ``quantized_modules`` does the same within a block.
    """

    def __init__(self) -> None:
        self._arguments: tuple[Any, Any] = (None, None)

    def prepare_state(
        self,
        float_module_list: Iterable[str] | None = None,
        custom_map: Iterable[Replacement] | None = None,
    ) -> None:
        """Store the arguments of ``initialize`` for ``apply_quant_modules``."""
        self._arguments = (float_module_list, custom_map)

    def apply_quant_modules(self) -> None:
        """Replace the modules; see ``initialize``."""
        initialize(*self._arguments)

    def restore_float_modules(self) -> None:
        """Restore the original modules; see ``deactivate``."""
        deactivate()


def deactivate() -> None:
    """Restore the original modules in ``torch.nn``; idempotent."""
    _restore({})


@contextmanager
def quantized_modules(
    float_module_list: Iterable[str] | None = None,
    custom_quant_modules: Iterable[Replacement] | None = None,
) -> Iterator[None]:
    """Replace ``torch.nn`` modules by quantized ones within the block.

    Blocks can be nested; each restores the previous state. The names are shared by all threads, so
    build models in one thread at a time.

    Args:
        float_module_list: names in ``torch.nn`` to keep. Default: none.
        custom_quant_modules: further replacements: module or package, name, class. Default: none.

    Examples:
        >>> with quantized_modules():
        ...     type(torch.nn.Linear(2, 2)).__name__
        'QuantLinear'
        >>> type(torch.nn.Linear(2, 2)).__name__
        'Linear'
    """
    before = dict(_originals)
    found = {key: getattr(place, name) for key, (place, name, _) in before.items()}
    try:
        initialize(float_module_list, custom_quant_modules)
        yield
    finally:
        _restore(before)
        for key, (place, name, _) in before.items():
            setattr(place, name, found[key])


def _restore(kept: dict[tuple[int, str], Replacement]) -> None:
    """Restore the originals, and keep only the records in ``kept``."""
    for place, name, original in _originals.values():
        setattr(place, name, original)
    _originals.clear()
    _originals.update(kept)
