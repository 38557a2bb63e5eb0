"""Wrappers of EinsumDense and of MultiHeadAttention, which contains four of them."""

from __future__ import annotations

from typing import Any, ClassVar

from keras import layers

from qat_lib.keras.wrappers.weighted import WeightedBaseQuantizeWrapper, options_for


def output_axes(equation: str) -> tuple[int, ...]:
    """Return the output axes of an EinsumDense kernel, counted from the end."""
    operands, _, result = equation.replace(" ", "").partition("->")
    kernel = operands.split(",")[1]
    return tuple(i - len(kernel) for i, letter in enumerate(kernel) if letter in result)


class EinsumDenseQuantizeWrapper(WeightedBaseQuantizeWrapper):
    """Quantize ``keras.layers.EinsumDense``: one range for each output feature of the kernel."""

    layer_class: ClassVar[type | None] = layers.EinsumDense

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.kernels = {"kernel": output_axes(layer.equation)}


class MultiHeadAttentionQuantizeWrapper(WeightedBaseQuantizeWrapper):
    """Quantize the inputs, the four projections and the output of MultiHeadAttention.

    The product of queries and keys, the softmax and the product with the values run in float.
    """

    layer_class: ClassVar[type | None] = layers.MultiHeadAttention
    internal_names: ClassVar[tuple[str, ...]] = ("attention_output_input",)
    projections: ClassVar[tuple[str, ...]] = (
        "_query_dense",
        "_key_dense",
        "_value_dense",
        "_output_dense",
    )

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.kernels = {}

    def planned_weights(self) -> dict[str, tuple[int, ...] | None]:
        """Return the kernels of the projections; the layer must be built."""
        dense = [getattr(self.layer, attribute) for attribute in self.projections]
        return {f"{d.name}_kernel": output_axes(d.equation) for d in dense}

    def build(  # type: ignore[override]
        self, query_shape: Any = None, value_shape: Any = None, key_shape: Any = None
    ) -> None:
        """Build the layer, then wrap each of its projections."""
        own, self.quantize_inputs = self.quantize_inputs, False
        if not self.layer.built:
            self.layer.build(query_shape, value_shape, key_shape)
            self.layer.built = True
        self.quantize_inputs = own
        if own and not self.input_quantizers:
            self._build_input_quantizers([query_shape, value_shape, key_shape or value_shape])
        if not isinstance(self.layer._query_dense, EinsumDenseQuantizeWrapper):
            self._wrap_projections()
        self.built = True

    def _wrap_projections(self) -> None:
        # Keras locks a built layer against new sublayers, and unlocks it in the same way to add
        # LoRA weights.
        self.layer._tracker.unlock()
        for attribute in self.projections:
            dense = getattr(self.layer, attribute)
            inner = attribute == "_output_dense" and self.quantize_internal
            options = options_for(self.weight_options, f"{dense.name}_kernel")
            # Keras gives the projections of all attention layers the same names.
            dense.name = f"{self.layer.name}_{dense.name}"
            wrapper = EinsumDenseQuantizeWrapper(
                dense,
                quantize_inputs=inner,
                quantize_weights=self.quantize_weights,
                input_options=self.input_options,
                weight_options=options,
            )
            wrapper.build((None,))
            delattr(self.layer, attribute)
            setattr(self.layer, attribute, wrapper)
            self.internal_quantizers.extend(q for q in wrapper.input_quantizers if q is not None)
            self.weight_quantizers.extend(wrapper.weight_quantizers)
        self.layer._tracker.lock()

    def call(  # type: ignore[override]  # Keras binds this layer's inputs by these names
        self,
        query: Any,
        value: Any,
        key: Any = None,
        training: bool | None = None,
        mask: Any = None,  # noqa: ARG002  the layer takes the masks of its inputs
        **kwargs: Any,
    ) -> Any:
        """Call the layer on quantized queries, values, keys: ``(batch, length, features)`` each."""
        if self.input_quantizers:
            shared_key = key is None
            query, value, key = self.quantized_inputs(
                [query, value, value if key is None else key], training
            )
            key = None if shared_key else key
        if key is not None:
            kwargs["key"] = key
        return self.layer(query, value, training=training, **kwargs)
