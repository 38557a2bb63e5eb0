"""KerasModelTraveller: a model's layers, nested and subclassed models included."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from qat_lib.errors import UnsupportedModelError


class KerasModelTraveller:
    """List the layers of any model in its own order.

    Args:
        print_layer_config: whether ``get_layer_information`` also shows the configuration of
            each layer. Default False.
    """

    def __init__(self, print_layer_config: bool = False) -> None:
        self._print_layer_config = print_layer_config

    def get_layer_names(
        self, keras_model: Any, filter_by_class: Iterable[type] | None = None
    ) -> list[str]:
        """Return the names of the layers.

        Args:
            keras_model: a Functional, Sequential or subclassed model.
            filter_by_class: layer classes to list; a layer of a subclass counts. Default None: all.

        Raises:
            UnsupportedModelError: ``keras_model`` is no Keras model.
        """
        return [layer.name for layer in _layers(keras_model, filter_by_class)]

    def get_layer_information(
        self, keras_model: Any, filter_by_class: Iterable[type] | None = None
    ) -> None:
        """Write the name and class of every layer to the standard output.

        Args:
            keras_model: a Functional, Sequential or subclassed model.
            filter_by_class: layer classes to list; a layer of a subclass counts. Default None: all.

        Raises:
            UnsupportedModelError: ``keras_model`` is no Keras model.
        """
        for layer in _layers(keras_model, filter_by_class):
            lines = [f"layer name:{layer.name}, layer class:{type(layer)}"]
            if self._print_layer_config:
                lines.append(str(layer.get_config()))
            sys.stdout.write("\n".join([*lines, "-" * 17, ""]))


def _layers(model: Any, classes: Iterable[type] | None) -> Iterator[Any]:
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(f"Expected a keras.Model. Received: {type(model).__name__}.")
    chosen = None if classes is None else tuple(classes)
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer, chosen)
        elif chosen is None or isinstance(layer, chosen):
            yield layer
