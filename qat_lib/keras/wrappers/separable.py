"""Wrappers of separable convolutions, with a quantizer between the two halves."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import layers, ops

from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.wrappers.weighted import WeightedBaseQuantizeWrapper


class _SeparableConvQuantizeWrapper(WeightedBaseQuantizeWrapper):
    """Quantize the input, both kernels, and the tensor between the two convolutions."""

    kernel_types: ClassVar[Any] = {"depthwise_kernel": (-2, -1), "pointwise_kernel": (-1,)}
    internal_names: ClassVar[tuple[str, ...]] = ("depthwise",)

    def build(self, input_shape: Any = None, **shapes: Any) -> None:
        """Build the layer, its weight quantizers, and the quantizer between the halves."""
        super().build(input_shape, **shapes)
        if self.quantize_internal and not self.internal_quantizers:
            quantizer = TensorQuantizer(
                name=f"{self.layer.name}_depthwise_quantizer", **self.input_options
            )
            quantizer.build(None)
            self.internal_quantizers.append(quantizer)

    def call_layer(
        self,
        *inputs: Any,
        training: bool | None = None,
        mask: Any = None,  # noqa: ARG002  a convolution takes none
        **kwargs: Any,  # noqa: ARG002
    ) -> Any:
        """Run both convolutions one after the other, with the quantizer in between."""
        layer = self.layer
        weights = self.quantized_weights(training) if self.weight_quantizers else {}
        depthwise, pointwise = (
            weights.get(id(v), v.value) for v in (layer.depthwise_kernel, layer.pointwise_kernel)
        )
        # The layer computes both halves in one op, without access to the tensor in between.
        x = ops.cast(inputs[0], layer.compute_dtype)
        x = ops.depthwise_conv(
            x,
            ops.cast(depthwise, x.dtype),
            strides=layer.strides,
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
            data_format=layer.data_format,
        )
        for quantizer in self.internal_quantizers:
            x = quantizer(x, training=training)
        x = ops.conv(
            x,
            ops.cast(pointwise, x.dtype),
            strides=1,
            padding="valid",
            data_format=layer.data_format,
        )
        if layer.use_bias:
            shape = [1] * (layer.rank + 2)
            shape[1 if layer.data_format == "channels_first" else -1] = layer.filters
            x = x + ops.reshape(ops.cast(layer.bias, x.dtype), shape)
        return x if layer.activation is None else layer.activation(x)


class SeparableConv1DQuantizeWrapper(_SeparableConvQuantizeWrapper):
    """Quantize ``keras.layers.SeparableConv1D``."""

    layer_class: ClassVar[type | None] = layers.SeparableConv1D


class SeparableConv2DQuantizeWrapper(_SeparableConvQuantizeWrapper):
    """Quantize ``keras.layers.SeparableConv2D``."""

    layer_class: ClassVar[type | None] = keras.layers.SeparableConv2D
