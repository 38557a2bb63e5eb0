"""Cross-layer equalization of channels in front of a depthwise convolution.

They get one range.

Source: Nagel et al. 2019 (https://arxiv.org/abs/1906.04721), section 4.1: what one layer multiplies
a channel by, the next one divides it by, and a ReLU in between changes nothing. A depthwise
convolution's weights have a range for each channel, so that the division costs them nothing, and
the scales can follow the activations alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.apply.rebuild import copy_model
from qat_lib.correction.lockstep import BothForms, read_samples, run_lockstep
from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.quantizers.channel_relu import ChannelReLU

LEAST_SHARE = 2.0**-10
"""A channel's largest value counts as at least this share of the tensor's: what is smaller than
that, INT8 can't tell from zero, and its scale would make noise of it."""


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """The layers whose channels are scaled together, by name.

    Attributes:
        kernel: the weighted layer that makes the channels.
        norm: the BatchNormalization behind it, or None.
        activation: the ReLU behind those, or None.
        seen: the tensor whose channels get one range.
        depthwise: the depthwise convolution that reads them.
    """

    kernel: Call
    norm: Call | None
    activation: Call | None
    seen: str
    depthwise: Call


def equalize(model: Any, data: Any, *, samples: int = 64, batch_size: int = 32) -> Any:
    """Return a copy of a float model with equalized channel ranges.

    A tensor has one INT8 range for all channels; in front of depthwise convolutions, as in
    MobileNets, some channels use a few of its steps only. Each channel there is scaled to the
    tensor's largest magnitude, and the depthwise weights divided by the same factor. The outputs
    stay those of ``model``, up to the rounding of float32. A ReLU6 in between becomes a
    ``ChannelReLU``, with its bound scaled alike.

    Args:
        model: a Functional or Sequential Keras model in float; it is not changed.
        data: unlabeled inputs in any form that ``calibrate`` takes.
        samples: number of samples to observe, taken from the start; fewer where their tensors
            would take more than 1 GiB. Default 64.
        batch_size: size of the batches that an array is cut into. Default 32.

    Returns:
        The copy, for ``quantize_model``. A model without such places comes back as a plain copy.

    Raises:
        CalibrationError: there is no data, or ``samples`` is below 1.
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
    batches = read_samples(graph, data, samples, batch_size)
    chains = _chains(graph)
    largest = _largest(graph, batches, {chain.seen for chain in chains})
    scales = {chain.seen: _scales(largest[chain.seen]) for chain in chains}
    replaced = {}
    for chain in chains:
        relu = chain.activation
        if relu is not None and (bound := _bound(relu.core)) is not None:
            bounds = (bound * scales[chain.seen]).tolist()
            replaced[relu.layer] = ChannelReLU(bounds, name=relu.core.name, dtype=relu.core.dtype)
    copy = copy_model(model, replaced)
    found = dict(LayerGraph(copy).layers())
    for chain in chains:
        _scale_channels(chain, found, scales[chain.seen])
    return copy


def _chains(graph: LayerGraph) -> list[_Chain]:
    chains = []
    for call in graph.calls:
        if isinstance(call.core, keras.layers.DepthwiseConv2D | keras.layers.DepthwiseConv1D):
            chain = _chain_before(graph, call)
            if chain is not None:
                chains.append(chain)
    return chains


def _chain_before(graph: LayerGraph, depthwise: Call) -> _Chain | None:
    """Return the layers in front of a depthwise convolution.

    As far as nothing else reads them.
    """
    call = _maker(graph, depthwise)
    while call is not None and _moves_alike(call):
        call = _maker(graph, call)
    activation = norm = None
    if call is not None and _is_homogeneous(call):
        activation, call = call, _maker(graph, call)
    if call is not None and isinstance(call.core, keras.layers.BatchNormalization):
        norm, call = call, _maker(graph, call)
    last = activation or norm or call
    if call is None or last is None or not _is_scalable(call, norm):
        return None
    around = [x for x in (depthwise, call, norm, activation) if x is not None]
    if any(len(graph.calls_of(x.layer)) > 1 or _is_channels_first(x.core) for x in around):
        return None
    return _Chain(
        kernel=call, norm=norm, activation=activation, seen=last.outputs[0], depthwise=depthwise
    )


def _maker(graph: LayerGraph, reader: Call) -> Call | None:
    """Return the producer of a call's input if nothing else reads it."""
    (tensor,) = reader.inputs[:1] or ("",)
    if len(reader.inputs) != 1 or len(graph.consumers(tensor)) != 1 or tensor in graph.outputs:
        return None
    maker = graph.producer(tensor)
    return maker if isinstance(maker, Call) and not maker.is_input else None


def _moves_alike(call: Call) -> bool:
    """Whether a call treats all channels alike and keeps positive factors."""
    window = keras.layers.ZeroPadding2D | keras.layers.MaxPooling2D | keras.layers.AveragePooling2D
    return isinstance(call.core, window) or call.traits.is_identity


def _is_homogeneous(call: Call) -> bool:
    """Whether the call is a ReLU, capped or not.

    Positive factors go through it.
    """
    if isinstance(call.core, keras.layers.ReLU):
        return not call.core.negative_slope and not call.core.threshold
    return call.traits.activation == "relu"


def _bound(relu: Any) -> float | None:
    return getattr(relu, "max_value", None)


def _is_scalable(kernel: Call, norm: Call | None) -> bool:
    """Whether the channels can be scaled in their makers' weights."""
    if norm is not None:
        return bool(norm.core.scale and norm.core.center)
    weighted = keras.layers.Conv2D | keras.layers.DepthwiseConv2D
    own = kernel.traits.own_activation
    return isinstance(kernel.core, weighted) and own in (None, "relu")


def _is_channels_first(layer: Any) -> bool:
    if isinstance(layer, keras.layers.BatchNormalization):
        return layer.axis not in (-1, len(layer.input_spec.axes) and layer.input_spec.ndim - 1)
    return getattr(layer, "data_format", "channels_last") == "channels_first"


def _largest(graph: LayerGraph, batches: Sequence[Any], tensors: set[str]) -> dict[str, np.ndarray]:
    """Return the largest magnitude of each channel of some tensors."""
    found: dict[str, np.ndarray] = {}

    def visit(call: Call, outputs: tuple[BothForms, ...]) -> None:
        for tensor, forms in zip(call.outputs, outputs, strict=True):
            if tensor in tensors:
                # Of a layer with a ReLU of its own, what it makes in front of that.
                rectified = call.traits.own_activation is not None
                values = [tf.nn.relu(x) if rectified else x for x in forms.float]
                found[tensor] = np.max([_by_channel(x) for x in values], axis=0)

    run_lockstep(graph, batches, visit, quantized=False)
    return found


def _by_channel(tensor: Any) -> np.ndarray:
    axes = list(range(len(tensor.shape) - 1))
    return np.asarray(tf.reduce_max(tf.abs(tf.cast(tensor, tf.float32)), axis=axes).numpy())


def _scales(largest: np.ndarray) -> np.ndarray:
    """Return the factors that raise channels to the largest range.

    1 for a dead channel.
    """
    top = largest.max()
    if top == 0 or not np.isfinite(top):
        return np.ones_like(largest)
    scales = top / np.maximum(largest, top * LEAST_SHARE)
    return np.asarray(np.where(largest > 0, scales, 1.0), np.float32)


def _scale_channels(chain: _Chain, layers: dict[str, Any], scales: np.ndarray) -> None:
    """Scale channels where they are made; divide the weights reading them."""
    if chain.norm is not None:
        norm = layers[chain.norm.layer]
        for variable in (norm.gamma, norm.beta):
            _multiply(variable, scales)
    else:
        maker = layers[chain.kernel.layer]
        is_depthwise = isinstance(maker, keras.layers.DepthwiseConv2D)
        shaped = scales.reshape(-1, maker.depth_multiplier) if is_depthwise else scales
        _multiply(maker.kernel, shaped)
        if maker.use_bias:
            _multiply(maker.bias, scales)
    _multiply(layers[chain.depthwise.layer].kernel, 1 / scales[:, None])


def _multiply(variable: Any, factors: np.ndarray) -> None:
    product = tf.cast(variable.value, tf.float32) * factors
    variable.assign(tf.cast(product, variable.dtype))
