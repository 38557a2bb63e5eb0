"""quantize_model: plan, then apply. ``apply_plan`` is the only place that rebuilds a Keras graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from qat_lib.cloning import clone_operation, copy_state, has_same_variables
from qat_lib.errors import PlanError
from qat_lib.layer_graph import Call, LayerGraph, functional_of
from qat_lib.plan import KINDS, QuantizationPlan, QuantizerEntry
from qat_lib.planner import plan_quantization
from qat_lib.quantize_wrappers import REGISTRY, BaseQuantizeWrapper
from qat_lib.quantizers import TensorQuantizer
from qat_lib.spec import QuantizationSpec

logger = logging.getLogger("qat_lib")


def quantize_model(
    model: Any,
    quantization_mode: str = "full",
    quantization_spec: QuantizationSpec | None = None,
    custom_qdq_cases: Sequence[Any] | None = None,
) -> Any:
    """Return a copy of a model in which tensors and weights are fake-quantized.

    Args:
        model: a Functional or Sequential Keras model, nested ones included; it is not changed.
        quantization_mode: ``"full"`` (default) or ``"partial"``.
        quantization_spec: which layers to treat differently from the default.
        custom_qdq_cases: objects that decide by pattern; see :class:`qat_lib.CustomQDQInsertionCase`.

    Returns:
        An ordinary Keras model with the same weights, to compile, calibrate, fit, save and export. If ``model`` is
        compiled, the copy is compiled likewise, with an optimizer of its own; compile it again to change that.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: the model is subclassed or not built, or a layer can't be copied.

    Example:
        >>> import keras, qat_lib
        >>> x = keras.Input((8, 8, 3))
        >>> model = keras.Model(x, keras.layers.Conv2D(4, 3, name="conv")(x))
        >>> qat_lib.quantize_model(model).layers[-1].name
        'quant_conv'
    """
    plan = plan_quantization(model, quantization_mode, quantization_spec, custom_qdq_cases)
    quantized = apply_plan(model, plan)
    _compile_like(model, quantized)
    return quantized


def _compile_like(model: Any, quantized: Any) -> None:
    """Compile ``quantized`` as ``model`` is, from the configuration of its optimizer, losses and metrics."""
    if not getattr(model, "compiled", False):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras's, about a lambda, is about files
            config = keras.saving.deserialize_keras_object(model.get_compile_config())
        quantized.compile(**config)
    except Exception as error:  # a loss without a configuration fails in many ways; compiling by hand is left  # noqa: BLE001
        logger.info("The quantized model is not compiled: the original's configuration can't be copied: %s", error)


def apply_plan(model: Any, plan: QuantizationPlan) -> Any:
    """Return a copy of ``model`` with the quantizers of ``plan``.

    Raises:
        PlanError: the plan names a tensor, layer or weight that the model lacks.
    """
    return _Rebuild(LayerGraph(model), plan).run()


def model_quantizers(model: Any, pattern: str | None = None) -> dict[str, TensorQuantizer]:
    """Return every TensorQuantizer of a model by name, those inside of wrappers included.

    Args:
        model: a quantized model.
        pattern: a regular expression that a name must match whole; None = all.
    """
    import re

    found = {q.name: q for layer in model._flatten_layers() if isinstance(q := layer, TensorQuantizer)}
    return {name: q for name, q in found.items() if pattern is None or re.fullmatch(pattern, name)}


class _Rebuild:
    """One application of a plan: the new layers and tensors, by the names of the old ones."""

    def __init__(self, graph: LayerGraph, plan: QuantizationPlan) -> None:
        self.graph = graph
        self.plan = plan
        of_layers = {e.tensor.rpartition("/")[0] for e in plan.quantizers if e.kind != "activation"}
        self.wrapped = frozenset(plan.wrapped) | of_layers
        self.tensors: dict[str, Any] = {}
        self.layers: dict[str, Any] = {}
        self.unfilled: dict[str, Any] = {}
        self.quantizers: dict[str, TensorQuantizer] = {}
        self.quantized: dict[str, Any] = {}
        self.entry_of: dict[str, QuantizerEntry] = {}
        self.reads_quantized: set[tuple[str, int]] = set()
        self.of_layer: dict[str, list[QuantizerEntry]] = {}
        self._read_plan()

    def _read_plan(self) -> None:
        layers = {name for name, _ in self.graph.layers()}
        for entry in self.plan.quantizers:
            if entry.kind not in KINDS:
                raise PlanError(
                    f"The kind of {entry.name!r} must be one of {', '.join(KINDS)}. Received: {entry.kind!r}."
                )
            if entry.kind == "activation":
                if entry.tensor not in self.graph.shapes:
                    raise PlanError(f"The plan names the tensor {entry.tensor!r}, which the model does not have.")
                self.entry_of[entry.tensor] = entry
                for consumer in entry.consumers:
                    call = self.graph.by_name.get(consumer.layer)
                    if call is None or consumer.input >= len(call.inputs):
                        raise PlanError(
                            f"The plan says that input {consumer.input} of {consumer.layer!r} reads {entry.tensor!r}, "
                            "but the model has no such input."
                        )
                    if call.inputs[consumer.input] != entry.tensor:
                        raise PlanError(
                            f"The plan says that input {consumer.input} of {consumer.layer!r} reads {entry.tensor!r}, "
                            f"but it reads another tensor, {call.inputs[consumer.input]!r}."
                        )
                    self.reads_quantized.add((consumer.layer, consumer.input))
            else:
                layer = entry.tensor.rpartition("/")[0]
                if layer not in layers:
                    raise PlanError(f"The plan names the layer {layer!r}, which the model does not have.")
                self.of_layer.setdefault(layer, []).append(entry)
        if unknown := self.wrapped - layers:
            raise PlanError(f"The plan names the layer {min(unknown)!r}, which the model does not have.")

    def run(self) -> Any:
        for call in self.graph.calls:
            if call.is_input:
                self._add_input(call)
            else:
                self._add_call(call)
        function = functional_of(self.graph.model)
        inputs = self._packed(function._inputs_struct, self.graph.inputs)
        return keras.Model(inputs, self._outputs(function), name=self.graph.model.name)

    def _packed(self, structure: Any, tensors: Sequence[str]) -> Any:
        return keras.tree.pack_sequence_as(structure, [self.tensors[t] for t in tensors])

    def _outputs(self, function: Any) -> Any:
        """Return the output tensors; where losses go by output names, a wrapped layer keeps its own for the output."""
        structure = function._outputs_struct
        if len(self.graph.outputs) > 1 and not isinstance(structure, dict):
            for tensor in dict.fromkeys(self.graph.outputs):
                call = self.graph.producer(tensor)
                if self._is_wrapped_here(call.layer) and len(call.outputs) == 1:
                    self.tensors[tensor] = keras.layers.Identity(name=call.layer)(self.tensors[tensor])
        return self._packed(structure, self.graph.outputs)

    def _add_input(self, call: Call) -> None:
        layer = call.operation
        self.tensors[call.outputs[0]] = keras.Input(
            batch_shape=layer.batch_shape, dtype=layer.dtype, sparse=layer.sparse, name=layer.name
        )

    def _add_call(self, call: Call) -> None:
        layer = self._layer(call)
        args, kwargs = call.fill(lambda index: self._read(call, index))
        if call.training is not None and isinstance(layer, keras.layers.Layer) and layer._call_has_training_arg:
            kwargs["training"] = call.training
        outputs = keras.tree.flatten(layer(*args, **kwargs))
        for name, tensor in zip(call.outputs, outputs, strict=True):
            self.tensors[name] = tensor
        if (copy := self.unfilled.pop(call.layer, None)) is not None:
            copy_state(call.operation, copy)
        if self._is_wrapped_here(call.layer) and call.name == call.layer:
            self._settle(call.layer, layer)

    def _is_wrapped_here(self, layer: str) -> bool:
        """Whether the plan put a wrapper around the layer; the model may hold wrappers of its own."""
        return layer in self.wrapped and isinstance(self.layers.get(layer), BaseQuantizeWrapper)

    def _read(self, call: Call, index: int) -> Any:
        tensor = call.inputs[index]
        if (call.name, index) not in self.reads_quantized:
            return self.tensors[tensor]
        if tensor not in self.quantized:
            self.quantized[tensor] = self._quantizer(self.entry_of[tensor])(self.tensors[tensor])
        return self.quantized[tensor]

    def _quantizer(self, entry: QuantizerEntry) -> TensorQuantizer:
        if entry.name not in self.quantizers:
            self.quantizers[entry.name] = TensorQuantizer(
                name=entry.name,
                num_bits=entry.num_bits,
                channel_axes=entry.channel_axes,
                range_policy=entry.range_policy,
                calibrator=entry.calibrator,
            )
        return self.quantizers[entry.name]

    def _layer(self, call: Call) -> Any:
        if call.layer not in self.layers:
            copy = clone_operation(call.operation, call.layer)
            if isinstance(copy, keras.layers.Layer):
                self._fill(call, copy)
            if call.layer in self.wrapped and isinstance(copy, keras.layers.Layer):
                copy = self._wrap(call.layer, copy)
            self.layers[call.layer] = copy
        return self.layers[call.layer]

    def _fill(self, call: Call, copy: Any) -> None:
        """Give the copy the original's state, now or, where its first call builds it, after that."""
        if copy.built and has_same_variables(call.operation, copy):
            copy_state(call.operation, copy)
        else:
            self.unfilled[call.layer] = copy

    def _wrap(self, name: str, layer: Any) -> Any:
        wrapper = REGISTRY.find(type(layer))
        if wrapper is None:
            raise PlanError(f"The plan wraps {name!r}, but no wrapper supports {type(layer).__name__}.")
        entries = self.of_layer.get(name, [])
        weights = [e for e in entries if e.kind == "weight"]
        internal = [e for e in entries if e.kind == "internal"]
        own = {"internal": set(wrapper.internal_names)}
        if weights:
            own["weight"] = set(wrapper(layer).planned_weights()) if hasattr(wrapper, "planned_weights") else set()
        for entry in entries:
            if (part := entry.tensor.rpartition("/")[2]) not in own[entry.kind]:
                raise PlanError(
                    f"The plan names {entry.tensor!r}, but {type(layer).__name__} has no {entry.kind} {part!r} to "
                    f"quantize. It has: {', '.join(sorted(own[entry.kind])) or 'none'}."
                )
        return wrapper(
            layer,
            quantize_inputs=False,
            quantize_weights=bool(weights),
            quantize_internal=bool(internal),
            weight_options=_weight_options(weights),
            input_options=_input_options(internal),
            name=f"quant_{name}",
        )

    def _settle(self, name: str, wrapper: BaseQuantizeWrapper) -> None:
        """Switch off what the wrapper made beyond the plan, as in a plan from which an entry was taken out."""
        planned = {entry.name for entry in self.of_layer.get(name, [])}
        for quantizer in [*wrapper.weight_quantizers, *wrapper.internal_quantizers]:
            if quantizer.name not in planned:
                quantizer.disable()


def _weight_options(entries: list[QuantizerEntry]) -> dict[str, Any]:
    """Return the options of a layer's weight quantizers: those of all, or where they differ, by weight."""
    each = {
        entry.tensor.rpartition("/")[2]: {
            "num_bits": entry.num_bits,
            "range_policy": entry.range_policy,
            "channel_axes": None if entry.channel_axes is None else list(entry.channel_axes),
        }
        for entry in entries
    }
    options = list(each.values())
    return options[0] if options and all(o == options[0] for o in options) else each


def _input_options(entries: list[QuantizerEntry]) -> dict[str, Any]:
    if not entries:
        return {}
    first = entries[0]
    return {"num_bits": first.num_bits, "range_policy": first.range_policy, "calibrator": first.calibrator}
