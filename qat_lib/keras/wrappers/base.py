"""Base of all wrappers: a Keras layer with fake-quantized inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from qat_lib.errors import SpecError
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.structure import has_graph
from qat_lib.keras.wrappers.registry import REGISTRY, SUFFIX

PACKAGE = "qat_lib"


class BaseQuantizeWrapper(keras.layers.Wrapper):
    """Fake-quantize the inputs of a layer and, in a subclass, its weights.

    Defining a subclass named ``<KerasClass>QuantizeWrapper`` registers it for this class.

    Args:
        layer: the layer to wrap; it must not be a model.
        quantize_inputs: whether the wrapper has separate input quantizers. Default True.
            ``quantize_model`` passes False, because there all readers of a tensor share its
            quantizer.
        quantize_weights: whether to quantize the weights. Default True; ignored by layers without
            weights.
        quantization_index: indices of the inputs to quantize; None, the default, means all.
        quantize_internal: whether to quantize tensors inside the layer, such as the one between the
            halves of a separable convolution. None, the default, means the value of
            ``quantize_inputs``.
        input_options: keyword arguments of the input and internal quantizers.
        weight_options: keyword arguments of the weight quantizers; ``channel_axes`` replaces the
            default axes. The name of a weight as a key maps to options for this weight only.
        **kwargs: keyword arguments of ``keras.layers.Layer``; the name defaults to
            ``quant_<layer>``.

    Raises:
        SpecError: ``layer`` is not a layer, or is a model.
    """

    layer_class: ClassVar[type | None] = None
    default_quantize_input: ClassVar[bool] = True
    default_quantize_weight: ClassVar[bool] = True
    internal_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, any_class: bool = False, **kwargs: Any) -> None:
        """Register the subclass with Keras and for its layer class."""
        super().__init_subclass__(**kwargs)
        keras.saving.register_keras_serializable(package=PACKAGE)(cls)
        if not any_class:
            REGISTRY.register(cls)

    def __init__(
        self,
        layer: Any,
        *,
        quantize_inputs: bool = True,
        quantize_weights: bool = True,
        quantization_index: tuple[int, ...] | list[int] | None = None,
        quantize_internal: bool | None = None,
        input_options: Mapping[str, Any] | None = None,
        weight_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        is_model = isinstance(layer, keras.Model) and has_graph(layer)
        if not isinstance(layer, keras.layers.Layer) or is_model:
            raise SpecError(
                "A wrapper needs a Keras layer that is not a Functional or Sequential model. "
                f"Received: {type(layer).__name__}."
            )
        kwargs.setdefault("name", f"quant_{layer.name}")
        kwargs.setdefault("dtype", layer.dtype_policy)
        # Without autocast, quantizers read the inputs before the wrapped layer casts them.
        super().__init__(layer, autocast=False, **kwargs)
        self.quantize_inputs = quantize_inputs
        self.quantize_weights = quantize_weights
        self.quantization_index = None if quantization_index is None else tuple(quantization_index)
        self.quantize_internal = quantize_inputs if quantize_internal is None else quantize_internal
        self.input_options = dict(input_options or {})
        self.weight_options = dict(weight_options or {})
        self.supports_masking = getattr(layer, "supports_masking", False)
        self.input_quantizers: list[TensorQuantizer | None] = []
        self.weight_quantizers: list[TensorQuantizer] = []
        self.internal_quantizers: list[TensorQuantizer] = []

    def build(self, input_shape: Any = None, **shapes: Any) -> None:
        """Build the wrapped layer, then the input quantizers."""
        if not self.layer.built:
            self.layer.build(
                input_shape, **shapes
            ) if input_shape is not None else self.layer.build(**shapes)
            self.layer.built = True
        if self.quantize_inputs and not self.input_quantizers:
            self._build_input_quantizers(input_shape)
        self.built = True

    def _build_input_quantizers(self, input_shape: Any) -> None:
        shapes = input_shape if _is_list_of_shapes(input_shape) else [input_shape]
        chosen = range(len(shapes)) if self.quantization_index is None else self.quantization_index
        if beyond := [i for i in chosen if i >= len(shapes)]:
            raise SpecError(
                f"quantization_index {beyond[0]} of {self.layer.name!r} is out of range: it has "
                f"{len(shapes)} inputs."
            )
        for i, shape in enumerate(shapes):
            quantizer = None
            if i in chosen:
                suffix = f"_{i}" if len(shapes) > 1 else ""
                quantizer = TensorQuantizer(
                    name=f"{self.layer.name}_input{suffix}_quantizer", **self.input_options
                )
                quantizer.build(shape)
            self.input_quantizers.append(quantizer)

    def quantized_inputs(self, inputs: Any, training: bool | None) -> Any:
        """Return ``inputs`` after the input quantizers, if any."""
        if not self.input_quantizers:
            return inputs
        several = isinstance(inputs, (list, tuple))
        quantized = []
        pairs = zip(inputs if several else [inputs], self.input_quantizers, strict=True)
        for tensor, quantizer in pairs:
            quantized.append(tensor if quantizer is None else quantizer(tensor, training=training))
        return quantized if several else quantized[0]

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """Call the layer with quantized inputs; shapes and data types are those of the layer."""
        return self.call_layer(
            self.quantized_inputs(inputs, training), training=training, mask=mask, **kwargs
        )

    def call_layer(
        self, *inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """Call the wrapped layer, with ``training`` and ``mask`` if it accepts them."""
        accepted = inspect.signature(self.layer.call).parameters
        if training is not None and "training" in accepted:
            kwargs["training"] = training
        if mask is not None and "mask" in accepted:
            kwargs["mask"] = mask
        return self.layer(*inputs, **kwargs)

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output shape of the wrapped layer."""
        return self.layer.compute_output_shape(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the symbolic output of the wrapped layer."""
        # Keras passes the arguments of the wrapper's ``call``; the layer may not accept all of
        # them.
        accepted = inspect.signature(self.layer.call).parameters
        kwargs = {key: value for key, value in kwargs.items() if key in accepted}
        return self.layer.compute_output_spec(*args, **kwargs)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the wrapped layer."""
        return self.layer.compute_mask(inputs, previous_mask)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, including the wrapped layer."""
        return {
            **super().get_config(),
            "quantize_inputs": self.quantize_inputs,
            "quantize_weights": self.quantize_weights,
            "quantization_index": None
            if self.quantization_index is None
            else list(self.quantization_index),
            "quantize_internal": self.quantize_internal,
            "input_options": self.input_options,
            "weight_options": self.weight_options,
        }


class NonWeightedBaseQuantizeWrapper(BaseQuantizeWrapper):
    """Base for layers without weights to quantize: pooling, merging, normalization."""

    default_quantize_weight: ClassVar[bool] = False


def _is_list_of_shapes(shape: Any) -> bool:
    return isinstance(shape, (list, tuple)) and bool(shape) and isinstance(shape[0], (list, tuple))


def unweighted(layer_class: type, *, default: bool = False) -> Any:
    """Return a wrapper class for a layer without weights."""
    return type(
        f"{layer_class.__name__}{SUFFIX}",
        (NonWeightedBaseQuantizeWrapper,),
        {
            "__doc__": f"Quantize the inputs of ``keras.layers.{layer_class.__name__}``.",
            "__module__": "qat_lib.keras.wrappers",
            "layer_class": layer_class,
            "default_quantize_input": default,
        },
    )
