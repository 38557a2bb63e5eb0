"""apply_plan: insert the quantizers of a plan into the graph of a PyTorch module."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn
from torch.nn import modules as float_nn

from qat_lib.core.plan import QuantizationPlan, QuantizerEntry
from qat_lib.core.plan_index import PlanIndex
from qat_lib.errors import PlanError, UnsupportedModelError
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.existing_quantizers import input_quantizer
from qat_lib.torch.graph import ModuleCall, ModuleGraph, inputs_of
from qat_lib.torch.in_place import work_out_of_place
from qat_lib.torch.shapes import example_arguments
from qat_lib.torch.tensor_quant import QuantDescriptor
from qat_lib.torch.tensor_quantizer import TensorQuantizer
from qat_lib.torch.tracing import trace_module

QUANTIZED: dict[type, Any] = {
    float_nn.Conv1d: quant_nn.QuantConv1d,
    float_nn.Conv2d: quant_nn.QuantConv2d,
    float_nn.Conv3d: quant_nn.QuantConv3d,
    float_nn.ConvTranspose1d: quant_nn.QuantConvTranspose1d,
    float_nn.ConvTranspose2d: quant_nn.QuantConvTranspose2d,
    float_nn.ConvTranspose3d: quant_nn.QuantConvTranspose3d,
    float_nn.Linear: quant_nn.QuantLinear,
}
"""Quantized form of each class with a weight. The keys come from ``torch.nn.modules``, because
``quantized_modules`` replaces the names in ``torch.nn``."""


def apply_plan(
    module: nn.Module, plan: QuantizationPlan, *, example_input: Any = None
) -> fx.GraphModule:
    """Return a copy of a module with the quantizers of a plan.

    An activation quantizer is a submodule between a tensor and all its readers; a weight quantizer
    is inside of the quantized module that replaces the original. Names of submodules, parameters
    and buffers are kept, so that the state of the original loads with ``strict=False``.

    Args:
        module: the planned module, or its traced form; it is not changed.
        plan: the plan.
        example_input: as for ``qat_lib.torch.plan_quantization``; it chooses the inputs among the
            arguments of ``forward``. Default None: those without a default.

    Raises:
        PlanError: the module lacks a tensor, module or weight of the plan.
        UnsupportedModelError: the module can't be traced by torch.fx, or can't be copied.
    """
    names = None if example_input is None else list(example_arguments(module, example_input))
    return _Insertion(ModuleGraph(_copied(trace_module(module, names))), plan).run()


def _copied(traced: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a traced module without recorded tensor shapes."""
    try:
        copied = copy.deepcopy(traced)
    except Exception as error:  # a module's own copying may raise anything
        raise UnsupportedModelError(
            f"{type(traced).__name__} can't be copied: {describe_error(error)}."
        ) from error
    type(copied).__name__ = type(traced).__name__  # torch.fx names a copy GraphModule
    for node in copied.graph.nodes:
        for key in ("tensor_meta", "type"):
            node.meta.pop(key, None)
    return copied


class _Insertion:
    """One application of a plan to a copy of a module."""

    def __init__(self, graph: ModuleGraph, plan: QuantizationPlan) -> None:
        self.graph = graph
        self.traced: fx.GraphModule = graph.model
        self.plan = PlanIndex.of(plan, graph)
        self.entries = plan.by_kind("activation")
        # Path of the submodule of each activation quantizer.
        self.paths: dict[str, str] = {}
        self.device = next((p.device for p in self.traced.parameters()), torch.device("cpu"))

    def run(self) -> fx.GraphModule:
        # Before any change: the entries of the plan refer to the original graph.
        replaced = self._find_replaced()
        for name, entries in self.plan.of_layer.items():
            self._quantize_weight(name, entries)
        for entry in self.entries:
            self._quantize_tensor(entry)
        for call, entry in replaced:
            self._drop_own(call, entry)
        # An in-place module would change the tensor that a new quantizer also reads.
        work_out_of_place(self.traced)
        self._finish()
        return self.traced

    def _finish(self) -> None:
        for part in self.traced.modules():
            if type(part) is nn.Module:  # a container created by torch.fx, in training mode
                part.training = self.traced.training
        self.traced.graph.lint()
        self.traced.delete_all_unused_submodules()
        self.traced.recompile()

    def _quantize_tensor(self, entry: QuantizerEntry) -> None:
        """Quantize a tensor for its readers in the plan."""
        node = self.graph.nodes[entry.tensor]
        with self.traced.graph.inserting_after(self._behind(node)):
            quantized = self.traced.graph.call_module(self._quantizer(entry), (node,))
        self.graph.tensors[quantized] = entry.tensor
        for consumer in entry.consumers:
            _read(self.graph, consumer.layer, consumer.input, quantized)

    def _behind(self, node: fx.Node) -> fx.Node:
        """Return the last node before a possible reader of a value.

        All placeholders must precede the other nodes.
        """
        if node.op != "placeholder":
            return node
        return [n for n in self.traced.graph.nodes if n.op == "placeholder"][-1]

    def _quantizer(self, entry: QuantizerEntry) -> str:
        """Return the path of an entry's quantizer, shared by a tied group."""
        if entry.name in self.paths:
            self.traced.get_submodule(self.paths[entry.name]).shared = True
            return self.paths[entry.name]
        kept = self.graph.by_name.get(entry.name)
        descriptor = QuantDescriptor(
            num_bits=entry.num_bits,
            name=entry.name,
            axis=entry.channel_axes,
            unsigned=entry.unsigned,
            range_policy=entry.range_policy,
            calibrator=entry.calibrator,
        )
        quantizer = TensorQuantizer(descriptor).to(self.device)
        path = entry.name if kept is not None else self._free_path(entry.name)
        self.traced.add_submodule(path, quantizer.train(self.traced.training))
        self.paths[entry.name] = path
        return path

    def _free_path(self, name: str) -> str:
        """Return a free submodule path: the name, with underscores added if it is taken."""
        parts = [path for path, _ in self.traced.named_modules()]
        parts += [path for path, _ in self.traced.named_parameters()]
        while name in parts:
            name += "_"
        return name

    def _quantize_weight(self, path: str, entries: list[QuantizerEntry]) -> None:
        """Replace a module by its quantized form with a weight quantizer only."""
        module = self.traced.get_submodule(path)
        quantized_class = _quantized_class(module)
        for entry in entries:
            if quantized_class is None or entry.tensor != f"{path}/weight":
                raise PlanError(
                    f"The plan names {entry.tensor!r}, but {type(module).__name__} has no such "
                    "weight to quantize."
                )
            descriptor = QuantDescriptor(
                num_bits=entry.num_bits,
                name=entry.name,
                axis=entry.channel_axes,
                range_policy=entry.range_policy,
                pair_axis=entry.pair_axis,
            )
            quantized = quantized_class.from_float(module, quant_desc_weight=descriptor)
            # The input is quantized outside, by a quantizer shared with the tensor's other readers.
            quantized._input_quantizer = nn.Identity()
            quantized.weight_quantizer.to(self.device).fit_weight()
            self.traced.set_submodule(path, quantized.train(module.training))

    def _find_replaced(self) -> list[tuple[ModuleCall, QuantizerEntry]]:
        """Return the calls with an input quantizer that the plan replaces."""
        found = []
        for call in self.graph.calls:
            entry = self.plan.arriving(self.graph, call, 0)
            if entry is not None:
                found.append((call, entry))
        return found

    def _drop_own(self, call: ModuleCall, entry: QuantizerEntry) -> None:
        """Remove the existing quantizer of an input, and transfer its range and switches."""
        quantizer = self.traced.get_submodule(self.paths[entry.name])
        own = call.operation if call.traits.is_quantizer else input_quantizer(call.operation)
        if isinstance(own, TensorQuantizer):
            # Transfer the switches of a replaced quantizer, and the wider range of both.
            if not own.enabled:
                quantizer.disable()
            if own.calibrated:
                amax = own.amax
                quantizer.amax = (
                    torch.maximum(amax, quantizer.amax) if quantizer.calibrated else amax
                )
        if call.traits.is_quantizer:
            call.node.replace_all_uses_with(call.node.args[0])
            self.traced.graph.erase_node(call.node)
        else:
            call.operation._input_quantizer = nn.Identity()


def _read(graph: ModuleGraph, call: str, index: int, quantized: fx.Node) -> None:
    """Redirect input number ``index`` of a call to another node."""
    node = graph.by_name[call].node  # type: ignore[attr-defined]
    counter = iter(range(len(inputs_of(node))))

    def replace(old: fx.Node) -> fx.Node:
        # Only tensors count as inputs; the counter must not advance for other arguments.
        is_it = old in graph.tensors and next(counter) == index
        return quantized if is_it else old

    node.args, node.kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), replace)


def _quantized_class(module: nn.Module) -> Any:
    for base in type(module).__mro__:
        if base in QUANTIZED:
            return QUANTIZED[base]
    return None
