"""apply_plan: the only place that rebuilds a Keras graph."""

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

    It has the model's class, where that takes a graph of layers. Else it is a plain Functional
    model, and a warning names the steps of the class that it lacks.

    Raises:
        PlanError: the plan names a tensor, layer or weight that the model lacks.
        UnsupportedModelError: a layer can't be copied or has a name that TensorFlow refuses, or the
            copy is deeper than Keras can walk.
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
    """Return a copy of ``model`` in which other layers stand for some.

    Args:
        model: a Functional or Sequential Keras model.
        replaced: name of a layer in the model's ``LayerGraph`` -> the layer in its place, which
            keeps its own weights.

    Raises:
        UnsupportedModelError: a layer can't be copied.
    """
    plan = QuantizationPlan(model=model.name, mode="partial", quantizers=(), skipped=(), wrapped=())
    with deep_graphs():
        return _Rebuild(LayerGraph(model), plan, replaced).run()


class _Rebuild:
    """One application of a plan: new layers and tensors by old names."""

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
                self._add_input(call)
            elif isinstance(call.operation, TensorQuantizer) and (
                entry := self.plan.arriving(self.graph, call, 0)
            ):
                self._replace(call.operation, entry)
                self.tensors[call.outputs[0]] = self._read(call, 0)
            else:
                self._add_call(call)
        for name, replaced in self.replaced.items():
            _take_over(self.layers[name], replaced)
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
        """Return the output tensors under their names in the model.

        Losses, metrics and ONNX outputs go by these names, and Keras takes them from the layers
        that make the tensors: so a tensor that is made by a wrapper passes through an Identity of
        the wrapped layer's name.
        """
        taken = {maker_of(tensor).name for tensor in self.tensors.values()}
        named: dict[str, Any] = {}
        outputs = []
        for old, name in zip(self.graph.outputs, function.output_names, strict=True):
            tensor = self.tensors[old]
            if maker_of(tensor).name != name and name not in taken:
                # In the tensor's own type: under a mixed policy the layer would cast it.
                named.setdefault(name, keras.layers.Identity(name=name, dtype=tensor.dtype))
                tensor = named[name](tensor)
            outputs.append(tensor)
        return self._packed(output_structure(function), outputs)

    def _add_input(self, call: Call) -> None:
        layer = call.operation
        self.tensors[call.outputs[0]] = keras.Input(
            batch_shape=layer.batch_shape, dtype=layer.dtype, sparse=layer.sparse, name=layer.name
        )

    def _add_call(self, call: Call) -> None:
        layer = self._layer(call)
        args, kwargs = call.fill(lambda index: self._read(call, index))
        if (
            call.training is not None
            and isinstance(layer, keras.layers.Layer)
            and layer._call_has_training_arg
        ):
            kwargs["training"] = call.training
        outputs = call_copy(layer, args, kwargs)
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
            self.layers[entry.name] = TensorQuantizer(
                **({} if old is None else old.get_config()) | options
            )
        quantizer: TensorQuantizer = self.layers[entry.name]
        return quantizer

    def _replace(self, quantizer: TensorQuantizer, entry: QuantizerEntry) -> None:
        """Note that the entry's quantizer stands for one of the model's own."""
        replaced = self.replaced.setdefault(entry.name, [])
        if quantizer not in replaced:
            replaced.append(quantizer)

    def _layer(self, call: Call) -> Any:
        if call.layer not in self.layers:
            copy = clone_operation(call.operation, call.layer)
            if isinstance(copy, keras.layers.Layer):
                self._fill(call, copy)
            if call.layer in self.plan.wrapped and isinstance(copy, keras.layers.Layer):
                copy = self._wrap(call.layer, copy)
            self.layers[call.layer] = copy
        return self.layers[call.layer]

    def _copy_by_arguments(self, call: Call, layer: Any) -> Any:
        """Copy a layer whose copy by configuration turned out different."""
        copy = clone_by_arguments(call.operation, call.layer)
        if copy is None:
            return layer
        self.layers[call.layer] = (
            self._wrap(call.layer, copy) if call.layer in self.plan.wrapped else copy
        )
        return self.layers[call.layer]

    def _fill(self, call: Call, copy: Any) -> None:
        """Give the copy the original's state, now or after its building call."""
        if copy.built and has_same_variables(call.operation, copy):
            copy_state(call.operation, copy)
        else:
            self.unfilled[call.layer] = copy

    def _wrap(self, name: str, layer: Any) -> Any:
        entries = self.plan.of_layer.get(name, [])
        own_name = self._wrapper_name(name)
        if REGISTRY.find(type(layer)) is None and is_composite(self.old_layers[name]):
            return wrap_composite(own_name, layer, self.old_layers[name], entries)
        return wrap_layer(own_name, layer, name, entries)

    def _wrapper_name(self, layer: str) -> str:
        """Return ``quant_<layer>``, numbered where another layer has that name."""
        base = name = f"quant_{layer}"
        number = 0
        while name in self.old_layers and name not in self.plan.wrapped:
            number += 1
            name = f"{base}_{number}"
        return name

    def _settle(self, call: Call, wrapper: BaseQuantizeWrapper) -> None:
        """Switch off quantizers of the wrapper that the plan lacks.

        One tensor or weight has one quantizer.
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
    """Return the copy's class, the model's own if it takes tensors.

    The model's own class has its ``train_step``. The rule is that of ``keras.models.clone_model``.
    """
    taken = inspect.getfullargspec(type(model).__init__)
    anything = taken.varargs is not None and taken.varkw is not None
    takes_tensors = anything or taken.args[1:] == ["inputs", "outputs", "name"]
    return type(model) if takes_tensors and not isinstance(model, keras.Sequential) else keras.Model


def _take_over(quantizer: TensorQuantizer, replaced: Sequence[TensorQuantizer]) -> None:
    """Give a quantizer the replaced quantizers' widest range.

    Switches come from the first that it replaces.
    """
    quantizer.take_over(replaced[0])
    if ranges := [old.amax for old in replaced if old.calibrated]:
        quantizer.amax = np.maximum.reduce(ranges)
