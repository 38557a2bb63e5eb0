"""CompositeQuantizeWrapper: quantization of the layers inside another layer."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from qat_lib.core.plan_entries import quantizer_name
from qat_lib.errors import SpecError
from qat_lib.keras.cloning import sound_config
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.wrappers.base import BaseQuantizeWrapper
from qat_lib.keras.wrappers.inner import inner_layers, inner_wrapper
from qat_lib.keras.wrappers.replacement import call_with_weights


class CompositeQuantizeWrapper(BaseQuantizeWrapper, any_class=True):
    """Quantize the weighted layers inside a layer, and their inputs.

    The wrapper supports any layer that calls Dense layers, convolutions and other weighted layers:
    it replaces the ``call`` of these layers by one with quantized inputs and weights. The inputs of
    the composite are quantized outside, where each tensor has one quantizer for all readers.

    Args:
        layer: the composite layer.
        weights: one mapping per quantized weight: ``weight`` (path of the inner layer, slash,
            attribute), ``name`` and ``shape``, and options of the quantizer. None, the default,
            means all weights of all inner layers.
        inputs: one mapping per quantizer of inner tensors: ``name``, ``readers`` (paths of the
            inner layers that read the quantized tensor) and ``options``. None, the default, creates
            a separate quantizer for each inner layer.
        **kwargs: see ``BaseQuantizeWrapper``.

    Examples:
        >>> import keras
        >>> inner = keras.layers.Dense(2)
        >>> wrapped = CompositeQuantizeWrapper(keras.layers.TimeDistributed(inner, name="steps"))
        >>> wrapped(keras.Input((3, 4))).shape
        (None, 3, 2)
        >>> [quantizer.name for quantizer in wrapped.weight_quantizers]
        ['steps_layer_kernel_quantizer']
    """

    def __init__(
        self,
        layer: Any,
        *,
        weights: Sequence[Mapping[str, Any]] | None = None,
        inputs: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        # Keras binds arguments by the signature of ``call``, so it must be that of the composite.
        object.__setattr__(self, "call", _Forward(self, layer))
        super().__init__(layer, **kwargs)
        self.weights_config = None if weights is None else [dict(item) for item in weights]
        self.inputs_config = None if inputs is None else [dict(item) for item in inputs]
        self.hooked = False

    def build(self, input_shape: Any = None, **_shapes: Any) -> None:
        """Create the quantizers; Keras builds the composite in its first call."""
        if self.weights_config is None or self.inputs_config is None:
            self._configure_alone(input_shape)
        for item in self.weights_config or ():
            options: dict[str, Any] = {"narrow_range": True, "range_policy": "current"}
            options |= {k: v for k, v in item.items() if k not in ("weight", "name", "shape")}
            quantizer = TensorQuantizer(name=item["name"], **options)
            quantizer.build(tuple(item["shape"]))
            self.weight_quantizers.append(quantizer)
        for item in self.inputs_config or ():
            quantizer = TensorQuantizer(name=item["name"], **item["options"])
            quantizer.build(None)
            self.internal_quantizers.append(quantizer)
        if self._has_inner_weights():
            self._hook()
        self.built = True

    def _has_inner_weights(self) -> bool:
        """Whether the inner layers are built; ``built`` of the composite may be wrong."""
        inner = inner_layers(self.layer)
        paths = {item["weight"].rpartition("/")[0] for item in self.weights_config or ()}
        paths.update(path for item in self.inputs_config or () for path in item["readers"])
        return all(path in inner and inner[path].built for path in paths)

    def _configure_alone(self, input_shape: Any) -> None:
        """Select all quantizable weights and inputs, for use without a plan."""
        if not self.layer.built:
            self.layer(keras.KerasTensor(input_shape, dtype=self.layer.input_dtype))
        inner = inner_layers(self.layer)
        if not inner:
            raise SpecError(
                "Expected a layer with weighted layers inside. Received: "
                f"{type(self.layer).__name__}."
            )
        if self.weights_config is None:
            self.weights_config = self._all_weights(inner) if self.quantize_weights else []
        if self.inputs_config is None:
            self.inputs_config = self._all_inputs(inner) if self.quantize_inputs else []

    def _all_weights(self, inner: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = []
        for path, layer in inner.items():
            wrapper = inner_wrapper(layer)
            for kernel, axes in wrapper.planned_weights().items():
                found.append(
                    {
                        "weight": f"{path}/{kernel}",
                        "name": quantizer_name(f"{self.layer.name}/{path}/{kernel}"),
                        "shape": list(wrapper.kernel_variable(kernel).shape),
                        "channel_axes": None if axes is None else list(axes),
                        **self.weight_options,
                    }
                )
        return found

    def _all_inputs(self, inner: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = []
        for path in inner:
            name = quantizer_name(f"{self.layer.name}/{path}/input")
            found.append({"name": name, "readers": [path], "options": self.input_options})
        return found

    def _hook(self) -> None:
        """Replace the ``call`` of inner layers by one with quantized inputs and weights."""
        inner = inner_layers(self.layer)
        # One hook per layer, for its weights and its input.
        hooks: dict[str, _InnerCall] = {}
        for item, quantizer in zip(self.weights_config or (), self.weight_quantizers, strict=True):
            path, _, kernel = item["weight"].rpartition("/")
            variable = inner_wrapper(self._find(inner, path)).kernel_variable(kernel)
            quantizer.bind_weight(variable)
            quantizer.fit_weight()
            hooks.setdefault(path, _InnerCall(inner[path])).weights.append((variable, quantizer))
        for item, quantizer in zip(self.inputs_config or (), self.internal_quantizers, strict=True):
            for path in item["readers"]:
                hooks.setdefault(
                    path, _InnerCall(self._find(inner, path))
                ).input_quantizer = quantizer
        for hook in hooks.values():
            object.__setattr__(hook.layer, "call", hook)
        self.hooked = True

    def _find(self, inner: Mapping[str, Any], path: str) -> Any:
        if path not in inner:
            raise SpecError(
                f"{type(self.layer).__name__} {self.layer.name!r} has no weighted layer {path!r} "
                "inside. "
                f"It has: {', '.join(inner) or 'none'}."
            )
        return inner[path]

    def prepare(self, args: Any, kwargs: Any) -> None:
        """Build the composite and its inner layers, as in its first call."""
        if self.hooked:
            return
        if not self.layer.built or not self._has_inner_weights():
            symbolic = [keras.tree.map_structure(_symbolic, part) for part in (args, kwargs)]
            self.layer(*symbolic[0], **symbolic[1])
        self._hook()

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the symbolic output of the composite."""
        self.prepare(args, kwargs)
        return self.layer.compute_output_spec(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        config = super().get_config()
        config["layer"]["config"] = sound_config(self.layer)
        return {**config, "weights": self.weights_config, "inputs": self.inputs_config}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the wrapper, with the composite built from shapes as tuples.

        Files store shapes as lists, and Keras passes them on unchanged. Layers that append to their
        input shape, such as those of DeepLabV3, require a tuple.
        """
        layer = dict(config["layer"])
        if "build_config" in layer:
            layer["build_config"] = _shapes_as_tuples(layer["build_config"])
        return super().from_config({**config, "layer": layer}, custom_objects)


def _shapes_as_tuples(stored: Any) -> Any:
    if isinstance(stored, Mapping):
        return {key: _shapes_as_tuples(value) for key, value in stored.items()}
    if isinstance(stored, list):
        is_shape = all(size is None or isinstance(size, int) for size in stored)
        return tuple(stored) if is_shape else [_shapes_as_tuples(item) for item in stored]
    return stored


class _Forward:
    """The ``call`` of the wrapper, with the signature of the composite's ``call``."""

    def __init__(self, wrapper: CompositeQuantizeWrapper, layer: Any) -> None:
        self.wrapper = wrapper
        self.__signature__ = inspect.signature(layer.call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.wrapper.prepare(args, kwargs)
        with _one_call():
            return self.wrapper.layer(*args, **kwargs)


class _InnerCall:
    """The ``call`` of an inner layer with quantized input and weights."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        # From the class: the instance attribute may be a hook of an earlier wrapper.
        self.original = types.MethodType(type(layer).call, layer)
        self.__signature__ = inspect.signature(self.original)
        self.weights: list[tuple[Any, TensorQuantizer]] = []
        self.input_quantizer: TensorQuantizer | None = None

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        x = inputs if self.input_quantizer is None else _quantized(self.input_quantizer, inputs)
        weights = {
            id(variable): _quantized(quantizer, variable) for variable, quantizer in self.weights
        }
        return call_with_weights(
            self.layer, weights, lambda: self.original(x, *args, **kwargs), self.layer.add_loss
        )


_seen: ContextVar[dict[Any, Any] | None] = ContextVar("qat_lib_seen", default=None)


@contextmanager
def _one_call() -> Iterator[None]:
    """Quantize each tensor once for all readers within the block, for a single Q/DQ pair."""
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def _quantized(quantizer: TensorQuantizer, x: Any) -> Any:
    """Return a quantized tensor or variable, cached within ``_one_call``."""
    seen = _seen.get()
    if seen is None:  # the inner layer was called directly, not through the wrapper
        return quantizer(x)
    # Tensors computed in a branch or loop are not available outside: use one entry per graph.
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    key = (id(quantizer), id(x), id(graph))
    if key not in seen:
        seen[key] = (x, quantizer(x))  # keep x alive, so that its id is not reused
    return seen[key][1]


def _symbolic(x: Any) -> Any:
    is_tensor = tf.is_tensor(x) or isinstance(x, keras.KerasTensor)
    return (
        keras.KerasTensor(x.shape, dtype=keras.backend.standardize_dtype(x.dtype))
        if is_tensor
        else x
    )
