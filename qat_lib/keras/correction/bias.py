"""Bias correction of Keras models; see ``qat_lib.lockstep.bias``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import CalibrationError
from qat_lib.keras.correction.lockstep import read_samples, run_lockstep
from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.lockstep.bias import MEMORY, BiasCorrection, BiasReport, mean_shift


def correct_bias(
    model: Any,
    data: Any,
    *,
    samples: int = 64,
    batch_size: int = 32,
    on_layer: Callable[[int, int], None] | None = None,
) -> BiasReport:
    """Correct biases for the mean quantization error.

    Rounded weights and clipped activations shift the mean of the outputs of a layer. Layer by
    layer, the correction compares the quantized model with its float form, and removes the shift by
    adjusting the bias of the layer, or the moving mean of the BatchNormalization after it (not its
    beta: in training, the batch mean already contains the shift). It modifies the weights of the
    model, so Keras, ONNX and engines agree. If the correction increases the error of the outputs on
    these samples, all of it is reverted.

    Args:
        model: a quantized and calibrated Keras model, modified in place.
        data: calibration data in any form accepted by ``calibrate``.
        samples: number of samples, taken from the start of the data; fewer if their tensors would
            exceed 512 MiB. Default 64.
        batch_size: batch size for array data. Default 32.
        on_layer: called with the number of corrected layers and the total.

    Returns:
        A report with the shift of each layer.

    Raises:
        CalibrationError: the model has no quantizer, the data is empty, or ``samples`` is
            below 1.
        UnsupportedModelError: the model has no graph of layers.
    """
    if not model_quantizers(model):
        raise CalibrationError(
            f"The model {model.name!r} has no quantizer: pass it through quantize_model and "
            "calibrate first."
        )
    graph = LayerGraph(model)
    batches = read_samples(graph, data, samples, batch_size, memory=MEMORY)
    correction = BiasCorrection(graph, KerasBiases(graph), on_layer)
    correction.run(
        lambda visit, form: run_lockstep(graph, batches, visit, form=form),
        lambda x: np.asarray(tf.cast(x, tf.float32)),
    )
    return correction.report(batches)


class KerasBiases:
    """Finds the biases of Keras layers; see ``ChannelBiases``."""

    def __init__(self, graph: LayerGraph) -> None:
        self._graph = graph

    def problem(self, call: Call) -> str:
        """Return the reason for skipping a weighted layer; empty if it can be corrected."""
        is_first = getattr(call.core, "data_format", None) == "channels_first"
        return "its channels are not the last axis" if is_first else ""

    def of_layer(self, call: Call) -> KerasBias | None:
        """Return the bias of the output channels of a layer, or None."""
        bias = getattr(call.core, "bias", None)
        is_per_channel = isinstance(bias, keras.Variable) and len(bias.shape) == 1
        # The bias of a recurrent cell acts inside the recurrence, not on the outputs.
        return KerasBias(bias) if is_per_channel and not hasattr(call.core, "cell") else None

    def of_normalization(self, call: Call) -> KerasMean | None:
        """Return the moving mean of a BatchNormalization over the last axis, or None."""
        norm = call.core
        if not isinstance(norm, keras.layers.BatchNormalization):
            return None
        last = len(self._graph.shapes[call.outputs[0]]) - 1
        return KerasMean(norm) if norm.axis in (-1, last) else None


class KerasBias:
    """Variable added along the last axis; see ``ChannelBias``."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def saved(self) -> Callable[[], None]:
        """Return a function that restores the current values."""
        values = self._variable.numpy()
        return lambda: self._variable.assign(values)

    def rows(self, tensor: Any) -> np.ndarray:
        """Return a tensor as float32 ``(positions, channels)``."""
        rows = tf.reshape(tf.cast(tensor, tf.float32), (-1, tensor.shape[-1]))
        return np.asarray(rows)

    def subtract(self, shift: np.ndarray) -> None:
        """Subtract a shift per channel from the variable."""
        variable = self._variable
        variable.assign(variable.value - tf.cast(shift, variable.dtype))

    def moved(self, tensor: Any, shift: np.ndarray) -> Any:
        """Return a tensor with a shift per channel subtracted."""
        return tensor - tf.cast(shift, tensor.dtype)


class KerasMean(KerasBias):
    """Moving mean of a BatchNormalization; see ``mean_shift``."""

    def __init__(self, norm: keras.layers.BatchNormalization) -> None:
        super().__init__(norm.moving_mean)
        self._norm = norm

    def subtract(self, shift: np.ndarray) -> None:
        """Adjust the mean to subtract a shift from the outputs of the normalization."""
        norm = self._norm
        gamma = norm.gamma.numpy() if norm.scale else 1.0
        # The normalization subtracts the mean: lower outputs need a larger mean.
        super().subtract(-mean_shift(shift, gamma, norm.moving_variance.numpy(), norm.epsilon))
