"""Which wrapper serves which layer class.

Keyed by class and resolved through the MRO. A wrapper that a user defines registers through its
name, ``<KerasClass>QuantizeWrapper``: Keras's aliases count (``GlobalMaxPool2D`` is
``GlobalMaxPooling2D``), and a name that Keras does not know is taken as the name of the user's own
layer class.
"""

from __future__ import annotations

from typing import Any

import keras

SUFFIX = "QuantizeWrapper"


class WrapperRegistry:
    """Maps layer classes to wrapper classes; the last registration wins.

    It is the ``qat_lib.graph.catalog.Catalog`` of the Keras side.
    """

    noun = "wrapper"

    def __init__(self) -> None:
        self._by_class: dict[type, Any] = {}
        self._by_name: dict[str, Any] = {}

    def register(self, wrapper: Any) -> None:
        """Register a wrapper class for its ``layer_class``, or by its name."""
        layer_class = wrapper.__dict__.get("layer_class")
        if layer_class is None and wrapper.__name__.endswith(SUFFIX):
            name = wrapper.__name__.removesuffix(SUFFIX)
            layer_class = keras_class(name)
            if layer_class is None:
                self._by_name[name] = wrapper
                return
        if layer_class is not None:
            self._by_class[layer_class] = wrapper

    def find(self, layer_class: type) -> Any:
        """Return the wrapper of a layer class or nearest base, or None."""
        for base in layer_class.__mro__:
            if base is keras.layers.Layer:
                break
            if base in self._by_class:
                return self._by_class[base]
            if base.__name__ in self._by_name and not base.__module__.startswith(
                "keras.src.layers."
            ):
                return self._by_name[base.__name__]
        return None

    def class_named(self, name: str) -> Any:
        """Return the layer class called ``name`` if it has a wrapper.

        Of a user's class that is registered by name, the name is returned.
        """
        found = keras_class(name)
        if found is not None:
            return found if self.find(found) is not None else None
        return (
            name
            if name in self._by_name
            else next((c for c in self._by_class if c.__name__ == name), None)
        )

    def class_names(self) -> list[str]:
        """Return the names of every class with a wrapper, sorted."""
        return sorted({cls.__name__ for cls in self._by_class} | set(self._by_name))

    def remedy(self, name: str) -> str:
        """Return, in a few words, how to support a layer class."""
        return f"define {name}{SUFFIX}"

    def advice(self, name: str) -> str:
        """Return a sentence that says how to support a layer class."""
        return f"To add one, define a class named {name}{SUFFIX} that derives from a base wrapper."


def keras_class(name: str) -> type | None:
    """Return the Keras layer class of that name or alias."""
    found = getattr(keras.layers, name, None)
    return found if isinstance(found, type) and issubclass(found, keras.layers.Layer) else None


REGISTRY = WrapperRegistry()
