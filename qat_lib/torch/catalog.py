"""Which classes a spec can name for a PyTorch model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn import modules as float_nn

from qat_lib.torch.module_traits import is_known, known_names


class ModuleCatalog:
    """The classes of modules and names of functions that can be quantized.

    It is the ``qat_lib.graph.catalog.Catalog`` of the PyTorch side.

    Args:
        own: names of the classes and functions of the model itself.
    """

    noun = "quantized module"

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own = frozenset(own)

    def class_named(self, name: str) -> Any:
        """Return the torch.nn class of a name, or the name.

        The name is that of another class or function; None = neither.
        """
        if is_known(name):
            return getattr(float_nn, name, name)
        return name if name in self._own else None

    def class_names(self) -> list[str]:
        """Return the sorted names of all quantizable classes and functions."""
        return sorted(self._own.union(known_names()))

    def remedy(self, name: str) -> str:
        """Return, in a few words, how to support a class."""
        return f"write Quant{name} with qat_lib.torch.nn.QuantMixin"

    def advice(self, name: str) -> str:
        """Return a sentence that says how to support a class."""
        return (
            f"To quantize it, write a module Quant{name} with qat_lib.torch.nn.QuantMixin or "
            "QuantInputMixin and use it in the model."
        )
