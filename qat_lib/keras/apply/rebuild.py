"""Application of a plan to a Keras model: the only module that rebuilds a graph."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from qat_lib.core.plan import QuantizationPlan, QuantizerEntry
from qat_lib.core.plan_index import PlanIndex
from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.apply.composite import wrap_composite
from qat_lib.keras.apply.recursion import ROOM, deep_graphs
from qat_lib.keras.apply.wrapper import wrap_layer
from qat_lib.keras.cloning import (
    call_copy,
    clone_by_arguments,
    clone_operation,
    copy_state,
    has_same_variables,
)
from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.structure import (
    functional_of,
    input_structure,
    maker_of,
    output_structure,
    own_steps,
    refuse_scope_names,
)
from qat_lib.keras.wrappers import REGISTRY, BaseQuantizeWrapper
from qat_lib.keras.wrappers.inner import is_composite

logger = logging.getLogger("qat_lib")


def apply_plan(model: Any, plan: QuantizationPlan) -> Any:
    """Return a copy of ``model`` with the quantizers of ``plan``.

    The copy has the class of the model if the constructor accepts a graph of layers. Otherwise, it
    is a plain Functional model, and a warning names the missing steps of the class.

    Raises:
        PlanError: the plan names a missing tensor, layer or weight.
        UnsupportedModelError: a layer can't be copied or has an invalid name for TensorFlow, or the
            copy is too deep for Keras to traverse.
    """
    refuse_scope_names(model)
    if _class_of(model) is keras.Model and (steps := own_steps(model)):
        logger.warning(
            "The quantized copy of %r is a plain Functional model, which returns the outputs of its "
            "layers. It lacks what %s defines in %s, such as decoding boxes: apply that to the "
            "outputs.",
            model.name,
            type(model).__name__,
            ", ".join(steps),
        )
    try:
        with deep_graphs():
            return _Rebuild(LayerGraph(model), plan).run()
    except RecursionError as error:
        limit = max(ROOM, sys.getrecursionlimit())
        raise UnsupportedModelError(
            f"Expected a quantized {model.name!r} that Keras can walk within {limit} nested calls. "
            f"It is deeper: call sys.setrecursionlimit({4 * limit}) first, and before you load it."
        ) from error


def copy_model(model: Any, replaced: Mapping[str, Any]) -> Any:
    """Return a copy of ``model`` with some layers replaced.

    Args:
        model: a Functional or Sequential Keras model.
        replaced: name of a layer in the ``LayerGraph`` of the model -> its replacement, with its
            own weights.

    Raises:
        UnsupportedModelError: a layer can't be copied.
    """
    plan = QuantizationPlan(model=model.name, mode="partial", quantizers=(), skipped=(), wrapped=())
    with deep_graphs():
        return _Rebuild(LayerGraph(model), plan, replaced).run()


class _Rebuild:
    """State of one application of a plan: new layers and tensors by old names."""

    def __init__(
        self, graph: LayerGraph, plan: QuantizationPlan, given: Mapping[str, Any] | None = None
    ) -> None:
        self.graph = graph
        self.old_layers: dict[str, Any] = dict(graph.layers())
        self.plan = PlanIndex.of(plan, graph)
        self.tensors: dict[str, Any] = {}
        self.layers: dict[str, Any] = dict(given or {})
        self.unfilled: dict[str, Any] = {}
        self.quantized: dict[str, Any] = {}
        self.replaced: dict[str, list[TensorQuantizer]] = {}

    def run(self) -> Any:
        for call in self.graph.calls:
            if call.is_input:
                layer = call.operation
                self.tensors[call.outputs[0]] = keras.Input(
                    batch_shape=layer.batch_shape,
                    dtype=layer.dtype,
                    sparse=layer.sparse,
                    name=layer.name,
                )
            elif isinstance(call.operation, TensorQuantizer) and (
                entry := self.plan.arriving(self.graph, call, 0)
            ):
                self._replace(call.operation, entry)
                self.tensors[call.outputs[0]] = self._read(call, 0)
            else:
                self._add_call(call)
        # After all calls: a quantizer is built by its first call, and may replace several old ones.
        for name, replaced in self.replaced.items():
            # Copy the switches of the first replaced quantizer, and the widest range of all.
            quantizer = self.layers[name]
            quantizer.take_over(replaced[0])
            if ranges := [old.amax for old in replaced if old.calibrated]:
                quantizer.amax = np.maximum.reduce(ranges)
        function = functional_of(self.graph.model)
        inputs = self._packed(
            input_structure(function), [self.tensors[t] for t in self.graph.inputs]
        )
        return _class_of(self.graph.model)(
            inputs, self._outputs(function), name=self.graph.model.name
        )

    def _packed(self, structure: Any, tensors: Sequence[Any]) -> Any:
        return keras.tree.pack_sequence_as(structure, list(tensors))

    def _outputs(self, function: Any) -> Any:
        """Return the output tensors with their original names.

        Losses, metrics and ONNX outputs use these names, and Keras derives them from the layers
        that compute the tensors. Outputs of wrappers therefore pass through an Identity with the
        name of the wrapped layer.
        """
        taken = {maker_of(tensor).name for tensor in self.tensors.values()}
        named: dict[str, Any] = {}
        outputs = []
        for old, name in zip(self.graph.outputs, function.output_names, strict=True):
            tensor = self.tensors[old]
            # Layer names are unique: if another layer has this name, the output keeps its new one.
            if maker_of(tensor).name != name and name not in taken:
                # With the data type of the tensor: under a mixed policy, the layer would cast it.
                named.setdefault(name, keras.layers.Identity(name=name, dtype=tensor.dtype))
                tensor = named[name](tensor)
            outputs.append(tensor)
        return self._packed(output_structure(function), outputs)

    def _add_call(self, call: Call) -> None:
        layer = self._layer(call)
        # The copy has no nested models, so the ``training`` argument of their calls moves to each
        # layer.
        args, kwargs = call.fill(lambda index: self._read(call, index))
        if (
            call.training is not None
            and isinstance(layer, keras.layers.Layer)
            and layer._call_has_training_arg
        ):
            kwargs["training"] = call.training
        outputs = call_copy(layer, args, kwargs)
        # The first call has built the copy, so its state can be filled in now.
        if (copy := self.unfilled.pop(call.layer, None)) is not None:
            if not has_same_variables(call.operation, copy):
                layer = self._copy_by_arguments(call, layer)
                outputs = call_copy(layer, args, kwargs)
                copy = layer.layer if call.layer in self.plan.wrapped else layer
            copy_state(call.operation, copy)
            for quantizer in (
                layer.weight_quantizers if isinstance(layer, BaseQuantizeWrapper) else ()
            ):
                quantizer.fit_weight()
        for name, tensor in zip(call.outputs, keras.tree.flatten(outputs), strict=True):
            self.tensors[name] = tensor
        if call.name == call.layer and isinstance(layer, BaseQuantizeWrapper):
            self._settle(call, layer)

    def _read(self, call: Call, index: int) -> Any:
        tensor = call.inputs[index]
        entry = self.plan.reads.get((call.name, index))
        if entry is None:
            return self.tensors[tensor]
        # All readers share one quantized tensor, and so one Q/DQ pair.
        if tensor not in self.quantized:
            self.quantized[tensor] = self._quantizer(entry)(self.tensors[tensor])
        return self.quantized[tensor]

    def _quantizer(self, entry: QuantizerEntry) -> TensorQuantizer:
        if entry.name not in self.layers:
            old = self.old_layers.get(entry.name)
            if old is not None:
                self._replace(old, entry)
            options = {
                "name": entry.name,
                "num_bits": entry.num_bits,
                "unsigned": entry.unsigned,
                "channel_axes": entry.channel_axes,
                "range_policy": entry.range_policy,
                "calibrator": entry.calibrator,
            }
            # Settings without a plan entry, such as the momentum, come from the replaced quantizer.
            self.layers[entry.name] = TensorQuantizer(
                **({} if old is None else old.get_config()) | options
            )
        quantizer: TensorQuantizer = self.layers[entry.name]
        return quantizer

    def _replace(self, quantizer: TensorQuantizer, entry: QuantizerEntry) -> None:
        """Record that the quantizer of an entry replaces one of the model."""
        replaced = self.replaced.setdefault(entry.name, [])
        if quantizer not in replaced:
            replaced.append(quantizer)

    def _layer(self, call: Call) -> Any:
        if call.layer not in self.layers:
            copy = clone_operation(call.operation, call.layer)
            if isinstance(copy, keras.layers.Layer):
                # Copy the state of the original now, or after the first call builds the copy.
                if copy.built and has_same_variables(call.operation, copy):
                    copy_state(call.operation, copy)
                else:
                    self.unfilled[call.layer] = copy
            if call.layer in self.plan.wrapped and isinstance(copy, keras.layers.Layer):
                copy = self._wrap(call.layer, copy)
            self.layers[call.layer] = copy
        return self.layers[call.layer]

    def _copy_by_arguments(self, call: Call, layer: Any) -> Any:
        """Copy a layer by its constructor arguments, if its configuration gave other variables."""
        copy = clone_by_arguments(call.operation, call.layer)
        if copy is None:
            return layer
        self.layers[call.layer] = (
            self._wrap(call.layer, copy) if call.layer in self.plan.wrapped else copy
        )
        return self.layers[call.layer]

    def _wrap(self, name: str, layer: Any) -> Any:
        entries = self.plan.of_layer.get(name, [])
        own_name = self._wrapper_name(name)
        if REGISTRY.find(type(layer)) is None and is_composite(self.old_layers[name]):
            return wrap_composite(own_name, layer, self.old_layers[name], entries)
        return wrap_layer(own_name, layer, name, entries)

    def _wrapper_name(self, layer: str) -> str:
        """Return ``quant_<layer>``, with a number if another layer has this name."""
        base = name = f"quant_{layer}"
        number = 0
        while name in self.old_layers and name not in self.plan.wrapped:
            number += 1
            name = f"{base}_{number}"
        return name

    def _settle(self, call: Call, wrapper: BaseQuantizeWrapper) -> None:
        """Disable quantizers of a wrapper without a plan entry.

        Input quantizers of an existing wrapper are disabled, too, if the plan has a quantizer for
        the tensor: each tensor has one quantizer.
        """
        if call.layer in self.plan.wrapped and not isinstance(call.operation, BaseQuantizeWrapper):
            planned = {entry.name for entry in self.plan.of_layer.get(call.layer, [])}
            for quantizer in [*wrapper.weight_quantizers, *wrapper.internal_quantizers]:
                if quantizer.name not in planned:
                    quantizer.disable()
        for index, own in enumerate(wrapper.input_quantizers):
            if own is not None and (entry := self.plan.arriving(self.graph, call, index)):
                self._replace(call.operation.input_quantizers[index], entry)
                own.disable()


def _class_of(model: Any) -> Any:
    """Return the class of the copy: that of the model if its constructor accepts tensors.

    This preserves a custom ``train_step``. The rule is that of ``keras.models.clone_model``.
    """
    taken = inspect.getfullargspec(type(model).__init__)
    anything = taken.varargs is not None and taken.varkw is not None
    takes_tensors = anything or taken.args[1:] == ["inputs", "outputs", "name"]
    return type(model) if takes_tensors and not isinstance(model, keras.Sequential) else keras.Model
