"""apply_plan: the only place that changes the graph of a PyTorch module."""

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
from qat_lib.torch.shapes import example_inputs
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
"""Classes with a weight, and their quantized forms. ``quantized_modules`` lends their names in
``torch.nn`` to the quantized ones, those in ``torch.nn.modules`` stay."""


def apply_plan(
    module: nn.Module, plan: QuantizationPlan, *, example_input: Any = None
) -> fx.GraphModule:
    """Return a copy of a module with the quantizers of a plan.

    A quantizer of an activation is a submodule that all readers of its tensor read through; one of
    a weight is inside of the quantized module that stands for the module. Names of submodules,
    parameters and buffers stay, so that the state of the original loads with ``strict=False``.

    Args:
        module: the module that the plan was made of, or its traced form; it stays as it is.
        plan: the plan.
        example_input: as for ``qat_lib.torch.plan_quantization``; only the number of tensors
            counts. Default None: as many as ``forward`` has arguments without a default.

    Raises:
        PlanError: the plan names a tensor, module or weight that the module lacks.
        UnsupportedModelError: torch.fx can't trace the module, or it can't be copied.
    """
    count = None if example_input is None else len(example_inputs(module, example_input))
    return _Insertion(ModuleGraph(_copied(trace_module(module, count))), plan).run()


def _copied(traced: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a traced module without the shapes of its tensors."""
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
        self.paths: dict[str, str] = {}
        """Path of the submodule of each quantizer of an activation."""
        self.device = next((p.device for p in self.traced.parameters()), torch.device("cpu"))

    def run(self) -> fx.GraphModule:
        replaced = self._find_replaced()
        for name, entries in self.plan.of_layer.items():
            self._quantize_weight(name, entries)
        for entry in self.entries:
            self._quantize_tensor(entry)
        for call, entry in replaced:
            self._drop_own(call, entry)
        work_out_of_place(self.traced)
        self._finish()
        return self.traced

    def _finish(self) -> None:
        for part in self.traced.modules():
            if type(part) is nn.Module:  # made by torch.fx to hold others
                part.training = self.traced.training
        self.traced.graph.lint()
        self.traced.delete_all_unused_submodules()
        self.traced.recompile()

    def _quantize_tensor(self, entry: QuantizerEntry) -> None:
        """Quantize a tensor for the readers that the plan names."""
        node = self.graph.nodes[entry.tensor]
        with self.traced.graph.inserting_after(self._behind(node)):
            quantized = self.traced.graph.call_module(self._quantizer(entry), (node,))
        self.graph.tensors[quantized] = entry.tensor
        for consumer in entry.consumers:
            _read(self.graph, consumer.layer, consumer.input, quantized)

    def _behind(self, node: fx.Node) -> fx.Node:
        """Return the node behind which code can read a value.

        Inputs come before all code.
        """
        if node.op != "placeholder":
            return node
        return [n for n in self.traced.graph.nodes if n.op == "placeholder"][-1]

    def _quantizer(self, entry: QuantizerEntry) -> str:
        """Return the path of an entry's quantizer, which a tied group shares."""
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
        """Return a free submodule path: its name, underscores added if taken."""
        parts = [path for path, _ in self.traced.named_modules()]
        parts += [path for path, _ in self.traced.named_parameters()]
        while name in parts:
            name += "_"
        return name

    def _quantize_weight(self, path: str, entries: list[QuantizerEntry]) -> None:
        """Replace a module by its quantized form with the weight's quantizer.

        That quantizer is its only one.
        """
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
            # Its input is quantized outside, where all readers of the tensor share a quantizer.
            quantized._input_quantizer = nn.Identity()
            quantized.weight_quantizer.to(self.device).fit_weight()
            self.traced.set_submodule(path, quantized.train(module.training))

    def _find_replaced(self) -> list[tuple[ModuleCall, QuantizerEntry]]:
        """Return the calls whose own quantizer the plan replaces."""
        found = []
        for call in self.graph.calls:
            entry = self.plan.arriving(self.graph, call, 0)
            if entry is not None:
                found.append((call, entry))
        return found

    def _drop_own(self, call: ModuleCall, entry: QuantizerEntry) -> None:
        """Remove an input's own quantizer, and hand on its range and switches."""
        quantizer = self.traced.get_submodule(self.paths[entry.name])
        own = call.operation if call.traits.is_quantizer else input_quantizer(call.operation)
        if isinstance(own, TensorQuantizer):
            _take_over(quantizer, own)
        if call.traits.is_quantizer:
            call.node.replace_all_uses_with(call.node.args[0])
            self.traced.graph.erase_node(call.node)
        else:
            call.operation._input_quantizer = nn.Identity()


def _read(graph: ModuleGraph, call: str, index: int, quantized: fx.Node) -> None:
    """Let input number ``index`` of a call read another node."""
    node = graph.by_name[call].node  # type: ignore[attr-defined]
    counter = iter(range(len(inputs_of(node))))

    def replace(old: fx.Node) -> fx.Node:
        is_it = old in graph.tensors and next(counter) == index
        return quantized if is_it else old

    node.args, node.kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), replace)


def _quantized_class(module: nn.Module) -> Any:
    for base in type(module).__mro__:
        if base in QUANTIZED:
            return QUANTIZED[base]
    return None


def _take_over(quantizer: Any, own: TensorQuantizer) -> None:
    """Give a quantizer the replaced one's switches and the wider range."""
    if not own.enabled:
        quantizer.disable()
    if own.calibrated:
        amax = own.amax
        quantizer.amax = torch.maximum(amax, quantizer.amax) if quantizer.calibrated else amax
