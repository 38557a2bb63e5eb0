"""Registry of wrappers by layer class.

The registry is keyed by class and resolved through the MRO. User-defined wrappers register by name,
``<KerasClass>QuantizeWrapper``. Keras aliases are resolved (``GlobalMaxPool2D`` is
``GlobalMaxPooling2D``); other names refer to user-defined layer classes.
"""

from __future__ import annotations

from typing import Any

import keras

SUFFIX = "QuantizeWrapper"


class WrapperRegistry:
    """Maps layer classes to wrapper classes; the last registration wins.

    It implements ``qat_lib.graph.catalog.Catalog`` for Keras.
    """

    noun = "wrapper"

    def __init__(self) -> None:
        self._by_class: dict[type, Any] = {}
        self._by_name: dict[str, Any] = {}

    def register(self, wrapper: Any) -> None:
        """Register a wrapper class for its ``layer_class``, or by its name."""
        # Only the class's own attribute: an inherited one would replace the wrapper of the base.
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
        """Return the wrapper of a layer class or its nearest base, or None."""
        for base in layer_class.__mro__:
            if base is keras.layers.Layer:
                break  # a wrapper of Layer itself would match every layer
            if base in self._by_class:
                return self._by_class[base]
            # A class of Keras must not match a user-defined class of the same name.
            if base.__name__ in self._by_name and not base.__module__.startswith(
                "keras.src.layers."
            ):
                return self._by_name[base.__name__]
        return None

    def class_named(self, name: str) -> Any:
        """Return the layer class called ``name`` if it has a wrapper.

        For a user-defined class registered by name, return the name.
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
        """Return the sorted names of all classes with a wrapper."""
        return sorted({cls.__name__ for cls in self._by_class} | set(self._by_name))

    def remedy(self, name: str) -> str:
        """Return a short instruction for supporting a layer class."""
        return f"define {name}{SUFFIX}"

    def advice(self, name: str) -> str:
        """Return an instruction for supporting a layer class as a sentence."""
        return f"To add one, define a class named {name}{SUFFIX} that derives from a base wrapper."


def keras_class(name: str) -> type | None:
    """Return the Keras layer class with a name or alias, or None."""
    found = getattr(keras.layers, name, None)
    return found if isinstance(found, type) and issubclass(found, keras.layers.Layer) else None


REGISTRY = WrapperRegistry()
