"""Keras reference of a parity check: model outputs and ordered inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.errors import ExportError
from qat_lib.keras.apply.recursion import deep_graphs
from qat_lib.keras.export.precision import float32_semantics
from qat_lib.keras.structure import count_calls, input_structure, layers_of, run_eagerly


class KerasReference:
    """Runs a Keras model with float32 semantics, like the exported model."""

    framework = "Keras"
    layout = "NHWC"

    def __init__(self, model: Any, layers: list[str]) -> None:
        import keras

        self.given = model
        self.output_count = len(model.outputs)
        self.layers: list[str] = []
        found = {layer.name: layer for layer in model.layers}
        extra = []
        for name in layers:
            # ``output`` of a layer is ambiguous after several calls.
            if name not in found or count_calls(found[name]) != 1:
                continue
            output = found[name].output
            if not isinstance(output, list | tuple | dict):
                self.layers.append(name)
                extra.append(output)
        with deep_graphs():
            self.model = keras.Model(model.input, [*model.outputs, *extra]) if extra else model
        rounds = _rounds_images(model)
        traced = tf.function(partial(self.model, training=False), autograph=False)
        self._run = traced if rounds else partial(run_eagerly, self.model)

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the model, then those of the layers, as arrays.

        Raises:
            ExportError: the arrays do not match the inputs of the model.
        """
        import keras

        for x, expected in zip(inputs, self.model.inputs, strict=True):
            shape = tuple(expected.shape)
            wanted = tuple(e if d is None else d for d, e in zip(shape, x.shape, strict=False))
            fits = x.ndim == len(shape) and x.shape[1:] == wanted[1:]
            if not fits or x.dtype.kind not in "biuf":
                raise ExportError(
                    f"Expected numbers of shape {shape} for the input {expected.name!r}. Received "
                    f"{x.dtype} of shape "
                    f"{x.shape}. Pass the data as the Keras model takes them."
                )
        with float32_semantics(self.model):
            outputs = self._run(self._arranged(inputs))
        return [np.asarray(y) for y in keras.tree.flatten(outputs)]

    def in_order(self, item: Any) -> list[Any]:
        """Return a batch as one array per input, in the order of the inputs.

        Raises:
            ExportError: the keys of a dict differ from the names of the inputs.
        """
        if not isinstance(item, Mapping):
            return list(item) if isinstance(item, list | tuple) else [item]
        struct = input_structure(self.given)
        by_name = [x.name for x in self.given.inputs]
        # Keras flattens dicts in the order of sorted keys, which may differ from the tensor names.
        names = sorted(struct) if isinstance(struct, Mapping) else by_name
        if set(names) != set(item):
            names = by_name
        if set(names) != set(item):
            raise ExportError(
                f"Expected arrays for the inputs {sorted(names)}. "
                f"Received: {sorted(map(str, item))}."
            )
        return [item[name] for name in names]

    def _arranged(self, inputs: list[np.ndarray]) -> Any:
        import keras

        if isinstance(self.model, keras.Sequential):
            (only,) = inputs
            return only
        return keras.tree.pack_sequence_as(input_structure(self.model), inputs)


def _rounds_images(model: Any) -> bool:
    """Whether a layer gives rounded integers if called eagerly, and floats in a graph.

    ``predict`` and an engine compute the floats, as Keras's symbolic data types state.
    """
    import keras

    integers = any("int" in x.dtype for x in model.inputs)
    return integers and any(isinstance(x, keras.layers.Resizing) for x in layers_of(model))
