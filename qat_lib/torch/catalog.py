"""Catalog of the classes that a spec can name for a PyTorch model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn import modules as float_nn

from qat_lib.torch.module_traits import is_known, known_names


class ModuleCatalog:
    """Quantizable module classes and functions; a ``qat_lib.graph.catalog.Catalog``.

    Args:
        own: names of the classes and functions in the model.
    """

    noun = "quantized module"

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own = frozenset(own)

    def class_named(self, name: str) -> Any:
        """Return the torch.nn class of a name, the name of another known class, or None."""
        if is_known(name):
            return getattr(float_nn, name, name)
        return name if name in self._own else None

    def class_names(self) -> list[str]:
        """Return the sorted names of all quantizable classes and functions."""
        return sorted(self._own.union(known_names()))

    def remedy(self, name: str) -> str:
        """Return a short hint on supporting a class."""
        return f"write Quant{name} with qat_lib.torch.nn.QuantMixin"

    def advice(self, name: str) -> str:
        """Return a full sentence on supporting a class."""
        return (
            f"To quantize it, write a module Quant{name} with qat_lib.torch.nn.QuantMixin or "
            "QuantInputMixin and use it in the model."
        )
