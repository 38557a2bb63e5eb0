"""Cross-layer equalization: scale channels to similar ranges for one INT8 scale per tensor.

Source: Nagel et al. 2019 (https://arxiv.org/abs/1906.04721), section 4.1: one layer multiplies a
channel by a factor, the next layer divides by it, and a ReLU in between preserves it. The weights
of a depthwise convolution have one range per channel, so the division adds no rounding error; in
other layers it is balanced against the rounding error of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.call_graph import CallGraph
from qat_lib.keras.apply.rebuild import copy_model
from qat_lib.keras.correction.channel_groups import ChannelGroup, Part, channel_groups
from qat_lib.keras.correction.channel_scales import Bound, Reading, channel_scales
from qat_lib.keras.correction.lockstep import read_samples, run_lockstep
from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.keras.quantizers.channel_relu import ChannelReLU
from qat_lib.lockstep.steps import BothForms

DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
WEIGHTED = (
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.Dense,
    *DEPTHWISE,
)
THROUGH = (
    keras.layers.ZeroPadding2D,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalMaxPooling2D,
    keras.layers.GlobalAveragePooling2D,
    # Linear on either side of zero, with slopes that may differ by channel and position (PReLU).
    keras.layers.LeakyReLU,
    keras.layers.PReLU,
)
# Largest magnitude and mean square of each channel.
_Channels: TypeAlias = tuple[np.ndarray, np.ndarray]


def equalize(model: Any, data: Any, *, samples: int = 64, batch_size: int = 32) -> Any:
    """Return a copy of a float model with equalized channel ranges.

    A tensor has one INT8 range for all channels, so channels with small values use few of its
    steps. If convolutions, Dense layers and BatchNormalizations compute and read a tensor, with
    only ReLUs (leaky ones, too), additions and poolings in between, the layer that computes a
    channel is scaled by a factor, and the weights that read the channel are divided by it. The
    outputs remain equal to those of ``model``, up to float32 rounding. A ReLU6 in between becomes a
    ``ChannelReLU`` with scaled bounds. ``calibrate`` limits the range of a quantizer behind it to
    the smallest bound, so the exported graph needs no clipping.

    The factors follow the largest magnitudes of the channels and of the weights that read them, to
    the degree with the lowest predicted rounding noise.

    Args:
        model: a Functional or Sequential float Keras model; it is not modified.
        data: unlabeled inputs in any form accepted by ``calibrate``.
        samples: number of observed samples, taken from the start of the data; fewer if they would
            exceed 1 GiB. Default 64.
        batch_size: batch size for array data. Default 32.

    Returns:
        The equalized copy, for ``quantize_model``; a plain copy if no tensor qualifies.

    Raises:
        CalibrationError: the data is empty, or ``samples`` is below 1.
        UnsupportedModelError: the model is quantized, has no graph of layers, or a layer can't be
            copied.
    """
    graph = LayerGraph(model)
    for call in graph.calls:
        if call.traits.existing is not None:
            raise UnsupportedModelError(
                f"Expected a model in float. {graph.name!r} has quantizers, such as in "
                f"{call.layer!r}: equalize it before quantize_model."
            )
    batches = read_samples(graph, data, samples, batch_size, together=False)
    # Plan: all factors come from statistics of the unchanged model, then the copy is scaled.
    groups = channel_groups(graph, partial(channel_part, graph))
    seen = _observe(graph, batches, groups)
    scales = [_group_scales(group, seen) for group in groups]
    replaced = {}
    for group, factors in zip(groups, scales, strict=True):
        for call in group.through:
            relu = call.core
            if (bound := _bound(relu)) is not None and not np.all(factors == 1):
                bounds = (bound * factors).tolist()
                replaced[call.layer] = ChannelReLU(bounds, name=relu.name, dtype=relu.dtype)
    # Scale the copy: the statistics above come from the given model, which must not change.
    copy = copy_model(model, replaced)
    found = dict(LayerGraph(copy).layers())
    for group, factors in zip(groups, scales, strict=True):
        for maker in group.makers:
            _multiply_outputs(found[maker.layer], factors)
        for reader, _ in group.readers:
            _multiply(found[reader.layer].kernel, 1 / factors[:, None])
    return copy


def channel_part(graph: CallGraph, call: Any) -> Part:
    """Return the role of a call for channel factors."""
    layer = call.core
    if _is_channels_first(layer):
        return "other"
    if isinstance(layer, keras.layers.BatchNormalization):
        # Output factors go into gamma and beta. Its moving statistics are not scaled, so its input
        # has no factors.
        return "makes" if layer.scale and layer.center else "other"
    if isinstance(layer, WEIGHTED):
        is_homogeneous = call.traits.own_activation in (None, "relu")
        # The kernel of a grouped convolution lacks the axis of all input channels.
        if getattr(layer, "groups", 1) > 1:
            return "makes" if is_homogeneous else "other"
        return "both" if is_homogeneous else "reads"
    # A Flatten or Reshape moves channels to other positions.
    channels = {graph.shapes[tensor][-1:] for tensor in (*call.inputs, *call.outputs)}
    return "through" if len(channels) == 1 and _keeps_factors(call) else "other"


def _keeps_factors(call: Any) -> bool:
    """Whether a call treats all channels alike and preserves positive factors."""
    if isinstance(call.core, keras.layers.ReLU):
        is_leaky_and_bounded = call.core.negative_slope and call.core.max_value is not None
        # f(a * x) = a * f(x) for a > 0 requires a threshold of zero. A bound scales along as a
        # ChannelReLU, which has no negative slope.
        return not call.core.threshold and not is_leaky_and_bounded
    if type(call.core).__name__ == "Add":  # the layer or the operator
        return len(call.inputs) > 1
    is_relu = call.traits.activation == "relu"
    return isinstance(call.core, THROUGH) or call.traits.is_identity or is_relu


def _bound(layer: Any) -> float | None:
    return layer.max_value if isinstance(layer, keras.layers.ReLU) else None


def _is_channels_first(layer: Any) -> bool:
    if isinstance(layer, keras.layers.BatchNormalization):
        return layer.axis not in (-1, len(layer.input_spec.axes) and layer.input_spec.ndim - 1)
    return getattr(layer, "data_format", "channels_last") == "channels_first"


def _group_scales(group: ChannelGroup, seen: Mapping[str, _Channels]) -> np.ndarray:
    readings = []
    for reader, tensor in group.readers:
        largest, power = seen[tensor]
        kernel = None
        if not isinstance(reader.core, DEPTHWISE):
            kernel = np.asarray(tf.cast(reader.core.kernel, tf.float32))
            # (..., inputs, outputs) -> (inputs, outputs, taps)
            taps = math.prod(kernel.shape[:-2])
            kernel = np.moveaxis(kernel.reshape(taps, *kernel.shape[-2:]), 0, -1)
        readings.append(Reading(largest=largest, power=power, kernel=kernel))
    bounds = []
    for call in group.through:
        if (bound := _bound(call.core)) is not None:
            bounds.append(Bound(value=bound, largest=seen[call.outputs[0]][0]))
    return channel_scales(readings, bounds)


def _observe(
    graph: LayerGraph, batches: Sequence[Any], groups: Sequence[ChannelGroup]
) -> dict[str, _Channels]:
    """Return the largest magnitude and the mean square of channels, by tensor.

    The tensors are those read by layers with weights, and the outputs of bounded ReLUs.
    """
    # A pooling between a bounded ReLU and the reader may average: observe both tensors.
    wanted = {tensor for group in groups for _, tensor in group.readers}
    for group in groups:
        wanted.update(c.outputs[0] for c in group.through if _bound(c.core) is not None)
    seen: dict[str, list[_Channels]] = {tensor: [] for tensor in wanted}

    def visit(call: Call, outputs: tuple[BothForms, ...]) -> None:
        for tensor, forms in zip(call.outputs, outputs, strict=True):
            if tensor in wanted:
                # For a layer with a built-in ReLU, ``visit`` gets the outputs before it.
                rectified = call.traits.own_activation is not None
                values = [tf.nn.relu(x) if rectified else x for x in forms.float]
                seen[tensor].extend(map(_by_channel, values))

    # Batch by batch: statistics need no tensors of other batches in memory.
    for batch in batches:
        run_lockstep(graph, [batch], visit, form="float")
    found: dict[str, _Channels] = {}
    for tensor, channels in seen.items():
        largest, power = zip(*channels, strict=True)
        found[tensor] = np.max(largest, axis=0), np.mean(power, axis=0)
    return found


def _by_channel(tensor: Any) -> _Channels:
    # NumPy reads the tensor in place and needs no tensor for the magnitudes and none for the squares.
    rows = np.asarray(tf.cast(tensor, tf.float32)).reshape(-1, tensor.shape[-1])
    largest = np.maximum(rows.max(axis=0), -rows.min(axis=0))
    return largest, np.einsum("ij,ij->j", rows, rows) / len(rows)


def _multiply_outputs(layer: Any, factors: np.ndarray) -> None:
    """Scale the output channels of a layer."""
    if isinstance(layer, keras.layers.BatchNormalization):
        _multiply(layer.gamma, factors)
        _multiply(layer.beta, factors)
        return
    # A depthwise kernel has its output channels on the last two axes: inputs and multipliers.
    is_depthwise = isinstance(layer, DEPTHWISE)
    _multiply(
        layer.kernel, factors.reshape(-1, layer.depth_multiplier) if is_depthwise else factors
    )
    if layer.use_bias:
        _multiply(layer.bias, factors)


def _multiply(variable: Any, factors: np.ndarray) -> None:
    # In float32, also for variables of lower precision, to round once.
    product = tf.cast(variable.value, tf.float32) * factors
    variable.assign(tf.cast(product, variable.dtype))
