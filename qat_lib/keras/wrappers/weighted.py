"""Base of wrappers of layers with weights, with one quantizer per weight."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import keras
import tensorflow as tf

from qat_lib.errors import SpecError
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.wrappers.base import BaseQuantizeWrapper
from qat_lib.keras.wrappers.registry import SUFFIX
from qat_lib.keras.wrappers.replacement import call_with_weights


class WeightedBaseQuantizeWrapper(BaseQuantizeWrapper):
    """Base of wrappers of layers with weights, quantized per output channel.

    Args:
        layer: the layer to wrap.
        kernel_type: attribute of the layer with the weight, or a list of such attributes.
            Default: ``kernel_types`` of the class, else ``"kernel"``.
        **kwargs: see ``BaseQuantizeWrapper``.
    """

    kernel_types: ClassVar[Mapping[str, tuple[int, ...]] | None] = None

    def __init__(
        self,
        layer: Any,
        kernel_type: str | list[str] | tuple[str, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(layer, **kwargs)
        given = [kernel_type] if isinstance(kernel_type, str) else list(kernel_type or ())
        own = dict(self.kernel_types or {"kernel": (-1,)})
        usual = {
            "kernel": (-1,),
            "depthwise_kernel": (-2, -1),
            "pointwise_kernel": (-1,),
            "embeddings": None,
        }
        self.kernels: dict[str, Any] = (
            {k: own.get(k, usual.get(k, (-1,))) for k in given} if given else own
        )

    def planned_weights(self) -> dict[str, tuple[int, ...] | None]:
        """Return the channel axes of each quantized weight; None means one range."""
        return {_leaf(kernel): axes for kernel, axes in self.kernels.items()}

    def build(self, input_shape: Any = None, **shapes: Any) -> None:
        """Build the layer and one quantizer per weight."""
        super().build(input_shape, **shapes)
        if not self.quantize_weights or self.weight_quantizers:
            return
        for kernel, axes in self.kernels.items():
            variable = self.kernel_variable(kernel)
            options = {"channel_axes": axes, "range_policy": "current", "narrow_range": True}
            options |= options_for(self.weight_options, _leaf(kernel))
            quantizer = TensorQuantizer(
                name=f"{self.layer.name}_{_leaf(kernel)}_quantizer", **options
            )
            quantizer.bind_weight(variable)
            quantizer.build(tuple(variable.shape))
            self.weight_quantizers.append(quantizer)

    def kernel_variable(self, kernel: str) -> Any:
        """Return the weight variable named ``kernel``.

        Raises:
            SpecError: the layer has no such weight.
        """
        # The weight of a depthwise layer is "kernel" in Keras 3 and "depthwise_kernel" in Keras 2.
        # Of some layers, "kernel" is a property that adds LoRA weights: "_kernel" is the variable.
        names = (f"_{kernel}", kernel, "kernel" if kernel == "depthwise_kernel" else kernel)
        found = (getattr(self.layer, name, None) for name in names)
        variable = next((v for v in found if isinstance(v, keras.Variable)), None)
        if variable is None:
            raise SpecError(
                f"{type(self.layer).__name__} {self.layer.name!r} has no weight {kernel!r}: "
                f"give {type(self).__name__} the kernel_type that names it."
            )
        return variable

    def call_layer(
        self, *inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """Call the wrapped layer with quantized weights."""
        if not self.weight_quantizers:
            return super().call_layer(*inputs, training=training, mask=mask, **kwargs)
        run = partial(super().call_layer, *inputs, training=training, mask=mask, **kwargs)
        return call_with_weights(self.layer, self.quantized_weights(training), run, self.add_loss)

    def quantized_weights(self, training: bool | None) -> dict[int, Any]:
        """Return the quantized weights by the id of their variable."""
        weights = {}
        for kernel, quantizer in zip(self.kernels, self.weight_quantizers, strict=True):
            variable = self.kernel_variable(kernel)
            weights[id(variable)] = quantizer(
                tf.convert_to_tensor(variable.value), training=training
            )
        return weights

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        config = super().get_config()
        # Subclasses define their kernels by class, so their constructors need no argument.
        if type(self) is WeightedBaseQuantizeWrapper:
            config["kernel_type"] = list(self.kernels)
        return config


def options_for(options: Mapping[str, Any], weight: str) -> dict[str, Any]:
    """Return the options of one weight."""
    common = {key: value for key, value in options.items() if not isinstance(value, Mapping)}
    return {**common, **options.get(weight, {})}


def _leaf(kernel: str) -> str:
    return kernel.removeprefix("_")


def weighted(layer_class: type, *, default: bool = True, **kernels: tuple[int, ...] | None) -> Any:
    """Return a new wrapper class; ``kernels`` maps weights to their channel axes."""
    return type(
        f"{layer_class.__name__}{SUFFIX}",
        (WeightedBaseQuantizeWrapper,),
        {
            "__doc__": "Quantize the inputs and the weights of "
            f"``keras.layers.{layer_class.__name__}``.",
            "__module__": "qat_lib.keras.wrappers",
            "layer_class": layer_class,
            "kernel_types": kernels or {"kernel": (-1,)},
            "default_quantize_input": default,
            "default_quantize_weight": default,
        },
    )
